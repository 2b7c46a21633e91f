"""Large buffers that a thread uses again.

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
# The most unreferenced buffers that are kept.
_MOST_FREE = 4
# What sys.getrefcount returns for these: the list, the variable and the argument refer to the buffer.
_FREE = 3


class _Own(threading.local):
    kept: list[Bytes] | None = None


_own = _Own()


@contextlib.contextmanager
def used_again() -> Iterator[None]:
    """Buffers that this thread takes inside are kept, and handed out again once nothing refers to them."""
    _own.kept = []
    try:
        yield
    finally:
        _own.kept = None


def take(size: int) -> Bytes:
    """A writable buffer of this many bytes.

    >>> with used_again():
    ...     first = take(1 << 20)
    ...     place, first = first.ctypes.data, None
    ...     take(900_000).ctypes.data == place
    True
    """
    kept = _own.kept
    if kept is None or size < _LEAST:
        return np.empty(size, np.uint8)
    free, taken = list[Bytes](), list[Bytes]()
    for buffer in kept:
        (free if sys.getrefcount(buffer) == _FREE else taken).append(buffer)
    free.sort(key=len)
    found = next((buffer for buffer in free if len(buffer) >= size), None)
    if found is None:
        found = np.empty(-(-size // _STEP) * _STEP, np.uint8)
        _own.kept = [*taken, found, *free[-_MOST_FREE + 1 :]]
    elif len(free) > _MOST_FREE:
        _own.kept = [*taken, found, *(each for each in free[-_MOST_FREE:] if each is not found)]
    return found[:size]
