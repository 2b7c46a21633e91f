"""The only door to the disk: bytes in by position, and files that get their final name only when whole."""

import contextlib
import errno
import os
import select
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from shardmill import machine
from shardmill.errors import InputError, OutputError, ShardmillError, TemporaryError
from shardmill.names import show as show
from shardmill.remote import LOOK_BACK, READ_AHEAD, Remote, RemoteReader, Stopped

STDIN = "-"
PARTIAL = ".partial"
# Written data is pushed to the disk beside the work after this many bytes, so that the last fsync
# finds little to do and the page cache never holds gigabytes of unwritten data.
_SYNC_EVERY = 64 << 20
_PIPE_CHUNK = 256 << 10
_PIPE_KEEPS = 4 << 20  # for readers that never say what they are done with
_POLL_MILLISECONDS = 200


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

        A pipe only goes forward: what is before done_until may be gone, and all that is 4 MiB behind.
        """

    def done_until(self, offset: int) -> None:
        """Nothing before offset is needed again."""

    def __enter__(self) -> "Reader": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_input(file: InputFile, *, drop_behind: bool = False, stop: threading.Event | None = None) -> Reader:
    """The one way to read an input. Whoever waits for bytes hears of stop, and gives up with Stopped."""
    if file.once:
        return PipeReader(file.path, stop)
    if file.remote is not None:
        return RemoteReader(file.remote, stop)
    return InputReader(file.path, drop_behind=drop_behind)


def read_buffers(file: InputFile) -> int:
    """Memory that reading this file takes, the page cache aside."""
    return (
        0 if file.local else READ_AHEAD + 2 * LOOK_BACK
    )  # the same for a pipe: 4 MiB kept, 1 MiB ahead, and what is handed out


class InputReader:
    """One input file, read by position. Short reads are completed; a file that shrank is an error."""

    def __init__(self, path: str, *, drop_behind: bool = False) -> None:
        self.path = path
        self._drop_behind = drop_behind
        self._dropped = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError as e:
            raise input_error(path, e) from e
        self._length = os.fstat(self._fd).st_size
        self.size: int | None = self._length
        _advise(self._fd, 0, 0, "POSIX_FADV_SEQUENTIAL")

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end the file had when it was opened."""
        length = min(length, self._length - offset)
        chunks: list[bytes] = []
        missing = length
        while missing > 0:
            try:
                chunk = _pread(self._fd, missing, offset + length - missing)
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

    def done_until(self, offset: int) -> None:
        """Nothing before offset is needed again: let the kernel drop it from the page cache."""
        if self._drop_behind and offset - self._dropped >= 16 << 20:
            _advise(self._fd, self._dropped, offset - self._dropped, "POSIX_FADV_DONTNEED")
            self._dropped = offset

    def __enter__(self) -> "InputReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


class PipeReader:
    """Standard input or a named pipe: read once, forward, a little ahead, so that its end does not come by surprise."""

    def __init__(self, path: str, stop: threading.Event | None = None) -> None:
        self.path = path
        self.size: int | None = None
        self._stop = stop or threading.Event()
        self._kept = bytearray()
        self._begin = self._done = 0
        """Where the kept bytes begin in the stream."""
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
        if offset < self._begin:
            raise InputError(
                f"{show(self.path)}: byte {offset:,} is needed again, and a pipe cannot go back that far; save the data as a file first, and mill that"
            )
        end = offset + length
        self._fill(end + LOOK_BACK, keep=min(offset, max(self._done, end - _PIPE_KEEPS)))
        start = offset - self._begin
        return bytes(memoryview(self._kept)[start : start + length])

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

    def _fill(self, until: int, *, keep: int) -> None:
        while True:
            surplus = min(keep - self._begin, len(self._kept))
            if surplus > 0:
                del self._kept[:surplus]
                self._begin += surplus
            if self.size is not None or self._begin + len(self._kept) >= until:
                return
            chunk = self._next()
            self._kept += chunk
            if not chunk:
                self.size = self._begin + len(self._kept)

    def _next(self) -> bytes:
        """What is in the pipe, at least a byte; nothing at its end. Waits, but not longer than the job."""
        try:
            while self._poll is not None and not self._poll.poll(_POLL_MILLISECONDS):
                if self._stop.is_set():
                    raise Stopped("stopped")
            return os.read(self._fd, _PIPE_CHUNK)
        except OSError as e:
            raise input_error(self.path, e) from e


class GrowingFile:
    """A file that grows under NAME.partial and gets its final name from finish(), when all of it is on disk (I2)."""

    def __init__(self, path: Path, *, drop_behind: bool = False) -> None:
        self.path = path
        self.bytes = 0
        self._partial = path.with_name(path.name + PARTIAL)
        self._drop_behind = drop_behind
        self._finished = False
        self._unsynced = 0
        self._syncer: threading.Thread | None = None
        self._sync_error: OSError | None = None
        with writing(path):
            self._fd = os.open(
                self._partial,
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0),
                0o666,
            )

    def append(self, data: memoryview) -> None:
        with writing(self.path):
            rest = data
            while rest.nbytes:
                rest = rest[os.write(self._fd, rest) :]
            self.bytes += data.nbytes
            self._unsynced += data.nbytes
            if self._unsynced >= _SYNC_EVERY:
                self._sync_beside()

    def finish(self) -> None:
        """Give the file its final name. After this it is whole, also after a power cut."""
        with writing(self.path):
            self._join_sync()
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
            os.replace(self._partial, self.path)
            self._finished = True
            _sync_folder(self.path.parent)

    def abandon(self) -> None:
        """Remove what was written, finished or not; for a job that failed."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._join_sync()
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            os.unlink(self.path if self._finished else self._partial)

    def _sync_beside(self) -> None:
        self._join_sync()
        self._unsynced = 0
        self._syncer = threading.Thread(target=self._sync, name="shardmill-sync", daemon=True)
        self._syncer.start()

    def _sync(self) -> None:
        try:
            getattr(os, "fdatasync", os.fsync)(self._fd)
            if self._drop_behind:
                _advise(self._fd, 0, 0, "POSIX_FADV_DONTNEED")
        except OSError as e:
            self._sync_error = e

    def _join_sync(self) -> None:
        if self._syncer is not None:
            self._syncer.join()
            self._syncer = None
        if self._sync_error is not None:
            raise self._sync_error


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file at once; it appears under its name only when it is whole."""
    file = GrowingFile(path)
    try:
        file.append(memoryview(data))
        file.finish()
    except BaseException:
        file.abandon()
        raise


def remove(path: Path) -> None:
    with writing(path):
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)


def make_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise OutputError(f"{show(path)} is a file, but the output must be a folder; name another with -o")
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def check_writable(folder: Path) -> None:
    """Find out now, not after hours, that the folder does not take files."""
    probe = folder / f".shardmill-{os.getpid()}{PARTIAL}"
    with writing(folder):
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(probe)


def free_bytes(folder: Path) -> int:
    """Free space where folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def worth_dropping(total_bytes: int) -> bool:
    """Whether a job of this size would push other programs out of the page cache.

    A small input is left there: whoever runs the command again should not read it from disk again.
    """
    return total_bytes > machine.available_memory() // 4


def input_error(path: str, e: OSError) -> InputError:
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
            return InputError(
                f"{show(path)}: cannot be read: {e.strerror}; check the disk, then run the same command again"
            )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into messages that say what to do."""
    try:
        yield
    except OSError as e:
        raise _output_error(path, e) from e


def _output_error(path: Path, e: OSError) -> ShardmillError:
    where = show(path)
    match e.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return TemporaryError(
                f"{where}: no space left on this disk (or your quota is used up); free some and run the same command again, or choose another disk with -o"
            )
        case errno.EROFS:
            return OutputError(f"{where}: this disk is mounted read-only; choose another folder with -o")
        case errno.EACCES | errno.EPERM:
            return OutputError(
                f"{where}: you may not write here; choose another folder with -o, or change its permissions"
            )
        case errno.EISDIR:
            return OutputError(
                f"{where}: is a folder, and a file must be written there; choose another output folder with -o"
            )
        case _:
            return TemporaryError(
                f"{where}: cannot be written: {e.strerror}; check the disk, then run the same command again"
            )


def _standard_input() -> int:
    if sys.__stdin__ is None:  # closed; by now its number belongs to some other file
        raise OSError(errno.EBADF, "closed")
    if os.name == "nt":
        import msvcrt

        msvcrt.setmode(0, os.O_BINARY)  # type: ignore[attr-defined,unused-ignore]
    return 0


def _pread(fd: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, length, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows; reads of one file are never concurrent
    return os.read(fd, length)


def _advise(fd: int, offset: int, length: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, offset, length, getattr(os, advice))


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
