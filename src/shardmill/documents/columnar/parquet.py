"""A Parquet file → Parts of rows of its text column, a slice of a row group at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.columnar.columns import (
    LEAST_HELD,
    File,
    Rows,
    RowsPart,
    TooLarge,
    choose_column,
    inside,
    parts_of,
)
from shardmill.documents.columnar.long_pages import Chunk, values_of
from shardmill.documents.columnar.memory_needs import MOST_ROWS, Needs, needs
from shardmill.documents.long_values import ValuePart, ValueReader, long_parts
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import TextRules
from shardmill.errors import ContentError, InputError
from shardmill.io.reading import Reader
from shardmill.system.names import show

# Pages are read through a buffer of this size; without it a whole column of a row group is read at once.
_BUFFER_BYTES = 256 << 10
# A larger page is read a little at a time, by slower code, where its encoding allows it.
MOST_HELD = 32 << 20
# The library takes 12 times the size of a footer (measured: 15.6 MB, 190 MiB), for as long as the file is open;
# what is held is reserved three times over.
_FOOTER_FACTOR = 5
_LEAST_FOOTER = 4 << 20
_MAGIC = b"PAR1"
_ARROW_SCHEMA = b"ARROW:schema"
_FAILURES = (pa.ArrowException, OSError, TooLarge, MemoryError, ValueError, OverflowError, LookupError)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """An open file and its column of text."""

    file: Any
    source: File
    reader: Reader
    names: tuple[str, ...]
    number: int
    of: Rows
    groups: tuple[int, ...]
    """The rows of each row group."""

    @property
    def path(self) -> str:
        return str(self.file.schema.column(self.number).path)


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[RowsPart | ValuePart | Counted]:
    """All rows of one file in order, from start on."""
    column = _open(reader, start.file, base, rules.field, rules.max_held)
    first = 0
    for group, count in enumerate(column.groups):
        if first + count > start.record:
            yield from _group(column, group, first, start, rules)
        first += count


def rows(reader: Reader, field: str) -> int:
    return sum(_open(reader, 0, 0, field).groups)


def largest_page(reader: Reader, field: str) -> int:
    """What of a file must be held at once: its footer, and of the pages of its first row group, if the others are like it."""
    try:
        footer = _footer_bytes(reader) * _FOOTER_FACTOR
        if footer > _FOOTER_FACTOR * _LEAST_FOOTER:
            return footer + LEAST_HELD  # to look at more of it would take that much already
        found = needs(_chunk(_open(reader, 0, 0, field), 0, MOST_HELD))
    except _FAILURES:
        return 0
    return footer + (found.held if found.obstacle else max(min(found.held, MOST_HELD), found.streamed))


def _open(reader: Reader, file: int, base: int, field: str, held: int = LEAST_HELD) -> _Column:
    """Open a file of whose footer and pages so much may be held."""
    source, size = File(reader, held), reader.size
    if size is None:
        raise InputError(
            f"{show(reader.path)}: a Parquet file begins at its end, so it cannot be read from a pipe; save it as a file first"
        )
    try:
        meta = _metadata(reader, max(_LEAST_FOOTER, held // _FOOTER_FACTOR))
        opened = pq.ParquetFile(source, metadata=meta, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        schema = opened.schema_arrow
        groups = tuple(int(meta.row_group(group).num_rows) for group in range(meta.num_row_groups))
        if min(groups, default=0) < 0 or sum(groups) != meta.num_rows:
            raise ValueError(f"{meta.num_rows:,} rows in all, {sum(groups):,} in its row groups")
    except TooLarge as e:
        raise ContentError(f"{show(reader.path)}: {e}") from e
    except _FAILURES as e:
        source.refuse_failure()
        raise ContentError(
            f"{show(reader.path)}: its Parquet footer cannot be read ({_brief(e)}); the file is damaged or was cut short: fetch it again"
        ) from e
    top, names = choose_column(schema, field, reader.path)
    path = ".".join((top, *names))
    number = next(i for i in range(meta.num_columns) if opened.schema.column(i).path == path)
    of = Rows(file=file, path=reader.path, base=base, size=size, rows=meta.num_rows)
    return _Column(file=opened, source=source, reader=reader, names=names, number=number, of=of, groups=groups)


def _footer_bytes(reader: Reader) -> int:
    size = reader.size or 0
    end = reader.read(max(0, size - 8), 8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > size - 12:
        raise ValueError("it is not at the end of the file")
    return length


def _metadata(reader: Reader, most: int) -> Any:
    """The footer, without what it tells of Arrow's types: of a dictionary, the library would make a new one for each batch."""
    length = _footer_bytes(reader)
    if length > most:
        raise TooLarge(
            f"its footer of {length:,} bytes is larger than those of the files that were looked at first, for which memory is reserved; name it first, or write it with fewer row groups"
        )
    footer = reader.read((reader.size or 0) - 8 - length, length).replace(_ARROW_SCHEMA, _ARROW_SCHEMA.lower())
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer + length.to_bytes(4, "little") + _MAGIC))


def _group(
    column: _Column, group: int, first: int, start: Position, rules: TextRules
) -> Iterator[RowsPart | ValuePart | Counted]:
    """The rows of one row group. Where a page cannot be read, the rows before it are still had, one by one."""
    of, end = column.of, first + column.groups[group]
    at, begin = (start.record, start.begin) if start.record >= first else (first, 0)
    failure: Exception | None = None
    seen, careful = first, False
    while True:
        good, seen = seen - first, first
        try:
            for values in _values(column, group, rules, good if careful else None):
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
            if at == end:
                return
            failure = ValueError(f"there are {at - first:,} rows instead of {end - first:,}")
            break
        except _FAILURES as e:
            column.source.refuse_failure()
            failure = e
        if careful or isinstance(failure, TooLarge):
            break
        careful = True
    yield Counted(
        file=of.file,
        after=of.position(end),
        location=Location(path=of.path, row=at),
        complaint=f"{end - at:,} rows, to the end of row group {group:,}, cannot be read: {_brief(failure)}",
        rejected=end - at,
    )


def _long(value: ValueReader, of: Rows, row: int, begin: int, rules: TextRules) -> Iterator[ValuePart | Counted]:
    here, after = of.position(row, begin), of.position(row + 1)
    return long_parts(value, here, after, Location(path=of.path, row=row), of.base + of.spent(row), rules)


def _values(column: _Column, group: int, rules: TextRules, careful: int | None) -> Iterator[Any]:
    """The values of a row group in order, in arrays; where pages are too large for that, long ones by themselves.

    To be careful is to read one row at a time, once so many rows are read that are known to be good.
    Raises TooLarge for a page that can only be decoded as a whole, and is too large to hold.
    """
    chunk = _chunk(column, group, rules.max_held, rules.spool)
    found = needs(chunk)
    if found.values > column.groups[group]:
        raise ValueError(f"its pages have {found.values:,} values, and there are {column.groups[group]:,} rows")
    rows = _rows_at_once(found, rules)
    if not rows:
        yield from values_of(chunk, rules)
        return
    seen, good = 0, found.values if careful is None else careful
    batches = column.file.iter_batches(
        max(1, min(rows, good)), row_groups=[group], columns=[column.path], use_threads=False
    )
    while seen < found.values and (batch := next(batches, None)) is not None:
        yield inside(batch.column(0), column.names)
        seen += len(batch)
        if seen + rows > good:
            column.file.reader.set_batch_size(max(1, good - seen))
    if found.damage is not None:
        raise ValueError(found.damage)


def _rows_at_once(found: Needs, rules: TextRules) -> int:
    """As many rows as make about a block, by the page with the longest values; 0: a page is too large for the library."""
    if found.held <= rules.max_held:
        longest = rules.max_held // max(1, found.repeated)
        return max(1, min(MOST_ROWS, rules.block_bytes // max(1, found.mean), longest))
    if found.obstacle is None and found.streamed <= rules.max_held:
        return 0
    least = found.held if found.obstacle else found.streamed
    reason = found.obstacle or "the places of the values of its dictionary would be: write it without a dictionary"
    raise TooLarge(
        f"{least:,} bytes of a page would have to be held at once, and there is room for {rules.max_held:,}; {reason}, or with smaller pages"
    )


def _chunk(column: _Column, group: int, held: int, spool: str | None = None) -> Chunk:
    found, kind = column.file.metadata.row_group(group).column(column.number), column.file.schema.column(column.number)
    starts = [found.data_page_offset, found.dictionary_page_offset if found.has_dictionary_page else None]
    return Chunk(
        reader=column.reader,
        start=min(place for place in starts if place),
        length=found.total_compressed_size,
        values=found.num_values,
        codec=found.compression,
        max_level=kind.max_definition_level,
        is_bytes=kind.physical_type == "BYTE_ARRAY",
        held=held,
        spool=spool,
    )


def _brief(error: Exception | None) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
