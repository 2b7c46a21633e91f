"""A Spec → a Job: every question answered before the work begins."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill import budget, machine, plan, split, storage
from shardmill.budget import Budget, Footprint
from shardmill.documents import text
from shardmill.documents.text import Passages, TextRules
from shardmill.errors import UsageError
from shardmill.formats import raw
from shardmill.sources import InputFile, find_inputs
from shardmill.spec import Limits, Spec
from shardmill.split import Splitter
from shardmill.tokens.encoder import Encoder, Engines, choose_engines
from shardmill.tokens.gigatoken import FEW_PIECES
from shardmill.tokens.tokenizer import Tokenizer, end_of_text, load

# Passages of the first pass that are kept for the second: for some gigabytes of text a few megabytes.
_KNOWN_PARTS = 8192
# What this process has resident before the first block when it is the command and nothing else, at most.
_OWN_BASE = 160 << 20
# What a pipe is taken for until its end is reached: too much for a shortcut.
_UNKNOWN_BYTES = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is read, how it is cut, what encodes it, what is written, and within which budget."""

    spec: Spec
    files: tuple[InputFile, ...]
    bases: tuple[int, ...]
    """Where each file begins when all are laid end to end."""
    total_bytes: int
    """0 when a pipe is among the files: nobody knows."""
    tokenizer: Tokenizer
    engines: Engines
    rules: TextRules
    dtype: np.dtype[np.unsignedinteger[npt.NBitBase]]
    eot_id: int | None
    eot_side: str
    budget: Budget
    big: bool
    """Larger than the page cache should hold."""

    @property
    def output(self) -> Path:
        return Path(self.spec.output)

    def describe(self) -> dict[str, Any]:
        """All that decides the bytes of the result, as it stands in the manifest."""
        return describe(self.spec, self.files, self.tokenizer)


def describe(spec: Spec, files: tuple[InputFile, ...], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "choices": {**spec.choices(), "tokenizer": tokenizer.name},
        "inputs": [
            {"path": file.path, "bytes": file.size, **({"version": file.version} if file.version else {})}
            for file in files
        ],
        "tokenizer_sha256": tokenizer.digest,
        "vocabulary_size": tokenizer.size,
    }


def find(spec: Spec, limits: Limits | None = None) -> tuple[tuple[InputFile, ...], Tokenizer]:
    """The cheap questions: what there is to read, and with which tokenizer."""
    files = find_inputs(spec.inputs, patience=(limits or Limits()).network_seconds)
    pipe = next((file for file in files if file.once), None)
    if pipe is not None and spec.split != "hash" and spec.val_fraction:
        raise UsageError(
            f"--split {spec.split} with {storage.show(pipe.path)}: how long a pipe is, and so where the {spec.split} of the text ends, is known only at its end; leave --split out, or save the data as a file first"
        )
    return files, load(spec.tokenizer)


def make_job(spec: Spec, files: tuple[InputFile, ...], tokenizer: Tokenizer, limits: Limits) -> Job:
    """Decide everything that the work itself must not decide."""
    machine.keep_freed_memory()
    known = all(file.size is not None for file in files)
    total = sum(file.size or 0 for file in files) if known else 0
    likely = total if known else _UNKNOWN_BYTES
    dtype = raw.choose_dtype(tokenizer, spec.dtype)
    separator = text.escaped(spec.separator) if spec.separator is not None else None
    side = spec.eot if spec.eot != "auto" else ("none" if len(files) == 1 and separator is None else raw.EOT_SIDE)
    eot_id = None if side == "none" else end_of_text(tokenizer, spec.eot_token)
    engines = choose_engines(tokenizer, limits.engine, likely, limits.cache_folder())
    buffers = max(map(storage.read_buffers, files))
    keep = _fit_budget(spec, engines, limits, many=separator is not None or len(files) > 1, buffers=buffers)
    rules = TextRules(
        cuts=tokenizer.cuts,
        key=(lambda head, _: split.content_key(head, spec.seed))
        if spec.split == "hash"
        else (lambda _, offset: offset),
        separator=separator,
        passage_bytes=split.passage_bytes(spec.passage_bytes, likely) if spec.val_fraction else None,
        border=split.border(spec.split, spec.val_fraction, total) if spec.val_fraction else None,
        max_run_bytes=spec.max_run_bytes,
        block_bytes=min(limits.block_bytes, spec.max_run_bytes),
    )
    return Job(
        spec=spec,
        files=files,
        bases=tuple(plan.file_bases(files)),
        total_bytes=total,
        tokenizer=tokenizer,
        engines=engines,
        rules=rules,
        dtype=dtype,
        eot_id=eot_id,
        eot_side=side,
        budget=keep,
        big=storage.worth_dropping(likely),
    )


def choose_splitter(job: Job, report: Callable[[int], None]) -> Splitter:
    """A threshold when there is enough to judge; for small inputs a first pass finds exactly the lowest hashes.

    The first pass reports the bytes of each block. It is the same wherever the files are, so that the result is:
    it ends as soon as there is enough to judge. A pipe cannot be read twice, so there it is always the threshold.
    """
    fraction, rules = job.spec.val_fraction, job.rules
    if rules.border is not None:
        return Splitter(mode=job.spec.split, limit=rules.border)
    if fraction and any(file.once for file in job.files):
        return split.by_threshold(fraction)
    found = split.Lowest()
    if fraction:
        for block in plan.blocks(job.files, rules):
            for part in block.parts:
                found.add(text.keys_of(part, job.bases[part.file], rules))
                if part.starts and len(rules.known) < _KNOWN_PARTS:  # no need to find them again
                    rules.known[part.file, part.offset] = Passages(
                        starts=part.starts, keys=part.keys, end=len(part.data), forced=part.forced
                    )
            report(block.input_bytes)
            if found.count >= split.enough(fraction):
                return split.by_threshold(fraction)
    return split.by_lowest(found, fraction)


def _fit_budget(spec: Spec, engines: Engines, limits: Limits, *, many: bool, buffers: int = 0) -> Budget:
    """Measure what the libraries and one engine take here, and see what the budget allows beside them.

    For many documents the fast engine needs one library more. What is read ahead takes buffers.
    """
    engines.reference.encode(b"warm")
    machine.give_back_freed_memory()
    before = machine.rss()
    first = Encoder(engines)
    first.encode([b"warm"] * (FEW_PIECES + 1 if many else 1), suspicious=False)  # imports what is imported late
    engine = max(0, machine.rss() - before) if engines.guard is not None else 0
    del first
    footprint = Footprint(
        base=before + buffers,
        engine=engine,
        reference=budget.reference_reserve(engines.tokenizer.kind, spec.max_run_bytes),
        worker=budget.worker_reserve(spec.max_run_bytes, replaces=spec.on_error == "replace"),
    )
    max_memory = limits.resolved_memory()
    if limits.max_memory is None:  # what a notebook or program held before is not ours to count
        max_memory += max(0, before - _OWN_BASE)
    return budget.fit(max_memory, limits.resolved_workers(), footprint)
