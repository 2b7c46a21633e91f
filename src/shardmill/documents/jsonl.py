"""A file of JSON lines → Parts of whole lines, and the text in one field of each.

The reader only finds where lines end; the workers parse them: by C (native), by Python's json what is unusual, and by
json_scan what is deep or not JSON. A line that is longer than a Part is parsed by the reader, and its text is cut into
Parts as a text file is.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from shardmill.documents import json_scan, native, ranges, utf8
from shardmill.documents.long_values import BytesReader, ValuePart, ValueReader, long_parts, value_parts
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.ranges import RangePart
from shardmill.documents.records import Broken, Counted, Records, damage_of, lost
from shardmill.documents.rejects import Location
from shardmill.documents.rules import BOM, HELD_BYTES, TextRules, block_bytes, growing, is_first, weight
from shardmill.documents.where import Field, Where, integer
from shardmill.io.reading import Reader, Until, local_reader
from shardmill.tokens.strings import Strings

_HEAD_BYTES = 64 << 10
# So many lines are parsed as ever where one of them is unusual.
_FEW_LINES = 256
# How much is read first to find the end of a line.
_LOOK_BYTES = 16 << 10
_VALUES = b'["-0123456789tfnNI'
_ONE_VALUE = " (first turn a JSON list, or an object over many lines, into lines: jq -c '.[]' FILE > FILE.jsonl)"


@dataclass(kw_only=True, slots=True)
class LinesPart:
    """Whole lines of one file, as they are there."""

    file: int
    path: str
    offset: int
    line: int
    """How many lines precede it."""
    data: memoryview
    newline: bytes
    job_offset: int
    after: Position
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = weight(len(self.data), self.after.record - self.line)

    def pieces(self, _base: int, rules: TextRules, is_val: IsVal) -> Pieces:
        return self.parsed(rules).pieces(is_val)

    def as_range(self, rules: TextRules) -> RangePart | None:
        """The same lines for C to mill; None: they are too few, or end in \\r."""
        if len(self.data) < ranges.SLICE_BYTES or self.newline != b"\n":
            return None

        def rest(at: int, line: int, to_end: bool) -> Iterator[LinesPart]:
            data = self.data[at - self.offset :]
            size, lines = len(data), self.after.record - line
            if not to_end:
                size, lines = native.whole_lines(data, b"\n", (_FEW_LINES, size), ends=True)
            after = Position(file=self.file, offset=at + size, record=line + lines)
            job_offset = self.job_offset + at - self.offset
            yield dataclasses.replace(self, offset=at, line=line, data=data[:size], job_offset=job_offset, after=after)

        return RangePart(
            file=self.file,
            reader=ranges.InMemory(self.path, self.offset, self.data),
            at=self.offset,
            end=self.offset + len(self.data),
            base=self.job_offset - self.offset,
            rules=rules,
            size=len(self.data),
            record=self.line,
            unit="line",
            after=self.after,
            span=(self.offset, self.offset + len(self.data)),
            given=partial(_given, _path(rules.field)),
            rest=rest,
        )

    def parsed(self, rules: TextRules) -> Records:
        path, where, filtered = _path(rules.field), rules.where, None
        found = _texts(self.data, self.after.record - self.line, self.newline, path, rules.hashed)
        if where is not None:
            lines = bytes(self.data).removesuffix(self.newline).split(self.newline)
            filtered = np.array([not _is_wanted(line, where) for line in lines], np.bool_)
        if found.usual:
            self.data = memoryview(b"")  # nobody needs it any more, and others need the memory

        def judge(index: int) -> tuple[bytes, int] | None:
            end = int(found.starts[index + 1]) if index + 1 < len(found.starts) else len(self.data)
            line = bytes(self.data[int(found.starts[index]) : end]).removesuffix(self.newline)
            return _parse(line, path, replace=rules.on_error == "replace")

        return Records(
            rules=rules,
            examined=found,
            judge=judge,
            filtered=filtered,
            offsets=found.starts,
            location=self._location,
            job_offset=self.job_offset,
            first=self.line,
        )

    def _location(self, index: int, start: int) -> Location:
        return Location(path=self.path, line=self.line + index + 1, byte=self.offset + start)


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[LinesPart | ValuePart | Counted | RangePart]:
    """All lines of one file in order, from start on; it begins at byte `base` of the whole input."""
    head = reader.read(0, _HEAD_BYTES)
    utf8.refuse_other_encodings(reader.path, head)
    newline = _newline(head)
    here = start
    if here.offset == 0 and head.startswith(BOM):
        here = Position(file=start.file, offset=len(BOM))
        yield Counted(file=start.file, after=here, location=Location(path=reader.path), boms=1)
    while True:
        part: LinesPart | ValuePart | Counted | RangePart | None = None
        if rules.range_bytes and newline == b"\n" and (range_ := _range(reader, here, base, rules)) is not None:
            yield (part := range_)
            here = part.after
            continue
        reader.done_until(here.offset)
        found = None if here.begin else _whole_lines(reader, here, base, newline, rules)
        parts = (found,) if found is not None and found.data else ()
        for part in parts if found is not None else _long_line(reader, here, base, newline, rules):
            yield part
        if part is None:  # there is no whole line
            if (damage := damage_of(reader)) is not None:
                location = Location(path=reader.path, line=here.record + 1, byte=here.offset)
                yield lost(here.file, location, "line", damage)
            return
        here = part.after


def _range(reader: Reader, here: Position, base: int, rules: TextRules) -> RangePart | None:
    """Lines that C reads, too; None: here it should not."""
    local, size = local_reader(reader), reader.size or 0
    if local is None or here.begin or here.offset == size or is_first(here.file, here.offset):
        return None
    end = ranges.end_of(here.offset, size, rules, lambda at: _line_end(reader, at, rules.max_run_bytes))
    if end is None:
        return None
    own = local.again()

    def rest(at: int, line: int, to_end: bool) -> Iterator[LinesPart | ValuePart | Counted | RangePart]:
        start = Position(file=here.file, offset=at, record=line)
        read = partial(read_parts, start, Until(own, end), base)
        return ranges.rest(read, rules, to_end, lambda part: not part.after.begin)

    return RangePart(
        file=here.file,
        reader=own,
        at=here.offset,
        end=end,
        base=base,
        rules=rules,
        size=end - here.offset,
        record=here.record,
        unit="line",
        after=Position(file=here.file, offset=end),
        span=(here.offset, end),
        given=partial(_given, _path(rules.field)),
        rest=rest,
    )


def _given(path: tuple[str, ...]) -> tuple[dict[str, Any], object]:
    held, names, ends = native.names_of(path)
    return {"kind": ranges.LINES, "names": names, "name_ends": ends, "name_count": len(path)}, held


def _line_end(reader: Reader, at: int, longest: int) -> int | None:
    """Where the line ends in which the byte before this one is; None: not within so many bytes."""
    for limit in growing(_LOOK_BYTES, longest):
        data = reader.read(at - 1, limit)
        found = data.find(b"\n")
        if found >= 0:
            return at + found
    return None


def entry(reader: Reader, offset: int, rules: TextRules) -> int | None:
    """Where the first line begins at or after this byte; None: not within max_run_bytes, or not at all."""
    newline = _newline(reader.read(0, _HEAD_BYTES))
    for limit in growing(_HEAD_BYTES, rules.max_run_bytes):
        found = reader.read(offset - 1, limit).find(newline)
        if found >= 0:
            return offset + found if reader.read(offset + found, 1) else None
    return None


def _newline(head: bytes) -> bytes:
    return b"\r" if b"\r" in head and b"\n" not in head else b"\n"


def _whole_lines(reader: Reader, here: Position, base: int, newline: bytes, rules: TextRules) -> LinesPart | None:
    """Whole lines of about a block; at least one, unless it is longer than max_run_bytes: then None."""
    longest, about = rules.max_run_bytes, block_bytes(here.file, here.offset, rules, reader.size)
    for limit in growing(about, longest + 1) if about <= longest else (about,):
        data, (size, lines) = native.read_lines(reader, here.offset, limit, newline, (rules.max_records, longest))
        if size or not data or (len(data) < limit and damage_of(reader) is not None and newline not in bytes(data)):
            return LinesPart(
                file=here.file,
                path=reader.path,
                offset=here.offset,
                line=here.record,
                data=data[:size],
                newline=newline,
                job_offset=base + here.offset,
                after=Position(file=here.file, offset=here.offset + size, record=here.record + lines),
            )
    return None


def _long_line(
    reader: Reader, here: Position, base: int, newline: bytes, rules: TextRules
) -> Iterator[ValuePart | Counted]:
    """A line longer than max_run_bytes: parsed at once if it can be held and is as usual, else a window at a time; nothing
    if it ends in damage."""
    location = Location(path=reader.path, line=here.record + 1, byte=here.offset)
    job_offset, path = base + here.offset, _path(rules.field)
    data = reader.read(here.offset, HELD_BYTES)
    end = data.find(newline) + 1 or (len(data) if len(data) < HELD_BYTES else 0)
    if end == len(data) and not data.endswith(newline) and damage_of(reader) is not None:
        return
    data = data[:end]  # three copies at most: the line, the buffer of its text, and the text
    data = data if rules.where is None else b""
    texts, odd, *_ = _texts(memoryview(data), int(bool(data)), newline, path)
    del data
    if not odd.all():
        after = Position(file=here.file, offset=here.offset + end, record=here.record + 1)
        text = texts[0]
        del texts
        yield from value_parts(BytesReader(reader.path, text), here, after, location, job_offset, rules)
        return
    del texts
    first = reader.read(here.offset, _HEAD_BYTES).lstrip(b" \t\r")[:1]
    may_be_object = first in (b"{", newline, b"")
    end, following, complaint = utf8.find_end(reader, here.offset, newline, keep=may_be_object)
    if following == end and damage_of(reader) is not None:
        return
    after = Position(file=here.file, offset=following, record=here.record + 1)
    replace = rules.on_error == "replace"
    try:
        if not may_be_object:
            raise Broken("is not an object" if first in _VALUES else "is not JSON: no value begins here")
        if rules.where is not None and not json_scan.is_wanted(reader, (here.offset, end), rules.where):
            yield Counted(file=here.file, after=after, location=location, filtered=1)
            return
        if complaint is not None and not replace:
            raise Broken(complaint, repairable=True)
        span = json_scan.find_string(reader, (here.offset, end), path)
        value: ValueReader | Broken = json_scan.string_reader(reader, span, replace=replace)
    except Broken as e:
        value = e
    yield from long_parts(value, here, after, location, job_offset, rules)


def _is_wanted(line: bytes, where: Where) -> bool:
    """Whether a line passes the filter; one that is not a JSON object does, to be refused as such."""
    text = line.decode("utf-8", "replace")
    if json_scan.is_deep(text):
        return json_scan.is_wanted(BytesReader("", line), (0, len(line)), where)
    try:
        record = json.loads(text, parse_int=integer)
    except ValueError:
        return True
    return not isinstance(record, dict) or where.test([_inside(record, field) for field in where.fields])


def _inside(record: Any, field: Field) -> Any:
    for name in field:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _texts(
    data: memoryview, count: int, newline: bytes, path: tuple[str, ...], hashed: tuple[int, int] | None = None
) -> native.Examined:
    """The texts of so many lines, and which of them the C declined."""
    if newline == b"\n":
        return native.texts_of_lines(np.frombuffer(data, np.uint8), count, path, hashed)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == newline[0]) + 1
    starts = np.append(0, ends)[:count]
    return native.Examined(Strings.of([b""] * count), np.ones(count, np.bool_), False, None, starts)


class _NotRead(Broken):
    """Python's json cannot read it, or not in every version."""


def _parse(line: bytes, path: tuple[str, ...], *, replace: bool) -> tuple[bytes, int] | None:
    """A line that the C declined; a blank one is not a record, but has a number."""
    if not line.strip(b" \t\r"):
        return None
    try:
        return json_scan.decoded(line, lambda line: exact(line, path), replace)
    except _NotRead:
        return _scanned(line, path, replace=replace)


def _scanned(line: bytes, path: tuple[str, ...], *, replace: bool) -> tuple[bytes, int]:
    try:
        start, end = json_scan.find_string(BytesReader("", line), (0, len(line)), path)
    except Broken as e:
        raise Broken(f"{e}{_ONE_VALUE}") if line.strip() in (b"[", b"{", b"[{") else e from None
    return json_scan.decoded(line[start:end], json_scan.unquoted, replace)


def exact(line: str, path: tuple[str, ...]) -> str:
    """The text in a field, as Python's json has it, with every reason to refuse it looked for. Raises Broken."""
    if json_scan.is_deep(line):
        raise _NotRead("is deep")
    try:
        # An object is a tuple of its pairs, so that a repeated name is seen; numbers may be too large to compute.
        value: Any = json.loads(line, object_pairs_hook=tuple, parse_int=lambda _: 0, parse_float=lambda _: 0)
    except json.JSONDecodeError:
        raise _NotRead("is not JSON") from None
    name = ".".join(path)
    for depth, key in enumerate(path):
        if not isinstance(value, tuple):
            outer = ".".join(path[:depth])
            raise Broken(f"field {name!r} is inside {outer!r}, which is not an object" if depth else "is not an object")
        values = [item for found, item in value if found == key]
        if not values:
            raise Broken(json_scan.missing(path, [found for found, _ in value]))
        if len(values) > 1:
            raise Broken(f"field {name!r} occurs twice")
        value = values[0]
    if isinstance(value, str):
        return value
    kinds = {tuple: "an object", list: "a list", int: "a number", float: "a number"}
    raise Broken(f"field {name!r} is {kinds.get(type(value)) or json.dumps(value)}, not a string")


@lru_cache
def _path(field: str) -> tuple[str, ...]:
    r"""The names of a field: a.b is field b of field a; a\.b is the field a.b."""
    return tuple(part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", field))
