"""A Parquet file → Parts of rows of its text column, a slice of a row group at a time."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.columns import File, Rows, RowsPart, TooLarge, choose_column, inside, parts_of
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Place, ValuePart
from shardmill.documents.text import TextRules
from shardmill.errors import InputError
from shardmill.storage import Reader, show

# Pages are read through a buffer of this size; without it a whole column of a row group is read at once.
_BUFFER_BYTES = 256 << 10
_MOST_ROWS = 1024
_MOST_FOOTER = 64 << 20
_FAILURES = (pa.ArrowException, OSError, TooLarge, MemoryError, ValueError, OverflowError)


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[RowsPart | ValuePart | Counted]:
    """All rows of one file in order, from start on."""
    size = reader.size
    assert size is not None
    try:
        file = pq.ParquetFile(
            File(reader, max(rules.max_held, _MOST_FOOTER)), pre_buffer=False, buffer_size=_BUFFER_BYTES
        )
    except _FAILURES as e:
        raise InputError(
            f"{show(reader.path)}: its Parquet footer cannot be read ({_brief(e)}); the file is damaged or was cut short: fetch it again"
        ) from e
    top, names = choose_column(file.schema_arrow, rules.field, reader.path)
    column = ".".join((top, *names))
    of = Rows(file=start.file, path=reader.path, base=base, size=size, rows=file.metadata.num_rows)
    first = 0
    for group in range(file.metadata.num_row_groups):
        end = first + file.metadata.row_group(group).num_rows
        if end > start.record:
            yield from _group(file, group, (top, column), names, of, first, start, rules)
        first = end
        if start.record < end:
            start = Position(file=start.file, record=end)


def _group(
    file: Any,
    group: int,
    column: tuple[str, str],
    names: tuple[str, ...],
    of: Rows,
    first: int,
    start: Position,
    rules: TextRules,
) -> Iterator[RowsPart | ValuePart | Counted]:
    """The rows of one row group. Where a page cannot be read, the rows before it are still had, one by one."""
    meta = file.metadata.row_group(group)
    end = first + meta.num_rows
    at, begin = max(first, start.record), start.begin if start.record >= first else 0
    for rows in (_rows_at_once(meta, column[1], rules.block_bytes), 1):
        try:
            seen = first
            for batch in file.iter_batches(rows, row_groups=[group], columns=[column[1]], use_threads=False):
                skipped = min(max(0, at - seen), len(batch))
                seen += len(batch)
                if skipped < len(batch):
                    array = inside(batch.column(0), names).slice(skipped)
                    for part in parts_of(array, of, at, begin, rules):
                        yield part
                        begin = 0
                    at = seen
            if at == end:
                return
            failure: Exception = ValueError(f"it holds {at - first:,} rows and should hold {meta.num_rows:,}")
        except _FAILURES as e:
            failure = e
    yield Counted(
        file=of.file,
        after=Position(file=of.file, offset=of.spent(end), record=end),
        place=Place(path=of.path, row=at),
        complaint=f"{end - at:,} rows, up to the end of row group {group:,}, cannot be read: {_brief(failure)}",
        rejected=end - at,
    )


def _rows_at_once(meta: Any, column: str, block_bytes: int) -> int:
    """As many rows as make about a block, by the mean size of a value in this row group."""
    for i in range(meta.num_columns):
        if meta.column(i).path_in_schema == column:
            mean = max(1, int(meta.column(i).total_uncompressed_size) // max(1, int(meta.num_rows)))
            return max(1, min(_MOST_ROWS, block_bytes // mean))
    return 1


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
