"""More workers than cores, and more files than workers: the same bytes, the same errors, the same counts (I1, I4, I6)."""

import json
import random
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import command
import made_files
import samples
import shardmill
from servers import Fault, Server
from shardmill import Limits, Spec
from shardmill.errors import InputError, ShardmillError
from shardmill.job import plan

PLENTY = 16 << 30
MANY = (2, 16)
ODD_BLOCKS = {2: 777, 16: 4099}
SHAKESPEARE = (Path(__file__).parent.parent / "samples/tinyshakespeare.txt").read_text()
SEPARATOR = "<|endoftext|>"


def texts(count, seed=0):
    """Documents of a few bytes to some tens of KB, no two alike."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        size = rng.choice((0, 20, 200, 200, 2000, 2000, 9000, 40_000 if number % 40 == 7 else 500))
        at = rng.randrange(len(SHAKESPEARE) - size)
        text = samples.ALL[:size] if number % 17 == 5 else SHAKESPEARE[at : at + size]
        made.append(text + f" {number}" if size else "")
    return made


def file_of(kind, documents, seed=0):
    """The bytes of a file of this kind with these documents."""
    rng = random.Random(seed)
    match kind.split("."):
        case ["running"]:
            return "\n".join(documents).encode()
        case ["separated"]:
            return made_files.text(documents, SEPARATOR).data
        case ["jsonl"]:
            return made_files.jsonl(documents, rng).data
        case ["csv" | "tsv"]:
            return made_files.table(documents, "," if kind == "csv" else "\t").data
        case ["parquet"]:
            return made_files.parquet(documents, rng).data
        case ["arrow" | "stream"]:
            return made_files.arrow(documents, rng, stream=kind == "stream").data
        case ["warc"]:
            return made_files.warc(documents, rng).data
        case [inner, packing]:
            return made_files.COMPRESSIONS[f".{packing}"](file_of(inner, documents, seed), 40)
    raise AssertionError(kind)


SUFFIXES = {"running": ".txt", "separated": ".txt", "stream": ".arrow", "warc": ".wet"}
KINDS = ("running", "separated", "jsonl", "csv", "tsv", "parquet", "arrow", "stream", "warc")
PACKED = ("running.zst", "separated.gz", "jsonl.gz", "jsonl.zst", "csv.xz", "warc.gz")


def write(folder, kind, number, documents):
    inner, dot, packing = kind.partition(".")
    path = folder / f"{number:04}{SUFFIXES.get(inner, f'.{inner}')}{dot}{packing}"
    path.write_bytes(file_of(kind, documents, number))
    return path


def several(folder, each=8):
    """Files of every kind in one folder, some of them many times as long as others."""
    folder.mkdir()
    for number, kind in enumerate((*KINDS, *PACKED) * 2):
        write(folder, kind, number, texts(each * (6 if number % 5 == 3 else 1), number))
    return folder


def mill(inputs, output, workers, *, block_bytes=None, **choices):
    """Everything that is written, but for run.json; and the counts."""
    spec = Spec(inputs=[str(each) for each in inputs], output=str(output), **choices)
    limits = Limits(workers=workers, block_bytes=block_bytes or ODD_BLOCKS.get(workers, 1 << 20), max_memory=PLENTY)
    result = shardmill.prepare(spec, limits=limits)
    assert result.run["workers"] == workers
    return contents(output), asdict(result.manifest.counts)


def contents(output):
    found = {path.relative_to(output).as_posix(): path for path in Path(output).rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in ("run.json", ".shardmill.lock")}


def tokens(output):
    """Without what names the inputs."""
    return {name: data for name, data in contents(output).items() if name.endswith(".bin")}


def same_for_all(tmp_path, inputs, **choices):
    expected, counts = mill(inputs, tmp_path / "one", 1, **choices)
    assert expected["train.bin" if "train.bin" in expected else "manifest.json"]
    for workers in MANY:
        assert mill(inputs, tmp_path / f"out-{workers}", workers, **choices) == (expected, counts), workers
    return counts


# ---- the same bytes


@pytest.mark.parametrize("kind", [*KINDS, *PACKED])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path, kind):
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in", kind, 0, texts(150))
    separator = {"separator": SEPARATOR} if kind.startswith("separated") else {}
    counts = same_for_all(tmp_path, [path], val_fraction=0.1, **separator)
    assert counts["documents"] == (1 if kind.startswith("running") else 150)


@pytest.mark.parametrize("kind", ["running", "jsonl", "jsonl.zst", "parquet"])
def test_files_of_very_different_sizes_give_the_same_bytes(tmp_path, kind):
    """A long one first, in the middle and last, next to nothing in between, and files without a document."""
    (tmp_path / "in").mkdir()
    sizes = [200, 1, 0, 3, 1, 100, *[1] * 20, 0, 2, 200]
    for number, size in enumerate(sizes):
        documents = texts(size, number)
        if kind == "running" and size == 200:
            documents *= 5  # beyond a mebibyte it is split by passages
        write(tmp_path / "in", kind, number, documents)
    same_for_all(tmp_path, [tmp_path / "in"], val_fraction=0.1)


def test_a_value_much_longer_than_a_block_among_short_ones_gives_the_same_bytes(tmp_path):
    (tmp_path / "in").mkdir()
    long = [SHAKESPEARE[:200_000], "字" * 40_000, "no spaces " + "x" * 90_000]
    for number, kind in enumerate(("jsonl", "parquet", "csv", "jsonl.zst", "warc", "separated")):
        write(tmp_path / "in", kind, number, [*texts(20, number), *long, *texts(20, number + 50)])
    counts = same_for_all(tmp_path, [tmp_path / "in"], val_fraction=0.1, max_run_bytes=60_000, passage_bytes=2000)
    assert counts["forced_cuts"]


CHOICES = {
    "limit-documents": {"limit_documents": 161},
    "limit-tokens": {"limit_tokens": 40_009},
    "sample": {"sample": 0.3},
    "sample and limit": {"sample": 0.6, "limit_documents": 101},
    "index and provenance": {"index": True, "provenance": True},
    "shards": {"format": "shards", "shard_tokens": 3_001, "index": True},
    "first shard": {"format": "shards", "shard_tokens": 7_001, "split": "first-shard", "limit_tokens": 90_000},
    "megatron": {"format": "megatron"},
    "olmo": {"format": "olmo", "shard_tokens": 15_000},
    "before": {"eot": "before", "seed": 11},
}


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    return several(tmp_path_factory.mktemp("kinds") / "in")


@pytest.mark.parametrize("choice", CHOICES)
def test_whatever_is_asked_for_sixteen_workers_give_what_one_gives(tmp_path, every_kind, choice):
    given = CHOICES[choice] if "split" in CHOICES[choice] else {"val_fraction": 0.05, **CHOICES[choice]}
    expected = mill([every_kind], tmp_path / "one", 1, **given)
    assert mill([every_kind], tmp_path / "many", 16, **given) == expected


def test_a_first_pass_finds_the_same_split_with_any_number_of_workers(tmp_path, every_kind):
    """Few documents would be val: exactly the lowest hashes are."""
    counts = same_for_all(tmp_path, [every_kind], val_fraction=0.005)
    assert 0 < counts["documents_val"] < 40


def test_what_is_skipped_is_the_same_and_told_in_the_same_order(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(12):
        lines = file_of("jsonl", texts(40, number), number).splitlines(keepends=True)
        for at in range(number, len(lines), 7):
            lines[at] = b'{"text": nothing}\n'
        (tmp_path / f"in/{number:02}.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "in/05-cut.jsonl.zst").write_bytes(file_of("jsonl.zst", texts(60))[:-40])
    counts = same_for_all(tmp_path, [tmp_path / "in"], on_error="skip", val_fraction=0.1)
    assert counts["documents_rejected"] > 40
    rejects = [json.loads(line)["path"] for line in (tmp_path / "out-16/rejects.jsonl").read_text().splitlines()]
    assert rejects == sorted(rejects)


@pytest.mark.parametrize("workers", [1, *MANY])
def test_standard_input_beside_files_gives_the_same_bytes(tmp_path, workers):
    """What is piped in stands where its - stands."""
    for number, kind in enumerate(("jsonl", "running", "jsonl.zst", "parquet")):
        write(tmp_path, kind, number, texts(40, number))
    names = sorted(path.name for path in tmp_path.glob("0*"))
    piped = file_of("warc", texts(80, 9))
    (tmp_path / "piped.wet").write_bytes(piped)
    # A pipe is split by threshold, so the files must have documents enough for one, too.
    options = ("--val-fraction", "0.5", "--workers", workers, "--max-memory", "8GiB", "-q")
    done = command.run("prepare", *names[:2], "-", *names[2:], "-o", "out", *options, cwd=tmp_path, input=piped)
    assert done.returncode == 0, done.stderr
    done = command.run("prepare", *names[:2], "piped.wet", *names[2:], "-o", "files", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert tokens(tmp_path / "out") == tokens(tmp_path / "files")


# ---- many files


def small_files(folder, count):
    for number in range(count):
        if number % 1000 == 0:
            (folder / f"{number // 1000:03}").mkdir(parents=True)
        path = folder / f"{number // 1000:03}" / f"{number:06}.{'jsonl' if number % 10 == 3 else 'txt'}"
        text = f"File {number} says little."
        path.write_text(json.dumps({"text": text}) + "\n" if path.suffix == ".jsonl" else text)
    return folder


def test_thousands_of_small_files_give_the_same_bytes(tmp_path):
    small_files(tmp_path / "in", 2000)
    expected = mill([tmp_path / "in"], tmp_path / "one", 1, val_fraction=0.1)
    assert expected[1]["documents"] == 2000
    assert mill([tmp_path / "in"], tmp_path / "out", 16, val_fraction=0.1) == expected


# ---- the network


@pytest.fixture
def server():
    with Server() as made:
        yield made


def serve(server, documents=30, count=8):
    for number in range(count):
        kind = ("jsonl", "jsonl.zst", "parquet", "csv")[number % 4]
        server.files[f"/{number:02}.{kind}"] = file_of(kind, texts(documents, number), number)
    return [server.url + path for path in sorted(server.files)]


@pytest.mark.parametrize("workers", [1, *MANY])
def test_a_slow_remote_file_among_quick_ones_holds_nothing_up_for_ever(tmp_path, server, workers):
    urls = serve(server)
    expected = mill(urls, tmp_path / "quick", 1, val_fraction=0.1)
    slow = sorted(server.files)[3]
    server.faults[slow] = [Fault("stall", after=500, seconds=0.7), Fault("cut", after=700), Fault("reset", after=900)]
    started = time.monotonic()
    assert mill(urls, tmp_path / "slow", workers, val_fraction=0.1) == expected
    assert time.monotonic() - started < 20
    assert not server.faults[slow], "no fault was met"


def test_slow_remote_files_are_read_at_the_same_time(tmp_path, server):
    """Each answer takes half a second, from when the work begins."""
    urls, began = serve(server), []

    def slow_down(_start):
        server.faults.update({path: [Fault("stall", after=100, seconds=0.5)] * 3 for path in server.files})
        began.append(time.monotonic())

    spec = Spec(inputs=urls, output=str(tmp_path / "out"), val_fraction=0)
    limits = Limits(workers=8, block_bytes=777, max_memory=PLENTY)
    shardmill.prepare(spec, limits=limits, on_start=slow_down)
    assert time.monotonic() - began[0] < len(urls) * 0.5


# ---- errors


@pytest.fixture
def broken(tmp_path):
    """A long file with a bad last line, and behind it short ones with a bad first line, which are read in no time."""
    (tmp_path / "in").mkdir()
    for number in range(12):
        documents = texts(200 if number == 4 else 8, number)
        data = file_of("jsonl", documents, number)
        if number == 4:
            data = data.rstrip(b"\n") + b'\n{"text": 5}\n'
        elif number in (6, 9, 10):
            data = b'{"text": "a\n' + data
        (tmp_path / f"in/{number:02}.jsonl").write_bytes(data)
    return tmp_path / "in"


@pytest.mark.parametrize("workers", [1, *MANY])
def test_the_first_error_in_reading_order_is_the_one_told_and_nothing_is_lost(tmp_path, broken, workers):
    """Whoever reads ahead finds others sooner. What was written is gone on with, under a policy that skips them."""
    lines = (broken / "04.jsonl").read_bytes().count(b"\n")
    expected = mill([broken], tmp_path / "skipped", 1, on_error="skip", val_fraction=0.1)
    for _ in range(3):
        with pytest.raises(InputError, match=f"04.jsonl line {lines:,}") as told:
            mill([broken], tmp_path / "out", workers, val_fraction=0.1)
        assert told.value.exit_code == 1
    assert not (tmp_path / "out/manifest.json").exists() and not (tmp_path / "out/train.bin").exists()
    assert mill([broken], tmp_path / "out", workers, on_error="skip", val_fraction=0.1) == expected


@pytest.mark.parametrize("workers", [1, *MANY])
def test_what_a_limit_ends_before_an_error_is_complete(tmp_path, broken, workers):
    before = sum(bool(text) for number in range(4) for text in texts(8, number))
    wanted = {"limit_documents": before, "val_fraction": 0.1}
    _, counts = mill([broken], tmp_path / "out", workers, **wanted)
    assert counts["documents"] - counts["documents_empty"] == before


@pytest.mark.parametrize("workers", [1, *MANY])
def test_a_file_that_a_server_refuses_stops_the_job_and_the_same_command_finishes_it(tmp_path, server, workers):
    """The job has found its inputs when the server begins to refuse some; the first of them is the one told."""
    urls = serve(server, documents=60)
    expected = mill(urls, tmp_path / "good", 1, val_fraction=0.1)
    refused = sorted(server.files)[4:]

    def refuse(_start):
        server.faults.update({path: [Fault("status", status=403)] * 1000 for path in refused})

    spec = Spec(inputs=urls, output=str(tmp_path / "out"), val_fraction=0.1)
    limits = Limits(workers=workers, block_bytes=777, max_memory=PLENTY, network_seconds=1.0)
    with pytest.raises(ShardmillError, match=refused[0]):
        shardmill.prepare(spec, limits=limits, on_start=refuse)
    assert not (tmp_path / "out/manifest.json").exists()
    server.faults.clear()
    assert mill(urls, tmp_path / "out", workers, val_fraction=0.1) == expected


@pytest.mark.parametrize("workers", MANY)
def test_files_behind_one_that_fails_are_never_left_out(tmp_path, server, monkeypatch, workers):
    """A stretch began in a file that the one before had to read to its end, since text without spaces has no place to
    start. The server refused the file just then: nobody told, and the files behind it in that stretch were not read."""
    monkeypatch.setattr(plan, "_REMOTE_BLOCKS", 2)
    words = ["some words and more " * 3, "x" * 700, "", "not", "left out", "at all " * 9, "nor these " * 20]
    server.files = {f"/{number}.txt": text.encode() for number, text in enumerate(words)}
    urls, odd = [server.url + path for path in server.files], {"block_bytes": 101, "val_fraction": 0.3}
    expected, stopped = mill(urls, tmp_path / "good", 1, **odd), 0
    for answers in range(1, 12):
        server.faults["/1.txt"] = [None] * answers + [Fault("status", status=403)] * 1000
        try:
            found = mill(urls, tmp_path / f"{answers}", workers, **odd)
        except InputError as e:
            assert "/1.txt: access denied (403 Forbidden)" in str(e)
            stopped += 1
            server.faults.clear()
            found = mill(urls, tmp_path / f"{answers}", workers, **odd)
        assert found == expected, answers
    assert stopped


def test_an_output_that_was_made_by_few_workers_is_complete_for_many(tmp_path, every_kind):
    mill([every_kind], tmp_path / "out", 2, val_fraction=0.05)
    spec = Spec(inputs=[str(every_kind)], output=str(tmp_path / "out"), val_fraction=0.05)
    again = shardmill.prepare(spec, limits=Limits(workers=16, max_memory=PLENTY))
    assert again.already_complete
    assert shardmill.verify(tmp_path / "out", sources=[every_kind]).ok
