"""What all record formats share: the documents of a Part with their locations, and what was left out, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field

from shardmill.documents import utf8
from shardmill.documents.pieces import Pieces, Position
from shardmill.documents.rejects import Location, Reject
from shardmill.documents.rules import DOCUMENT_HEAD, TextRules
from shardmill.errors import InputError
from shardmill.io.reading import Reader


class Broken(Exception):
    """Why a record is refused. repairable: --on-error replace would accept it."""

    def __init__(self, reason: str, *, repairable: bool = False) -> None:
        super().__init__(reason)
        self.repairable = repairable


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The documents of one Part that are in the sample, and the location of each."""

    rules: TextRules
    location: Callable[[int, int], Location]
    """The index of a record in the Part, and its offset → its location."""
    job_offset: int
    """The byte of the whole input where the Part begins, or would if rows were bytes."""
    first: int | None = None
    """The number of the first record, where each has the next number."""
    found: Pieces = field(default_factory=Pieces)
    indexes: list[int] = field(default_factory=list)
    """Of each document, its index among the records of the Part."""

    def add(self, document: bytes, index: int, offset: int, *, replaced: int = 0) -> None:
        """One document, in which so many characters were replaced."""
        wanted = self.rules.wanted
        if not document:
            self.found.count("documents_empty")
        elif wanted is not None and not wanted(document[:DOCUMENT_HEAD]):
            self.found.count("documents_unsampled")
        else:
            if replaced:
                self.found.count("replaced_characters", replaced)
            self.found.add(document, offset, None)
            self.indexes.append(index)

    def add_all(self, documents: list[bytes], offsets: list[int]) -> None:
        """All documents of the Part, one per record; faster than adding each where none is empty."""
        if self.rules.wanted is not None or not all(documents):
            for index, (document, offset) in enumerate(zip(documents, offsets, strict=True)):
                self.add(document, index, offset)
            return
        found, count = self.found, len(documents)
        found.data, found.offsets, found.val = documents, offsets, [None] * count
        found.begins, found.ends = [True] * count, [True] * count
        self.indexes.extend(range(count))

    def add_text(self, document: bytes, index: int, offset: int) -> None:
        """One document, which may not be UTF-8."""
        try:
            text, replaced = checked(document, 0, self.rules.on_error == "replace")
            self.add(text, index, offset, replaced=replaced)
        except Broken as e:
            self.refuse(e, index, offset)

    def leave_out(self) -> None:
        """One record that --where does not want."""
        self.found.count("documents_filtered")

    def refuse(self, broken: Broken, index: int, offset: int) -> None:
        """A bad record: an error, or left out, depending on --on-error."""
        refuse(self.found, self.location(index, offset), self.rules, broken)

    def keys(self, _base: int, _rules: TextRules) -> tuple[list[int], int]:
        return self._keys(), self.found.documents

    def pieces(self, _base: int, _rules: TextRules, is_val: Callable[[int], bool]) -> Pieces:
        self.found.val = [is_val(key) for key in self._keys()]
        return self.found

    def place_of(self, piece: int, offset: int) -> str:
        return str(self.location(self.indexes[piece], offset))

    def origins(self, found: Pieces) -> list[int]:
        if self.first is not None:
            return [self.first + index for index in self.indexes[: len(found.data)]]
        return [self.location(index, offset).record for index, offset in zip(self.indexes, found.offsets)]

    def _keys(self) -> list[int]:
        key, base = self.rules.key, self.job_offset
        return [key(data[:DOCUMENT_HEAD], base + offset) for data, offset in zip(self.found.data, self.found.offsets)]


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

    def checked(self, rules: TextRules) -> "Counted":
        if self.error is not None:
            raise self.error
        if self.complaint is not None and not rules.limited:
            refuse(Pieces(), self.location, rules, Broken(self.complaint, repairable=self.repairable))
        return self

    def keys(self, _base: int, _rules: TextRules) -> tuple[list[int], int]:
        return [], self.empty + self.filtered + (0 if self.complaint is None else self.rejected)

    def pieces(self, _base: int, rules: TextRules, _is_val: Callable[[int], bool]) -> Pieces:
        found = Pieces()
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

    def place_of(self, _piece: int, _offset: int) -> str:
        return str(self.location)

    def origins(self, found: Pieces) -> list[int]:
        return [self.location.record] * len(found.data)


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


def refuse(found: Pieces, location: Location, rules: TextRules, broken: Broken, *, records: int = 1) -> None:
    """A bad record: an error, or counted and left out, depending on --on-error. In a job with a limit, the error waits."""
    if rules.on_error == "skip":
        found.reject(Reject(location=location, reason=str(broken), records=records))
        found.count("documents_rejected", records)
        return
    replace = ", or --on-error replace to replace such characters with U+FFFD" if broken.repairable else ""
    error = InputError(
        f"{location}: {broken}; repair it, or pass --on-error skip to skip and count such records{replace}"
    )
    if not rules.limited:
        raise error
    found.error = found.error or (len(found.data), error)
