"""The columns that --where asks for → which rows of a row group or record batch are wanted, a bit each."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.documents.columnar.columns import TEXT, Values, find_column, without_dictionary
from shardmill.documents.long_values import ValueReader
from shardmill.documents.rules import MAX_RECORDS, TextRules
from shardmill.documents.where import VALUE_BYTES, Value, Where, field_name
from shardmill.errors import ContentError
from shardmill.system.names import show
from shardmill.tokens.strings import Flags

# A bit for each row of a row group: 4 MiB.
_MOST_ROWS = 1 << 25
_AT_ONCE = 8 * MAX_RECORDS

Windows = Callable[[Any, TextRules], Iterator[tuple[int, Values]]]
"""A text column → its values, a window at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column that --where asks for: the top-level one, the names inside it, and whether it is text."""

    top: str
    names: tuple[str, ...]
    is_text: bool

    @property
    def path(self) -> str:
        return ".".join((self.top, *self.names))


def columns_of(schema: Any, where: Where | None, path: str) -> tuple[Column, ...]:
    """Where the fields of the filter are in a file; ContentError if one is missing or cannot be compared."""
    found = []
    for field in where.fields if where is not None else ():
        top, names, kind = find_column(schema, field, path, "--where")
        kind = without_dictionary(kind)
        if kind not in TEXT and not _is_comparable(kind):
            raise ContentError(
                f"{show(path)}: column {field_name(field)!r} has type {kind}, which --where cannot compare; choose one with numbers, text, dates or booleans"
            )
        found.append(Column(top=top, names=names, is_text=kind in TEXT))
    return tuple(found)


class Kept:
    """Which rows are wanted, of those from `first` on."""

    def __init__(self, first: int, rows: int, where: Where, columns: list[Iterator[Value]]) -> None:
        if rows > _MOST_ROWS:
            raise ValueError(
                f"there are {rows:,} rows, and --where takes {_MOST_ROWS:,} at a time: write smaller row groups"
            )
        self._first = first
        tests, bits, count = map(where.test, zip(*columns, strict=True)), [], 0
        while some := list(itertools.islice(tests, _AT_ONCE)):
            bits.append(np.packbits(some))
            count += len(some)
        if count != rows:
            raise ValueError(f"a column that --where asks for has {count:,} rows instead of {rows:,}")
        self._bits = np.concatenate(bits) if bits else np.zeros(0, np.uint8)

    def rows(self, row: int, count: int) -> Flags:
        """Of so many rows, from this one on."""
        at = row - self._first
        return np.unpackbits(self._bits[at // 8 : (at + count + 7) // 8])[at % 8 :][:count].view(np.bool_)


def texts(windows: Iterable[tuple[int, Values]]) -> Iterator[Value]:
    """The values of a text column, of each the beginning."""
    for _, found in windows:
        if isinstance(found, ValueReader):
            yield found.read(0, VALUE_BYTES).decode("utf-8", "replace")
        else:
            for value, is_null in zip(found.texts.heads(VALUE_BYTES), found.null.tolist()):
                yield None if is_null else value.decode("utf-8", "replace")


def scalars(array: Any) -> Iterator[Value]:
    """The values of any other column."""
    array.validate(full=True)
    for at in range(0, len(array), MAX_RECORDS):
        yield from _as_plain(array.slice(at, MAX_RECORDS)).to_pylist()


def inside(array: Any, names: tuple[str, ...]) -> Any:
    """The field of a struct array; where the struct is null, so is the field."""
    for name in names:
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def lenient(rules: TextRules) -> TextRules:
    """The rules for text that is only compared: bytes that are not UTF-8 do not matter."""
    return dataclasses.replace(rules, on_error="replace")


def _is_comparable(kind: Any) -> bool:
    types = pa.types
    checks = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_date)
    return any(check(kind) for check in (*checks, types.is_timestamp, types.is_null))


def _as_plain(array: Any) -> Any:
    """Numbers and booleans as they are; decimals as numbers, dates and times as text, as JSON would have them."""
    kind = without_dictionary(array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return array.cast(pa.float64())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return array.cast(pa.string())
    return array
