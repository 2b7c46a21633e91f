"""A column of a Parquet row group whose pages are too large for the library → its values, a window of them at a time.

The library decodes a page as a whole. Here a page is decompressed as it is read, and its values are found by their
lengths; what must be had again lies on disk meanwhile. However many values there are, and whatever the headers claim
of them, a window of text and a few thousand numbers are in memory; of a dictionary, where each of its values ends.
"""

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.documents.compression import LEAST_WINDOW, Compression, Decompressed, window_of
from shardmill.documents.pages import Page, pages_of
from shardmill.documents.rules import MAX_RECORDS, TextRules
from shardmill.documents.values import ValueReader, plain
from shardmill.reading import Reader

Integers = npt.NDArray[np.int64]
Values = list[bytes] | ValueReader
"""Some values that follow each other, or a long one by itself."""
_CODECS: dict[str, Compression | None] = {"UNCOMPRESSED": None, "ZSTD": "zstd", "GZIP": "gzip", "SNAPPY": "snappy"}
_WHOLE_CODECS = {"LZ4": "lz4_raw"}
_PLAIN, _BY_DICTIONARY, _DELTA = 0, (2, 8), (6, 7)
_WITH_PREFIXES = 7
_WINDOW = 256 << 10
MOST_ROWS = 1024  # that the library is asked for at once
# Each value of a dictionary takes 16 bytes beside its text in the library, each delta up to 8: a third of that,
# rounded up, since what is held is reserved three times over. Here, the end of a value takes 4 bytes.
_WORD_BYTES, _DELTA_BYTES, _END_BYTES = 6, 3, 4
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

    def pages(self) -> Iterator[Page]:
        return pages_of(self.reader, self.start, self.length, self.values)


@dataclass(kw_only=True, slots=True)
class Needs:
    """What reading a chunk takes, as the headers of its pages tell."""

    values: int = 0
    damage: str | None = None
    """How many values there are before a page that is damaged, and what is wrong with it."""
    held: int = 0
    """What the library holds at once."""
    streamed: int = 0
    """What is held at once when the pages are read a window at a time."""
    mean: int = 0
    """The mean size of the values of a page, of the page with the longest."""
    repeated: int = 0
    """No value that a page may repeat without repeating its text is longer than this."""
    obstacle: str | None = None
    """Why the pages cannot be read a window at a time, if so."""


def needs(chunk: Chunk, most: int) -> Needs:
    """Look at the pages of a chunk; most is what may be held."""
    found = Needs()
    try:
        for page in chunk.pages():
            _add(found, chunk, page, most)
    except (ValueError, IndexError) as e:
        found.damage = str(e)
    return found


def _add(found: Needs, chunk: Chunk, page: Page, most: int) -> None:
    if page.is_dictionary:
        found.streamed = max(found.streamed, _END_BYTES * page.values)
        found.repeated = max(found.repeated, _longest(chunk, page, most))
    elif page.encoding in _DELTA and page.size <= most:
        _refuse_more_deltas(chunk, page)
    if page.encoding == _WITH_PREFIXES:
        found.repeated = max(found.repeated, page.size)
    each = _WORD_BYTES if page.is_dictionary else _DELTA_BYTES if page.encoding in _DELTA else 0
    found.held = max(found.held, max(page.size, page.compressed) + each * page.values)
    found.mean = max(found.mean, page.size // max(1, page.values))
    found.obstacle = found.obstacle or _obstacle(chunk, page, most)
    found.values += page.values if page.is_data else 0


def _obstacle(chunk: Chunk, page: Page, most: int) -> str | None:
    """Why a page cannot be read a window at a time, if so."""
    if chunk.codec not in _CODECS:
        return f"{chunk.codec} is decompressed only as a whole: write it with zstd"
    if not chunk.is_bytes:
        return "its values are of a fixed size"
    if page.is_data and page.encoding not in (_PLAIN, *_BY_DICTIONARY):
        return f"values of encoding {page.encoding} are decoded only as a whole: write it with encoding PLAIN"
    if chunk.codec == "ZSTD" and page.size > most and page.packed:
        window = window_of(chunk.reader.read(page.at + page.levels, 18))
        if window > LEAST_WINDOW:
            return f"decompressing it takes a window of {window >> 20} MiB: write it with a lower level of zstd"
    return None


def _longest(chunk: Chunk, page: Page, most: int) -> int:
    """The longest value of a dictionary, or what cannot be shorter than that."""
    if not chunk.is_bytes:
        return page.size // max(1, page.values)
    if page.size > most or page.size * min(MOST_ROWS, chunk.values) <= most:
        return page.size  # the pages are not for the library, or it does not matter
    try:
        ends = _ends(_decompressed(chunk, page), page.values)
    except ValueError:  # LZ4 of old; or it is damaged, as will be told
        return page.size
    return int(np.diff(np.array(ends, np.int64), prepend=0).max(initial=0))


def _refuse_more_deltas(chunk: Chunk, page: Page) -> None:
    """The library makes room for as many lengths as a page of deltas claims, whatever its header says."""
    data = _decompressed(chunk, page)
    at = 4 + _length(data, 0)[0] if chunk.max_level and not page.is_v2 else 0
    for _ in range(2 if page.encoding == _WITH_PREFIXES else 1):
        count, at = _deltas(data, at)
        if count > page.values:
            raise ValueError(f"a page of {page.values:,} values has {count:,} lengths")


def _deltas(data: bytes, at: int) -> tuple[int, int]:
    """How many numbers a sequence of deltas claims, and where it ends."""
    block, at = _varint(data, at)
    parts, at = _varint(data, at)
    count, at = _varint(data, at)
    _, at = _varint(data, at)
    left = count - 1
    while left > 0:
        _, at = _varint(data, at)
        widths, at = data[at : at + parts], at + parts
        for width in widths[: -(-left * parts // block)]:
            at += width * (block // parts) // 8
        left -= block
    return count, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 127 and shift < 63:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | (data[at] & 127) << shift, at + 1


def _decompressed(chunk: Chunk, page: Page) -> bytes:
    """All that a page holds, behind the levels of one of version 2; it is small enough."""
    data = chunk.reader.read(page.at + page.levels, page.compressed - page.levels)
    if chunk.codec == "UNCOMPRESSED" or not page.packed:
        return data
    try:
        codec = pa.Codec(_WHOLE_CODECS.get(chunk.codec, chunk.codec.lower()))
        return bytes(codec.decompress(data, page.size - page.levels, asbytes=True))
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"a page cannot be decompressed: {e}") from e


def values_of(chunk: Chunk, rules: TextRules) -> Iterator[Any]:
    """All values in order: arrays of short ones, and each long one by itself as a ValueReader."""
    words: _Words | None = None
    for page in chunk.pages():
        if page.is_dictionary:
            words = _Words(_body(chunk, page, rules), page)
        elif page.is_data:
            present, begin = _levels(chunk, page, rules)
            body = _body(chunk, page, rules)
            if page.encoding == _PLAIN:
                following = _Plain(body, begin, page.size - page.levels, rules).take
            elif words is not None:
                following = _Coded(words, body, begin, page.size - page.levels, rules).take
            else:
                raise ValueError("its dictionary is missing")
            for done in range(0, page.values, MAX_RECORDS):
                yield from _rows(present(min(MAX_RECORDS, page.values - done)), following)


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
        ends = _ends(data, most)
        if not ends:
            start, self._at = self._at + 4, _end_of(self._body, self._at, self._end)
            return _value(self._body, start, self._at, self._rules)
        self._at += ends[-1]
        return [data[start + 4 : end] for start, end in zip((0, *ends), ends)]


class _Words:
    """A dictionary: its text, which stays on disk if it is long, and where each of its values ends."""

    def __init__(self, body: Reader, page: Page) -> None:
        if _END_BYTES * page.values > page.size:
            raise ValueError(f"a dictionary of {page.values:,} values in {page.size:,} bytes")
        self.body = body
        self._ends = np.zeros(page.values, np.uint32)
        known = at = 0
        while known < page.values:
            data = body.read(at, min(_WINDOW, page.size - at))
            ends = np.array(_ends(data, page.values - known), np.int64) + at
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

    def __init__(self, words: _Words, body: Reader, at: int, end: int, rules: TextRules) -> None:
        self._words, self._rules = words, rules
        width = body.read(at, 1)
        self._numbers = _Runs(body, at + 1, end, width[0] if width else 0)
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


def _ends(data: bytes, most: int) -> "array[int]":
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


def _value(body: Reader, start: int, end: int, rules: TextRules) -> Values:
    if end - start > rules.max_run_bytes:
        return plain(body, (start, end), replace=rules.on_error == "replace")
    return [_exactly(body, start, end - start)]


def _exactly(body: Reader, offset: int, length: int) -> bytes:
    data = body.read(offset, length)
    if len(data) < length:
        raise ValueError(getattr(body, "damage", None) or "a page ends too early")
    return data


def _body(chunk: Chunk, page: Page, rules: TextRules) -> Reader:
    """What a page holds, behind the levels of one of version 2."""
    codec = _CODECS[chunk.codec] if page.packed else None
    section = _Section(chunk.reader, page.at + page.levels, page.compressed - page.levels)
    return section if codec is None else Decompressed(section, codec, spool=rules.spool)


def _levels(chunk: Chunk, page: Page, rules: TextRules) -> tuple[Callable[[int], npt.NDArray[np.bool_]], int]:
    """What tells of the next so many values which are present, and where those begin in the body."""
    level = chunk.max_level
    if not level:
        return lambda count: np.ones(count, np.bool_), 0
    if page.is_v2:
        runs = _Runs(_Section(chunk.reader, page.at, page.levels), 0, page.levels, level.bit_length())
        return lambda count: runs.take(count) == level, 0
    body = _body(chunk, page, rules)  # one of its own: levels and values are read at two places
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

    def __enter__(self) -> "_Section":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
