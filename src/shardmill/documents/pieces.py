"""What all readers hand on: where to resume reading, and the pieces of documents to encode, with their counts."""

from dataclasses import dataclass, field

from shardmill.documents.rejects import Reject
from shardmill.errors import ShardmillError


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where reading can resume: a file, a byte in it, and where the document at that byte began.

    In files of records, record is the number of lines or rows before it; offset is where that line begins (in what
    the file decompresses to), and begin is how many bytes of its text are done already.
    """

    file: int = 0
    offset: int = 0
    begin: int = 0
    record: int = 0
    spent: int = 0
    """How many bytes of the file are done here; for a compressed one it depends on the library that decompressed it."""
    frame: int = 0
    frame_text: int = 0
    """In a compressed file: where the last frame before it begins, and how much text precedes that frame."""


BEGINNING = Position()
NOT_WRITTEN = ("documents_empty", "documents_rejected", "documents_unsampled", "documents_filtered")


@dataclass(kw_only=True, slots=True)
class Pieces:
    """What is to be encoded, column by column.

    Piece i is data[i], at byte offsets[i] of the Part. val[i] is whether it goes to val; None: as the piece before it.
    begins[i] and ends[i] are whether it is the beginning or the end of its document.
    """

    data: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    val: list[bool | None] = field(default_factory=list)
    begins: list[bool] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    passages: list[int] = field(default_factory=list)
    """How many passages each piece is; empty when documents are split whole."""
    events: list[tuple[int, str, int]] = field(default_factory=list)
    """What else is counted: the index of the piece it belongs to or precedes, the name in Counts, and how many."""
    rejects: list[tuple[int, Reject]] = field(default_factory=list)
    error: tuple[int, ShardmillError] | None = None
    """In a job with a limit: an error after so many pieces, raised unless the limit comes first."""
    replaced: dict[int, list[int]] = field(default_factory=dict)
    """In a job with a limit: where in a piece U+FFFD replaced bytes that were not UTF-8."""

    def add(self, data: bytes, offset: int, val: bool | None, *, begins: bool = True, ends: bool = True) -> None:
        self.data.append(data)
        self.offsets.append(offset)
        self.val.append(val)
        self.begins.append(begins)
        self.ends.append(ends)

    def count(self, name: str, number: int = 1, *, at: int | None = None) -> None:
        at = len(self.data) if at is None else at
        if self.events and self.events[-1][:2] == (at, name):
            self.events[-1] = (at, name, self.events[-1][2] + number)
        else:
            self.events.append((at, name, number))

    def reject(self, reject: Reject, *, at: int | None = None) -> None:
        self.rejects.append((len(self.data) if at is None else at, reject))

    def blank(self, i: int, name: str) -> None:
        """Leave a passage out, but not whether its document begins or ends with it."""
        self.count(name, self.passages[i], at=i)
        self.data[i], self.passages[i], self.val[i] = b"", 0, None

    def keep(self, count: int) -> None:
        """Keep only the first so many pieces, and what belongs to them or precedes them."""
        for column in (self.data, self.offsets, self.val, self.begins, self.ends, self.passages):
            del column[count:]
        self.events = [event for event in self.events if event[0] < max(count, 1)]
        self.rejects = [reject for reject in self.rejects if reject[0] < max(count, 1)]

    @property
    def documents(self) -> int:
        """How many documents begin in it, including those that are empty, bad, filtered or not in the sample."""
        return sum(self.begins) + sum(number for _, name, number in self.events if name in NOT_WRITTEN)
