"""One Block of text → its tokens, each on its side: what a worker does to it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardmill import plan
from shardmill.documents.pieces import Pieces, Position
from shardmill.job import Job
from shardmill.manifest import Counts
from shardmill.plan import Block, Checked
from shardmill.rejects import Reject
from shardmill.split import Splitter
from shardmill.tokens.check import check_sample
from shardmill.tokens.encoder import Encoder

Tokens = npt.NDArray[np.unsignedinteger[npt.NBitBase]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """A Block whose Parts have been checked."""

    block: Block
    checked: tuple[Checked, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Milled:
    """The tokens of one Block in order, each run with its side; None: the side of the run before."""

    index: int
    runs: list[tuple[bool | None, Tokens]]
    counts: Counts
    checked_bytes: int
    after: Position
    """Where the next Block begins."""
    rejects: tuple[Reject, ...] = ()


def inspect(job: Job, block: Block) -> Inspected:
    """Find what in a Block is bad. In reading order, so that the first bad record is the one named."""
    return Inspected(block=block, checked=tuple(part.checked(job.rules) for part in block.parts))


def mill_block(job: Job, splitter: Splitter, encoder: Encoder, inspected: Inspected) -> Milled:
    """One Block of text → its tokens: encode it, compare a sample, put in the end-of-text tokens, part train from val."""
    block = inspected.block
    found = [
        checked.pieces(
            job.bases[part.file], plan.rules_for(job.files, job.files[part.file], job.rules), splitter.is_val
        )
        for part, checked in zip(block.parts, inspected.checked, strict=True)
    ]
    data = [piece for pieces in found for piece in pieces.data]
    ids, sizes = encoder.encode(data, suspicious=_is_suspicious(job, data))
    checked_bytes = check_sample(
        job.engines, block.index, data, ids, sizes, lambda number: _place(inspected.checked, found, number)
    )
    return Milled(
        index=block.index,
        runs=_runs(job, found, ids, sizes),
        counts=_count(block, found),
        checked_bytes=checked_bytes,
        after=block.after,
        rejects=tuple(reject for pieces in found for _, reject in pieces.rejects),
    )


def _is_suspicious(job: Job, data: list[bytes]) -> bool:
    """Whether there is a character that the fast engine gets wrong."""
    guard = job.engines.guard
    if guard is None:
        return False
    # One look at all of them: a NUL between them makes no character of two halves.
    return bool(guard.find(data[0] if len(data) == 1 else b"\0".join(data)))


def _runs(
    job: Job, found: list[Pieces], ids: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64]
) -> list[tuple[bool | None, Tokens]]:
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
    turns = [i for i in range(1, len(val)) if val[i] is not val[i - 1]]
    borders = [int(ends[i - 1]) for i in turns]
    return (
        [(val[i], tokens[a:b]) for i, a, b in zip([0, *turns], [0, *borders], [*borders, len(tokens)], strict=True)]
        if val
        else []
    )


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


def _count(block: Block, found: list[Pieces]) -> Counts:
    counts = {"input_bytes": block.input_bytes}
    for pieces in found:
        for _, name, number in pieces.events:
            counts[name] = counts.get(name, 0) + number
        whole = not pieces.passages
        begun = [side for side, begins in zip(pieces.val, pieces.begins, strict=True) if begins]
        counts["documents"] = counts.get("documents", 0) + len(begun)
        if whole:
            counts["documents_val"] = counts.get("documents_val", 0) + sum(side is True for side in begun)
        else:
            val = sum(number for number, side in zip(pieces.passages, pieces.val, strict=True) if side)
            counts["passages"] = counts.get("passages", 0) + sum(pieces.passages)
            counts["passages_val"] = counts.get("passages_val", 0) + val
    others = ("documents_empty", "documents_rejected", "documents_unsampled")
    counts["documents"] = counts.get("documents", 0) + sum(counts.get(name, 0) for name in others)
    return Counts(**counts)


def _place(checked: tuple[Checked, ...], found: list[Pieces], number: int) -> str:
    for part, pieces in zip(checked, found, strict=True):
        if number < len(pieces.data):
            return part.place_of(number, pieces.offsets[number])
        number -= len(pieces.data)
    raise AssertionError("no such piece")
