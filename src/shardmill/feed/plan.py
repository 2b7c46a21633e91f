"""A plan on disk: for each row the spans of tokens that fill it, so that packing moves no tokens.

4096 bytes   JSON, padded with zeros: the length of a row, how the plan was made, of which tokens
12 bytes     for each span: its first token as a uint64, its length as a uint32; the highest bit of the length says
             that the document goes on after the span
8 bytes      for each row: how many spans it and those before it have, as a uint64
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError, OutputError, UsageError
from shardmill.feed.order import Numbers, runs
from shardmill.feed.source import Mapped, Opened
from shardmill.record.manifest import differences, dump, load
from shardmill.record.untrusted import build
from shardmill.system.names import show

HEADER_BYTES = 4096
SPAN = np.dtype([("start", "<u8"), ("length", "<u4")])
GOES_ON = 1 << 31
LongDocuments = Literal["fragment", "crop", "drop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What a plan is, and what it costs: tokens that are lost, and places in rows that are padding."""

    length: int
    long: LongDocuments
    window: int
    seed: int
    split: str
    tokens: int
    content: str
    """The tokens that it was made for."""
    documents: int = 0
    rows: int = 0
    spans: int = 0
    lost: int = 0
    cut: int = 0
    """How many documents are longer than a row."""
    rows_at_once: int = 0
    """How many rows there would be if all documents were packed at once, instead of window by window."""

    @property
    def padded(self) -> int:
        return self.rows * self.length - (self.tokens - self.lost)

    def header(self) -> bytes:
        return dump({"plan": asdict(self)}).ljust(HEADER_BYTES, b"\0")


class Plan:
    """Rows and their spans, read by row."""

    def __init__(self, path: Path, opened: Opened) -> None:
        self.path, self.packing = path, _read_header(path)
        made, now = self.packing, opened.identity
        if changed := differences({"tokens": made.tokens, "content": made.content}, now):
            raise UsageError(
                f"{show(path)}: is a plan for other tokens than those of {opened.shown}: {'; '.join(changed)}. Run shardmill pack again"
            )
        spans_end = HEADER_BYTES + SPAN.itemsize * made.spans
        self._spans = Mapped(path, SPAN, offset=HEADER_BYTES, count=made.spans)
        self._ends = Mapped(path, np.dtype("<u8"), offset=spans_end, count=made.rows)
        if path.stat().st_size != spans_end + 8 * made.rows or not made.rows:
            raise InputError(
                f"{show(path)}: does not have the size that its header says; it is damaged. Run shardmill pack again"
            )

    def spans(self, rows: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_], Numbers]:
        """The first token and the length of each span of these rows, whether its document goes on, and its row among them."""
        self._spans.check()
        stops = self._ends.array[rows].astype(np.int64)
        firsts = np.where(rows > 0, self._ends.array[rows - 1].astype(np.int64), 0)
        counts = stops - firsts
        if (counts <= 0).any() or stops.max() > self.packing.spans:
            raise self._damaged()
        row, inside = runs(counts)
        found = self._spans.array[firsts[row] + inside]
        starts, sizes = found["start"].astype(np.int64), found["length"].astype(np.int64)
        lengths, goes_on = sizes & (GOES_ON - 1), sizes >= GOES_ON
        used = np.bincount(row, lengths, len(rows))
        odd = (starts < 0) | (lengths == 0) | (lengths > self.packing.length) | (starts + lengths > self.packing.tokens)
        if odd.any() or used.max() > self.packing.length:
            raise self._damaged()
        return starts, lengths, goes_on, row

    def _damaged(self) -> InputError:
        return InputError(f"{show(self.path)}: has impossible rows; it is damaged. Run shardmill pack again")


def _read_header(path: Path) -> Packing:
    try:
        with path.open("rb") as stream:
            content: dict[str, Any] = load(stream.read(HEADER_BYTES).rstrip(b"\0"), path)
        return build(Packing, content["plan"])
    except OSError as e:
        raise InputError(f"{show(path)}: cannot be read: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, RecursionError, OutputError) as e:
        raise InputError(
            f"{show(path)}: is not a plan that shardmill pack wrote ({show(str(e))}); run shardmill pack again"
        ) from e
