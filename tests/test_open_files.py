"""An input is opened once and detected once, as long as few others are; and whatever happens to it is noticed as if it were
opened each time."""

import collections
import json
import os
import random
import resource
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command import SHARDMILL
from shardmill import Limits, Spec, estimate, prepare, verify
from shardmill.documents import detect
from shardmill.documents.pieces import BEGINNING
from shardmill.errors import InputError
from shardmill.inputs.find import find_inputs
from shardmill.io import open_files
from shardmill.io.open_files import OpenFiles
from shardmill.io.reading import InputFile, InputReader
from shardmill.job import plan
from shardmill.job.job import find, make_job

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK = 4000
WORDS = [f"{first}{second}" for first in ("mill", "grain", "flour", "sack") for second in ("stone", "wheel", "s", "")]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def documents(count, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(count)]


def lines(count, seed=0):
    return "".join(json.dumps({"text": text}) + "\n" for text in documents(count, seed)).encode()


def frames(data):
    """zstd frames of about as many bytes each, as pzstd makes them."""
    return b"".join(zstd.compress(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))


def write_parquet(path, seed):
    pq.write_table(pa.table({"text": documents(1500, seed)}), path, row_group_size=50)


WRITE = {
    "txt": lambda path, seed: path.write_text("\n".join(documents(6000, seed))),
    "jsonl": lambda path, seed: path.write_bytes(lines(1500, seed)),
    "jsonl.zst": lambda path, seed: path.write_bytes(frames(lines(1500, seed))),
    "parquet": write_parquet,
}


def spec(folder, **choices):
    return Spec(inputs=[str(folder / "in")], output=str(folder / "out"), **choices)


def limits(workers=2):
    return Limits(workers=workers, block_bytes=BLOCK, max_memory=1 << 34)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(plan, "_BLOCKS", 2)
    monkeypatch.setattr(plan, "_MOST_COMPRESSED_BYTES", 2 * BLOCK)
    return tmp_path


def count_calls(monkeypatch, owner, name, path_of):
    """How often a function is called for each path."""
    calls, real = collections.Counter(), getattr(owner, name)

    def counting(*args, **choices):
        calls[os.path.basename(str(path_of(*args)))] += 1
        return real(*args, **choices)

    monkeypatch.setattr(owner, name, counting)
    return calls


# One of eight files of JSON lines was opened 88 times: for each of the samples, which were taken twice, and each stretch.
@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("kind", WRITE)
def test_an_input_is_opened_once_and_detected_once(folder, monkeypatch, kind, workers):
    names = [f"{number}.{kind}" for number in range(1 if kind == "txt" else 3)]
    for number, name in enumerate(names):
        WRITE[kind](folder / "in" / name, number)
    monkeypatch.setattr("shardmill.io.storage.free_bytes", lambda _: 10 << 20)  # so space is estimated too
    opens = count_calls(monkeypatch, os, "open", lambda path, *_: path)
    detected = count_calls(monkeypatch, detect, "_format_of", lambda reader, _: reader.path)
    read = count_calls(monkeypatch, InputReader, "__init__", lambda _, path: path)
    prepare(spec(folder, val_fraction=0.1), limits=limits(workers))
    assert {name: (opens[name], detected[name]) for name in names} == dict.fromkeys(names, (1, 1))
    assert all(read[name] >= (4 if workers == 1 else 9) for name in names), "for all who read it"


def test_small_texts_are_opened_as_often_as_they_are_read(folder, monkeypatch):
    """For the list of inputs, for what to expect, and for the work; two are looked at before. Reading one takes
    no more calls than finding out whether it is still open."""
    for number in range(100):
        (folder / "in" / f"{number}.txt").write_text(f"sack {number}")
    opens = count_calls(monkeypatch, os, "open", lambda path, *_: path)
    prepare(spec(folder, val_fraction=0), limits=limits())
    assert sum(opens[f"{number}.txt"] for number in range(100)) <= 3 * 100 + 2


def edited(path):
    with open(path, "r+b") as file:
        file.write(b"[")


def replaced(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().upper())
    os.replace(other, path)


CHANGES = {
    edited: "was modified since the job began",
    replaced: "was modified since the job began",
    lambda path: path.write_bytes(path.read_bytes() * 2): "bytes when the job began",
    lambda path: os.truncate(path, 100): "bytes when the job began",
    os.remove: "no such file",
}


@pytest.mark.parametrize("most", [64, 0], ids=["open", "opened-again"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_between_two_stretches_is_refused(folder, monkeypatch, change, most):
    monkeypatch.setattr(open_files, "_MOST_OPEN", most)
    path = folder / "in/a.jsonl"
    path.write_bytes(lines(500))
    job = make_job(spec(folder), *find(spec(folder), limits()), limits())
    first, second, *_ = plan.stretches(job.files, job.rules, BEGINNING)
    before = [part for block in plan.blocks(job.files, job.rules, first) for part in block.parts]
    assert not any(getattr(part, "error", None) for part in before)
    change(path)
    (bad,) = [part for block in plan.blocks(job.files, job.rules, second) for part in block.parts]
    with pytest.raises(InputError, match=CHANGES[change]):
        bad.pieces(0, job.rules, lambda keys: keys < 0)


def open_now(folder):
    """How many descriptors lead to the inputs, removed ones among them."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the one that lists them
            continue
    return sum(link.startswith(str(folder / "in")) for link in links)


@linux
@pytest.mark.parametrize("kind", WRITE)
def test_all_are_closed_at_the_end(folder, kind):
    for number in range(3):
        WRITE[kind](folder / "in" / f"{number}.{kind}", number)
    estimate(spec(folder), limits=limits())
    assert not open_now(folder)
    prepare(spec(folder), limits=limits())
    assert not open_now(folder)
    assert verify(folder / "out", sources=[str(folder / "in")]).ok
    assert not open_now(folder)


@linux
@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("ends", [InputError, KeyboardInterrupt])
def test_all_are_closed_after_an_error_although_somebody_keeps_it(folder, monkeypatch, ends, workers):
    for number in range(3):
        (folder / "in" / f"{number}.jsonl").write_bytes(lines(1500, number) + b"{bad\n" * (ends is InputError))
    was_open = []

    def watch(step):
        if step == "block-written":
            was_open.append(open_now(folder))
            if ends is KeyboardInterrupt:
                raise KeyboardInterrupt

    monkeypatch.setattr("shardmill.io.storage.watch", watch)
    with pytest.raises(ends) as kept:
        prepare(spec(folder, val_fraction=0), limits=limits(workers))
    assert max(was_open) == 3 and not open_now(folder)
    assert kept.value.__traceback__ is not None


@linux
@pytest.mark.parametrize("workers", [1, 16])
def test_few_of_many_files_are_open(folder, monkeypatch, workers):
    for number in range(300):
        (folder / "in" / f"{number}.jsonl").write_bytes(lines(5, number))
    most, real = [0], os.open

    def watched(path, *rest, **choices):
        most[0] = max(most[0], open_now(folder))
        return real(path, *rest, **choices)

    monkeypatch.setattr(os, "open", watched)
    prepare(spec(folder), limits=limits(workers))
    assert 32 < most[0] <= 64 + workers and not open_now(folder)


@linux
def test_a_file_is_read_on_after_others_took_its_place(folder, monkeypatch):
    monkeypatch.setattr(open_files, "_MOST_OPEN", 1)
    for name in "ab":
        (folder / "in" / name).write_text(name * 10)
    a, b = (InputFile(path=str(folder / "in" / name), size=10) for name in "ab")
    with OpenFiles() as opened:
        with opened.reader(a) as first, opened.reader(a) as second:
            assert first.file is second.file
            with opened.reader(b) as other:
                assert (first.read(0, 9), other.read(0, 9)) == (b"a" * 9, b"b" * 9) and open_now(folder) == 2
        assert open_now(folder) == 1
        with opened.reader(a) as again:
            assert again.read(9, 9) == b"a" and again.file is not first
    assert not open_now(folder)


def test_what_is_dropped_from_the_cache_is_what_each_reader_read(folder, monkeypatch):
    monkeypatch.setattr("shardmill.io.reading._DROPPED_BYTES", 10)
    (folder / "in/a").write_bytes(bytes(1000))
    dropped = []
    monkeypatch.setattr("shardmill.io.reading.advise", lambda _, at, size, how: dropped.append((how[-8:], at, size)))
    file = InputFile(path=str(folder / "in/a"), size=1000)
    readers = OpenFiles()
    with readers.reader(file, drop_behind=True) as first, readers.reader(file, drop_behind=True) as second:
        for reader, at in ((first, 0), (second, 500), (first, 20), (second, 530), (first, 25)):
            reader.done_until(at)
    assert [each[1:] for each in dropped if each[0] == "DONTNEED"] == [(0, 20), (500, 30), (20, 5)]


def test_a_second_job_sees_what_is_there_now(folder):
    path = folder / "in/a.jsonl"
    made = []
    for seed in (1, 2):
        path.write_bytes(lines(200, seed))
        os.utime(path, ns=(10**18, 10**18))
        prepare(spec(folder), limits=limits(), overwrite=True)
        made.append((folder / "out/train.bin").read_bytes())
    assert made[0] != made[1]


def test_a_name_that_leads_to_another_kind_of_file_is_detected_again(folder):
    path = folder / "in/a.jsonl"
    path.write_bytes(lines(10))
    files = find_inputs([str(path)])
    for compress, kind in ((bytes, None), (zstd.compress, "zstd")):
        path.write_bytes(compress(lines(10)))
        with files.opened.reader(files[0]) as reader:
            content, found = detect.content_of(reader, "auto")
            assert found == "jsonl" and content.read(0, 5) == lines(10)[:5]
            assert reader.file.noted["compression"] == kind


def test_a_process_that_may_open_few_files_keeps_fewer_open(tmp_path):
    """20,000 small texts and a limit of 24 descriptors once ended with "too many open files"."""
    for number in range(40):
        (tmp_path / f"{number}.jsonl").write_bytes(lines(5, number))

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    command = [SHARDMILL, "prepare", str(tmp_path), "-o", str(tmp_path / "out"), "-q", "--workers", "2"]
    assert subprocess.run(command, preexec_fn=few).returncode == 0
