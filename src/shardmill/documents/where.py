"""--where 'score >= 3 and language in ("en", "de")' → whether a record is wanted, by the values of its fields.

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "(" condition ")" | field operator value | field ["not"] "in" "(" value { "," value } ")"
    operator   = "==" "!=" "<" "<=" ">" ">="
    field      = names joined by dots; a name with other characters stands in `backticks`
    value      = a number, a string in quotes, true or false

A comparison is false if the field is missing or null, or if the value is of another type.
"""

import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardmill.errors import UsageError
from shardmill.system.names import show

Value = str | int | float | bool | None
Field = tuple[str, ...]
"""Names: of a field, of a field in it, and so on."""
Test = Callable[[Sequence[Any]], bool]
"""The values of Where.fields, in their order; what is no Value never compares."""

# No longer string is compared with, so the first bytes of a longer value decide.
_LONGEST_STRING = 4096
VALUE_BYTES = 64 << 10
_LONGEST_INTEGER = 400
_DEEPEST = 50
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NAME = r"(?:[^\W\d][\w-]*|`[^`]+`)"
_TOKEN = re.compile(
    r"(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![\w.]))"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    rf"|(?P<name>{_NAME}(?:\.{_NAME})*)"
    r"|(?P<sign>==|!=|<=|>=|<|>|[()\[\],])",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t"}
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")


class Untyped(str):
    """A value of a format that has only text: compared as a number with numbers, if it looks like one."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which fields matter, and the test of their values.

    >>> parse(["score >= 3"]).test([4])
    True
    """

    fields: tuple[Field, ...]
    test: Test


def parse(conditions: Sequence[str]) -> Where | None:
    """All conditions together; None if there are none. UsageError says where one is wrong."""
    if not conditions:
        return None
    fields: list[Field] = []
    tests = [_Parser(text, fields).condition_to_end() for text in conditions]
    return Where(fields=tuple(fields), test=_all(tests))


def integer(digits: str) -> int | float:
    """A number in JSON, which may be too long to compute."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def field_name(field: Field) -> str:
    return ".".join(field)


class _Token(NamedTuple):
    kind: str
    """number, string, name, sign, or end."""
    text: str
    at: int

    def is_word(self, *words: str) -> bool:
        return self.kind in ("name", "sign") and self.text.lower() in words


class _Parser:
    """Recursive descent over one condition; adds the fields it meets to those of the others."""

    def __init__(self, text: str, fields: list[Field]) -> None:
        self._text, self._fields = text, fields
        self._tokens, self._depth = self._tokenized(), 0

    def condition_to_end(self) -> Test:
        test = self._condition()
        if self._tokens[0].kind != "end":
            raise self._error("expected 'and', 'or' or the end")
        return test

    def _condition(self) -> Test:
        tests = [self._conjunction()]
        while self._take("or"):
            tests.append(self._conjunction())
        return tests[0] if len(tests) == 1 else lambda values: any(test(values) for test in tests)

    def _conjunction(self) -> Test:
        tests = [self._one()]
        while self._take("and"):
            tests.append(self._one())
        return _all(tests)

    def _one(self) -> Test:
        if self._take("("):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error(f"parentheses nested more than {_DEEPEST} deep")
            test = self._condition()
            self._expect(")")
            self._depth -= 1
            return test
        number = self._field()
        negated = self._take("not")
        if self._take("in"):
            compare = _among(self._values(), negated=negated)
        elif negated:
            raise self._error("expected 'in' after 'not'")
        else:
            compare = self._comparison()
        return lambda values: compare(values[number])

    def _field(self) -> int:
        """The number of the field among all fields."""
        token = self._tokens[0]
        if token.is_word("not"):
            raise self._error("'not' stands only before 'in'; write x != 3, x < 3 or x not in (1, 2) instead")
        if token.kind != "name" or token.is_word("and", "or", "in", "not", "true", "false", "null", "none"):
            raise self._error("expected the name of a field (one with other characters in it in `backticks`)")
        self._tokens.pop(0)
        field = tuple(name.strip("`") for name in re.findall(_NAME, token.text))
        if field not in self._fields:
            self._fields.append(field)
        return self._fields.index(field)

    def _comparison(self) -> Callable[[Any], bool]:
        token = self._tokens[0]
        if token.kind != "sign" or token.text not in _OPERATORS:
            raise self._error(f"expected one of {' '.join(_OPERATORS)} or 'in'")
        self._tokens.pop(0)
        value = self._value()
        if isinstance(value, bool) and token.text not in ("==", "!="):
            raise self._error("true and false are only equal or not: expected == or !=", token)
        if self._tokens[0].kind == "sign" and self._tokens[0].text in _OPERATORS:
            raise self._error(
                f"two comparisons in one; repeat the field after 'and': … and NAME {self._tokens[0].text} …"
            )
        return _compared(_OPERATORS[token.text], value)

    def _values(self) -> list[Value]:
        closing = ")" if self._take("(") else "]"
        if closing == "]":
            self._expect("[", 'expected values in parentheses after \'in\', such as ("en", "de")')
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(closing)
        return values

    def _value(self) -> Value:
        token = self._tokens[0]
        if token.is_word("true", "false"):
            value: Value = token.text.lower() == "true"
        elif token.is_word("null", "none"):
            raise self._error("null equals nothing: a record without the value is always left out")
        elif token.kind == "number":
            value = integer(token.text) if re.fullmatch("[-+]?[0-9]+", token.text) else float(token.text)
        elif token.kind == "string":
            value = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), token.text[1:-1], flags=re.DOTALL)
            if len(value) > _LONGEST_STRING:
                raise self._error(f"a string may have {_LONGEST_STRING:,} characters, and this has {len(value):,}")
        else:
            quoted = f"; a string stands in quotes: {json.dumps(token.text)}" if token.kind == "name" else ""
            raise self._error(f"expected a number, a string in quotes, true or false{quoted}")
        self._tokens.pop(0)
        return value

    def _take(self, word: str) -> bool:
        if self._tokens[0].is_word(word):
            self._tokens.pop(0)
            return True
        return False

    def _expect(self, word: str, reason: str | None = None) -> None:
        if not self._take(word):
            raise self._error(reason or f"expected {word}")

    def _tokenized(self) -> list[_Token]:
        found, at = [], 0
        while at < len(self._text):
            if self._text[at].isspace():
                at += 1
                continue
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._error(_odd(self._text[at:]), _Token("", "", at))
            found.append(_Token(str(match.lastgroup), match[0], at))
            at = match.end()
        return [*found, _Token("end", "", at)]

    def _error(self, reason: str, token: _Token | None = None) -> UsageError:
        at = (token or self._tokens[0]).at
        rest = self._text[at:]
        place = f"at character {at + 1:,}, {show(rest[:20])!r}" if rest else "at the end"
        return UsageError(f"--where {show(self._text)!r}: {reason}, {place}")


def _odd(rest: str) -> str:
    if rest[0] == "=":
        return "= is not a comparison; write =="
    if rest[0] in "\"'`":
        return "a quote that is not closed"
    if rest.startswith(("&&", "&", "||", "|", "!")):
        return "write 'and', 'or' and !=, not signs of other languages"
    return "not part of a condition"


def _all(tests: list[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda values: all(test(values) for test in tests)


def _compared(compare: Callable[[Any, Any], bool], literal: Value) -> Callable[[Any], bool]:
    def test(value: Any) -> bool:
        value = _like(value, literal)
        return value is not None and compare(value, literal)

    return test


def _among(literals: list[Value], *, negated: bool) -> Callable[[Any], bool]:
    """in: equal to one. not in: comparable with one of them at least, and equal to none."""

    def test(value: Any) -> bool:
        alike = [(found, literal) for literal in literals if (found := _like(value, literal)) is not None]
        return bool(alike) and any(found == literal for found, literal in alike) != negated

    return test


def _like(value: Any, literal: Value) -> Value:
    """The value, if it can be compared with the literal; None otherwise."""
    if isinstance(literal, str):
        return value if isinstance(value, str) else None
    if isinstance(value, Untyped):
        if isinstance(literal, bool):
            return {"true": True, "false": False}.get(value.strip().lower())
        return _number(value)
    if isinstance(literal, bool) or isinstance(value, bool):
        return value if isinstance(value, bool) and isinstance(literal, bool) else None
    return value if isinstance(value, int | float) else None


def _number(text: str) -> int | float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    text = text.strip()
    return integer(text) if text.lstrip("-+").isdigit() else float(text)
