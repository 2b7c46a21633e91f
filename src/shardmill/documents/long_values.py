"""A value too long for one Part → Parts of its text, cut where text can be cut exactly."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shardmill.documents import text, text_reader
from shardmill.documents.passages import character_boundary
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.records import Broken, Counted, checked
from shardmill.documents.rejects import Location
from shardmill.documents.rules import HELD_BYTES, TextRules
from shardmill.errors import InputError
from shardmill.io.reading import Reader
from shardmill.tokens.strings import Numbers

_WINDOW = 128 << 10
_LOOK_BACK = 4 << 10

Decode = Callable[[bytes, int, bool], tuple[bytes, int]]
"""A window of the raw value, the length of the text before it, and whether to replace what is not UTF-8
→ its text, and how many characters were replaced. Raises Broken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuePart:
    """A span of one long value; offsets in the inner Part are counted from the beginning of the value."""

    file: int
    after: Position
    location: Location
    inner: text.TextPart
    job_offset: int
    replaced: int = 0
    """Characters replaced in the whole value; counted with its first span."""

    @property
    def size(self) -> int:
        return len(self.inner.data)

    def pieces(self, _base: int, rules: TextRules, is_val: IsVal) -> Pieces:
        found = text.pieces_of(self.inner, self.job_offset, _as_document(rules), is_val)
        if self.replaced and len(found):
            found.count("replaced_characters", self.replaced)
        found.origin = self
        return found

    def origins(self, found: Pieces) -> Numbers:
        return np.full(len(found), self.location.record, np.int64)

    def place_of(self, _piece: int, _offset: int) -> Location:
        return self.location


class BytesReader:
    """A Reader of bytes in memory."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data = path, data
        self.size: int | None = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def done_until(self, offset: int) -> None:
        pass


class ValueReader:
    """The text of a value whose raw bytes are at [start, end) of a Reader, decoded a window at a time.

    boundary says where a window can end: not inside a character or an escape. Reading backwards starts over.
    """

    def __init__(
        self, reader: Reader, span: tuple[int, int], boundary: Callable[[bytes], int], decode: Decode, *, replace: bool
    ) -> None:
        self.path = reader.path
        self.size: int | None = None
        self._reader, self._replace = reader, replace
        self._first, self._last = span
        self._boundary, self._decode = boundary, decode
        self._rewind()

    def read(self, offset: int, length: int) -> bytes:
        if offset < self._kept:
            self._rewind()
        while self._kept + len(self._text) < offset + length and self._at < self._last:
            drop = min(min(offset, self._done) - self._kept - _LOOK_BACK, len(self._text))
            if drop > 0:
                del self._text[:drop]
                self._kept += drop
            self._text += self._next(self._kept + len(self._text))[0]
        return bytes(self._text[offset - self._kept : offset - self._kept + length])

    def done_until(self, offset: int) -> None:
        self._done = offset

    def check(self) -> int:
        """Decode all of it: how many characters were replaced. Raises Broken. What is not too long stays in memory."""
        self._rewind()
        done = all_replaced = 0
        while self._at < self._last:
            text, replaced = self._next(done)
            done += len(text)
            all_replaced += replaced
            self._text += text if done <= HELD_BYTES else b""
        if done > HELD_BYTES:
            self._rewind()
        return all_replaced

    def _rewind(self) -> None:
        self._at, self._kept, self._done = self._first, 0, 0
        self._text = bytearray()

    def _next(self, done: int) -> tuple[bytes, int]:
        raw = self._reader.read(self._at, min(_WINDOW, self._last - self._at))
        raw = raw if self._at + len(raw) == self._last else raw[: self._boundary(raw)]
        if not raw:
            raise Broken("it ends too early")
        self._at += len(raw)
        return self._decode(raw, done, self._replace)


class Cursor:
    """A position in a Reader that moves forward by regular expressions, a window at a time."""

    def __init__(self, reader: Reader, at: int, end: int = 1 << 62) -> None:
        self._reader, self._end = reader, end
        self._buffer, self._base, self._at = b"", at, 0

    @property
    def position(self) -> int:
        return self._base + self._at

    def peek(self) -> int | None:
        """The next byte; None at the end."""
        self.need(1)
        return self._buffer[self._at] if self._at < len(self._buffer) else None

    def step(self) -> None:
        """Past the byte that peek returned."""
        self._at += 1

    def skip(self, pattern: re.Pattern[bytes]) -> None:
        """Past all that matches, which may be of any length."""
        while self.peek() is not None:
            found = pattern.match(self._buffer, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._buffer):
                return

    def match(self, pattern: re.Pattern[bytes], longest: int) -> bytes | None:
        """Past what matches, which is at most so long, and what it was; None if nothing does."""
        self.need(longest)
        found = pattern.match(self._buffer, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found.group()

    def need(self, count: int) -> None:
        """Read on until so many bytes are at hand, or the end is."""
        while len(self._buffer) - self._at < count:
            end = self._base + len(self._buffer)
            data = self._reader.read(end, min(_WINDOW, self._end - end))
            if not data:
                return
            self._buffer = self._buffer[self._at :] + data
            self._base, self._at = self._base + self._at, 0


def plain(reader: Reader, span: tuple[int, int], *, replace: bool) -> ValueReader:
    """A value whose raw bytes are its text."""
    return ValueReader(reader, span, lambda raw: character_boundary(raw, len(raw)), checked, replace=replace)


def long_parts(
    value: ValueReader | Broken, here: Position, after: Position, location: Location, job_offset: int, rules: TextRules
) -> Iterator[ValuePart | Counted]:
    """A long value in a file, checked first; here.begin bytes of its text are done already."""
    try:
        if isinstance(value, Broken):
            raise value
        replaced = value.check()
    except Broken as e:
        yield Counted(file=here.file, after=after, location=location, complaint=str(e), repairable=e.repairable)
        return
    try:
        yield from value_parts(value, here, after, location, job_offset, rules, replaced)
    except Broken as e:
        raise InputError(
            f"{location}: was good at first, and now {e}: it changed while it was read; let whatever writes it finish, then start again with --overwrite"
        ) from e


def value_parts(
    reader: Reader,
    here: Position,
    following: Position,
    location: Location,
    job_offset: int,
    rules: TextRules,
    replaced: int = 0,
) -> Iterator[ValuePart | Counted]:
    """Valid text in Parts, from exact cut to exact cut; here.begin bytes of it are done already."""
    if not here.begin and not reader.read(0, 1):
        yield Counted(file=here.file, after=following, location=location, empty=1)
    start = Position(file=here.file, offset=here.begin)
    for inner in text_reader.read_parts(start, reader, job_offset, _as_document(rules), is_value=True):
        assert isinstance(inner, text.TextPart)
        done = inner.offset + len(inner.data)
        yield ValuePart(
            file=here.file,
            after=dataclasses.replace(here, begin=done) if inner.open else following,
            location=location,
            inner=inner,
            job_offset=job_offset,
            replaced=0 if inner.offset else replaced,
        )


def _as_document(rules: TextRules) -> TextRules:
    """The rules for a value, which is one document, and is known to be valid."""
    return dataclasses.replace(rules, separator=None, passage_bytes=None, border=None, on_error="stop")
