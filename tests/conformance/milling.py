"""The mill without its threads, for property tests: the same planning and milling, engines loaded once."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import numpy as np

from given_texts import load_once
from shardmill.documents import jsonl, long_values, ranges, text_reader
from shardmill.documents.columnar import chunks, parquet
from shardmill.inputs.input_files import InputFiles
from shardmill.job import block as blocks
from shardmill.job import job as jobs
from shardmill.job import mill, plan, sources
from shardmill.job import ranges as in_ranges
from shardmill.job.join import Join
from shardmill.record.manifest import Counts
from shardmill.spec import Limits, Spec
from shardmill.tokens.encoder import Encoder

PLENTY = 16 << 30
BLOCK_BYTES = (3, 7, 64, 1000, 1 << 20)
_choose_engines, _fit_budget = jobs.choose_engines, jobs._fit_budget


@dataclass
class Milled:
    """What came out: the tokens of each side, and of both in the order of the text."""

    train: list[int] = field(default_factory=list)
    val: list[int] = field(default_factory=list)
    runs: list[tuple[bool, list[int]]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    rejects: list = field(default_factory=list)
    after: list = field(default_factory=list, compare=False)
    """After each Block: where the next begins, the side, what was written until then, and what was counted."""

    @property
    def both(self):
        return [token for _, tokens in self.runs for token in tokens]


@contextmanager
def holding(most: int) -> Iterator[None]:
    """Records of more bytes than this are parsed a window at a time."""
    with patch.object(jsonl, "HELD_BYTES", most), patch.object(long_values, "HELD_BYTES", most):
        yield


def engines(tokenizer, engine):
    return _engines(tokenizer, engine, os.environ.get("SHARDMILL_CPU"))


@lru_cache(maxsize=64)
def _engines(tokenizer, engine, _path):
    return _choose_engines(load_once(tokenizer), engine)


def encoder(tokenizer, engine):
    return Encoder(engines(tokenizer, engine))


@lru_cache(maxsize=1)
def _budget():
    spec, limits = Spec(inputs=("any",), output="any"), Limits(max_memory=PLENTY, workers=1)
    probe = sources.Probe(plain=True, first_is_text=True, window=0, held=0)
    return _fit_budget(spec, engines("r50k_base", "reference"), limits, probe, InputFiles())


@contextmanager
def folder_of(files: list[bytes] | dict[str, bytes]) -> Iterator[tuple[Path, list[str]]]:
    named = files if isinstance(files, dict) else {f"{number:03}.txt": data for number, data in enumerate(files)}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in named]
        for path, data in zip(paths, named.values(), strict=True):
            path.write_bytes(data)
        yield Path(folder), [str(path) for path in paths]


@contextmanager
def job_of(files, *, engine="auto", block_bytes=1 << 20, **choices):
    """A Job on files of these contents, and its splitter."""
    with folder_of(files) as (folder, paths):
        spec = Spec(inputs=tuple(paths), output=str(folder / "out"), **choices)
        found, tokenizer = jobs.find_inputs(spec.inputs), load_once(spec.tokenizer)
        with (
            patch.object(jobs, "choose_engines", lambda tokenizer, engine: engines(tokenizer.name, engine)),
            patch.object(jobs, "_fit_budget", lambda *_, **__: dataclasses.replace(_budget(), block_bytes=block_bytes)),
        ):
            job = jobs.make_job(spec, found, tokenizer, Limits(engine=engine, block_bytes=block_bytes))
        yield job, jobs.choose_splitter(job, None, lambda _: None, lambda _: None)


def mill_blocks(job, splitter, start=None, val=False):
    """Mill from a Position on, block after block, as the mill commits them: with ranges, too, where it would."""
    used = encoder(job.spec.tokenizer, "reference" if job.engines.ours is None else "native")
    found = plan.blocks(job.files, job.rules, plan.rest(start or plan.BEGINNING))
    out = _collected((blocks.mill_block(job, splitter, used, block) for block in found), val)
    again = mill_ranges(job, splitter, (80, 5000)[len(out.train) % 2], start, val)
    assert again is None or same(again, out)
    return out


def mill_ranges(job, splitter, slice_bytes, start=None, val=False):
    """The same, all that can be in ranges, whose slices and windows have about so many bytes; None: nothing can."""
    recipe = in_ranges.recipe_of(job, splitter, None)
    if recipe is None:
        return None
    used = encoder(job.spec.tokenizer, "native")
    rules = dataclasses.replace(job.rules, range_bytes=max(job.rules.block_bytes, 3 * slice_bytes))
    with slices_of(slice_bytes):
        found = plan.blocks(job.files, rules, plan.rest(start or plan.BEGINNING))
        return _collected(_with_ranges(job, splitter, used, recipe, found, start), val)


@contextmanager
def slices_of(size):
    with (
        patch.object(ranges, "SLICE_BYTES", size),
        patch.object(ranges, "_PIECE_BYTES", 2 * size),
        patch.object(text_reader, "_WINDOW", 60 * size),
        patch.object(parquet, "_RANGE_BYTES", 4 * size),
        patch.object(chunks, "_READ_BYTES", 30 * size),
        patch.object(chunks, "_USUAL_BYTES", 3 * size),
        patch.object(chunks, "_PAGES_BYTES", 30 * size),
    ):
        yield


def _with_ranges(job, splitter, used, recipe, found, start):
    miller, join = in_ranges.RangeMiller(job, splitter, used, recipe), Join(start or plan.BEGINNING)
    for block in found:
        milled = miller.mill(block)
        if (joined := join.take(block.before, milled)) is not None:
            yield joined


def same(one, other):
    ends = [(each.after[-1][0] if each.after else None) for each in (one, other)]
    tokens = [(each.train, each.val, each.counts, each.rejects) for each in (one, other)]
    return ends[0] == ends[1] and tokens[0] == tokens[1]


def _collected(found, val):
    out, counts = Milled(), Counts()
    for milled in found:
        counts += milled.counts
        out.rejects += milled.rejects
        for run in milled.runs:
            val = val if run.val is None else run.val
            (out.val if val else out.train).extend(run.tokens.tolist())
            out.runs.append((val, run.tokens.tolist()))
        out.after.append((milled.after, val, len(out.train), len(out.val), counts, len(out.rejects)))
    out.counts = asdict(counts)
    return out


def some_of(ends):
    """A dozen of the places where a job could read on, from all over it."""
    return ends[:: max(1, len(ends) // 12)]


def mill_files(files, **choices) -> Milled:
    """Mill files of these contents (or names and contents), block after block."""
    with job_of(files, **choices) as (job, splitter):
        return mill_blocks(job, splitter)


def mill_text(text: str, **choices) -> Milled:
    """Mill one file without val, unless asked otherwise."""
    return mill_files([text.encode()], **{"val_fraction": 0, **choices})


def prepare_files(files, *, engine="auto", workers=2, block_bytes=1 << 20, **choices):
    """A whole run of prepare, threads and files and all: the ids in train.bin and in val.bin, and manifest.json."""
    with (
        folder_of(files) as (folder, paths),
        patch.object(jobs, "load", load_once),
        patch.object(jobs, "choose_engines", lambda tokenizer, engine: engines(tokenizer.name, engine)),
    ):
        spec = Spec(inputs=tuple(paths), output=str(folder / "out"), **choices)
        limits = Limits(engine=engine, workers=workers, block_bytes=block_bytes, max_memory=PLENTY)
        made = mill.prepare(spec, limits=limits).manifest
        train, val = (folder / "out" / name for name in ("train.bin", "val.bin"))
        ids = [np.fromfile(file, made.dtype).tolist() if file.exists() else [] for file in (train, val)]
        return ids[0], ids[1], made
