"""A Block that is a range of documents → its tokens: by C what is usual, and by mill_block what is not."""

import dataclasses

import numpy as np
import xxhash

from shardmill.documents import ranges
from shardmill.documents.ranges import Outcome, RangePart, Recipe
from shardmill.job.block import Milled, Run, mill_block
from shardmill.job.job import Job
from shardmill.job.plan import Block
from shardmill.job.sources import refuse_changed_reader
from shardmill.job.split import Splitter
from shardmill.record.manifest import Counts
from shardmill.tokens.encoder import Encoder
from shardmill.tokens.layout import Turn

_MANY_WORKERS = 8


def recipe_of(job: Job, splitter: Splitter, turn: Turn | None) -> Recipe | None:
    """How C mills ranges; None: there is more to do with documents than it can."""
    rules, ours = job.rules, job.engines.ours
    if ours is None or rules.limited or rules.selects or job.writes.needs_places:
        return None
    if rules.passage_bytes is not None and rules.on_error == "skip" and job.eot_side == "before":
        return None  # where a text begins depends on which of its passages are left out
    return Recipe(
        keys=np.sort(np.array(splitter.keys, np.uint64)),
        limit=splitter.limit,
        above=splitter.mode == "tail",
        whole=ours.whole,
        turn=turn,
        dtype=job.writes.dtype,
        eot=job.eot_id,
        before=job.eot_side == "before",
    )


def range_bytes(job: Job) -> int:
    """As much as a Block; for many workers more, but no more bytes of tokens than a Block may have."""
    block = job.rules.block_bytes
    return block if job.budget.workers < _MANY_WORKERS else max(block, 4 * block // job.writes.dtype.itemsize)


def mill_range(job: Job, splitter: Splitter, encoder: Encoder, block: Block, recipe: Recipe) -> Milled:
    """A range is one Block. Records that are unusual are milled as any others, a few at a time."""
    (part,) = block.parts
    assert isinstance(part, RangePart)
    at, record, parts = part.at, part.record, list[Milled]()
    with part.reader:
        while at < part.end:
            found = ranges.mill(part, at, recipe, _hash(block.index, at))
            parts.append(_by_c(job, block, part, found, 0 if parts else block.input_bytes))
            at, record = found.at, record + found.records
            for some in part.rest(at, record) if found.unusual else ():
                rest = dataclasses.replace(block, parts=(some,), input_bytes=0)
                parts.append(mill_block(job, splitter, encoder, rest))
                at, record = part.reached(some.after)
        if not part.reader.is_still:
            refuse_changed_reader(job.files[part.file], part.reader)
        part.reader.done_until(part.done_until)
    made = parts[0] if len(parts) == 1 else _joined(block, parts)
    if part.unit == "line" and block.after.file == part.file:
        made.after = dataclasses.replace(block.after, record=record)
    return made


def _hash(index: int, at: int) -> int:
    return xxhash.xxh3_64_intdigest(at.to_bytes(8, "little"), seed=index)


def _by_c(job: Job, block: Block, part: RangePart, found: Outcome, input_bytes: int) -> Milled:
    checked = 0
    if found.kept is not None and job.checker.wants(block.index, found.seconds):
        kept = found.kept()
        where = lambda number: str(part.place(int(kept.starts[number])))  # noqa: E731
        begins = np.full(len(kept.texts), not part.passages)
        checked = job.checker.check(block.index, kept.texts, begins, kept.encoded, where, 0.0)
    runs = [
        Run(val=val, tokens=side.tokens, ends=side.ends, places=None, text_bytes=side.text_bytes)
        for val, side in zip((False, True), found.sides)
        if len(side.tokens) or len(side.ends)
    ]
    if part.passages:
        runs.sort(key=lambda run: run.val == found.last_in_val)  # what comes next may belong to the last passage
        counts = Counts(input_bytes=input_bytes, passages=found.records, passages_val=found.in_val)
    else:
        counts = Counts(
            input_bytes=input_bytes,
            documents=found.records,
            documents_val=found.in_val,
            documents_empty=found.empty,
        )
    has_text = True if runs else None
    return Milled(
        index=block.index, runs=runs, counts=counts, checked_bytes=checked, after=block.after, has_text=has_text
    )


def _joined(block: Block, parts: list[Milled]) -> Milled:
    return Milled(
        index=block.index,
        runs=[run for each in parts for run in each.runs],
        counts=sum((each.counts for each in parts), Counts()),
        checked_bytes=sum(each.checked_bytes for each in parts),
        after=block.after,
        rejects=tuple(reject for each in parts for reject in each.rejects),
        has_text=next((each.has_text for each in reversed(parts) if each.has_text is not None), None),
    )
