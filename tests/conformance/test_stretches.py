"""Workers that read for themselves find the documents that one finds who reads all: any input, any size of Blocks."""

import dataclasses
import errno
import itertools
import json
import multiprocessing
import pickle
import random
import struct
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from milling import job_of

from shardmill.documents.pieces import BEGINNING, Position
from shardmill.errors import InputError, ShardmillError
from shardmill.job import ahead, plan, workers
from shardmill.job import job as jobs
from shardmill.job.block import mill_block
from shardmill.job.join import Join
from shardmill.job.ranges import RangeMiller, range_bytes, recipe_of
from shardmill.spec import Limits
from shardmill.tokens.encoder import Encoder

ELEVEN = struct.pack("<q", 11)
WORDS = ["the", "mill", "turns", "Wörter", "文字", "into", "tokens;", "\n", "\n\n", "\n\n\n", " ", "x" * 90, "😀"]


def texts(seed, count, most=60):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(most))) for _ in range(count)]


def lines(seed, newline="\n", bad=0):
    chance = random.Random(seed)
    found = [json.dumps({"text": text, "n": 1}) for text in texts(seed, 60)]
    for _ in range(bad):
        found[chance.randrange(len(found))] = chance.choice(["{", '{"text": 5}', "", '{"text": ""}', "[]"])
    return newline.join(found).encode()


def parquet(seed):
    to = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts(seed, 120)}), to, row_group_size=11)
    return to.getvalue().to_pybytes()


def arrow(seed, *, replaced_at=None, **options):
    """Record batches of unequal sizes; with replaced_at, a stream in which texts and words have dictionaries, and words
    another one from this batch on."""
    table = pa.table({"from": texts(seed + 1, 120, 3), "text": texts(seed, 120)})
    words = [[f"{word}{n}" for word in WORDS] for n in range(2)]
    if replaced_at is not None:
        of_words = pa.dictionary(pa.int32(), pa.string())
        table = table.cast(pa.schema({"from": of_words, "text": of_words})).unify_dictionaries()
    to, new = pa.BufferOutputStream(), pa.ipc.new_file if replaced_at is None else pa.ipc.new_stream
    with new(to, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for number, (first, end) in enumerate(itertools.pairwise([0, 1, 1, *range(12, 120, 11), 120])):
            columns = [column.combine_chunks() for column in table.slice(first, end - first).columns]
            if replaced_at is not None:
                indices = pa.array([row % len(WORDS) for row in range(first, end)], pa.int32())
                columns[0] = pa.DictionaryArray.from_arrays(indices, words[number >= replaced_at])
            writer.write_batch(pa.record_batch(columns, schema=table.schema))
    return to.getvalue().to_pybytes()


def overwritten(data, at, by=b"\xff" * 40):
    return data[:at] + by + data[at + len(by) :]


def damaged_batches(seed):
    """In the header of one, in how many rows it says that it has, in its compressed text, and at the end."""
    header, compressed = arrow(seed), arrow(seed, compression="zstd")
    return [
        ("a.arrow", overwritten(header, header.index(b"\xff" * 4, len(header) // 2) + 8)),
        ("b.arrow", overwritten(compressed, len(compressed) // 2)),
        ("c.arrow", arrow(seed)[:-9000]),
        *(
            (f"d{rows}.arrow", overwritten(header, header.index(ELEVEN, len(header) // 2), struct.pack("<q", rows)))
            for rows in (0, -11)
        ),
        ("e.arrow", arrow(seed)),
    ]


INPUTS = {
    "lines": lambda seed: [("a.jsonl", lines(seed)), ("b.jsonl", b""), ("c.jsonl", lines(seed + 1))],
    "lines that end in CR": lambda seed: [("a.jsonl", lines(seed, "\r"))],
    "bad lines": lambda seed: [("a.jsonl", lines(seed, bad=9)), ("b.jsonl", lines(seed, bad=2))],
    "a BOM": lambda seed: [("a.jsonl", b"\xef\xbb\xbf" + lines(seed))],
    "one long line": lambda seed: [("a.jsonl", json.dumps({"text": " ".join(texts(seed, 90))}).encode()), ("b.jsonl", lines(seed))],
    "blank lines": lambda seed: [("a.jsonl", lines(seed) + b"\n" * 2000 + lines(seed))],
    "rows": lambda seed: [("a.parquet", parquet(seed)), ("b.parquet", parquet(seed + 1))],
    "batches": lambda seed: [("a.arrow", arrow(seed)), ("b.feather", arrow(seed + 1, compression="zstd"))],
    "batches with a dictionary": lambda seed: [("a.arrow", arrow(seed, replaced_at=99)), ("b.arrow", arrow(seed, replaced_at=6))],
    "damaged batches": damaged_batches,
    "files": lambda seed: [(f"{n:03}.txt", text.encode()) for n, text in enumerate(texts(seed, 50))],
    "a long text": lambda seed: [("a.txt", "\n".join(texts(seed, 120)).encode()), ("b.txt", b"\xef\xbb\xbfend")],
    "newlines": lambda seed: [("a.txt", ("\n" * 9001).join(texts(seed, 5)).encode())],
    "mixed": lambda seed: [("a.txt", "\n".join(texts(seed, 50)).encode()), ("b.jsonl", lines(seed)), ("c.parquet", parquet(seed)), ("d.txt", b"")],
}  # fmt: skip


def written():
    """What is written, and a function that writes a result, as the mill does."""
    out = {False: [], True: []}
    found = {"rejects": [], "places": {False: [], True: []}, "counts": None, "after": None}
    val = [False]

    def write(milled):
        for run in milled.runs:
            val[0] = val[0] if run.val is None else run.val
            out[val[0]] += run.tokens.tolist()
            found["places"][val[0]] += [] if run.places is None else run.places.tolist()
        found["rejects"] += milled.rejects
        found["counts"] = milled.counts if found["counts"] is None else found["counts"] + milled.counts
        found["after"] = milled.after
        return True, lambda: None

    return out, found, write


def together(job, splitter, count):
    """What all workers write; and what stopped them."""
    out, found, write = written()
    budget = dataclasses.replace(job.budget, workers=count, readers=count, ahead=0)
    error = None
    try:
        workers.mill_blocks(dataclasses.replace(job, budget=budget), splitter, Join(BEGINNING), write, lambda: None)
    except InputError as e:
        error = str(e)
    return out, found, error


def beginning(found, whole):
    """Whether one result begins as another does."""
    return all(a == b for side in (False, True) for a, b in zip(found[0][side], whole[0][side]))


@pytest.mark.parametrize("fails_at", [0, 5])
def test_workers_wait_for_each_other_where_a_disk_is_full(monkeypatch, fails_at):
    """Nothing may wait in memory here, so all that comes early would wait on disk."""
    written, pwrite = [], ahead.os.pwrite

    def full(*arguments):
        written.append(arguments)
        if len(written) > fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*arguments)

    choices = {"max_run_bytes": 2000, "passage_bytes": 500, "index": True, "provenance": True}
    with job_of(dict(INPUTS["mixed"](0)), block_bytes=150, **choices) as (job, splitter):
        whole = together(job, splitter, 1)
        monkeypatch.setattr(ahead.os, "pwrite", full)
        with patch.object(plan, "_BLOCKS", 4):
            assert together(job, splitter, 4)[:2] == whole[:2]
    assert len(written) > fails_at


@pytest.mark.thin
@pytest.mark.parametrize("separator", [None, "\\n\\n", pytest.param("\\n", marks=pytest.mark.slow), "aa"])
@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("kind", INPUTS)
def test_workers_find_what_one_reader_finds(kind, on_error, separator):
    if separator is not None and kind not in ("files", "a long text", "newlines", "mixed"):
        pytest.skip("no text in it")
    for seed, block_bytes in enumerate((150, 5000)):
        files = dict(INPUTS[kind](seed))
        choices = {
            "on_error": on_error,
            "separator": separator,
            "val_fraction": 0.2 * (seed % 2),
            "index": True,
            "provenance": True,
        }
        with job_of(files, block_bytes=block_bytes, max_run_bytes=2000, passage_bytes=500, **choices) as (
            job,
            splitter,
        ):
            with patch.object(plan, "stretches", lambda *_, **__: iter([plan.EVERYTHING])):
                whole = together(job, splitter, 1)
            for blocks, count in ((1, 3), (8, 4)):
                with patch.object(plan, "_BLOCKS", blocks):
                    found = together(job, splitter, count)
                if whole[2] is None:
                    assert found == whole
                else:  # how much is written before an error depends on where Blocks end
                    assert found[2] == whole[2] and beginning(found, whole)


def told(stretch):
    """All that must be known of a stretch, beside the job."""
    return json.dumps(dataclasses.asdict(stretch)).encode()


@lru_cache(maxsize=1)
def job_elsewhere(spec, block_bytes):
    job = jobs.make_job(spec, *jobs.find(spec, Limits()), Limits(workers=1))
    return dataclasses.replace(job, rules=dataclasses.replace(job.rules, block_bytes=block_bytes))


def milled_elsewhere(spec, block_bytes, splitter, of_stretch):
    """In another process: the results of the Blocks of a stretch, and where each says that it begins."""
    stretch = json.loads(of_stretch)
    start = stretch["start"] and Position(**stretch["start"])
    job, results = job_elsewhere(spec, block_bytes), []
    encoder, recipe = Encoder(job.engines), recipe_of(job, splitter, None)
    rules = dataclasses.replace(job.rules, range_bytes=range_bytes(job) if recipe else 0)
    blocks = plan.blocks(job.files, rules, plan.Stretch(**{**stretch, "start": start}))
    while True:
        before = None
        try:
            if (block := next(blocks, None)) is None:
                break
            before = block.before
            if recipe is not None:
                result = RangeMiller(job, splitter, encoder, recipe).mill(block)
            else:
                result = mill_block(job, splitter, encoder, block)
        except ShardmillError as e:
            result = e
        results.append((before, result))
    return pickle.dumps(results, protocol=5)


@pytest.fixture(scope="module")
def elsewhere():
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("choices", [{"index": True, "provenance": True}, {}, {"sample": 0.5}], ids=str)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_what_other_processes_make_of_the_stretches_joins_to_the_whole(elsewhere, on_error, choices):
    """Each stretch is told in a few bytes, and milled by whoever is free; the last ones are sent first."""
    for seed, kind in enumerate(INPUTS):
        given = {"on_error": on_error, "max_run_bytes": 2000, "passage_bytes": 500, "val_fraction": 0.2, **choices}
        with job_of(dict(INPUTS[kind](seed)), block_bytes=150, **given) as (job, splitter):
            whole = together(job, splitter, 1)
            with patch.object(plan, "_BLOCKS", 2):
                stretches = [told(each) for each in plan.stretches(job.files, job.rules, BEGINNING)]
            assert max(map(len, stretches)) < 250 and (len(stretches) > 5 or kind == "files")
            sent = [elsewhere.submit(milled_elsewhere, job.spec, 150, splitter, each) for each in reversed(stretches)]
            (*out, write), join, error = written(), Join(BEGINNING), None
            try:
                for made in reversed(sent):
                    for before, result in pickle.loads(made.result()):
                        if (milled := join.take(before, result)) is not None:
                            write(milled)
            except InputError as e:
                error = str(e)
        assert (*out, error) == whole if error is None else error == whole[2] and beginning(out, whole)
