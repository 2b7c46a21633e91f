"""Large buffers that threads reuse.

Allocating and freeing megabytes makes the kernel map and unmap pages on all cores. Only one thread can do that at a
time, and Python holds the GIL meanwhile, unless the memory is mapped and unmapped here: `mmap.close` releases it.
"""

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator
from typing import Any

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


class _Memory:
    """A mapping, and where it begins. It is unmapped when nothing refers to it, or by close, without the GIL."""

    def __init__(self, size: int, used: int | None) -> None:
        """used: how much of it, from its beginning on, is sure to be used; None: all."""
        self.is_sparse, used = used is not None, size if used is None else used
        try:
            self._mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as e:
            raise MemoryError(f"out of memory: {size:,} bytes cannot be mapped ({e})") from None
        if used >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._mapped.madvise(mmap.MADV_HUGEPAGE, 0, used // _HUGE_PAGE * _HUGE_PAGE)
        self.size, self.address = size, ctypes.addressof(ctypes.c_char.from_buffer(self._mapped))
        self.close = self._mapped.close


class _Lease:
    """What an array in such memory refers to: when the last view of it is gone, the memory is free again."""

    def __init__(self, memory: _Memory, size: int) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        # Without the lock, which this thread may hold. If no thread is inside any more, nothing refers to the memory now.
        if _threads:
            _free.append(self._memory)


class _Users(threading.local):
    inside = False


_this_thread = _Users()
_lock = threading.Lock()
_free: list[_Memory] = []
"""The one used last at the end. Anyone may append; only who holds the lock removes."""
_mapped = _most_in_use = 0
"""Bytes that are mapped, and the most that were in use at once."""
_threads = 0


@contextlib.contextmanager
def used_again() -> Iterator[None]:
    """Buffers that this thread takes inside are kept, and handed out again to any thread inside once nothing refers to
    them."""
    global _threads, _mapped, _most_in_use
    with _lock:
        if not _threads:
            _free.clear()  # what came back while the last thread left
            _mapped = _most_in_use = 0
        _threads += 1
    _this_thread.inside = True
    try:
        yield
    finally:
        _this_thread.inside = False
        with _lock:
            _threads -= 1
            if not _threads:
                _drop(_mapped)


def take(size: int, *, times: float = 1.5, used: int | None = None) -> Bytes:
    """So many bytes to write to, in a buffer that is at most so many times as large: what waits, such as tokens, must not
    hold more than it needs, but what is soon given back may. used: so many of them are sure to be used, and perhaps no
    more: the rest takes memory only where something is written.

    >>> with used_again():
    ...     first = take(1 << 20)
    ...     place, first = first.ctypes.data, None
    ...     take(1_000_000).ctypes.data == place
    True
    """
    if not _this_thread.inside or size < _LEAST:
        return np.empty(size, np.uint8)
    with _lock:
        memory = _fitting(size, int(size * times), used is not None) or _new(-(-size // _STEP) * _STEP, used)
    return np.asarray(_Lease(memory, size))


def _fitting(size: int, most: int, is_sparse: bool) -> _Memory | None:
    """The one used last that is free and not too large: it may still be in a cache of the processor."""
    for number in range(len(_free) - 1, -1, -1):
        if size <= _free[number].size <= most and _free[number].is_sparse == is_sparse:
            return _free.pop(number)
    return None


def _new(size: int, used: int | None) -> _Memory:
    global _mapped, _most_in_use
    in_use = _mapped - sum(memory.size for memory in _free) + size
    _most_in_use = max(_most_in_use, in_use)
    _drop(_mapped + size - _most_in_use - _SLACK)
    _mapped += size
    return _Memory(size, used)


def _drop(size: int) -> None:
    """Unmap so many bytes that are free, or a little more; those that were used last are kept."""
    global _mapped
    while size > 0 and _free:
        memory = _free.pop(0)
        size -= memory.size
        _mapped -= memory.size
        memory.close()
