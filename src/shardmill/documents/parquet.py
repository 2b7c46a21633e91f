"""A Parquet file → Parts of rows of its text column, a slice of a row group at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.columns import File, Rows, RowsPart, TooLarge, choose_column, inside, parts_of
from shardmill.documents.pages import pages_of
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Place, ValuePart
from shardmill.documents.rules import TextRules
from shardmill.errors import InputError
from shardmill.names import show
from shardmill.reading import Reader

# Pages are read through a buffer of this size; without it a whole column of a row group is read at once.
_BUFFER_BYTES = 256 << 10
_MOST_ROWS = 1024
_MOST_FOOTER = 64 << 20
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
    """The largest page in the first row group: what must be held at once, if the others are like it."""
    column = _open(reader, 0, 0, field)
    if not column.file.metadata.num_row_groups:
        return 0
    try:
        chunk = _chunk(column.file.metadata.row_group(0), column.path)
        return max((max(page.size, page.compressed) for page in _pages(reader, chunk)), default=0)
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
            rows = 1 if careful else _rows_at_once(column, group, rules)
            seen = first
            for batch in column.file.iter_batches(rows, row_groups=[group], columns=[column.path], use_threads=False):
                skipped = min(max(0, at - seen), len(batch))
                seen += len(batch)
                if skipped < len(batch):
                    array = inside(batch.column(0), column.names).slice(skipped)
                    yield from parts_of(array, of, at, begin, rules)
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


def _rows_at_once(column: _Column, group: int, rules: TextRules) -> int:
    """As many rows as make about a block, by the page with the longest values. Raises TooLarge for a page that is."""
    meta = column.file.metadata.row_group(group)
    chunk = _chunk(meta, column.path)
    mean = int(chunk.total_uncompressed_size) // max(1, int(meta.num_rows))
    if chunk.total_uncompressed_size > _SMALL_BYTES:
        for page in _pages(column.reader, chunk):
            if max(page.size, page.compressed) > rules.max_held:
                raise TooLarge(
                    f"a page of {max(page.size, page.compressed):,} bytes would have to be held at once, and there is room for {rules.max_held:,}; write the file with smaller pages"
                )
            mean = max(mean, page.size // max(1, page.values))
    return max(1, min(_MOST_ROWS, rules.block_bytes // max(1, mean)))


def _chunk(meta: Any, path: str) -> Any:
    for i in range(meta.num_columns):
        if meta.column(i).path_in_schema == path:
            return meta.column(i)
    raise KeyError(f"row group without the column {path!r}")


def _pages(reader: Reader, chunk: Any) -> Any:
    starts = [chunk.data_page_offset, chunk.dictionary_page_offset if chunk.has_dictionary_page else None]
    start = min(place for place in starts if place)
    return pages_of(reader, start, chunk.total_compressed_size)


def _brief(error: Exception | None) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
