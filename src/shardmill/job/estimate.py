"""A Job → what it will take, from samples: answered in seconds, even for a terabyte."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardmill.errors import OutputError, TemporaryError, UsageError
from shardmill.io import storage
from shardmill.job.budget import MOST_ON_DISK
from shardmill.job.intervals import Found, FromStart, Range, total
from shardmill.job.job import Job, find, make_job
from shardmill.job.notes import Expected, notes_before
from shardmill.job.sampling import NEVER, Measure, Stop, sample
from shardmill.spec import Limits, Spec
from shardmill.system.names import is_url, show
from shardmill.tokens.encoder import Encoder

_SECONDS = 2.0
_QUICK_SECONDS = 0.25
_TIMED_BYTES = 2 << 20
_MOST_COMPRESSED = 20
# Reading, checking and writing in addition to encoding, and start-up; rough measurements.
_OVERHEAD = 1.25
_START_SECONDS = 0.4
# Finding, opening and closing a file, and listing it.
_FILE_SECONDS = 35e-6
# Shards wait here for an object store that is slow; they should not fill up the user's disk.
_MOST_STAGED = 32 << 30
# So much of what may be staged, and more, is not given to tokens that wait for their turn.
_MUCH_STAGED = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a job will make, and what that takes."""

    files: int
    input_bytes: int
    text_bytes: Range
    """Of the documents: after decompression, without the other fields of records."""
    documents: Range
    tokens: Range
    output_bytes: Range
    free_bytes: int
    """On the disk of the output; for an object store, on the disk of the staging folder, up to the staging limit."""
    disk_bytes: int
    """How much of that is needed at least."""
    waiting_bytes: int
    """How much more of it may be taken while the job runs, by tokens that wait for their turn to be written."""
    memory: int
    seconds: float
    workers: int
    engine: str
    dtype: str
    sampled_bytes: int
    notes: tuple[str, ...]


def estimate(spec: Spec, *, limits: Limits | None = None) -> Estimate:
    """What prepare(spec) would make and take.

    >>> shardmill.estimate(shardmill.Spec(inputs=["corpus/"], output="data")).dtype
    'uint16'
    """
    limits = limits or Limits()
    files, tokenizer = find(spec, limits)
    for file in files.pipes:
        raise UsageError(
            f"{show(file.path)}: a pipe cannot be estimated, since it can be read only once; save the data as a file first, or just run prepare"
        )
    with files.opened:
        job = make_job(spec, files, tokenizer, limits)
        return estimate_job(job, with_staging_limit(job, limits))


def estimate_job(job: Job, limits: Limits) -> Estimate:
    meter = _Meter(job)
    found = _sample(job, meter, _SECONDS, whole=True)
    text, (documents, tokens) = total(found, "text"), _totals(job, found)
    space = _space_for(job, limits, 0, (documents, tokens))
    notes = (*notes_before(job, lambda: (documents, tokens)), _space_warning(job, space))
    return Estimate(
        files=len(job.files),
        input_bytes=job.total_bytes,
        text_bytes=text,
        documents=documents,
        tokens=tokens,
        output_bytes=space.made,
        free_bytes=space.free,
        disk_bytes=space.needed,
        waiting_bytes=space.waiting,
        memory=job.budget.max_memory,
        seconds=_seconds(job, meter, text.middle),
        workers=job.budget.workers,
        engine=job.engines.name,
        dtype=job.writes.dtype.name,
        sampled_bytes=meter.bytes,
        notes=tuple(filter(None, notes)),
    )


def expected(job: Job, *, thorough: bool = False) -> Expected:
    """How many documents and tokens the job will write, from what a quarter of a second shows, or two seconds.

    >>> expected(job)[1].low > job.writes.shard_tokens
    True
    """
    encoder, seconds = Encoder(job.engines), _SECONDS if thorough else _QUICK_SECONDS
    return _totals(job, _sample(job, lambda texts: len(encoder.encode(texts)[0]), seconds, whole=thorough))


def expecting(job: Job, limits: Limits, written: int = 0) -> Callable[[], Expected]:
    """What is expected of the job, by a single sample, taken when it is first asked for; a thorough one if the disk may be
    too small. written is how many bytes of the result are on the disk already."""

    @functools.cache
    def expect() -> Expected:
        return expected(job, thorough=_most_bytes(job) >= _free_bytes(job, limits, written))

    return expect


def _sample(job: Job, measure: Measure, seconds: float, *, whole: bool) -> Found:
    spec, stop = job.spec, NEVER
    if job.rules.limited:
        documents, tokens = (math.inf if most is None else most for most in (spec.limit_documents, spec.limit_tokens))
        stop = Stop(documents=documents, tokens=tokens, per_document=int(job.eot_id is not None))
    kept = spec.sample or 1.0
    return sample(job.files, job.rules, measure, seconds=seconds, whole=whole, kept=kept, stop=stop)


def with_staging_limit(job: Job, limits: Limits, written: int = 0) -> Limits:
    """The limits with how much may wait on this disk for an object store: by default, half of what would be free."""
    if limits.max_staging is not None or not is_url(job.spec.output):
        return limits
    half = (storage.free_bytes(job.output) + written) // 2
    return dataclasses.replace(limits, max_staging=min(half, _MOST_STAGED) if job.writes.shard_tokens else half)


def check_space(
    job: Job, limits: Limits, expect: Callable[[], Expected], written: int = 0
) -> tuple[Job, Limits, str | None]:
    """Refuse the job if the disk cannot hold the result; a warning if it may not. expect is asked only if space may be
    short.

    What remains, up to a limit, is for tokens that wait for their turn; so much less may be staged.
    """
    free, most, note = _free_bytes(job, limits, written), _most_bytes(job), None
    if free > most or not job.files.known:
        waiting = _waiting_bytes(job, most, free - most)
    else:
        space = _space_for(job, limits, written, expect())
        refuse_without_space(job.spec, space.made, space.needed, space.free)
        waiting = space.waiting
        note = _space_warning(job, space) or _waiting_note(job, space)
    if limits.max_staging is not None and is_url(job.spec.output):
        # Files that are not complete take room first.
        waiting = min(waiting, max(limits.max_staging - most, limits.max_staging // 4 - _MUCH_STAGED, 0))
        limits = dataclasses.replace(limits, max_staging=limits.max_staging - waiting)
    budget = dataclasses.replace(job.budget, on_disk=waiting)
    return dataclasses.replace(job, budget=budget), limits, note


class _Space(NamedTuple):
    """What the result takes, how much of that at least on this disk, what is free there, and what may wait there."""

    made: Range
    needed: int
    free: int
    waiting: int


def _space_for(job: Job, limits: Limits, written: int, expected: Expected) -> _Space:
    documents, tokens = expected
    made, free = _combined(job.writes.bytes_of, tokens, documents), _free_bytes(job, limits, written)
    needed = _least_disk(job, made, documents)
    return _Space(made, needed, free, _waiting_bytes(job, made.high, _spare(job, made.high, needed, free)))


def _most_bytes(job: Job) -> int:
    """A token, an end-of-text token and the end of a document for every byte; for compressed files, many more."""
    text_bytes = job.total_bytes * (1 if job.plain else _MOST_COMPRESSED)
    return job.writes.bytes_of(2 * text_bytes, text_bytes)


def _waiting_bytes(job: Job, made: int, spare: int) -> int:
    """How much of the spare space tokens may take that wait for their turn; none where all is read in order."""
    in_order = job.budget.workers == 1 or job.rules.limited or not job.files.known
    return 0 if in_order else max(0, min(MOST_ON_DISK, made, spare))


def _spare(job: Job, made: int, least: int, free: int) -> int:
    """How much of the free space is not for the result; of what an object store need not have, half."""
    return (free - least) // 2 if is_url(job.spec.output) else free - made


def _waiting_note(job: Job, space: _Space) -> str | None:
    """Large compressed files are milled at once only if what is ahead can wait."""
    if space.waiting or job.plain or len(job.files) == 1 or space.made.low <= job.budget.ahead:
        return None
    if not _waiting_bytes(job, MOST_ON_DISK, MOST_ON_DISK):
        return None
    return f"the disk of {show(job.output)} has no space left for tokens that wait for their turn, so workers may have to wait for each other; free some gigabytes to keep them all busy"


def refuse_without_space(spec: Spec, made: Range, needed: int, free: int) -> None:
    """Raises if the disk is too small for what must be on it at one time."""
    if needed <= free:
        return
    if is_url(spec.output):
        raise OutputError(
            f"{show(spec.output)}: at least {needed:,} bytes must be staged on this disk until their files are complete, and there is room for {free:,}; "
            "pass a larger --max-staging, a --staging folder on a larger disk, a smaller --shard-tokens, or --format shards"
        )
    raise TemporaryError(
        f"{show(spec.output)}: the result will take about {made.middle:,} bytes (at least {needed:,}), and this disk has {free:,} free; "
        "free some space and run the same command again, or choose another disk with -o"
    )


def _free_bytes(job: Job, limits: Limits, written: int) -> int:
    free = storage.free_bytes(job.output) + written
    return min(free, limits.max_staging) if limits.max_staging is not None and is_url(job.spec.output) else free


def _least_disk(job: Job, made: Range, documents: Range) -> int:
    """The least that is on this disk at one time: the whole result, or for an object store what is uploaded last."""
    writes = job.writes
    if not is_url(job.spec.output) or writes.shard_tokens is None:
        return made.low
    shards = (2 if writes.least_tokens else 1) + (1 if writes.val_tokens else 0)
    whole = shards * (writes.shard_tokens * writes.dtype.itemsize + writes.header_bytes)
    return min(made.low, whole + documents.low * writes.bytes_per_document)


def _space_warning(job: Job, space: _Space) -> str | None:
    if space.made.high <= space.free or is_url(job.spec.output):
        return None
    return f"the result may take up to {space.made.high:,} bytes, and the disk of {show(job.output)} has {space.free:,} free"


class _Meter:
    """Counts tokens, and the time it takes: the first time, and again."""

    def __init__(self, job: Job) -> None:
        self._encoder = Encoder(job.engines)
        self.bytes = self.timed_bytes = 0
        self.seconds_new = self.seconds_again = 0.0

    def __call__(self, texts: list[bytes]) -> int:
        started = time.perf_counter()
        tokens = len(self._encoder.encode(texts)[0])
        seen = time.perf_counter()
        size = sum(map(len, texts))
        self.bytes += size
        if self.timed_bytes < _TIMED_BYTES:
            self._encoder.encode(texts)
            self.timed_bytes += size
            self.seconds_new += seen - started
            self.seconds_again += time.perf_counter() - seen
        return tokens


def _seconds(job: Job, meter: _Meter, text: int) -> float:
    """Words seen before are fast. The share of new ones falls with the length of a text, about as its power -0.4 (Heaps' law)."""
    sampled = max(1, meter.timed_bytes)
    still_new = math.pow(sampled / max(sampled, text), 0.4)
    for_sample = meter.seconds_again + max(0.0, meter.seconds_new - meter.seconds_again) * still_new
    encoding = for_sample * text / sampled * _OVERHEAD / job.budget.workers
    return encoding + len(job.files) * _FILE_SECONDS + _START_SECONDS


def _totals(job: Job, found: Found) -> Expected:
    """The documents and tokens that will be written, end-of-text tokens among them."""
    documents, tokens = total(found, "documents"), total(found, "tokens")
    spec, stopped = job.spec, any(isinstance(each, FromStart) and each.stopped for each in found)
    if job.rules.separator is None and job.plain and spec.sample is None and not job.rules.limited:
        documents = Range.exactly(int(np.count_nonzero(job.files.sizes)))
    if spec.limit_documents is not None:
        documents = _at_most(documents, spec.limit_documents)
    if job.eot_id is not None:
        tokens = _combined(lambda tokens, ends: tokens + ends, tokens, documents)
    if spec.limit_tokens is not None:
        by_tokens = stopped and documents.middle != spec.limit_documents
        tokens = Range.exactly(spec.limit_tokens) if by_tokens else _at_most(tokens, spec.limit_tokens)
    return documents, tokens


def _at_most(found: Range, limit: int) -> Range:
    return _combined(lambda count: min(count, limit), found)


def _combined(function: Callable[..., int], *ranges: Range) -> Range:
    return Range(**{name: function(*(getattr(each, name) for each in ranges)) for name in ("low", "middle", "high")})
