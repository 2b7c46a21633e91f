"""Numbers of rows → their tokens and labels: windows of a fixed length, or the rows of a plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError
from shardmill.feed.documents import IGNORED, Documents, Flags, begins_in, document_ends
from shardmill.feed.order import Numbers
from shardmill.feed.plan import Plan
from shardmill.feed.source import Opened
from shardmill.system.names import show

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one length: tokens, the token after each, and, if asked for, where documents begin."""

    inputs: Ids
    labels: Ids
    begins: Flags | None = None
    largest: int = 0
    """The largest id."""


class PlainRows:
    """Windows of length tokens, one after the other, each with the token after it: every label is trained on once."""

    def __init__(self, opened: Opened, length: int, documents: Documents | None) -> None:
        self.opened, self._length = opened, length
        self.count = (opened.files.tokens - 1) // length
        self.density = 1.0
        if self.count < 1:
            raise InputError(
                f"{opened.shown}: has {opened.files.tokens:,} tokens, and a row takes {length + 1:,} (length + 1); choose a smaller length, or a larger corpus"
            )
        self._index = document_ends(opened) if documents is not None else None
        self._begins_with_documents = documents is not None and documents.begin

    def read(self, numbers: Numbers) -> Rows:
        length, starts = self._length, self._starts(numbers)
        raw = self.opened.files.read(starts, np.full(len(starts), length + 1))
        tokens = raw.astype(np.int64).reshape(len(starts), length + 1)
        inputs, labels, largest = tokens[:, :-1], tokens[:, 1:], int(raw.max(initial=0))
        if self._index is None:
            return Rows(inputs=inputs, labels=labels, largest=largest)
        begins = begins_in(self._index, starts, length + 1)
        # The label of a document's last token is of the next document, unless it is end-of-text.
        labels, eot_id = labels.copy(), self.opened.split.eot_id
        labels[begins[:, 1:] if eot_id is None else begins[:, 1:] & (labels != eot_id)] = IGNORED
        return Rows(inputs=inputs, labels=labels, begins=begins[:, :-1], largest=largest)

    def _starts(self, numbers: Numbers) -> Numbers:
        starts = numbers * self._length
        if self._index is None:
            return starts
        self._index.check()
        if self._begins_with_documents:
            begins, last = _next(self._index.array, starts), self.opened.files.tokens - self._length - 1
            near = (begins < starts + self._length) & (begins <= last)
            return np.where((starts > 0) & near, begins, starts)
        return starts

    @property
    def identity(self) -> dict[str, Any]:
        return self.opened.identity

    def spans(self, number: int) -> list[tuple[int, int]]:
        """The tokens of a row: where they begin, and how many."""
        return [(int(self._starts(np.array([number]))[0]), self._length)]


def _next(ends: Ids, starts: Numbers) -> Numbers:
    """Where the first document begins at or after each start; where there is none, the largest number."""
    found = np.searchsorted(ends, starts)
    return np.where(found < len(ends), ends[np.minimum(found, len(ends) - 1)], np.iinfo(np.int64).max)


class PlannedRows:
    """The rows of a plan. What is left of a row is padding: end-of-text tokens, or 0, which no label counts."""

    def __init__(self, opened: Opened, plan: str | Path, length: int, documents: Documents | None) -> None:
        self.opened, self._length, self._documents = opened, length, documents
        self._plan = Plan(Path(plan), opened)
        made = self._plan.packing
        if made.length != length:
            raise InputError(
                f"{show(plan)}: its rows have {made.length:,} tokens, not {length:,}; pass length={made.length}, or run shardmill pack with --length {length}"
            )
        self.count = made.rows
        self.density = (made.tokens - made.lost) / (made.rows * length)

    def read(self, numbers: Numbers) -> Rows:
        starts, lengths, goes_on, row = self._plan.spans(numbers)
        # One more token of each span is the label of its last token; the very last span has none.
        counts = np.minimum(lengths + 1, self.opened.files.tokens - starts)
        raw = self.opened.files.read(starts, counts)
        behind = np.cumsum(counts)
        at = np.cumsum(lengths) - lengths
        source = np.arange(int(lengths.sum())) + np.repeat(behind - counts - at, lengths)
        used = np.bincount(row, lengths, len(numbers)).astype(np.int64)
        filled = np.arange(self._length) < used[:, None]
        eot_id = self.opened.split.eot_id
        inputs = np.full(filled.shape, eot_id or 0, np.int64)
        labels = np.full(filled.shape, IGNORED, np.int64)
        inputs[filled] = raw[source]
        after, last = raw[np.minimum(source + 1, len(raw) - 1)].astype(np.int64), at + lengths - 1
        ends_text = (counts > lengths) & (after[last] == (-1 if eot_id is None else eot_id))
        after[last[~(goes_on | ends_text)]] = IGNORED
        labels[filled] = after
        begins = None
        if self._documents is not None:
            begins = np.zeros(filled.shape, np.bool_)
            flat = np.zeros(len(source), np.bool_)
            flat[at] = True
            begins[filled] = flat
            padded = np.flatnonzero(used < self._length)
            begins[padded, used[padded]] = True
        return Rows(inputs=inputs, labels=labels, begins=begins, largest=int(raw.max(initial=0)))

    @property
    def identity(self) -> dict[str, Any]:
        made = self._plan.packing
        return {**self.opened.identity, "plan": {"long": made.long, "window": made.window, "seed": made.seed}}

    def spans(self, number: int) -> list[tuple[int, int]]:
        starts, lengths, _, _ = self._plan.spans(np.array([number]))
        return list(zip(starts.tolist(), lengths.tolist(), strict=True))
