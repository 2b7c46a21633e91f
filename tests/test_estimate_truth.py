"""The intervals of estimate hold what prepare then writes; tools/estimate_truth.py tries many more inputs."""

import bz2
import gzip
import lzma
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import estimate_truth

sys.path.pop(0)
from shardmill import Limits, Spec, estimate, prepare
from shardmill.io.compression import promised_bytes
from shardmill.io.reading import InputReader
from shardmill.job import sampling
from shardmill.job.estimate import expected
from shardmill.job.intervals import FromStart, Span, total
from shardmill.job.job import find, make_job

SIZE = 6 << 20


@pytest.fixture(scope="module")
def sources():
    return estimate_truth.generated(random.Random(1))


def outcome(sources, size, name):
    [found] = estimate_truth.outcomes(
        sources, size=size, wanted=lambda each: each == name, rng=random.Random(2), tokenizer="gpt2"
    )
    return found


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name",
    [
        "one source, many txt",
        "languages, txt",
        "any length, csv",
        "sorted, parquet",
        "sorted, streamed.jsonl.zst",
        "head differs, many jsonl.gz",
        slow("one source, jsonl.gz"),
        slow("languages, jsonl"),
        slow("languages, parquet"),
        slow("any length, jsonl"),
        slow("any length, parquet"),
        slow("sorted, jsonl"),
        slow("head differs, jsonl"),
        slow("head differs, jsonl.xz"),
    ],
)
def test_the_interval_holds(sources, name):
    each = outcome(sources, SIZE, name)
    assert each.held and each.documents_held, each
    assert each.width < 0.15, each


@pytest.mark.parametrize(
    "name", ["one source, csv", "sorted, jsonl.xz", slow("one source, jsonl.gz"), slow("languages, jsonl.zst")]
)
def test_the_interval_holds_when_time_allows_only_a_part(sources, name, monkeypatch):
    """As in a file that is much larger; read by a clock that goes forward a second for each block."""
    ticks = iter(range(1 << 30))
    monkeypatch.setattr(sampling, "SMALL_BYTES", 1)
    monkeypatch.setattr(sampling.time, "monotonic", lambda: next(ticks) / 4)
    each = outcome(sources, 2 * SIZE, name)
    assert each.held and each.low < each.high, each


def of_density(densities, **more):
    spans = [Span(input=100, text=100, documents=1, tokens=round(100 * each), encoded=100) for each in densities]
    return FromStart(total=100 * len(spans) * 10, spans=spans, **more)


def width(found):
    told = total([found], "tokens")
    return (told.high - told.low) / told.middle


def test_what_could_not_be_read_makes_the_interval_wider():
    rng = random.Random(3)
    steady, slope = [rng.gauss(0.25, 0.02) for _ in range(64)], [0.2 + i / 640 for i in range(64)]
    assert width(of_density(steady, at_end=True)) == 0
    assert 0.25 < width(of_density(steady)) < 0.5 < 1.2 < width(of_density(slope))


def packed(kind, data):
    match kind:
        case "gzip":
            return gzip.compress(data, 1)
        case "zstd":
            return estimate_truth.zstd.compress(data, 1)
        case "xz":
            return lzma.compress(data, preset=0)
    return bz2.compress(data, 1)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_a_compressed_file_promises_the_length_of_its_text(tmp_path, kind):
    data = random.Random(4).randbytes(300_000)
    (tmp_path / "one").write_bytes(packed(kind, data))
    with InputReader(str(tmp_path / "one")) as reader:
        assert promised_bytes(reader, 1000, 1000) == 300_000
        assert kind != "gzip" or promised_bytes(reader, 1000, 30_000_000) == 300_000 + (2 << 32)


def test_the_blocks_of_a_streamed_zstd_file_tell_the_length_of_its_text(tmp_path):
    words = random.Random(5).choices([f"word{i} " for i in range(3000)], k=600_000)
    data = "".join(words).encode()
    (tmp_path / "a.zst").write_bytes(estimate_truth.streamed_zstd(data))
    with InputReader(str(tmp_path / "a.zst")) as reader:
        found = promised_bytes(reader, reader.size // 4, len(data) // 4)
    assert abs(found - len(data)) < 0.15 * len(data)


def test_a_file_that_says_nothing_promises_nothing(tmp_path):
    for name, data in {"bz2": bz2.compress(b"text"), "txt": b"text", "xz": lzma.compress(b"text")[:-1]}.items():
        (tmp_path / name).write_bytes(data)
        with InputReader(str(tmp_path / name)) as reader:
            assert promised_bytes(reader, 1000, 1000) is None


def test_a_promise_of_one_member_is_not_taken_for_that_of_all():
    size = 1 << 20
    spans = [Span(input=size, raw=3 * size, text=3 * size, documents=1, tokens=100, encoded=size) for _ in range(10)]
    for promised, tokens in ((330 * size, 11_000), (35 * size, 10_047), (None, 10_047)):
        found = FromStart(total=100 * size, promised=promised, spans=spans)
        assert total([found], "tokens").middle == tokens


@pytest.fixture(scope="module")
def lines(tmp_path_factory, sources):
    folder = tmp_path_factory.mktemp("lines")
    documents = estimate_truth.taken(sources["latin"], SIZE, random.Random(5))
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(estimate_truth.json_lines(documents), 1))
    return folder, documents


def job_of(spec):
    return make_job(spec, *find(spec, Limits()), Limits())


def test_text_is_told_from_what_surrounds_it(lines):
    folder, documents = lines
    job = job_of(Spec(inputs=[folder / "a.jsonl.gz"], output=folder / "out"))
    found = total(sampling.sample(job.files, job.rules, len, seconds=0.25, whole=False), "text")
    truth = sum(len(document.encode()) for document in documents)
    assert found.low <= truth <= found.high and job.total_bytes < truth / 2


def test_a_sample_and_limits_are_expected_too(lines):
    folder, documents = lines
    whole = {"inputs": [folder / "a.jsonl.gz"], "output": folder / "out", "val_fraction": 0}
    everything = expected(job_of(Spec(**whole)))[1].middle
    assert expected(job_of(Spec(**whole, limit_tokens=1000)))[1].high == 1000
    half = expected(job_of(Spec(**whole, limit_documents=len(documents) // 2)))[1].middle
    assert 0.4 * everything < half < 0.6 * everything
    made = prepare(Spec(**whole, sample=0.1)).manifest.tokens
    told = estimate(Spec(**whole, sample=0.1)).tokens
    assert told.low <= made <= told.high < everything / 2


def test_a_sample_of_running_text_is_expected_too(tmp_path, sources):
    (tmp_path / "a.txt").write_text("\n".join(estimate_truth.taken(sources["latin"], SIZE, random.Random(6))))
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", sample=0.2)
    told, made = estimate(spec).tokens, prepare(spec).manifest.tokens
    assert told.low <= made <= told.high < 2 * told.middle
