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
# No more is kept than was in use at once, and this: less, and buffers would be mapped again and again.
_SLACK = 24 << 20
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
_most_in_use = 0
"""The most bytes that were in use at once."""
_threads = 0


@contextlib.contextmanager
def used_again() -> Iterator[None]:
    """Buffers that this thread takes inside are kept, and handed out again to any thread inside once nothing refers to
    them."""
    global _threads, _most_in_use
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
                _drop(sum(_sizes))
                _kept.clear()
                _sizes.clear()
                _most_in_use = 0


def take(size: int, *, times: float = 1.5) -> Bytes:
    """So many bytes to write to, in a buffer that is at most so many times as large: what waits, such as tokens, must not
    hold more than it needs, but what is soon given back may.

    >>> with used_again():
    ...     first = take(1 << 20)
    ...     place, first = first.ctypes.data, None
    ...     take(1_000_000).ctypes.data == place
    True
    """
    if not _this_thread.inside or size < _LEAST:
        return np.empty(size, np.uint8)
    with _lock:
        found = _fitting(size, int(size * times)) or _new(-(-size // _STEP) * _STEP)
        _kept.append(found)
        _sizes.append(len(found.array))
        return found.array[:size]  # inside: until then, nothing refers to the array, and it looks free


def _fitting(size: int, most: int) -> _Kept | None:
    """The one used last that is free and not too large: it may still be in a cache of the processor."""
    for number in range(len(_sizes) - 1, -1, -1):
        if size <= _sizes[number] <= most and sys.getrefcount(_kept[number].array) == _FREE:
            del _sizes[number]
            return _kept.pop(number)
    return None


def _new(size: int) -> _Kept:
    global _most_in_use
    in_use = sum(_sizes) - sum(_sizes[number] for number in _free())
    _most_in_use = max(_most_in_use, in_use + size)
    _drop(sum(_sizes) + size - _most_in_use - _SLACK)
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


def _free() -> list[int]:
    """The numbers of those that nobody uses, the one used last at the end."""
    return [number for number in range(len(_kept)) if sys.getrefcount(_kept[number].array) == _FREE]


def _drop(size: int) -> None:
    """Unmap so many bytes that nobody uses, or a little more; those that were used last are kept."""
    dropped = []
    for number in _free():
        if size <= 0:
            break
        size -= _sizes[number]
        dropped.append(number)
    for number in reversed(dropped):
        memory = _kept.pop(number).memory
        del _sizes[number]
        with contextlib.suppress(BufferError):  # someone looks at it: it is unmapped when they are done
            memory.close()
