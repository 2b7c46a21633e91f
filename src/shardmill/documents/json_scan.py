"""One line of JSON of any length → the string of one field of it, in bounded memory.

The line is looked through window by window, and its string is unescaped window by window when it is read.
Ordinary lines do not come here.
"""

import codecs
import json
import re
from dataclasses import dataclass

from shardmill.documents import utf8
from shardmill.documents.long_values import Broken, ValueReader
from shardmill.documents.passages import character_boundary
from shardmill.io.reading import Reader

DEPTH = 900
_WINDOW = 128 << 10
_LONGEST_NAME = 64 << 10
_NAMES_TOLD = 20
_SPACE = re.compile(rb"[ \t\r]*")
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f]+|' + _ESCAPE.pattern + rb")*")
_SCALAR = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity")
_SCALAR_BYTES = re.compile(rb"[-+.0-9A-Za-z]*")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_VALUES = b'["-0123456789tfnNI'
_NAMES = {ord("{"): "an object", ord("["): "a list", ord("t"): "true", ord("f"): "false", ord("n"): "null"}


HALF_A_PAIR = "its text holds half of a surrogate pair, which is no character"


class NoObject(Broken):
    """A line that does not begin as an object; following is where the next one begins."""

    def __init__(self, following: int, first: bytes) -> None:
        super().__init__("is not an object" if first in _VALUES else "is not JSON: this is no JSON value")
        self.following = following


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Where a line lies, its end-of-line mark included in `following`, and what of it is not UTF-8."""

    at: int
    end: int
    following: int
    complaint: str | None


def find_line(reader: Reader, at: int, newline: bytes) -> Line:
    """Where a line ends. Raises Broken, with all of the line let go of, if it cannot be an object."""
    start = reader.read(at, _WINDOW).lstrip(b" \t\r")
    if start and not start.startswith((b"{", newline)):
        raise NoObject(_pass_line(reader, at, newline), start[:1])
    decoder = codecs.getincrementaldecoder("utf-8")()
    complaint = None
    end = at
    while True:
        data = reader.read(end, _WINDOW)
        found = data.find(newline)
        last = found >= 0 or len(data) < _WINDOW
        data = data[:found] if found >= 0 else data
        if complaint is None:
            try:
                decoder.decode(data, final=last)
            except UnicodeDecodeError as e:
                complaint = utf8.complaint(e.object, end - at - (len(e.object) - len(data)))
        end += len(data)
        if last:
            return Line(at=at, end=end, following=end + (len(newline) if found >= 0 else 0), complaint=complaint)


def _pass_line(reader: Reader, at: int, newline: bytes) -> int:
    """Where the next line begins."""
    while data := reader.read(at, _WINDOW):
        found = data.find(newline)
        if found >= 0:
            return at + found + len(newline)
        at += len(data)
        reader.done_until(at)
    return at


def find_string(reader: Reader, line: Line, path: tuple[str, ...]) -> tuple[int, int]:
    """Where the content of the wanted string lies, between its quotes. Raises Broken if it is not to be had."""
    return _Scan(reader, line, path).run()


class _Scan:
    """A walk through one line, token by token."""

    def __init__(self, reader: Reader, line: Line, path: tuple[str, ...]) -> None:
        self._reader, self._line, self._path = reader, line, path
        self._base, self._buffer, self._at = line.at, b"", 0
        self._names: list[str] = []
        self._strings: list[tuple[int, int]] = []
        self._other: str | None = None
        self._twice = False

    def run(self) -> tuple[int, int]:
        self._walk()
        name = ".".join(self._path)
        if self._twice:
            raise Broken(f"field {name!r} is there twice")
        if self._other is not None:
            raise Broken(f"field {name!r} is {self._other}, not a string")
        if not self._strings:
            raise Broken(missing(self._path, self._names))
        return self._strings[0]

    def _walk(self) -> None:
        """level counts the names of the path that led to where we are; -1: it was another path."""
        stack: list[tuple[int, int, bool]] = []  # the closing mark, the level, whether our name was seen in it
        expect, level = "value", 0
        while True:
            self._skip(_SPACE)
            byte = self._peek()
            if byte is None:
                if expect == "after" and not stack:
                    return
                raise self._broken("the line ends in the middle of it")
            if expect == "after":
                if not stack:
                    raise self._broken("something follows after the object")
                closing, own, _ = stack[-1]
                if byte == closing:
                    stack.pop()
                elif byte == ord(","):
                    expect, level = ("key", own) if closing == ord("}") else ("value", -1)
                else:
                    raise self._broken("a comma is missing, or the end of an object or list")
                self._at += 1
            elif expect == "colon":
                if byte != ord(":"):
                    raise self._broken("a colon is missing")
                self._at += 1
                expect = "value"
            elif expect in ("key", "first key"):
                if byte == ord("}") and expect == "first key":
                    stack.pop()
                    self._at += 1
                    expect = "after"
                    continue
                closing, own, seen = stack[-1]
                ours = self._key(byte, own)
                self._twice |= ours and seen
                stack[-1] = (closing, own, seen or ours)
                expect, level = "colon", own + 1 if ours else -1
            elif byte == ord("]") and expect == "first value":
                stack.pop()
                self._at += 1
                expect = "after"
            else:
                expect, level = self._value(byte, level, stack)

    def _value(self, byte: int, level: int, stack: list[tuple[int, int, bool]]) -> tuple[str, int]:
        wanted = level == len(self._path)
        if not stack and byte != ord("{"):
            raise Broken("is not an object") if byte in _VALUES else self._broken("this is no JSON value")
        if wanted and byte != ord('"'):
            self._other = _NAMES.get(byte, "a number")
        elif byte != ord("{") and 0 < level < len(self._path):
            self._other = f"inside {'.'.join(self._path[:level])!r}, which is no object"
        if byte in b"{[":
            if len(stack) == DEPTH:
                raise Broken(f"is nested more than {DEPTH} deep")
            self._at += 1
            is_object = byte == ord("{")
            stack.append((ord("}") if is_object else ord("]"), level if is_object and not wanted else -1, False))
            return ("first key", level) if is_object else ("first value", -1)
        if byte == ord('"'):
            span = self._string()
            if wanted:
                self._strings.append(span)
        else:
            self._scalar()
        return "after", -1

    def _key(self, byte: int, level: int) -> bool:
        """Pass over a name; whether it is the next one of the path."""
        if byte != ord('"'):
            raise self._broken("the name of a field is missing")
        start, end = self._string()
        if level < 0 or end - start > _LONGEST_NAME:
            return False
        raw = self._reader.read(start, end - start)
        name = json.loads('"' + raw.decode("utf-8", "replace") + '"')
        if level == len(self._path) - 1 and len(self._names) < _NAMES_TOLD:
            self._names.append(name)
        return bool(name == self._path[level])

    def _string(self) -> tuple[int, int]:
        """Pass over a string; where its content lies."""
        self._at += 1
        start = self._base + self._at
        while True:
            self._skip(_PLAIN)
            byte = self._peek()
            if byte == ord('"'):
                self._at += 1
                return start, self._base + self._at - 1
            if byte is None:
                raise self._broken("the line ends in the middle of a string")
            self._need(6)
            escape = _ESCAPE.match(self._buffer, self._at)
            if escape is None:
                raise self._broken("a string holds a control character or a wrong escape")
            self._at = escape.end()

    def _scalar(self) -> None:
        self._need(1 << 10)
        found = _SCALAR_BYTES.match(self._buffer, self._at)
        assert found is not None
        while found.end() == len(self._buffer) and found.end() - self._at < _LONGEST_NAME and self._more():
            found = _SCALAR_BYTES.match(self._buffer, self._at)
            assert found is not None
        if not _SCALAR.fullmatch(found.group()):
            raise self._broken("this is no JSON value")
        self._at = found.end()

    def _skip(self, pattern: re.Pattern[bytes]) -> None:
        while True:
            found = pattern.match(self._buffer, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._buffer) or not self._more():
                return

    def _peek(self) -> int | None:
        self._need(1)
        return self._buffer[self._at] if self._at < len(self._buffer) else None

    def _need(self, count: int) -> None:
        while len(self._buffer) - self._at < count and self._more():
            pass

    def _more(self) -> bool:
        """Another window; what was passed is forgotten."""
        end = self._base + len(self._buffer)
        data = self._reader.read(end, min(_WINDOW, self._line.end - end))
        self._buffer = self._buffer[self._at :] + data
        self._base += self._at
        self._at = 0
        return bool(data)

    def _broken(self, reason: str) -> Broken:
        return Broken(f"is not JSON: {reason}, at byte {self._base + self._at - self._line.at:,} of the line")


def missing(path: tuple[str, ...], names: list[str]) -> str:
    """The words for a field that is not there."""
    there = ", ".join(names[:_NAMES_TOLD]) + (" …" if len(names) > _NAMES_TOLD else "")
    return (
        f"field {'.'.join(path)!r} is missing; there are: {there} (--field names the one to read)"
        if names
        else f"field {'.'.join(path)!r} is missing; there are none"
    )


def string_reader(reader: Reader, span: tuple[int, int], *, replace: bool) -> ValueReader:
    """The text of a JSON string whose content lies there."""
    return ValueReader(reader, span, _whole_units, _unescaped, replace=replace)


def _unescaped(raw: bytes, _done: int, replace: bool) -> tuple[bytes, int]:
    try:
        return json.loads('"' + raw.decode() + '"').encode(), 0
    except UnicodeError:
        if not replace:
            raise Broken(HALF_A_PAIR) from None
    honest = json.loads('"' + raw.decode("utf-8", "surrogateescape") + '"').count("\ufffd")
    data = lenient(json.loads('"' + raw.decode("utf-8", "replace") + '"'))
    return data, data.count("\ufffd".encode()) - honest


def lenient(text: str) -> bytes:
    """UTF-8 with U+FFFD in place of lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _whole_units(raw: bytes) -> int:
    """Where raw can be cut: not inside an escape, a pair of surrogates, or a character."""
    end = len(raw)
    start = _last_escape(raw, end)
    if start is not None and start + (6 if raw[start + 1 : start + 2] == b"u" else 2) > end:
        end = start
        start = _last_escape(raw, end)
    if start is not None and start + 6 == end and _HIGH_SURROGATE.match(raw, start):
        end = start
    return character_boundary(raw, end)


def _last_escape(raw: bytes, end: int) -> int | None:
    """Where an escape begins, if one does in the last six bytes before end: after pairs of backslashes, if any."""
    found = raw.rfind(b"\\", max(0, end - 6), end)
    if found < 0:
        return None
    before = raw[: found + 1]
    return found if (len(before) - len(before.rstrip(b"\\"))) % 2 else None
