"""Pages of a Parquet column → its values, a window of text at a time.

Decodes the encodings that writers use for text: PLAIN, dictionary, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY.
Whatever a page claims, memory holds the page if it is small, a window of text and a few thousand numbers.
"""

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from shardmill.documents import native
from shardmill.documents.columnar import pages
from shardmill.documents.columnar.columns import ShortValues, Values, fitting, long_value, window_bytes
from shardmill.documents.columnar.pages import DATA, DATA_V2, DICTIONARY, Chunk, Cursor, Page
from shardmill.documents.long_values import BytesReader, ValueReader
from shardmill.documents.records import damage_of
from shardmill.documents.rules import MAX_RECORDS, TextRules
from shardmill.io.reading import Reader

_Integers = npt.NDArray[np.int64]
_Levels = Callable[[int], npt.NDArray[np.bool_]]
"""So many rows → whether the next ones have a value."""
_LENGTH_BYTES = 4
_length: Callable[[bytes, int], tuple[int]] = struct.Struct("<I").unpack_from


def values_of(chunk: Chunk, file: int, rows: range, skip_to: int, rules: TextRules) -> Iterator[tuple[int, Values]]:
    """The values of a row group in order, with the number of their first row; pages that end before skip_to are skipped.

    Raises ValueError, EOFError or OverflowError at a page that is damaged or too large, after the rows before it.
    """
    row = rows.start
    words: _Dictionary | None = None
    for page in chunk.pages():
        if page.kind == DICTIONARY:
            if words is not None:
                raise ValueError("it has two dictionaries")
            words = _Dictionary(chunk, page, rules)
        elif page.kind in (DATA, DATA_V2):
            end = row + page.values
            if end > rows.stop:
                raise ValueError(f"its pages hold more values than the {len(rows):,} rows of the row group")
            window = window_bytes(file, row, rules)
            for values in _page(chunk, page, words, window, rules) if end > skip_to else ():
                yield row, values
                row += 1 if isinstance(values, ValueReader) else len(values)
            row = end


def _page(chunk: Chunk, page: Page, words: "_Dictionary | None", window: int, rules: TextRules) -> Iterator[Values]:
    """The values of a page, nulls included."""
    body = chunk.body(page, rules.max_held, rules.spool)
    levels, at = _levels(chunk, page, body, rules.max_held)
    if page.encoding == pages.PLAIN:
        values = _plain(body, at, page.size - page.levels, window, rules)
    elif page.encoding in pages.BY_DICTIONARY:
        if words is None:
            raise ValueError("its dictionary is missing")
        values = words.values(body.read(at, page.size), window, rules)
    elif page.encoding in (pages.DELTA_LENGTHS, pages.DELTA_PREFIXES):
        values = _delta_values(page, body.path, Cursor(body.read(at, page.size)), window, rules)
    else:
        raise ValueError(f"encoding {page.encoding} is not supported for text: write it with encoding PLAIN")
    return _rows(page.values, levels, values)


def _levels(chunk: Chunk, page: Page, body: Reader, held: int) -> tuple[_Levels, int]:
    """The definition levels of a page, and where its values begin."""
    if not chunk.max_level:
        return lambda count: np.ones(count, np.bool_), 0
    source, start, end = chunk.reader, page.at, page.at + page.levels
    if page.kind == DATA:
        source, start, end = body, _LENGTH_BYTES, _end_of(body, 0, page.size)
    if end - start > held:
        raise ValueError(f"definition levels of {end - start:,} bytes, and there is room for {held:,}")
    runs = _Runs(Cursor(_exactly(source, start, end)), chunk.max_level.bit_length())

    def levels(count: int) -> npt.NDArray[np.bool_]:
        found = runs.take(count)
        if len(found) < count:
            raise EOFError("a page has fewer definition levels than values")
        return np.equal(found, chunk.max_level)

    return levels, end if page.kind == DATA else 0


def _rows(left: int, levels: _Levels, windows: Iterator[Values]) -> Iterator[Values]:
    """So many rows: values, with nulls between them."""
    for window in windows:
        at, count = 0, 1 if isinstance(window, ValueReader) else len(window)
        while at < count and left:
            there = levels(min(count - at, left))
            present = int(np.count_nonzero(there))
            if isinstance(window, ValueReader):
                yield window if present else _nulls(1)
            elif present == len(there):
                yield window.take(slice(at, at + present))
            else:
                numbers = np.where(there, at + np.cumsum(there) - 1, at)
                yield ShortValues(window.texts.take(numbers), ~there)
            at, left = at + present, left - len(there)
        if not left:
            return
    while left:
        there = levels(min(MAX_RECORDS, left))
        if there.any():
            raise EOFError("a page has fewer values than its header says")
        yield _nulls(len(there))
        left -= len(there)


def _nulls(count: int) -> ShortValues:
    return ShortValues.of([None] * count)


def _plain(body: Reader, at: int, end: int, window: int, rules: TextRules) -> Iterator[Values]:
    """Values one after the other, each after its length."""
    while at < end:
        body.done_until(at)
        starts, ends = _plain_spans(body, at, end, window)
        yield from _texts(body, starts, ends, window, rules)
        at = int(ends[-1])


def _texts(body: Reader, starts: _Integers, ends: _Integers, window: int, rules: TextRules) -> Iterator[Values]:
    """Values that are spans of a body."""
    while len(starts):
        count = fitting(ends - starts, window, rules.max_run_bytes)
        low, high = int(starts[:count].min()), int(ends[:count].max())
        if count == 1 and high - low > rules.max_run_bytes:
            yield long_value(body, low, high, rules)
        elif high - low > 2 * max(window, rules.max_run_bytes):  # scattered over a large dictionary
            spans = zip(starts[:count].tolist(), ends[:count].tolist())
            yield ShortValues.of([_exactly(body, start, end) for start, end in spans])
        else:
            data, first = _around(body, low, high)
            yield ShortValues.within(np.frombuffer(data, np.uint8), starts[:count] - first, ends[:count] - first)
        starts, ends = starts[count:], ends[count:]


class _Dictionary:
    """The text of a dictionary, which is on disk if it is long, and where each of its values ends."""

    def __init__(self, chunk: Chunk, page: Page, rules: TextRules) -> None:
        self._body = chunk.body(page, rules.max_held, rules.spool)
        self._ends = np.zeros(page.values, np.uint32)
        found = at = 0
        while found < page.values:
            ends = _plain_spans(self._body, at, page.size, rules.max_run_bytes)[1][: page.values - found]
            self._ends[found : found + len(ends)] = ends
            found, at = found + len(ends), int(ends[-1])

    def values(self, indices: bytes, window: int, rules: TextRules) -> Iterator[Values]:
        """The values whose numbers a page has."""
        runs = _Runs(Cursor(indices, 1), indices[0] if indices else 0)
        while len(numbers := runs.take(MAX_RECORDS)):
            if numbers.max() >= len(self._ends):
                raise ValueError(f"value {numbers.max():,} of a dictionary of {len(self._ends):,}")
            starts = np.where(numbers > 0, self._ends[numbers - 1], 0).astype(np.int64) + _LENGTH_BYTES
            yield from _texts(self._body, starts, self._ends[numbers].astype(np.int64), window, rules)


def _delta_values(page: Page, path: str, cursor: Cursor, window: int, rules: TextRules) -> Iterator[Values]:
    """Values after all their lengths; in one of the two encodings, each begins with some bytes of the one before."""
    prefixes = _deltas(cursor, page.values) if page.encoding == pages.DELTA_PREFIXES else None
    suffixes = _deltas(cursor, page.values)
    prefixes = np.zeros_like(suffixes) if prefixes is None else prefixes
    value = b""
    while len(suffixes):
        count = fitting(prefixes[:MAX_RECORDS] + suffixes[:MAX_RECORDS], window, rules.max_run_bytes)
        values: list[bytes | None] = []
        for prefix, suffix in zip(prefixes[:count].tolist(), suffixes[:count].tolist(), strict=True):
            if not 0 <= prefix <= len(value) or suffix < 0:
                raise ValueError(f"a value of {prefix:,} and {suffix:,} bytes after one of {len(value):,}")
            value = value[:prefix] + cursor.take(suffix)
            values.append(value)
        long = len(value) > rules.max_run_bytes  # then it is the only one
        yield long_value(BytesReader(path, value), 0, len(value), rules) if long else ShortValues.of(values)
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


class _Runs:
    """Numbers in Parquet's RLE: one number over and over, or groups of eight, each number of so many bits."""

    def __init__(self, cursor: Cursor, width: int) -> None:
        self._cursor, self._width = cursor, width
        self._left = 0
        """How often the number is still to come, or how many groups."""
        self._number: int | None = None
        self._rest = np.zeros(0, np.int64)

    def take(self, count: int) -> _Integers:
        """The next numbers; fewer at the end."""
        found, missing = [self._rest], count - len(self._rest)
        while missing > 0 and (self._left or self._cursor.left):
            if not self._left:
                header = self._cursor.varint()
                self._left = header >> 1
                packed = header & 1
                self._number = None if packed else int.from_bytes(self._cursor.take((self._width + 7) // 8), "little")
            if self._number is not None:
                taken = min(self._left, missing)
                found.append(np.full(taken, self._number, np.int64))
            else:
                taken = min(self._left, -(-missing // 8))
                data = self._cursor.take(min(taken * self._width, self._cursor.left))
                found.append(_unpacked(data, self._width, taken * 8))
            self._left -= taken
            missing -= len(found[-1])
        numbers = np.concatenate(found)
        self._rest = numbers[count:]
        return numbers[:count]


def _unpacked(data: bytes, width: int, count: int) -> _Integers:
    """So many numbers of so many bits each; fewer where data ends."""
    if width > 32:
        raise ValueError(f"numbers of {width} bits")
    if not width:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    whole = bits[: len(bits) // width * width].reshape(-1, width)
    return np.asarray(whole.astype(np.int64) @ (1 << np.arange(width)), np.int64)


def _plain_spans(body: Reader, start: int, end: int, window: int) -> tuple[_Integers, _Integers]:
    """Where the values begin and end that are in a body one after the other: those in a window, or a longer one."""
    data, first = _around(body, start, min(start + window, end))
    found = native.plain_ends(np.frombuffer(data, np.uint8)[start - first :], MAX_RECORDS) + start
    found = found if len(found) else np.array([_end_of(body, start, end)])
    return np.append(start, found[:-1]) + _LENGTH_BYTES, found


def _end_of(body: Reader, at: int, end: int) -> int:
    """Where the value ends whose length is here."""
    found = at + _LENGTH_BYTES + _length(_exactly(body, at, at + _LENGTH_BYTES), 0)[0]
    if found > end:
        raise ValueError("a value is longer than its page")
    return found


def _exactly(body: Reader, start: int, end: int) -> bytes:
    data, first = _around(body, start, end)
    return data[start - first : end - first]


def _around(body: Reader, start: int, end: int) -> tuple[bytes, int]:
    """Bytes of a body that include [start, end), and where they begin in it: all of it, if it is in memory."""
    data, first = (body.data, 0) if isinstance(body, BytesReader) else (body.read(start, end - start), start)
    if first + len(data) < end:
        raise ValueError(damage_of(body) or "a page ends too early")
    return data, first
