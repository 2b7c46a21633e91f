"""A WARC or WET file → Parts of whole records, and the text of those that are text.

WET is the text that Common Crawl extracted: each record of type `conversion` is a document. A record of type `response`
is what a server sent, mostly HTML; extracting its text is out of scope, so it is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardmill.documents import native
from shardmill.documents.long_values import ValuePart, long_parts, plain
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.records import Broken, Counted, Records, checked, damage_of, lost
from shardmill.documents.rejects import Location
from shardmill.documents.rules import MAX_RECORDS, TextRules, block_bytes, growing
from shardmill.documents.where import Untyped, Where, field_name
from shardmill.io.reading import Reader
from shardmill.tokens.strings import Strings

_LONGEST_HEADER = 64 << 10
_BLANK_LINES = re.compile(rb"[\r\n]*")
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_NEEDED = re.compile(rb"(?m)^(WARC-Type|Content-Type|Content-Length)[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_ANY = re.compile(rb"(?m)^([!-9;-~]+)[ \t]*:[ \t]*([^\r\n]*)")
_TEXT = ("conversion", "resource")
_NOT_TEXT = ("response", "continuation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Where a record begins, and where its content is, in the data that was parsed; and why it is not a document."""

    at: int
    begin: int
    end: int
    is_text: bool
    complaint: str | None
    filtered: bool
    """It would be a document, or be refused, but --where does not want it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarcPart:
    """Some whole records of one file, as they are there."""

    file: int
    path: str
    offset: int
    data: bytes
    records: tuple[Record, ...]
    job_offset: int
    after: Position

    @property
    def size(self) -> int:
        return len(self.data)

    def pieces(self, _base: int, rules: TextRules, is_val: IsVal) -> Pieces:
        return self.parsed(rules).pieces(is_val)

    def parsed(self, rules: TextRules) -> Records:
        spans = np.array([(record.begin, record.end, record.at) for record in self.records], np.int64)
        begins, ends, offsets = spans.T
        no_text = np.array([not record.is_text for record in self.records])
        texts = Strings.within(np.frombuffer(self.data, np.uint8), begins, np.where(no_text, begins, ends))

        def judge(index: int) -> tuple[bytes, int] | None:
            record = self.records[index]
            if record.complaint is not None:
                raise Broken(record.complaint)
            return checked(texts[index], 0, rules.on_error == "replace") if record.is_text else None

        return Records(
            rules=rules,
            examined=native.examine(texts, no_text, rules.hashed),
            judge=judge,
            filtered=np.array([record.filtered for record in self.records]),
            offsets=offsets,
            location=lambda _, offset: Location(path=self.path, byte=self.offset + offset),
            job_offset=self.job_offset,
        )


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[WarcPart | ValuePart | Counted]:
    """All records of one file in order, from start on; it begins at byte `base` of the whole input."""
    here = start
    while True:
        reader.done_until(here.offset)
        try:
            data, records = (b"", []) if here.begin else _whole_records(reader, here, rules)
            record = records[-1] if records else _next_record(reader, here.offset, rules.where)
        except Broken as e:
            yield lost(here.file, Location(path=reader.path, byte=here.offset), "record", e)
            return
        if record is None:
            return
        location = Location(path=reader.path, byte=here.offset + record.at)
        after = Position(file=here.file, offset=here.offset + record.end, record=here.record + max(1, len(records)))
        if records:
            yield WarcPart(
                file=here.file,
                path=reader.path,
                offset=here.offset,
                data=data[: record.end],
                records=tuple(records),
                job_offset=base + here.offset,
                after=after,
            )
        elif record.filtered:
            yield Counted(file=here.file, after=after, location=location, filtered=1)
        elif record.is_text:
            span = here.offset + record.begin, here.offset + record.end
            value = plain(reader, span, replace=rules.on_error == "replace")
            yield from long_parts(value, here, after, location, base + here.offset + record.at, rules)
        else:
            yield Counted(file=here.file, after=after, location=location, complaint=record.complaint)
        here = after


def _whole_records(reader: Reader, here: Position, rules: TextRules) -> tuple[bytes, list[Record]]:
    """Whole records of about a block; none if the first is longer than max_run_bytes."""
    for limit in growing(block_bytes(here.file, here.offset, rules), rules.max_run_bytes):
        data = reader.read(here.offset, limit)
        found: list[Record] = []
        at = 0
        try:
            while len(found) < MAX_RECORDS and (record := _record(data, at, rules.where)) is not None:
                if record.end > len(data):
                    break
                found.append(record)
                at = record.end
        except Broken:
            if not found:
                raise
        if found or len(data) < limit:
            break
    return data, found


def _next_record(reader: Reader, at: int, where: Where | None) -> Record | None:
    """The next record, however long; None at the end of the file. Raises Broken if it is truncated."""
    head = reader.read(at, _LONGEST_HEADER)
    record = _record(head, 0, where)
    if record is not None and (record.end == record.begin or reader.read(at + record.end - 1, 1)):
        return record
    damage = damage_of(reader)
    if record is None and damage is None and not head.strip(b"\r\n"):
        return None
    raise Broken(damage or "the file is truncated in the middle of it")


def _record(data: bytes, at: int, where: Where | None) -> Record | None:
    """The record that begins there; None if there is none, or not all of its header. Raises Broken."""
    blank = _BLANK_LINES.match(data, at)
    begin = at if blank is None else blank.end()
    if begin == len(data):
        return None
    header_end = _HEADER_END.search(data, begin, begin + _LONGEST_HEADER)
    if not b"WARC/1.".startswith(data[begin : begin + 7]):
        raise Broken("no record begins here")
    if header_end is None:
        if len(data) - begin >= _LONGEST_HEADER:
            raise Broken("its header does not end")
        return None
    pattern = _NEEDED if where is None else _ANY
    fields = {name.lower(): value.strip() for name, value in pattern.findall(data, begin, header_end.start() + 1)}
    length = fields.get(b"content-length", b"")
    if not length.isdigit():
        raise Broken("its header does not give its length")
    kind = fields.get(b"warc-type", b"").decode("latin-1").lower()
    media = fields.get(b"content-type", b"text/plain").decode("latin-1").partition(";")[0].strip().lower()
    complaint = None
    if kind in _NOT_TEXT:
        complaint = f"is a {kind}, as a server sent it, not text; use the WET files of the same crawl, or extract the text first"
    elif kind in _TEXT and media != "text/plain":
        complaint = f"is of type {media}, and only text/plain is supported; extract the text first"
    filtered = where is not None and (kind in _TEXT or complaint is not None) and not _is_wanted(fields, where)
    return Record(
        at=begin,
        begin=header_end.end(),
        end=header_end.end() + int(length),
        is_text=kind in _TEXT and complaint is None,
        complaint=complaint,
        filtered=filtered,
    )


def _is_wanted(fields: dict[bytes, bytes], where: Where) -> bool:
    """Whether the headers pass the filter; their names are compared without case, as in HTTP."""
    names = (field_name(field).lower().encode() for field in where.fields)
    found = [fields.get(name) for name in names]
    return where.test([None if value is None else Untyped(value.decode("utf-8", "replace")) for value in found])
