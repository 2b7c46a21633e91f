"""The tokens of one split → its files: one, or shards of equal length, each with the header of its format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardmill.formats.output_files import OutputFiles
from shardmill.io.storage import Origin

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = ("train", "val")
Tokens = npt.NDArray[np.unsignedinteger[npt.NBitBase]]
TokenType = np.dtype[np.unsignedinteger[npt.NBitBase]]
Positions = npt.NDArray[np.int64]
Provenance = npt.NDArray[np.uint64]
"""Of each document: the number of its input file, and the byte in it where it begins."""
_MOVED_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One finished file of tokens: its size, and the xxh3-64 of each 64 MiB of it."""

    name: str
    split: SplitName
    tokens: int
    bytes: int
    checksums: tuple[str, ...]
    offset: int = 0
    """Where the tokens begin: behind the header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SidecarFile:
    """One finished file beside the tokens: where documents end, where they came from, what a trainer wants to know."""

    name: str
    split: SplitName | None
    """None: it is about both."""
    kind: str
    bytes: int
    checksums: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the headers of all token files of an output have in common."""

    dtype: TokenType
    shard_tokens: int | None = None
    sample_tokens: int | None = None


Header = Callable[[int, Shape], bytes]
"""The first bytes of a file of so many tokens; always of the same length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the tokens of a split become files."""

    name: Callable[[SplitName, int], str]
    dtype: TokenType
    shard_tokens: int | None
    """Every shard but the last of a split has exactly so many; None: one file, however long."""
    header: Callable[[int], bytes] = lambda _: b""
    """The first bytes of a file of so many tokens; always of the same length."""
    least_tokens: int = 0
    """A last shard with fewer is joined to the one before it."""

    @property
    def header_bytes(self) -> int:
        return len(self.header(0))


class ShardFiles:
    """Grows the files of one split; goes on with what the files hold already.

    A header holds the number of tokens, so each file begins with the header of a full one, and only the last
    of a split has to be patched when the work is done.
    """

    def __init__(self, files: OutputFiles, layout: Layout, split: SplitName, *, finished: bool) -> None:
        self._files, self._layout, self._split = files, layout, split
        states = files.states()
        self._sizes: list[int] = []
        while (name := self._name(len(self._sizes))) in states and (layout.shard_tokens or not self._sizes):
            self._sizes.append((states[name].bytes - layout.header_bytes) // layout.dtype.itemsize)
        self.tokens = sum(self._sizes)
        last = len(self._sizes) - 1
        for number in range(last):
            files.full(self._name(number))
        kept = 2 if layout.least_tokens else 1  # at the end the last may be patched, or joined to the one before
        for number in range(len(self._sizes) - kept):
            files.settle(self._name(number))
        if finished and layout.least_tokens:
            files.drop(self._name(last + 1))  # what was joined to the one before
        for number in range(max(0, last + 1 - kept), last + 1) if layout.header_bytes and not finished else ():
            files.head(self._name(number), self._full_header())

    def append(self, ids: Tokens, origin: Origin | None = None) -> None:
        """origin: where the same tokens stand already."""
        assert ids.dtype == self._layout.dtype
        self.tokens += len(ids)
        limit = self._layout.shard_tokens
        while len(ids):
            if not self._sizes or self._sizes[-1] == limit:
                self._begin_shard()
            part = ids if limit is None else ids[: limit - self._sizes[-1]]
            self._files.append(self._name(len(self._sizes) - 1), part.data.cast("B"), origin)
            self._sizes[-1] += len(part)
            ids = ids[len(part) :]
            origin = origin and origin.after(part.nbytes)

    def finish(self) -> None:
        """Join a last shard that is too short to the one before it, and say in the header how long the last one is."""
        if len(self._sizes) > 1 and self._sizes[-1] < self._layout.least_tokens:
            self._join_last()
        if self._sizes and (header := self._layout.header(self._sizes[-1])) != self._full_header():
            self._files.patch(self._name(len(self._sizes) - 1), header)

    def shards(self) -> tuple[Shard, ...]:
        states = self._files.states()
        return tuple(
            Shard(
                name=name,
                split=self._split,
                tokens=tokens,
                bytes=states[name].bytes,
                checksums=states[name].all_checksums,
                offset=self._layout.header_bytes,
            )
            for name, tokens in ((self._name(number), tokens) for number, tokens in enumerate(self._sizes))
        )

    def _begin_shard(self) -> None:
        if self._sizes:
            self._files.full(self._name(len(self._sizes) - 1))
        self._sizes.append(0)
        if (settled := len(self._sizes) - (3 if self._layout.least_tokens else 2)) >= 0:
            self._files.settle(self._name(settled))
        if self._layout.header_bytes:
            self._files.append(self._name(len(self._sizes) - 1), memoryview(self._full_header()))

    def _join_last(self) -> None:
        size, itemsize = self._sizes.pop(), self._layout.dtype.itemsize
        last, before = self._name(len(self._sizes)), self._name(len(self._sizes) - 1)
        for at in range(0, size, _MOVED_TOKENS):
            offset, count = self._layout.header_bytes + at * itemsize, min(_MOVED_TOKENS, size - at)
            self._files.append(before, memoryview(self._files.read(last, offset, count * itemsize)))
        self._files.drop(last)
        self._sizes[-1] += size

    def _name(self, number: int) -> str:
        return self._layout.name(self._split, number)

    def _full_header(self) -> bytes:
        return self._layout.header(self._layout.shard_tokens or 0)
