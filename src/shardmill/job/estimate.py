"""A Job → what it will take, from samples: answered in seconds, even for a terabyte."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from shardmill.documents import utf8
from shardmill.documents.pieces import Position
from shardmill.errors import OutputError, ShardmillError, TemporaryError, UsageError
from shardmill.io import storage
from shardmill.io.reading import open_input
from shardmill.job import plan
from shardmill.job.job import Job, find, make_job
from shardmill.spec import Limits, Spec
from shardmill.system.names import is_url, show
from shardmill.tokens.encoder import Encoder

# 256 places spread over the whole input: the share of the error that comes from their number is then some
# percent, and a disk that seeks needs two or three seconds.
_PLACES = 256
_SPAN_BYTES = 16 << 10
_FILES = 16
_WHOLE_FILES = 4096
_MOST_COMPRESSED = 20
_HINT_BYTES = 4 << 20
_HINT_LEAST = 3
# Reading, checking and writing beside the encoding, and starting up; as measured, roughly.
_BESIDES = 1.25
_START_SECONDS = 0.4
# Finding, opening and closing a file, and the list of them.
_FILE_SECONDS = 35e-6
# Shards wait here for a store no longer than it is behind; a disk of the user's should not fill up with them.
_MOST_STAGED = 32 << 30
# Marks that end documents in files people have. The last is weak, so it must be frequent.
_LIKELY_SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "\n\n\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An estimate and its 95 % interval; all three are equal when it was counted."""

    low: int
    middle: int
    high: int

    @staticmethod
    def exactly(value: int) -> "Range":
        return Range(low=value, middle=value, high=value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    files: int
    input_bytes: int
    documents: Range
    tokens: Range
    output_bytes: Range
    free_bytes: int
    """On the disk of the output; for one in a store, where files are staged, and at most the limit for that."""
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
    """What prepare(spec) would make and take."""
    limits = limits or Limits()
    files, tokenizer = find(spec, limits)
    for file in files.pipes:
        raise UsageError(
            f"{show(file.path)}: nothing can be said beforehand about a pipe, since what is read of it is gone; save the data as a file first, or just run prepare"
        )
    job = make_job(spec, files, tokenizer, limits)
    return estimate_job(job, with_staging_limit(job, limits))


def staging_problem(spec: Spec, needed: int, room: int) -> str:
    return (
        f"{show(spec.output)}: at least {needed:,} bytes must wait on this disk until their files are whole, and there is room for {room:,}; "
        "pass a larger --max-staging, a --staging folder on a larger disk, a smaller --shard-tokens, or --format shards"
    )


def estimate_job(job: Job, limits: Limits) -> Estimate:
    whole = job.total_bytes <= _PLACES * _SPAN_BYTES and len(job.files) <= _WHOLE_FILES and job.plain
    if whole:
        counted = _count_blocks(job, plan.blocks(job.files, job.rules))
    elif job.plain:
        counted = _count_samples(job)
    else:
        counted = _count_blocks(job, _first_blocks(job))
        whole = sum(counted.sizes) == job.total_bytes
    if whole:
        documents, tokens = Range.exactly(sum(counted.documents)), Range.exactly(sum(counted.tokens))
    else:
        tokens = _extrapolate(counted.sizes, counted.tokens, job.total_bytes)
        documents = _extrapolate(counted.sizes, counted.documents, job.total_bytes)
        if job.rules.separator is None and job.plain:
            documents = Range.exactly(int(np.count_nonzero(job.files.sizes)))
    total = _add(tokens, documents) if job.eot_id is not None else tokens
    made = Range(
        low=job.writes.bytes_of(total.low, documents.low),
        middle=job.writes.bytes_of(total.middle, documents.middle),
        high=job.writes.bytes_of(total.high, documents.high),
    )
    free, far = storage.free_bytes(job.output), is_url(job.spec.output)
    if far and limits.max_staging is not None:
        free = min(free, limits.max_staging)
    notes = [
        note
        for note in (job.engines.note, separator_hint(job), None if far else _space_warning(made, free, job))
        if note
    ]
    return Estimate(
        files=len(job.files),
        input_bytes=job.total_bytes,
        documents=documents,
        tokens=total,
        output_bytes=made,
        free_bytes=free,
        disk_bytes=_at_one_time(job, made, documents),
        memory=job.budget.max_memory,
        seconds=_seconds(job, counted),
        workers=job.budget.workers,
        engine=job.engines.name,
        dtype=job.dtype.name,
        sampled_bytes=sum(counted.sizes),
        notes=tuple(notes),
    )


def with_staging_limit(job: Job, limits: Limits, written: int = 0) -> Limits:
    """How much may wait on this disk for a store: what is asked for, else half of what is free, so many bytes written."""
    if limits.max_staging is not None or not is_url(job.spec.output):
        return limits
    half = (storage.free_bytes(job.output) + written) // 2
    shards = job.writes.shard_tokens is not None
    return dataclasses.replace(limits, max_staging=min(half, _MOST_STAGED) if shards else half)


def _at_one_time(job: Job, made: Range, documents: Range) -> int:
    """The least that is on this disk at one time: all of the result, or for a store what cannot go before the end."""
    layout = job.writes.layout()
    if not is_url(job.spec.output) or layout.shard_tokens is None:
        return made.low
    shards = (2 if layout.least_tokens else 1) + (1 if job.writes.first_shard_is_val else 0)
    whole = shards * (layout.shard_tokens * job.dtype.itemsize + layout.header_bytes)
    return min(made.low, whole + documents.low * job.writes.bytes_per_document)


def check_space(job: Job, limits: Limits, written: int = 0) -> str | None:
    """Refuse before the work begins when the disk cannot hold the result; returns a warning when it may not.

    So many bytes of it are written already.
    """
    if not job.files.known:
        return None
    free = storage.free_bytes(job.output) + written
    if limits.max_staging is not None and is_url(job.spec.output):
        free = min(free, limits.max_staging)
    # A token, an end-of-text and the end of a document for every byte; of what is compressed, many more.
    text_bytes = job.total_bytes * (1 if job.plain else _MOST_COMPRESSED)
    if free > job.writes.bytes_of(2 * text_bytes, text_bytes):
        return None
    found = estimate_job(job, limits)
    made = found.output_bytes
    if is_url(job.spec.output):
        if found.disk_bytes > free:
            raise OutputError(staging_problem(job.spec, found.disk_bytes, free))
        return None
    if made.low > free:
        raise TemporaryError(
            f"{show(job.output)}: the result will take about {made.middle:,} bytes (at least {made.low:,}), and this disk has {free:,} free; "
            "free some space and run the same command again, or choose another disk with -o"
        )
    return _space_warning(made, free, job)


def separator_hint(job: Job) -> str | None:
    """Text that looks like many documents in one file, while no separator was given, deserves a word."""
    if job.rules.separator is not None or not job.plain:
        return None
    file = job.files[int(job.files.sizes.argmax())]
    if file.once:
        return None
    try:
        with open_input(file) as reader:
            head = reader.read(0, _HINT_BYTES)
    except ShardmillError:  # the work is done, or will say so itself
        return None
    for mark in _LIKELY_SEPARATORS:
        count = head.count(mark.encode())
        if count >= (_HINT_LEAST if mark.strip() else 10 * _HINT_LEAST):
            written = mark.replace("\n", "\\n")
            part = "" if len(head) == file.size else f" in its first {len(head) >> 20} MiB"
            return f"{show(file.path)} holds '{written}' {count:,} times{part}, but is milled as one document; if that ends documents, pass --separator '{written}'"
    return None


def _space_warning(made: Range, free: int, job: Job) -> str | None:
    if made.high <= free:
        return None
    return f"the result may take up to {made.high:,} bytes, and the disk of {show(job.output)} has {free:,} free"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Counted:
    """Spans of text, what each holds, and how long they took an encoder that had not seen them, and one that had."""

    sizes: list[int]
    tokens: list[int]
    documents: list[int]
    seconds_new: float
    seconds_again: float


def _count_blocks(job: Job, blocks: Iterator[plan.Block]) -> _Counted:
    """What is in these Blocks, encoded and not written; bad records are left out. Sizes are bytes of the input."""
    rules = dataclasses.replace(job.rules, on_error="skip")
    rules_of = plan.rules_by_file(job.files, rules)
    encoder = Encoder(job.engines)
    sizes, tokens, documents = [], [], []
    new = again = 0.0
    for block in blocks:
        found = [
            part.checked(rules).pieces(job.files.base(part.file), rules_of(part.file), lambda _: False)
            for part in block.parts
        ]
        texts = [piece for pieces in found for piece in pieces.data]
        started = time.perf_counter()
        tokens.append(len(encoder.encode(texts, suspicious=True)[0]))
        seen = time.perf_counter()
        encoder.encode(texts, suspicious=False)
        new, again = new + seen - started, again + time.perf_counter() - seen
        sizes.append(block.input_bytes)
        documents.append(sum(sum(pieces.begins) for pieces in found))
    return _Counted(sizes=sizes, tokens=tokens, documents=documents, seconds_new=new, seconds_again=again)


def _first_blocks(job: Job) -> Iterator[plan.Block]:
    """The first Blocks of some files, spread over all of them: records and compressed text have no other places to begin."""
    count = min(len(job.files), _FILES)
    each = _PLACES * _SPAN_BYTES // count
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


def _count_samples(job: Job) -> _Counted:
    # A word cut at each end adds about a token to 4,000. Trimming to a safe cut would be worse: it would
    # leave out more of the text that has few.
    spans = [raw.decode("utf-8", "ignore").encode() for raw in _samples(job)]
    separator = job.rules.separator
    return _count(job, spans, [sum(map(bool, span.split(separator)[:-1])) if separator else 0 for span in spans])


def _count(job: Job, spans: list[bytes], documents: list[int]) -> _Counted:
    """The separators are no text: what lies between them is encoded."""
    separator = job.rules.separator
    parts = [[piece for piece in (span.split(separator) if separator else [span]) if piece] for span in spans]
    texts = [utf8.replaced(piece)[0] for pieces in parts for piece in pieces]
    encoder = Encoder(job.engines)
    started = time.perf_counter()
    counts = iter(encoder.encode(texts, suspicious=True)[1].tolist())
    seen = time.perf_counter()
    encoder.encode(texts, suspicious=False)
    return _Counted(
        sizes=[len(span) for span in spans],
        tokens=[sum(itertools.islice(counts, len(pieces))) for pieces in parts],
        documents=documents,
        seconds_new=seen - started,
        seconds_again=time.perf_counter() - seen,
    )


def _seconds(job: Job, counted: _Counted) -> float:
    """Words already seen are fast. How many are new falls with the length of a text, about as its power -0.4 (Heaps' law)."""
    sampled = max(1, sum(counted.sizes))
    still_new = math.pow(sampled / max(sampled, job.total_bytes), 0.4)
    for_sample = counted.seconds_again + max(0.0, counted.seconds_new - counted.seconds_again) * still_new
    encoding = for_sample * job.total_bytes / sampled * _BESIDES / job.budget.workers
    return encoding + len(job.files) * _FILE_SECONDS + _START_SECONDS


def _samples(job: Job) -> Iterator[bytes]:
    """One span from each of _PLACES equal stretches of the input, at a place that a hash picks: the same every time."""
    stretch = job.total_bytes / _PLACES
    for place in range(_PLACES):
        chance = xxhash.xxh3_64_intdigest(place.to_bytes(8, "little")) / (1 << 64)
        at = int((place + chance) * stretch)
        number = job.files.at_byte(at)
        file = job.files[number]
        # A small file is taken whole: of its second half, the word that is cut would be a good part.
        begin = at - job.files.base(number) if (file.size or 0) > _SPAN_BYTES else 0
        with open_input(file) as reader:
            data = reader.read(begin, _SPAN_BYTES)
        if data:
            yield data


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


def _add(a: Range, b: Range) -> Range:
    return Range(low=a.low + b.low, middle=a.middle + b.middle, high=a.high + b.high)
