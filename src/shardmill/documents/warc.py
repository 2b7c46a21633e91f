"""A WARC or WET file → Parts of whole records, and the text of those that are text.

WET is what Common Crawl extracted: each record of type `conversion` is a document. A record of type `response` is
what a server sent, mostly HTML; taking the text out of that is not our business, so it is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.documents.long_values import Broken, plain
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Location, Records, ValuePart, long_parts
from shardmill.documents.rules import MAX_RECORDS, TextRules, block_bytes, growing
from shardmill.io.reading import Reader

_LONGEST_HEADER = 64 << 10
_BEFORE = re.compile(rb"[\r\n]*")
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_FIELD = re.compile(rb"(?m)^(WARC-Type|Content-Type|Content-Length)[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_TEXT = ("conversion", "resource")
_NOT_TEXT = ("response", "continuation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Where a record and its content lie, counted from where was looked, and why it is no document, if so."""

    at: int
    begin: int
    end: int
    is_text: bool
    complaint: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WarcPart:
    """Some whole records of one file, as they stand there."""

    file: int
    path: str
    offset: int
    data: bytes
    records: tuple[Record, ...]
    where: int
    after: Position

    @property
    def size(self) -> int:
        return len(self.data)

    def checked(self, rules: TextRules) -> Records:
        found = Records(place=lambda _, offset: Location(path=self.path, byte=self.offset + offset), where=self.where)
        for number, record in enumerate(self.records):
            if record.complaint is not None:
                found.refuse(rules, number, record.at, record.complaint)
            elif record.is_text:
                found.add_text(rules, self.data[record.begin : record.end], number, record.at)
        return found


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[WarcPart | ValuePart | Counted]:
    """All records of one file in order, from start on."""
    at, number = start.offset, start.record
    reader.done_until(at)
    begin = start.begin
    while True:
        lost = None
        try:
            data, records = (b"", []) if begin else _whole_records(reader, at, start.file, rules)
            record = None if records else _record(reader.read(at, _LONGEST_HEADER), 0)
        except Broken as e:
            lost = str(e)
        damage = getattr(reader, "damage", None)
        if lost is None and not records and (record is None or not _is_whole(reader, at, record)):
            if record is None and damage is None and not reader.read(at, _LONGEST_HEADER).strip(b"\r\n"):
                return
            lost = damage or "the file ends in the middle of it; it was cut short"
        if lost is not None:
            yield Counted(
                file=start.file,
                after=Position(file=start.file + 1),
                place=Location(path=reader.path, byte=at),
                complaint=f"the rest of the file, from this record on, is lost: {lost}",
            )
            return
        if records:
            end = records[-1].end
            after = Position(file=start.file, offset=at + end, record=number + len(records))
            yield WarcPart(
                file=start.file,
                path=reader.path,
                offset=at,
                data=data[:end],
                records=tuple(records),
                where=base + at,
                after=after,
            )
        else:
            assert record is not None
            after = Position(file=start.file, offset=at + record.end, record=number + 1)
            here = Position(file=start.file, offset=at, record=number, begin=begin)
            yield from _long(record, reader, here, after, base, rules)
        at, number, begin = after.offset, after.record, 0
        reader.done_until(at)


def _long(
    record: Record, reader: Reader, here: Position, after: Position, base: int, rules: TextRules
) -> Iterator[ValuePart | Counted]:
    """A record that is longer than a run."""
    place = Location(path=reader.path, byte=here.offset + record.at)
    if not record.is_text:
        yield Counted(file=here.file, after=after, place=place, complaint=record.complaint)
    else:
        span = here.offset + record.begin, here.offset + record.end
        value = plain(reader, span, replace=rules.on_error == "replace")
        yield from long_parts(value, here, after, place, base + here.offset + record.at, rules)


def _is_whole(reader: Reader, at: int, record: Record) -> bool:
    """Whether the file holds all of a record."""
    return record.end == record.begin or bool(reader.read(at + record.end - 1, 1))


def _whole_records(reader: Reader, at: int, file: int, rules: TextRules) -> tuple[bytes, list[Record]]:
    """Whole records of about a block; none if the first is longer than a run."""
    for limit in growing(block_bytes(file, at, rules), rules.max_run_bytes):
        data = reader.read(at, limit)
        found: list[Record] = []
        place = 0
        try:
            while len(found) < MAX_RECORDS and (record := _record(data, place)) is not None and record.end <= len(data):
                found.append(record)
                place = record.end
        except Broken:
            if not found:
                raise
        if found or len(data) < limit:
            break
    return data, found


def _record(data: bytes, at: int) -> Record | None:
    """The record that begins there, once its header is there; None: there is none, or not all of its header."""
    before = _BEFORE.match(data, at)
    begin = at if before is None else before.end()
    if begin == len(data):
        return None
    header_end = _HEADER_END.search(data, begin, begin + _LONGEST_HEADER)
    if not b"WARC/1.".startswith(data[begin : begin + 7]):
        raise Broken("no record begins here")
    if header_end is None:
        if len(data) - begin >= _LONGEST_HEADER:
            raise Broken("its header does not end")
        return None
    fields = {name.lower(): value.strip() for name, value in _FIELD.findall(data, begin, header_end.start() + 1)}
    length = fields.get(b"content-length", b"")
    if not length.isdigit():
        raise Broken("its header does not say how long it is")
    kind = fields.get(b"warc-type", b"").decode("latin-1").lower()
    media = fields.get(b"content-type", b"text/plain").decode("latin-1").partition(";")[0].strip().lower()
    complaint = None
    if kind in _NOT_TEXT:
        complaint = f"is a {kind}, as a server sent it, and no text; mill the WET files of the same crawl, or extract the text first"
    elif kind in _TEXT and media != "text/plain":
        complaint = f"is of type {media}, and only text/plain is text; extract the text first"
    return Record(
        at=begin,
        begin=header_end.end(),
        end=header_end.end() + int(length),
        is_text=kind in _TEXT and complaint is None,
        complaint=complaint,
    )
