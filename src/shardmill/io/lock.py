"""One job at a time in an output folder."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from shardmill.errors import TemporaryError
from shardmill.io import storage
from shardmill.system.names import show

NAME = ".shardmill.lock"
# Network file systems that know no locks: two jobs at once in one folder are then the user's to avoid.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}


@contextlib.contextmanager
def locked(folder: Path, *, temporary: bool = False) -> Iterator[None]:
    """Make the folder and hold it. The lock ends with the process, however that ends.

    A new folder is removed again if it stays empty; a temporary one whenever it is.
    """
    new = not folder.exists()
    storage.make_folder(folder)
    path = folder / NAME
    fd = _take(path, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while it is held: whoever opened it meanwhile sees that it is gone, and opens anew
        os.close(fd)
        if new or temporary:
            for below in (folder / "train", folder / "val", folder):
                storage.remove_if_empty(below)


def _take(path: Path, folder: Path) -> int:
    while True:
        with storage.writing(folder):
            fd = storage.open_beside(path)
        if not _lock(fd):
            holder = os.read(fd, 100).decode("ascii", "replace").strip()
            os.close(fd)
            raise TemporaryError(
                f"{show(folder)}: another shardmill is at work here ({show(holder) or 'it has just begun'}); wait until it ends, or choose another folder with -o"
            )
        try:
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(fd)  # its owner removed it in between
    with storage.writing(folder):
        os.ftruncate(fd, 0)
        os.write(
            fd, f"process {os.getpid()} on {os.uname().nodename if hasattr(os, 'uname') else 'this machine'}\n".encode()
        )
    return fd


def _lock(fd: int) -> bool:
    """Whether the lock could be had."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise
    return True
