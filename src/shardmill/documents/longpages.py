"""A column of a Parquet row group whose pages are too large to hold → its values one by one, the long ones in place.

The library decodes a page as a whole. Here a page is decompressed as it is read, and its values are found by their
lengths; what must be had again lies on disk meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.documents.compression import Compression, Decompressed
from shardmill.documents.pages import Page, pages_of
from shardmill.documents.rules import TextRules
from shardmill.documents.values import ValueReader, plain
from shardmill.reading import Reader

Integers = npt.NDArray[np.int64]
_CODECS: dict[str, Compression | None] = {"UNCOMPRESSED": None, "ZSTD": "zstd", "GZIP": "gzip", "SNAPPY": "snappy"}
_PLAIN, _BY_DICTIONARY = 0, (2, 8)
_MOST_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A column of a row group, as its metadata tells of it."""

    reader: Reader
    start: int
    length: int
    codec: str
    max_level: int
    """A value is null unless its level is this; 0: there are no nulls."""
    is_bytes: bool
    """Values of any length: each is written behind its length."""

    def pages(self) -> Iterator[Page]:
        return pages_of(self.reader, self.start, self.length)


def obstacle(chunk: Chunk, page: Page) -> str | None:
    """Why a page cannot be read a little at a time, if so."""
    if chunk.codec not in _CODECS:
        return f"{chunk.codec} is decompressed only as a whole: write it with zstd"
    if not chunk.is_bytes:
        return "its values are of a fixed size"
    if page.is_data and page.encoding not in (_PLAIN, *_BY_DICTIONARY):
        return f"values of encoding {page.encoding} are decoded only as a whole: write it with encoding PLAIN"
    return None


def values_of(chunk: Chunk, rules: TextRules) -> Iterator[Any]:
    """All values in order: arrays of short ones, and each long one by itself as a ValueReader."""
    words: _Values | None = None
    for page in chunk.pages():
        reason = obstacle(chunk, page)
        if reason is not None:
            raise ValueError(reason)
        if page.is_dictionary:
            words = _Values(chunk, page, rules, 0)
            words.find_all()
        elif page.is_data:
            levels, begin, body = _levels(chunk, page, rules)
            if page.encoding == _PLAIN:
                found = _Values(chunk, page, rules, begin, body)
                yield from _in_batches(levels, found.next, rules)
            elif words is not None:
                known = words
                numbers = iter(_indices(body.read(begin, page.size), int(levels.sum())).tolist())
                yield from _in_batches(levels, lambda known=known, numbers=numbers: known.get(next(numbers)), rules)
            else:
                raise ValueError("its dictionary is missing")


def _in_batches(levels: npt.NDArray[np.bool_], following: Any, rules: TextRules) -> Iterator[Any]:
    batch: list[bytes | None] = []
    size = 0
    for there in levels.tolist():
        value = following() if there else None
        if isinstance(value, ValueReader) or size > rules.block_bytes or len(batch) == _MOST_ROWS:
            if batch:
                yield pa.array(batch, pa.large_binary())
            batch, size = [], 0
        if isinstance(value, ValueReader):
            yield value
        else:
            batch.append(value)
            size += len(value or b"")
    if batch:
        yield pa.array(batch, pa.large_binary())


class _Values:
    """The values of a page, each behind its length."""

    def __init__(self, chunk: Chunk, page: Page, rules: TextRules, begin: int, body: Reader | None = None) -> None:
        self._page, self._rules, self._at = page, rules, begin
        self._body = body or _body(chunk, page, rules)
        self._spans: list[tuple[int, int]] = []

    def find_all(self) -> None:
        """For a dictionary: where each value lies. They stay, on disk if need be."""
        for _ in range(self._page.values):
            self._spans.append(self._find())

    def get(self, number: int) -> bytes | ValueReader:
        if number >= len(self._spans):
            raise ValueError(f"value {number:,} of a dictionary of {len(self._spans):,}")
        return self._value(self._spans[number])

    def next(self) -> bytes | ValueReader:
        self._body.done_until(self._at)
        return self._value(self._find())

    def _find(self) -> tuple[int, int]:
        start = self._at + 4
        self._at = start + int.from_bytes(_exactly(self._body, self._at, 4), "little")
        if self._at > self._page.size:
            raise ValueError("a value is longer than its page")
        return start, self._at

    def _value(self, span: tuple[int, int]) -> bytes | ValueReader:
        size = span[1] - span[0]
        if size > self._rules.max_run_bytes:
            return plain(self._body, span, replace=self._rules.on_error == "replace")
        return _exactly(self._body, span[0], size)


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


def _levels(chunk: Chunk, page: Page, rules: TextRules) -> tuple[npt.NDArray[np.bool_], int, Reader]:
    """Which values of a page are there, where those that are begin, and what to read them from."""
    body = _body(chunk, page, rules)
    data, begin = b"", 0
    if page.is_v2:
        data = chunk.reader.read(page.at, page.levels)
    elif chunk.max_level:
        begin = 4 + int.from_bytes(_exactly(body, 0, 4), "little")
        if begin > page.size:
            raise ValueError("the levels are longer than their page")
        data = _exactly(body, 4, begin - 4)
    if not chunk.max_level:
        return np.ones(page.values, np.bool_), begin, body
    return _hybrid(data, chunk.max_level.bit_length(), page.values) == chunk.max_level, begin, body


def _indices(data: bytes, count: int) -> Integers:
    """Numbers of values in a dictionary: how many bits each takes, then the numbers."""
    if not count:
        return np.zeros(0, np.int64)
    if not data or data[0] > 32:
        raise ValueError("the numbers of a dictionary's values are damaged")
    return _hybrid(data[1:], data[0], count)


def _hybrid(data: bytes, width: int, count: int) -> Integers:
    """Parquet's runs: of one number over and over, or of numbers of so many bits each."""
    found: list[Integers] = []
    at = known = 0
    while known < count:
        header = shift = 0
        while True:
            if at >= len(data) or shift > 35:
                raise ValueError("a page ends too early")
            header |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        if header & 1:
            taken = (header >> 1) * width
            run = _unpacked(data[at : at + taken], width) if width else np.zeros(count - known, np.int64)
        else:
            taken = (width + 7) // 8
            run = np.full(min(header >> 1, count - known), int.from_bytes(data[at : at + taken], "little"), np.int64)
        if not len(run):
            raise ValueError("a run of nothing")
        found.append(run)
        at += taken
        known += len(run)
    return np.concatenate(found)[:count] if found else np.zeros(0, np.int64)


def _unpacked(data: bytes, width: int) -> Integers:
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
