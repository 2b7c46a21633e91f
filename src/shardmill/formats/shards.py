"""The values that describe an output: its splits, its token files (shards), its sidecar files."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = ("train", "val")
Tokens = npt.NDArray[np.unsignedinteger[npt.NBitBase]]
TokenType = np.dtype[np.unsignedinteger[npt.NBitBase]]
Positions = npt.NDArray[np.int64]
Provenance = npt.NDArray[np.uint64]
"""Two numbers for each document: its input file, and the byte, line or row in that file where it begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A finished token file: its size, and the xxh3-64 of each 64 MiB of it."""

    name: str
    split: SplitName
    tokens: int
    bytes: int
    checksums: tuple[str, ...]
    offset: int = 0
    """Where the tokens begin, after the header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SidecarFile:
    """A finished file that accompanies the tokens: an index, rejected records, the list of inputs …"""

    name: str
    split: SplitName | None
    """None: it covers both."""
    kind: str
    bytes: int
    checksums: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitText:
    """The text of a split: its bytes as UTF-8, and its documents, or the parts of them that it has."""

    bytes: int = 0
    documents: int = 0

    def __add__(self, other: "SplitText") -> "SplitText":
        return SplitText(bytes=self.bytes + other.bytes, documents=self.documents + other.documents)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What all token files of an output have in common."""

    dtype: TokenType
    shard_tokens: int | None = None
    sample_tokens: int | None = None


Header = Callable[[int, Shape], bytes]
"""The first bytes of a file with this many tokens; their length never depends on the count."""
