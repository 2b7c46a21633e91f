"""Column chunks of a Parquet file → ranges of some megabytes of text, and what C must know to mill them."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof
from typing import TypeVar

import numpy as np

from shardmill.documents.columnar import native
from shardmill.documents.columnar.native import (
    DATA,
    DATA_V2,
    DICTIONARY,
    Chunks,
)
from shardmill.documents.columnar.pages import BY_DICTIONARY, MOST_HELD, PLAIN, Chunk
from shardmill.system import compiled
from shardmill.tokens.strings import Numbers

T = TypeVar("T")

# A chunk with a dictionary of more words is unusual.
_MOST_WORDS = 32 << 10
# Of a chunk, so much is read at once, unless a page is larger, and so much at most.
_USUAL_BYTES, _READ_BYTES = 1 << 20, 4 << 20
# There is room for so much of pages that are decompressed at once, and for a dictionary. A page has 1 MiB, or what 1,024
# rows have: so often do writers look how large it is.
_PAGES_BYTES, _DICTIONARY_BYTES = 8 << 20, 8 << 20


def alike(chunk_of: Callable[[int], Chunk], rows: Sequence[range]) -> list[Chunk]:
    """The chunks of row groups from the first on, as far as they can be read together."""
    chunks: list[Chunk] = []
    with contextlib.suppress(ValueError, LookupError, OSError):  # told when it is read
        for group, own in enumerate(rows):
            chunk = chunk_of(group)
            if chunk.values != len(own) or (chunks and not chunk.is_like(chunks[0])):
                break
            chunks.append(chunk)
    return chunks


def spans(chunk: Chunk, descriptor: int, about: int, before: int) -> list[Chunk]:
    """A large chunk as several, each of some of its pages, with about so many bytes of text; without those that begin in
    its first rows, so many. None, if a page is unusual, or many values are the same: nobody knows how much text that is."""
    pages = native.headers(descriptor, _places([chunk])[0])
    if pages is None:
        return []
    kind, size, compressed, values, encoding, _, _, start, at, _ = pages.T
    has_words, by_words = int(kind[0] == DICTIONARY), np.isin(encoding, BY_DICTIONARY)
    text = np.where(by_words, values * (size[0] // max(1, values[0])), size) if has_words else size
    is_usual = np.isin(kind, (DATA, DATA_V2)) & ((encoding == PLAIN) | (by_words & bool(has_words)))
    largest = max(int(size.max()), int(text.max()))
    if not is_usual[has_words:].all() or largest > _PAGES_BYTES or text[has_words:].sum() > 2 * chunk.size:
        return []
    counted = np.where(kind == DICTIONARY, 0, values)
    rest = range(int(np.searchsorted(np.cumsum(counted) - counted, before) if before else 0) or has_words, len(pages))
    made = []
    for some in evenly(rest, text[rest.start :], about) if rest else ():
        first, last = some[0], some[-1]
        made.append(
            dataclasses.replace(
                chunk,
                start=int(start[first]),
                length=int(at[last] + compressed[last] - start[first]),
                size=int(text[first : last + 1].sum()),
                values=int(values[first : last + 1].sum()),
                words=int(start[0]) if by_words[first : last + 1].any() else 0,
            )
        )
    return made


def evenly(items: Sequence[T], sizes: Sequence[int] | Numbers, about: int) -> Iterator[Sequence[T]]:
    """Lists of items of such sizes that follow each other, each of about so many bytes in all."""
    ends = np.cumsum(sizes)
    many = max(1, round(int(ends[-1]) / about))
    borders = np.searchsorted(ends, ends[-1] * np.arange(1, many) / many) + 1
    for first, after in itertools.pairwise([0, *borders.tolist(), len(items)]):
        if first < after:
            yield items[first:after]


class ForRange:
    """Consecutive chunks that are alike, for C to read and decompress without anyone else."""

    def __init__(self, chunks: Sequence[Chunk], descriptor: int, largest: int) -> None:
        self._ends, self._places = np.empty(_MOST_WORDS, np.uint32), _places(chunks)
        self._given = Chunks(
            file=descriptor,
            chunks=compiled.address(self._places),
            chunk_count=len(chunks),
            chunk=-1,
            data_room=_READ_BYTES,
            data_usual=_USUAL_BYTES,
            top=chunks[0].max_level,
            decompress=native.function(chunks[0].codec) or None,
            ends=compiled.address(self._ends),
            words_room=_MOST_WORDS,
            largest=min(largest, MOST_HELD),
            out_room=_PAGES_BYTES,
        )
        self.given = {"chunks": addressof(self._given), "dictionary_room": _DICTIONARY_BYTES}


def _places(chunks: Sequence[Chunk]) -> Numbers:
    return np.array([(chunk.start, chunk.end, chunk.values, chunk.words) for chunk in chunks], np.int64)
