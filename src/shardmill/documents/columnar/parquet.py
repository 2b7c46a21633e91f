"""A Parquet file → Parts of rows of its text column, row group by row group."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shardmill.documents import ranges
from shardmill.documents.columnar import native
from shardmill.documents.columnar.arrow import ReaderFile
from shardmill.documents.columnar.chunks import ForRange, alike, evenly, spans
from shardmill.documents.columnar.columns import Rows, RowsPart, choose_column, parts_of
from shardmill.documents.columnar.filtered import Column, Kept, columns_of, inside, lenient, scalars, texts
from shardmill.documents.columnar.native import DICTIONARY
from shardmill.documents.columnar.pages import BY_DICTIONARY, MOST_HELD, Chunk
from shardmill.documents.columnar.values import Found, values_of
from shardmill.documents.long_values import ValuePart
from shardmill.documents.pieces import Position
from shardmill.documents.ranges import RangePart
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import LEAST_HELD, MAX_RECORDS, TextRules, is_first
from shardmill.documents.where import Value, Where
from shardmill.errors import ContentError, InputError
from shardmill.io.reading import InputReader, Reader, local_reader
from shardmill.system.names import show
from shardmill.tokens.strings import Flags

# pyarrow takes 12 times the size of a footer (measured: 15.6 MB, 190 MiB) while the file is open; what is held is
# reserved three times over.
_FOOTER_FACTOR = 5
_LEAST_FOOTER = 4 << 20
_BUFFER = 256 << 10
# A row group of so many bytes is one range, however small those are otherwise: 1,000 web pages, as many files have them,
# are mostly words of one dictionary.
_RANGE_BYTES = 8 << 20
_MAGIC = b"PAR1"
_ARROW_SCHEMA = b"ARROW:schema"
_FAILURES = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError, EOFError)


class _File:
    """What the footer of a file says. Raises ValueError if it contradicts itself."""

    def __init__(self, footer: bytes) -> None:
        end = footer + len(footer).to_bytes(4, "little") + _MAGIC
        self.meta: Any = pq.read_metadata(pa.BufferReader(_MAGIC + end))
        self.schema: Any = pq.ParquetSchema(self.meta).to_arrow_schema()  # meta.schema would refer to meta, and keep it
        rows = [self.meta.row_group(group).num_rows for group in range(self.meta.num_row_groups)]
        if min(rows, default=0) < 0 or sum(rows) != self.meta.num_rows:
            raise ValueError(f"{self.meta.num_rows:,} rows in all, {sum(rows):,} in its row groups")
        self.ends = np.cumsum(np.array(rows, np.int64))
        """The row at which each row group ends."""
        self._columns: dict[str, int] = {}
        self._levels: dict[int, int] = {}

    def column(self, field: str, path: str) -> int:
        """Where the text is."""
        if field not in self._columns:
            top, names = choose_column(self.schema, field, path)
            self._columns[field] = self.leaf(".".join((top, *names)))
        return self._columns[field]

    def leaf(self, path: str) -> int:
        columns = pq.ParquetSchema(self.meta)
        return next(i for i in range(self.meta.num_columns) if columns.column(i).path == path)

    def rows(self, group: int) -> range:
        return range(int(self.ends[group - 1]) if group else 0, int(self.ends[group]))

    def chunk(self, reader: Reader, column: int, group: int, further: int = 0) -> Chunk:
        """Where a column of a row group is, or of one so many further on."""
        found = self.meta.row_group(group + further).column(column)
        if column not in self._levels:
            self._levels[column] = pq.ParquetSchema(self.meta).column(column).max_definition_level
        starts = [found.data_page_offset, found.dictionary_page_offset if found.has_dictionary_page else 0]
        return Chunk(
            reader=reader,
            start=min(start for start in starts if start > 0),
            length=found.total_compressed_size,
            size=found.total_uncompressed_size,
            values=found.num_values,
            codec=found.compression,
            max_level=self._levels[column],
        )


# A file is opened by all who read one of its stretches. Its footer is parsed once, while any of them is at it.
_of_readers: WeakKeyDictionary[Reader, _File] = WeakKeyDictionary()
_of_footers: WeakValueDictionary[tuple[str, bytes], _File] = WeakValueDictionary()


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules, until: int | None = None
) -> Iterator[RowsPart | ValuePart | Counted | RangePart]:
    """All rows of one file in order, from start on, to its end or to the row group that begins at row `until`."""
    file = _open(reader, rules.max_held)
    column = file.column(rules.field, reader.path)
    filtered_by = columns_of(file.schema, rules.where, reader.path)
    of = Rows(file=start.file, path=reader.path, base=base, size=reader.size or 0, rows=file.meta.num_rows)
    found, parts = Found(start, rules), partial(parts_of, of=of, start=start, rules=rules)
    group = int(np.searchsorted(file.ends, start.record, side="right"))
    last = len(file.ends) if until is None else int(np.searchsorted(file.ends, until, side="left")) + 1
    local = None if filtered_by or group == last else _for_c(file, reader, column, group, rules)

    def as_ever(group: int) -> Iterator[RowsPart | ValuePart | Counted]:
        kept = partial(_kept, file, reader, group, filtered_by, rules) if filtered_by else None
        return _group(found, partial(file.chunk, reader, column, group), file.rows(group), kept, group, of, parts)

    while group < last:
        if local is not None:
            row = max(file.rows(group).start, start.record)
            whole = row + (row == start.record and start.begin > 0)  # the first one that is not begun yet
            chunk_of = partial(file.chunk, reader, column, group)
            for span, chunks in _for_ranges(file, local, chunk_of, range(group, last), whole, start.file, rules):
                if span.start > row:
                    for part in _up_to(span.start, itertools.chain(as_ever(group), parts(found.rest()))):
                        yield part
                        row = part.after.record
                    found = Found(of.position(row), rules)
                    if row > span.start:
                        break  # the rest of the row group cannot be read
                yield from parts(found.rest())
                yield _range(of, local, chunks, span, rules)
                row = span.stop
            group = int(np.searchsorted(file.ends, row, side="right"))
        if group < last:
            yield from as_ever(group)
            group += 1
    yield from parts(found.rest())


def _for_c(file: _File, reader: Reader, column: int, group: int, rules: TextRules) -> InputReader | None:
    """The local file, if C can read its text by itself."""
    if not rules.range_bytes or rules.hashed is None:
        return None
    with contextlib.suppress(*_FAILURES):  # told when it is read
        return local_reader(reader) if native.function(file.chunk(reader, column, group).codec) is not None else None
    return None


def _for_ranges(
    file: _File,
    local: InputReader,
    chunk_of: Callable[[int], Chunk],
    groups: range,
    row: int,
    number: int,
    rules: TextRules,
) -> Iterator[tuple[range, Sequence[Chunk]]]:
    """What C can read by itself from this row on, in ranges of about the same size: the chunks of several of these row
    groups, or some pages of one; and which rows that is. Some rows of the first group may come before."""
    rows = [file.rows(group) for group in groups]
    chunks = alike(chunk_of, rows)
    at, before = rows[0].start, max(row - rows[0].start, int(is_first(number, row)))
    most = max(_RANGE_BYTES, 2 * rules.range_bytes)
    for is_large, alike_in_size in itertools.groupby(chunks, lambda chunk: chunk.size > most):
        some = [*alike_in_size]
        if not is_large and before:
            return
        if not is_large:
            yield from _numbered(at, evenly(some, [chunk.size for chunk in some], rules.range_bytes))
        for chunk in some if is_large else ():
            found = spans(chunk, local.file.descriptor, rules.range_bytes, before)
            if not found:
                return
            first = at + chunk.values - sum(span.values for span in found)
            yield from _numbered(first, ([span] for span in found))
            before, at = 0, at + chunk.values
        at += 0 if is_large else sum(chunk.values for chunk in some)


def _numbered(first: int, lists: Iterable[Sequence[Chunk]]) -> Iterator[tuple[range, Sequence[Chunk]]]:
    """Each with its rows, which begin with this one."""
    for chunks in lists:
        rows = range(first, first + sum(chunk.values for chunk in chunks))
        yield rows, chunks
        first = rows.stop


def _range(of: Rows, local: InputReader, chunks: Sequence[Chunk], rows: range, rules: TextRules) -> RangePart:
    """Chunks of these rows, which C reads, too."""
    own, end = local.again(), rows.stop
    whole = dataclasses.replace(rules, range_bytes=0)

    def given() -> tuple[dict[str, Any], object]:
        made = ForRange(chunks, own.file.descriptor, rules.max_held)
        return {"kind": ranges.CHUNKS, **made.given}, made

    return RangePart(
        file=of.file,
        reader=own,
        at=rows.start,
        end=end,
        base=of.base,
        rules=rules,
        size=sum(chunk.size for chunk in chunks),
        unit="row",
        after=of.position(end),
        span=(chunks[0].start, chunks[-1].end),
        given=given,
        rest=lambda row, *_: _up_to(end, read_parts(of.position(row), own, of.base, whole, end)),
    )


def entry(reader: Reader, file: int, offset: int, rules: TextRules) -> Position | None:
    """The first row group at or after this byte, if each row had as many."""
    found = _open(reader, rules.max_held)
    of = Rows(file=file, path=reader.path, base=0, size=reader.size or 0, rows=found.meta.num_rows)
    first = -(-offset * of.rows // of.size) if of.size else 0
    group = int(np.searchsorted(found.ends, first))
    row = int(found.ends[group]) if group < len(found.ends) else of.rows
    return dataclasses.replace(of.position(row), spent=of.spent(row)) if row < of.rows else None


def rows(reader: Reader, field: str) -> int:
    file = _open(reader, LEAST_HELD)
    file.column(field, reader.path)
    return int(file.meta.num_rows)


def largest_page(reader: Reader, field: str, where: Where | None = None) -> int:
    """Bytes to hold at once: the footer, and the largest page of the first row group, as a sample of the others."""
    footer = _footer_bytes(reader)
    if footer > _LEAST_FOOTER:
        return footer * _FOOTER_FACTOR + LEAST_HELD  # parsing it would take that much already
    file = _open(reader, LEAST_HELD)
    columns = [file.column(field, reader.path)]
    columns += [file.leaf(column.path) for column in columns_of(file.schema, where, reader.path)]
    most = 0
    with contextlib.suppress(*_FAILURES):  # reported when it is read
        for column in columns:
            chunk = file.chunk(reader, column, 0)
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
    file = _open(reader, LEAST_HELD)
    column = file.column(field, reader.path)
    groups = [file.meta.row_group(group) for group in range(len(file.ends))]
    ends = np.cumsum([group.column(column).total_uncompressed_size for group in groups])
    if not len(ends) or ends[-1] <= 0:
        return None
    at = share * float(ends[-1])
    number = min(int(np.searchsorted(ends, at, side="right")), len(ends) - 1)
    size = groups[number].column(column).total_uncompressed_size
    try:
        pages = list(file.chunk(reader, column, number).pages())
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
    first = file.rows(number).start + sum(page.values for page in pages[:found])
    return PageOfText(
        rows=range(first, first + pages[found].values),
        share=sizes[found] / float(bounds[-1]) * size / float(ends[-1]),
        rows_of_file=file.meta.num_rows,
    )


def _up_to(
    end: int, parts: Iterator[RowsPart | ValuePart | Counted | RangePart]
) -> Iterator[RowsPart | ValuePart | Counted | RangePart]:
    """The Parts of the rows before this one. What cannot be read may end further on: with its row group."""
    for part in parts:
        if isinstance(part, RowsPart) and part.row + len(part.values) > end:
            part = dataclasses.replace(part, values=part.values.take(slice(0, end - part.row)))
        yield part
        if part.after.record >= end:
            return


def _open(reader: Reader, held: int) -> _File:
    """held: how much memory is reserved."""
    if (known := _of_readers.get(reader)) is not None:
        return known
    length, most = _footer_bytes(reader), max(_LEAST_FOOTER, held // _FOOTER_FACTOR)
    if length > most:
        raise ContentError(
            f"{show(reader.path)}: its footer has {length:,} bytes, and memory is reserved for {most:,}, as the files sampled at the start need; name this file first, or write it with fewer row groups"
        )
    footer = reader.read((reader.size or 0) - 8 - length, length)
    key = reader.path, xxhash.xxh3_128_digest(footer)
    found = _of_footers.get(key)
    if found is None:
        try:
            # Parquet's own types decide, whatever Arrow types the table had when it was written.
            found = _of_footers[key] = _File(footer.replace(_ARROW_SCHEMA, _ARROW_SCHEMA.lower()))
        except (*_FAILURES, MemoryError) as e:
            raise _bad_footer(reader, e) from e
    _of_readers[reader] = found
    return found


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


def _kept(
    file: _File, reader: Reader, group: int, columns: tuple[Column, ...], rules: TextRules
) -> Callable[[int, int], Flags]:
    """Which rows of a row group are wanted: read at once, since jumping to and fro is slow on a network."""
    found, rows = [], file.rows(group)
    for column in columns:
        chunk = file.chunk(reader, file.leaf(column.path), group)
        if column.is_text:
            found.append(texts(values_of(chunk, 0, rows, rows.start, lenient(rules))))
        else:
            _refuse_large_pages(chunk, rules.max_held)
            found.append(_numbers(reader, file.meta, group, column, rules.max_held))
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
    chunk_of: Callable[[], Chunk],
    rows: range,
    kept: Callable[[], Callable[[int, int], Flags]] | None,
    group: int,
    of: Rows,
    parts: Callable[..., Iterator[RowsPart | ValuePart | Counted]],
) -> Iterator[RowsPart | ValuePart | Counted]:
    """The rows of a row group, the last of which may be left for the next. From a page that cannot be read to the end of
    the group, rows count as rejected."""
    wanted = None
    try:
        wanted = kept() if kept is not None else None
        yield from parts(found.values_of(chunk_of(), rows), kept=wanted)
        if wanted is not None:
            yield from parts(found.rest(), kept=wanted)
        return
    except _FAILURES as e:
        reason = _brief(e)
    at = max(rows.start, found.start.record, found.next_row)
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
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
