"""A CSV or TSV file with a header → Parts of whole rows, and the text in one column of each.

Rows are taken apart while the file is read: only from its beginning on is it certain where a quoted value ends.
"""

import csv
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.documents import text
from shardmill.documents.compression import MAX_HELD
from shardmill.documents.pieces import Position
from shardmill.documents.records import MAX_RECORDS, BytesReader, Counted, Place, Records, ValuePart, value_parts
from shardmill.documents.rules import BOM, TextRules, block_bytes
from shardmill.reading import Reader

_WINDOW = 256 << 10
_COLUMNS_TOLD = 20
_LONGEST_ROW = MAX_HELD - (1 << 20)
_LONGEST_FIELD = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the file: its text, or why there is none."""

    at: int
    following: int
    line: int
    """How many lines there are before it."""
    lines: int
    value: bytes = b""
    complaint: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePart:
    """Some rows of one file."""

    file: int
    path: str
    rows: tuple[Row, ...]
    where: int
    marks: int

    @property
    def size(self) -> int:
        return self.rows[-1].following - self.rows[0].at

    @property
    def after(self) -> Position:
        last = self.rows[-1]
        return Position(file=self.file, offset=last.following, record=last.line + last.lines)

    def checked(self, rules: TextRules) -> Records:
        found = Records(
            place=lambda number, _: Place(path=self.path, line=self.rows[number].line + 1, byte=self.rows[number].at),
            where=self.where,
        )
        if self.marks:
            found.found.count("byte_order_marks")
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
    text.refuse_other_encodings(reader.path, head)
    mark = head.startswith(BOM)
    newline = b"\r" if b"\r" in head and b"\n" not in head else b"\n"
    lines = _Lines(reader, len(BOM) if mark else 0, 0, newline)
    damaged = "the header is a blank line"
    try:
        names = next(csv.reader(lines, delimiter=delimiter, strict=True), None)
    except (csv.Error, _Unclosed) as e:
        names, damaged = [], f"the header cannot be read: {e}"
    if names is None:
        return
    column, complaint = _column(names, rules.field) if names else (0, damaged)
    if complaint is not None:
        place = Place(path=reader.path, line=1)
        yield Counted(file=start.file, after=Position(file=start.file + 1), place=place, complaint=complaint)
        return
    marks = int(mark and not start.offset)
    if start.offset:
        reader.done_until(start.offset)
        lines = _Lines(reader, start.offset, start.record, newline)
    rows: list[Row] = []
    size = 0
    for row in _rows(lines, delimiter, column):
        long = len(row.value) > rules.max_run_bytes
        full = size + row.following - row.at > block_bytes(start.file, row.at, rules)
        if rows and (long or full or len(rows) == MAX_RECORDS):
            yield TablePart(file=start.file, path=reader.path, rows=tuple(rows), where=base + rows[0].at, marks=marks)
            reader.done_until(row.at)
            rows, size, marks = [], 0, 0
        if long:
            yield from _long(row, start, reader.path, base, rules)
            start = dataclasses.replace(start, begin=0)
        else:
            rows.append(row)
            size += row.following - row.at
    if rows:
        yield TablePart(file=start.file, path=reader.path, rows=tuple(rows), where=base + rows[0].at, marks=marks)
    damage = getattr(reader, "damage", None)
    if damage is not None:
        place = Place(path=reader.path, line=lines.number + 1)
        complaint = f"the rest of the file, from this line on, is lost: {damage}"
        yield Counted(file=start.file, after=Position(file=start.file + 1), place=place, complaint=complaint)


def _long(row: Row, start: Position, path: str, base: int, rules: TextRules) -> Iterator[ValuePart | Counted]:
    here = Position(file=start.file, offset=row.at, record=row.line, begin=start.begin)
    after = Position(file=start.file, offset=row.following, record=row.line + row.lines)
    place = Place(path=path, line=row.line + 1, byte=row.at)
    checked = Records(place=lambda _number, _offset: place, where=base + row.at)
    checked.add_text(rules, row.value, 0, 0)
    if not checked.found.data:
        yield Counted(file=start.file, after=after, place=place, complaint=checked.found.rejects[0][1].reason)
        return
    replaced = sum(number for _, name, number in checked.found.events if name == "replaced_characters")
    for part in value_parts(BytesReader(path, checked.found.data[0]), here, after, place, base + row.at, rules):
        yield dataclasses.replace(part, replaced=0 if part.inner.offset else replaced)


class _Unclosed(Exception):
    """A row that goes on and on: a quote was opened in it and not closed."""


class _Lines:
    """The lines of a file, each with its end, and where the next one begins."""

    def __init__(self, reader: Reader, at: int, number: int, newline: bytes) -> None:
        self._reader, self._newline = reader, newline
        self.at, self.number = at, number
        self._buffer, self._position = b"", 0
        self.row_at = self.first_end = at
        """Where the row that is being read begins, and where its first line ends."""

    @property
    def damaged(self) -> bool:
        return getattr(self._reader, "damage", None) is not None

    def begin_row(self) -> None:
        self.row_at = self.first_end = self.at

    def go_back(self, at: int, number: int) -> None:
        self.at, self.number = at, number
        self._buffer, self._position = b"", 0

    def skip_window(self) -> None:
        """Let go of what was read of a line."""
        self.at += len(self._buffer) - self._position
        self._buffer, self._position = b"", 0
        self._reader.done_until(self.at)

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        searched = self._position
        while (end := self._buffer.find(self._newline, searched)) < 0:
            known = len(self._buffer) - self._position
            if self.at + known - self.row_at > _LONGEST_ROW:
                raise _Unclosed
            more = self._reader.read(self.at + known, _WINDOW)
            self._buffer, self._position = self._buffer[self._position :] + more, 0
            searched = known
            if not more:
                break
        line = self._buffer[self._position :] if end < 0 else self._buffer[self._position : end + len(self._newline)]
        if not line or (end < 0 and self.damaged):
            raise StopIteration
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
        except (csv.Error, _Unclosed) as e:
            unclosed = isinstance(e, _Unclosed) or "unexpected end" in str(e)
            if unclosed and lines.damaged:
                return
            complaint = (
                f"is not {'TSV' if delimiter == chr(9) else 'CSV'}: {'a quote is not closed' if unclosed else e}"
            )
            if unclosed:  # the rows after its first line may be good
                if lines.first_end > at:
                    lines.go_back(lines.first_end, line + 1)
                else:
                    _pass_line(lines)
            source = csv.reader(lines, delimiter=delimiter, strict=True)
        if not row:
            continue  # a blank line is no record, but has its number
        if complaint is None and len(row) <= column:
            complaint = f"has {len(row):,} columns, and the text should be in number {column + 1:,}"
        elif complaint is None:
            value = row[column].encode("utf-8", "surrogateescape")
        yield Row(at=at, following=lines.at, line=line, lines=lines.number - line, value=value, complaint=complaint)


def _pass_line(lines: _Lines) -> None:
    """Pass over a line that is too long to be a row."""
    while True:
        lines.row_at = lines.at
        try:
            next(lines, None)
            return
        except _Unclosed:
            lines.skip_window()


def _column(names: list[str], field: str) -> tuple[int, str | None]:
    found = [i for i, name in enumerate(names) if name == field]
    if len(found) == 1:
        return found[0], None
    if found:
        return 0, f"there are {len(found)} columns named {field!r}; name them apart"
    there = ", ".join(names[:_COLUMNS_TOLD]) + (" …" if len(names) > _COLUMNS_TOLD else "")
    return 0, f"there is no column {field!r}; there are: {there}. Name the right one with --column"
