"""A CSV or TSV file with a header → Parts of whole rows, and the text in one column of each.

Rows are parsed by the reader, since where a quoted value ends is certain only from the beginning of the file on: by
Python's csv, and by _LongRow where they are longer than that allows, or than a Part.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.documents import utf8
from shardmill.documents.long_values import Cursor, ValuePart, ValueReader, long_parts, plain
from shardmill.documents.passages import character_boundary
from shardmill.documents.pieces import Position
from shardmill.documents.records import Broken, Counted, Location, Records, checked, damage_of, lost
from shardmill.documents.rules import BOM, MAX_RECORDS, TextRules, block_bytes, weight
from shardmill.io.reading import Reader

_WINDOW = 256 << 10
_COLUMNS_SHOWN = 20
_LONGEST_HEADER = 1 << 20
_QUOTE = ord('"')
_INSIDE = re.compile(b'(?:[^"]+|"")*')
_UNCLOSED = "a quote is not closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a file."""

    at: int
    following: int
    line: int
    """How many lines precede it."""
    lines: int
    value: bytes | ValueReader | Broken
    """The text; for a long row a Reader of it; or why there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePart:
    """Some rows of one file."""

    file: int
    path: str
    rows: tuple[Row, ...]
    job_offset: int

    @property
    def size(self) -> int:
        return weight(self.rows[-1].following - self.rows[0].at, len(self.rows))

    @property
    def after(self) -> Position:
        return _after(self.file, self.rows[-1])

    def checked(self, rules: TextRules) -> Records:
        found = Records(
            rules=rules, location=lambda index, _: _location(self.path, self.rows[index]), job_offset=self.job_offset
        )
        for index, row in enumerate(self.rows):
            offset = row.at - self.rows[0].at
            if isinstance(row.value, Broken):
                found.refuse(row.value, index, offset)
            elif isinstance(row.value, bytes):
                found.add_text(row.value, index, offset)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """How a file is to be read."""

    reader: Reader
    delimiter: str
    newline: bytes
    column: int
    replace: bool


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules, delimiter: str
) -> Iterator[TablePart | ValuePart | Counted]:
    """All rows of one file in order, from start on; the header is read first in any case."""
    head = reader.read(0, 64 << 10)
    utf8.refuse_other_encodings(reader.path, head)
    newline = b"\r" if b"\r" in head and b"\n" not in head else b"\n"
    bom = len(BOM) if head.startswith(BOM) else 0
    lines = _Lines(reader, bom, 0, newline, _LONGEST_HEADER)
    column, location = _header(lines, delimiter, rules.field), Location(path=reader.path, line=1)
    here = start if start.offset else Position(file=start.file, offset=lines.at, record=lines.number)
    if bom and not start.offset:
        yield Counted(file=start.file, after=here, location=location, boms=1)
    if isinstance(column, Broken):
        yield Counted(file=start.file, after=Position(file=start.file + 1), location=location, complaint=str(column))
        return
    if start.offset:
        reader.done_until(start.offset)
    # The csv module has a limit of its own for the length of a field, which is that of the whole process.
    longest = min(rules.max_run_bytes, csv.field_size_limit())
    lines = _Lines(reader, here.offset, here.record, newline, longest)
    table = _Table(
        reader=reader, delimiter=delimiter, newline=newline, column=column, replace=rules.on_error == "replace"
    )
    yield from _parts(_rows(table, lines), here, reader, base, rules)
    if (damage := damage_of(reader)) is not None:
        yield lost(start.file, Location(path=reader.path, line=lines.number + 1), "line", damage)


def _parts(
    source: Iterator[Row], here: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[TablePart | ValuePart | Counted]:
    """Rows in Parts; here.begin bytes of the text of the first are done already."""
    rows: list[Row] = []
    begin = here.begin
    for row in source:
        is_long = isinstance(row.value, ValueReader)
        full = rows and row.following - rows[0].at > block_bytes(here.file, row.at, rules)
        if rows and (is_long or full or len(rows) == MAX_RECORDS):
            yield TablePart(file=here.file, path=reader.path, rows=tuple(rows), job_offset=base + rows[0].at)
            reader.done_until(row.at)
            rows = []
        if isinstance(row.value, ValueReader):
            first = Position(file=here.file, offset=row.at, record=row.line, begin=begin)
            location = _location(reader.path, row)
            yield from long_parts(row.value, first, _after(here.file, row), location, base + row.at, rules)
            begin = 0
            reader.done_until(row.following)
        else:
            rows.append(row)
    if rows:
        yield TablePart(file=here.file, path=reader.path, rows=tuple(rows), job_offset=base + rows[0].at)


def _header(lines: "_Lines", delimiter: str, field: str) -> int | Broken:
    """Which column has the text; 0 for an empty file."""
    try:
        names = next(csv.reader(lines, delimiter=delimiter, strict=True), None)
    except csv.Error as e:
        return Broken(f"cannot read the header: {e}")
    except _TooLong:
        return Broken(f"the header is longer than {_LONGEST_HEADER:,} bytes")
    if names is None:
        return 0
    if not names:
        return Broken("the header is a blank line")
    found = [i for i, name in enumerate(names) if name == field]
    if len(found) > 1:
        return Broken(f"there are {len(found)} columns named {field!r}; rename all but one")
    if not found:
        shown = ", ".join(names[:_COLUMNS_SHOWN]) + (" …" if len(names) > _COLUMNS_SHOWN else "")
        return Broken(f"there is no column {field!r}; the file has: {shown}. Choose one with --column")
    return found[0]


def _location(path: str, row: Row) -> Location:
    return Location(path=path, line=row.line + 1, byte=row.at)


def _after(file: int, row: Row) -> Position:
    return Position(file=file, offset=row.following, record=row.line + row.lines)


class _TooLong(Exception):
    """A row that is longer than is parsed at once."""


class _Lines:
    """The lines of a file, each with its newline, and where the next one begins."""

    def __init__(self, reader: Reader, at: int, number: int, newline: bytes, longest: int) -> None:
        self._reader, self._newline, self._longest = reader, newline, longest
        self.go_to(at, number)

    def go_to(self, at: int, number: int) -> None:
        self.at, self.number = at, number
        self.row_at = at
        """Where the current row begins."""
        self._buffer, self._position = b"", 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        searched = self._position
        while (end := self._buffer.find(self._newline, searched)) < 0:
            known = len(self._buffer) - self._position
            if self.at + known - self.row_at > self._longest:
                raise _TooLong
            more = self._reader.read(self.at + known, _WINDOW)
            self._buffer, self._position = self._buffer[self._position :] + more, 0
            searched = known
            if not more:
                break
        line = self._buffer[self._position :] if end < 0 else self._buffer[self._position : end + len(self._newline)]
        if not line or (end < 0 and damage_of(self._reader) is not None):
            raise StopIteration
        if self.at + len(line) - self.row_at > self._longest:
            raise _TooLong
        self._position += len(line)
        self.at += len(line)
        self.number += 1
        return line.decode("utf-8", "surrogateescape")


def _rows(table: _Table, lines: _Lines) -> Iterator[Row]:
    source = csv.reader(lines, delimiter=table.delimiter, strict=True)
    while True:
        at, line = lines.at, lines.number
        lines.row_at = at
        value: bytes | ValueReader | Broken
        try:
            row = next(source)
            if not row:
                continue  # a blank line is not a record, but has a number
            value = _too_few(len(row), table) if len(row) <= table.column else _encoded(row[table.column])
        except StopIteration:
            return
        except (_TooLong, csv.Error):
            following, count, value = _LongRow(table, at).find()
            if damage_of(table.reader) is not None and _UNCLOSED in str(value):
                return
            lines.go_to(following, line + count)
            source = csv.reader(lines, delimiter=table.delimiter, strict=True)
        yield Row(at=at, following=lines.at, line=line, lines=lines.number - line, value=value)


def _encoded(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _too_few(columns: int, table: _Table) -> Broken:
    return Broken(f"has {columns:,} columns, but the text should be in column {table.column + 1:,}")


class _LongRow:
    """A row of any length, parsed a window at a time, to the same result as Python's csv in strict mode."""

    def __init__(self, table: _Table, at: int) -> None:
        self._table, self._first = table, at
        self._cursor = Cursor(table.reader, at)
        self._outside = re.compile(b"[^\r\n" + re.escape(table.delimiter.encode()) + b"]*")

    def find(self) -> tuple[int, int, ValueReader | Broken]:
        """Where the next row begins, how many lines this one has, and its text, or why there is none."""
        newline, value = self._table.newline, None
        try:
            value = self._row()
        except Broken as e:
            value = Broken(f"is not {'TSV' if self._table.delimiter == chr(9) else 'CSV'}: {e}")
            if str(e) == _UNCLOSED:  # the rows after its first line may be good
                self._cursor = Cursor(self._table.reader, self._first)
            self._cursor.skip(re.compile(b"[^" + newline + b"]*"))
            if self._cursor.peek() is not None:
                self._cursor.step()
        end, read = self._cursor.position, self._table.reader.read
        windows = ((at, min(_WINDOW, end - at)) for at in range(self._first, end, _WINDOW))
        lines = sum(read(at, length).count(newline) for at, length in windows)
        return end, lines + (read(end - 1, 1) != newline), value

    def _row(self) -> ValueReader | Broken:
        reader, replace = self._table.reader, self._table.replace
        number, value = 0, None
        while True:
            is_quoted = self._cursor.peek() == _QUOTE
            span = self._quoted() if is_quoted else self._unquoted()
            if number == self._table.column and is_quoted:
                value = ValueReader(reader, span, _boundary, _without_quotes, replace=replace)
            elif number == self._table.column:
                value = plain(reader, span, replace=replace)
            if self._cursor.peek() != ord(self._table.delimiter):
                break
            self._cursor.step()
            number += 1
        self._end_of_row()
        return _too_few(number + 1, self._table) if value is None else value

    def _unquoted(self) -> tuple[int, int]:
        start = self._cursor.position
        self._cursor.skip(self._outside)
        return start, self._cursor.position

    def _quoted(self) -> tuple[int, int]:
        """Where a value is, between its quotes."""
        self._cursor.step()
        start = self._cursor.position
        while True:
            self._cursor.skip(_INSIDE)
            if self._cursor.peek() is None:
                raise Broken(_UNCLOSED)
            self._cursor.step()  # the closing quote, or the first of two in different windows
            if self._cursor.peek() != _QUOTE:
                return start, self._cursor.position - 1
            self._cursor.step()

    def _end_of_row(self) -> None:
        wrong = f"{self._table.delimiter!r} expected after '\"'"
        while (byte := self._cursor.peek()) is not None:
            if byte not in b"\r\n":
                raise Broken(wrong)
            self._cursor.step()
            wrong = "there is a line break in a value without quotes"
            if byte == self._table.newline[0]:
                return
        if damage_of(self._table.reader) is not None:
            raise Broken(_UNCLOSED)


def _boundary(raw: bytes) -> int:
    """Where raw can be cut: not between two quotes that stand for one, nor inside a character."""
    quotes = len(raw) - len(raw.rstrip(b'"'))
    return len(raw) - 1 if quotes % 2 else character_boundary(raw, len(raw))


def _without_quotes(raw: bytes, done: int, replace: bool) -> tuple[bytes, int]:
    return checked(raw.replace(b'""', b'"'), done, replace)
