"""A Job → its Splitter: what a first pass over the input finds, where one is needed."""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from shardmill.documents import text
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.documents.rules import TextRules
from shardmill.documents.text import TextPart
from shardmill.job import plan, split
from shardmill.job.job import Job
from shardmill.job.plan import Block
from shardmill.job.split import Splitter
from shardmill.record.manifest import Counts


def choose_splitter(
    job: Job,
    left: dict[str, Any] | None,
    save: Callable[[dict[str, Any]], None],
    report: Callable[[int], None],
    *,
    may_suppose: bool = False,
) -> Splitter:
    """A threshold when there is enough to judge; for small inputs a first pass finds exactly the lowest hashes.

    The first pass saves every second how far it is, goes on from what was left, and reports the bytes of each block.
    It is the same wherever the files are, so that the result is: it ends as soon as there is enough to judge. Where
    there very likely is, it may be left out, and what it would have found be supposed. A pipe cannot be read twice,
    so there it is always the threshold.
    """
    fraction, rules = job.val_fraction, job.rules
    if rules.border is not None:
        return Splitter(mode=job.split, limit=rules.border)
    if not fraction:
        return Splitter(mode="hash", limit=0)
    if job.files.pipes:
        return split.by_threshold(fraction)
    if left is not None and "limit" in left:
        return Splitter(mode="hash", limit=int(left["limit"]), supposed=bool(left.get("supposed")))
    found, start = split.Lowest(), BEGINNING
    if left is not None:
        found.records, found.count = left["records"], left["count"]
        found.highest, found.lowest = left["highest"], left["lowest"]
        start = Position(**left["position"])
    saved = time.monotonic()
    if left is None and rules.wanted is None:
        enough = split.enough(fraction)
        whole = job.spec.limit_documents is None and job.spec.limit_tokens is None
        if may_suppose and whole and plan.seems_to_have_records(job.files, rules, enough):
            splitter = split.by_threshold(fraction, supposed=True)
            save({"limit": splitter.limit, "supposed": 1})
            return splitter
        # A file of text is at least one document, be it empty.
        if len(job.files) >= enough if job.plain else plan.has_records(job.files, rules, enough):
            found.records = math.ceil(enough)
    for block, keys, records in _blocks_with_keys(job, start) if not _is_enough(found, job) else ():
        found.add(keys)
        found.records += records
        report(block.input_bytes)
        if _is_enough(found, job):
            break
        if time.monotonic() - saved >= 1.0:
            save(
                {
                    "records": found.records,
                    "count": found.count,
                    "highest": found.highest,
                    "lowest": found.lowest,
                    "position": asdict(block.after),
                }
            )
            saved = time.monotonic()
    splitter = split.by_threshold(fraction) if _is_enough(found, job) else split.by_lowest(found, fraction)
    save({"limit": splitter.limit})
    return splitter


def is_confirmed(job: Job, counts: Counts) -> bool:
    """Whether there were as many documents as a Splitter supposed."""
    return counts.documents >= split.enough(job.val_fraction)


def _is_enough(found: split.Lowest, job: Job) -> bool:
    """Of a sample, only what is in it counts."""
    return (found.records if job.rules.wanted is None else found.count) >= split.enough(job.val_fraction)


def _blocks_with_keys(job: Job, start: Position) -> Iterator[tuple[Block, list[int], int]]:
    """Records are taken apart beside the reading; for plain text, handing it over would cost more than it saves.

    Whatever --on-error says, bad records have no say: so the split is the same when it changes between two runs.
    """
    rules = dataclasses.replace(job.rules, on_error="skip", judging=True)
    blocks = plan.blocks(job.files, rules, start)

    def keys(block: Block) -> tuple[list[int], int]:
        found = [_keys(part, job.files.base(part.file), rules) for part in block.parts]
        return [key for keys, _ in found for key in keys], sum(records for _, records in found)

    if job.plain:
        if plan.can_survey(job.files, rules):
            yield from plan.survey(job.files, rules, start)
        else:
            yield from ((block, *keys(block)) for block in blocks)
        return
    with ThreadPoolExecutor(job.budget.workers) as pool:
        under_way: deque[tuple[Block, Future[tuple[list[int], int]]]] = deque()
        for block in blocks:
            under_way.append((block, pool.submit(keys, block)))
            if len(under_way) > job.budget.workers:
                first, result = under_way.popleft()
                yield first, *result.result()
        for first, result in under_way:
            yield first, *result.result()


def _keys(part: plan.Part, base: int, rules: TextRules) -> tuple[list[int], int]:
    """The keys of what a Part will write, and how many records it has. Raises what cannot be skipped."""
    if isinstance(part, TextPart):  # whether it is UTF-8 does not matter here
        return text.keys_and_count(part, base, rules)
    return part.checked(rules).keys(base, rules)
