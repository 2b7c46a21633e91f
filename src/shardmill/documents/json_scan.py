"""One line of JSON of any length → the string in one field, or the values that --where asks for, in bounded memory.

The line is parsed a window at a time, and so is its string unescaped when it is read. This is for lines that are too
long to hold, and for those with which something is wrong: in which words they are refused, and how deep they may be
nested, must not depend on the Python.
"""

import json
import re
from collections.abc import Callable
from typing import cast

import numpy as np

from shardmill.documents import utf8
from shardmill.documents.long_values import Cursor, ValueReader
from shardmill.documents.passages import character_boundary
from shardmill.documents.records import Broken
from shardmill.documents.where import VALUE_BYTES, Value, Where, integer
from shardmill.io.reading import Reader

DEPTH = 900
# Python's json takes this much in every version. Up to 3.11 it gives up at 1,000, calls in progress included.
_SHALLOW = 500
_LONGEST_NAME = 64 << 10
_NAMES_SHOWN = 20
_SPACE = re.compile(rb"[ \t\r]*")
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BYTES = 6
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f]+|' + _ESCAPE.pattern + rb")*")
_SCALAR = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity")
_SCALAR_BYTES = re.compile(rb"[-+.0-9A-Za-z]*")
_NO_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_END = "$"
_NONE = "?"
_KINDS = {"{": "an object", "[": "a list", '"': "a string", "t": "true", "f": "false", "n": "null", "0": "a number"}
"""What a value is, by the first byte of its token; 0 stands for all numbers."""
_VALUE = "".join(_KINDS)
_EXPECTED = {
    "{": "an object",
    '"}': "a field name or }",
    '"': "a field name",
    ":": "a colon",
    _VALUE: "a value",
    _VALUE + "]": "a value or ]",
    ",}": "a comma or }",
    ",]": "a comma or ]",
    _END: "the end of the line",
}
"""The kinds of token that may come next, and what to call them."""


def is_deep(line: str) -> bool:
    """Whether a line is nested deeper than Python's json may be asked to go."""
    if line.count("[") + line.count("{") <= _SHALLOW:
        return False
    brackets = np.frombuffer(_NO_BRACKETS.sub("", line).encode(), np.uint8)
    levels = np.cumsum(np.where(np.isin(brackets, list(b"[{")), 1, -1))
    return bool(levels.max(initial=0) > _SHALLOW)


def find_string(reader: Reader, span: tuple[int, int], path: tuple[str, ...]) -> tuple[int, int]:
    """Where the content of the string in a field is, without its quotes, in the line at [start, end). Raises Broken."""
    scan = _Scan(reader, span, path)
    scan.run()
    name = ".".join(path)
    if scan.repeated:
        raise Broken(f"field {name!r} occurs twice")
    if scan.blocked is not None:
        raise Broken(f"field {name!r} is {scan.blocked}, not a string")
    if scan.value is None:
        raise Broken(missing(path, scan.names))
    kind, found = scan.value
    if kind != '"':
        raise Broken(f"field {name!r} is {_KINDS[kind]}, not a string")
    return found


def is_wanted(reader: Reader, span: tuple[int, int], where: Where) -> bool:
    """Whether the line at [start, end) passes the filter; a line that is not JSON does, to be refused as such."""
    values: list[Value] = []
    for field in where.fields:
        scan = _Scan(reader, span, field)
        try:
            scan.run()
        except Broken:
            return True
        values.append(None if scan.value is None else _read_value(reader, *scan.value))
    return where.test(values)


def _read_value(reader: Reader, kind: str, span: tuple[int, int]) -> Value:
    """A value as Python's json has it, of a string the beginning; None for objects and lists, which nothing equals."""
    raw = reader.read(span[0], min(span[1] - span[0], VALUE_BYTES))
    if kind in "{[n":
        return None
    if kind != '"':
        return cast(Value, json.loads(raw, parse_int=integer))
    raw = raw if len(raw) == span[1] - span[0] else raw[: _boundary(raw)]
    return unquoted(raw.decode("utf-8", "replace"))


class _Scan:
    """A walk through one line, token by token."""

    def __init__(self, reader: Reader, span: tuple[int, int], path: tuple[str, ...]) -> None:
        self._reader, self._start, self._path = reader, span[0], path
        self._cursor = Cursor(reader, *span)
        self.names: list[str] = []
        """The names beside the one that was looked for, as far as they are shown."""
        self.value: tuple[str, tuple[int, int]] | None = None
        """What is in the field: the kind of its token, and where it is; if there are several, in the last."""
        self.blocked: str | None = None
        """What is on the path to the field and has no fields."""
        self.repeated = False

    def run(self) -> None:
        """level is how many names of the path lead to the next value; -1: it is not on the path."""
        stack: list[tuple[str, int, bool]] = []  # the closing bracket, the level, whether our name occurred in it
        expected, level = "{", 0
        while True:
            kind, start, end = self._token()
            if kind not in expected:
                if not stack and kind in _VALUE and expected != _END:
                    raise Broken("is not an object")
                raise self._broken(f"{_EXPECTED[expected]} expected", start - (kind == '"'))
            if kind == _END:
                return
            if kind == ":":
                expected = _VALUE
                continue
            if kind == ",":
                closing, own, _ = stack[-1]
                expected, level = ('"', own) if closing == "}" else (_VALUE, -1)
                continue
            if expected in ('"', '"}') and kind == '"':
                closing, own, seen = stack[-1]
                ours = self._is_name(start, end, own)
                self.repeated |= ours and seen
                self.value = None if ours else self.value
                stack[-1] = (closing, own, seen or ours)
                expected, level = ":", own + 1 if ours else -1
                continue
            if kind in "}]":
                stack.pop()
            else:
                self._note(kind, (start, end), level)
            if kind in "{[":
                if len(stack) == DEPTH:
                    raise Broken(f"is nested more than {DEPTH} deep")
                on_path = kind == "{" and level < len(self._path)
                stack.append(("}" if kind == "{" else "]", level if on_path else -1, False))
                expected, level = ('"}', level) if kind == "{" else (_VALUE + "]", -1)
            else:
                expected = f",{stack[-1][0]}" if stack else _END

    def _token(self) -> tuple[str, int, int]:
        """The kind of the next token, and where it is, a string without its quotes; _NONE if it is no token of JSON."""
        self._cursor.skip(_SPACE)
        start, byte = self._cursor.position, self._cursor.peek()
        if byte is None:
            return _END, start, start
        if byte in b"{}[],:":
            self._cursor.step()
            return chr(byte), start, start + 1
        if byte == ord('"'):
            self._string()
            return '"', start + 1, self._cursor.position - 1
        word = self._cursor.match(_SCALAR_BYTES, _LONGEST_NAME)
        if not word or not _SCALAR.fullmatch(word):
            return _NONE, start, start
        return (chr(byte) if byte in b"tfn" else "0"), start, self._cursor.position

    def _string(self) -> None:
        self._cursor.step()
        while True:
            self._cursor.skip(_PLAIN)
            byte = self._cursor.peek()
            if byte == ord('"'):
                return self._cursor.step()
            if byte is None:
                raise self._broken("the line ends inside a string", self._cursor.position)
            if self._cursor.match(_ESCAPE, _ESCAPE_BYTES) is None:
                raise self._broken("control character or invalid escape in a string", self._cursor.position)

    def _note(self, kind: str, span: tuple[int, int], level: int) -> None:
        """Remember a value if it is in the field, or in place of an object on the path to it."""
        if level == len(self._path):
            self.value = kind, span
        elif kind != "{" and level > 0:
            self.blocked = f"inside {'.'.join(self._path[:level])!r}, which is not an object"

    def _is_name(self, start: int, end: int, level: int) -> bool:
        """Whether a key is the next name of the path."""
        if level < 0 or end - start > _LONGEST_NAME:
            return False
        name = unquoted(self._reader.read(start, end - start).decode("utf-8", "replace"))
        if level == len(self._path) - 1 and len(self.names) <= _NAMES_SHOWN:
            self.names.append(name)
        return name == self._path[level]

    def _broken(self, reason: str, at: int) -> Broken:
        return Broken(f"is not JSON: {reason}, at byte {at - self._start:,} of the line")


def missing(path: tuple[str, ...], names: list[str]) -> str:
    """Why a record without the field is refused, with the names that it has."""
    shown = ", ".join(names[:_NAMES_SHOWN]) + (" …" if len(names) > _NAMES_SHOWN else "")
    present = f"the record has: {shown} (choose one with --field)" if names else "the record has none"
    return f"field {'.'.join(path)!r} is missing; {present}"


def string_reader(reader: Reader, span: tuple[int, int], *, replace: bool) -> ValueReader:
    """The text of the JSON string whose content is at [start, end)."""
    return ValueReader(
        reader, span, _boundary, lambda raw, _, replace: decoded(raw, unquoted, replace), replace=replace
    )


def decoded(raw: bytes, parse: Callable[[str], str], replace: bool) -> tuple[bytes, int]:
    """The text that `parse` finds in raw JSON, as UTF-8, and how many characters were replaced by U+FFFD. Raises Broken."""
    try:
        return parse(raw.decode()).encode(), 0
    except UnicodeDecodeError:
        complaint = utf8.complaint(raw)
    except UnicodeEncodeError:
        complaint = "its text contains half of a surrogate pair"
    if not replace:
        raise Broken(complaint, repairable=True)
    lenient = parse(raw.decode("utf-8", "replace")).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    before = parse(raw.decode("utf-8", "surrogateescape")).count("\ufffd")
    return lenient.encode(), lenient.count("\ufffd") - before


def unquoted(content: str) -> str:
    """The text of a JSON string, from what is between its quotes."""
    return str(json.loads('"' + content + '"'))


def _boundary(raw: bytes) -> int:
    """Where raw can be cut: not inside an escape, a surrogate pair or a character."""
    end = len(raw)
    start = _last_escape(raw, end)
    if start is not None and start + (6 if raw[start + 1 : start + 2] == b"u" else 2) > end:
        end = start
        start = _last_escape(raw, end)
    if start is not None and start + 6 == end and _HIGH_SURROGATE.match(raw, start):
        end = start
    return character_boundary(raw, end)


def _last_escape(raw: bytes, end: int) -> int | None:
    """Where an escape begins in the last six bytes before end, if one does; two backslashes are one escape."""
    found = raw.rfind(b"\\", max(0, end - 6), end)
    if found < 0:
        return None
    before = raw[: found + 1]
    return found if (len(before) - len(before.rstrip(b"\\"))) % 2 else None
