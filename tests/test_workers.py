"""Workers hand on their Blocks in order, one at a time, whatever happens to some of them."""

import errno
import os
import random
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from given_texts import load_once
from shardmill.documents import ranges
from shardmill.documents.pieces import BEGINNING
from shardmill.errors import InputError, TemporaryError
from shardmill.job import workers
from shardmill.job.ahead import Ahead
from shardmill.job.block import Milled, Run
from shardmill.job.join import Join
from shardmill.job.mill import prepare
from shardmill.job.plan import Block
from shardmill.record.manifest import Counts
from shardmill.spec import Limits, Spec
from shardmill.system import machine
from shardmill.tokens.bytelevel import ByteLevel
from shardmill.tokens.layout import Layout, Turn
from shardmill.tokens.model import AddedToken
from shardmill.tokens.strings import Strings


@pytest.fixture
def mill(monkeypatch):
    """mill_blocks over numbered Blocks; what is done to each is given."""

    def run(
        blocks_in_all, do=lambda _: None, *, write=lambda _: None, count_of_workers=3, fail_reading_at=None, in_each=7
    ):
        written, at_work, most = [], [0], [0]

        def blocks(_files, _rules, stretch, **__):
            for index in range(stretch.first, min(blocks_in_all, stretch.first + in_each)):
                if index == fail_reading_at:
                    raise InputError("cannot be read")
                yield Block(index=index, parts=(), input_bytes=1, after=BEGINNING)

        def stretches(*_, **__):
            for number, first in enumerate(range(0, blocks_in_all, in_each)):
                yield SimpleNamespace(number=number, first=first)

        def mill_block(_job, _splitter, _encoder, block):
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
            try:
                do(block.index)
            finally:
                at_work[0] -= 1
            return Milled(index=block.index, runs=[], counts=Counts(), checked_bytes=0, after=block.after)

        def commit(milled):
            write(milled.index)
            written.append(milled.index)
            return True, lambda: None

        monkeypatch.setattr(workers.plan, "stretches", stretches)
        monkeypatch.setattr(workers.plan, "blocks", blocks)
        monkeypatch.setattr(workers, "mill_block", mill_block)
        monkeypatch.setattr(workers, "Encoder", lambda *_: None)
        monkeypatch.setattr(workers, "_LEAVE_SECONDS", 0.5)
        count = count_of_workers
        budget = SimpleNamespace(takers=count, encoders=count, readers=count, ahead=1000, on_disk=1000)
        job = SimpleNamespace(
            budget=budget, files=(), rules=SimpleNamespace(spool=None), big=False, engines=SimpleNamespace(ours=None)
        )
        try:
            workers.mill_blocks(job, None, Join(BEGINNING), commit, lambda: None)
        except BaseException as e:
            return written, e, most[0]
        return written, None, most[0]

    return run


def fail_at(place, error):
    def do(index):
        time.sleep(random.random() / 500)
        if index == place:
            raise error

    return do


def test_results_are_written_in_order(mill):
    written, error, most = mill(200, lambda _: time.sleep(random.random() / 500))
    assert written == list(range(200)) and error is None and most > 1


def test_the_first_error_of_the_text_is_told_and_all_before_it_is_written(mill):
    def do(index):
        if index == 20:
            time.sleep(0.05)
        if index in (20, 21, 22):
            raise InputError(f"block {index}")

    for _ in range(10):
        written, error, _ = mill(100, do)
        assert str(error) == "block 20" and written == list(range(20))


def test_an_error_of_reading_comes_after_what_was_read_before_it(mill):
    for _ in range(10):
        written, error, _ = mill(50, fail_at(None, None), fail_reading_at=17)
        assert str(error) == "cannot be read" and written == list(range(17))


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), KeyboardInterrupt()])
def test_whatever_a_worker_raises_reaches_the_caller(mill, error):
    written, raised, _ = mill(50, fail_at(10, error))
    assert raised is error and written == list(range(len(written))) and len(written) <= 10


def test_an_error_of_writing_stops_the_line(mill):
    written, error, _ = mill(50, write=fail_at(9, TemporaryError("disk full")))
    assert str(error) == "disk full" and written == list(range(9))


def test_a_thread_that_cannot_be_started_ends_the_job_with_what_to_do(mill, monkeypatch):
    start = threading.Thread.start

    def limited(thread):
        if thread.name.endswith("-2"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    written, error, _ = mill(50, lambda _: time.sleep(0.001))
    assert isinstance(error, TemporaryError) and "only 2 of 3 threads can be started" in str(error)
    assert written == list(range(len(written))) and threading.active_count() < 10


def test_a_worker_that_does_not_end_is_not_waited_for(mill):
    release = threading.Event()

    def do(index):
        if index == 3:
            raise InputError("stop")
        if index == 4:
            release.wait(20)

    started = time.monotonic()
    _, error, _ = mill(10, do)
    release.set()
    assert str(error) == "stop" and time.monotonic() - started < 15


def test_under_pressure_one_block_at_a_time_is_milled(mill, monkeypatch):
    monkeypatch.setattr(machine, "under_pressure", lambda: True)
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.005)
    at_once = []
    working = [0]

    def do(_index):
        working[0] += 1
        time.sleep(0.01)
        at_once.append(working[0])
        working[0] -= 1

    written, error, _ = mill(60, do)
    assert error is None and written == list(range(60)) and set(at_once[20:]) == {1}


def milled(**more):
    """1,000 bytes of tokens."""
    run = Run(
        val=False,
        tokens=np.zeros(500, np.uint16),
        ends=np.zeros(0, np.int64),
        places=np.zeros((0, 2), np.uint64),
        text_bytes=1,
    )
    return Milled(index=0, runs=[run], counts=Counts(), checked_bytes=0, after=BEGINNING, **more)


@pytest.mark.parametrize("fails", ["pwrite", "open"])
def test_what_finds_no_room_on_the_disk_waits_in_memory(tmp_path, monkeypatch, fails):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    ahead = Ahead(str(tmp_path), 1500, 10_000)
    kept = [ahead.put(1, milled()), ahead.put(1, milled())]
    assert not isinstance(kept[1], Milled)
    if fails == "pwrite":
        monkeypatch.setattr("shardmill.job.ahead.os.pwrite", full)
    else:
        monkeypatch.setattr("shardmill.job.ahead.tempfile.TemporaryFile", full)
    stretch = 1 if fails == "pwrite" else 2
    kept.append(ahead.put(stretch, milled()))
    assert isinstance(kept[2], Milled) and ahead.full
    assert [ahead.take(each).nbytes for each in kept] == [1000] * 3 and not ahead.full
    assert isinstance(ahead.put(3, milled()), Milled), "the disk is not asked again"
    ahead.close()


@pytest.mark.parametrize("most", [1 << 40, 40_001])
def test_what_waited_on_disk_is_what_was_put_there(tmp_path, monkeypatch, most):
    """Also where the system writes and reads less at a time than it is asked for."""
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr("shardmill.job.ahead.os.pwrite", lambda fd, data, at: pwrite(fd, data[:most], at))
    monkeypatch.setattr("shardmill.job.ahead.os.preadv", lambda fd, into, at: preadv(fd, [into[0][:most]], at))
    rng, runs = np.random.default_rng(0), []
    for size in (0, 1, 500, 40_000, 300_000):  # in the pickle, and beside it
        both = rng.integers(0, 1 << 16, 2 * size, np.uint16)
        ends, places = rng.integers(0, 1 << 40, size // 3), rng.integers(0, 1 << 40, (size // 3, 2), np.uint64)
        runs.append(Run(val=False, tokens=both[:size], ends=ends, places=None, text_bytes=size))
        runs.append(Run(val=None, tokens=both[size:], ends=ends, places=places, text_bytes=1))
    whole = replace(milled(has_text=True), runs=runs)
    whole.if_no_text = replace(milled(), runs=runs[::-1])
    ahead = Ahead(str(tmp_path), 0, 1 << 40)
    stored = [ahead.put(1, each) for each in (whole, milled(), whole)]
    assert not any(isinstance(each, Milled) for each in stored)
    for each, wanted in zip(stored[::-1], (whole, milled(), whole), strict=True):
        taken = ahead.take(each)
        assert shown(taken) == shown(wanted) and taken.has_text == wanted.has_text
        assert (taken.if_no_text is None) == (wanted.if_no_text is None)
        assert taken.if_no_text is None or shown(taken.if_no_text) == shown(wanted.if_no_text)
    ahead.close()


def shown(milled):
    arrays = [(run.tokens, run.ends, run.places) for run in milled.runs]
    return [
        (run.val, run.text_bytes, [None if each is None else (each.dtype, each.tolist()) for each in of_run])
        for run, of_run in zip(milled.runs, arrays, strict=True)
    ]


def test_a_temporary_file_that_was_truncated_is_told(tmp_path):
    ahead = Ahead(str(tmp_path), 0, 1 << 40)
    stored = ahead.put(1, milled())
    ahead._files[1].truncate(10)
    with pytest.raises(TemporaryError, match="is shorter than what was written to it; check the disk"):
        ahead.take(stored)
    ahead.close()


def test_without_the_disk_there_is_room_for_half_of_the_memory_and_what_is_at_work(tmp_path):
    ahead = Ahead(str(tmp_path), 4000, 0)
    kept = []
    while not ahead.full:
        kept.append(ahead.put(1, milled()))
    assert len(kept) == 3 and all(isinstance(each, Milled) for each in kept)


def test_what_waits_is_bounded_in_memory_and_on_disk(tmp_path):
    ahead = Ahead(str(tmp_path), 1500, 2000)
    first, second = ahead.put(1, milled()), ahead.put(1, milled())
    assert isinstance(first, Milled) and not isinstance(second, Milled) and not ahead.full
    ahead.put(2, milled())
    assert ahead.full, "the disk is"
    assert ahead.take(second).nbytes == 1000 and not list(tmp_path.iterdir())
    ahead.done(1)
    ahead.done(2)
    assert not ahead.full
    ahead.close()


def test_where_a_core_is_idle_one_worker_reads_and_writes_while_it_encodes(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("".join(f"line {number} of some text\n" for number in range(600_000)))
    encode, mill, turns, taken, made = ByteLevel.encode_and_lay_out, ranges.mill, [], [], {}

    def watched(engine, texts, begins, layout):
        taken.append((threading.current_thread().name, layout.turn))
        return encode(engine, texts, begins, layout)

    def watched_in_ranges(part, at, recipe, keep):
        taken.append((threading.current_thread().name, recipe.turn))
        return mill(part, at, recipe, keep)

    monkeypatch.setattr(ByteLevel, "encode_and_lay_out", watched)
    monkeypatch.setattr(ranges, "mill", watched_in_ranges)
    monkeypatch.setattr(workers, "Turn", lambda count: turns.append(count) or Turn(count))
    for cores in (1, 4):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        taken.clear()
        spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / f"with-{cores}")
        prepare(spec, limits=Limits(workers=1, block_bytes=1 << 20))
        made[cores] = [(tmp_path / f"with-{cores}" / name).read_bytes() for name in ("train.bin", "val.bin")]
        threads, turn = map(set, zip(*taken, strict=True))
        assert len(threads) == (1 if cores == 1 else 2) and len(turn) == 1 and (turn == {None}) == (cores == 1)
    assert made[1] == made[4] and turns == [1]


@pytest.mark.parametrize("text", [b"words and   spaces " * 9, b"words"])
def test_a_block_waits_for_its_turn(text):
    """Also where added tokens are in it: there, runs of spaces are."""
    spaces = [AddedToken(id=300 + n, content=" " * n, special=False, normalized=True) for n in (2, 3)]
    engine = ByteLevel(replace(load_once("r50k_base").model, added=tuple(spaces)))
    turn, found, texts = Turn(1), [], Strings.of([text])
    how = {"dtype": np.dtype("<u4"), "eot": None, "val": np.zeros(1, np.int8), "text_bytes": texts.sizes}
    given = texts, np.ones(1, np.bool_), Layout(**how, turn=turn)
    thread = threading.Thread(target=lambda: found.append(engine.encode_and_lay_out(*given)))
    with turn:
        thread.start()
        thread.join(0.3)
        assert thread.is_alive() and not found
    thread.join(20)
    assert np.array_equal(found[0][1][0], engine.encode([text])[0])
