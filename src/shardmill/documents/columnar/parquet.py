"""A Parquet file → Parts of rows of its text column, row group by row group."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents.columnar.arrow import ReaderFile
from shardmill.documents.columnar.columns import Rows, RowsPart, choose_column, parts_of
from shardmill.documents.columnar.filtered import Column, Kept, columns_of, inside, lenient, scalars, texts
from shardmill.documents.columnar.pages import BY_DICTIONARY, DICTIONARY, MOST_HELD, Chunk
from shardmill.documents.columnar.values import Found, values_of
from shardmill.documents.long_values import ValuePart
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import LEAST_HELD, MAX_RECORDS, TextRules
from shardmill.documents.where import Value, Where
from shardmill.errors import ContentError, InputError
from shardmill.io.reading import Reader
from shardmill.system.names import show
from shardmill.tokens.strings import Flags

# pyarrow takes 12 times the size of a footer (measured: 15.6 MB, 190 MiB) while the file is open; what is held is
# reserved three times over.
_FOOTER_FACTOR = 5
_LEAST_FOOTER = 4 << 20
_BUFFER = 256 << 10
_MAGIC = b"PAR1"
_ARROW_SCHEMA = b"ARROW:schema"
_FAILURES = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError, EOFError)


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules, until: int | None = None
) -> Iterator[RowsPart | ValuePart | Counted]:
    """All rows of one file in order, from start on, to its end or to the row group that begins at row `until`."""
    meta, schema = _open(reader, rules.max_held)
    column = _text_column(meta, schema, rules.field, reader.path)
    filtered_by = columns_of(schema, rules.where, reader.path)
    of = Rows(file=start.file, path=reader.path, base=base, size=reader.size or 0, rows=meta.num_rows)
    first, found, parts = 0, Found(start, rules), partial(parts_of, of=of, start=start, rules=rules)
    for group in range(meta.num_row_groups):
        rows = range(first, first + meta.row_group(group).num_rows)
        if until is not None and rows.start >= until:
            break
        if rows.stop > start.record:
            chunk = partial(_chunk, reader, meta, group, column)
            kept = partial(_kept, reader, meta, group, rows, filtered_by, rules) if filtered_by else None
            yield from _group(found, chunk, kept, group, rows, of, parts)
        first = rows.stop
    yield from parts(found.rest())


def entry(reader: Reader, file: int, offset: int, rules: TextRules) -> Position | None:
    """The first row group at or after this byte, if each row had as many."""
    meta, _ = _open(reader, rules.max_held)
    of = Rows(file=file, path=reader.path, base=0, size=reader.size or 0, rows=meta.num_rows)
    row = 0
    for group in range(meta.num_row_groups - 1):
        row += meta.row_group(group).num_rows
        if of.spent(row) >= offset and row < meta.num_rows:
            return dataclasses.replace(of.position(row), spent=of.spent(row))
    return None


def rows(reader: Reader, field: str) -> int:
    meta, schema = _open(reader, LEAST_HELD)
    _text_column(meta, schema, field, reader.path)
    return int(meta.num_rows)


def largest_page(reader: Reader, field: str, where: Where | None = None) -> int:
    """Bytes to hold at once: the footer, and the largest page of the first row group, as a sample of the others."""
    footer = _footer_bytes(reader)
    if footer > _LEAST_FOOTER:
        return footer * _FOOTER_FACTOR + LEAST_HELD  # parsing it would take that much already
    meta, schema = _open(reader, LEAST_HELD)
    columns = [_text_column(meta, schema, field, reader.path)]
    columns += [_leaf(meta, column.path) for column in columns_of(schema, where, reader.path)]
    most = 0
    with contextlib.suppress(*_FAILURES):  # reported when it is read
        for column in columns:
            chunk = _chunk(reader, meta, 0, column)
            for page in chunk.pages():
                most = max(most, chunk.needs(page, MOST_HELD)[0])
    return footer * _FOOTER_FACTOR + most


@dataclass(frozen=True, kw_only=True, slots=True)
class PageOfText:
    """The rows in one page of the text column, and the share of the column that it is."""

    rows: range
    share: float
    rows_of_file: int


def page_at(reader: Reader, field: str, share: float) -> PageOfText | None:
    """The page at this share of the text column, by size before compression; None if there is none that can be read."""
    meta, schema = _open(reader, LEAST_HELD)
    column = _text_column(meta, schema, field, reader.path)
    groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
    ends = np.cumsum([group.column(column).total_uncompressed_size for group in groups])
    if not len(ends) or ends[-1] <= 0:
        return None
    at = share * float(ends[-1])
    number = min(int(np.searchsorted(ends, at, side="right")), len(ends) - 1)
    size = groups[number].column(column).total_uncompressed_size
    try:
        pages = list(_chunk(reader, meta, number, column).pages())
    except _FAILURES:  # reported when it is read
        return None
    # The text of pages that refer to a dictionary is in the dictionary.
    words = sum(page.size for page in pages if page.kind == DICTIONARY)
    pages = [page for page in pages if page.kind != DICTIONARY and page.values]
    coded = sum(page.values for page in pages if page.encoding in BY_DICTIONARY)
    sizes = [page.size + (words * page.values / coded if page.encoding in BY_DICTIONARY else 0) for page in pages]
    bounds = np.cumsum(sizes)
    if not len(bounds) or bounds[-1] <= 0:
        return None
    within = (at - float(ends[number]) + size) / max(1, size) * float(bounds[-1])
    found = min(int(np.searchsorted(bounds, within, side="right")), len(pages) - 1)
    first = sum(group.num_rows for group in groups[:number]) + sum(page.values for page in pages[:found])
    return PageOfText(
        rows=range(first, first + pages[found].values),
        share=sizes[found] / float(bounds[-1]) * size / float(ends[-1]),
        rows_of_file=meta.num_rows,
    )


def _open(reader: Reader, held: int) -> tuple[Any, Any]:
    """The metadata of a file, and its schema; held is how much memory is reserved."""
    length, most = _footer_bytes(reader), max(_LEAST_FOOTER, held // _FOOTER_FACTOR)
    if length > most:
        raise ContentError(
            f"{show(reader.path)}: its footer has {length:,} bytes, and memory is reserved for {most:,}, as the files sampled at the start need; name this file first, or write it with fewer row groups"
        )
    footer = reader.read((reader.size or 0) - 8 - length, length)
    # Parquet's own types decide, whatever Arrow types the table had when it was written.
    footer = footer.replace(_ARROW_SCHEMA, _ARROW_SCHEMA.lower())
    try:
        meta = pq.read_metadata(pa.BufferReader(_MAGIC + footer + length.to_bytes(4, "little") + _MAGIC))
        schema = pq.ParquetSchema(meta).to_arrow_schema()  # meta.schema would refer to meta, and keep it
        groups = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != meta.num_rows:
            raise ValueError(f"{meta.num_rows:,} rows in all, {sum(groups):,} in its row groups")
    except (*_FAILURES, MemoryError) as e:
        raise _bad_footer(reader, e) from e
    return meta, schema


def _text_column(meta: Any, schema: Any, field: str, path: str) -> int:
    top, names = choose_column(schema, field, path)
    return _leaf(meta, ".".join((top, *names)))


def _leaf(meta: Any, path: str) -> int:
    columns = pq.ParquetSchema(meta)
    return next(i for i in range(meta.num_columns) if columns.column(i).path == path)


def _footer_bytes(reader: Reader) -> int:
    if reader.size is None:
        raise InputError(
            f"{show(reader.path)}: a Parquet file is read from its end, so it cannot come from a pipe; save it as a file first"
        )
    end = reader.read(max(0, reader.size - 8), 8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > reader.size - 12:
        raise _bad_footer(reader, "it is not at the end of the file")
    return length


def _bad_footer(reader: Reader, why: object) -> ContentError:
    return ContentError(
        f"{show(reader.path)}: its Parquet footer cannot be read ({_brief(why)}); the file is damaged or truncated: fetch it again"
    )


def _chunk(reader: Reader, meta: Any, group: int, column: int) -> Chunk:
    found, kind = meta.row_group(group).column(column), pq.ParquetSchema(meta).column(column)
    starts = [found.data_page_offset, found.dictionary_page_offset if found.has_dictionary_page else 0]
    return Chunk(
        reader=reader,
        start=min(start for start in starts if start > 0),
        length=found.total_compressed_size,
        values=found.num_values,
        codec=found.compression,
        max_level=kind.max_definition_level,
    )


def _kept(
    reader: Reader, meta: Any, group: int, rows: range, columns: tuple[Column, ...], rules: TextRules
) -> Callable[[int, int], Flags]:
    """Which rows of a row group are wanted: read at once, since jumping to and fro is slow on a network."""
    found = []
    for column in columns:
        leaf = _leaf(meta, column.path)
        chunk = _chunk(reader, meta, group, leaf)
        if column.is_text:
            found.append(texts(values_of(chunk, 0, rows, rows.start, lenient(rules))))
        else:
            _refuse_large_pages(chunk, rules.max_held)
            found.append(_numbers(reader, meta, group, column, rules.max_held))
    assert rules.where is not None
    return Kept(rows.start, len(rows), rules.where, found).rows


def _numbers(reader: Reader, meta: Any, group: int, column: Column, held: int) -> Iterator[Value]:
    """The values of a column that is not text, by pyarrow, a page at a time."""
    source = ReaderFile(reader, held)
    try:
        file = pq.ParquetFile(pa.PythonFile(source, mode="r"), metadata=meta, pre_buffer=False, buffer_size=_BUFFER)
        names = [column.path]
        for batch in file.iter_batches(MAX_RECORDS, row_groups=[group], columns=names, use_threads=False):
            yield from scalars(inside(batch.column(0), column.names))
    except _FAILURES as e:
        raise source.failure or e from e


def _refuse_large_pages(chunk: Chunk, held: int) -> None:
    """pyarrow allocates whatever a header claims."""
    for page in chunk.pages():
        size = max(page.size, page.compressed)
        if size > held or (page.kind == DICTIONARY and page.values > size):
            raise ValueError(
                f"a page of {size:,} bytes with {page.values:,} values, in a column that --where asks for, and there is room for {held:,}; write it with smaller pages"
            )


def _group(
    found: Found,
    chunk: Callable[[], Chunk],
    kept: Callable[[], Callable[[int, int], Flags]] | None,
    group: int,
    rows: range,
    of: Rows,
    parts: Callable[..., Iterator[RowsPart | ValuePart | Counted]],
) -> Iterator[RowsPart | ValuePart | Counted]:
    """The rows of one row group; the last of them may be left for the next. From a page that cannot be read to the end of
    the group, they count as rejected."""
    wanted = None
    try:
        wanted = kept() if kept is not None else None
        yield from parts(found.values_of(chunk(), rows), kept=wanted)
        reason = f"there are {found.next_row - rows.start:,} rows instead of {len(rows):,}"
    except _FAILURES as e:
        reason = _brief(e)
    at = max(rows.start, found.start.record, found.next_row)
    if wanted is not None or at < rows.stop:
        yield from parts(found.rest(), kept=wanted)
    if at < rows.stop:
        yield Counted(
            file=of.file,
            after=of.position(rows.stop),
            location=Location(path=of.path, row=at),
            complaint=f"{rows.stop - at:,} rows, to the end of row group {group:,}, cannot be read: {reason}",
            rejected=rows.stop - at,
        )


def _brief(error: object) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
