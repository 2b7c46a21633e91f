"""The only door to what is read: files of this machine, pipes, and, through http_reader.py, the network."""

import contextlib
import errno
import os
import select
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, TypeVar

import xxhash

from shardmill.errors import InputError, ShardmillError, TemporaryError
from shardmill.io.http import Remote
from shardmill.io.http_reader import LOOK_BACK, READ_AHEAD, RemoteReader
from shardmill.io.retry import Stopped
from shardmill.io.spool import Spool
from shardmill.system.names import show

T = TypeVar("T")

FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
STDIN = "-"
_PIPE_CHUNK = 256 << 10
_POLL_MILLISECONDS = 200
_SAMPLE_BYTES = 4 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file to mill, as it was when the job began."""

    path: str
    """As it may be shown and stored: a URL without credentials; - for standard input."""
    size: int | None
    """None: not known before the end, as for a pipe."""
    modified_ns: int = 0
    version: str = ""
    """What tells a changed object on the network from this one: an ETag, generation or hash; empty for local files."""
    once: bool = False
    """Standard input or another pipe: it can be read only once, and forward."""
    remote: Remote | None = field(default=None, repr=False, compare=False)

    @property
    def local(self) -> bool:
        """A regular file of this machine."""
        return self.remote is None and not self.once


class Reader(Protocol):
    """Bytes by position, from wherever they are."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int | None:
        """None: not known yet. A pipe knows it when its end is less than 1 MiB beyond what was read."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end.

        A pipe only goes forward: what is before done_until may be gone.
        """

    def done_until(self, offset: int) -> None:
        """Nothing before offset is needed again."""

    def __enter__(self) -> "Reader": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_input(
    file: InputFile, *, drop_behind: bool = False, stop: threading.Event | None = None, spool: str | None = None
) -> Reader:
    """The one way to read an input. Whoever waits for bytes hears of stop, and gives up with Stopped.

    spool is a folder for what of a pipe is long and must be had twice.
    """
    if file.once:
        return PipeReader(file.path, stop, spool)
    if file.remote is not None:
        return RemoteReader(file.remote, stop)
    return InputReader(file.path, drop_behind=drop_behind)


def read_buffers(file: InputFile) -> int:
    """Memory that reading this file takes, the page cache aside."""
    return (
        0 if file.local else READ_AHEAD + 2 * LOOK_BACK
    )  # the same for a pipe: 4 MiB of backlog, 1 MiB ahead, and what is handed out


class InputReader:
    """One input file, read by position. Short reads are completed; a file that shrank is an error."""

    def __init__(self, path: str, *, drop_behind: bool = False) -> None:
        self.path = path
        self._drop_behind = drop_behind
        self._dropped = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | FLAGS)
        except OSError as e:
            raise input_error(path, e) from e
        self._length = os.fstat(self._fd).st_size
        self.size: int = self._length
        advise(self._fd, 0, 0, "POSIX_FADV_SEQUENTIAL")

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end the file had when it was opened."""
        length = min(length, self._length - offset)
        chunks: list[bytes] = []
        missing = length
        while missing > 0:
            try:
                chunk = pread(self._fd, missing, offset + length - missing)
            except OSError as e:
                raise input_error(self.path, e) from e
            if not chunk:
                raise InputError(
                    f"{show(self.path)}: the file ends at byte {offset + length - missing:,} but had {self._length:,} bytes when the job began; "
                    "it was cut short while it was read. Restore it and run again."
                )
            chunks.append(chunk)
            missing -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def now(self) -> Iterator[tuple[int, int]]:
        """The size, and when it was last modified in nanoseconds, of what is read, and of what has its name now."""
        opened = os.fstat(self._fd)
        yield opened.st_size, opened.st_mtime_ns
        with contextlib.suppress(FileNotFoundError):  # removed, but read to its end
            named = os.stat(self.path)
            if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
                raise InputError(
                    f"{show(self.path)}: was replaced by another file while it was read; let whatever writes it finish, then start again with --overwrite"
                )
            yield named.st_size, named.st_mtime_ns

    def done_until(self, offset: int) -> None:
        """Nothing before offset is needed again: let the kernel drop it from the page cache."""
        if self._drop_behind and offset - self._dropped >= 16 << 20:
            advise(self._fd, self._dropped, offset - self._dropped, "POSIX_FADV_DONTNEED")
            self._dropped = offset

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "InputReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PipeReader:
    """Standard input or a named pipe: read once, forward, a little ahead, so that its end does not come by surprise."""

    def __init__(self, path: str, stop: threading.Event | None = None, spool: str | None = None) -> None:
        self.path = path
        self.size: int | None = None
        self._stop = stop or threading.Event()
        self._kept = Spool(path, spool)
        self._done = 0
        try:
            self._fd = _standard_input() if path == STDIN else os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as e:
            raise input_error(path, e) from e
        self._poll = None
        if hasattr(select, "poll"):  # not on Windows: there a silent pipe must end before the job can
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def read(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length), fewer only at the end."""
        self._kept.drop(min(offset, self._done))
        if offset < self._kept.start:
            raise InputError(
                f"{show(self.path)}: byte {offset:,} is needed again, and a pipe cannot go back that far; save the data as a file first, and mill that"
            )
        while self.size is None and self._kept.end < offset + length + LOOK_BACK:
            chunk = self._next()
            self._kept.append(chunk)
            self._kept.drop(min(offset, self._done))
            if not chunk:
                self.size = self._kept.end
        return self._kept.read(offset, offset + length)

    def done_until(self, offset: int) -> None:
        """Nothing before offset is needed again; it will be dropped."""
        self._done = offset

    def __enter__(self) -> "PipeReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path != STDIN:
            os.close(self._fd)

    def _next(self) -> bytes:
        """What is in the pipe, at least a byte; nothing at its end. Waits, but not longer than the job."""
        try:
            while self._poll is not None and not self._poll.poll(_POLL_MILLISECONDS):
                if self._stop.is_set():
                    raise Stopped("stopped")
            return os.read(self._fd, _PIPE_CHUNK)
        except OSError as e:
            raise input_error(self.path, e) from e


def read_whole(path: str, size: int) -> tuple[bytes, os.stat_result]:
    """So much of a small file of this machine, less only if it is shorter, and what it was like after that."""
    try:
        fd = os.open(path, os.O_RDONLY | FLAGS)
        try:
            data = pread(fd, size, 0)
            while len(data) < size and (more := pread(fd, size - len(data), len(data))):
                data += more
            return data, os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as e:
        raise input_error(path, e) from e


def sample(path: str) -> str:
    """A checksum of a little of a file: its beginning, middle and end. Most edits show in it."""
    with InputReader(path) as reader:
        size = reader.size or 0
        places = (0, size // 2, max(0, size - _SAMPLE_BYTES))
        return xxhash.xxh3_64_hexdigest(b"".join(reader.read(place, _SAMPLE_BYTES) for place in places))


def input_error(path: str, e: OSError) -> ShardmillError:
    match e.errno:
        case errno.ENOENT:
            return InputError(
                f"{show(path)}: no such file; check the spelling, or quote a glob so that the shell leaves it alone"
            )
        case errno.EACCES | errno.EPERM:
            return InputError(
                f"{show(path)}: you may not read this file; check its permissions (chmod +r) or who owns it"
            )
        case errno.EISDIR:
            return InputError(f"{show(path)}: is a folder")
        case errno.EBADF if path == STDIN:
            return InputError("-: standard input is closed; pipe something into the command, or name a file")
        case _:
            return TemporaryError(
                f"{show(path)}: cannot be read: {e.strerror}; check the disk, then run the same command again"
            )


def _standard_input() -> int:
    if sys.__stdin__ is None:  # closed; by now its number belongs to some other file
        raise OSError(errno.EBADF, "closed")
    if os.name == "nt":
        import msvcrt

        msvcrt.setmode(0, os.O_BINARY)  # type: ignore[attr-defined,unused-ignore]
    return 0


def pread(fd: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, length, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows; reads of one file are never concurrent
    return os.read(fd, length)


def advise(fd: int, offset: int, length: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset, length, getattr(os, advice))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the one before is used: for where a core is free."""
    with ThreadPoolExecutor(1, thread_name_prefix="shardmill-reader") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
