"""A Block that is a range of documents → its tokens: by C what is usual, and by mill_block what is not."""

import dataclasses

import numpy as np
import xxhash

from shardmill.documents import ranges
from shardmill.documents.jsonl import LinesPart
from shardmill.documents.pieces import Position
from shardmill.documents.ranges import Outcome, RangePart, Recipe
from shardmill.io.reading import InputReader
from shardmill.job.block import Milled, Run, mill_block
from shardmill.job.job import Job
from shardmill.job.plan import Block
from shardmill.job.sources import refuse_changed_reader
from shardmill.job.split import Splitter
from shardmill.record.manifest import Counts
from shardmill.tokens.encoder import Encoder
from shardmill.tokens.layout import Turn

_MANY_WORKERS = 8
_MOST_PASSED_OVER = 15


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


class RangeMiller:
    """Of one worker. Records that are unusual are milled as any others; where they are many, so is the rest of a range, and
    some of those that come next."""

    def __init__(self, job: Job, splitter: Splitter, encoder: Encoder, recipe: Recipe) -> None:
        self._job, self._splitter, self._encoder, self._recipe = job, splitter, encoder, recipe
        self._pass_over = self._passed_over = 0
        """How many ranges C is not asked for, and how many of them came."""

    def mill(self, block: Block) -> Milled:
        rules = self._job.rules
        for part in block.parts[:1]:
            if isinstance(part, RangePart):
                return self._of_file(block, part)
        # The first Block of all is compared with the reference as a whole.
        in_memory = [part.as_range(rules) for part in block.parts if block.index and isinstance(part, LinesPart)]
        if not in_memory or len(in_memory) < len(block.parts) or None in in_memory:
            return mill_block(self._job, self._splitter, self._encoder, block)
        milled = [each for part in in_memory if part is not None for each in self._parts(block, part)[0]]
        made = _joined(block, milled)
        made.counts = dataclasses.replace(made.counts, input_bytes=block.input_bytes)
        return made

    def _of_file(self, block: Block, part: RangePart) -> Milled:
        """A range that nobody has read yet is one Block."""
        assert isinstance(part.reader, InputReader)
        with part.reader:
            parts, record, behind = self._parts(block, part)
            if not part.reader.is_still:
                refuse_changed_reader(self._job.files[part.file], part.reader)
            for done in part.span:
                part.reader.done_until(done)
        made = parts[0] if len(parts) == 1 else _joined(block, parts)
        further = 0 if behind is None else behind.offset - part.after.offset
        made.counts = dataclasses.replace(made.counts, input_bytes=block.input_bytes + further)
        if part.unit == "line" and block.after.file == part.file:
            made.after = dataclasses.replace(block.after, record=record)
        if part.unit == "row":
            made.begins = Position(file=part.file, record=part.at)
        if behind is not None:  # its row group cannot be read any further
            made.after = dataclasses.replace(behind, spent=behind.offset)
        return made

    def _parts(self, block: Block, part: RangePart) -> tuple[list[Milled], int, Position | None]:
        """And the number of the record behind them; and where they end, if that is behind the range."""
        at, record, parts, places, behind = part.at, part.record, list[Milled](), 0, None
        to_end = passed_over = self._passed_over < self._pass_over
        self._passed_over += 1
        while at < part.end:
            if not to_end:
                found = ranges.mill(part, at, self._recipe, _hash(block.index, at))
                parts.append(_by_c(self._job, block, part, found))
                stays, at, record = found.at == at, found.at, record + found.records
                if at == part.end or not (found.unusual or stays or part.unit == "row"):
                    continue
                places += 1
                to_end = places > 1 or part.passages or part.unit == "row"
            began = at
            for some in part.rest(at, record, to_end):
                rest = dataclasses.replace(block, parts=(some,), input_bytes=0)
                parts.append(mill_block(self._job, self._splitter, self._encoder, rest))
                at, record = part.reached(some.after)
                behind = some.after if at > part.end else None
            assert at > began, "what is left of a range has Parts"
        if not passed_over:
            self._pass_over, self._passed_over = min(_MOST_PASSED_OVER, 2 * self._pass_over + 1) if to_end else 0, 0
        return parts, record, behind


def _hash(index: int, at: int) -> int:
    return xxhash.xxh3_64_intdigest(at.to_bytes(8, "little"), seed=index)


def _by_c(job: Job, block: Block, part: RangePart, found: Outcome) -> Milled:
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
        counts = Counts(passages=found.records, passages_val=found.in_val)
    else:
        counts = Counts(documents=found.records, documents_val=found.in_val, documents_empty=found.empty)
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
