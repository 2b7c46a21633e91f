"""Arrow arrays of text → Parts of rows, and their documents without a copy for each row."""

import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.documents.long_values import BytesReader, ValuePart, long_parts, plain
from shardmill.documents.pieces import Position
from shardmill.documents.records import Broken, Counted, Records
from shardmill.documents.rejects import Location
from shardmill.documents.rules import MAX_RECORDS, TextRules, block_bytes, weight
from shardmill.errors import ContentError, ShardmillError
from shardmill.io.reading import Reader
from shardmill.system.names import show

# What a page or record batch may take, unless the files were found to need more.
LEAST_HELD = 16 << 20
_COLUMNS_TOLD = 20


def return_memory() -> None:
    """Let Arrow take its memory from the system's allocator: its own keeps what it once had."""
    pa.set_memory_pool(pa.system_memory_pool())


class TooLarge(Exception):
    """What would have to be held at once is larger than was reserved; the text says how large."""


class File(io.RawIOBase):
    """A Reader as the file object that Arrow wants. It refuses to read more at once than was reserved."""

    def __init__(self, reader: Reader, most: int) -> None:
        super().__init__()
        self._reader, self._most, self._at = reader, most, 0
        self.ended = False
        """The last read came to the end of the file."""
        self._failure: ShardmillError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._reader.size is not None

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        size = self._reader.size
        assert size is not None
        self._at = offset + (0, self._at, size)[whence]
        return self._at

    def read(self, count: int | None = -1) -> bytes:
        size = self._reader.size
        asked = wanted = count if count is not None and count >= 0 else (1 << 62)
        if size is not None:
            wanted = max(0, min(wanted, size - self._at))
        self.refuse_more(wanted)
        try:
            data = self._reader.read(self._at, wanted)
        except ShardmillError as e:
            self._failure = e
            raise
        self._at += len(data)
        self.ended = len(data) < asked
        return data

    def refuse_more(self, size: int) -> None:
        """Raise TooLarge for more bytes than may be held."""
        if size > self._most:
            raise TooLarge(f"{size:,} bytes would have to be held at once, and there is room for {self._most:,}")

    def refuse_failure(self) -> None:
        """Raise what went wrong with the input itself, if anything did: Arrow may make a damaged page of it."""
        if self._failure is not None:
            raise self._failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one file: for their places, and for what share of the file is done."""

    file: int
    path: str
    base: int
    offset: int = 0
    """Where in the file they begin, if they have such a place."""
    size: int = 0
    rows: int = 0
    """The bytes and rows of the whole file, if the number of rows is known."""

    def spent(self, row: int) -> int:
        """The bytes of the file that are done when so many rows are."""
        return self.size * row // self.rows if self.rows else self.offset

    def position(self, row: int, begin: int = 0) -> Position:
        return Position(file=self.file, offset=self.spent(row), record=row, begin=begin)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsPart:
    """Some rows of one column."""

    of: Rows
    row: int
    array: Any
    size: int

    @property
    def file(self) -> int:
        return self.of.file

    @property
    def after(self) -> Position:
        return self.of.position(self.row + len(self.array))

    def checked(self, rules: TextRules) -> Records:
        first = self.of.spent(self.row)
        found = Records(
            rules=rules,
            location=lambda index, _: Location(path=self.of.path, row=self.row + index),
            job_offset=self.of.base + first,
        )
        # Where rows begin matters only to a split by place.
        count = len(self.array)
        by_place = rules.border is not None
        offsets = [self.of.spent(self.row + i) - first for i in range(count)] if by_place else [0] * count
        documents = _documents(self.array)
        if documents is not None and _is_valid(self.array):
            found.add_all(documents, offsets)
            return found
        for number, (value, offset) in enumerate(zip(documents or self.array.to_pylist(), offsets, strict=True)):
            if value is None:
                found.refuse(Broken(f"column {rules.field!r} is null"), number, offset)
            else:
                found.add_text(value, number, offset)
        return found


def parts_of(array: Any, of: Rows, row: int, begin: int, rules: TextRules) -> Iterator[RowsPart | ValuePart | Counted]:
    """An array of text, which begins at this row of the file, in Parts; begin bytes of its first value are done."""
    array = _as_bytes(array)
    array.validate(full=True)  # a damaged file may have offsets that lead anywhere
    sizes = _sizes(array)
    at = 0
    while at < len(array):
        if begin or sizes[at] > rules.max_run_bytes:
            yield from _long(_plain(array.slice(at, 1))[0].as_py(), of, row + at, begin, rules)
            begin = 0
            at += 1
            continue
        limit = block_bytes(of.file, row + at, rules)
        ends = np.cumsum(sizes[at : at + MAX_RECORDS])
        count = max(1, int(np.searchsorted(ends, limit, side="right")))
        too_long = np.flatnonzero(sizes[at : at + count] > rules.max_run_bytes)
        count = int(too_long[0]) if len(too_long) else min(count, len(ends))
        yield RowsPart(
            of=of, row=row + at, array=_plain(array.slice(at, count)), size=weight(int(ends[count - 1]), count)
        )
        at += count


def _long(data: bytes, of: Rows, row: int, begin: int, rules: TextRules) -> Iterator[ValuePart | Counted]:
    place = Location(path=of.path, row=row)
    where = of.base + of.spent(row)
    here, after = of.position(row, begin), of.position(row + 1)
    value = plain(BytesReader(of.path, data), (0, len(data)), replace=rules.on_error == "replace")
    return long_parts(value, here, after, place, where, rules)


def choose_column(schema: Any, field: str, path: str) -> tuple[str, tuple[str, ...]]:
    """The top column, and the names inside it, that hold the text: a column of that very name, or a.b inside a."""
    names = schema.names
    split = (field, ()) if field in names else (field.split(".")[0], tuple(field.split(".")[1:]))
    try:
        count = names.count(split[0])
        if count > 1:
            raise ContentError(f"{show(path)}: there are {count} columns named {split[0]!r}; name them apart")
        kind = schema.field(split[0]).type
        for name in split[1]:
            kind = kind.field(name).type
    except (KeyError, AttributeError, TypeError):
        there = ", ".join(names[:_COLUMNS_TOLD]) + (" …" if len(names) > _COLUMNS_TOLD else "")
        raise ContentError(
            f"{show(path)}: there is no column {field!r}; there are: {there}. Name the right one with --column"
        ) from None
    if not _is_text(kind):
        raise ContentError(f"{show(path)}: column {field!r} is of type {kind}, not text; name another with --column")
    return split


def inside(array: Any, names: tuple[str, ...]) -> Any:
    """The child of a struct array; where the struct is null, so is the child."""
    for name in names:
        import pyarrow.compute as pc  # late: it takes as long as all the rest

        array = pc.struct_field(array, [name])
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return any(
        check(kind)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
        )
    )


def _plain(array: Any) -> Any:
    """Some rows as an array with offsets and one buffer of text, and no text but theirs."""
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary.take(array.indices))
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return array
    return array.cast(pa.large_binary())


def _as_bytes(array: Any) -> Any:
    """The same without the claim that it is UTF-8."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _as_bytes(array.dictionary), safe=False)
    if pa.types.is_string(array.type):
        return array.view(pa.binary())
    if pa.types.is_large_string(array.type):
        return array.view(pa.large_binary())
    if pa.types.is_string_view(array.type):
        return array.view(pa.binary_view())
    return array


def _offsets(array: Any) -> Any:
    offsets = np.frombuffer(array.buffers()[1], np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _sizes(array: Any) -> Any:
    """The bytes of each value; null has none, whatever its offsets say."""
    if len(array) == 0:
        return np.zeros(0, np.int64)
    if pa.types.is_dictionary(array.type):
        sizes = np.append(_sizes(array.dictionary), 0)  # the last is that of null
        return sizes[array.indices.cast(pa.int64()).fill_null(len(sizes) - 1).to_numpy(zero_copy_only=False)]
    if pa.types.is_fixed_size_binary(array.type):
        sizes = np.full(len(array), array.type.byte_width, np.int64)
    elif pa.types.is_binary_view(array.type):  # of 16 bytes each, the first four are the size
        sizes = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset :][: len(array)].astype(np.int64)
    else:
        sizes = np.diff(_offsets(array)).astype(np.int64)
    return sizes if not array.null_count else np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0)


def _documents(array: Any) -> list[bytes] | None:
    """All values as bytes, if none is null."""
    if array.null_count or not len(array):
        return None
    offsets = _offsets(array).tolist()
    data = array.buffers()[2]
    if data is None:
        return [b""] * len(array)
    raw = memoryview(data)
    return [raw[begin:end].tobytes() for begin, end in itertools.pairwise(offsets)]


def _is_valid(array: Any) -> bool:
    """Whether each value is UTF-8 by itself."""
    try:
        array.view(pa.string() if pa.types.is_binary(array.type) else pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
