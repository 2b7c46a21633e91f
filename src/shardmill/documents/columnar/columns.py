"""Rows of a text column → Parts. Parquet and Arrow share this."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.documents import utf8
from shardmill.documents.long_values import ValuePart, ValueReader, long_parts, plain
from shardmill.documents.pieces import Position
from shardmill.documents.records import Broken, Counted, Records
from shardmill.documents.rejects import Location
from shardmill.documents.rules import TextRules, block_bytes, weight
from shardmill.documents.where import Field, field_name
from shardmill.errors import ContentError
from shardmill.io.reading import Reader
from shardmill.system.names import show

# Memory for one page or record batch, unless the files turn out to need more.
LEAST_HELD = 16 << 20
_COLUMNS_NAMED = 20
TEXT = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())

Values = list[bytes | None] | ValueReader
"""Consecutive short values (None is null), or a single long one."""


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
    values: list[bytes | None]
    size: int
    kept: list[bool] | None = None
    """Which rows --where wants; None: all."""

    @property
    def file(self) -> int:
        return self.of.file

    @property
    def after(self) -> Position:
        return self.of.position(self.row + len(self.values))

    def checked(self, rules: TextRules) -> Records:
        first = self.of.spent(self.row)
        found = Records(
            rules=rules,
            location=lambda index, _: Location(path=self.of.path, row=self.row + index),
            job_offset=self.of.base + first,
            first=self.row,
        )
        count = len(self.values)
        by_position = rules.border is not None  # otherwise it does not matter where rows begin
        offsets = [self.of.spent(self.row + i) - first for i in range(count)] if by_position else [0] * count
        documents = [value for value in self.values if value is not None]
        kept = self.kept or [True] * count
        # All at once: after a newline, no value can complete a character of the one before it.
        if len(documents) == count and utf8.is_valid(b"\n".join(documents)):
            found.add_all(documents, offsets)
            return found
        for index, (value, offset, wanted) in enumerate(zip(self.values, offsets, kept, strict=True)):
            if not wanted:
                found.leave_out()
            elif value is None:
                found.refuse(Broken(f"column {rules.field!r} is null"), index, offset)
            else:
                found.add_text(value, index, offset)
        return found


def parts_of(
    values: Iterable[tuple[int, Values]],
    of: Rows,
    start: Position,
    rules: TextRules,
    kept: Callable[[int, int], list[bool]] | None = None,
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
            rest = found[skipped:] if skipped else found
            wanted = kept(row + skipped, len(rest)) if kept is not None else None
            rest = [value if want else None for value, want in zip(rest, wanted)] if wanted else rest
            size = weight(sum(map(len, filter(None, rest))), len(rest))
            yield RowsPart(of=of, row=row + skipped, values=rest, size=size, kept=wanted)


def window_bytes(file: int, row: int, rules: TextRules) -> int:
    """How much text to take at once from this row on; a longer value is read by itself."""
    return min(block_bytes(file, row, rules), rules.max_run_bytes)


def fitting(sizes: npt.NDArray[np.int64], window: int) -> int:
    """How many of the next values to take, of these sizes: as many as fit in a window, and at least one."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), window, side="right")))


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
