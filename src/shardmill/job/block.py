"""One Block of text → its tokens, by split: what a worker does."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardmill.documents.pieces import NOT_WRITTEN, Pieces, Position
from shardmill.documents.rejects import Reject
from shardmill.errors import ShardmillError
from shardmill.job.job import Job
from shardmill.job.plan import Block, Checked, Part
from shardmill.job.split import Splitter
from shardmill.record.manifest import Counts
from shardmill.tokens.encoder import Encoder
from shardmill.tokens.model import Ids

Tokens = npt.NDArray[np.unsignedinteger[npt.NBitBase]]
_COUNTED = tuple(field.name for field in dataclasses.fields(Counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The pieces of one Block, column by column (see Pieces), and where the tokens of each end."""

    token_ends: npt.NDArray[np.int64]
    text_bytes: list[int]
    files: list[int]
    val: list[bool | None]
    begins: list[bool]
    ends: list[bool]
    """Whether the piece ends a document that has text."""
    passages: list[int | None]
    events: list[tuple[int, str, int]]
    rejects: list[tuple[int, Reject]]
    replaced: dict[int, list[int]]
    places: npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Consecutive tokens of one split; None: the split of the run before.

    ends: where documents end among them; places: for each such document its file, and where in it the document starts;
    text_bytes: how much text they are.
    """

    val: bool | None
    tokens: Tokens
    ends: npt.NDArray[np.int64]
    places: npt.NDArray[np.uint64]
    text_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
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
    """Whether the document that stays open at the end has text; None: unchanged."""
    settle: "Callable[[bool], Milled] | None" = None
    """Set where passages were left out: whether the document that continues here had text before → the final result."""


def mill_block(job: Job, splitter: Splitter, encoder: Encoder, block: Block) -> Milled:
    """Parse and encode a Block, compare a sample with the reference, insert end-of-text tokens, separate train and val."""
    checked, error = _checked(job, block)
    began = time.thread_time()
    found: list[Pieces] = []
    for part, good in zip(block.parts, checked):
        found.append(pieces := good.pieces(job.files.base(part.file), job.rules, splitter.is_val))
        if pieces.error is not None:
            at, error = pieces.error
            pieces.keep(at)
            break
    data = [piece for pieces in found for piece in pieces.data]
    begins = [flag for pieces in found for flag in pieces.begins]
    ids, sizes = encoder.encode(data, begins)
    seconds, where = time.thread_time() - began, lambda number: _location(checked, found, number)
    checked_bytes = job.checker.check(block.index, data, begins, (ids, sizes), where, seconds)
    places = _places(job, block.parts, checked, found)

    def settled(had_text: bool) -> tuple[Milled, bool]:
        """The result, given whether the document that continues here had text before; and whether that mattered."""
        eot, closes, has_text, unsure = _eot_and_ends(job, found, had_text=had_text)
        tokens, token_ends = _with_eot(job, eot, ids, sizes)
        trace = _trace(block, found, token_ends, closes, places)
        milled = Milled(
            index=block.index,
            runs=runs_of(trace, tokens),
            counts=count(trace, block.input_bytes),
            checked_bytes=checked_bytes,
            after=block.after,
            rejects=tuple(reject for _, reject in trace.rejects),
            trace=trace if job.rules.limited else None,
            error=error,
            has_text=has_text,
        )
        return milled, unsure

    milled, unsure = settled(True)
    return dataclasses.replace(milled, settle=lambda had_text: settled(had_text)[0]) if unsure else milled


def _checked(job: Job, block: Block) -> tuple[list[Checked], ShardmillError | None]:
    """The Parts in reading order, so that the first bad record is the one reported; with a limit, those before the error."""
    checked: list[Checked] = []
    try:
        for part in block.parts:
            checked.append(part.checked(job.rules))
    except ShardmillError as e:
        if not job.rules.limited:
            raise
        return checked, e
    return checked, None


def _places(job: Job, parts: tuple[Part, ...], checked: list[Checked], found: list[Pieces]) -> npt.NDArray[np.uint64]:
    """For each piece, the file and the byte or record where its document starts; zeros if the output has no use for it."""
    places = np.zeros((sum(len(pieces.data) for pieces in found), 2), np.uint64)
    at = 0
    for part, good, pieces in zip(parts, checked, found) if job.writes.needs_places else ():
        until = at + len(pieces.data)
        places[at:until, 0] = part.file
        places[at:until, 1] = good.origins(pieces)
        at = until
    return places


def runs_of(trace: Trace, tokens: Tokens) -> list[Run]:
    """The tokens of a Block, cut where the split changes."""
    val, ends, places = trace.val, trace.token_ends, trace.places
    document_ends = np.array(trace.ends, np.bool_)
    turns = [0, *(i for i in range(1, len(val)) if val[i] is not val[i - 1])] if val else []
    runs = []
    for first, after in zip(turns, [*turns[1:], len(val)], strict=True) if val else ():
        start, stop = int(ends[first - 1]) if first else 0, int(ends[after - 1])
        ended = document_ends[first:after]
        inside = ends[first:after][ended] - start
        runs.append(
            Run(
                val=val[first],
                tokens=tokens[start:stop],
                ends=inside,
                places=places[first:after][ended],
                text_bytes=sum(trace.text_bytes[first:after]),
            )
        )
    return runs


def _eot_and_ends(job: Job, found: list[Pieces], *, had_text: bool) -> tuple[list[bool], list[bool], bool | None, bool]:
    """Which pieces get an end-of-text token; which end a document; whether the document that stays open has text (None:
    unchanged); and whether had_text, of the document that continues here, mattered.

    Only a document with text counts: passages that were left out have none.
    """
    after = job.eot_side == "after"
    closes = [flag for pieces in found for flag in pieces.ends]
    begun = [flag for pieces in found for flag in pieces.begins]
    leaves_out = job.rules.wanted is not None or job.rules.on_error == "skip"
    if not leaves_out or not any(pieces.passages for pieces in found):
        return (closes if after else begun), closes, True if closes else None, False
    has_text: bool | None = None
    unsure, at = False, 0
    for pieces in found:
        for data, begins, ends in zip(pieces.data, pieces.begins, pieces.ends, strict=True):
            has_text = False if begins else has_text
            before = had_text if has_text is None else has_text
            unsure |= has_text is None and (ends or bool(data))
            begun[at], closes[at] = bool(data) and not before, ends and (before or bool(data))
            has_text = True if data else has_text
            at += 1
    return (closes if after else begun), closes, has_text, unsure


def _with_eot(
    job: Job, eot: list[bool], ids: Ids, sizes: npt.NDArray[np.int64]
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """The ids of a Block with end-of-text tokens, in the type of the output, and where each piece ends."""
    if job.eot_id is None:
        return ids.astype(job.writes.dtype, copy=False), np.cumsum(sizes)
    after, marked = job.eot_side == "after", np.array(eot, np.bool_)
    ends = np.cumsum(sizes + marked)
    places = ends[marked] - 1 if after else (ends - sizes - 1)[marked]
    tokens = np.empty(int(ends[-1]) if len(ends) else 0, job.writes.dtype)
    is_text = np.ones(len(tokens), np.bool_)
    is_text[places] = False
    tokens[places] = job.eot_id
    tokens[is_text] = ids
    return tokens, ends


def _trace(
    block: Block,
    found: list[Pieces],
    token_ends: npt.NDArray[np.int64],
    closes: list[bool],
    places: npt.NDArray[np.uint64],
) -> Trace:
    """All pieces of a Block in one sequence."""
    events: list[tuple[int, str, int]] = []
    rejects: list[tuple[int, Reject]] = []
    replaced: dict[int, list[int]] = {}
    first = 0
    for pieces in found:
        events += [(first + at, name, number) for at, name, number in pieces.events]
        rejects += [(first + at, reject) for at, reject in pieces.rejects]
        replaced |= {first + at: inside for at, inside in pieces.replaced.items()}
        first += len(pieces.data)
    return Trace(
        token_ends=token_ends,
        text_bytes=[len(data) for pieces in found for data in pieces.data],
        files=[part.file for part, pieces in zip(block.parts, found) for _ in pieces.data],
        val=[val for pieces in found for val in pieces.val],
        begins=[flag for pieces in found for flag in pieces.begins],
        ends=closes,
        passages=[pieces.passages[i] if pieces.passages else None for pieces in found for i in range(len(pieces.data))],
        events=events,
        rejects=rejects,
        replaced=replaced,
        places=places,
    )


def count(trace: Trace, input_bytes: int, pieces: int | None = None) -> Counts:
    """The Counts of a Block, or of its first pieces and what comes before them."""
    last = len(trace.val) if pieces is None else pieces - 1
    counts = dict.fromkeys(_COUNTED, 0)
    for at, name, number in trace.events:
        if at <= last:
            counts[name] += number
    for val, begins, passages in zip(trace.val[:pieces], trace.begins, trace.passages):
        counts["documents"] += begins
        if passages is None:
            counts["documents_val"] += begins and val is True
        else:
            counts["passages"] += passages
            counts["passages_val"] += passages if val else 0
    counts["documents"] += sum(counts[name] for name in NOT_WRITTEN)
    return Counts(**{**counts, "input_bytes": input_bytes})


def _location(checked: list[Checked], found: list[Pieces], number: int) -> str:
    for part, pieces in zip(checked, found):
        if number < len(pieces.data):
            return part.place_of(number, pieces.offsets[number])
        number -= len(pieces.data)
    raise AssertionError("no such piece")
