"""A Spec → a Job: every question answered before the work begins."""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.documents import text
from shardmill.documents.columnar import columns
from shardmill.documents.rules import TextRules
from shardmill.errors import UsageError
from shardmill.formats import registry
from shardmill.formats.registry import Output
from shardmill.formats.shards import TokenType
from shardmill.inputs.find import find_inputs
from shardmill.inputs.input_files import InputFiles
from shardmill.io import reading, storage
from shardmill.io.compression import LEAST_WINDOW
from shardmill.io.object_store import check_place
from shardmill.io.urls import PART_BYTES, PARTS_AT_ONCE
from shardmill.job import budget, first_pass, plan, split
from shardmill.job.budget import Budget, Footprint
from shardmill.job.split import Lowest, Splitter
from shardmill.record import input_list
from shardmill.record.manifest import when
from shardmill.spec import Limits, Spec, Split
from shardmill.system import machine
from shardmill.system.names import is_url, show
from shardmill.tokens.check import SHARE, Checker
from shardmill.tokens.encoder import Encoder, Engines, choose_engines
from shardmill.tokens.gigatoken import FEW_PIECES
from shardmill.tokens.tokenizer import Tokenizer, end_of_text, load

# What this process has resident before the first block when it is the command and nothing else, at most.
_OWN_BASE = 160 << 20
# What a pipe is taken for until its end is reached: too much for a shortcut.
_UNKNOWN_BYTES = 1 << 40

# What is put in a store is in memory part by part, of two files at a time.
_PUT_BUFFERS = 2 * PARTS_AT_ONCE * PART_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is read, how it is cut, what encodes it, what is written, and within which budget."""

    spec: Spec
    output: Path
    """Where the files grow; what goes to a store is put there from here."""
    files: InputFiles
    total_bytes: int
    """0 when a pipe is among the files: nobody knows."""
    tokenizer: Tokenizer
    engines: Engines
    rules: TextRules
    dtype: TokenType
    writes: Output
    split: Split
    """hash, head or tail; with a first shard for val, no text is parted from the rest before it is written."""
    val_fraction: float
    eot_id: int | None
    eot_side: str
    budget: Budget
    plain: bool
    """All inputs are plain text files, as far as a look at some of them tells."""
    big: bool
    """Larger than the page cache should hold."""
    max_rejects: int | float | None = None
    checker: Checker
    """What compares a sample with the reference."""
    begun: Lowest | None = None
    """What the first pass found while the engines were loaded."""

    def describe(self) -> dict[str, Any]:
        """All that decides the bytes of the result, as it stands in the manifest."""
        return describe(self.spec, self.files, self.tokenizer)


def describe(spec: Spec, files: InputFiles, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "choices": {**spec.choices(), "tokenizer": tokenizer.name},
        "inputs": input_list.describe(files),
        "tokenizer_sha256": tokenizer.digest,
        "vocabulary_size": tokenizer.size,
    }


def versions(job: Job) -> dict[str, Any]:
    """All that must not change while a job is unfinished: also what tells of edited inputs and other tokens."""
    times = input_list.times(job.files)
    return {
        **job.describe(),
        "reference": job.engines.reference.version,
        "modified": [when(time) for time in times] if isinstance(times, list) else times,
    }


def find(spec: Spec, limits: Limits | None = None) -> tuple[InputFiles, Tokenizer]:
    """The cheap questions: what there is to read, with which tokenizer, and whether the choices go together."""
    registry.check(spec)
    check_place(spec.output)
    limits = limits or Limits()
    files = find_inputs(spec.inputs, patience=limits.network_seconds, most_bytes=limits.most_memory())
    mode, fraction = _val_choice(spec)
    if files.pipes and mode != "hash" and fraction:
        raise UsageError(
            f"--split {mode} with {show(files.pipes[0].path)}: how long a pipe is, and so where the {mode} of the text ends, is known only at its end; leave --split out, or save the data as a file first"
        )
    return files, load(spec.tokenizer, limits.most_memory())


def make_job(spec: Spec, files: InputFiles, tokenizer: Tokenizer, limits: Limits, *, begins: bool = False) -> Job:
    """Decide everything that the work itself must not decide. If the work begins at once, so does its first pass."""
    if limits.max_rejects is not None and spec.on_error != "skip":
        raise UsageError(
            f"--max-rejects: with --on-error {spec.on_error} no record is left out; pass --on-error skip with it"
        )
    machine.keep_freed_memory()
    total = files.total_bytes if files.known else 0
    likely = total if files.known else _UNKNOWN_BYTES
    writes = registry.plan_output(spec, tokenizer, files.paths, likely)
    mode, fraction = _val_choice(spec)
    separator = text.escaped(spec.separator) if spec.separator is not None else None
    look = plan.look(files, spec.input_format, spec.field)
    one_text = len(files) == 1 and separator is None and plan.is_text(files[0], spec.input_format)
    side = spec.eot if spec.eot != "auto" else _eot_side(writes, one_text=one_text)
    eot_id = None if side == "none" else end_of_text(tokenizer, spec.eot_token)
    buffers = max(map(reading.read_buffers, files.special), default=0) + (_PUT_BUFFERS if is_url(spec.output) else 0)
    rules = TextRules(
        cuts=tokenizer.cuts,
        key=(lambda head, _: split.content_key(head, spec.seed)) if mode == "hash" else (lambda _, offset: offset),
        separator=separator,
        passage_bytes=split.passage_bytes(spec.passage_bytes, likely) if fraction else None,
        border=split.border(mode, fraction, total) if fraction else None,
        max_run_bytes=spec.max_run_bytes,
        block_bytes=limits.block_bytes,
        on_error=spec.on_error,
        wanted=split.sampler(spec.sample, spec.seed),
        limited=spec.limit_documents is not None or spec.limit_tokens is not None,
        field=spec.field,
        input_format=spec.input_format,
        max_window=look.window,
        max_held=max(look.held, columns.LEAST_HELD),
        spool=str(limits.work_folder(spec.output)),
    )
    early = begins and mode == "hash" and fraction and not files.pipes and look.window <= LEAST_WINDOW
    with ThreadPoolExecutor(1) as pool:  # an engine is loaded without the GIL
        loading = pool.submit(choose_engines, tokenizer, limits.engine, likely, limits.cache_folder())
        begun = first_pass.begin(files, rules, fraction, plain=look.plain, until=loading.done) if early else None
    engines = loading.result()
    keep = _fit_budget(spec, engines, limits, look, many=not one_text, buffers=buffers, listed=files.nbytes)
    return Job(
        spec=spec,
        output=limits.work_folder(spec.output),
        files=files,
        total_bytes=total,
        tokenizer=tokenizer,
        engines=engines,
        rules=dataclasses.replace(rules, block_bytes=keep.block_bytes),
        dtype=writes.dtype,
        writes=writes,
        split=mode,
        val_fraction=fraction,
        eot_id=eot_id,
        eot_side=side,
        budget=keep,
        plain=look.plain,
        max_rejects=limits.max_rejects,
        checker=Checker(engines, SHARE, spec.seed),
        big=storage.worth_dropping(likely),
        begun=begun,
    )


def choose_splitter(
    job: Job,
    left: dict[str, Any] | None,
    save: Callable[[dict[str, Any]], None],
    report: Callable[[int], None],
) -> Splitter:
    """A threshold where there are enough documents or passages; otherwise a first pass finds exactly the lowest keys.

    The first pass saves its progress every second, resumes from what was left, and reports the bytes it has read.
    A pipe cannot be read twice, so it is always split by threshold.
    """
    fraction = job.val_fraction
    if job.rules.border is not None:
        return Splitter(mode=job.split, limit=job.rules.border)
    if not fraction:
        return Splitter(mode="hash", limit=0)
    if job.files.pipes:
        return split.by_threshold(fraction)
    if left is not None and "limit" in left:
        return Splitter(mode="hash", limit=int(left["limit"]))
    found, saved = Lowest.from_json(left) if left is not None else job.begun, time.monotonic()
    going_on = first_pass.run(job.files, job.rules, fraction, found, plain=job.plain, workers=job.budget.workers)
    for found, size in going_on:
        report(size)
        if time.monotonic() - saved >= 1.0:
            save(dataclasses.asdict(found))
            saved = time.monotonic()
    splitter = split.choose(found or Lowest(), fraction)
    save({"limit": splitter.limit})
    return splitter


def _val_choice(spec: Spec) -> tuple[Split, float]:
    """How text is parted, and which share of it is val; none where the first shard will be."""
    mode = registry.split_mode(spec)
    return ("hash", 0.0) if mode == "first-shard" else (mode, spec.val_fraction)


def _eot_side(writes: Output, *, one_text: bool) -> str:
    """A single text gets no end-of-text token, as in nanoGPT's own script, unless the trainer needs it."""
    return "none" if one_text and not writes.format.needs_eot else writes.format.eot_side


def _fit_budget(
    spec: Spec, engines: Engines, limits: Limits, look: plan.Look, *, many: bool, buffers: int = 0, listed: int = 0
) -> Budget:
    """Measure what the libraries and one engine take here, and see what the budget allows beside them.

    For many documents the fast engine needs one library more. What is read ahead takes buffers; the list of the
    inputs, which is there already, takes listed.
    """
    engines.reference.encode(b"warm")
    machine.give_back_freed_memory()
    before = machine.rss()
    first = Encoder(engines)
    first.encode([b"warm"] * (FEW_PIECES + 1 if many else 1), suspicious=False)  # imports what is imported late
    grows = engines.guard is not None and engines.native is None  # our own engine is there already, and does not grow
    engine = max(0, machine.rss() - before) if grows else 0
    del first
    before -= listed
    footprint = Footprint(
        base=before + buffers,
        files=listed,
        engine=engine,
        reference=budget.reference_reserve(engines.tokenizer.kind, spec.max_run_bytes),
        reading=budget.reading_reserve(look.window, look.held),
        block_byte=budget.block_byte_reserve(replaces=spec.on_error == "replace"),
        max_run=spec.max_run_bytes,
    )
    max_memory = limits.resolved_memory()
    if limits.max_memory is None:  # what a notebook or program held before is not ours to count
        max_memory += max(0, before - _OWN_BASE)
        max_memory += max(0, min(footprint.reading + footprint.files, machine.memory() // 4 - max_memory))
    return budget.fit(max_memory, limits.resolved_workers(), limits.block_bytes, footprint)
