"""The only door to what is written: files that get their final name only when whole."""

import contextlib
import errno
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shardmill.errors import OutputError, ShardmillError, TemporaryError
from shardmill.io.reading import FLAGS, advise, pread
from shardmill.system import machine
from shardmill.system.names import show

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
# Some systems are ten times as slow when 2 MiB or more are written at once: they look for a page of that size.
_WRITE_BYTES = 512 << 10
_SHARED_BYTES = 4 << 10
_FICLONERANGE = 0x4020940D
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # a link in the output folder must not lead the writer elsewhere
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # nor a pipe there make it wait

# The steps of the commit protocol, as a job reaches them; ARCHITECTURE.md says why in this order.
STEPS = (
    "old-result-removed",
    "journal-begun",
    "tail-dropped",
    "file-created",
    "block-written",
    "data-synced",
    "checkpoint-written",
    "checkpoint-synced",
    "journal-replaced",
    "files-finished",
    "files-sealed",
    "file-named",
    "names-synced",
    "run-written",
    "manifest-written",
    "journal-removed",
)

# Those of a job whose result goes to a store, beside the others.
STORE_STEPS = (
    "file-putting",
    "file-put",
    "away-synced",
    "staged-removed",
    "manifest-putting",
)


def _ignore(_step: str) -> None:
    pass


watch: Callable[[str], None] = _ignore
"""Called at each step. The crash tests end the process here."""


def reached(step: str) -> None:
    watch(step)


@dataclass(frozen=True, slots=True)
class Origin:
    """A file of this machine, and where in it some bytes stand already."""

    path: str
    offset: int

    def after(self, count: int) -> "Origin":
        return Origin(self.path, self.offset + count)


class GrowingFile:
    """A file that grows under NAME.partial and gets its final name when all of it is on disk (I2).

    at: go on behind the first so many bytes that an earlier run wrote, and drop what lies beyond them.
    """

    def __init__(self, path: Path, *, at: int | None = None, drop_behind: bool = False) -> None:
        self.path = path
        self.bytes = at or 0
        self.published = False
        self._partial = path.with_name(path.name + PARTIAL)
        self._drop_behind = drop_behind
        self._synced = self.bytes
        with writing(path):
            if at is not None and not os.path.lexists(self._partial):
                if not os.path.lexists(path):
                    raise OutputError(
                        f"{show(path)}: is gone, with the {at:,} bytes that an earlier run wrote. Start again with --overwrite, or choose another folder with -o"
                    )
                self.published = True  # an earlier run was stopped between two renames
                self._fd = os.open(path, os.O_RDONLY | FLAGS | _NO_LINK)
            else:
                self._fd = _create(self._partial) if at is None else _open_ours(self._partial)
            size = os.fstat(self._fd).st_size
            if size < self.bytes or (self.published and size != self.bytes):
                os.close(self._fd)
                raise OutputError(
                    f"{show(path)}: has {size:,} bytes where an earlier run left {self.bytes:,}; it was changed since. Start again with --overwrite, or choose another folder with -o"
                )
            if size > self.bytes:
                os.ftruncate(self._fd, self.bytes)
                reached("tail-dropped")
            os.lseek(self._fd, 0, os.SEEK_END)
            if at is None:
                reached("file-created")

    @property
    def where(self) -> Path:
        return self.path if self.published else self._partial

    def append(self, data: memoryview, origin: Origin | None = None) -> None:
        """origin: where the same bytes stand; some file systems let files share them."""
        self._open_again()
        with writing(self.path):
            rest = data[_share(origin, self._fd, self.bytes, data.nbytes) if origin is not None else 0 :]
            while rest.nbytes:
                rest = rest[os.write(self._fd, rest[:_WRITE_BYTES]) :]
        self.bytes += data.nbytes

    def patch(self, offset: int, data: bytes) -> None:
        """Write other bytes where some were written before; on disk after the next sync or seal."""
        self._open_again()
        with writing(self.path):
            os.lseek(self._fd, offset, os.SEEK_SET)
            rest = memoryview(data)
            while rest.nbytes:
                rest = rest[os.write(self._fd, rest) :]
            os.lseek(self._fd, 0, os.SEEK_END)
        self._synced = -1

    def read(self, offset: int, length: int) -> bytes:
        """What was written there before."""
        self._open_again()
        with writing(self.path):
            return pread(self._fd, length, offset)

    def _open_again(self) -> None:
        """A file that was closed to save its descriptor goes on."""
        if self._fd < 0:
            with writing(self.path):
                if self.published:
                    self._fd = os.open(self.path, os.O_RDONLY | FLAGS | _NO_LINK)
                else:
                    self._fd = _open_ours(self._partial)
                os.lseek(self._fd, 0, os.SEEK_END)

    def sync(self) -> None:
        """All that was appended before is on disk after. May run beside append."""
        until = self.bytes
        if self._fd >= 0 and not self.published and until > self._synced:
            with writing(self.path):
                getattr(os, "fdatasync", os.fsync)(self._fd)
                if self._drop_behind:
                    advise(self._fd, 0, until, "POSIX_FADV_DONTNEED")
            self._synced = until

    def seal(self, *, sync: bool = True) -> None:
        """Nothing more will be written: all of it on disk, or on its way there, and closed."""
        if self._fd >= 0:
            with writing(self.path):
                if sync and not self.published:
                    os.fsync(self._fd)
                os.close(self._fd)
                self._fd = -1

    def publish(self) -> None:
        """Give the sealed file its final name; it lasts from the next sync_folder on."""
        if not self.published:
            with writing(self.path):
                os.replace(self._partial, self.path)
            self.published = True
            reached("file-named")

    def close(self) -> None:
        """Leave it as it is, for a later run to go on with."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def abandon(self) -> None:
        """Remove what was written, named or not; for a job that leaves nothing."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path if self.published else self._partial)


def _share(origin: Origin, to: int, at: int, size: int) -> int:
    """Let a file have the bytes of another without a copy, from `at`, its end, on. How many it has now: mostly none.

    XFS, Btrfs and others can, whole blocks of 4 KiB at a time.
    """
    whole = size // _SHARED_BYTES * _SHARED_BYTES
    if fcntl is None or not whole or origin.offset % _SHARED_BYTES or at % _SHARED_BYTES:
        return 0
    try:
        source = os.open(origin.path, os.O_RDONLY | FLAGS)
        try:
            fcntl.ioctl(to, _FICLONERANGE, struct.pack("qQQQ", source, origin.offset, whole, at))
        finally:
            os.close(source)
        os.lseek(to, 0, os.SEEK_END)
    except OSError:  # what is wrong shows when they are written
        return 0
    return whole


class DurableLog:
    """A small file of lines; each is on disk when append returns. at: keep so many bytes of an earlier run's."""

    def __init__(self, path: Path, *, at: int | None) -> None:
        self.path = path
        self.bytes = at or 0
        with writing(path):
            self._fd = _create(path) if at is None else _open_ours(path)
            os.ftruncate(self._fd, self.bytes)
            os.lseek(self._fd, 0, os.SEEK_END)

    def append(self, line: bytes) -> None:
        """A line that fails is taken back, so that none stands behind half of one."""
        try:
            with writing(self.path):
                rest = memoryview(line)
                while rest.nbytes:
                    rest = rest[os.write(self._fd, rest) :]
                reached("checkpoint-written")
                os.fsync(self._fd)
        except (OutputError, TemporaryError):
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.bytes)
                os.lseek(self._fd, 0, os.SEEK_END)
            raise
        self.bytes += len(line)

    def replace(self, lines: bytes) -> None:
        """Begin again with these lines. A kill leaves the old ones or the new ones, whole."""
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
    """A file of our own. What had its name before, perhaps a link to something elsewhere, only loses that name."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS | _NO_LINK, 0o666)


def _open_ours(path: Path, create: int = 0) -> int:
    """A file of ours to go on with; never one that a link leads to, nor one that has a name elsewhere too."""
    fd = os.open(path, os.O_RDWR | create | FLAGS | _NO_LINK | _NO_WAIT, 0o666)
    found = os.fstat(fd)
    if found.st_nlink > 1 or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        why = "has a second name elsewhere (a hard link)" if found.st_nlink > 1 else "is not a plain file"
        raise OutputError(
            f"{show(path)}: {why}, and shardmill writes to nothing outside its folder; remove it, or choose another folder with -o"
        )
    return fd


def open_beside(path: Path) -> int:
    """A small file of ours to read and write, made if it is not there."""
    return _open_ours(path, os.O_CREAT)


def inside(folder: Path, name: str) -> Path:
    """Where a file of ours is in the output folder; an error where a linked subfolder leads elsewhere."""
    path = folder / name
    if path.parent != folder and path.parent.is_symlink():
        raise OutputError(
            f"{show(path.parent)}: is a link, and shardmill follows none here; remove it, or choose another folder with -o"
        )
    return path


def read_small(path: Path, largest: int) -> bytes:
    """A file of ours, whole; it may come from a stranger, so it is not followed elsewhere and not read without end."""
    with _reading(path) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OutputError(
            f"{show(path)}: is too large to be a file that shardmill wrote; choose another folder with -o"
        )
    return data


def read_lines(path: Path, longest: int) -> Iterator[bytes]:
    """The lines of a file of ours, however many; it may come from a stranger, as for read_small."""
    with _reading(path) as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise OutputError(f"{show(path)}: has lines too long to be written by shardmill; it was changed")
            yield line


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(os.open(path, os.O_RDONLY | FLAGS | _NO_LINK | _NO_WAIT), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OutputError(f"{show(path)}: is not a plain file; choose another folder with -o")
            yield file
    except FileNotFoundError:
        raise
    except OSError as e:
        raise _output_error(path, e, "read") from e


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file at once; it appears under its name only when it is whole."""
    file = GrowingFile(path)
    try:
        file.append(memoryview(data))
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
        raise OutputError(f"{show(path)} is a file, but the output must be a folder; name another with -o")
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def make_subfolder(path: Path) -> None:
    """A folder of ours in the output folder; never one elsewhere that a link leads to."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(
            f"{show(path)}: is a link or a file, and a folder must be made there; choose another output folder with -o"
        )
    with writing(path):
        path.mkdir(exist_ok=True)


def remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def check_writable(folder: Path) -> None:
    """Find out now, not after hours, that the folder does not take files."""
    probe = folder / f".shardmill{PARTIAL}"
    with writing(folder):
        probe.unlink(missing_ok=True)  # a kill may have left it
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        probe.unlink()


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


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into messages that say what to do."""
    try:
        yield
    except OSError as e:
        raise _output_error(path, e) from e


def _output_error(path: Path, e: OSError, done: str = "written") -> ShardmillError:
    where = show(path)
    match e.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return TemporaryError(
                f"{where}: no space left on this disk (or your truncation is used up); free some and run the same command again, or choose another disk with -o"
            )
        case errno.EROFS:
            return OutputError(f"{where}: this disk is mounted read-only; choose another folder with -o")
        case errno.EACCES | errno.EPERM:
            return OutputError(
                f"{where}: you may not write here; choose another folder with -o, or change its permissions"
            )
        case errno.ELOOP:
            return OutputError(f"{where}: is a link, and shardmill follows none here; choose another folder with -o")
        case errno.EISDIR:
            return OutputError(
                f"{where}: is a folder, and a file must be written there; choose another output folder with -o"
            )
        case _:
            return TemporaryError(
                f"{where}: cannot be {done}: {e.strerror}; check the disk, then run the same command again"
            )


def sync_folder(folder: Path) -> None:
    """Names that files got or lost in this folder last, also after a power cut."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
