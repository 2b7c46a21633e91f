"""A CSV or TSV file with a header → Parts of whole rows, and the text in one column of each.

Rows are taken apart while the file is read: only from its beginning on is it certain where a quoted value ends.
"""

import csv
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.documents import utf8
from shardmill.documents.long_values import Broken, ValueReader, checked, plain
from shardmill.documents.passages import character_boundary
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Location, Records, ValuePart, long_parts
from shardmill.documents.rules import BOM, MAX_RECORDS, TextRules, block_bytes, weight
from shardmill.io.reading import Reader

_WINDOW = 256 << 10
_COLUMNS_TOLD = 20
_LONGEST_HEADER = 1 << 20
_LONGEST_FIELD = (1 << 31) - 1
_QUOTE = ord('"')
_INSIDE = re.compile(b'(?:[^"]+|"")*')
_UNCLOSED = "a quote is not closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the file: its text, or where that lies, or why there is none."""

    at: int
    following: int
    line: int
    """How many lines there are before it."""
    lines: int
    value: bytes = b""
    complaint: str | None = None
    span: tuple[int, int] | None = None
    """Of a row that is longer than a run: where its text lies."""
    quoted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePart:
    """Some rows of one file."""

    file: int
    path: str
    rows: tuple[Row, ...]
    where: int

    @property
    def size(self) -> int:
        return weight(self.rows[-1].following - self.rows[0].at, len(self.rows))

    @property
    def after(self) -> Position:
        last = self.rows[-1]
        return Position(file=self.file, offset=last.following, record=last.line + last.lines)

    def checked(self, rules: TextRules) -> Records:
        found = Records(
            place=lambda number, _: Location(
                path=self.path, line=self.rows[number].line + 1, byte=self.rows[number].at
            ),
            where=self.where,
        )
        for number, row in enumerate(self.rows):
            offset = row.at - self.rows[0].at
            if row.complaint is not None:
                found.refuse(rules, number, offset, row.complaint)
            else:
                found.add_text(rules, row.value, number, offset)
        return found


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules, delimiter: str
) -> Iterator[TablePart | ValuePart | Counted]:
    """All rows of one file in order, from start on; the header is read first in any case."""
    csv.field_size_limit(_LONGEST_FIELD)  # our own limit is on the row
    head = reader.read(0, 64 << 10)
    utf8.refuse_other_encodings(reader.path, head)
    mark = head.startswith(BOM)
    newline = b"\r" if b"\r" in head and b"\n" not in head else b"\n"
    lines = _Lines(reader, len(BOM) if mark else 0, 0, newline, _LONGEST_HEADER)
    damaged = "the header is a blank line"
    try:
        names = next(csv.reader(lines, delimiter=delimiter, strict=True), None)
    except csv.Error as e:
        names, damaged = [], f"the header cannot be read: {e}"
    except _TooLong:
        names, damaged = [], f"the header is longer than {_LONGEST_HEADER:,} bytes"
    place = Location(path=reader.path, line=1)
    if mark and not start.offset:
        after = Position(file=start.file, offset=lines.at, record=lines.number)
        yield Counted(file=start.file, after=after, place=place, marks=1)
    if names is None:
        return
    column, complaint = _column(names, rules.field) if names else (0, damaged)
    if complaint is not None:
        yield Counted(file=start.file, after=Position(file=start.file + 1), place=place, complaint=complaint)
        return
    at, number = (start.offset, start.record) if start.offset else (lines.at, lines.number)
    if start.offset:
        reader.done_until(start.offset)
    lines = _Lines(reader, at, number, newline, rules.max_run_bytes)
    rows: list[Row] = []
    size = 0
    for row in _rows(lines, delimiter, column):
        long = row.span is not None
        full = size + row.following - row.at > block_bytes(start.file, row.at, rules)
        if rows and (long or full or len(rows) == MAX_RECORDS):
            yield TablePart(file=start.file, path=reader.path, rows=tuple(rows), where=base + rows[0].at)
            reader.done_until(row.at)
            rows, size = [], 0
        if long:
            yield from _long(row, start, reader, base, rules)
            start = dataclasses.replace(start, begin=0)
            reader.done_until(row.following)
        else:
            rows.append(row)
            size += row.following - row.at
    if rows:
        yield TablePart(file=start.file, path=reader.path, rows=tuple(rows), where=base + rows[0].at)
    damage = getattr(reader, "damage", None)
    if damage is not None:
        place = Location(path=reader.path, line=lines.number + 1)
        complaint = f"the rest of the file, from this line on, is lost: {damage}"
        yield Counted(file=start.file, after=Position(file=start.file + 1), place=place, complaint=complaint)


def _long(row: Row, start: Position, reader: Reader, base: int, rules: TextRules) -> Iterator[ValuePart | Counted]:
    """A value that is looked through first, then handed on in stretches."""
    assert row.span is not None
    here = Position(file=start.file, offset=row.at, record=row.line, begin=start.begin)
    after = Position(file=start.file, offset=row.following, record=row.line + row.lines)
    place = Location(path=reader.path, line=row.line + 1, byte=row.at)
    replace = rules.on_error == "replace"
    value = (
        ValueReader(reader, row.span, _whole_quotes, _unquoted, replace=replace)
        if row.quoted
        else plain(reader, row.span, replace=replace)
    )
    return long_parts(value, here, after, place, base + row.at, rules)


def _whole_quotes(raw: bytes) -> int:
    """Where raw can be cut: not between two quotes that stand for one, nor inside a character."""
    quotes = len(raw) - len(raw.rstrip(b'"'))
    return len(raw) - 1 if quotes % 2 else character_boundary(raw, len(raw))


def _unquoted(raw: bytes, done: int, replace: bool) -> tuple[bytes, int]:
    return checked(raw.replace(b'""', b'"'), done, replace)


class _TooLong(Exception):
    """A row that is longer than a run."""


class _Lines:
    """The lines of a file, each with its end, and where the next one begins."""

    def __init__(self, reader: Reader, at: int, number: int, newline: bytes, longest: int) -> None:
        self.reader, self.newline, self._longest = reader, newline, longest
        self.at, self.number = at, number
        self._buffer, self._position = b"", 0
        self.row_at = self.first_end = at
        """Where the row that is being read begins, and where its first line ends."""

    @property
    def damaged(self) -> bool:
        return getattr(self.reader, "damage", None) is not None

    def begin_row(self) -> None:
        self.row_at = self.first_end = self.at

    def go_back(self, at: int, number: int) -> None:
        self.at, self.number = at, number
        self._buffer, self._position = b"", 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        searched = self._position
        while (end := self._buffer.find(self.newline, searched)) < 0:
            known = len(self._buffer) - self._position
            if self.at + known - self.row_at > self._longest:
                raise _TooLong
            more = self.reader.read(self.at + known, _WINDOW)
            self._buffer, self._position = self._buffer[self._position :] + more, 0
            searched = known
            if not more:
                break
        line = self._buffer[self._position :] if end < 0 else self._buffer[self._position : end + len(self.newline)]
        if not line or (end < 0 and self.damaged):
            raise StopIteration
        if self.at + len(line) - self.row_at > self._longest:
            raise _TooLong
        self._position += len(line)
        if self.at == self.row_at:
            self.first_end = self.at + len(line)
        self.at += len(line)
        self.number += 1
        return line.decode("utf-8", "surrogateescape")


def _rows(lines: _Lines, delimiter: str, column: int) -> Iterator[Row]:
    source = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        at, line = lines.at, lines.number
        lines.begin_row()
        row, complaint, value = [""], None, b""
        try:
            row = next(source)
        except StopIteration:
            return
        except _TooLong:
            long = _LongRow(lines.reader, at, lines.newline, delimiter).find(line, column)
            if lines.damaged and _UNCLOSED in (long.complaint or ""):
                return
            lines.go_back(long.following, line + long.lines)
            source = csv.reader(lines, delimiter=delimiter, strict=True)
            yield long
            continue
        except csv.Error as e:
            unclosed = "unexpected end" in str(e)
            if unclosed and lines.damaged:
                return
            complaint = _is_not(delimiter, _UNCLOSED if unclosed else str(e))
            if unclosed:  # the rows after its first line may be good
                lines.go_back(lines.first_end, line + 1)
            source = csv.reader(lines, delimiter=delimiter, strict=True)
        if not row:
            continue  # a blank line is no record, but has its number
        if complaint is None and len(row) <= column:
            complaint = f"has {len(row):,} columns, and the text should be in number {column + 1:,}"
        elif complaint is None:
            value = row[column].encode("utf-8", "surrogateescape")
        yield Row(at=at, following=lines.at, line=line, lines=lines.number - line, value=value, complaint=complaint)


def _is_not(delimiter: str, why: str) -> str:
    return f"is not {'TSV' if delimiter == chr(9) else 'CSV'}: {why}"


class _LongRow:
    """A walk through a row of any length, mark by mark, as Python's csv takes it apart."""

    def __init__(self, reader: Reader, at: int, newline: bytes, delimiter: str) -> None:
        self._reader, self._newline, self._delimiter = reader, newline, delimiter
        self._first = self._base = at
        self._buffer, self._at = b"", 0
        self._lines = 0
        self._outside = re.compile(b"[^\r\n" + re.escape(delimiter.encode()) + b"]*")

    def find(self, line: int, column: int) -> Row:
        """The row, with the place of the value in its column."""
        complaint, span, quoted, number = None, None, False, 0
        try:
            while True:
                start, end, has_quotes = self._value()
                if number == column:
                    span, quoted = (start, end), has_quotes
                if self._peek() != ord(self._delimiter):
                    break
                self._at += 1
                number += 1
            self._end_of_row()
            if span is None:
                complaint = f"has {number + 1:,} columns, and the text should be in number {column + 1:,}"
        except Broken as e:
            complaint = _is_not(self._delimiter, str(e))
            if str(e) == _UNCLOSED:  # the rows after its first line may be good
                self._base, self._buffer, self._at, self._lines = self._first, b"", 0, 0
            self._pass_line()
        return Row(
            at=self._first,
            following=self._base + self._at,
            line=line,
            lines=max(1, self._lines),
            complaint=complaint,
            span=None if complaint is not None else span,
            quoted=quoted,
        )

    def _value(self) -> tuple[int, int, bool]:
        """Pass over a value; where it lies, between its quotes if it has them."""
        if self._peek() != _QUOTE:
            start = self._base + self._at
            self._skip(self._outside)
            return start, self._base + self._at, False
        self._at += 1
        start = self._base + self._at
        while True:
            self._skip(_INSIDE)
            if self._peek() is None:
                raise Broken(_UNCLOSED)
            self._at += 1  # the last quote, or the first of two that lie in two windows
            if self._peek() != _QUOTE:
                return start, self._base + self._at - 1, True
            self._at += 1

    def _end_of_row(self) -> None:
        wrong = f"{self._delimiter!r} expected after '\"'"
        while (byte := self._peek()) is not None:
            if byte not in b"\r\n":
                raise Broken(wrong)
            self._at += 1
            wrong = "a line end stands in a value without quotes"
            if byte == self._newline[0]:
                break
        self._lines += 1

    def _pass_line(self) -> None:
        self._skip(re.compile(b"[^" + self._newline + b"]*"))
        if self._peek() is not None:
            self._at += 1
        self._lines += 1

    def _skip(self, pattern: re.Pattern[bytes]) -> None:
        """Pass over what matches; each line that ends in it is counted."""
        while self._peek() is not None:
            found = pattern.match(self._buffer, self._at)
            assert found is not None
            self._lines += self._buffer.count(self._newline, self._at, found.end())
            self._at = found.end()
            if self._at < len(self._buffer):
                return

    def _peek(self) -> int | None:
        if self._at == len(self._buffer):
            self._base += self._at
            self._buffer, self._at = self._reader.read(self._base, _WINDOW), 0
        return self._buffer[self._at] if self._buffer else None


def _column(names: list[str], field: str) -> tuple[int, str | None]:
    found = [i for i, name in enumerate(names) if name == field]
    if len(found) == 1:
        return found[0], None
    if found:
        return 0, f"there are {len(found)} columns named {field!r}; name them apart"
    there = ", ".join(names[:_COLUMNS_TOLD]) + (" …" if len(names) > _COLUMNS_TOLD else "")
    return 0, f"there is no column {field!r}; there are: {there}. Name the right one with --column"
