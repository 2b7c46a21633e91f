"""The number of a sample → which corpus it is drawn from, and how many that corpus has given before it.

Of every BLOCK samples of a stage each corpus gives a fixed number, in an order shuffled by the seed. So the share of a
corpus is exact in every block, and any sample can be found without those before it.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardmill.errors import UsageError
from shardmill.feed.order import Numbers, key_of, scrambled
from shardmill.system.names import show

BLOCK = 10_000  # weights of whole hundredths of a percent are met exactly
Weights = Mapping[str, float]
Stages = Weights | Sequence[tuple[int, Weights]]
_PATTERN_KEY = 0x6D69787475726573


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """From sample `start` on, each corpus gives this many of every BLOCK samples."""

    start: int
    counts: tuple[int, ...]
    before: tuple[int, ...]
    """How many samples of each corpus come before the stage."""


def stages_of(weights: Stages, names: Sequence[str], densities: Sequence[float], seed: int) -> tuple[Stage, ...]:
    """Weights count tokens; densities say which share of a row of each corpus is tokens, the rest being padding."""
    listed = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    if not listed or listed[0][0] != 0 or any(now[0] >= then[0] for now, then in itertools.pairwise(listed)):
        raise UsageError(
            f"weights: stages begin at samples {[start for start, _ in listed]}; the first begins at 0, and each after the one before it"
        )
    stages: list[Stage] = []
    for number, (start, shares) in enumerate(listed):
        before = _drawn(stages[-1], number - 1, seed, start) if stages else (0,) * len(names)
        stages.append(Stage(start=start, counts=_counts(shares, names, densities), before=before))
    return tuple(stages)


def draw(stages: Sequence[Stage], seed: int, samples: Numbers) -> tuple[Numbers, Numbers]:
    """The corpus of each sample, and how many samples of that corpus precede it."""
    corpora, numbers = np.zeros(len(samples), np.int64), samples.copy()
    if len(stages[0].counts) == 1:
        return corpora, numbers
    found = np.searchsorted([stage.start for stage in stages], samples, side="right") - 1
    for which in np.unique(found).tolist():
        stage, at = stages[which], np.flatnonzero(found == which)
        blocks, places = np.divmod(samples[at] - stage.start, BLOCK)
        counts, before = np.array(stage.counts), np.array(stage.before)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            owner, nth = _pattern(stage.counts, key_of(seed, _PATTERN_KEY, which, block))
            chosen = owner[places[here]]
            corpora[at[here]] = chosen
            numbers[at[here]] = before[chosen] + block * counts[chosen] + nth[places[here]]
    return corpora, numbers


def _counts(shares: Weights, names: Sequence[str], densities: Sequence[float]) -> tuple[int, ...]:
    """How many of BLOCK samples each corpus gives: rounded so that the sum is BLOCK, largest remainders up."""
    if unknown := sorted(set(shares) - set(names)):
        raise UsageError(
            f"weights: there is no corpus {show(str(unknown[0]))}; there are {', '.join(map(show, names))}"
        )
    for name, share in shares.items():
        if not (math.isfinite(share) and share >= 0):
            raise UsageError(f"weights: {show(name)} has {share}; a weight is a number from 0 on")
    rows = [shares.get(name, 0) / density for name, density in zip(names, densities)]
    if not sum(rows):
        raise UsageError("weights: they sum to 0, so there is nothing to draw from")
    exact = [BLOCK * row / sum(rows) for row in rows]
    counts = [math.floor(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(names)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: BLOCK - sum(counts)]:
        counts[i] += 1
    for name, row, count in zip(names, rows, counts):
        if row and not count:
            raise UsageError(
                f"weights: {show(name)} has {row / sum(rows):.2g} of all samples, less than 1 of {BLOCK:,}; give it more, or merge it with another corpus"
            )
    return tuple(counts)


@functools.lru_cache(maxsize=16)
def _pattern(counts: tuple[int, ...], key: np.uint64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each sample of a block: its corpus, and how many samples of that corpus precede it in the block."""
    owner, nth = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    owner[np.argsort(scrambled(np.arange(BLOCK), key), kind="stable")] = np.repeat(np.arange(len(counts)), counts)
    for corpus, count in enumerate(counts):
        nth[owner == corpus] = np.arange(count)
    return owner, nth


def _drawn(stage: Stage, which: int, seed: int, until: int) -> tuple[int, ...]:
    """How many samples each corpus has given when a stage ends."""
    blocks, rest = divmod(until - stage.start, BLOCK)
    owner, _ = _pattern(stage.counts, key_of(seed, _PATTERN_KEY, which, blocks))
    begun = np.bincount(owner[:rest], minlength=len(stage.counts)).tolist()
    return tuple(before + blocks * count + more for before, count, more in zip(stage.before, stage.counts, begun))
