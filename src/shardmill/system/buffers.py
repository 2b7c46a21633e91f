"""Large buffers that threads use again.

To allocate megabytes, and to give them back, is work for the kernel that no other thread can do at the same time: it
unmaps pages from all cores, and Python waits for it with the GIL.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Others come from Python's allocator, which is fast for them.
_LEAST = 256 << 10
_STEP = 64 << 10
# Of what nobody refers to, so much is kept when more is needed.
_MOST_FREE_BYTES = 192 << 20
# As sys.getrefcount sees it: the list and the argument refer to it.
_FREE = 2


class _Users(threading.local):
    inside = False


_this_thread = _Users()
_lock = threading.Lock()
_kept: list[Bytes] = []
_threads = 0


@contextlib.contextmanager
def used_again() -> Iterator[None]:
    """What this thread takes inside is taken again, by any thread that is inside, when nobody refers to it any more."""
    global _threads
    with _lock:
        _threads += 1
    _this_thread.inside = True
    try:
        yield
    finally:
        _this_thread.inside = False
        with _lock:
            _threads -= 1
            if not _threads:
                _kept.clear()


def take(size: int) -> Bytes:
    """So many bytes to write to.

    >>> with used_again():
    ...     first = take(1 << 20)
    ...     place, first = first.ctypes.data, None
    ...     take(900_000).ctypes.data == place
    True
    """
    if not _this_thread.inside or size < _LEAST:
        return np.empty(size, np.uint8)
    with _lock:
        found = _fitting(size)
        if found is None:
            _drop(_MOST_FREE_BYTES)
            found = np.empty(-(-size // _STEP) * _STEP, np.uint8)
        _kept.append(found)
    return found[:size]


def _fitting(size: int) -> Bytes | None:
    """One that was in use a short time ago, and not much larger: what waits must not hold more than it needs."""
    for number in range(len(_kept) - 1, -1, -1):
        if size <= len(_kept[number]) <= size + size // 2 and sys.getrefcount(_kept[number]) == _FREE:
            return _kept.pop(number)
    return None


def _drop(most: int) -> None:
    """Of those that nobody refers to, keep so many bytes, not those that nobody took for longest."""
    for number in range(len(_kept) - 1, -1, -1):
        if sys.getrefcount(_kept[number]) == _FREE:
            most -= len(_kept[number])
            if most < 0:
                del _kept[number]
