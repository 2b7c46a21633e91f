"""A column chunk of a Parquet file → its pages: their headers, and what they decompress to.

A library would allocate whatever a page header claims. Here small pages are held as a whole, larger ones are streamed,
and a page that can be neither held nor streamed is refused before any of it is read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from shardmill.documents.columnar import native
from shardmill.documents.columnar.native import DATA, DATA_V2, DICTIONARY, Data
from shardmill.io import zstd
from shardmill.io.compression import LEAST_WINDOW, Compression, Decompressed, window_of
from shardmill.io.reading import Reader

PLAIN, DELTA_LENGTHS, DELTA_PREFIXES = 0, 6, 7
BY_DICTIONARY = (2, 8)
# Larger pages are streamed, where codec and encoding allow it.
MOST_HELD = 32 << 20
_STREAMED: dict[str, Compression] = {"ZSTD": "zstd", "GZIP": "gzip", "SNAPPY": "snappy"}
_BLOCKS = {"SNAPPY": "snappy", "LZ4": "lz4_raw"}
# Headers are short, unless they have statistics of long values.
_HEADER_BYTES = (8 << 10, 64 << 10)
# Of each value of a dictionary its end is kept. Of each value in deltas 8 bytes are, 16 if there are prefixes: a third
# of it is counted here, since what is held is reserved three times over.
_END_BYTES, _DELTA_BYTES = 4, 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page header, checked for numbers that no page can have."""

    kind: int
    size: int
    """Bytes when decompressed."""
    compressed: int
    values: int
    encoding: int
    levels: int
    """Version 2: bytes of levels, which come before the values and are never compressed."""
    packed: bool
    """Version 2: whether the values are compressed."""
    at: int
    """Where the page begins in the file, after its header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A column of a row group, as described by the file's metadata."""

    reader: Reader
    start: int
    length: int
    size: int
    """Bytes when decompressed."""
    values: int
    codec: str
    max_level: int
    """A value is null unless its definition level is this; 0: there are no nulls."""
    words: int = 0
    """If it is only some pages of a column: where the dictionary is that they need and do not begin with."""

    @property
    def end(self) -> int:
        return self.start + self.length

    def is_like(self, other: "Chunk") -> bool:
        """Whether they are written in the same way."""
        return self.codec == other.codec and self.max_level == other.max_level

    def pages(self) -> Iterator[Page]:
        """The pages in order, until they hold all values. Raises ValueError for a damaged header."""
        at, seen = self.start, 0
        while at < self.end and seen < self.values:
            page = _page_at(self.reader, at, self.end)
            yield page
            at = page.at + page.compressed
            seen += page.values if page.kind in (DATA, DATA_V2) else 0

    def needs(self, page: Page, most: int) -> tuple[int, bool, str]:
        """Bytes of a page to hold at once, whether it is streamed, and how to write it so that it needs less.

        A page is streamed if it is larger than most and can be.
        """
        ends = _END_BYTES * page.values if page.kind == DICTIONARY else 0
        if ends > page.size:
            raise ValueError(f"a dictionary of {page.values:,} values in {page.size:,} bytes")
        whole = max(page.size, page.compressed) + ends
        if page.kind != DICTIONARY and page.encoding in BY_DICTIONARY:
            return whole, False, "write it without a dictionary"
        if page.kind != DICTIONARY and page.encoding != PLAIN:
            remedy = f"encoding {page.encoding} is decoded only as a whole: write it with encoding PLAIN"
            return whole + _DELTA_BYTES * page.values, False, remedy
        if self.codec not in (*_STREAMED, "UNCOMPRESSED"):
            return whole, False, f"{self.codec} is decompressed only as a whole: write it with zstd"
        if whole <= most:
            return whole, False, ""
        zstd = self.codec == "ZSTD" and page.packed
        window = window_of(self.reader.read(page.at + page.levels, 18)) if zstd else 0
        remedy = "write it without a dictionary" if ends > window else "write it with a lower level of zstd"
        return max(ends, window if window > LEAST_WINDOW else 0), True, remedy

    def body(self, page: Page, held: int, spool: str | None) -> Reader:
        """The values of a page, and in version 1 their levels. Raises ValueError if more than held would be needed."""
        needs, streamed, remedy = self.needs(page, min(held, MOST_HELD))
        if needs > held:
            raise ValueError(
                f"{needs:,} bytes of a page would have to be held at once, and there is room for {held:,}; {remedy}, or with smaller pages"
            )
        if not streamed:
            return Held(self.reader.path, self._whole(page))
        section = _Section(self.reader, page.at + page.levels, page.compressed - page.levels)
        if self.codec == "UNCOMPRESSED" or not page.packed:
            return section
        return Decompressed(section, _STREAMED[self.codec], max_window=max(LEAST_WINDOW, held), spool=spool)

    def _whole(self, page: Page) -> Data:
        size = page.size - page.levels
        data: Data = self.reader.read(page.at + page.levels, page.compressed - page.levels) if size else b""
        return self.decompressed(data, size) if page.packed and size else _of_size(data, size)

    def decompressed(self, data: Data, size: int) -> Data:
        """What compressed bytes of a page decompress to. Raises ValueError unless it has this size."""
        if self.codec != "UNCOMPRESSED":
            try:
                data = _decompressed(self.codec, data, size)
            except (pa.ArrowException, OSError) as e:
                raise ValueError(f"a page cannot be decompressed: {e}") from e
        return _of_size(data, size)


def _of_size(data: Data, size: int) -> Data:
    if len(data) != size:
        raise ValueError(f"a page of {len(data):,} bytes whose header says {size:,}")
    return data


def _page_at(reader: Reader, at: int, end: int) -> Page:
    for size in _HEADER_BYTES:
        length, numbers = native.header(reader.read(at, min(size, end - at)))
        if length > 0:
            kind, size, compressed, values, encoding, levels, packed = numbers
            return Page(
                kind=kind,
                size=size,
                compressed=compressed,
                values=values,
                encoding=encoding,
                levels=levels,
                packed=bool(packed),
                at=at + length,
            )
        if length < 0:
            raise ValueError(f"the page header at byte {at:,} is damaged")
    raise ValueError(f"no page header at byte {at:,}")


def _decompressed(codec: str, data: Data, size: int) -> Data:
    """The text of a page: size bytes, unless it holds fewer or more."""
    if (text := native.decompressed(codec, data, size)) is not None:
        return text
    if codec in _BLOCKS:
        return _block(_BLOCKS[codec], data, size)
    if codec == "UNKNOWN":  # what pyarrow calls Hadoop's LZ4
        return _hadoop_lz4(bytes(data), size)
    if codec == "ZSTD" and zstd.text_bytes(bytes(data[:18])) == size:  # the library makes sure of it
        return memoryview(pa.Codec("zstd").decompress(data, size))
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), codec.lower()).read(size + 1))


def _block(name: str, data: Data, size: int) -> memoryview:
    codec = pa.Codec(name)
    text = memoryview(codec.decompress(data, size))
    try:  # if there is less text, the rest of it is whatever was in memory; then less room is enough, too
        codec.decompress(data, size - 1)
    except (pa.ArrowException, OSError):
        return text
    raise ValueError(f"a page of less than {size:,} bytes")


def _hadoop_lz4(data: bytes, size: int) -> Data:
    """Blocks of LZ4, each after its two sizes; or a single block without, as the first versions of pyarrow wrote it."""
    cursor, text = Cursor(data), b""
    try:
        while cursor.left and len(text) < size:
            whole, packed = struct.unpack(">II", cursor.take(8))
            text += _block("lz4_raw", cursor.take(packed), max(1, min(whole, size - len(text))))
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError):
        return _block("lz4_raw", data, size)
    return text


class Cursor:
    """Reads bytes and variable-length numbers in order; EOFError at the end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        data = self.data[self.at : self.at + count]
        if len(data) < count:
            raise EOFError("a page ends too early")
        self.at += count
        return data

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page has a number of more than 64 bits")

    def zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)


class Held:
    """A page in memory as a Reader."""

    def __init__(self, path: str, data: Data) -> None:
        self.path, self.data = path, data
        self.size: int | None = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def done_until(self, offset: int) -> None:
        pass


class _Section:
    """A span of a file as a Reader."""

    def __init__(self, reader: Reader, start: int, length: int) -> None:
        self.path, self.size = reader.path, length
        self._reader, self._start = reader, start

    def read(self, offset: int, length: int) -> bytes:
        return self._reader.read(self._start + offset, max(0, min(length, self.size - offset)))

    def done_until(self, offset: int) -> None:
        pass

    def __enter__(self) -> "_Section":
        return self

    def __exit__(self, *_: object) -> None:
        pass
