"""The only door to what is written: a file gets its final name only when all of it is on disk."""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from shardmill.errors import OutputError, ShardmillError, TemporaryError, UsageError
from shardmill.io.reading import advise
from shardmill.system import machine
from shardmill.system.names import show

PARTIAL = ".partial"
# Some systems write ten times slower when given 2 MiB or more at once: they look for a huge page.
_WRITE_BYTES = (2 << 20) - (64 << 10)
# The system begins to write each so many bytes at once, so that the next sync need not wait for all of them.
_BEGUN_BYTES = 8 << 20
_OURS = os.O_CLOEXEC | os.O_NOFOLLOW  # a symlink in the output folder must not lead the writer elsewhere
_NO_WAIT = os.O_NONBLOCK  # nor a named pipe there make it wait


def watch(_step: str) -> None:
    """Called at each step of the commit protocol. The crash tests replace it with one that ends the process."""


def reached(step: str) -> None:
    watch(step)


class GrowingFile:
    """A file that grows under NAME.partial and gets its final name when all of it is on disk (I2).

    at: resume after this many bytes of an earlier run, and truncate what lies beyond.
    """

    def __init__(self, path: Path, *, at: int | None = None, drop_behind: bool = False) -> None:
        self.path = path
        self.bytes = at or 0
        self._partial = path.with_name(path.name + PARTIAL)
        # Named, but no longer partial: an earlier run was stopped between two renames.
        self.published = at is not None and not os.path.lexists(self._partial)
        self._drop_behind = drop_behind
        self._synced = self.bytes
        if self.published and not os.path.lexists(path):
            raise OutputError(
                f"{show(path)}: is gone, with the {at:,} bytes that an earlier run wrote. Start again with --overwrite, or choose another folder with -o"
            )
        with writing(path):
            self._fd = self._open() if at is not None else _create(self._partial)
            size = os.fstat(self._fd).st_size
            if size < self.bytes or (self.published and size != self.bytes):
                os.close(self._fd)
                raise OutputError(
                    f"{show(path)}: has {size:,} bytes, but an earlier run left {self.bytes:,}; it was changed since. Start again with --overwrite, or choose another folder with -o"
                )
            if size > self.bytes:
                os.ftruncate(self._fd, self.bytes)
                reached("tail-dropped")
            if at is None:
                reached("file-created")

    @property
    def where(self) -> Path:
        return self.path if self.published else self._partial

    def append(self, data: memoryview) -> None:
        self.write(self.place(data.nbytes), data)

    def place(self, size: int) -> int:
        """The offset at which the next bytes of the file, this many, are to be written."""
        self._reopen()
        at, self.bytes = self.bytes, self.bytes + size
        return at

    def write(self, at: int, data: memoryview) -> None:
        """Write at such an offset. Several threads may do so at once."""
        try:
            _write(self._fd, data, at)
        except OSError as e:
            raise _output_error(self.path, e) from e
        begun, end = at // _BEGUN_BYTES, (at + data.nbytes) // _BEGUN_BYTES
        if begun < end:
            machine.begin_to_write(self._fd, begun * _BEGUN_BYTES, (end - begun) * _BEGUN_BYTES)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes written before; on disk after the next sync or seal."""
        self._reopen()
        self.write(offset, memoryview(data))
        self._synced = -1

    def read(self, offset: int, length: int) -> bytes:
        """Bytes written before."""
        self._reopen()
        with writing(self.path):
            return os.pread(self._fd, length, offset)

    def _open(self) -> int:
        return os.open(self.path, os.O_RDONLY | _OURS) if self.published else open_ours(self._partial)

    def _reopen(self) -> None:
        """Files are closed to save descriptors, and opened again when needed."""
        if self._fd < 0:
            with writing(self.path):
                self._fd = self._open()

    def sync(self, until: int | None = None) -> None:
        """Everything written so far, or up to there, is on disk when this returns. May run while another thread appends."""
        until = self.bytes if until is None else until
        if self._fd >= 0 and not self.published and until > self._synced:
            with writing(self.path):
                getattr(os, "fdatasync", os.fsync)(self._fd)
                if self._drop_behind:
                    advise(self._fd, 0, until, "POSIX_FADV_DONTNEED")
            self._synced = until

    def seal(self, *, sync: bool = True) -> None:
        """Close the finished file, with all of it on disk if sync."""
        with writing(self.path):
            if self._fd >= 0 and sync and not self.published:
                os.fsync(self._fd)
            self.close()

    def publish(self) -> None:
        """Give the sealed file its final name; durable after the next sync_folder."""
        if not self.published:
            with writing(self.path):
                os.replace(self._partial, self.path)
            self.published = True
            reached("file-named")

    def close(self) -> None:
        """Leave it as it is, for a later run to resume."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def abandon(self) -> None:
        """Remove what was written, named or not."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.where)


def _write(fd: int, data: memoryview, at: int) -> None:
    while data.nbytes:
        done = os.pwrite(fd, data[:_WRITE_BYTES], at)
        data, at = data[done:], at + done


class DurableLog:
    """A small file of lines; each is on disk when append returns. at: keep this many bytes of an earlier run."""

    def __init__(self, path: Path, *, at: int | None) -> None:
        self.path = path
        self.bytes = at or 0
        with writing(path):
            self._fd = _create(path) if at is None else open_ours(path)
            os.ftruncate(self._fd, self.bytes)

    def append(self, line: bytes) -> None:
        """A line that fails is taken back, so that nothing ever follows half a line."""
        try:
            with writing(self.path):
                _write(self._fd, memoryview(line), self.bytes)
                reached("checkpoint-written")
                os.fsync(self._fd)
        except (OutputError, TemporaryError):
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.bytes)
            raise
        self.bytes += len(line)

    def replace(self, lines: bytes) -> None:
        """Start over with these lines. A kill leaves either all the old lines or all the new ones."""
        fresh = DurableLog(self.path.with_name(self.path.name + PARTIAL), at=None)
        fresh.append(lines)
        with writing(self.path):
            os.replace(fresh.path, self.path)
        sync_folder(self.path.parent)
        os.close(self._fd)
        self._fd, self.bytes = fresh._fd, fresh.bytes
        reached("journal-replaced")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _create(path: Path) -> int:
    """A new file. Whatever had its name, perhaps a link to something elsewhere, only loses that name."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OURS, 0o666)


def open_ours(path: Path, create: int = 0) -> int:
    """A file of ours for reading and writing, created with os.O_CREAT; never one that a symlink or a hard link shares."""
    fd = os.open(path, os.O_RDWR | create | _OURS | _NO_WAIT, 0o666)
    found = os.fstat(fd)
    if found.st_nlink > 1 or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        why = "has another hard link" if found.st_nlink > 1 else "is not a regular file"
        raise OutputError(
            f"{show(path)}: {why}, and shardmill writes nothing outside its folder; remove it, or choose another folder with -o"
        )
    return fd


def inside(folder: Path, name: str) -> Path:
    """The path of a file of ours in the output folder; an error if its subfolder is a symlink."""
    path = folder / name
    if path.parent != folder and path.parent.is_symlink():
        raise OutputError(
            f"{show(path.parent)}: is a symlink, and shardmill follows none here; remove it, or choose another folder with -o"
        )
    return path


def read_small(path: Path, largest: int) -> bytes:
    """All of a small file of ours. It may come from a stranger: no symlink is followed, and no more than largest read."""
    with _reading(path) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OutputError(f"{show(path)}: too large for a file that shardmill wrote; choose another folder with -o")
    return data


def read_lines(path: Path, longest: int) -> Iterator[bytes]:
    """The lines of a file of ours, however many; as careful as read_small."""
    with _reading(path) as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise OutputError(f"{show(path)}: has lines longer than shardmill writes; it was changed")
            yield line


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(os.open(path, os.O_RDONLY | _OURS | _NO_WAIT), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OutputError(f"{show(path)}: is not a regular file; choose another folder with -o")
            yield file
    except FileNotFoundError:
        raise
    except OSError as e:
        raise _output_error(path, e, "read") from e


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file in one go; it appears under its name only when all of it is on disk."""
    file = GrowingFile(path)
    try:
        for part in (data,) if isinstance(data, bytes) else data:
            file.append(memoryview(part))
        file.seal()
        file.publish()
        sync_folder(path.parent)
    except BaseException:
        file.abandon()
        raise


def remove(path: Path) -> None:
    with writing(path):
        path.unlink(missing_ok=True)
    if path.parent.is_dir():
        sync_folder(path.parent)


def make_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise OutputError(f"{show(path)}: is a file, but the output must be a folder; choose another with -o")
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise UsageError(f"{show(path)}: no folder can be created there; choose another with -o") from e


def make_subfolder(path: Path) -> None:
    """A folder of ours in the output folder; an error if a symlink has its name."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(
            f"{show(path)}: is a symlink or a file where a folder is needed; choose another output folder with -o"
        )
    with writing(path):
        path.mkdir(exist_ok=True)


def remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def check_writable(folder: Path) -> None:
    """Find out now, not after hours, that the folder is not writable."""
    probe = folder / f".shardmill{PARTIAL}"
    with writing(folder):
        os.close(_create(probe))
        probe.unlink()


def existing(folder: Path) -> Path:
    """The folder, or the one above it in which it would be created."""
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)


def free_bytes(folder: Path) -> int:
    """Free space on the disk where folder is, or will be."""
    return shutil.disk_usage(existing(folder)).free


def worth_dropping(total_bytes: int) -> bool:
    """Whether a job of this size would push other programs out of the page cache.

    A small input stays there: running the command again should not have to read it from disk.
    """
    return total_bytes > machine.available_memory() // 4


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into a message that says what to do."""
    try:
        yield
    except OSError as e:
        raise _output_error(path, e) from e


_REASONS = {
    errno.EROFS: "this disk is mounted read-only; choose another folder with -o",
    errno.EACCES: "permission denied; choose another folder with -o, or change its permissions",
    errno.EPERM: "permission denied; choose another folder with -o, or change its permissions",
    errno.ELOOP: "is a symlink, and shardmill follows none here; choose another folder with -o",
    errno.EISDIR: "is a folder where a file must be written; choose another output folder with -o",
}


def _output_error(path: Path, e: OSError, action: str = "written") -> ShardmillError:
    if e.errno in _REASONS:
        return OutputError(f"{show(path)}: {_REASONS[e.errno]}")
    reason = f"cannot be {action}: {e.strerror}; check the disk, then run the same command again"
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = "no space left on this disk, or disk quota exceeded; free some and run the same command again, or choose another disk with -o"
    return TemporaryError(f"{show(path)}: {reason}")


def sync_folder(folder: Path) -> None:
    """Make the names that files got or lost in this folder survive a power cut."""
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
