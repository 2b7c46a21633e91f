"""Many texts wherever they stand in memory, as C takes them: what the readers hand to the engine."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.system import compiled
from shardmill.system.buffers import Bytes

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """String i has sizes[i] bytes, from the address pointers[i] on; owners are the objects that hold them.

    >>> Strings.of([b"ab", b"c"])[1]
    b'c'
    """

    pointers: Numbers
    sizes: Numbers
    owners: tuple[Any, ...]
    at_most: int | None = None
    """How many bytes they are together at most, if that is known."""

    @staticmethod
    def of(texts: "Strings | Sequence[bytes]") -> "Strings":
        if isinstance(texts, Strings):
            return texts
        pointers = np.frombuffer(memoryview((ctypes.c_char_p * len(texts))(*texts)), np.int64)
        return Strings(pointers, np.fromiter(map(len, texts), np.int64, len(texts)), (texts,))

    @staticmethod
    def within(data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers) -> "Strings":
        """Slices of a buffer."""
        return Strings(starts + compiled.address(data), ends - starts, (data,))

    @staticmethod
    def joined(several: "Sequence[Strings]") -> "Strings":
        """All of several, in order; one at least."""
        if len(several) == 1:
            return several[0]
        pointers, sizes = [each.pointers for each in several], [each.sizes for each in several]
        owners = tuple(owner for each in several for owner in each.owners)
        return Strings(np.concatenate(pointers), np.concatenate(sizes), owners, sum(each.total for each in several))

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        return map(ctypes.string_at, self.pointers.tolist(), self.sizes.tolist())

    def __getitem__(self, number: int) -> bytes:
        return ctypes.string_at(int(self.pointers[number]), int(self.sizes[number]))

    @property
    def total(self) -> int:
        """How many bytes they are together, at most."""
        return int(self.sizes.sum()) if self.at_most is None else self.at_most

    @property
    def given(self) -> tuple[int, int, int]:
        """As functions in C take them."""
        return compiled.address(self.pointers), compiled.address(self.sizes), len(self.sizes)

    def take(self, chosen: "slice | Flags | Numbers") -> "Strings":
        """Those that a slice, a mask or numbers choose."""
        return Strings(self.pointers[chosen], self.sizes[chosen], self.owners)

    def heads(self, most: int) -> "Strings":
        """The beginning of each, so many bytes at most."""
        return Strings(self.pointers, np.minimum(self.sizes, most), self.owners)

    def replaced(self, changed: Mapping[int, bytes | Bytes]) -> "Strings":
        """The same, but for those of these numbers."""
        if not changed:
            return self
        new, numbers = [np.frombuffer(each, np.uint8) for each in changed.values()], list(changed)
        pointers, sizes = self.pointers.copy(), self.sizes.copy()
        pointers[numbers], sizes[numbers] = [each.ctypes.data for each in new], [len(each) for each in new]
        return Strings(pointers, sizes, (*self.owners, *new))
