"""One job at a time in an output folder, and one process at a time that writes a file for all."""

import contextlib
import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from shardmill.errors import TemporaryError
from shardmill.io import storage
from shardmill.system.names import show

NAME = ".shardmill.lock"
# From network file systems without locks: there the user must not run two jobs at once in one folder.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}


@contextlib.contextmanager
def locked(folder: Path, *, temporary: bool = False) -> Iterator[None]:
    """Create the folder and hold its lock, which ends with the process, however that ends.

    A new folder is removed again if it stays empty; a temporary one whenever it is empty.
    """
    new = not folder.exists()
    storage.make_folder(folder)
    path = folder / NAME
    fd = _acquire(path, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while it is held: another process that has it open notices, and opens a new one
        os.close(fd)
        if new or temporary:
            for below in (folder / "train", folder / "val", folder):
                storage.remove_if_empty(below)


@contextlib.contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process is about to write this file, which is complete when it appears.

    Where there are no locks, all go ahead.
    """
    lock = path.with_name(path.name + ".lock")
    with storage.writing(lock):
        fd = storage.open_ours(lock, os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
        os.close(fd)


def _acquire(path: Path, folder: Path) -> int:
    while True:
        with storage.writing(folder):
            fd = storage.open_ours(path, os.O_CREAT)
        if not _lock(fd):
            holder = os.read(fd, 100).decode("ascii", "replace").strip()
            os.close(fd)
            raise TemporaryError(
                f"{show(folder)}: another shardmill job is running here ({show(holder) or 'it has just started'}); wait until it ends, or choose another folder with -o"
            )
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                break
        os.close(fd)  # its owner removed it in between
    with storage.writing(folder):
        os.ftruncate(fd, 0)
        os.write(fd, f"process {os.getpid()} on {platform.node() or 'this machine'}\n".encode())
    return fd


def _lock(fd: int) -> bool:
    """Whether the lock was free; it is ours then."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise
    return True
