"""Large buffers that threads reuse.

Allocating and freeing megabytes makes the kernel map and unmap pages on all cores. Only one thread can do that at a
time, and Python holds the GIL meanwhile, unless the memory is mapped and unmapped here: `mmap.close` releases it.
"""

import contextlib
import mmap
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Smaller ones come from Python's allocator, which is fast at these sizes.
_LEAST = 256 << 10
# Sizes are rounded up to one of so many between two powers of two, so that a buffer fits what comes later.
_STEPS = 4
# From this size on in huge pages: measured, 0.1 instead of 0.4 ms for the first touch of a MiB, and to unmap 600 MiB
# takes 2 ms instead of 35. Smaller ones would hold more memory than they use.
_HUGE_FROM = 4 << 20
_HUGE_PAGE = 2 << 20
# The most unreferenced bytes that are kept when a new buffer is needed; and no more than are in use, so that little
# memory is held where little is needed.
_MOST_FREE_BYTES = 192 << 20
# What sys.getrefcount returns for these: the tuple and the argument refer to the array.
_FREE = 2


class _Users(threading.local):
    inside = False


class _Kept(NamedTuple):
    array: Bytes
    memory: mmap.mmap


_this_thread = _Users()
_lock = threading.Lock()
_kept: dict[int, list[_Kept]] = {}
"""By size."""
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
                _drop(0)
                _kept.clear()


def take(size: int) -> Bytes:
    """So many bytes to write to.

    >>> with used_again():
    ...     first = take(1 << 20)
    ...     place, first = first.ctypes.data, None
    ...     take(1_000_000).ctypes.data == place
    True
    """
    if not _this_thread.inside or size < _LEAST:
        return np.empty(size, np.uint8)
    step = 1 << (size - 1).bit_length() - 1 - _STEPS.bit_length() + 1
    room = -(-size // step) * step
    with _lock:
        same = _kept.setdefault(room, [])
        for number in range(len(same)):
            if sys.getrefcount(same[number].array) == _FREE:
                return same[number].array[:size]
        _drop(_MOST_FREE_BYTES)
        memory = _mapped(room)
        array = np.frombuffer(memory, np.uint8)
        _kept.setdefault(room, []).append(_Kept(array, memory))
    return array[:size]


def _mapped(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as e:
        raise MemoryError(f"out of memory: {size:,} bytes cannot be mapped ({e})") from None
    if size >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE, 0, size // _HUGE_PAGE * _HUGE_PAGE)
    return memory


def _drop(most: int) -> None:
    """Unmap unreferenced buffers, but for so many bytes of those that were used most."""
    free = {
        (size, number)
        for size, same in _kept.items()
        for number in range(len(same))
        if sys.getrefcount(same[number].array) == _FREE
    }
    most = min(most, sum(size * len(same) for size, same in _kept.items()) - sum(size for size, _ in free))
    for size, number in sorted(free, key=lambda each: each[1]):
        most -= size
        if most < 0:
            memory = _kept[size][number].memory
            _kept[size][number] = _Kept(np.empty(0, np.uint8), memory)
            memory.close()
    for size in list(_kept):
        _kept[size] = [each for each in _kept[size] if not each.memory.closed]
