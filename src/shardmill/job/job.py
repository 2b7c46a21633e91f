"""A Spec → a Job: everything that is decided before the work starts, and the split."""

import contextlib
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.documents import rules as document_rules
from shardmill.documents import text, where
from shardmill.documents.rules import TextRules
from shardmill.errors import UsageError
from shardmill.formats import registry
from shardmill.formats.registry import Output
from shardmill.inputs.choose import Chooser
from shardmill.inputs.find import find_inputs
from shardmill.inputs.input_files import InputFiles
from shardmill.io import reading, storage
from shardmill.io.compression import LEAST_WINDOW
from shardmill.io.object_store import check_output_url
from shardmill.io.urls import PART_BYTES, PARTS_AT_ONCE
from shardmill.job import budget, first_pass, sources, split
from shardmill.job.budget import Budget, Footprint
from shardmill.job.split import Lowest, Splitter
from shardmill.record import input_list
from shardmill.spec import VAL_FRACTION, Limits, Spec, SplitMode
from shardmill.system import machine
from shardmill.system.names import is_url, show
from shardmill.tokens.check import SHARE, Checker
from shardmill.tokens.encoder import Engines, choose_engines
from shardmill.tokens.reference import Later
from shardmill.tokens.tokenizer import Tokenizer, end_of_text, load

# What nanoGPT's own script for Shakespeare takes.
_NANOGPT_FRACTION = 0.1
# The size that a pipe is assumed to have: too large for any shortcut.
_UNKNOWN_BYTES = 1 << 40
# The reference takes 30 times its text, and so long that Python's share does not show.
_REFERENCE_BLOCK_BYTES = 2 << 20
# Uploads hold their parts in memory, for two files at a time.
_UPLOAD_BUFFERS = 2 * PARTS_AT_ONCE * PART_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is read, how it is cut, what encodes it, what is written, and within which budget."""

    spec: Spec
    output: Path
    """The folder in which the files grow; for an object store, the staging folder."""
    files: InputFiles
    total_bytes: int
    """0 if a pipe is among the files."""
    tokenizer: Tokenizer
    engines: Engines
    rules: TextRules
    writes: Output
    split: SplitMode
    """hash, head or tail; if the first shard is val, hash with a fraction of 0; nanogpt is tail with an exact border."""
    val_fraction: float
    eot_id: int | None
    eot_side: str
    budget: Budget
    plain: bool
    """All inputs are plain text files, judging by a sample of them."""
    big: bool
    """Larger than the page cache should hold."""
    max_rejects: int | float | None = None
    checker: Checker
    """Compares a sample with the reference."""
    begun: Lowest | Splitter | None = None
    """What the first pass found while the engines were loading."""
    looks_separated: tuple[str, int, int] | None = None
    """What seems to separate documents, if no separator was given: see likely_separator."""


def describe(spec: Spec, files: InputFiles, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that decides the bytes of the result, as the manifest records it."""
    return {
        "choices": {**spec.choices(), "tokenizer": tokenizer.name},
        "inputs": input_list.describe(files),
        "tokenizer_sha256": tokenizer.digest,
        "vocabulary_size": tokenizer.size,
    }


def versions(job: Job) -> dict[str, Any]:
    """Everything that must not change while a job is unfinished, including the version of the reference and when inputs
    were modified."""
    reference, modified = job.engines.reference.version, input_list.times(job.files)
    return {**describe(job.spec, job.files, job.tokenizer), "reference": reference, "modified": modified}


def find(spec: Spec, limits: Limits) -> tuple[InputFiles, Tokenizer]:
    """The inputs and the tokenizer. Refuses choices that contradict each other."""
    registry.check(spec)
    where.parse(spec.where)
    if limits.max_rejects is not None and spec.on_error != "skip":
        raise UsageError(
            f"--max-rejects: with --on-error {spec.on_error} no record is skipped; pass --on-error skip with it"
        )
    check_output_url(str(spec.output))
    chooser, most = Chooser(spec.include, spec.exclude), limits.most_memory()
    files = find_inputs(map(str, spec.inputs), chooser, network_seconds=limits.network_seconds, most_bytes=most)
    mode, fraction = _val_choice(spec)
    if mode == "nanogpt" and (len(files) > 1 or spec.separator is not None):
        raise UsageError(
            "--split nanogpt: cuts one text in two, as nanoGPT's own script does; name one text file and no --separator, or choose --split tail"
        )
    if files.pipes and mode != "hash" and fraction:
        raise UsageError(
            f"--split {mode} with {show(files.pipes[0].path)}: the length of a pipe, and so the {mode} of the text, is known only at its end; leave --split out, or save the data as a file first"
        )
    return files, load(spec.tokenizer, limits.most_memory(), limits.cache_folder())


def make_job(spec: Spec, files: InputFiles, tokenizer: Tokenizer, limits: Limits, *, begins: bool = False) -> Job:
    """Decide everything before the work starts. If it starts right away, the first pass runs while the engines load."""
    total = files.total_bytes if files.known else 0
    likely = total if files.known else _UNKNOWN_BYTES
    writes = registry.plan_output(spec, tokenizer, files.paths)
    mode, fraction = _val_choice(spec)
    separator = text.escaped(spec.separator) if spec.separator is not None else None
    condition = where.parse(spec.where)
    probe = sources.probe(files, spec.input_format, spec.field, condition)
    one_text = len(files) == 1 and separator is None and probe.first_is_text
    eot_side = spec.eot
    if eot_side == "auto":  # like nanoGPT's own script, none after a single text, unless the trainer needs it
        eot_side = "none" if one_text and not writes.format.needs_eot else writes.format.eot_side
    eot_id = None if eot_side == "none" else end_of_text(tokenizer, spec.eot_token)
    rules = TextRules(
        cuts=tokenizer.cuts,
        seed=spec.seed if mode == "hash" else None,
        separator=separator,
        passage_bytes=split.passage_bytes(spec.passage_bytes, likely) if fraction else None,
        border=_border(mode, fraction, files, probe) if fraction else None,
        exact_border=mode == "nanogpt",
        max_run_bytes=spec.max_run_bytes,
        block_bytes=_block_bytes(limits, total, probe),
        on_error=spec.on_error,
        wanted=split.sampler(spec.sample, spec.seed),
        where=condition,
        limited=spec.limit_documents is not None or spec.limit_tokens is not None,
        field=spec.field,
        input_format=spec.input_format,
        max_window=probe.window,
        max_held=max(probe.held, document_rules.LEAST_HELD),
        spool=str(limits.work_folder(spec.output)),
    )
    early = begins and mode == "hash" and fraction and not files.special and probe.window <= LEAST_WINDOW
    with ThreadPoolExecutor(1) as pool:  # an engine is loaded without the GIL
        loading = pool.submit(choose_engines, tokenizer, limits.engine)
        separated = sources.likely_separator(files) if separator is None and probe.plain else None
        begun = first_pass.begin(files, rules, fraction, plain=probe.plain, until=loading.done) if early else None
    engines = loading.result()
    fitted = _fit_budget(spec, engines, limits, probe, files)
    return Job(
        spec=spec,
        output=limits.work_folder(spec.output),
        files=files,
        total_bytes=total,
        tokenizer=tokenizer,
        engines=engines,
        rules=dataclasses.replace(rules, block_bytes=fitted.block_bytes),
        writes=writes,
        split="tail" if mode == "nanogpt" else mode,
        val_fraction=fraction,
        eot_id=eot_id,
        eot_side=eot_side,
        budget=fitted,
        plain=probe.plain,
        max_rejects=limits.max_rejects,
        checker=Checker(engines, SHARE, spec.seed),
        big=storage.worth_dropping(likely),
        begun=begun,
        looks_separated=separated,
    )


def choose_splitter(
    job: Job, limit: int | None, save: Callable[[int], None], report: Callable[[int], None]
) -> Splitter:
    """A threshold where there are enough documents or passages; otherwise a first pass finds exactly the lowest keys, or,
    in one long text, places are drawn.

    limit is the outcome of an earlier first pass; a new one reports the bytes it has read and saves its outcome.
    A pipe cannot be read twice, so it is always split by threshold.
    """
    fraction = job.val_fraction
    if job.rules.border is not None:
        return Splitter(mode=job.split, limit=job.rules.border)
    if not fraction or job.files.pipes:
        return split.by_threshold(fraction)
    if limit is not None:
        return Splitter(mode="hash", limit=limit)
    begun = job.begun
    if begun is None and first_pass.is_large_text(job.files, job.rules, plain=job.plain):
        begun = first_pass.of_large_text(job.files, job.rules, fraction)
    if isinstance(begun, Splitter):
        return begun
    found, workers = begun or Lowest(), min(job.budget.workers, job.budget.readers)
    for so_far, size in first_pass.run(job.files, job.rules, fraction, begun, plain=job.plain, workers=workers):
        found = so_far
        report(size)
    splitter = split.choose(found, fraction)
    save(splitter.limit)
    return splitter


def _val_choice(spec: Spec) -> tuple[SplitMode, float]:
    """How text is split, and the fraction that is val: 0 if the first shard will be val."""
    mode, fraction = registry.split_mode(registry.get(spec.format), spec.split), spec.val_fraction
    if mode == "nanogpt" and fraction == VAL_FRACTION:
        fraction = _NANOGPT_FRACTION
    return ("hash", 0.0) if mode == "first-shard" else (mode, fraction)


def _border(mode: SplitMode, fraction: float, files: InputFiles, probe: sources.Probe) -> int | None:
    """The byte of the whole input where val ends (head) or starts (tail, nanogpt)."""
    if mode != "nanogpt":
        return split.border(mode, fraction, files.total_bytes)
    if probe.window or not probe.first_is_text:
        raise UsageError(
            f"--split nanogpt: cuts one text by its characters, and {show(files[0].path)} is compressed or holds records; name a plain text file, or choose --split hash"
        )
    with files.opened.reader(files[0]) as reader:
        return first_pass.byte_of_character(reader, lambda count: int(count * (1 - fraction)))


def _is_running(spec: Spec, files: InputFiles, probe: sources.Probe) -> bool:
    """Whether the input is one plain text without separators."""
    return len(files) == 1 and spec.separator is None and probe.plain


def _fit_budget(spec: Spec, engines: Engines, limits: Limits, probe: sources.Probe, files: InputFiles) -> Budget:
    """Measure what the libraries and the engine take on this machine, and fit the rest into the budget.

    As long as there is room for all that the reference might take, nobody waits until it is loaded.
    """
    reference, tokenizer = engines.reference, engines.tokenizer
    if isinstance(reference, Later) and not reference.loaded:
        with contextlib.suppress(UsageError):
            fitted = _fitted(spec, engines, limits, probe, files, tokenizer.memory)
            if fitted.is_all:
                return fitted
    reference.encode(b"warm")
    machine.give_back_freed_memory()
    return _fitted(spec, engines, limits, probe, files, 0)


def _fitted(
    spec: Spec, engines: Engines, limits: Limits, probe: sources.Probe, files: InputFiles, loading: int
) -> Budget:
    before = machine.rss() - files.nbytes
    buffers = max(map(reading.read_buffers, files.special), default=0)
    footprint = Footprint(
        base=before + buffers + (_UPLOAD_BUFFERS if is_url(spec.output) else 0),
        loading=loading,
        files=files.nbytes,
        reference=budget.REFERENCE_FACTOR[engines.tokenizer.kind] * spec.max_run_bytes,
        reading=probe.window + budget.COPIES_HELD * probe.held,
        by_reference=engines.ours is None,
        replaces=spec.on_error == "replace",
        running=_is_running(spec, files, probe),
        cores=machine.cores(),
        max_run=spec.max_run_bytes,
    )
    workers, max_memory = limits.resolved_workers(), limits.max_memory
    block_bytes = _block_bytes(limits, files.total_bytes, probe)
    if engines.ours is None:
        block_bytes = min(block_bytes, _REFERENCE_BLOCK_BYTES)
    if max_memory is None:
        max_memory = budget.default(workers, block_bytes, footprint, machine.memory())
    return budget.fit(max_memory, workers, block_bytes, footprint)


def _block_bytes(limits: Limits, total: int, probe: sources.Probe) -> int:
    return limits.resolved_block_bytes(probe.text_bytes(total), packed=bool(probe.window))
