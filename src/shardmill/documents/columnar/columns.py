"""Rows of a text column → Parts. Parquet and Arrow share this."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.documents import native
from shardmill.documents.long_values import ValuePart, ValueReader, long_parts, plain
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.records import Broken, Counted, Records, checked
from shardmill.documents.rejects import Location
from shardmill.documents.rules import TextRules, weight
from shardmill.documents.where import Field, field_name
from shardmill.errors import ContentError
from shardmill.io.reading import Reader
from shardmill.system.names import show
from shardmill.tokens.strings import Flags, Numbers, Strings

_COLUMNS_NAMED = 20
TEXT = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


@dataclass(frozen=True, slots=True)
class ShortValues:
    """Consecutive values, and which of them are null."""

    texts: Strings
    null: Flags

    @staticmethod
    def of(values: list[bytes | None]) -> "ShortValues":
        null = np.array([value is None for value in values], np.bool_)
        return ShortValues(Strings.of([value or b"" for value in values]), null)

    @staticmethod
    def within(data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, null: Flags | None = None) -> "ShortValues":
        """Values in a page or batch, copied: they may outlive it."""
        low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        texts = Strings.within(data[low:high].copy(), starts - low, ends - low)
        return ShortValues(texts, np.zeros(len(starts), np.bool_) if null is None else null)

    @staticmethod
    def of_array(array: Any) -> "ShortValues":
        """Of an Arrow array of binary values."""
        if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
            return ShortValues.of(array.to_pylist())
        _, offsets, data = array.buffers()
        kind = np.int64 if pa.types.is_large_binary(array.type) else np.int32
        bounds = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1].astype(np.int64)
        null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        return ShortValues.within(np.frombuffer(data or b"", np.uint8), bounds[:-1], bounds[1:], null)

    def __len__(self) -> int:
        return len(self.null)

    def take(self, chosen: slice) -> "ShortValues":
        return ShortValues(self.texts.take(chosen), self.null[chosen])


Values = ShortValues | ValueReader
"""Consecutive short values, or a single long one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of one file: their locations, and how much of the file they account for."""

    file: int
    path: str
    base: int
    offset: int = 0
    """Where these rows begin in the file, if the format says."""
    size: int = 0
    rows: int = 0
    """Bytes and rows of the whole file, if the number of rows is known."""

    def spent(self, row: int) -> int:
        """Bytes of the file consumed when this row is reached."""
        return self.size * row // self.rows if self.rows else self.offset

    def position(self, row: int, begin: int = 0) -> Position:
        return Position(file=self.file, offset=self.spent(row), record=row, begin=begin)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsPart:
    """Consecutive rows of one column."""

    of: Rows
    row: int
    values: ShortValues
    kept: Flags | None = None
    """Which rows --where wants; None: all."""

    @property
    def file(self) -> int:
        return self.of.file

    @property
    def size(self) -> int:
        texts = self.values.texts
        return weight(texts.total if self.kept is None else int(texts.sizes[self.kept].sum()), len(self.values))

    @property
    def after(self) -> Position:
        return self.of.position(self.row + len(self.values))

    def pieces(self, _base: int, rules: TextRules, is_val: IsVal) -> Pieces:
        return self.parsed(rules).pieces(is_val)

    def parsed(self, rules: TextRules) -> Records:
        first, count = self.of.spent(self.row), len(self.values)
        by_position = rules.border is not None  # otherwise it does not matter where rows begin
        rows = range(self.row, self.row + count) if by_position else ()
        texts, null = self.values.texts, self.values.null

        def judge(index: int) -> tuple[bytes, int]:
            if null[index]:
                raise Broken(f"column {rules.field!r} is null")
            return checked(texts[index], 0, rules.on_error == "replace")

        return Records(
            rules=rules,
            examined=native.examine(texts, null, rules.hashed),
            judge=judge,
            filtered=None if self.kept is None else ~self.kept,
            offsets=np.array([self.of.spent(row) - first for row in rows], np.int64)
            if rows
            else np.zeros(count, np.int64),
            location=lambda index, _: Location(path=self.of.path, row=self.row + index),
            job_offset=self.of.base + first,
            first=self.row,
        )


def parts_of(
    values: Iterable[tuple[int, Values]],
    of: Rows,
    start: Position,
    rules: TextRules,
    kept: Callable[[int, int], Flags] | None = None,
) -> Iterator[RowsPart | ValuePart | Counted]:
    """Values, each with the number of its first row, as Parts; rows before start are skipped.

    kept says which of so many rows, from a row on, are wanted.
    """
    for row, found in values:
        if isinstance(found, ValueReader):
            if row >= start.record:
                here = of.position(row, start.begin if row == start.record else 0)
                location, job_offset = Location(path=of.path, row=row), of.base + of.spent(row)
                if kept is not None and not kept(row, 1)[0]:
                    yield Counted(file=of.file, after=of.position(row + 1), location=location, filtered=1)
                    continue
                yield from long_parts(found, here, of.position(row + 1), location, job_offset, rules)
        elif row + len(found) > start.record:
            skipped = max(0, start.record - row)
            rest = found.take(slice(skipped, None)) if skipped else found
            wanted = kept(row + skipped, len(rest)) if kept is not None else None
            yield RowsPart(of=of, row=row + skipped, values=rest, kept=wanted)


def fitting(sizes: npt.NDArray[np.int64], window: int, longest: int) -> int:
    """How many of the next values to take, of these sizes: as many as fit in a window, and at least one. One that is
    longer than `longest` is taken by itself."""
    count = int(np.searchsorted(np.cumsum(sizes), window, side="right"))
    if count > 1 and window > longest:
        long = sizes[:count] > longest
        count = int(long.argmax()) if long.any() else count
    return max(1, count)


def long_value(body: Reader, start: int, end: int, rules: TextRules) -> ValueReader:
    """A value that is too long to be taken at once."""
    return plain(body, (start, end), replace=rules.on_error == "replace")


def choose_column(schema: Any, field: str, path: str) -> tuple[str, tuple[str, ...]]:
    """The top-level column that holds the text, and the names inside it."""
    top, names, kind = find_column(schema, tuple(field.split(".")), path, "--column")
    kind = without_dictionary(kind)
    if kind not in TEXT:
        raise ContentError(f"{show(path)}: column {field!r} has type {kind}, not text; name another with --column")
    return top, names


def find_column(schema: Any, field: Field, path: str, option: str) -> tuple[str, tuple[str, ...], Any]:
    """A top-level column, the names inside it, and the type there: a.b if that is a column, else b in a."""
    names, whole = schema.names, field_name(field)
    top, inner = (whole, ()) if whole in names else (field[0], field[1:])
    try:
        count = names.count(top)
        if count > 1:
            raise ContentError(f"{show(path)}: {count} columns are named {top!r}; rename them")
        kind = schema.field(top).type
        for name in inner:
            kind = kind.field(name).type
    except (KeyError, AttributeError, TypeError):
        found = ", ".join(names[:_COLUMNS_NAMED]) + (" …" if len(names) > _COLUMNS_NAMED else "")
        what = "Name the text column" if option == "--column" else "Name one of them"
        raise ContentError(f"{show(path)}: no column {whole!r}; there are: {found}. {what} with {option}") from None
    return top, inner, kind


def without_dictionary(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
