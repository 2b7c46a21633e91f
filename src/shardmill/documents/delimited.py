"""A CSV or TSV file with a header → Parts of whole rows, and the text in one column of each.

Rows are parsed by the reader, since where a quoted value ends is certain only from the beginning of the file on: by
Python's csv, and those that are bad, or longer than it allows or than a Part, by _LongRow.
"""

import contextlib
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmill.documents import native, utf8
from shardmill.documents.long_values import Cursor, ValuePart, ValueReader, long_parts
from shardmill.documents.passages import character_boundary
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.records import Broken, Counted, Records, checked, damage_of, lost, whole_lines
from shardmill.documents.rejects import Location
from shardmill.documents.rules import BOM, MAX_RECORDS, TextRules, weight
from shardmill.documents.where import VALUE_BYTES, Untyped, field_name
from shardmill.io.reading import Reader
from shardmill.tokens.strings import Strings

_WINDOW = 256 << 10
_COLUMNS_SHOWN = 20
_LONGEST_HEADER = 1 << 20
_QUOTE = ord('"')
_INSIDE = re.compile(b'(?:[^"]+|"")*')
_UNCLOSED = "a quote is not closed"
_LINE_BREAK = "there is a line break in a value without quotes"
# What csv gets in place of a NUL, which that of Python 3.10 refuses. Nothing else is decoded to it.
_NUL = "\ud800"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a file."""

    at: int
    line: int
    """How many lines precede it."""
    value: bytes | Broken | None
    """The text, or why there is none; None: --where does not want it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePart:
    """Some rows of one file."""

    file: int
    path: str
    rows: tuple[Row, ...]
    job_offset: int
    after: Position

    @property
    def size(self) -> int:
        return weight(self.after.offset - self.rows[0].at, len(self.rows))

    def pieces(self, _base: int, rules: TextRules, is_val: IsVal) -> Pieces:
        return self.parsed(rules).pieces(is_val)

    def parsed(self, rules: TextRules) -> Records:
        texts = Strings.of([row.value if isinstance(row.value, bytes) else b"" for row in self.rows])
        broken = np.array([isinstance(row.value, Broken) for row in self.rows])
        replace = rules.on_error == "replace"

        def judge(index: int) -> tuple[bytes, int]:
            value = self.rows[index].value
            if isinstance(value, Broken):
                raise value
            return checked(texts[index], 0, replace)

        return Records(
            rules=rules,
            examined=native.examine(texts, broken, rules.hashed),
            judge=judge,
            filtered=np.array([row.value is None for row in self.rows]),
            offsets=np.array([row.at for row in self.rows], np.int64) - self.rows[0].at,
            location=self._location,
            job_offset=self.job_offset,
        )

    def _location(self, index: int, _offset: int) -> Location:
        return Location(path=self.path, line=self.rows[index].line + 1, byte=self.rows[index].at)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """How a file is to be read."""

    reader: Reader
    delimiter: str
    newline: bytes
    column: int
    filtered_by: tuple[int, ...]
    """The columns that --where asks for."""
    rules: TextRules

    def wants(self, values: dict[int, str]) -> bool:
        """Whether a row with these values in its columns passes the filter."""
        if self.rules.where is None:
            return True
        found = [values.get(column) for column in self.filtered_by]
        return self.rules.where.test([None if value is None else Untyped(_readable(value)) for value in found])


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules, delimiter: str
) -> Iterator[TablePart | ValuePart | Counted]:
    """All rows of one file in order, from start on; the header is read first in any case."""
    head = reader.read(0, 64 << 10)
    utf8.refuse_other_encodings(reader.path, head)
    newline = b"\r" if b"\r" in head and b"\n" not in head else b"\n"
    bom = len(BOM) if head.startswith(BOM) else 0
    source, ends = _parsed(reader.read(bom, _LONGEST_HEADER), newline, delimiter)
    columns, location = _columns(source, ends, rules), Location(path=reader.path, line=1)
    here = start
    if not start.offset:
        here = Position(file=start.file, offset=bom + ends[source.line_num], record=source.line_num)
        if bom:
            yield Counted(file=start.file, after=here, location=location, boms=1)
    if isinstance(columns, Broken):
        yield Counted(file=start.file, after=Position(file=start.file + 1), location=location, complaint=str(columns))
        return
    table = _Table(
        reader=reader, delimiter=delimiter, newline=newline, column=columns[0], filtered_by=columns[1:], rules=rules
    )
    while True:
        reader.done_until(here.offset)
        rows, after = ([], here) if here.begin else _rows(table, here)
        if after == here:
            found = _LongRow(table, here).find()
            if found is None:
                break
            value, after = found
            location = Location(path=reader.path, line=here.record + 1, byte=here.offset)
            if value is None:
                yield Counted(file=here.file, after=after, location=location, filtered=1)
            else:
                yield from long_parts(value, here, after, location, base + here.offset, rules)
        elif rows:
            yield TablePart(
                file=here.file, path=reader.path, rows=tuple(rows), job_offset=base + rows[0].at, after=after
            )
        here = after
    if (damage := damage_of(reader)) is not None:
        yield lost(here.file, Location(path=reader.path, line=here.record + 1), "line", damage)


def _columns(source: Any, ends: list[int], rules: TextRules) -> tuple[int, ...] | Broken:
    """Which column has the text, and which the fields of --where, according to the first row; the first of an empty file."""
    wanted = [rules.field, *(field_name(field) for field in (rules.where.fields if rules.where else ()))]
    try:
        names = next(source, None)
    except csv.Error as e:
        # What csv says of a line break is another sentence in Python 3.13.
        reason = _LINE_BREAK if str(e).startswith("new-line character") else e
        return Broken(f"cannot read the header: {reason}")
    if ends[-1] >= _LONGEST_HEADER:
        return Broken(f"the header is longer than {_LONGEST_HEADER:,} bytes")
    if names is None:
        return (0,) * len(wanted)
    if not names:
        return Broken("the header is a blank line")
    try:
        names = [name.replace(_NUL, "\0") for name in names]
        return tuple(_column(names, name, "--where" if i else "--column") for i, name in enumerate(wanted))
    except Broken as e:
        return e


def _column(names: list[str], wanted: str, option: str) -> int:
    found = [i for i, name in enumerate(names) if name == wanted]
    if len(found) > 1:
        raise Broken(f"there are {len(found)} columns named {wanted!r}; rename all but one")
    if not found:
        shown = ", ".join(names[:_COLUMNS_SHOWN]) + (" …" if len(names) > _COLUMNS_SHOWN else "")
        raise Broken(f"there is no column {wanted!r}; the file has: {shown}. Choose one with {option}")
    return found[0]


def _rows(table: _Table, here: Position) -> tuple[list[Row], Position]:
    """About a block of rows, and where the next begins; none if the next is bad, or too long for that."""
    data, _ = whole_lines(table.reader, here.offset, table.newline, table.rules.block_bytes)
    source, ends = _parsed(data, table.newline, table.delimiter)
    rows: list[Row] = []
    value: bytes | Broken | None
    at, done = here.offset, 0
    # A field may also be longer than the csv module allows; its limit is the whole process's, so it is left alone.
    with contextlib.suppress(csv.Error):
        for values in source:
            following = here.offset + ends[source.line_num]
            if following - at > table.rules.max_run_bytes or len(rows) == MAX_RECORDS:
                break
            if values:  # a blank line is not a record, but has a number
                value = _too_few(len(values), table)
                if len(values) > table.column:
                    wanted = table.rules.where is None or table.wants(dict(enumerate(values)))
                    value = _encoded(values[table.column]) if wanted else None
                rows.append(Row(at=at, line=here.record + done, value=value))
            at, done = following, source.line_num
    return rows, Position(file=here.file, offset=at, record=here.record + done) if done else here


def _parsed(data: bytes, newline: bytes, delimiter: str) -> tuple[Any, list[int]]:
    """A csv.reader of data, with _NUL for NUL, and where each of the lines that it has read ends, after the beginning of the first."""
    ends = [0]

    def lines() -> Iterator[str]:
        while (at := ends[-1]) < len(data):
            ends.append(data.find(newline, at) + 1 or len(data))
            yield data[at : ends[-1]].decode("utf-8", "surrogateescape").replace("\0", _NUL)

    return csv.reader(lines(), delimiter=delimiter, strict=True), ends


def _too_few(columns: int, table: _Table) -> Broken:
    return Broken(f"has {columns:,} columns, but the text should be in column {table.column + 1:,}")


class _LongRow:
    """A row of any length, parsed a window at a time, to the same result as Python's csv in strict mode."""

    def __init__(self, table: _Table, here: Position) -> None:
        self._table, self._here = table, here
        self._cursor = Cursor(table.reader, here.offset)
        self._outside = re.compile(b"[^\r\n" + re.escape(table.delimiter.encode()) + b"]*")

    def find(self) -> tuple[ValueReader | Broken | None, Position] | None:
        """A Reader of its text, or why there is none (see Row), and where the next row begins; None at the end of the file."""
        newline, first = self._table.newline, self._here.offset
        if self._cursor.peek() is None:
            return None
        try:
            value: ValueReader | Broken | None = self._row()
        except Broken as e:
            if str(e) == _UNCLOSED and damage_of(self._table.reader) is not None:
                return None
            value = Broken(f"is not {'TSV' if self._table.delimiter == chr(9) else 'CSV'}: {e}")
            if str(e) == _UNCLOSED:  # the rows after its first line may be good
                self._cursor = Cursor(self._table.reader, first)
            self._cursor.skip(re.compile(b"[^" + newline + b"]*"))
            if self._cursor.peek() is not None:
                self._cursor.step()
        end, read = self._cursor.position, self._table.reader.read
        lines = sum(read(at, min(_WINDOW, end - at)).count(newline) for at in range(first, end, _WINDOW))
        lines += read(end - 1, 1) != newline
        return value, Position(file=self._here.file, offset=end, record=self._here.record + lines)

    def _row(self) -> ValueReader | Broken | None:
        reader, table = self._table.reader, self._table
        number, value = 0, None
        others: dict[int, str] = {}
        while True:
            is_quoted = self._cursor.peek() == _QUOTE
            span = self._quoted() if is_quoted else self._unquoted()
            boundary, decode = (_boundary, _without_quotes) if is_quoted else (_character, checked)
            if number == table.column:
                value = ValueReader(reader, span, boundary, decode, replace=table.rules.on_error == "replace")
            if number in table.filtered_by:
                beginning = ValueReader(reader, span, boundary, decode, replace=True).read(0, VALUE_BYTES)
                others[number] = beginning.decode("utf-8", "replace")
            if self._cursor.peek() != ord(table.delimiter):
                break
            self._cursor.step()
            number += 1
        self._end_of_row()
        if value is None:
            return _too_few(number + 1, table)
        return value if table.wants(others) else None

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
            wrong = _LINE_BREAK
            if byte == self._table.newline[0]:
                return
        if damage_of(self._table.reader) is not None:
            raise Broken(_UNCLOSED)


def _boundary(raw: bytes) -> int:
    """Where raw can be cut: not between two quotes that stand for one, nor inside a character."""
    quotes = len(raw) - len(raw.rstrip(b'"'))
    return len(raw) - 1 if quotes % 2 else character_boundary(raw, len(raw))


def _encoded(value: str) -> bytes:
    """The bytes of a value that csv has read."""
    return value.replace(_NUL, "\0").encode("utf-8", "surrogateescape")


def _readable(value: str) -> str:
    """With U+FFFD for each byte that is not UTF-8."""
    return value if value.isascii() else _encoded(value).decode("utf-8", "replace")


def _character(raw: bytes) -> int:
    return character_boundary(raw, len(raw))


def _without_quotes(raw: bytes, done: int, replace: bool) -> tuple[bytes, int]:
    return checked(raw.replace(b'""', b'"'), done, replace)
