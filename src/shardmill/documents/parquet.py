"""A Parquet file → Parts of rows of its text column, a slice of a row group at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.columns import File, Rows, RowsPart, TooLarge, choose_column, inside, parts_of
from shardmill.documents.longpages import Chunk, obstacle, values_of
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Place, ValuePart, long_parts
from shardmill.documents.rules import TextRules
from shardmill.documents.values import ValueReader
from shardmill.errors import InputError
from shardmill.names import show
from shardmill.reading import Reader

# Pages are read through a buffer of this size; without it a whole column of a row group is read at once.
_BUFFER_BYTES = 256 << 10
_MOST_ROWS = 1024
_MOST_FOOTER = 64 << 20
# A larger page is read a little at a time, by slower code, where its encoding allows it.
MOST_HELD = 32 << 20
# A column of a row group up to this size is read without looking at its pages first.
_SMALL_BYTES = 2 << 20
_FAILURES = (pa.ArrowException, OSError, TooLarge, MemoryError, ValueError, OverflowError, KeyError)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """An open file and its column of text."""

    file: Any
    reader: Reader
    top: str
    names: tuple[str, ...]
    of: Rows

    @property
    def path(self) -> str:
        return ".".join((self.top, *self.names))


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[RowsPart | ValuePart | Counted]:
    """All rows of one file in order, from start on."""
    column = _open(reader, start.file, base, rules.field)
    meta = column.file.metadata
    first = 0
    for group in range(meta.num_row_groups):
        end = first + meta.row_group(group).num_rows
        if end > start.record:
            yield from _group(column, group, first, start, rules)
        first = end


def rows(reader: Reader, field: str) -> int:
    return int(_open(reader, 0, 0, field).file.metadata.num_rows)


def largest_page(reader: Reader, field: str) -> int:
    """The largest page in the first row group that must be held at once, if the others are like it."""
    column = _open(reader, 0, 0, field)
    if not column.file.metadata.num_row_groups:
        return 0
    try:
        chunk = _chunk(column, 0)
        pages = [(max(page.size, page.compressed), obstacle(chunk, page)) for page in chunk.pages()]
        streamed = all(reason is None for _, reason in pages)
        return max((min(size, MOST_HELD) if streamed else size for size, _ in pages), default=0)
    except _FAILURES:
        return 0


def _open(reader: Reader, file: int, base: int, field: str) -> _Column:
    size = reader.size
    if size is None:
        raise InputError(
            f"{show(reader.path)}: a Parquet file begins at its end, so it cannot be read from a pipe; save it as a file first"
        )
    try:
        opened = pq.ParquetFile(File(reader, _MOST_FOOTER), pre_buffer=False, buffer_size=_BUFFER_BYTES)
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
    except _FAILURES as e:
        raise InputError(
            f"{show(reader.path)}: its Parquet footer cannot be read ({_brief(e)}); the file is damaged or was cut short: fetch it again"
        ) from e
    top, names = choose_column(schema, field, reader.path)
    of = Rows(file=file, path=reader.path, base=base, size=size, rows=rows)
    return _Column(file=opened, reader=reader, top=top, names=names, of=of)


def _group(
    column: _Column, group: int, first: int, start: Position, rules: TextRules
) -> Iterator[RowsPart | ValuePart | Counted]:
    """The rows of one row group. Where a page cannot be read, the rows before it are still had, one by one."""
    of, count = column.of, column.file.metadata.row_group(group).num_rows
    at, begin = (start.record, start.begin) if start.record > first else (first, 0)
    if start.record == first:
        begin = start.begin
    failure: Exception | None = None
    for careful in (False, True):
        try:
            seen = first
            for values in _values(column, group, rules, careful=careful):
                length = 1 if isinstance(values, ValueReader) else len(values)
                skipped = min(max(0, at - seen), length)
                seen += length
                if skipped == length:
                    continue
                if isinstance(values, ValueReader):
                    yield from _long(values, of, at, begin, rules)
                else:
                    yield from parts_of(values.slice(skipped), of, at, begin, rules)
                at, begin = seen, 0
            if at == first + count:
                return
            failure = ValueError(f"there are {at - first:,} rows instead of {count:,}")
        except TooLarge as e:
            failure = e
            break
        except _FAILURES as e:
            failure = e
    end = first + count
    yield Counted(
        file=of.file,
        after=of.position(end),
        place=Place(path=of.path, row=at),
        complaint=f"{end - at:,} rows, to the end of row group {group:,}, cannot be read: {_brief(failure)}",
        rejected=end - at,
    )


def _long(value: ValueReader, of: Rows, row: int, begin: int, rules: TextRules) -> Iterator[ValuePart | Counted]:
    here, after = of.position(row, begin), of.position(row + 1)
    return long_parts(value, here, after, Place(path=of.path, row=row), of.base + of.spent(row), rules)


def _values(column: _Column, group: int, rules: TextRules, *, careful: bool) -> Iterator[Any]:
    """The values of a row group in order, in arrays; where pages are too large for that, long ones by themselves.

    Raises TooLarge for a page that can only be decoded as a whole, and is too large to hold.
    """
    chunk = _chunk(column, group)
    rows = _rows_at_once(column, group, chunk, rules)
    if not rows:
        yield from values_of(chunk, rules)
        return
    rows = 1 if careful else rows
    for batch in column.file.iter_batches(rows, row_groups=[group], columns=[column.path], use_threads=False):
        yield inside(batch.column(0), column.names)


def _rows_at_once(column: _Column, group: int, chunk: Chunk, rules: TextRules) -> int:
    """As many rows as make about a block, by the page with the longest values; 0: a page is too large to hold."""
    meta = column.file.metadata.row_group(group)
    size = sum(int(meta.column(i).total_uncompressed_size) for i in _numbers(meta, column.path))
    mean = size // max(1, int(meta.num_rows))
    large, reasons = 0, set()
    for page in chunk.pages() if size > _SMALL_BYTES else ():
        large = max(large, page.size, page.compressed)
        reasons.add(obstacle(chunk, page))
        mean = max(mean, page.size // max(1, page.values))
    if large <= rules.max_held:
        return max(1, min(_MOST_ROWS, rules.block_bytes // max(1, mean)))
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is not None:
        raise TooLarge(
            f"a page of {large:,} bytes would have to be held at once, and there is room for {rules.max_held:,}; {reason}, or with smaller pages"
        )
    return 0


def _chunk(column: _Column, group: int) -> Chunk:
    meta = column.file.metadata.row_group(group)
    for i in _numbers(meta, column.path):
        found, kind = meta.column(i), column.file.schema.column(i)
        starts = [found.data_page_offset, found.dictionary_page_offset if found.has_dictionary_page else None]
        return Chunk(
            reader=column.reader,
            start=min(place for place in starts if place),
            length=found.total_compressed_size,
            codec=found.compression,
            max_level=kind.max_definition_level,
            is_bytes=kind.physical_type == "BYTE_ARRAY",
        )
    raise KeyError(f"row group without the column {column.path!r}")


def _numbers(meta: Any, path: str) -> list[int]:
    return [i for i in range(meta.num_columns) if meta.column(i).path_in_schema == path]


def _brief(error: Exception | None) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
