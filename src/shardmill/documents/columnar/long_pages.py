"""A column of a Parquet row group whose pages are too large for the library → its values, a window of them at a time.

The library decodes a page as a whole. Here a page is decompressed as it is read, and its values are found by their
lengths; what must be had again lies on disk meanwhile. However many values there are, and whatever the headers claim
of them, a window of text and a few thousand numbers are in memory; of a dictionary, where each of its values ends.
"""

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.documents.columnar.pages import Page, pages_of
from shardmill.documents.long_values import BytesReader, ValueReader, plain
from shardmill.documents.rules import MAX_RECORDS, TextRules
from shardmill.io.compression import LEAST_WINDOW, Compression, Decompressed, window_of
from shardmill.io.reading import Reader

Integers = npt.NDArray[np.int64]
Values = list[bytes] | ValueReader
"""Some values that follow each other, or a long one by itself."""
_CODECS: dict[str, Compression | None] = {"UNCOMPRESSED": None, "ZSTD": "zstd", "GZIP": "gzip", "SNAPPY": "snappy"}
_WHOLE_CODECS = {"LZ4": "lz4_raw"}
PLAIN, BY_DICTIONARY = 0, (2, 8)
# What is kept of each value of a dictionary: where it ends.
END_BYTES = 4
_WINDOW = 256 << 10
_length: Callable[[bytes, int], tuple[int]] = struct.Struct("<I").unpack_from


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A column of a row group, as its metadata tells of it."""

    reader: Reader
    start: int
    length: int
    values: int
    codec: str
    max_level: int
    """A value is null unless its level is this; 0: there are no nulls."""
    is_bytes: bool
    """Values of any length: each is written behind its length."""
    held: int
    """How large a page may be to be held as a whole."""
    spool: str | None = None
    """A folder for what is not held."""

    def pages(self) -> Iterator[Page]:
        return pages_of(self.reader, self.start, self.length, self.values)


def obstacle(chunk: Chunk, page: Page) -> str | None:
    """Why a page that is too large to hold cannot be read a window at a time, if so."""
    if page.is_data and page.encoding not in (PLAIN, *BY_DICTIONARY):
        return f"values of encoding {page.encoding} are decoded only as a whole: write it with encoding PLAIN"
    if not chunk.is_bytes:
        return "its values are of a fixed size"
    if chunk.codec not in _CODECS:
        return f"{chunk.codec} is decompressed only as a whole: write it with zstd"
    if chunk.codec == "ZSTD" and page.packed and page.size > chunk.held:
        window = window_of(chunk.reader.read(page.at + page.levels, 18))
        if window > LEAST_WINDOW:
            return f"decompressing it takes a window of {window >> 20} MiB: write it with a lower level of zstd"
    return None


def values_of(chunk: Chunk, rules: TextRules) -> Iterator[Any]:
    """All values in order: arrays of short ones, and each long one by itself as a ValueReader."""
    words: _Words | None = None
    for page in chunk.pages():
        if page.is_dictionary:
            words = _Words(_body(chunk, page), page)
        elif page.is_data:
            present, begin = _levels(chunk, page, _body(chunk, page))
            body = _body(chunk, page)  # another one: levels and values are read at two places
            if page.encoding == PLAIN:
                following = _Plain(body, begin, page.size - page.levels, rules).take
            elif words is not None:
                following = _Coded(words, _numbers(body, begin, page), rules).take
            else:
                raise ValueError("its dictionary is missing")
            for done in range(0, page.values, MAX_RECORDS):
                yield from _rows(present(min(MAX_RECORDS, page.values - done)), following)


def numbers_of(chunk: Chunk, page: Page) -> Integers:
    """The numbers of all values of a small page in its dictionary."""
    body = BytesReader(chunk.reader.path, decompressed(chunk, page))
    present, begin = _levels(chunk, page, body)
    return _numbers(body, begin, page).take(int(np.count_nonzero(present(page.values))))


def _numbers(body: Reader, at: int, page: Page) -> "_Runs":
    width = body.read(at, 1)
    return _Runs(body, at + 1, page.size - page.levels, width[0] if width else 0)


def _rows(present: npt.NDArray[np.bool_], following: Callable[[int], Values]) -> Iterator[Any]:
    """The next rows: nulls, and where a value is present, the one that follows."""
    places = np.flatnonzero(present)
    row = found = 0
    while found < len(places):
        values = following(len(places) - found)
        if isinstance(values, ValueReader):
            if places[found] > row:
                yield pa.nulls(int(places[found]) - row, pa.large_binary())
            yield values
            found, row = found + 1, int(places[found]) + 1
        else:
            found += len(values)
            end = int(places[found - 1]) + 1
            if end - row > len(values):
                given = iter(values)
                yield pa.array([next(given) if there else None for there in present[row:end]], pa.large_binary())
            else:
                yield pa.array(values, pa.large_binary())
            row = end
    if row < len(present):
        yield pa.nulls(len(present) - row, pa.large_binary())


class _Plain:
    """The values of a page one after the other, each behind its length."""

    def __init__(self, body: Reader, at: int, end: int, rules: TextRules) -> None:
        self._body, self._at, self._end, self._rules = body, at, end, rules

    def take(self, most: int) -> Values:
        self._body.done_until(self._at)
        data = self._body.read(self._at, min(_WINDOW, self._end - self._at))
        ends = ends_of(data, most)
        if not ends:
            start, self._at = self._at, _end_of(self._body, self._at, self._end)
            return _value(self._body, start + 4, self._at, self._rules, data[4:])
        self._at += ends[-1]
        return [data[start + 4 : end] for start, end in zip((0, *ends), ends)]


class _Words:
    """A dictionary: its text, which stays on disk if it is long, and where each of its values ends."""

    def __init__(self, body: Reader, page: Page) -> None:
        self.body = body
        self._ends = np.zeros(page.values, np.uint32)
        known = at = 0
        while known < page.values:
            data = body.read(at, min(_WINDOW, page.size - at))
            ends = np.array(ends_of(data, page.values - known), np.int64) + at
            if not len(ends):
                ends = np.array([_end_of(body, at, page.size)])
            self._ends[known : known + len(ends)] = ends
            known, at = known + len(ends), int(ends[-1])

    def spans(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Where values of these numbers begin and end."""
        if len(numbers) and numbers.max() >= len(self._ends):
            raise ValueError(f"value {numbers.max():,} of a dictionary of {len(self._ends):,}")
        starts = np.where(numbers > 0, self._ends[numbers - 1], 0).astype(np.int64) + 4
        return starts, self._ends[numbers].astype(np.int64)


class _Coded:
    """The values of a page that has their numbers in a dictionary."""

    def __init__(self, words: _Words, numbers: "_Runs", rules: TextRules) -> None:
        self._words, self._numbers, self._rules = words, numbers, rules
        self._rest = np.zeros(0, np.int64)

    def take(self, most: int) -> Values:
        numbers = self._rest if len(self._rest) else self._numbers.take(most)
        starts, ends = self._words.spans(numbers)
        count = int(np.searchsorted(np.cumsum(ends - starts), _WINDOW, side="right"))
        self._rest = numbers[max(1, count) :]
        if not count:
            return _value(self._words.body, int(starts[0]), int(ends[0]), self._rules)
        spans = zip(starts[:count].tolist(), ends[:count].tolist())
        return [_exactly(self._words.body, start, end - start) for start, end in spans]


def ends_of(data: bytes, most: int) -> "array[int]":
    """Where values end that lie in data one after the other, each behind its length; those that are whole."""
    ends, at, last = array("q"), 0, len(data) - 4
    while at <= last and len(ends) < most:
        at += 4 + _length(data, at)[0]
        ends.append(at)
    if at > len(data):
        ends.pop()
    return ends


def _end_of(body: Reader, at: int, end: int) -> int:
    """Where the value ends whose length stands here."""
    found = at + 4 + _length(_exactly(body, at, 4), 0)[0]
    if found > end:
        raise ValueError("a value is longer than its page")
    return found


def _value(body: Reader, start: int, end: int, rules: TextRules, begun: bytes = b"") -> Values:
    """A value of any length, of which the beginning may have been read."""
    if end - start > rules.max_run_bytes:
        return plain(body, (start, end), replace=rules.on_error == "replace")
    return [begun + _exactly(body, start + len(begun), end - start - len(begun))]


def _exactly(body: Reader, offset: int, length: int) -> bytes:
    data = body.read(offset, length)
    if len(data) < length:
        raise ValueError(getattr(body, "damage", None) or "a page ends too early")
    return data


def decompressed(chunk: Chunk, page: Page) -> bytes:
    """All that a small page holds, behind the levels of one of version 2.

    For bounds, not for text: where a header claims more than there is, the rest is whatever was in memory, and the
    library will refuse the page.
    """
    data = chunk.reader.read(page.at + page.levels, page.compressed - page.levels)
    if chunk.codec == "UNCOMPRESSED" or not page.packed:
        return data
    try:
        codec = pa.Codec(_WHOLE_CODECS.get(chunk.codec, chunk.codec.lower()))
        return bytes(codec.decompress(data, page.size - page.levels, asbytes=True))
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"a page cannot be decompressed: {e}") from e


def _body(chunk: Chunk, page: Page) -> Reader:
    """What a page holds, behind the levels of one of version 2."""
    codec = _CODECS[chunk.codec] if page.packed else None
    section = _Section(chunk.reader, page.at + page.levels, page.compressed - page.levels)
    return section if codec is None else Decompressed(section, codec, spool=chunk.spool)


def _levels(chunk: Chunk, page: Page, body: Reader) -> tuple[Callable[[int], npt.NDArray[np.bool_]], int]:
    """What tells of the next so many values which are present, and where those begin in the body."""
    level = chunk.max_level
    if not level:
        return lambda count: np.ones(count, np.bool_), 0
    if page.is_v2:
        runs = _Runs(_Section(chunk.reader, page.at, page.levels), 0, page.levels, level.bit_length())
        return lambda count: runs.take(count) == level, 0
    begin = _end_of(body, 0, page.size)
    runs = _Runs(body, 4, begin, level.bit_length())
    return lambda count: runs.take(count) == level, begin


class _Runs:
    """Numbers of so many bits each in Parquet's runs: one number over and over, or eights of numbers."""

    def __init__(self, source: Reader, at: int, end: int, width: int) -> None:
        if width > 32:
            raise ValueError("the numbers of a dictionary's values are damaged")
        self._source, self._at, self._end, self._width = source, at, end, width
        self._window, self._first = b"", at
        self._left = 0
        """How often the number is still to come, or how many eights."""
        self._number: int | None = None
        self._rest = np.zeros(0, np.int64)

    def take(self, count: int) -> Integers:
        found = [self._rest]
        missing = count - len(self._rest)
        while missing > 0:
            if not self._left:
                self._begin()
            if self._number is not None:
                taken = min(self._left, missing)
                found.append(np.full(taken, self._number, np.int64))
            else:
                taken = min(self._left, -(-missing // 8))
                found.append(_unpacked(self._bytes(taken * self._width), self._width, taken * 8))
            self._left -= taken
            missing -= len(found[-1])
        numbers = np.concatenate(found)
        self._rest = numbers[count:]
        return numbers[:count]

    def _begin(self) -> None:
        header = shift = 0
        while True:
            byte = self._bytes(1)[0]
            header |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
            if shift > 35:
                raise ValueError("a run of a page is damaged")
        self._left = header >> 1
        if not self._left:
            raise ValueError("a run of nothing")
        self._number = None if header & 1 else int.from_bytes(self._bytes((self._width + 7) // 8), "little")

    def _bytes(self, count: int) -> bytes:
        at = self._at - self._first
        if at + count > len(self._window):
            self._first, at = self._at, 0
            self._source.done_until(self._at)
            self._window = self._source.read(self._at, max(0, min(max(count, _WINDOW), self._end - self._at)))
        data = self._window[at : at + count]
        if count and not data:
            raise ValueError(getattr(self._source, "damage", None) or "a page ends too early")
        self._at += count
        return data


def _unpacked(data: bytes, width: int, count: int) -> Integers:
    """Numbers of so many bits each; fewer where the last eights are cut short."""
    if not width:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    whole = bits[: len(bits) // width * width].reshape(-1, width)
    return np.asarray(whole.astype(np.int64) @ (1 << np.arange(width)), np.int64)


class _Section:
    """A stretch of a file, read as a file of its own."""

    def __init__(self, reader: Reader, start: int, length: int) -> None:
        self.path, self.size = reader.path, length
        self._reader, self._start = reader, start

    def read(self, offset: int, length: int) -> bytes:
        return self._reader.read(self._start + offset, max(0, min(length, self.size - offset)))

    def done_until(self, offset: int) -> None:
        pass
