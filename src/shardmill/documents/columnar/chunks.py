"""Column chunks of a Parquet file → their rows, many pages at a time: those that are as usual, and small enough to hold."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from ctypes import addressof, pointer
from typing import TypeVar

import numpy as np

from shardmill.documents.columnar import native
from shardmill.documents.columnar.columns import long_value
from shardmill.documents.columnar.native import (
    DATA,
    DATA_V2,
    DICTIONARY,
    MORE,
    ODD,
    SMALL,
    Chunks,
    Data,
    FoundPage,
    Window,
    address,
)
from shardmill.documents.columnar.pages import BY_DICTIONARY, MOST_HELD, PLAIN, Chunk, Held
from shardmill.documents.long_values import ValueReader
from shardmill.documents.rules import TextRules
from shardmill.io.reading import local_file
from shardmill.system import buffers, compiled
from shardmill.tokens.strings import Numbers

T = TypeVar("T")

LENGTH_BYTES = 4
"""Of a value in encoding PLAIN, before its text."""
_MOST_PAGES = 64
# A chunk with a dictionary of more words is read page by page.
_MOST_WORDS = 32 << 10
# Pages are of many sizes, and given back soon.
_TIMES = 3.0
# Of a chunk, so much is read at once; for a range less, unless a page is larger.
_AHEAD_BYTES, _USUAL_BYTES = 4 << 20, 1 << 20
# For a range there is room for so much of pages that are decompressed at once, and for a dictionary. A page has 1 MiB, or
# what 1,024 rows have: so often do writers look how large it is.
_PAGES_BYTES, _DICTIONARY_BYTES = 8 << 20, 8 << 20


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
    if not is_usual[has_words:].all() or size.max() > _PAGES_BYTES or text[has_words:].sum() > 2 * chunk.size:
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
        self._ends, self._places, self._found = np.empty(_MOST_WORDS, np.uint32), _places(chunks), FoundPage()
        self._given = Chunks(
            file=descriptor,
            chunks=compiled.address(self._places),
            chunk_count=len(chunks),
            chunk=-1,
            data_room=_AHEAD_BYTES,
            data_usual=_USUAL_BYTES,
            top=chunks[0].max_level,
            decompress=native.function(chunks[0].codec) or None,
            ends=compiled.address(self._ends),
            words_room=_MOST_WORDS,
            largest=min(largest, MOST_HELD),
            pages=pointer(self._found),
            pages_room=1,  # what is decompressed is used before it leaves the caches
            out_room=_PAGES_BYTES,
        )
        self.given = {"chunks": addressof(self._given), "dictionary_room": _DICTIONARY_BYTES}


def _places(chunks: Sequence[Chunk]) -> Numbers:
    return np.array([(chunk.start, chunk.end, chunk.values, chunk.words) for chunk in chunks], np.int64)


class Pages:
    """The pages of consecutive chunks, several of which are decompressed together, as far as they are usual."""

    def __init__(self, largest: int) -> None:
        """largest: the most bytes that a page may need."""
        self._largest = min(largest, MOST_HELD)
        self._found, self._ends = (FoundPage * _MOST_PAGES)(), np.empty(_MOST_WORDS, np.uint32)
        self._data, self._usual = np.empty(0, np.uint8), _AHEAD_BYTES
        self._given = Chunks()

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """With other chunks, which are alike."""
        first, self._chunks = chunks[0], chunks
        file = local_file(first.reader, 0, first.reader.size or 0)
        length = min(_AHEAD_BYTES, max(chunk.length for chunk in chunks))
        if file is not None and length > len(self._data):
            self._data = buffers.take(length, times=_TIMES)
        decompress = native.function(first.codec)
        self._in_c, self._places = decompress is not None, _places(chunks)
        self._given = Chunks(
            file=-1 if file is None else file[0],
            chunks=compiled.address(self._places),
            chunk_count=len(chunks),
            chunk=-1,
            data=compiled.address(self._data),
            data_room=len(self._data),
            data_usual=len(self._data),
            top=first.max_level,
            decompress=decompress or None,
            ends=compiled.address(self._ends),
            words_room=_MOST_WORDS,
            largest=self._largest,
            pages=self._found,
            pages_room=_MOST_PAGES,
        )
        self._bodies: list[Data] = []
        self._dictionary: list[Data] = []
        self._lent: list[Data] = []
        """What holds the pages found last, the dictionary, and one from before to which some of these pages refer."""

    @property
    def chunk(self) -> int:
        """The number of the chunk at which this is."""
        return max(0, int(self._given.chunk))

    def add_to(self, window: Window, held: int) -> int:
        """Rows of the next pages, in a window whose rows hold so much already; returns what comes next."""
        given = self._given
        if given.now < given.found:
            return given.add_to(window) or MORE
        # A little more than the window, so that the last page fits; or all of a small chunk; but no more than there is.
        sizes, before = [chunk.size for chunk in self._chunks[self.chunk + (not given.rows) :]], window.count
        room = max(window.room * 5 // 4 - held, min(sizes[0], self._usual)) if sizes else 0
        room = min(room, sum(sizes))
        while (why := self._take(window, max(1, room))) in (SMALL, ODD):
            if why == SMALL:
                room = self._found[0].size
                self._usual = max(self._usual, room)
            elif given.file >= 0 or not self._read():
                break
            elif window.count > before:
                return MORE  # the caller holds what they are in
        return why

    def _take(self, window: Window, room: int) -> int:
        given = self._given
        given.out_room, given.used, given.borrowed = room, 0, 0
        if self._in_c:
            out = buffers.take(room, times=_TIMES)
            given.out = compiled.address(out)
            why = given.take_to(window)
            self._bodies, self._lent = [out[: given.used].data], self._dictionary if given.borrowed else []
            is_here = given.count >= 0 and 0 <= given.words - given.out < room
            self._dictionary = self._bodies if is_here else self._dictionary
            return why
        given.out = None
        if (why := given.find()) or not given.found:
            return why
        self._bodies, before = [self._decompressed(page) for page in self._found[: given.found]], given.words
        why, self._lent = given.add_to(window), self._dictionary
        self._dictionary = self._bodies if given.words != before else self._dictionary
        return why or MORE

    def _read(self) -> bool:
        """More of a chunk that is not in a local file."""
        given = self._given
        if given.data_at == given.next:
            return False
        read = self._chunks[self.chunk].reader.read(given.next, min(_AHEAD_BYTES, given.end - given.next))
        self._data = np.frombuffer(read, np.uint8)
        given.data, given.size, given.data_at = compiled.address(self._data), len(self._data), given.next
        return True

    def _decompressed(self, page: FoundPage) -> Data:
        start, size = page.at + page.levels, page.size - page.levels
        data = self._data[start : page.at + page.compressed].data
        try:
            body = self._chunks[0].decompressed(data, size) if page.packed and size else bytes(data)
        except ValueError:
            return b""  # the page is odd
        page.body = address(body) if len(body) == size else None
        return body

    def owners(self, _window: Window, _first: int, _rules: TextRules) -> list[Data]:
        """What holds their texts."""
        return [*self._bodies, *self._lent] if self._given.borrowed else self._bodies

    def long(self, rules: TextRules) -> ValueReader:
        """The value that is told to be long."""
        at = self._given.page.data + self._given.page.start
        owner = next(each for each in (*self._bodies, *self._lent) if 0 <= at - address(each) < len(each))
        start = at - address(owner)
        return long_value(Held(self._chunks[0].reader.path, owner), start, start + self._given.page.length, rules)

    def go_on(self) -> None:
        """There is no next value: why."""
        page = self._given.page
        left = 0 if page.ends else page.size - page.at
        raise too_few_values() if not left else too_long_value() if left >= LENGTH_BYTES else ends_early()

    @property
    def words(self) -> int:
        """How many there are in the dictionary."""
        return int(self._given.count)


def too_few_values() -> EOFError:
    return EOFError("a page has fewer values than its header says")


def too_long_value() -> ValueError:
    return ValueError("a value is longer than its page")


def ends_early() -> ValueError:
    return ValueError("a page ends too early")
