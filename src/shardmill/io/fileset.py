"""A folder of finished files, on this machine or on the network → their sizes, and their bytes by position."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from shardmill.errors import InputError, UsageError
from shardmill.io.http import Remote, new_session
from shardmill.io.http_reader import RemoteReader
from shardmill.io.reading import InputReader
from shardmill.io.retry import Missing
from shardmill.io.storage import read_small
from shardmill.io.urls import Resolver
from shardmill.spec import NETWORK_SECONDS
from shardmill.system.names import is_url, show, without_secrets

# Readers that wait for the next read where they stopped, each with at most 10 MiB ahead and behind: tokens, an
# index, and one of each more for a second thread.
_KEPT_READERS = 4


class FileSet(Protocol):
    """Files by name. What it gives may be used in every thread, and in a process that was forked or sent a copy."""

    @property
    def place(self) -> Path | str:
        """The folder, or its address as it may be shown."""

    def path(self, name: str) -> str:
        """Where a file is, as it may be shown."""

    def names(self) -> list[str]:
        """All files there; none on the web, which cannot be asked."""

    def size(self, name: str) -> int | None:
        """None: there is no such file, or it is none."""

    def whole(self, name: str, largest: int) -> bytes | None:
        """All of a small file; None: there is none."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly these bytes, fewer only at the end. Nothing stays open on this machine."""

    def open(self, name: str) -> InputReader | RemoteReader:
        """To read it from one end to the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One file of a fileset."""

    fileset: FileSet
    name: str

    @property
    def path(self) -> str:
        return self.fileset.path(self.name)

    @property
    def size(self) -> int:
        """Raises InputError when there is no such file."""
        found = self.fileset.size(self.name)
        if found is None:
            raise InputError(f"{show(self.path)}: no such file; it was removed since, or never copied here")
        return found

    def read(self, offset: int, length: int) -> bytes:
        return self.fileset.read(self.name, offset, length)


def open_fileset(place: str | Path, patience: float = NETWORK_SECONDS) -> FileSet:
    """Raises Missing if there is no such folder."""
    if is_url(str(place)):
        return RemoteFiles(str(place), patience)
    return LocalFiles(Path(place))


@dataclass(frozen=True, slots=True)
class LocalFiles:
    folder: Path

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise Missing(f"{show(self.folder)}: no such folder")

    @property
    def place(self) -> Path:
        return self.folder

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def names(self) -> list[str]:
        """Those in the subfolders too that some formats have for each split."""
        found = [path.name for path in self.folder.iterdir()]
        for split in ("train", "val"):
            below = self.folder / split
            if below.is_dir() and not below.is_symlink():
                found += [f"{split}/{path.name}" for path in below.iterdir()]
        return sorted(found)

    def size(self, name: str) -> int | None:
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def whole(self, name: str, largest: int) -> bytes | None:
        try:
            return read_small(self.folder / name, largest)
        except FileNotFoundError:
            return None

    def read(self, name: str, offset: int, length: int) -> bytes:
        with InputReader(self.path(name)) as reader:
            return reader.read(offset, length)

    def open(self, name: str) -> InputReader:
        return InputReader(self.path(name), drop_behind=True)


class RemoteFiles:
    """A prefix of a store, a folder of the hub, or of the web, where names cannot be listed and are asked for one by one."""

    def __init__(self, url: str, patience: float, places: Resolver | None = None) -> None:
        if any(magic in url.partition("://")[2] for magic in "*["):
            raise UsageError(f"{show(url)}: name one folder, without * or [")
        self.place = without_secrets(url).rstrip("/")
        self._url, self._patience = url, patience
        self._known: dict[str, str] = {}
        self._begin(places or Resolver(patience))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self._url, self._patience)

    def _begin(self, places: Resolver) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._session: Any = None
        self._idle: list[tuple[str, RemoteReader]] = []
        self._places, self._listed = places, places.folder(self._url)
        self._found: dict[str, Remote] = {}

    def path(self, name: str) -> str:
        return f"{self.place}/{name}"

    def names(self) -> list[str]:
        return sorted(self._listed or ())

    def size(self, name: str) -> int | None:
        try:
            return self._remote(name).size
        except Missing:
            return None

    def whole(self, name: str, largest: int) -> bytes | None:
        size = self.size(name)
        if size is not None and size > largest:
            raise InputError(f"{show(self.path(name))}: is too large to be a file that shardmill wrote")
        return None if size is None else self.read(name, 0, size)

    def read(self, name: str, offset: int, length: int) -> bytes:
        remote = self._remote(name)
        with self._reader(name, remote, offset) as reader:
            return reader.read(offset, length)

    def open(self, name: str) -> RemoteReader:
        return RemoteReader(self._remote(name))

    def _remote(self, name: str) -> Remote:
        if self._pid != os.getpid():  # forked: neither threads nor connections nor file systems came along
            self._begin(Resolver(self._patience))
        if self._listed is not None:
            found = self._listed.get(name)
        elif name in self._found:
            found = self._found[name]
        else:
            found = self._found[name] = self._places.find(_joined(self._url, name), lambda _: True)[0]
        if found is None:
            raise Missing(f"{show(self.path(name))}: there is no such file")
        if self._known.setdefault(name, found.version) != found.version:
            raise InputError(f"{show(self.path(name))}: was replaced since it was opened; open it again")
        return found

    @contextmanager
    def _reader(self, name: str, remote: Remote, offset: int) -> Iterator[RemoteReader]:
        """One that is near, or a new one; nobody else has it meanwhile."""
        with self._lock:
            self._session = self._session or new_session()
            near = next((kept for kept in self._idle if kept[0] == name and kept[1].near(offset)), None)
            if near is not None:
                self._idle.remove(near)
        reader = near[1] if near is not None else RemoteReader(remote, session=self._session)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        with self._lock:
            self._idle.append((name, reader))
            last = self._idle.pop(0) if len(self._idle) > _KEPT_READERS else None
        if last is not None:
            last[1].close()

    def __del__(self) -> None:
        for _, reader in getattr(self, "_idle", ()) if getattr(self, "_pid", 0) == os.getpid() else ():
            reader.close()


def _joined(url: str, name: str) -> str:
    """The address of a file in a folder of the web."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))
