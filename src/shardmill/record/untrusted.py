"""JSON that a stranger may have written → values whose every field has its type."""

import dataclasses
from collections.abc import Hashable
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from shardmill.spec import hints_of
from shardmill.system.names import show

LARGEST_NUMBER = (1 << 63) - 1
_LONGEST_VALUE = 4096
_T = TypeVar("_T")


def build(kind: type[_T], content: dict[str, Any]) -> _T:
    """A dataclass from its fields: `build(Counts, {"documents": 3})`. ValueError: one is not of its type."""
    hints = hints_of(cast(Hashable, kind))
    return kind(**{name: typed(hints[name], value) for name, value in content.items()})


def typed(hint: Any, value: Any) -> Any:
    """The value, if it has this type. Whole numbers are not negative and fit in 63 bits."""
    kind, inner = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return build(cast(type, hint), value)
    if kind in (Union, UnionType):
        return None if value is None and NoneType in inner else typed(inner[0], value)
    if kind is tuple and type(value) is list:
        return tuple(typed(inner[0], each) for each in value)
    if kind is dict and type(value) is dict:
        return {name: typed(inner[1], each) for name, each in value.items()}
    fits = value in inner if kind is Literal else type(value) is hint
    if not fits or (hint is int and not 0 <= value <= LARGEST_NUMBER):
        raise ValueError(f"{brief(value)} is not {'a whole number in range' if hint is int else 'of its type'}")
    return value


def check_depth(content: Any, most: int = 16) -> None:
    """What we write is never deeply nested, and a stranger's file must not exhaust the stack."""
    if not most:
        raise ValueError("it is nested too deeply")
    for inner in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        check_depth(inner, most - 1)


def brief(value: Any) -> str:
    """For a message: not too long, and safe on a terminal."""
    shown = repr(value)
    return show(shown if len(shown) <= _LONGEST_VALUE else shown[:_LONGEST_VALUE] + " …")
