"""A file of JSON lines → Parts of whole lines, and the text in one field of each.

Lines are found by the reader and parsed by the workers: a whole Part by fastlines or msgspec when nothing in it is
odd, else line by line, by Python's own json where those refuse. A line longer than a run goes to jsonscan.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shardmill.documents import json_fast, json_scan, utf8
from shardmill.documents.long_values import Broken
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Location, Records, ValuePart, long_parts
from shardmill.documents.rules import BOM, MAX_RECORDS, TextRules, block_bytes, growing, weight
from shardmill.io.reading import Reader

_HEAD_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class LinesPart:
    """Whole lines of one file, as they stand there."""

    file: int
    path: str
    offset: int
    line: int
    """How many lines there are before it."""
    data: bytes
    newline: bytes
    where: int
    after: Position

    @property
    def size(self) -> int:
        return weight(len(self.data), self.after.record - self.line)

    def checked(self, rules: TextRules) -> Records:
        starts = lru_cache(maxsize=1)(self._starts)  # asked for each bad record, or for none
        found = Records(place=lambda number, _: self._place(number, starts()[number]), where=self.where)
        field = _field(rules.field)
        documents = _parse_all(self.data, self.newline, field)
        if documents is not None:
            # Where lines begin matters only to a split by place.
            offsets = starts() if rules.border is not None else [0] * len(documents)
            found.add_all(documents, offsets[: len(documents)])
            return found
        for number, (line, offset) in enumerate(zip(self._lines(), starts(), strict=False)):
            _parse_one(found, line, field, rules, number=number, offset=offset)
        return found

    def _lines(self) -> list[bytes]:
        lines = self.data.split(self.newline)
        return lines if lines[-1] else lines[:-1]

    def _starts(self) -> list[int]:
        return list(itertools.accumulate((len(line) + len(self.newline) for line in self._lines()), initial=0))

    def _place(self, number: int, start: int) -> Location:
        return Location(path=self.path, line=self.line + number + 1, byte=self.offset + start)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Field:
    """A field by its path, and how its names look in a file."""

    path: tuple[str, ...]
    quoted: tuple[bytes, ...]
    """Each name as it is mostly written, with its quotes."""
    keys: tuple[re.Pattern[bytes], ...]
    """The same, with its colon."""
    odd: re.Pattern[bytes] | None
    """Other ways to write a letter of the names; None: there are too many."""
    rare: re.Pattern[bytes]
    """Without this there is no other way."""
    decoder: msgspec.json.Decoder[Any]


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[LinesPart | ValuePart | Counted]:
    """All lines of one file in order, from start on."""
    head = reader.read(0, _HEAD_BYTES)
    utf8.refuse_other_encodings(reader.path, head)
    newline = b"\r" if b"\r" in head and b"\n" not in head else b"\n"
    at, line = start.offset, start.record
    if at == 0 and head.startswith(BOM):
        at = len(BOM)
        yield Counted(
            file=start.file, after=Position(file=start.file, offset=at), place=Location(path=reader.path), marks=1
        )
    reader.done_until(at)
    if start.begin:
        yield from (long := _LongLine(reader, start, base, newline)).parts(rules)
        at, line = long.following, line + 1
    while True:
        data = _whole_lines(reader, at, newline, block_bytes(start.file, at, rules), rules.max_run_bytes)
        if data is None:
            position = Position(file=start.file, offset=at, record=line)
            yield from (long := _LongLine(reader, position, base, newline)).parts(rules)
            at = long.following
            line += 1
        elif data:
            lines = _count(data, newline) + (not data.endswith(newline))
            if lines > MAX_RECORDS:
                lines = MAX_RECORDS
                data = data[: sum(len(each) + len(newline) for each in data.split(newline, MAX_RECORDS)[:-1])]
            part = LinesPart(
                file=start.file,
                path=reader.path,
                offset=at,
                line=line,
                data=data,
                newline=newline,
                where=base + at,
                after=Position(file=start.file, offset=at + len(data), record=line + lines),
            )
            yield part
            at, line = part.after.offset, part.after.record
        else:
            damage = getattr(reader, "damage", None)
            if damage is not None:
                lost = Location(path=reader.path, line=line + 1, byte=at)
                complaint = f"the rest of the file, from this line on, is lost: {damage}"
                yield Counted(file=start.file, after=Position(file=start.file + 1), place=lost, complaint=complaint)
            return
        reader.done_until(at)


def _whole_lines(reader: Reader, at: int, newline: bytes, about: int, longest: int) -> bytes | None:
    """Whole lines of about so many bytes; at least one, unless it is longer than the longest: then None."""
    for limit in growing(about, longest + 1):
        data = reader.read(at, limit)
        if len(data) < limit and getattr(reader, "damage", None) is None:
            end = len(data)
        else:
            end = data.rfind(newline) + 1
        if end or len(data) < limit:
            break
    else:
        return None
    return data[:end]


def _count(data: bytes, newline: bytes) -> int:
    """As bytes.count, but for one byte, and five times as fast."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == newline[0]))


class _LongLine:
    """A line that is longer than a run: looked through first, then handed on in stretches."""

    def __init__(self, reader: Reader, here: Position, base: int, newline: bytes) -> None:
        self._reader, self._here, self._base, self._newline = reader, here, base, newline
        self.following = here.offset

    def parts(self, rules: TextRules) -> Iterator[ValuePart | Counted]:
        reader, here = self._reader, self._here
        place = Location(path=reader.path, line=here.record + 1, byte=here.offset)
        try:
            line = json_scan.find_line(reader, here.offset, self._newline)
            self.following = line.following
            if line.complaint is not None and rules.on_error != "replace":
                raise Broken(line.complaint)
            field = _field(rules.field)
            span = json_scan.find_string(reader, line, field.path)
        except Broken as e:
            self.following = e.following if isinstance(e, json_scan.NoObject) else self.following
            yield Counted(file=here.file, after=self._after(), place=place, complaint=str(e))
            return
        value = json_scan.string_reader(reader, span, replace=rules.on_error == "replace")
        yield from long_parts(value, here, self._after(), place, self._base + here.offset, rules)

    def _after(self) -> Position:
        return Position(file=self._here.file, offset=self.following, record=self._here.record + 1)


def _parse_all(data: bytes, newline: bytes, field: _Field) -> list[bytes] | None:
    """The text of all lines if nothing in any of them is odd, else None."""
    if newline == b"\n" and (found := json_fast.texts(data, field.path)) is not None:
        return found
    count = _objects(data, newline)
    if not count or not _once_each(data, count, field) or not utf8.is_valid(data):
        return None
    try:
        rows = field.decoder.decode_lines(data)
    except (ValueError, RecursionError):
        return None
    for _ in field.path[:-1]:
        rows = [row.value for row in rows]
    documents = [row.value.encode() for row in rows]
    return documents if len(documents) == count and all(documents) else None


def _objects(data: bytes, newline: bytes) -> int:
    """How many lines there are, if each is one object; else 0.

    An object directly followed by another can only be two records: so with as many as there are lines, each line is one.
    """
    characters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(characters == newline[0])
    if len(ends) and ends[-1] == len(data) - 1:
        ends = ends[:-1]
    before = ends - 1 - data.endswith(b"\r\n")
    if not data.startswith(b"{") or (len(ends) and before[0] < 0):
        return 0
    if data.endswith(b"\r\n") and not (characters[ends - 1] == ord("\r")).all():
        return 0
    whole = (characters[before] == ord("}")).all() and (characters[ends + 1] == ord("{")).all()
    return len(ends) + 1 if whole else 0


def _once_each(data: bytes, count: int, field: _Field) -> bool:
    """Whether the field's names can be there only once for each of count objects.

    Looked for with numpy first: a regular expression is as fast, but keeps all other threads waiting.
    """
    characters = np.frombuffer(data, np.uint8)
    escaped = bool(len(_pairs(characters, b"\\u")))
    if field.odd is None or (escaped and field.rare.search(data) and field.odd.search(data)):
        return False
    return all(
        _keys(data, characters, quoted, key) == count for quoted, key in zip(field.quoted, field.keys, strict=True)
    )


def _pairs(characters: npt.NDArray[np.uint8], pair: bytes) -> npt.NDArray[np.int64]:
    """Where these two bytes stand."""
    return np.flatnonzero((characters[:-1] == pair[0]) & (characters[1:] == pair[1]))


def _keys(data: bytes, characters: npt.NDArray[np.uint8], quoted: bytes, key: re.Pattern[bytes]) -> int:
    """How often a name stands before a colon."""
    at = _pairs(characters, quoted)
    at = at[at < len(data) - len(quoted)]
    for place in range(2, len(quoted)):
        at = at[characters[at + place] == quoted[place]]
    following = characters[at + len(quoted)]
    if (following <= 0x20).any():
        return len(key.findall(data))
    return int(np.count_nonzero(following == ord(":")))


def _parse_one(found: Records, line: bytes, field: _Field, rules: TextRules, *, number: int, offset: int) -> None:
    if not line.strip(b" \t\r"):
        return  # a blank line is no record, but has its number
    documents = _parse_all(line, b"\n", field)
    if documents is not None:
        found.add(documents[0], number, offset)
        return
    repaired = False
    try:
        decoded = line.decode()
    except UnicodeDecodeError:
        if rules.on_error != "replace":
            found.refuse(rules, number, offset, utf8.complaint(line), repairable=True)
            return
        decoded, repaired = line.decode("utf-8", "replace"), True
    try:
        value = exact(decoded, field.path)
        document = value.encode()
    except Broken as e:
        found.refuse(rules, number, offset, str(e))
        return
    except UnicodeEncodeError:
        if rules.on_error != "replace":
            found.refuse(rules, number, offset, json_scan.HALF_A_PAIR, repairable=True)
            return
        document, repaired = json_scan.lenient(value), True
    if repaired and (count := _count_replaced(line, field, document)):
        found.found.count("replaced_characters", count)
    found.add(document, number, offset)


def _count_replaced(line: bytes, field: _Field, document: bytes) -> int:
    """How many U+FFFD of the document were not in the line as such."""
    honest = exact(line.decode("utf-8", "surrogateescape"), field.path).count("\ufffd")
    return document.count("\ufffd".encode()) - honest


def exact(line: str, path: tuple[str, ...]) -> str:
    """The text in a field, as Python's json has it, with every reason to refuse it looked for. Raises Broken."""
    try:
        value = json.loads(line, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number)
    except json.JSONDecodeError as e:
        raise Broken(f"is not JSON: {e.msg}, at character {e.pos:,} of the line{_hint(line)}") from None
    except RecursionError:
        raise Broken(f"is nested more than {json_scan.DEPTH} deep") from None
    for depth, name in enumerate(path):
        if not isinstance(value, _Pairs):
            if depth == 0:
                raise Broken("is not an object")
            raise Broken(
                f"field {'.'.join(path)!r} is inside {'.'.join(path[:depth])!r}, which is no object, not a string"
            )
        values = [item for key, item in value.items if key == name]
        if not values:
            raise Broken(json_scan.missing(path, [key for key, _ in value.items]))
        if len(values) > 1:
            raise Broken(f"field {'.'.join(path)!r} is there twice")
        value = values[0]
    if isinstance(value, str) and not isinstance(value, _Number):
        return value
    raise Broken(f"field {'.'.join(path)!r} is {_kind(value)}, not a string")


def _hint(line: str) -> str:
    if line.strip() not in ("[", "{", "[{"):
        return ""
    return " (one JSON list, or an object on many lines, must be made lines first: jq -c '.[]' FILE > FILE.jsonl)"


class _Pairs:
    """An object as its pairs, so that a name that is there twice is seen."""

    def __init__(self, items: list[tuple[str, Any]]) -> None:
        self.items = items


class _Number(str):
    """A number as it is written; its value is of no interest, and may be too large to compute."""


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _Pairs():
            return "an object"
        case list():
            return "a list"
        case _:
            return "a number"


@lru_cache(maxsize=8)
def _field(name: str) -> _Field:
    r"""a.b is field b of field a; a\.b is the field a.b."""
    path = tuple(part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", name))
    quoted = [json.dumps(part, ensure_ascii=False).encode() for part in path]
    letters = {c for part in path for c in part}
    simple = all(c.isprintable() and c not in '"\\/' and ord(c) < 0x10000 for c in letters)
    codes = b"|".join(sorted(b"%04x" % ord(c) for c in letters)) if simple else b""
    shape: Any = str
    for part in reversed(path):
        shape = msgspec.defstruct("Record", [("value", shape)], rename={"value": part})
    return _Field(
        path=path,
        quoted=tuple(quoted),
        keys=tuple(re.compile(re.escape(each) + rb"[ \t\r]*:") for each in quoted),
        odd=re.compile(rb"\\u(?i:" + codes + rb")") if codes else None,
        rare=re.compile(rb"\\u00" if all(ord(c) < 0x100 for c in letters) else rb"\\u"),
        decoder=msgspec.json.Decoder(shape),
    )
