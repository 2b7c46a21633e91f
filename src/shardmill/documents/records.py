"""What all record formats share: the documents of a Part with their locations, and what was left out, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from shardmill.documents import utf8
from shardmill.documents.native import Examined
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.rejects import Location, Reject, Shift
from shardmill.documents.rules import DOCUMENT_HEAD, TextRules
from shardmill.errors import InputError
from shardmill.io.reading import Reader
from shardmill.tokens.strings import Flags, Numbers, Strings


class Broken(Exception):
    """Why a record is refused. repairable: --on-error replace would accept it."""

    def __init__(self, reason: str, *, repairable: bool = False) -> None:
        super().__init__(reason)
        self.repairable = repairable


Text = tuple[bytes, int]
"""What a record says, and how many characters of it were replaced."""


@dataclass(kw_only=True, slots=True)
class Records:
    """The records of one Part → its documents: those that are in the sample, and what is to say of the others.

    Raises InputError for the first bad one, if bad ones are errors.
    """

    rules: TextRules
    examined: Examined
    """Their texts, and which of them only `judge` can tell."""
    judge: Callable[[int], Text | None]
    """The index of an odd one → its text; None: it is no record at all. Raises Broken."""
    filtered: Flags | None = None
    """Which of them --where does not want."""
    offsets: Numbers
    """Where each begins in the Part."""
    location: Callable[[int, int], Location]
    """The index of a record in the Part, and its offset → its location."""
    job_offset: int
    """The byte of the whole input where the Part begins, or would if rows were bytes."""
    first: int | None = None
    """The number of the first record, where each has the next number."""
    texts: Strings = field(init=False)
    _indexes: Numbers | None = None

    def pieces(self, is_val: IsVal) -> Pieces:
        found = self._documents()  # not kept here: they refer to this, and a cycle would hold the memory of their texts
        keys = self.examined.keys if self._indexes is None else None
        keys = self.rules.keys(found.texts, self.job_offset + found.offsets) if keys is None else keys
        found.val, found.origin = is_val(keys).view(np.int8), self
        return found

    def _documents(self) -> Pieces:
        """Without their splits."""
        self.texts = self.examined.texts
        if self.examined.usual and not self.rules.selects:
            return Pieces.whole(self.texts, self.offsets)
        noted, none = Pieces(), np.zeros(len(self.texts), np.bool_)
        left_out = {"": none.copy(), "documents_filtered": none if self.filtered is None else self.filtered}
        replaced = self._judge_odd(noted, left_out)
        out = left_out[""] | left_out["documents_filtered"]
        left_out["documents_empty"] = (self.texts.sizes == 0) & ~out
        if self.rules.wanted is not None:
            out |= left_out["documents_empty"]
            left_out["documents_unsampled"] = ~self.rules.wanted.of(self.texts, DOCUMENT_HEAD) & ~out
        for index, number in replaced.items():
            if number and not any(mask[index] for mask in left_out.values()):
                noted.count("replaced_characters", number, at=index)
        found, self._indexes = Pieces.of_documents(self.texts, self.offsets, left_out, noted)
        return found

    @property
    def indexes(self) -> Numbers:
        """Of each document, its index among the records of the Part."""
        return np.arange(len(self.texts)) if self._indexes is None else self._indexes

    def _judge_odd(self, noted: Pieces, left_out: dict[str, Flags]) -> dict[int, int]:
        """The texts of odd records; returns how many characters of each were replaced."""
        changed, replaced = dict[int, bytes](), dict[int, int]()
        for index in np.flatnonzero(self.examined.odd & ~left_out["documents_filtered"]).tolist():
            try:
                text = self.judge(index)
            except Broken as e:
                refuse(noted, self.location(index, int(self.offsets[index])), self.rules, e, at=index)
                text = None
            if text is None:
                left_out[""][index] = True
            else:
                changed[index], replaced[index] = text
        self.texts = self.texts.replaced(changed)
        return replaced

    def place_of(self, piece: int, offset: int) -> Location:
        return self.location(int(self.indexes[piece]), offset)

    def origins(self, found: Pieces) -> Numbers:
        if self.first is not None:
            return self.first + self.indexes[: len(found)]
        places = zip(self.indexes.tolist(), found.offsets.tolist())
        return np.array([self.location(index, offset).record for index, offset in places], np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """A Part without text: an empty file, a long record that is bad or filtered, or the rest of a file that cannot be read."""

    file: int
    after: Position
    location: Location
    empty: int = 0
    filtered: int = 0
    boms: int = 0
    complaint: str | None = None
    repairable: bool = False
    rejected: int = 1
    """How many documents the complaint is about."""
    error: InputError | None = None
    """An error while reading, raised when everything before it is done."""
    size: int = 0

    def pieces(self, _base: int, rules: TextRules, _is_val: IsVal) -> Pieces:
        if self.error is not None:
            raise self.error
        found = Pieces(origin=self)
        if self.boms:
            found.count("byte_order_marks", self.boms)
        if self.empty:
            found.count("documents_empty", self.empty)
        if self.filtered:
            found.count("documents_filtered", self.filtered)
        if self.complaint is not None:
            broken = Broken(self.complaint, repairable=self.repairable)
            refuse(found, self.location, rules, broken, records=self.rejected)
        return found

    def place_of(self, _piece: int, _offset: int) -> Location:
        return self.location

    def origins(self, found: Pieces) -> Numbers:
        return np.full(len(found), self.location.record, np.int64)


def lost(file: int, location: Location, unit: str, why: object) -> Counted:
    """The rest of a file that cannot be read, from this line or record on."""
    complaint = f"the rest of the file, from this {unit} on, is lost: {why}"
    return Counted(file=file, after=Position(file=file + 1), location=location, complaint=complaint)


def damage_of(reader: Reader) -> str | None:
    """Why a compressed file ends early, if it does."""
    return getattr(reader, "damage", None)


def whole_lines(reader: Reader, at: int, newline: bytes, limit: int) -> tuple[bytes, bool]:
    """The lines that end within so many bytes, and whether the file goes on; its last line need not end."""
    data = reader.read(at, limit)
    goes_on = len(data) == limit
    end = data.rfind(newline) + 1 if goes_on or damage_of(reader) is not None else len(data)
    return data[:end], goes_on


def checked(text: bytes, done: int, replace: bool) -> tuple[bytes, int]:
    """Text as UTF-8, and how many characters were replaced; `done` bytes of its value come before it. Raises Broken."""
    if utf8.is_valid(text):
        return text, 0
    if not replace:
        raise Broken(utf8.complaint(text, done), repairable=True)
    return utf8.replaced(text)


def refuse(
    found: Pieces, location: Location, rules: TextRules, broken: Broken, *, records: int = 1, at: int = 0
) -> None:
    """A bad record: an error, or counted and left out, depending on --on-error. In a job with a limit, the error waits."""
    if rules.on_error == "skip":
        found.reject(Reject(location=location, reason=str(broken), records=records), at=at)
        found.count("documents_rejected", records, at=at)
        return
    replace = ", or --on-error replace to replace such characters with U+FFFD" if broken.repairable else ""
    error = _error(location, f"{broken}; repair it, or pass --on-error skip to skip and count such records{replace}")
    if not rules.limited:
        raise error
    found.error = found.error or (at, error)


def _error(location: Location, why: str) -> InputError:
    error = InputError(f"{location}: {why}")
    error.moved = partial(_moved, location, why)
    return error


def _moved(location: Location, why: str, by: Shift) -> InputError:
    return _error(location.moved(by), why)
