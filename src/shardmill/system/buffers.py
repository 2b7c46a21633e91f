"""Large buffers that threads reuse.

Allocating and freeing megabytes makes the kernel map and unmap pages on all cores. Only one thread can do that at a
time, and Python holds the GIL meanwhile.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Smaller ones come from Python's allocator, which is fast at these sizes.
_LEAST = 256 << 10
_STEP = 64 << 10
# The most unreferenced bytes that are kept when a new buffer is needed; and no more than are in use, so that little
# memory is held where little is needed.
_MOST_FREE_BYTES = 192 << 20
# What sys.getrefcount returns for these: the list and the argument refer to the buffer.
_FREE = 2


class _Users(threading.local):
    inside = False


_this_thread = _Users()
_lock = threading.Lock()
_kept: list[Bytes] = []
_sizes: list[int] = []
_threads = 0


@contextlib.contextmanager
def used_again() -> Iterator[None]:
    """Buffers that this thread takes inside are kept, and handed out again to any thread inside once nothing refers to
    them."""
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
                _sizes.clear()


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
            _drop()
            found = np.empty(-(-size // _STEP) * _STEP, np.uint8)
        _kept.append(found)
        _sizes.append(len(found))
    return found[:size]


def _fitting(size: int) -> Bytes | None:
    """A recently used one that is not much larger: tokens that wait must not hold more than they need."""
    most = size + size // 2
    for number in range(len(_kept) - 1, -1, -1):
        if size <= _sizes[number] <= most and sys.getrefcount(_kept[number]) == _FREE:
            del _sizes[number]
            return _kept.pop(number)
    return None


def _drop() -> None:
    """Of the unreferenced buffers, keep the recently used ones."""
    free = [number for number in range(len(_kept)) if sys.getrefcount(_kept[number]) == _FREE]
    most = min(_MOST_FREE_BYTES, sum(_sizes) - sum(_sizes[number] for number in free))
    for number in reversed(free):
        most -= _sizes[number]
        if most < 0:
            del _kept[number], _sizes[number]
