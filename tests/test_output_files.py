"""What has its place in a file is written by any thread at any time; a checkpoint waits for it, or is not made."""

import os
import random
import threading
import time

import pytest

import samples
from shardmill import Limits, Spec, prepare
from shardmill.errors import TemporaryError
from shardmill.formats.output_files import OutputFiles
from shardmill.io import storage


def place(files, name, data):
    with files.placing() as placed:
        files.append(name, memoryview(data))
    return placed


def test_a_sync_waits_for_everything_that_has_its_place(tmp_path):
    files = OutputFiles(tmp_path, {}, drop_behind=False)
    first, second = place(files, "a", b"one"), place(files, "a", b"two")
    second.write()
    sync = threading.Thread(target=files.sync, daemon=True)
    sync.start()
    sync.join(0.2)
    assert sync.is_alive()
    third = place(files, "a", b"three")  # not before, so nobody waits for it
    first.write()
    sync.join(10)
    assert not sync.is_alive()
    assert (tmp_path / "a.partial").read_bytes() == b"onetwo"
    third.write()
    files.sync()
    assert (tmp_path / "a.partial").read_bytes() == b"onetwothree" and files.states()["a"].bytes == 11


def test_what_could_not_be_written_is_in_no_checkpoint(tmp_path, monkeypatch):
    files = OutputFiles(tmp_path, {}, drop_behind=False)
    first, second = place(files, "a", b"one"), place(files, "a", b"two")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "pwrite", full)
        with pytest.raises(TemporaryError, match="no space left"):
            first.write()
    second.write()
    assert files.failed
    with pytest.raises(TemporaryError, match="no space left"):
        files.sync()


def test_what_was_not_placed_to_its_end_is_waited_for_by_nobody(tmp_path):
    files = OutputFiles(tmp_path, {}, drop_behind=False)
    with pytest.raises(ZeroDivisionError), files.placing():
        files.append("a", memoryview(b"one"))
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        files.sync()


def test_many_files_that_are_full_at_once_are_closed(tmp_path):
    files = OutputFiles(tmp_path, {}, drop_behind=False)

    def work():
        with files.placing() as placed:
            for number in range(200):
                files.append(f"{number}", memoryview(b"x"))
                files.full(f"{number}")
        placed.write()

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(30)
    assert not worker.is_alive()
    if before:
        assert len(os.listdir("/proc/self/fd")) < before + 100
    files.sync()
    assert all((tmp_path / f"{number}.partial").read_bytes() == b"x" for number in range(200))


@pytest.fixture
def corpus(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(samples.ALL * 3 + str(number))
    return sorted(tmp_path.glob("*.txt"))


FORMATS = [
    {"format": "nanogpt"},
    {"format": "shards", "shard_tokens": 500, "index": True},
    {"format": "megatron", "val_fraction": 0.2},
    {"format": "mds", "shard_tokens": 3000, "sample_tokens": 100},
]


def made(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.json"}


@pytest.mark.parametrize("choices", FORMATS, ids=lambda each: each["format"])
def test_writes_that_end_in_any_order_give_the_same_bytes(tmp_path, corpus, monkeypatch, choices):
    limits = {"engine": "native", "block_bytes": 2000, "checkpoint_seconds": 0.01}
    prepare(Spec(inputs=corpus, output=tmp_path / "one", **choices), limits=Limits(workers=1, **limits))
    write, chance = os.pwrite, random.Random(5)

    def slow(*args):
        time.sleep(chance.random() / 200)
        return write(*args)

    monkeypatch.setattr(storage.os, "pwrite", slow)
    prepare(Spec(inputs=corpus, output=tmp_path / "many", **choices), limits=Limits(workers=7, **limits))
    assert made(tmp_path / "many") == made(tmp_path / "one")


@pytest.mark.parametrize("choices", FORMATS, ids=lambda each: each["format"])
def test_a_write_that_fails_beside_others_costs_no_byte(tmp_path, corpus, monkeypatch, choices):
    limits = {"engine": "native", "block_bytes": 2000, "checkpoint_seconds": 0.0}
    prepare(Spec(inputs=corpus, output=tmp_path / "one", **choices), limits=Limits(workers=1, **limits))
    many = Spec(inputs=corpus, output=tmp_path / "many", **choices)
    write, chance = os.pwrite, random.Random(6)
    for most in (3, 40, 90):
        left = [most]

        def faulty(*args, left=left):
            time.sleep(chance.random() / 500)
            left[0] -= 1
            if left[0] == 0:
                raise OSError(28, "No space left on device")
            return write(*args)

        with monkeypatch.context() as patch:
            patch.setattr(storage.os, "pwrite", faulty)
            with pytest.raises(TemporaryError, match="no space left"):
                prepare(many, limits=Limits(workers=7, **limits))
    prepare(many, limits=Limits(workers=2, **limits))
    assert made(tmp_path / "many") == made(tmp_path / "one")
