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
_STEP = 64 << 10
# From this size on in huge pages: measured, 0.1 instead of 0.4 ms for the first touch of a MiB, and to unmap 600 MiB
# takes 2 ms instead of 35. Smaller ones would hold more memory than they use.
_HUGE_FROM = 4 << 20
_HUGE_PAGE = 2 << 20
# The most unreferenced bytes that are kept when new buffers are needed; and no more than are in use, so that little
# memory is held where little is needed. It is looked at whenever this share more was mapped.
_MOST_FREE_BYTES = 192 << 20
_LOOKED_AT_SHARE = 4
# What sys.getrefcount returns for these: the tuple and the argument refer to the array.
_FREE = 2


class _Users(threading.local):
    inside = False


class _Kept(NamedTuple):
    array: Bytes
    memory: mmap.mmap


_this_thread = _Users()
_lock = threading.Lock()
_kept: list[_Kept] = []
_sizes: list[int] = []
_looked_at = 0
"""How many bytes were mapped when it was last looked at how many of them are free."""
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
                _sizes.clear()


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
    with _lock:
        found = _fitting(size) or _new(-(-size // _STEP) * _STEP)
        _kept.append(found)
        _sizes.append(len(found.array))
        return found.array[:size]  # inside: until then, nothing refers to the array, and it looks free


def _fitting(size: int) -> _Kept | None:
    """The one used last that is free and not much larger: it may still be in a cache of the processor, and tokens that
    wait must not hold more than they need."""
    most = size + size // 2
    for number in range(len(_sizes) - 1, -1, -1):
        if size <= _sizes[number] <= most and sys.getrefcount(_kept[number].array) == _FREE:
            del _sizes[number]
            return _kept.pop(number)
    return None


def _new(size: int) -> _Kept:
    if sum(_sizes) - _looked_at > _looked_at // _LOOKED_AT_SHARE:
        _drop(_MOST_FREE_BYTES)
    memory = _mapped(size)
    return _Kept(np.frombuffer(memory, np.uint8), memory)


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
    """Unmap free buffers, but for so many bytes of those used last, and as many as are in use."""
    global _looked_at
    free = [number for number in range(len(_kept)) if sys.getrefcount(_kept[number].array) == _FREE]
    most = min(most, sum(_sizes) - sum(_sizes[number] for number in free))
    for number in reversed(free):
        most -= _sizes[number]
        if most < 0:
            memory = _kept.pop(number).memory
            del _sizes[number]
            with contextlib.suppress(BufferError):  # someone looks at it: it is unmapped when they are done
                memory.close()
    _looked_at = sum(_sizes)
