"""The content of a document or passage → train or val."""

import math
from dataclasses import dataclass

import numpy as np

from shardmill.documents import native
from shardmill.documents.native import Hashes
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.documents.rules import Sample
from shardmill.spec import SplitMode
from shardmill.tokens.strings import Flags

# With fewer than this expected, chance would decide too much: 40 ± 6 is still close to what was asked for.
FEW = 40
_ALL = 1 << 64
_SAMPLE_SEED = 0x5A3C_9D17_42E8_B60F
_SMALLEST_PASSAGE = 16 << 10  # more than a context of 1,024 tokens in every language


@dataclass(frozen=True, kw_only=True, slots=True)
class Splitter:
    """Decides by a key: a hash of the content, or, for head and tail, the offset in the input."""

    mode: SplitMode
    limit: int = 0
    keys: tuple[int, ...] = ()
    """If there are any, val is what has one of these."""

    def is_val(self, keys: Hashes) -> Flags:
        if self.keys:
            return np.isin(keys, np.array(self.keys, np.uint64))
        return native.below(keys, self.limit, above=self.mode == "tail")


def sampler(share: float | None, seed: int) -> Sample | None:
    """Which documents are in the sample, by a hash of their start that is independent of the split."""
    if share is None or share == 1:
        return None
    return Sample(limit=int(share * _ALL), seed=(seed ^ _SAMPLE_SEED) & (_ALL - 1))


def border(mode: SplitMode, val_fraction: float, total_bytes: int) -> int | None:
    """The byte of the whole input where val ends (head) or starts (tail)."""
    match mode:
        case "head":
            return round(total_bytes * val_fraction)
        case "tail":
            return total_bytes - round(total_bytes * val_fraction)
        case _:
            return None


def passage_bytes(largest: int, total_bytes: int) -> int:
    """How long passages of running text are: short enough for 2,048 of them, if the input allows it."""
    return min(largest, max(_SMALLEST_PASSAGE, total_bytes // 2048))


def enough(val_fraction: float) -> float:
    """From this many documents on, a threshold on the hash gives about the fraction asked for."""
    return FEW / val_fraction if val_fraction else 0


def by_threshold(val_fraction: float) -> Splitter:
    return Splitter(mode="hash", limit=int(val_fraction * _ALL))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lowest:
    """The lowest of the keys seen so far, as many as a small input can need, and where the first pass continues."""

    records: int = 0
    """Documents or passages seen, including empty ones, which have no key; of a sample, those that are in it."""
    count: int = 0
    highest: int = -1
    lowest: tuple[int, ...] = ()
    position: Position = BEGINNING

    def plus(self, keys: list[int], records: int, position: Position) -> "Lowest":
        low = [key for key in keys if len(self.lowest) <= FEW or key < self.lowest[-1]]
        return Lowest(
            records=self.records + records,
            count=self.count + len(keys),
            highest=max(self.highest, *keys) if keys else self.highest,
            lowest=tuple(sorted([*self.lowest, *low])[: FEW + 1]) if low else self.lowest,
            position=position,
        )


def choose(found: Lowest, val_fraction: float) -> Splitter:
    return by_threshold(val_fraction) if found.records >= enough(val_fraction) else by_lowest(found, val_fraction)


def by_lowest(found: Lowest, val_fraction: float) -> Splitter:
    """For small inputs: exactly the fraction asked for, the lowest keys first, at least one, and never all.

    Equal documents have equal keys and stay together, so there may be a few more.
    """
    if not val_fraction or found.count < 2 or found.lowest[0] == found.highest:
        return Splitter(mode="hash", limit=0)
    wanted = max(1, math.floor(found.count * val_fraction + 0.5))
    return Splitter(mode="hash", limit=min(found.lowest[min(wanted, len(found.lowest)) - 1] + 1, found.highest))
