"""What all formats of records share: documents with their places, what is left out and why, and long values in stretches."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from shardmill.documents import text, utf8
from shardmill.documents.long_values import Broken, ValueReader
from shardmill.documents.pieces import Pieces, Position
from shardmill.documents.rejects import Reject
from shardmill.documents.rules import DOCUMENT_HEAD, TextRules
from shardmill.errors import InputError
from shardmill.io.reading import Reader
from shardmill.system.names import show


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """Where a record stands in its file. Of line and row, the one that the format has is set."""

    path: str
    byte: int | None = None
    line: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        parts = [show(self.path)]
        if self.line is not None:
            parts.append(f"line {self.line:,}")
        if self.row is not None:
            parts.append(f"row {self.row:,}")
        if self.byte is not None:
            parts.append(f"(byte {self.byte:,})" if len(parts) > 1 else f"byte {self.byte:,}")
        return " ".join(parts)

    @property
    def record(self) -> int:
        """The line or row, counted from 0; the byte where there are neither."""
        return self.row if self.row is not None else self.line - 1 if self.line is not None else self.byte or 0

    def reject(self, reason: str, records: int = 1) -> Reject:
        return Reject(path=self.path, reason=reason, byte=self.byte, line=self.line, row=self.row, records=records)


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The documents of one Part, and where each stands."""

    place: Callable[[int, int], Location]
    """A record's number in the Part, and its offset → its place."""
    where: int
    """The byte of the job where the Part begins, or would if rows were bytes."""
    found: Pieces = field(default_factory=Pieces)
    numbers: list[int] = field(default_factory=list)

    def add(self, document: bytes, number: int, offset: int) -> None:
        if document:
            self.found.add(document, offset, None)
            self.numbers.append(number)
        else:
            self.found.count("documents_empty")

    def add_all(self, documents: list[bytes], offsets: list[int]) -> None:
        """Many at once, none of them empty, to Records that have none yet."""
        found, count = self.found, len(documents)
        found.data, found.offsets, found.val = documents, offsets, [None] * count
        found.begins, found.ends = [True] * count, [True] * count
        self.numbers.extend(range(count))

    def add_text(self, rules: TextRules, document: bytes, number: int, offset: int) -> None:
        """A document that may not be UTF-8."""
        if utf8.is_valid(document):
            self.add(document, number, offset)
        elif rules.on_error == "replace":
            repaired, count = utf8.replaced(document)
            self.found.count("replaced_characters", count)
            self.add(repaired, number, offset)
        else:
            self.refuse(rules, number, offset, utf8.complaint(document), repairable=True)

    def refuse(self, rules: TextRules, number: int, offset: int, reason: str, *, repairable: bool = False) -> None:
        """A bad record: an error, or left out, as the rules have it."""
        refuse(self.found, self.place(number, offset), rules, reason, repairable=repairable)

    def keys(self, _base: int, rules: TextRules) -> tuple[list[int], int]:
        besides = sum(n for _, name, n in self.found.events if name in ("documents_empty", "documents_rejected"))
        return self._keys(self._wanted(rules), rules), len(self.found.data) + besides

    def pieces(self, _base: int, rules: TextRules, is_val: Callable[[int], bool]) -> Pieces:
        found = self._wanted(rules)
        if rules.wanted is not None:  # from here on, the numbers are of those that are wanted
            kept = zip(self.numbers, self.found.data, strict=True)
            self.numbers[:] = [number for number, data in kept if rules.wanted(data[:DOCUMENT_HEAD])]
        found.val = [is_val(key) for key in self._keys(found, rules)]
        return found

    def place_of(self, piece: int, offset: int) -> str:
        return str(self.place(self.numbers[piece], offset))

    def origins(self, found: Pieces) -> list[int]:
        return [self.place(number, offset).record for number, offset in zip(self.numbers, found.offsets)]

    def _keys(self, found: Pieces, rules: TextRules) -> list[int]:
        key, where = rules.key, self.where
        return [key(data[:DOCUMENT_HEAD], where + offset) for data, offset in zip(found.data, found.offsets)]

    def _wanted(self, rules: TextRules) -> Pieces:
        """Those in the sample."""
        if rules.wanted is None:
            return self.found
        kept, new_index, left_out = Pieces(), [], set()
        for number, (data, offset) in enumerate(zip(self.found.data, self.found.offsets, strict=True)):
            new_index.append(len(kept.data))
            if rules.wanted(data[:DOCUMENT_HEAD]):
                kept.add(data, offset, None)
            else:
                kept.count("documents_unsampled")
                left_out.add(number)
        new_index.append(len(kept.data))
        for at, name, number in self.found.events:
            if name != "replaced_characters" or at not in left_out:
                kept.events.append((new_index[at], name, number))
        kept.rejects = [(new_index[at], reject) for at, reject in self.found.rejects]
        if self.found.error is not None:
            kept.error = new_index[self.found.error[0]], self.found.error[1]
        return kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A Part without text: an empty file, a record too bad to hold, or the part of a file that cannot be read."""

    file: int
    after: Position
    place: Location
    empty: int = 0
    marks: int = 0
    complaint: str | None = None
    rejected: int = 1
    """How many documents the complaint is about."""
    error: InputError | None = None
    """An error of the reading itself, told in its turn."""
    size: int = 0

    def checked(self, rules: TextRules) -> "Counted":
        if self.error is not None:
            raise self.error
        if self.complaint is not None and not rules.limited:
            refuse(Pieces(), self.place, rules, self.complaint)
        return self

    def keys(self, _base: int, _rules: TextRules) -> tuple[list[int], int]:
        return [], self.empty + (0 if self.complaint is None else self.rejected)

    def pieces(self, _base: int, rules: TextRules, _is_val: Callable[[int], bool]) -> Pieces:
        found = Pieces()
        if self.marks:
            found.count("byte_order_marks", self.marks)
        if self.empty:
            found.count("documents_empty", self.empty)
        if self.complaint is not None:
            refuse(found, self.place, rules, self.complaint, records=self.rejected)
        return found

    def place_of(self, _piece: int, _offset: int) -> str:
        return str(self.place)

    def origins(self, found: Pieces) -> list[int]:
        return [self.place.record] * len(found.data)


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuePart:
    """A stretch of one value that is longer than a block; the inner Part counts its bytes in the value."""

    file: int
    after: Position
    place: Location
    inner: text.TextPart
    where: int
    replaced: int = 0
    """Characters of the value that were replaced; told with its first stretch."""

    @property
    def size(self) -> int:
        return len(self.inner.data)

    def checked(self, _rules: TextRules) -> "ValuePart":
        return self

    def keys(self, _base: int, rules: TextRules) -> tuple[list[int], int]:
        return text.keys_and_count(self.inner, self.where, whole(rules))

    def pieces(self, _base: int, rules: TextRules, is_val: Callable[[int], bool]) -> Pieces:
        found = text.pieces_of(self.inner, self.where, whole(rules), is_val)
        if self.replaced and found.data:
            found.count("replaced_characters", self.replaced, at=0)
        return found

    def origins(self, found: Pieces) -> list[int]:
        return [self.place.record] * len(found.data)

    def place_of(self, _piece: int, offset: int) -> str:
        return f"{self.place}, byte {self.inner.offset + offset:,} of its text"


def refuse(
    found: Pieces, place: Location, rules: TextRules, reason: str, *, repairable: bool = False, records: int = 1
) -> None:
    """A bad record: an error, or counted and left out, as the rules have it. In a job with a limit, the error waits."""
    if rules.on_error == "skip":
        found.reject(place.reject(reason, records))
        found.count("documents_rejected", records)
        return
    replace = ", or --on-error replace to put U+FFFD in place of such characters" if repairable else ""
    error = InputError(
        f"{place}: {reason}; repair it, or pass --on-error skip to leave out and count such records{replace}"
    )
    if not rules.limited:
        raise error
    found.error = found.error or (len(found.data), error)


def whole(rules: TextRules) -> TextRules:
    """The rules for a value, which is one document, and known to be good."""
    return dataclasses.replace(rules, separator=None, passage_bytes=None, border=None, on_error="stop")


def value_parts(
    reader: Reader, here: Position, following: Position, place: Location, where: int, rules: TextRules
) -> Iterator[ValuePart]:
    """A long value in stretches, from exact cut to exact cut; here.begin bytes of it are done already."""
    start = Position(file=here.file, offset=here.begin)
    for inner in text.read_parts(start, reader, where, whole(rules), is_value=True):
        done = inner.offset + len(inner.data)
        after = dataclasses.replace(here, begin=done) if inner.open else following
        yield ValuePart(file=here.file, after=after, place=place, inner=inner, where=where)


def long_parts(
    value: ValueReader, here: Position, after: Position, place: Location, where: int, rules: TextRules
) -> Iterator[ValuePart | Counted]:
    """A long value as it stands in its file: looked through first, then handed on in stretches."""
    try:
        replaced = value.check()
    except Broken as e:
        yield Counted(file=here.file, after=after, place=place, complaint=str(e))
        return
    if not value.read(0, 1):
        yield Counted(file=here.file, after=after, place=place, empty=1)
    for part in value_parts(value, here, after, place, where, rules):
        yield part if part.inner.offset else dataclasses.replace(part, replaced=replaced)


class BytesReader:
    """A value at hand, read as a file is."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    @property
    def size(self) -> int | None:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def done_until(self, offset: int) -> None:
        pass

    def __enter__(self) -> "BytesReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
