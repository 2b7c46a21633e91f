"""Many texts in one buffer, as C and Arrow take them: what the readers hand to the engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """String i is data[starts[i]:ends[i]]. They may stand in any order, with other bytes between them.

    >>> Strings.of([b"ab", b"c"])[1]
    b'c'
    """

    data: npt.NDArray[np.uint8]
    starts: Numbers
    ends: Numbers

    @staticmethod
    def of(texts: "Strings | Sequence[bytes]") -> "Strings":
        """Texts in a buffer, unless they are in one already."""
        if isinstance(texts, Strings):
            return texts
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(sizes)
        return Strings(np.frombuffer(b"".join(texts), np.uint8), ends - sizes, ends)

    @staticmethod
    def joined(several: "Sequence[Strings]") -> "Strings":
        """All of several, in order."""
        if len(several) == 1:
            return several[0]
        if not several:
            return Strings.of([])
        before = np.cumsum([0, *(len(each.data) for each in several[:-1])])
        moved = np.repeat(before, [len(each) for each in several])
        starts, ends = (np.concatenate([getattr(each, name) for each in several]) for name in ("starts", "ends"))
        return Strings(np.concatenate([each.data for each in several]), starts + moved, ends + moved)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        data = self.data.tobytes()
        return (data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def __getitem__(self, number: int) -> bytes:
        return self.data[self.starts[number] : self.ends[number]].tobytes()

    @property
    def sizes(self) -> Numbers:
        return self.ends - self.starts

    @property
    def pointers(self) -> Numbers:
        """Where each stands in memory, as long as this object lives."""
        return self.starts + self.data.ctypes.data

    def take(self, chosen: "slice | Flags | Numbers") -> "Strings":
        """Those that a slice, a mask or numbers choose."""
        return Strings(self.data, self.starts[chosen], self.ends[chosen])

    def heads(self, most: int) -> "Strings":
        """The beginning of each, so many bytes at most."""
        return Strings(self.data, self.starts, np.minimum(self.ends, self.starts + most))

    def replaced(self, changed: dict[int, bytes]) -> "Strings":
        """The same, but for those of these numbers."""
        if not changed:
            return self
        new = Strings.of(list(changed.values()))
        numbers, starts, ends = np.fromiter(changed, np.int64, len(changed)), self.starts.copy(), self.ends.copy()
        starts[numbers], ends[numbers] = new.starts + len(self.data), new.ends + len(self.data)
        return Strings(np.concatenate([self.data, new.data]), starts, ends)
