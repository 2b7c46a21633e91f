"""An input → bytes by position: local files and pipes; http_reader.py does the same for the network."""

import contextlib
import errno
import os
import select
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import xxhash

from shardmill.errors import InputError, ShardmillError, TemporaryError
from shardmill.io.http import RemoteFile
from shardmill.io.http_reader import LOOK_BACK, READ_AHEAD
from shardmill.io.retry import Stopped
from shardmill.io.spool import Spool
from shardmill.system.names import show

T = TypeVar("T")

STDIN = "-"
_PIPE_CHUNK = 256 << 10
_POLL_MILLISECONDS = 200
_SAMPLE_BYTES = 4 << 10
_DROPPED_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One input file, as it was when the job began."""

    path: str
    """As it may be shown and stored: a URL without credentials; - for standard input."""
    size: int | None
    """None for a pipe: not known before its end."""
    modified_ns: int = 0
    version: str = ""
    """ETag, generation or hash of a remote file: changes with its content. Empty for local files."""
    once: bool = False
    """Standard input or another pipe: can be read only once, and only forward."""
    remote: RemoteFile | None = field(default=None, repr=False, compare=False)

    @property
    def local(self) -> bool:
        """A regular file on this machine."""
        return self.remote is None and not self.once


class Reader(Protocol):
    """Bytes by position, from any source."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int | None:
        """None: not known yet. A pipe knows its size once its end is less than 1 MiB away."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end.

        A pipe only goes forward: what lies before done_until may be gone.
        """

    def done_until(self, offset: int) -> None:
        """Nothing before offset will be read again."""


def read_buffers(file: InputFile) -> int:
    """Memory that reading this file takes, apart from the page cache."""
    # A pipe takes no more than a remote file: 6 MiB of replay buffer, 1 MiB ahead, and the bytes returned.
    return 0 if file.local else READ_AHEAD + 2 * LOOK_BACK


class OpenFile:
    """A descriptor, for everyone who reads the file, whatever their positions; closed once nobody refers to it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.noted: dict[str, Any] = {}
        """What was found out about its content. Small: many files may be open."""
        found = os.fstat(descriptor)
        self.size, self._version = found.st_size, _version(found)
        advise(descriptor, 0, 0, "POSIX_FADV_SEQUENTIAL")

    def is_still(self, path: str) -> bool:
        """Whether the path leads to this file, and it is as it was when it was opened."""
        try:
            return _version(os.stat(path)) == self._version
        except OSError:
            return False

    def __del__(self) -> None:
        os.close(self.descriptor)


def open_file(path: str) -> OpenFile:
    try:
        return OpenFile(os.open(path, os.O_RDONLY))
    except OSError as e:
        raise input_error(path, e) from e


def _version(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class InputReader(contextlib.AbstractContextManager["InputReader"]):
    """A local file read by position. Short reads are completed; a file that shrank is an error."""

    def __init__(self, path: str, *, drop_behind: bool = False, file: OpenFile | None = None) -> None:
        self.path = path
        self._drop_behind = drop_behind
        self._dropped: int | None = None
        self._done = 0
        self.file = file or open_file(path)
        self.size = self.file.size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end that the file had when opened."""
        length = max(0, min(length, self.size - offset))
        try:
            data = _pread(self.file.descriptor, length, offset)
        except OSError as e:
            raise input_error(self.path, e) from e
        if len(data) < length:
            raise InputError(
                f"{show(self.path)}: ends at byte {offset + len(data):,} but had {self.size:,} bytes when the job began; "
                "it was truncated while it was read. Restore the file, then run the same command again."
            )
        return data

    @property
    def is_still(self) -> bool:
        """Whether the file is as it was when it was opened, and has its name."""
        return self.file.is_still(self.path)

    def now(self) -> Iterator[tuple[int, int]]:
        """Size and modification time in ns: of the open file, and of the file that has its name now."""
        opened = os.fstat(self.file.descriptor)
        yield opened.st_size, opened.st_mtime_ns
        with contextlib.suppress(FileNotFoundError):  # removed, but read to its end
            named = os.stat(self.path)
            if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
                raise InputError(
                    f"{show(self.path)}: was replaced by another file while it was read; wait until nothing writes to it, then start again with --overwrite"
                )
            yield named.st_size, named.st_mtime_ns

    def again(self) -> "InputReader":
        """Another reader of the same file, which may outlive this one."""
        return InputReader(self.path, drop_behind=self._drop_behind, file=self.file)

    def done_until(self, offset: int) -> None:
        """Let the kernel drop everything before offset from the page cache."""
        self._dropped, self._done = offset if self._dropped is None else self._dropped, offset
        if offset - self._dropped >= _DROPPED_BYTES:
            self._drop()

    def _drop(self) -> None:
        """Only what was read here: others may be reading what comes before."""
        if self._drop_behind and self._dropped is not None and self._done > self._dropped:
            advise(self.file.descriptor, self._dropped, self._done - self._dropped, "POSIX_FADV_DONTNEED")
        self._dropped = self._done

    def close(self) -> None:
        self._drop()
        del self.file  # others may be reading it

    def __exit__(self, *_: object) -> None:
        self.close()


class Until:
    """The beginning of what another Reader reads."""

    def __init__(self, reader: Reader, size: int) -> None:
        self.path, self.size = reader.path, size
        self.whole = reader

    def read(self, offset: int, length: int) -> bytes:
        return self.whole.read(offset, max(0, min(length, self.size - offset)))

    def done_until(self, offset: int) -> None:
        self.whole.done_until(offset)


def local_reader(reader: Reader) -> InputReader | None:
    """What a Reader reads a local file by; None: it is no local file."""
    whole = reader.whole if isinstance(reader, Until) else reader
    return whole if isinstance(whole, InputReader) else None


def local_file(reader: Reader, offset: int, length: int) -> tuple[int, int] | None:
    """The descriptor that a Reader would read this from, and how many bytes there are; None: it is no local file."""
    if isinstance(reader, Until):
        return local_file(reader.whole, offset, max(0, min(length, reader.size - offset)))
    if not isinstance(reader, InputReader):
        return None
    return reader.file.descriptor, max(0, min(length, reader.size - offset))


class PipeReader(contextlib.AbstractContextManager["PipeReader"]):
    """Standard input or a named pipe: read once, forward, and 1 MiB ahead, so that its end is known in time."""

    def __init__(self, path: str, stop: threading.Event | None = None, spool: str | None = None) -> None:
        self.path = path
        self.size: int | None = None
        self._stop = stop or threading.Event()
        self._buffer = Spool(path, spool)
        self._done = 0
        try:
            self._fd = _standard_input() if path == STDIN else os.open(path, os.O_RDONLY)
        except OSError as e:
            raise input_error(path, e) from e
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def read(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length), fewer only at the end."""
        self._buffer.drop(min(offset, self._done))
        if offset < self._buffer.start:
            raise InputError(
                f"{show(self.path)}: byte {offset:,} is needed again, and a pipe cannot go back that far; save the data to a file, then use that as input"
            )
        while self.size is None and self._buffer.end < offset + length + LOOK_BACK:
            chunk = self._next()
            self._buffer.append(chunk)
            self._buffer.drop(min(offset, self._done))
            if not chunk:
                self.size = self._buffer.end
        return self._buffer.read(offset, offset + length)

    def done_until(self, offset: int) -> None:
        """Drop everything before offset at the next read."""
        self._done = offset

    def __exit__(self, *_: object) -> None:
        if self.path != STDIN:
            os.close(self._fd)

    def _next(self) -> bytes:
        """What is in the pipe: at least a byte, or nothing at its end. Waits until the job is stopped."""
        try:
            while not self._poll.poll(_POLL_MILLISECONDS):
                if self._stop.is_set():
                    raise Stopped("stopped")
            return os.read(self._fd, _PIPE_CHUNK)
        except OSError as e:
            raise input_error(self.path, e) from e


def read_whole(path: str, size: int) -> tuple[bytes, os.stat_result]:
    """The first size bytes of a small local file, fewer only if it is shorter, and its stat after the read."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return _pread(fd, size, 0), os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as e:
        raise input_error(path, e) from e


def _pread(fd: int, length: int, offset: int) -> bytes:
    """As os.pread, but short reads are completed."""
    data = os.pread(fd, length, offset)
    while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
        data += more
    return data


def sample(reader: Reader) -> str:
    """A checksum of 4 KiB each from the start, middle and end of a file: most edits change it."""
    size = reader.size or 0
    offsets = (0, size // 2, max(0, size - _SAMPLE_BYTES))
    return xxhash.xxh3_64_hexdigest(b"".join(reader.read(offset, _SAMPLE_BYTES) for offset in offsets))


_REASONS = {
    errno.ENOENT: "no such file; check the spelling, or quote a glob so that the shell leaves it alone",
    errno.EACCES: "permission denied; check the file's permissions (chmod +r) and owner",
    errno.EPERM: "permission denied; check the file's permissions (chmod +r) and owner",
    errno.EISDIR: "is a folder",
}


def input_error(path: str, e: OSError) -> ShardmillError:
    if e.errno in _REASONS:
        return InputError(f"{show(path)}: {_REASONS[e.errno]}")
    if e.errno == errno.EBADF and path == STDIN:
        return InputError("-: standard input is closed; pipe something into the command, or name a file")
    return TemporaryError(
        f"{show(path)}: cannot be read: {e.strerror}; check the disk, then run the same command again"
    )


def _standard_input() -> int:
    if sys.__stdin__ is None:  # closed; by now descriptor 0 may belong to another file
        raise OSError(errno.EBADF, "closed")
    return 0


def advise(fd: int, offset: int, length: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset, length, getattr(os, advice))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the caller uses the one before: for idle cores."""
    with ThreadPoolExecutor(1, thread_name_prefix="shardmill-reader") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
