"""One Block of text → its tokens, by split: what a worker does."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardmill.documents.pieces import AS_BEFORE, NOT_WRITTEN, Pieces, Position
from shardmill.documents.rejects import Reject, Shift
from shardmill.documents.text import SmallFiles
from shardmill.errors import ShardmillError
from shardmill.io.compression import UNCOUNTED
from shardmill.job.job import Job
from shardmill.job.plan import Block
from shardmill.job.split import Splitter
from shardmill.record.manifest import Counts
from shardmill.tokens.encoder import Encoder
from shardmill.tokens.layout import Laid, Layout, Tokens, lay_out, sums
from shardmill.tokens.strings import Flags, Numbers

Places = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What truncating a Block needs to know of its pieces: where their tokens end; not their text."""

    pieces: Pieces
    token_ends: Numbers
    text_bytes: Numbers
    ends: Flags
    """Whether the piece ends a document that has text."""
    places: Places | None
    files: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Consecutive tokens of one split; None: the split of the run before.

    ends: where documents end among them; places: for each such document its file, and where in it the document starts;
    text_bytes: how much text they are.
    """

    val: bool | None
    tokens: Tokens
    ends: Numbers
    places: Places | None
    text_bytes: int


@dataclass(kw_only=True, slots=True)
class Milled:
    """The tokens of one Block in order, and everything that is counted or reported with them."""

    index: int
    runs: list[Run]
    counts: Counts
    checked_bytes: int
    after: Position
    """Where the next Block starts."""
    rejects: tuple[Reject, ...] = ()
    trace: Trace | None = None
    """What truncating it needs; only for jobs with a limit."""
    error: ShardmillError | None = None
    """The error right after these tokens, which counts unless a limit comes first."""
    has_text: bool | None = None
    """Whether the document that stays open at the end has text; None: unchanged (Join tells)."""
    begins: Position | None = None
    """Where it begins, if what cannot be read before it may end behind that: rows to the end of their row group."""
    if_no_text: "Milled | None" = None
    """What it is instead if the document that continues here had no text before, since passages were left out."""

    nbytes: int = field(init=False)
    """About how much memory it takes."""

    def __post_init__(self) -> None:
        self.nbytes = 0 if self.if_no_text is None else self.if_no_text.nbytes
        for run in self.runs:
            self.nbytes += run.tokens.nbytes + run.ends.nbytes + (0 if run.places is None else run.places.nbytes)

    def behind(self, end: Position) -> "Milled":
        """This, or nothing of it, if what was milled before ended behind its beginning."""
        begins = self.begins
        if begins is None or begins.file != end.file or begins.record >= end.record:
            return self
        after = max(end, self.after, key=lambda at: (at.file, at.record))
        return Milled(index=self.index, runs=[], counts=Counts(), checked_bytes=0, after=after)

    def move(self, by: Shift) -> None:
        """From its own numbers to those of the file."""
        if self.after.offset:
            self.after = self.after.moved(by)
        if self.rejects:
            self.rejects = tuple(dataclasses.replace(each, location=each.location.moved(by)) for each in self.rejects)
        if any(run.places is not None for run in self.runs):
            self.runs = [
                run if run.places is None else dataclasses.replace(run, places=_moved(run.places, by))
                for run in self.runs
            ]


def _moved(places: Places, by: Shift) -> Places:
    numbers = places[:, 1].astype(np.int64)
    numbers += np.where(numbers >= UNCOUNTED, by.text, by.lines)
    return np.column_stack((places[:, 0], numbers.astype(np.uint64)))


def mill_block(job: Job, splitter: Splitter, encoder: Encoder, block: Block) -> Milled:
    """Parse and encode a Block, compare a sample with the reference, insert end-of-text tokens, separate train and val."""
    found, error = _pieces(job, splitter, block)
    pieces = Pieces.joined(found)
    eot, closes, has_text = _eot_and_ends(job, pieces, had_text=True)
    laid, encoded = encoder.encode_and_lay_out(pieces.texts, pieces.begins, _layout(job, pieces, eot, closes))
    where = lambda number: _location(block, found, number)  # noqa: E731
    checked_bytes = job.checker.check(block.index, pieces.texts, pieces.begins, encoded, where, laid.seconds)
    places, files = _places(job, block, found), [part.file for part in block.parts]

    def milled(laid: Laid, closes: Flags, if_no_text: Milled | None = None) -> Milled:
        trace, sizes = None, pieces.texts.sizes
        if job.rules.limited:
            without_text = dataclasses.replace(pieces, texts=Pieces().texts, origin=None)
            of_each = [file for file, each in zip(files, found) for _ in range(len(each))]
            ends = laid.token_ends
            trace = Trace(
                pieces=without_text, token_ends=ends, text_bytes=sizes, ends=closes, places=places, files=of_each
            )
        return Milled(
            index=block.index,
            runs=runs_of(laid, places),
            counts=count(pieces, block.input_bytes),
            checked_bytes=checked_bytes,
            after=block.after,
            rejects=tuple(reject for _, reject in pieces.rejects),
            trace=trace,
            error=error,
            has_text=has_text,
            if_no_text=if_no_text,
        )

    other_eot, other_closes, _ = _eot_and_ends(job, pieces, had_text=False)
    if np.array_equal(closes, other_closes) and (job.eot_id is None or np.array_equal(eot, other_eot)):
        return milled(laid, closes)
    other = milled(lay_out(encoded, _layout(job, pieces, other_eot, other_closes)), other_closes)
    return milled(laid, closes, other)


def _pieces(job: Job, splitter: Splitter, block: Block) -> tuple[list[Pieces], ShardmillError | None]:
    """Of each Part in reading order, so that the first bad record is the one reported; with a limit, up to the error."""
    small = None if job.writes.needs_places else SmallFiles.of(block.parts, job.rules)
    if small is not None:
        return [small.pieces(job.rules, splitter.is_val)], None
    found: list[Pieces] = []
    for part in block.parts:
        try:
            found.append(part.pieces(job.files.base(part.file), job.rules, splitter.is_val))
        except ShardmillError as e:
            if not job.rules.limited:
                raise
            return found, e
        if (stop := found[-1].error) is not None:
            found[-1].keep(stop[0])
            return found, stop[1]
    return found, None


def _places(job: Job, block: Block, found: list[Pieces]) -> Places | None:
    """For each piece, the file and the byte or record where its document starts; None if the output has no use for it."""
    if not job.writes.needs_places:
        return None
    places = np.zeros((sum(map(len, found)), 2), np.uint64)
    at = 0
    for part, pieces in zip(block.parts, found):
        assert pieces.origin is not None
        until = at + len(pieces)
        places[at:until, 0] = part.file
        places[at:until, 1] = pieces.origin.origins(pieces)
        at = until
    return places


def _eot_and_ends(job: Job, pieces: Pieces, *, had_text: bool) -> tuple[Flags, Flags, bool | None]:
    """Which pieces get an end-of-text token; which end a document; whether the document that stays open has text (None:
    unchanged). had_text: of the document that continues here.

    Only a document with text counts: passages that were left out have none.
    """
    after = job.eot_side == "after"
    leaves_out = job.rules.wanted is not None or job.rules.on_error == "skip"
    if not leaves_out or pieces.passages is None:
        return (pieces.ends if after else pieces.begins), pieces.ends, True if len(pieces) else None
    has_text: bool | None = None
    begun, closes = pieces.begins.copy(), pieces.ends.copy()
    columns = (pieces.texts.sizes > 0).tolist(), pieces.begins.tolist(), pieces.ends.tolist()
    for at, (text, begins, ends) in enumerate(zip(*columns, strict=True)):
        has_text = False if begins else has_text
        before = had_text if has_text is None else has_text
        begun[at], closes[at] = text and not before, ends and (before or text)
        has_text = True if text else has_text
    return (closes if after else begun), closes, has_text


def _layout(job: Job, pieces: Pieces, eot: Flags, closes: Flags) -> Layout:
    """Train comes before val where documents are whole and there is no limit."""
    whole = pieces.passages is None and (pieces.all_whole or bool(pieces.begins.all() and pieces.ends.all()))
    return Layout(
        dtype=job.writes.dtype,
        eot=job.eot_id,
        before=job.eot_side == "before",
        apart=whole and not job.rules.limited,
        has_eot=None if pieces.all_whole else eot,
        closes=None if pieces.all_whole else closes,
        val=pieces.val,
        text_bytes=pieces.texts.sizes,
    )


def runs_of(laid: Laid, places: Places | None) -> list[Run]:
    """The tokens of a Block, cut where the split changes."""
    runs, start, first = list[Run](), 0, 0
    for split, stop, last, text_bytes in laid.runs:
        runs.append(
            Run(
                val=None if split == AS_BEFORE else bool(split),
                tokens=laid.tokens[start:stop],
                ends=laid.ends[first:last],
                places=None if places is None else places[laid.ended[first:last]],
                text_bytes=text_bytes,
            )
        )
        start, first = stop, last
    return runs


def count(pieces: Pieces, input_bytes: int, until: int | None = None) -> Counts:
    """The Counts of a Block, or of its first pieces and what comes before them."""
    size = len(pieces.val) if until is None else until
    documents, documents_val, passages, passages_val = sums(pieces.begins, pieces.val, pieces.passages, size)
    last = size if until is None else until - 1
    others = dict[str, int]()
    for at, name, number in pieces.events:
        if at <= last:
            others[name] = others.get(name, 0) + number
    return Counts(
        **others,
        input_bytes=input_bytes,
        documents=documents + sum(others.get(name, 0) for name in NOT_WRITTEN),
        documents_val=documents_val,
        passages=passages,
        passages_val=passages_val,
    )


def _location(block: Block, found: list[Pieces], number: int) -> str:
    for pieces in found:
        if number < len(pieces):
            assert pieces.origin is not None
            place = pieces.origin.place_of(number, int(pieces.offsets[number]))
            # The byte tells where it is even if nobody knows how many lines precede the stretch; else its text must do.
            byte = None if (place.byte or 0) >= UNCOUNTED else place.byte
            return str(place if block.before is None else dataclasses.replace(place, line=None, byte=byte))
        number -= len(pieces)
    raise AssertionError("no such piece")
