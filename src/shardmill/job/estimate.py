"""A Job → what it will take, from samples: answered in seconds, even for a terabyte."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash

from shardmill.documents import utf8
from shardmill.documents.pieces import Position
from shardmill.errors import OutputError, TemporaryError, UsageError
from shardmill.io import storage
from shardmill.io.reading import open_input
from shardmill.job import plan
from shardmill.job.job import Job, find, make_job
from shardmill.job.notes import notes_before
from shardmill.spec import Limits, Spec
from shardmill.system.names import is_url, show
from shardmill.tokens.encoder import Encoder

# With 256 samples spread over the whole input, the sampling error is a few percent, and a disk that seeks needs two or
# three seconds.
_SAMPLES = 256
_SAMPLE_BYTES = 16 << 10
_FILES = 16
_WHOLE_FILES = 4096
_MOST_COMPRESSED = 20
# Reading, checking and writing in addition to encoding, and start-up; rough measurements.
_OVERHEAD = 1.25
_START_SECONDS = 0.4
# Finding, opening and closing a file, and listing it.
_FILE_SECONDS = 35e-6
# Shards wait here for an object store that is slow; they should not fill up the user's disk.
_MOST_STAGED = 32 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An estimate and its 95 % interval; all three are equal if it was counted."""

    low: int
    middle: int
    high: int

    @staticmethod
    def exactly(value: int) -> "Range":
        return Range(low=value, middle=value, high=value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a job will make, and what that takes."""

    files: int
    input_bytes: int
    documents: Range
    tokens: Range
    output_bytes: Range
    free_bytes: int
    """On the disk of the output; for an object store, on the disk of the staging folder, up to the staging limit."""
    disk_bytes: int
    """How much of that is needed at least."""
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
    job = make_job(spec, files, tokenizer, limits)
    return estimate_job(job, with_staging_limit(job, limits))


def estimate_job(job: Job, limits: Limits, written: int = 0) -> Estimate:
    """written is how many bytes of the result are on the disk already."""
    counted, tokens, documents = _sampled(job)
    made = _combined(job.writes.bytes_of, tokens, documents)
    free = _free_bytes(job, limits, written)
    notes = (*notes_before(job, lambda _: tokens), _space_warning(job, made, free))
    return Estimate(
        files=len(job.files),
        input_bytes=job.total_bytes,
        documents=documents,
        tokens=tokens,
        output_bytes=made,
        free_bytes=free,
        disk_bytes=_least_disk(job, made, documents),
        memory=job.budget.max_memory,
        seconds=_seconds(job, counted),
        workers=job.budget.workers,
        engine=job.engines.name,
        dtype=job.writes.dtype.name,
        sampled_bytes=sum(counted.sizes),
        notes=tuple(filter(None, notes)),
    )


def expected_tokens(job: Job) -> Range:
    """How many tokens the result will have."""
    return _sampled(job)[1]


def _sampled(job: Job) -> tuple["_Counted", Range, Range]:
    """Spans of the input, and from them the tokens and documents of all of it."""
    small = job.total_bytes <= _SAMPLES * _SAMPLE_BYTES and len(job.files) <= _WHOLE_FILES
    sampled = job.plain and not small
    blocks = plan.blocks(job.files, job.rules) if job.plain else _first_blocks(job)
    counted = _count(job, _samples(job) if sampled else _parsed(job, blocks))
    if not sampled and sum(counted.sizes) == job.total_bytes:
        documents, tokens = Range.exactly(sum(counted.documents)), Range.exactly(sum(counted.tokens))
    else:
        tokens = _extrapolate(counted.sizes, counted.tokens, job.total_bytes)
        documents = _extrapolate(counted.sizes, counted.documents, job.total_bytes)
        if job.rules.separator is None and job.plain:
            documents = Range.exactly(int(np.count_nonzero(job.files.sizes)))
    if job.eot_id is not None:
        tokens = _combined(lambda tokens, ends: tokens + ends, tokens, documents)
    return counted, tokens, documents


def with_staging_limit(job: Job, limits: Limits, written: int = 0) -> Limits:
    """The limits with how much may wait on this disk for an object store: by default, half of what would be free."""
    if limits.max_staging is not None or not is_url(job.spec.output):
        return limits
    half = (storage.free_bytes(job.output) + written) // 2
    return dataclasses.replace(limits, max_staging=min(half, _MOST_STAGED) if job.writes.shard_tokens else half)


def check_space(job: Job, limits: Limits, written: int = 0) -> str | None:
    """Refuse the job if the disk cannot hold the result; returns a warning if it may not. written: as in estimate_job."""
    if not job.files.known:
        return None
    # A token, an end-of-text token and the end of a document for every byte; for compressed files, many more.
    text_bytes = job.total_bytes * (1 if job.plain else _MOST_COMPRESSED)
    if _free_bytes(job, limits, written) > job.writes.bytes_of(2 * text_bytes, text_bytes):
        return None
    found = estimate_job(job, limits, written)
    refuse_without_space(job.spec, found)
    return _space_warning(job, found.output_bytes, found.free_bytes)


def refuse_without_space(spec: Spec, found: Estimate) -> None:
    """Raises if the disk is too small for what must be on it at one time."""
    needed, free = found.disk_bytes, found.free_bytes
    if needed <= free:
        return
    if is_url(spec.output):
        raise OutputError(
            f"{show(spec.output)}: at least {needed:,} bytes must be staged on this disk until their files are complete, and there is room for {free:,}; "
            "pass a larger --max-staging, a --staging folder on a larger disk, a smaller --shard-tokens, or --format shards"
        )
    raise TemporaryError(
        f"{show(spec.output)}: the result will take about {found.output_bytes.middle:,} bytes (at least {needed:,}), and this disk has {free:,} free; "
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


def _space_warning(job: Job, made: Range, free: int) -> str | None:
    if made.high <= free or is_url(job.spec.output):
        return None
    return f"the result may take up to {made.high:,} bytes, and the disk of {show(job.output)} has {free:,} free"


_Span = tuple[int, list[bytes], int]
"""Bytes of the input, the text in them that is encoded, and how many documents."""


@dataclass(kw_only=True, slots=True)
class _Counted:
    """Spans of the input, and how long an encoder took for them the first time and again."""

    sizes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    seconds_new: float = 0.0
    seconds_again: float = 0.0


def _count(job: Job, spans: Iterator[_Span]) -> _Counted:
    encoder, counted = Encoder(job.engines), _Counted()
    for size, texts, documents in spans:
        started = time.perf_counter()
        begins = [True] * len(texts)
        tokens = len(encoder.encode(texts, begins)[0])
        seen = time.perf_counter()
        encoder.encode(texts, begins)
        counted.seconds_new += seen - started
        counted.seconds_again += time.perf_counter() - seen
        counted.sizes.append(size)
        counted.tokens.append(tokens)
        counted.documents.append(documents)
    return counted


def _parsed(job: Job, blocks: Iterator[plan.Block]) -> Iterator[_Span]:
    """What is in these Blocks; bad records are left out."""
    rules = dataclasses.replace(job.rules, on_error="skip")
    for block in blocks:
        found = [part.checked(rules).pieces(job.files.base(part.file), rules, lambda _: False) for part in block.parts]
        texts = [utf8.replaced(piece)[0] for pieces in found for piece in pieces.data]
        yield block.input_bytes, texts, sum(sum(pieces.begins) for pieces in found)


def _first_blocks(job: Job) -> Iterator[plan.Block]:
    """The first Blocks of some files, spread over all of them: records and compressed text can only be read from the start."""
    count = min(len(job.files), _FILES)
    each = _SAMPLES * _SAMPLE_BYTES // count
    for i in range(count):
        number = i * len(job.files) // count
        size = 0
        for block in plan.blocks(job.files, job.rules, Position(file=number)):
            if block.parts and block.parts[0].file != number:
                break
            yield block
            size += sum(part.size for part in block.parts)
            if size >= each:
                break


def _samples(job: Job) -> Iterator[_Span]:
    """One span from each of _SAMPLES equal sections of plain text, at an offset that a hash picks: the same every time.

    A word cut at each end adds about a token to 4,000. Trimming to a safe cut would be worse: it would leave out more of
    the text that has few.
    """
    section, separator = job.total_bytes / _SAMPLES, job.rules.separator
    for number in range(_SAMPLES):
        chance = xxhash.xxh3_64_intdigest(number.to_bytes(8, "little")) / (1 << 64)
        at = int((number + chance) * section)
        file = job.files[own := job.files.at_byte(at)]
        # A small file is taken whole: in its second half, the word that is cut would count for too much.
        begin = at - job.files.base(own) if (file.size or 0) > _SAMPLE_BYTES else 0
        with open_input(file) as reader:
            data = reader.read(begin, _SAMPLE_BYTES).decode("utf-8", "ignore").encode()
        texts = data.split(separator) if separator else [data]
        yield len(data), [text for text in texts if text], sum(map(bool, texts[:-1]))


def _seconds(job: Job, counted: _Counted) -> float:
    """Words seen before are fast. The share of new ones falls with the length of a text, about as its power -0.4 (Heaps' law)."""
    sampled = max(1, sum(counted.sizes))
    still_new = math.pow(sampled / max(sampled, job.total_bytes), 0.4)
    for_sample = counted.seconds_again + max(0.0, counted.seconds_new - counted.seconds_again) * still_new
    encoding = for_sample * job.total_bytes / sampled * _OVERHEAD / job.budget.workers
    return encoding + len(job.files) * _FILE_SECONDS + _START_SECONDS


def _extrapolate(sizes: list[int], counts: list[int], total: int) -> Range:
    """The ratio estimate of a total from spans, and its 95 % interval."""
    ratio = sum(counts) / max(1, sum(sizes))
    residues = sum((count - ratio * size) ** 2 for count, size in zip(counts, sizes, strict=True))
    spread = math.sqrt(residues * len(sizes) / max(1, len(sizes) - 1)) / max(1, sum(sizes))
    return Range(
        low=int(max(0.0, ratio - 1.96 * spread) * total),
        middle=int(ratio * total),
        high=math.ceil((ratio + 1.96 * spread) * total),
    )


def _combined(function: Callable[..., int], *ranges: Range) -> Range:
    return Range(**{name: function(*(getattr(each, name) for each in ranges)) for name in ("low", "middle", "high")})
