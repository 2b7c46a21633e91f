"""Pages of a Parquet column → its values, a window of text at a time.

Decodes the encodings that writers use for text: PLAIN, dictionary, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY.
Whatever a page claims, memory holds the page if it is small, a window of text and a few thousand numbers.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.documents.columnar import pages
from shardmill.documents.columnar.columns import ShortValues, Values, fitting, long_value
from shardmill.documents.columnar.native import (
    DATA,
    DATA_V2,
    DICTIONARY,
    DONE,
    FULL,
    LONG,
    NO_LEVEL,
    NO_VALUE,
    NO_WORD,
    Data,
    PageRows,
    Runs,
    Window,
    address,
)
from shardmill.documents.columnar.pages import Chunk, Cursor, Held, Page
from shardmill.documents.long_values import ValueReader
from shardmill.documents.native import plain_ends
from shardmill.documents.pieces import Position
from shardmill.documents.records import damage_of
from shardmill.documents.rules import MAX_RECORDS, TextRules, block_bytes
from shardmill.io.reading import Reader
from shardmill.tokens.strings import Strings

_Integers = npt.NDArray[np.int64]
_MOST_BITS = 32
# Of a value in encoding PLAIN, before its text.
_LENGTH_BYTES = 4
_length: Callable[[bytes, int], tuple[int]] = struct.Struct("<I").unpack_from


def values_of(chunk: Chunk, file: int, rows: range, skip_to: int, rules: TextRules) -> Iterator[tuple[int, Values]]:
    """The values of a row group in order, with the number of their first row; pages that end before skip_to are skipped.

    Raises ValueError, EOFError or OverflowError at a page that is damaged or too large, after the rows before it.
    """
    found = Found(Position(file=file, record=skip_to), rules)
    yield from found.values_of(chunk, rows)
    yield from found.rest()


class Found:
    """Rows that were found, and are handed on a window of text at a time, be they of one row group or of several."""

    def __init__(self, start: Position, rules: TextRules) -> None:
        self.start, self._rules, self._row = start, rules, 0
        self._window, self._owners, self._held = Window(rules.max_records, rules.max_run_bytes), list[Data](), 0

    @property
    def next_row(self) -> int:
        return self._row + self._window.count

    def values_of(self, chunk: Chunk, rows: range) -> Iterator[tuple[int, Values]]:
        """The rows of a row group, but for those that do not fill a window yet. An error comes after the rows before it."""
        try:
            if self.next_row != rows.start:
                yield from self.rest()
                self._row = rows.start
            yield from self._by_page(chunk, rows)
        except Exception:
            yield from self.rest()
            raise

    def _by_page(self, chunk: Chunk, rows: range) -> Iterator[tuple[int, Values]]:
        words: _Dictionary | None = None
        end = rows.start
        for page in chunk.pages():
            if page.kind == DICTIONARY:
                if words is not None:
                    raise ValueError("it has two dictionaries")
                words = _Dictionary(chunk, page, self._rules)
            elif page.kind in (DATA, DATA_V2):
                end += page.values
                if end > rows.stop:
                    raise ValueError(f"its pages hold more values than the {len(rows):,} rows of the row group")
                if end > self.start.record:
                    yield from self._rows_of(_Source(chunk, page, words, self._rules))
                else:
                    self._row = end
        if end != rows.stop:
            raise ValueError(f"there are {end - rows.start:,} rows instead of {len(rows):,}")

    def _rows_of(self, page: "_Source") -> Iterator[tuple[int, Values]]:
        window, why = self._window, FULL
        while why != DONE:
            first, window.room = window.count, block_bytes(self.start.file, self._row, self._rules)
            why = window.add(page.rows)
            if window.count > first:
                self._hold(page.owners(window, first, self._rules))
            if why == FULL or self._held > window.room:  # what is held is not all text
                yield from self.rest()
            if why == LONG:
                yield self._row, page.long(self._rules)
                self._row += 1
            elif why == NO_VALUE:
                page.go_on()
            elif why == NO_LEVEL:
                raise EOFError("a page has fewer definition levels than values")
            elif why == NO_WORD:
                raise ValueError(f"a page refers to a value that is not among the {page.words:,} of its dictionary")

    def _hold(self, owners: list[Data]) -> None:
        for owner in owners:
            if not any(owner is held for held in self._owners):
                self._owners.append(owner)
                self._held += len(owner)

    def rest(self) -> Iterator[tuple[int, Values]]:
        """The rows that were not handed on."""
        if count := self._window.count:
            values = ShortValues(*self._window.take(self._owners, self._held))
            self._row, self._owners, self._held = self._row + count, [], 0
            yield self._row - count, values


class _Piece(NamedTuple):
    """PLAIN values in memory, from a byte of it to another, and where in a body it begins."""

    data: Data
    at: int
    end: int
    body: Reader
    first: int = 0


class _Source:
    """The rows of a page, nulls included, and where their texts are."""

    def __init__(self, chunk: Chunk, page: Page, words: "_Dictionary | None", rules: TextRules) -> None:
        body = chunk.body(page, rules.max_held, rules.spool)
        self.rows = PageRows(top=chunk.max_level, rows=page.values, level=-1, length=-1)
        at = _levels(self.rows.levels, chunk, page, body, rules.max_held) if chunk.max_level else 0
        self._words: _Dictionary | None = None
        self._pieces: Iterator[_Piece] = iter(())
        self._piece = _Piece(b"", 0, 0, body)
        if page.encoding == pages.PLAIN:
            self._pieces = _plain(self.rows, body, at, page.size - page.levels, rules)
        elif page.encoding in pages.BY_DICTIONARY:
            if words is None:
                raise ValueError("its dictionary is missing")
            self._words = words
            numbers = body.read(at, page.size)
            _set(self.rows.numbers, numbers, 1, numbers[0] if numbers else 0)
            self.rows.ends, self.rows.words, self.rows.data = words.ends.ctypes.data, len(words.ends), words.address
        elif page.encoding in (pages.DELTA_LENGTHS, pages.DELTA_PREFIXES):
            self._pieces = _delta_values(page, body.path, Cursor(body.read(at, page.size)), rules)
        else:
            raise ValueError(f"encoding {page.encoding} is not supported for text: write it with encoding PLAIN")

    @property
    def words(self) -> int:
        """How many there are in the dictionary."""
        return int(self.rows.words)

    def go_on(self) -> None:
        """With the next values; EOFError if there are none."""
        piece = next(self._pieces, None)
        if piece is None:
            raise EOFError("a page has fewer values than its header says")
        self._piece = piece
        self.rows.data, self.rows.at, self.rows.size = address(piece.data), piece.at, piece.end

    def owners(self, window: Window, first: int, rules: TextRules) -> list[Data]:
        """What holds the texts of a window from the first on."""
        if self._words is None:
            return [self._piece.data]
        return [self._words.data] if self._words.data is not None else self._words.fetch(window, first, rules)

    def long(self, rules: TextRules) -> ValueReader:
        """The value that is told to be long."""
        body, first = (self._piece.body, self._piece.first) if self._words is None else (self._words.body, 0)
        start = first + self.rows.start
        return long_value(body, start, start + self.rows.length, rules)


def _levels(levels: Runs, chunk: Chunk, page: Page, body: Reader, held: int) -> int:
    """Finds the definition levels of a page; returns where its values begin."""
    start, end = (_LENGTH_BYTES, _end_of(body, 0, page.size)) if page.kind == DATA else (0, page.levels)
    if end - start > held:
        raise ValueError(f"definition levels of {end - start:,} bytes, and there is room for {held:,}")
    data = _exactly(body, start, end) if page.kind == DATA else chunk.reader.read(page.at, end)
    _set(levels, data, 0, chunk.max_level.bit_length())
    return end if page.kind == DATA else 0


def _set(runs: Runs, data: bytes, at: int, width: int) -> None:
    if width > _MOST_BITS:
        raise ValueError(f"numbers of {width} bits")
    runs.data, runs.at, runs.size, runs.width = data, at, len(data), width


def _plain(rows: PageRows, body: Reader, at: int, end: int, rules: TextRules) -> Iterator[_Piece]:
    """Values one after the other, each after its length; rows tells how far they were read."""
    while at < end:
        body.done_until(at)
        data, first = _around(body, at, min(at + rules.block_bytes, end))
        yield _Piece(data, at - first, min(len(data), end - first), body, first)
        if first + rows.at == at:  # not even one is all here
            until = _end_of(body, at, end)
            is_long = until - at - _LENGTH_BYTES > rules.max_run_bytes
            yield _Piece(_exactly(body, at, at + _LENGTH_BYTES if is_long else until), 0, until - at, body, at)
            at = until
        else:
            at = first + rows.at


class _Dictionary:
    """The words of a dictionary, which are on disk if they are many, and where each of them ends."""

    def __init__(self, chunk: Chunk, page: Page, rules: TextRules) -> None:
        self.body = chunk.body(page, rules.max_held, rules.spool)
        self.data: Data | None = self.body.data if isinstance(self.body, Held) else None
        self.address = None if self.data is None else address(self.data)
        self.ends = np.zeros(page.values, np.uint32)
        found = at = 0
        while found < page.values:
            data, first = _around(self.body, at, min(at + rules.max_run_bytes, page.size))
            some = np.frombuffer(data, np.uint8)[at - first :]
            ends = plain_ends(some, min(MAX_RECORDS, page.values - found)) + at
            ends = ends if len(ends) else np.array([_end_of(self.body, at, page.size)])
            self.ends[found : found + len(ends)] = ends
            found, at = found + len(ends), int(ends[-1])

    def fetch(self, window: Window, first: int, rules: TextRules) -> list[Data]:
        """Reads the texts of a window from the first on, which are offsets in the dictionary."""
        texts, sizes = window.since(first)
        there = sizes > 0
        starts, ends = texts[there], texts[there] + sizes[there]
        low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        if high - low > 2 * max(window.room, rules.max_run_bytes):  # scattered
            read = [_exactly(self.body, *span) for span in zip(starts.tolist(), ends.tolist())]
            texts[there] = Strings.of(read).pointers
            return [*read]
        data = _exactly(self.body, low, high)
        texts[there] += np.frombuffer(data, np.uint8).ctypes.data - low
        return [data]


def _delta_values(page: Page, path: str, cursor: Cursor, rules: TextRules) -> Iterator[_Piece]:
    """Values after all their lengths; in one of the two encodings, each begins with some bytes of the one before."""
    prefixes = _deltas(cursor, page.values) if page.encoding == pages.DELTA_PREFIXES else None
    suffixes = _deltas(cursor, page.values)
    prefixes = np.zeros_like(suffixes) if prefixes is None else prefixes
    value = b""
    while len(suffixes):
        count = fitting(prefixes[:MAX_RECORDS] + suffixes[:MAX_RECORDS], rules.block_bytes, rules.max_run_bytes)
        values = list[bytes]()
        for prefix, suffix in zip(prefixes[:count].tolist(), suffixes[:count].tolist(), strict=True):
            if not 0 <= prefix <= len(value) or suffix < 0:
                raise ValueError(f"a value of {prefix:,} and {suffix:,} bytes after one of {len(value):,}")
            value = value[:prefix] + cursor.take(suffix)
            values += [len(value).to_bytes(_LENGTH_BYTES, "little"), value]
        data = b"".join(values)
        yield _Piece(data, 0, len(data), Held(path, data))
        prefixes, suffixes = prefixes[count:], suffixes[count:]


def _deltas(cursor: Cursor, most: int) -> _Integers:
    """Numbers in Parquet's DELTA_BINARY_PACKED: differences in blocks, each with as many bits as its largest needs."""
    block, parts, count, first = cursor.varint(), cursor.varint(), cursor.varint(), cursor.zigzag()
    each = block // max(1, parts)
    if count > most or each % 8 or not each:
        raise ValueError(f"a page of {most:,} values has {count:,} lengths in blocks of {block:,}")
    found, left = [np.array([first], np.int64)], count - 1
    while left > 0:
        least = cursor.zigzag()
        for width in cursor.take(parts):
            if left > 0:
                found.append(_unpacked(cursor.take(width * each // 8), width, min(each, left))[:left] + least)
                left -= each
    return np.cumsum(np.concatenate(found))[:count]


def _unpacked(data: bytes, width: int, count: int) -> _Integers:
    """So many numbers of so many bits each; fewer where data ends."""
    if width > 32:
        raise ValueError(f"numbers of {width} bits")
    if not width:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    whole = bits[: len(bits) // width * width].reshape(-1, width)
    return np.asarray(whole.astype(np.int64) @ (1 << np.arange(width)), np.int64)


def _end_of(body: Reader, at: int, end: int) -> int:
    """Where the value ends whose length is here."""
    found = at + _LENGTH_BYTES + _length(_exactly(body, at, at + _LENGTH_BYTES), 0)[0]
    if found > end:
        raise ValueError("a value is longer than its page")
    return found


def _exactly(body: Reader, start: int, end: int) -> bytes:
    data, first = _around(body, start, end)
    return bytes(data[start - first : end - first])


def _around(body: Reader, start: int, end: int) -> tuple[Data, int]:
    """Bytes of a body that include [start, end), and where they begin in it: all of it, if it is in memory."""
    data, first = (body.data, 0) if isinstance(body, Held) else (body.read(start, end - start), start)
    if first + len(data) < end:
        damage = damage_of(body)
        raise ValueError("a page ends too early") if damage is None else ValueError(damage)
    return data, first
