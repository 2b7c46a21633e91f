"""What all readers hand on: where to resume reading, and the pieces of documents to encode, with their counts."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardmill.documents.rejects import Location, Reject, Shift
from shardmill.errors import ShardmillError
from shardmill.tokens.layout import Sides
from shardmill.tokens.strings import Flags, Numbers, Strings

IsVal = Callable[[npt.NDArray[np.uint64]], Flags]
"""The keys of documents or passages → which of them are in the validation set."""

TRAIN, VAL, AS_BEFORE = 0, 1, -1
_NO_TEXTS = Strings.of([])
_ALL = np.ones(128 << 10, np.bool_)
_ALL.flags.writeable = False


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

    def moved(self, by: Shift) -> "Position":
        """The same in the numbers of the file."""
        return dataclasses.replace(
            self,
            offset=by.byte(self.offset),
            begin=by.byte(self.begin),
            record=self.record + by.lines,
            frame_text=by.byte(self.frame_text),
        )


BEGINNING = Position()
NOT_WRITTEN = ("documents_empty", "documents_rejected", "documents_unsampled", "documents_filtered")


class Origin(Protocol):
    """Where the pieces of a Part came from."""

    def place_of(self, piece: int, offset: int, /) -> Location:
        """The location of a piece, for a message."""

    def origins(self, found: "Pieces", /) -> Numbers:
        """For each piece, the byte, line or row of the file where its document starts."""


@dataclass(kw_only=True, slots=True)
class Pieces:
    """What is to be encoded, column by column.

    Piece i is texts[i], at byte offsets[i] of the Part. val[i] is its split: VAL, TRAIN, or that of the piece before it.
    begins[i] and ends[i] are whether it is the beginning or the end of its document.
    """

    texts: Strings = _NO_TEXTS
    offsets: Numbers = field(default_factory=lambda: _NO_TEXTS.sizes)
    val: Sides = field(default_factory=lambda: np.empty(0, np.int8))
    begins: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    ends: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    all_whole: bool = False
    """All are whole documents."""
    passages: Numbers | None = None
    """How many passages each piece is; None when documents are split whole."""
    events: list[tuple[int, str, int]] = field(default_factory=list)
    """What else is counted: the index of the piece it belongs to or precedes, the name in Counts, and how many."""
    rejects: list[tuple[int, Reject]] = field(default_factory=list)
    error: tuple[int, ShardmillError] | None = None
    """In a job with a limit: an error after so many pieces, raised unless the limit comes first."""
    replaced: dict[int, list[int]] = field(default_factory=dict)
    """In a job with a limit: where in a piece U+FFFD replaced bytes that were not UTF-8."""
    origin: Origin | None = None
    """Of those of one Part."""

    def __len__(self) -> int:
        return len(self.texts)

    @staticmethod
    def whole(texts: Strings, offsets: Numbers) -> "Pieces":
        """A piece for each document."""
        count = len(texts)
        every = _ALL[:count] if count <= len(_ALL) else np.ones(count, np.bool_)
        return Pieces(
            texts=texts, offsets=offsets, val=np.zeros(count, np.int8), begins=every, ends=every, all_whole=True
        )

    @staticmethod
    def of_documents(
        texts: Strings, offsets: Numbers, left_out: dict[str, Flags], noted: "Pieces"
    ) -> "tuple[Pieces, Numbers]":
        """A piece for each text that no mask leaves out, and their numbers. A mask has the name of what it counts, or "".

        What was noted of texts, by their numbers, is noted of the pieces.
        """
        out = np.zeros(len(texts), np.bool_)
        for mask in left_out.values():
            out |= mask
        numbers = np.flatnonzero(~out)
        places: Numbers = np.cumsum(~out) - ~out
        found = Pieces.whole(texts.take(numbers), offsets[numbers])
        found.events = [(int(places[at]), name, number) for at, name, number in noted.events]
        found.rejects = [(int(places[at]), reject) for at, reject in noted.rejects]
        found.error = noted.error and (int(places[noted.error[0]]), noted.error[1])
        for name, mask in left_out.items():
            if name and mask.any():
                many = np.bincount(places[mask])
                found.events += [(at, name, int(many[at])) for at in np.flatnonzero(many).tolist()]
        return found, numbers

    @staticmethod
    def joined(several: "Sequence[Pieces]") -> "Pieces":
        """The pieces of several Parts in sequence; where each is in its Part, only that Part knows."""
        if len(several) == 1:
            return several[0]
        several = (Pieces(), *several)
        found = Pieces(
            texts=Strings.joined([each.texts for each in several]),
            val=np.concatenate([each.val for each in several]),
            begins=np.concatenate([each.begins for each in several]),
            ends=np.concatenate([each.ends for each in several]),
            all_whole=all(each.all_whole for each in several[1:]),
        )
        if any(each.passages is not None for each in several):
            found.passages = np.concatenate(
                [np.zeros(len(each), np.int64) if each.passages is None else each.passages for each in several]
            )
        first = 0
        for each in several:
            found.events += [(first + at, name, number) for at, name, number in each.events]
            found.rejects += [(first + at, reject) for at, reject in each.rejects]
            found.replaced |= {first + at: inside for at, inside in each.replaced.items()}
            first += len(each)
        return found

    def count(self, name: str, number: int = 1, *, at: int = 0) -> None:
        self.events.append((at, name, number))

    def reject(self, reject: Reject, *, at: int = 0) -> None:
        self.rejects.append((at, reject))

    def blank(self, i: int, name: str) -> None:
        """Leave a passage out, but not whether its document begins or ends with it."""
        assert self.passages is not None
        self.count(name, int(self.passages[i]), at=i)
        self.texts.sizes[i], self.passages[i], self.val[i] = 0, 0, AS_BEFORE

    def keep(self, count: int) -> None:
        """Keep only the first so many pieces, and what belongs to them or precedes them."""
        self.texts = self.texts.take(slice(count))
        for name in ("offsets", "val", "begins", "ends"):
            setattr(self, name, getattr(self, name)[:count])
        self.passages = None if self.passages is None else self.passages[:count]
        self.events = [event for event in self.events if event[0] < max(count, 1)]
        self.rejects = [reject for reject in self.rejects if reject[0] < max(count, 1)]

    @property
    def records(self) -> int:
        """How many documents or passages begin in it, including those that are empty, bad, filtered or not in the sample."""
        begun = np.count_nonzero(self.begins) if self.passages is None else self.passages.sum()
        names = NOT_WRITTEN if self.passages is None else ("passages_rejected", "passages_unsampled")
        return int(begun) + sum(number for _, name, number in self.events if name in names)
