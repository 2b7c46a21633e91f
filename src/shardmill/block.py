"""One Block of text → its tokens, each on its side: what a worker does to it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardmill import plan
from shardmill.documents import text, utf8
from shardmill.documents.text import Part, Pieces, Position
from shardmill.job import Job
from shardmill.manifest import Counts
from shardmill.plan import Block
from shardmill.rejects import Reject
from shardmill.split import Splitter
from shardmill.storage import show
from shardmill.tokens.check import check_sample
from shardmill.tokens.encoder import Encoder

Tokens = npt.NDArray[np.unsignedinteger[npt.NBitBase]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """A Block, which of its Parts are not UTF-8, and whether it holds a character that the fast engine gets wrong."""

    block: Block
    invalid: frozenset[int]
    suspicious: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Tokens in order that go to one side; None: the side of the run before.

    ends: where documents end among them; places: of each such document its file, and the byte where it begins.
    """

    val: bool | None
    tokens: Tokens
    ends: npt.NDArray[np.int64]
    places: npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Milled:
    """The tokens of one Block in order, and all that there is to know of it."""

    index: int
    runs: list[Run]
    counts: Counts
    checked_bytes: int
    after: Position
    """Where the next Block begins."""
    rejects: tuple[Reject, ...] = ()


def inspect(job: Job, block: Block) -> Inspected:
    """Find what in a Block is not UTF-8, or needs the reference. In reading order, so the first bad byte is the one named."""
    invalid = [number for number, part in enumerate(block.parts) if not utf8.is_valid(part.data)]
    if invalid and job.spec.on_error == "stop":
        part = block.parts[invalid[0]]
        raise utf8.refusal(job.files[part.file].path, part.offset, part.data)
    guard = job.engines.guard
    suspicious = guard is not None and any(guard.find(part.data) for part in block.parts)
    return Inspected(block=block, invalid=frozenset(invalid), suspicious=suspicious)


def mill_block(job: Job, splitter: Splitter, encoder: Encoder, inspected: Inspected) -> Milled:
    """One Block of text → its tokens: encode it, compare a sample, put in the end-of-text tokens, part train from val."""
    block = inspected.block
    found = [
        text.pieces_of(
            part, job.bases[part.file], plan.rules_for(job.files, job.files[part.file], job.rules), splitter.is_val
        )
        for part in block.parts
    ]
    replaced = sum(_repair(found[number]) for number in inspected.invalid)
    data = [piece for pieces in found for piece in pieces.data]
    ids, sizes = encoder.encode(data, suspicious=inspected.suspicious)
    checked = check_sample(
        job.engines, block.index, data, ids, sizes, lambda number: _place(job, block.parts, found, number)
    )
    return Milled(
        index=block.index,
        runs=_runs(job, found, ids, sizes, _places(block.parts, found)),
        counts=_count(block, found, replaced),
        checked_bytes=checked,
        after=block.after,
    )


def _repair(pieces: Pieces) -> int:
    """Put U+FFFD in place of what is not UTF-8; returns how many."""
    total = 0
    for i, data in enumerate(pieces.data):
        pieces.data[i], count = utf8.replaced(data)
        total += count
    return total


def _places(parts: tuple[Part, ...], found: list[Pieces]) -> npt.NDArray[np.uint64]:
    """Of each piece, the file and the byte where its document begins."""
    places = np.empty((sum(len(pieces.data) for pieces in found), 2), np.uint64)
    at = 0
    for part, pieces in zip(parts, found, strict=True):
        until = at + len(pieces.data)
        places[at:until, 0] = part.file
        places[at:until, 1] = np.array(pieces.offsets, np.uint64) + np.uint64(part.offset)
        if until > at and not pieces.begins[0]:
            places[at, 1] = part.begin
        if part.starts:  # passages of one document
            places[at:until, 1] = part.begin
        at = until
    return places


def _runs(
    job: Job,
    found: list[Pieces],
    ids: npt.NDArray[np.uint32],
    sizes: npt.NDArray[np.int64],
    places: npt.NDArray[np.uint64],
) -> list[Run]:
    """The ids of a Block with their end-of-text tokens, as the file has them, cut where the side changes."""
    marked = (
        [flag for pieces in found for flag in (pieces.ends if job.eot_side == "after" else pieces.begins)]
        if job.eot_id is not None
        else []
    )
    if any(marked):
        tokens, ends = _with_eot(job, ids, sizes, np.array(marked))
    else:
        tokens, ends = ids.astype(job.dtype), np.cumsum(sizes)
    val = [side for pieces in found for side in pieces.val]
    document_ends = np.array([flag for pieces in found for flag in pieces.ends], np.bool_)
    turns = [0, *(i for i in range(1, len(val)) if val[i] is not val[i - 1])] if val else []
    runs = []
    for first, after in zip(turns, [*turns[1:], len(val)], strict=True) if val else ():
        start, stop = int(ends[first - 1]) if first else 0, int(ends[after - 1])
        ended = document_ends[first:after]
        inside = ends[first:after][ended] - start
        runs.append(Run(val=val[first], tokens=tokens[start:stop], ends=inside, places=places[first:after][ended]))
    return runs


def _with_eot(
    job: Job, ids: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64], marked: npt.NDArray[np.bool_]
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    ends = np.cumsum(sizes + marked)
    places = ends[marked] - 1 if job.eot_side == "after" else (ends - sizes - 1)[marked]
    tokens = np.empty(int(ends[-1]), job.dtype)
    is_text = np.ones(len(tokens), np.bool_)
    is_text[places] = False
    assert job.eot_id is not None
    tokens[places] = job.eot_id
    tokens[is_text] = ids
    return tokens, ends


def _count(block: Block, found: list[Pieces], replaced: int) -> Counts:
    empty = block.empty_files + sum(pieces.empty_documents for pieces in found)
    begun = [
        side is True and not pieces.passages[0]
        for pieces in found
        for side, begins in zip(pieces.val, pieces.begins, strict=True)
        if begins
    ]
    return Counts(
        input_bytes=block.input_bytes,
        documents=len(begun) + empty,
        documents_empty=empty,
        documents_val=sum(begun),
        passages=sum(pieces.passages[0] for pieces in found),
        passages_val=sum(pieces.passages[1] for pieces in found),
        byte_order_marks=block.byte_order_marks,
        replaced_characters=replaced,
        forced_cuts=sum(part.forced for part in block.parts),
    )


def _place(job: Job, parts: tuple[Part, ...], found: list[Pieces], number: int) -> str:
    for part, pieces in zip(parts, found, strict=True):
        if number < len(pieces.data):
            return f"{show(job.files[part.file].path)} byte {part.offset + pieces.offsets[number]:,}"
        number -= len(pieces.data)
    raise AssertionError("no such piece")
