"""Estimates: exact on small inputs, and an interval that holds on large ones."""

import bisect
import dataclasses
import gzip
import itertools
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import made_files
from shardmill import Limits, Spec, estimate, prepare
from shardmill.errors import TemporaryError
from shardmill.job import budget, mill, sampling
from shardmill.job.estimate import check_space, estimate_job, expecting
from shardmill.job.intervals import Across, Span, total
from shardmill.job.job import find, make_job


def write_corpus(path, documents, seed=0):
    """Documents of very different length and kind, so that the samples differ."""
    rng = random.Random(seed)
    words = [bytes(rng.choice(b"etaoinshrdlu") for _ in range(rng.randint(1, 12))).decode() for _ in range(5000)]
    with open(path, "w") as f:
        for _ in range(documents):
            kind = rng.random()
            text = (
                "".join(map(str, rng.choices(range(1000), k=300)))
                if kind < 0.2
                else " ".join(rng.choices(words, k=rng.randint(5, 800)))
            )
            f.write(text + "\n\n\n")


def test_a_small_input_is_counted_exactly(tmp_path):
    write_corpus(tmp_path / "a.txt", 200)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n\\n\\n", val_fraction=0.1)
    told, made = estimate(spec), prepare(spec).manifest
    assert told.tokens.low == told.tokens.middle == told.tokens.high == made.tokens
    assert told.documents.middle == made.counts.documents == 200
    assert told.output_bytes.middle == sum(file.bytes for file in made.files)


@pytest.mark.parametrize("format", ["mds", "llmc"])
def test_headers_take_room_too(tmp_path, format):
    """Those of mds take twice as much as the tokens, if a sample is one token."""
    write_corpus(tmp_path / "a.txt", 50)
    sample = {"sample_tokens": 1} if format != "llmc" else {}
    choices = {"format": format, "shard_tokens": 500, "split": "hash", "val_fraction": 0, **sample}
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n\\n\\n", **choices)
    told, made = estimate(spec), prepare(spec).manifest
    written = sum(file.bytes for file in made.files)
    assert written > 1.02 * made.tokens * 2 and abs(told.output_bytes.middle - written) < 0.02 * written


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_interval_holds_the_truth_for_a_larger_input(tmp_path, seed):
    write_corpus(tmp_path / "a.txt", 6000, seed)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n\\n\\n")
    told, made = estimate(spec), prepare(spec).manifest
    assert told.sampled_bytes < told.input_bytes / 2
    assert told.tokens.low <= made.tokens <= told.tokens.high
    assert told.tokens.high - told.tokens.low < 0.2 * made.tokens
    assert told.documents.low <= made.counts.documents <= told.documents.high


@pytest.mark.parametrize("where", [(), ("kind == 1",)])
def test_the_interval_holds_for_parquet_whose_text_is_partly_in_a_dictionary(tmp_path, where):
    """As pyarrow writes it: the first megabyte of each row group, and the pages that refer to it are a few bytes long."""
    rng = random.Random(1)
    rows = [rng.randbytes(rng.randint(100, 3000)).hex() for _ in range(4000)]
    table = pa.table({"text": rows, "kind": [i % 3 for i in range(len(rows))]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2000, compression="none")
    found = estimate(Spec(inputs=[tmp_path / "a.parquet"], output=tmp_path / "out", where=where))
    truth = len(rows[1::3]) if where else len(rows)
    assert found.documents.low <= truth <= found.documents.high < 1.3 * truth


def test_the_interval_holds_19_times_in_20():
    rng, held = random.Random(4), 0
    population = [(rng.randint(50, 200), rng.random()) for _ in range(20000)]
    rows = [(size, int(size * share)) for size, share in population]
    bytes_in_all, truth = sum(size for size, _ in rows), sum(count for _, count in rows)
    ends = list(itertools.accumulate(size for size, _ in rows))
    for _ in range(300):
        picked = [rows[bisect.bisect_right(ends, rng.randrange(bytes_in_all))] for _ in range(256)]
        spans = [Span(input=size, text=size, documents=1, tokens=count, encoded=size) for size, count in picked]
        found = total([Across(total=bytes_in_all, spans=spans, unread=[0.0] * 256)], "tokens")
        held += found.low <= truth <= found.high
    assert 0.91 <= held / 300 <= 0.99


def test_a_result_that_cannot_fit_is_refused_before_the_work(tmp_path, monkeypatch):
    write_corpus(tmp_path / "a.txt", 200)
    monkeypatch.setattr("shardmill.io.storage.free_bytes", lambda _: 1000)
    with pytest.raises(TemporaryError, match="1,000 free"):
        prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_job_is_sampled_once_however_many_ask_what_to_expect(tmp_path, monkeypatch):
    """Notes need it for JSON lines, whose text is not known, and the check of space where it may be short."""
    text = "".join(json.dumps({"text": "flour " * 20 + str(number)}) + "\n" for number in range(500))
    (tmp_path / "a.jsonl").write_text(text)
    spec, taken = Spec(inputs=[tmp_path / "a.jsonl"], output=tmp_path / "out"), []

    def sample(*args, seconds, **choices):
        taken.append(seconds)
        return sampling.sample(*args, seconds=seconds, **choices)

    monkeypatch.setattr("shardmill.job.estimate.sample", sample)
    for free in (1 << 40, len(text)):  # a quick one, and a thorough one, since the space may not suffice
        monkeypatch.setattr("shardmill.io.storage.free_bytes", lambda _, free=free: free)
        prepare(spec, overwrite=True)
    assert taken == [0.25, 2.0]


def test_what_waits_for_its_turn_takes_only_space_that_the_result_leaves(tmp_path, monkeypatch):
    """It is no reason to refuse a job: with less space, less may wait."""
    for name in "ab":
        write_corpus(tmp_path / f"{name}.txt", 4000)
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress((tmp_path / f"{name}.txt").read_bytes()))
    spec = Spec(inputs=[tmp_path / "a.txt.gz", tmp_path / "b.txt.gz"], output=tmp_path / "out")
    two = Limits(workers=2)
    told = estimate(spec, limits=two)
    made = told.output_bytes.high
    assert told.waiting_bytes == made
    assert estimate(spec, limits=Limits(workers=1)).waiting_bytes == 0, "all is in order"
    assert estimate(dataclasses.replace(spec, limit_documents=1), limits=two).waiting_bytes == 0
    seen, mill_blocks = [], mill.mill_blocks

    def look(job, *rest):
        seen.append(job.budget.on_disk)
        mill_blocks(job, *rest)

    monkeypatch.setattr(mill, "mill_blocks", look)
    monkeypatch.setattr(budget, "_AHEAD_FACTOR", 0)
    for spare in (0, 1000, made + 5):
        monkeypatch.setattr("shardmill.io.storage.free_bytes", lambda _, spare=spare: made + spare)
        done = prepare(spec, limits=two, overwrite=True)
        assert any("no space left for tokens that wait" in note for note in done.notes) == (spare == 0)
    assert seen[0] == 0 and 0 < seen[1] <= 1000 and seen[2] <= made


def test_what_waits_for_its_turn_leaves_room_for_what_is_staged(tmp_path):
    write_corpus(tmp_path / "a.txt", 4000)
    spec = Spec(inputs=[tmp_path / "a.txt"], output="s3://bucket/x", format="shards", shard_tokens=1000)
    for room, waits in ((100_000, False), (10 << 30, True)):
        limits = Limits(workers=2, max_staging=room, staging=str(tmp_path / "staging"))
        files, tokenizer = find(spec, limits)
        job = make_job(spec, files, tokenizer, limits)
        job, staged, _ = check_space(job, limits, expecting(job, limits))
        assert (job.budget.on_disk > 0) == waits and staged.max_staging == room - job.budget.on_disk
        assert staged.max_staging >= estimate_job(job, limits).disk_bytes


def test_a_result_that_may_not_fit_gets_a_warning(tmp_path, monkeypatch):
    write_corpus(tmp_path / "a.txt", 6000)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out")
    told = estimate(spec, limits=Limits(workers=1))
    monkeypatch.setattr(
        "shardmill.io.storage.free_bytes", lambda _: (told.output_bytes.low + told.output_bytes.high) // 2
    )
    assert any("may take up to" in note for note in prepare(spec).notes)


@pytest.mark.parametrize("limit", [{"limit_documents": 20}, {"limit_documents": 5000}, {"limit_tokens": 3000}])
def test_with_a_limit_the_beginning_is_what_counts(tmp_path, limit):
    """Short documents come first, and long ones after them: the average says nothing."""
    words = "the mill turns all the text into tokens "
    lengths = [1] * 4000 + [200] * 4000
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{words * length}"}}\n' for length in lengths))
    spec = Spec(inputs=[tmp_path / "a.jsonl"], output=tmp_path / "out", val_fraction=0, **limit)
    told, made = estimate(spec), prepare(spec).manifest
    assert told.tokens.low <= made.tokens <= told.tokens.high <= 1.1 * made.tokens
    assert told.documents.low * 0.99 <= made.counts.documents <= told.documents.high * 1.01


def test_a_limit_far_away_is_expected_from_what_time_allows(tmp_path, monkeypatch):
    write_corpus(tmp_path / "a.txt", 12_000)
    ticks = itertools.count()
    monkeypatch.setattr(sampling.time, "monotonic", lambda: next(ticks) / 4)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n\\n\\n", limit_documents=9000)
    told, made = estimate(spec), prepare(spec).manifest
    assert told.tokens.low < made.tokens < told.tokens.high and told.documents.high == 9000 == made.counts.documents


def test_bad_bytes_do_not_stop_an_estimate(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good \xff\xfe bad " * 600000)
    assert estimate(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out")).tokens.middle > 0


def test_many_small_files_are_estimated_from_whole_ones(tmp_path):
    # A word that is cut counts for more in a short text: from the second halves of files, it was 9 % too much.
    rng = random.Random(5)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "harbour", "walls", "while", "gulls", "cry"]
    (tmp_path / "in").mkdir()
    for number in range(5000):
        (tmp_path / f"in/{number}.txt").write_text(" ".join(rng.choices(words, k=rng.randint(10, 40))))
    spec = Spec(inputs=[tmp_path / "in"], output=tmp_path / "out")
    told, made = estimate(spec), prepare(spec).manifest
    assert told.documents.low == told.documents.high == made.counts.documents == told.files == 5000
    assert told.sampled_bytes < told.input_bytes / 10
    assert abs(told.tokens.middle - made.tokens) < 0.02 * made.tokens


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst"])
def test_a_line_that_is_most_of_the_file_is_not_multiplied(tmp_path, suffix):
    """Its text came before its bytes were booked: a file of 58 MiB promised trillions of tokens, and was refused."""
    rng = random.Random(4)
    words = [bytes(rng.choices(b"etaoinshrdlu", k=rng.randint(1, 12))).decode() for _ in range(5000)]
    text = " ".join(rng.choices(words, k=1_800_000))
    data = b"".join(json.dumps({"text": each}).encode() + b"\n" for each in ("short", text, "last"))
    path = tmp_path / f"a{suffix}"
    path.write_bytes(made_files.COMPRESSIONS[".zst"](data, 1) if suffix.endswith(".zst") else data)
    spec = Spec(inputs=[path], output=tmp_path / "out", val_fraction=0)
    truth = prepare(spec).manifest.files[0].tokens
    found = estimate(dataclasses.replace(spec, output=tmp_path / "other"))
    assert found.tokens.low / 1.5 < truth < found.tokens.high * 1.5
    assert found.documents.high < 1000
