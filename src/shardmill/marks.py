"""End-of-text tokens on one side of each document → on the other, or on none, for merge and convert."""

from collections.abc import Iterator

import numpy as np

from shardmill.corpus import Corpus, Split
from shardmill.ends import Positions
from shardmill.formats.shards import Tokens

_NO_ENDS = np.empty(0, np.int64)


def shift_of(corpus: Corpus, split: Split, side: str) -> int:
    """Where every document has its mark, moving all marks to the other side moves all tokens by one; 0: not so."""
    if "none" in (side, corpus.eot_side) or not len(split) or straddles(corpus):
        return 0
    if corpus.manifest is not None and corpus.manifest.counts.passages:
        return 0  # running text that was parted: a document has its mark in one split only
    if corpus.manifest is None and split.ends is not None:
        return 0
    marked = split[-1 if corpus.eot_side == "after" else 0] == corpus.eot_id
    return (-1 if side == "before" else 1) if marked else 0


def read_shifted(split: Split, start: int, stop: int, shift: int) -> Tokens:
    """The tokens [start, stop) when all are moved by one; at the end that is left free stands the mark."""
    if not shift:
        return split.read(start, stop)
    inside = split.read(max(0, start + shift), min(stop + shift, len(split)))
    if len(inside) == stop - start:
        return inside
    mark = np.array([split.eot_id], split.dtype)
    return np.concatenate([mark, inside] if shift < 0 else [inside, mark])


class Window:
    """Ends in order, taken as far as some place."""

    def __init__(self, source: Iterator[Positions]) -> None:
        self._source, self._rest = source, _NO_ENDS

    def until(self, place: int) -> Positions:
        taken = []
        while True:
            count = int(np.searchsorted(self._rest, place, side="right"))
            taken.append(self._rest[:count])
            self._rest = self._rest[count:]
            if len(self._rest):
                break
            following = next(self._source, None)
            if following is None:
                break
            self._rest = following
        return np.concatenate(taken)


class Mover:
    """Takes end-of-text tokens from one side of each document and puts them at the other, or at none.

    A first shard that is val ends, and the next begins, in the middle of a document: there is none to put.
    """

    def __init__(self, corpus: Corpus, split: Split, side: str) -> None:
        assert corpus.eot_id is not None
        self._eot, self._from, self._to = corpus.eot_id, corpus.eot_side, side
        self._begins = not (split.name == "train" and straddles(corpus))
        self._stays_open = split.name == "val" and straddles(corpus)
        self._fresh = self._begins

    def __call__(self, tokens: Tokens, ends: Positions, *, last: bool) -> tuple[Tokens, Positions]:
        starts = np.unique(ends[ends < len(tokens)])
        if self._fresh and len(tokens):
            starts = np.concatenate([[0], starts[starts > 0]])
        stops = np.unique(ends[ends > 0])
        old = stops - 1 if self._from == "after" else starts
        old = old[tokens[old] == self._eot] if self._from != "none" else _NO_ENDS
        self._fresh = bool(len(ends)) and ends[-1] == len(tokens)
        if last and self._stays_open:
            stops = stops[stops < len(tokens)]
        new = {"after": stops, "before": starts, "none": _NO_ENDS}[self._to]
        keep = np.ones(len(tokens), np.bool_)
        keep[old] = False
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        out = np.insert(tokens[keep], kept_before[new], self._eot)
        # An end-of-text token after a document belongs to it, one before the next does not.
        put_before = np.searchsorted(new, ends, side="right" if self._to == "after" else "left")
        return out, kept_before[ends] + put_before


def straddles(corpus: Corpus) -> bool:
    """Whether val and train are one stream that was cut inside a document."""
    if {"train", "val"} - corpus.splits.keys() or not is_one_stream(corpus):
        return False
    if corpus.eot_side == "before":
        return corpus["train"][0] != corpus.eot_id
    return corpus["val"][-1] != corpus.eot_id


def is_one_stream(corpus: Corpus) -> bool:
    """Whether val is the first shard of what train goes on with. convert keeps that, and says so; merge does not."""
    if corpus.manifest is None:
        return corpus.format.first_shard_is_val
    job = corpus.manifest.job
    chosen = job.get("choices", {}).get("split")
    if "made_by" in job:
        return bool(chosen == "first-shard" and job["made_by"] == "convert")
    return chosen == "first-shard" or (chosen == "auto" and corpus.format.first_shard_is_val)
