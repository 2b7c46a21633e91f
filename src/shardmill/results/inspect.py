"""A Corpus → what is in it: tokens, documents, their lengths, the most frequent tokens, and text to read."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardmill.results.corpus import CHUNK_TOKENS, Corpus, Split, open_corpus

# Frequencies are counted in this many tokens, evenly spread: enough for the share of every frequent token.
_COUNTED_TOKENS = 32 << 20
_LENGTH_BINS = 64
_MOST_IDS = 1 << 22  # more than any vocabulary has; damaged tokens may be larger


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How long documents are, in tokens."""

    documents: int
    shortest: int
    longest: int
    mean: float
    histogram: tuple[tuple[int, int], ...]
    """(n, count): count documents have at least n and fewer than 2n tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """What is in a split."""

    split: str
    files: int
    tokens: int
    lengths: Lengths | None
    """None: where documents end is unknown."""
    frequent: tuple[tuple[int, int], ...]
    """(token, count), the most frequent first, among counted_tokens."""
    counted_tokens: int


def inspect(output: str | Path, *, frequent: int = 10) -> dict[str, Statistics]:
    """Statistics of each split of an output: its tokens, documents and their lengths, and the most frequent tokens.

    >>> shardmill.inspect("data")["train"].files
    1
    """
    return {name: statistics(split, frequent) for name, split in open_corpus(output).items()}


def statistics(split: Split, frequent: int = 10) -> Statistics:
    counts, counted = _frequencies(split)
    order = np.argsort(-counts, kind="stable")[:frequent]
    return Statistics(
        split=split.name,
        files=len(split.files),
        tokens=len(split),
        lengths=_lengths(split) if split.knows_documents else None,
        frequent=tuple((int(token), int(counts[token])) for token in order if counts[token]),
        counted_tokens=counted,
    )


def spell(corpus: Corpus, tokens: Iterable[int]) -> Iterator[str]:
    """The text of each token, safe to print, then what is incomplete. A character of several tokens comes with the last."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        yield printable(decoder.decode(corpus.decode_bytes([token])))
    yield printable(decoder.decode(b"", final=True))


def printable(text: str) -> str:
    """Text without control sequences: unprintable characters, newlines aside, are escaped."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _frequencies(split: Split) -> tuple[npt.NDArray[np.int64], int]:
    counts = np.zeros(1 << 16, np.int64)
    stride = max(1, -(-len(split) // _COUNTED_TOKENS))
    counted = 0
    for start in range(0, len(split), CHUNK_TOKENS * stride):
        tokens = split.read(start, min(start + CHUNK_TOKENS, len(split)))
        found = np.bincount(tokens[tokens < _MOST_IDS], minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
        counted += len(tokens)
    return counts, counted


def _lengths(split: Split) -> Lengths:
    bins = np.zeros(_LENGTH_BINS, np.int64)
    last = documents = longest = 0
    shortest = 1 << 62
    for ends in split.document_ends():
        sizes = np.diff(ends, prepend=last)
        sizes = sizes[sizes > 0]
        last = int(ends[-1])
        if len(sizes):
            bins += np.bincount(np.log2(sizes).astype(np.int64), minlength=_LENGTH_BINS)
            documents += len(sizes)
            shortest, longest = min(shortest, int(sizes.min())), max(longest, int(sizes.max()))
    return Lengths(
        documents=documents,
        shortest=shortest if documents else 0,
        longest=longest,
        mean=round(last / documents, 2) if documents else 0.0,
        histogram=tuple((1 << power, int(count)) for power, count in enumerate(bins) if count),
    )
