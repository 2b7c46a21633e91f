"""A folder of finished files, local or remote → their sizes, and their bytes by position."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from shardmill.errors import InputError, UsageError
from shardmill.io.http import RemoteFile, new_session
from shardmill.io.http_reader import RemoteReader
from shardmill.io.reading import InputReader
from shardmill.io.retry import NotFound
from shardmill.io.storage import read_small
from shardmill.io.urls import Resolver
from shardmill.spec import NETWORK_SECONDS
from shardmill.system.names import is_url, show, without_secrets

# Idle readers, kept to continue where they stopped, each holding at most 10 MiB: tokens and an index, for two threads.
_IDLE_READERS = 4
_READ_BYTES = 1 << 20
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder on this machine. Nothing in it stays open, except what open() returns."""

    folder: Path

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise NotFound(f"{show(self.folder)}: no such folder")

    def path(self, name: str) -> str:
        """As it may be shown."""
        return str(self.folder / name)

    def names(self) -> list[str]:
        """All files, including those in train/ and val/, which some formats have."""
        found = [path.name for path in self.folder.iterdir()]
        for split in ("train", "val"):
            below = self.folder / split
            if below.is_dir() and not below.is_symlink():
                found += [f"{split}/{path.name}" for path in below.iterdir()]
        return sorted(found)

    def size(self, name: str) -> int | None:
        """None: there is no such file, or it is not a regular file."""
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def read_all(self, name: str, largest: int) -> bytes | None:
        """All of a small file; None if there is no such file."""
        try:
            return read_small(self.folder / name, largest)
        except FileNotFoundError:
            return None

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly these bytes, fewer only at the end."""
        with InputReader(self.path(name)) as reader:
            return reader.read(offset, length)

    def open(self, name: str) -> InputReader:
        """To read a file from start to end."""
        return InputReader(self.path(name), drop_behind=True)


class RemoteFiles:
    """A prefix of an object store, or a folder on the hub or the web, with the methods of LocalFiles.

    On the web folders cannot be listed: names() is empty, and files are looked up one by one.
    """

    def __init__(self, url: str, network_seconds: float, resolver: Resolver | None = None) -> None:
        if any(magic in url.partition("://")[2] for magic in "*["):
            raise UsageError(f"{show(url)}: name one folder, without * or [")
        self.folder = without_secrets(url).rstrip("/")
        self._url, self._network_seconds = url, network_seconds
        self._versions: dict[str, str] = {}
        """Of all files seen so far, also before a fork: none may change."""
        self._connect(resolver or Resolver(network_seconds))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self._url, self._network_seconds)

    def _connect(self, resolver: Resolver) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._session: Any = None
        self._idle: list[tuple[str, RemoteReader]] = []
        listed = resolver.folder(self._url)
        self._lookup = resolver.find if listed is None else None
        self._files = listed or {}

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def names(self) -> list[str]:
        return sorted(self._files) if self._lookup is None else []

    def size(self, name: str) -> int | None:
        try:
            return self._file(name).size
        except NotFound:
            return None

    def read_all(self, name: str, largest: int) -> bytes | None:
        size = self.size(name)
        if size is not None and size > largest:
            raise InputError(f"{show(self.path(name))}: too large for a file that shardmill wrote")
        return None if size is None else self.read(name, 0, size)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """By an idle reader near this offset, or a new one, which then belongs to this call alone."""
        file = self._file(name)
        with self._lock:
            self._session = self._session or new_session()
            near = next((idle for idle in self._idle if idle[0] == name and idle[1].near(offset)), None)
            if near is not None:
                self._idle.remove(near)
        reader = near[1] if near is not None else RemoteReader(file, session=self._session)
        try:
            data = reader.read(offset, length)
        except BaseException:
            reader.close()
            raise
        with self._lock:
            self._idle.append((name, reader))
            oldest = self._idle.pop(0) if len(self._idle) > _IDLE_READERS else None
        if oldest is not None:
            oldest[1].close()
        return data

    def open(self, name: str) -> RemoteReader:
        return RemoteReader(self._file(name))

    def _file(self, name: str) -> RemoteFile:
        if self._pid != os.getpid():  # forked: threads, connections and file systems stayed behind
            self._connect(Resolver(self._network_seconds))
        if self._lookup is not None and name not in self._files:
            self._files[name] = self._lookup(_joined(self._url, name))[0].file
        found = self._files.get(name)
        if found is None:
            raise NotFound(f"{show(self.path(name))}: no such file")
        if self._versions.setdefault(name, found.version) != found.version:
            raise InputError(f"{show(self.path(name))}: was replaced since it was opened; open it again")
        return found

    def __del__(self) -> None:
        for _, reader in getattr(self, "_idle", ()) if getattr(self, "_pid", 0) == os.getpid() else ():
            reader.close()


FileSet = LocalFiles | RemoteFiles
"""Files by name. May be used by any thread, and by a process that was forked or sent a copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One file of a FileSet."""

    fileset: FileSet
    name: str

    @property
    def path(self) -> str:
        return self.fileset.path(self.name)

    @property
    def size(self) -> int:
        """Raises InputError if there is no such file."""
        found = self.fileset.size(self.name)
        if found is None:
            raise InputError(f"{show(self.path)}: no such file; it was removed, or never copied here")
        return found

    def read(self, offset: int, length: int) -> bytes:
        return self.fileset.read(self.name, offset, length)

    def lines(self) -> Iterator[bytes]:
        """The lines without their ends, streamed; the file may be a stranger's, so one that is very long is a ValueError."""
        at, rest = 0, b""
        while data := self.read(at, _READ_BYTES):
            at += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise ValueError("it is too long")
            yield from lines
        if rest:
            yield rest


def open_fileset(folder: str | Path, network_seconds: float = NETWORK_SECONDS) -> FileSet:
    """Raises NotFound if there is no such folder."""
    if is_url(str(folder)):
        return RemoteFiles(str(folder), network_seconds)
    return LocalFiles(Path(folder))


def _joined(url: str, name: str) -> str:
    """The URL of a file in a folder on the web."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))
