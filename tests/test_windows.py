"""Rows are a pure function of the sample's number: the same for any batch, rank, worker, process or resume."""

import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardmill
from feeding import firsts, milled, positions, texts_of
from shardmill import Source, Target, UsageError, Windows, convert, samples_of
from shardmill.errors import InputError
from shardmill.feed import mixture, source
from shardmill.feed.mixture import BLOCK
from shardmill.feed.order import key_of, permuted, scrambled


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**70))
def test_the_order_is_a_permutation(size, seed):
    found = permuted(np.arange(size), size, key_of(seed))
    assert sorted(found.tolist()) == list(range(size))


@given(size=st.integers(1, 1 << 50), numbers=st.lists(st.integers(0, (1 << 50) - 1), min_size=1, unique=True))
def test_the_order_of_very_many_rows_needs_no_memory_and_has_no_repeats(size, numbers):
    inside = np.unique(np.array(numbers) % size)
    found = permuted(inside, size, key_of(7))
    assert len(set(found.tolist())) == len(inside) and found.min() >= 0 and found.max() < size


def test_the_order_mixes():
    """Over many keys each row comes first about equally often; neighbours do not stay together; no row is preferred by another."""
    size, keys = 100, 4000
    found = np.array([permuted(np.arange(size), size, key_of(key)) for key in range(keys)])
    for column in (0, 1, 50, 99):
        counts = np.bincount(found[:, column], minlength=size)
        assert ((counts - keys / size) ** 2 / (keys / size)).sum() < 160, "chi-square with 99 degrees of freedom"
    apart = np.bincount((found[:, 1:] - found[:, :-1]).ravel() % size, minlength=size)[1:]
    expected = keys * (size - 1) / (size - 1)
    assert abs(apart / expected - 1).max() < 0.15
    assert 0.9 < (found == np.arange(size)).sum() / keys < 1.1, "one fixed point on average"


def test_each_epoch_has_every_window_once_in_another_order(tmp_path):
    rows = Windows(positions(tmp_path, 1001, shards=3), length=10, seed=3)
    epochs = [firsts(rows.batch(range(100 * epoch, 100 * epoch + 100))) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(0, 1000, 10)) for epoch in epochs) and len(rows) == 100
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != sorted(epochs[0])
    assert firsts(Windows(positions(tmp_path, 1001, shards=3), length=10, seed=4).batch(range(100))) != epochs[0]
    in_order = Windows(positions(tmp_path, 1001, shards=3), length=10, seed=None)
    assert firsts(in_order.batch(range(200))) == list(range(0, 1000, 10)) * 2


@given(
    tokens=st.integers(2, 400),
    length=st.integers(1, 40),
    shards=st.integers(1, 7),
    seed=st.none() | st.integers(0, 9),
    data=st.data(),
)
def test_rows_do_not_depend_on_the_batch_they_are_in(tmp_path_factory, tokens, length, shards, seed, data):
    """Rank-, worker-, batch- and resume-invariance all follow: a row depends on nothing but its number."""
    length = min(length, tokens - 1)
    rows = Windows(positions(tmp_path_factory.mktemp("data"), tokens, shards=shards), length=length, seed=seed)
    samples = data.draw(st.lists(st.integers(0, 3 * len(rows)), min_size=1, max_size=20))
    batch = rows.batch(samples)
    for i, sample in enumerate(samples):
        alone = rows.batch([sample])
        assert all((batch[name][i] == alone[name][0]).all() for name in batch)
    inputs = batch["input_ids"]
    assert (inputs == inputs[:, :1] + np.arange(length)).all() and (batch["labels"] == inputs + 1).all()
    assert (inputs[:, 0] % length == 0).all() and inputs.max() < tokens - 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("batch", [6, 12, 30])
def test_ranks_share_a_batch_and_a_resume_may_change_both(tmp_path, ranks, batch):
    rows = Windows(positions(tmp_path, 5001), length=10, seed=1)
    whole, seen, at = firsts(rows.batch(range(300))), [], 0
    for now, by in (
        (batch, ranks),
        (18, 9),
        (7, 7),
    ):  # stopped after three batches, each time in the middle of another's
        for _ in range(3):
            for rank in range(by):
                seen += firsts(rows.batch(samples_of(at, now, rank=rank, ranks=by)))
            at += now
        at = rows.resume(rows.state(at))
    assert seen == whole[: len(seen)]


def test_slices_and_lists_are_batches(tmp_path):
    rows = Windows(positions(tmp_path / "a", 1001), length=10, seed=3)
    for some, numbers in (
        (slice(2, 5), [2, 3, 4]),
        (slice(-2, None), [98, 99]),
        ([7, 1], [7, 1]),
        (np.array([4]), [4]),
    ):
        assert np.array_equal(rows[some]["input_ids"], rows.batch(numbers)["input_ids"])
    assert np.array_equal(rows[np.int64(3)]["labels"], rows[3]["labels"]) and rows[3]["labels"].shape == (10,)
    with pytest.raises(IndexError, match="name at least one"):
        rows[5:5]


def test_without_torch_it_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\nfrom shardmill import torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ModuleNotFoundError: shardmill.torch needs PyTorch" in done.stderr and "pip install torch" in done.stderr


def test_ranks_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="32 samples cannot be divided among 5 ranks; choose a multiple of 5"):
        samples_of(0, 32, rank=0, ranks=5)
    with pytest.raises(UsageError, match="rank 4 of 4"):
        samples_of(0, 32, rank=4, ranks=4)


def test_threads_and_processes_read_the_same_rows(tmp_path):
    rows = Windows(positions(tmp_path, 20_001, shards=5), length=20, seed=2)
    expected = firsts(rows.batch(range(200)))
    rows._rows[0].opened.files._most_open = 2  # so that files are closed while others read them
    found = {}

    def read(first):
        found[first] = [firsts(rows.batch(range(first, first + 50))) for _ in range(20)]

    threads = [threading.Thread(target=read, args=(first,)) for first in range(0, 200, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(some == expected[first : first + 50] for first, many in found.items() for some in many)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert firsts(pool.apply(rows.batch, (range(200),))) == expected
    assert firsts(pickle.loads(pickle.dumps(rows)).batch(range(200))) == expected


@pytest.mark.parametrize(
    "format", ["nanogpt", "shards", "build-nanogpt", "llmc", "modded-nanogpt", "megatron", "datatrove"]
)
def test_outputs_of_every_format_and_the_same_files_without_a_manifest_give_the_same_rows(tmp_path, format):
    out = milled(tmp_path, texts_of(random.Random(1), 60), index=True)
    options = {"shard_tokens": 2000} if format in ("shards", "build-nanogpt", "llmc", "modded-nanogpt") else {}
    convert(
        out,
        Target(output=tmp_path / "to", format=format, eot="after" if format != "modded-nanogpt" else None, **options),
    )
    expected = Windows(out, length=32).batch(range(100))["input_ids"]
    if format == "modded-nanogpt":  # its end-of-text tokens are before documents
        expected = Windows(tmp_path / "to", length=32).batch(range(100))["input_ids"]
    assert (Windows(tmp_path / "to", length=32).batch(range(100))["input_ids"] == expected).all()
    (tmp_path / "to/manifest.json").unlink()
    raw = format in ("nanogpt", "shards")
    plain = Source(path=tmp_path / "to", from_format=format, from_dtype="uint16" if raw else "auto")
    assert (Windows(plain, length=32).batch(range(100))["input_ids"] == expected).all()


def test_a_trillion_tokens_in_a_thousand_shards_give_their_first_row_at_once(tmp_path):
    for number in range(1000):
        with open(tmp_path / f"train-{number:05}.bin", "wb") as file:
            file.truncate(2 * 10**9)
    code = f"""
import time
import shardmill
from shardmill import Source, Windows
rows = Windows, shardmill.Spec
began = time.process_time()  # the machine may be busy
rows = Windows(Source(path={str(tmp_path)!r}, from_format="shards", from_dtype="uint16"), length=1024, seed=1)
row = rows[0]
print(time.process_time() - began, len(rows))
"""
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(shardmill.__file__))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, count = done.stdout.split()
    assert int(count) == (10**12 - 1) // 1024 and float(seconds) < 0.2, seconds


def corpora(folder, **counts):
    """Corpora whose tokens tell them apart: the n-th begins at n million."""
    return {
        name: positions(folder / name, count * 10 + 1, base=number * 1_000_000)
        for number, (name, count) in enumerate(counts.items())
    }


def owners(rows, samples):
    return [first // 1_000_000 for first in firsts(rows.batch(samples))]


def test_a_mixture_is_exact_in_every_block_and_each_corpus_has_its_own_epochs(tmp_path):
    rows = Windows(corpora(tmp_path, web=300, code=70, math=50), length=10, weights={"web": 7, "code": 2, "math": 1})
    found = firsts(rows.batch(range(2 * BLOCK)))
    for block in (found[:BLOCK], found[BLOCK:]):
        assert Counter(first // 1_000_000 for first in block) == {0: 7000, 1: 2000, 2: 1000}
    for number, count in enumerate((300, 70, 50)):
        drawn = [first % 1_000_000 for first in found if first // 1_000_000 == number]
        for epoch in range(len(drawn) // count):
            assert sorted(drawn[epoch * count : (epoch + 1) * count]) == list(range(0, count * 10, 10))
    few = Counter(owners(rows, range(500)))
    assert few[0] > few[1] > few[2] > 0, "shuffled within a block"


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    block=st.integers(0, 1000),
    seed=st.integers(0, 100),
)
def test_counts_of_any_weights_are_those_of_the_whole_block(weights, block, seed):
    names = [str(i) for i in range(len(weights))]
    (stage,) = mixture.stages_of(dict(zip(names, weights)), names, [1.0] * len(names), seed)
    assert sum(stage.counts) == BLOCK
    assert all(abs(count - BLOCK * w / sum(weights)) <= 1 for count, w in zip(stage.counts, weights))
    corpora, numbers = mixture.draw((stage,), seed, np.arange(block * BLOCK, (block + 1) * BLOCK))
    for corpus, count in enumerate(stage.counts):
        assert numbers[corpora == corpus].tolist() == list(range(block * count, (block + 1) * count))


def test_stages_go_on_where_the_last_one_stopped(tmp_path):
    named = corpora(tmp_path, web=50_000, code=50_000)
    stages = [(0, {"web": 0.9, "code": 0.1}), (12_345, {"web": 0.5, "code": 0.5}), (30_000, {"code": 1})]
    rows = Windows(named, length=10, seed=None, weights=stages)
    found = firsts(rows.batch(range(35_000)))
    for number in (0, 1):
        drawn = [first % 1_000_000 for first in found if first // 1_000_000 == number]
        assert drawn == list(range(0, 10 * len(drawn), 10)), "nothing is skipped or repeated"
    second = Counter(first // 1_000_000 for first in found[12_345:22_345])
    assert second == {0: 5000, 1: 5000} and {first // 1_000_000 for first in found[30_000:]} == {1}
    assert firsts(rows.batch([22_000, 12_344, 29_999])) == [found[22_000], found[12_344], found[29_999]]


def test_without_weights_corpora_count_by_their_size(tmp_path):
    rows = Windows(corpora(tmp_path, web=300, code=100), length=10)
    assert Counter(owners(rows, range(BLOCK))) == {0: 7500, 1: 2500}


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"web": -1, "code": 2}, "web has -1; a weight is a number from 0 on"),
        ({"web": float("nan")}, "a weight is a number"),
        ({"web": 0, "code": 0}, "they sum to 0"),
        ({"wob": 1}, "there is no corpus wob; there are web, code"),
        ({"web": 1, "code": 1e-6}, "less than 1 of 10,000"),
        ([(5, {"web": 1})], "the first begins at 0"),
        ([(0, {"web": 1}), (0, {"code": 1})], "each after the one before it"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, weights, why):
    with pytest.raises(UsageError, match=why):
        Windows(corpora(tmp_path, web=30, code=10), length=10, weights=weights)


def test_a_state_of_other_data_is_refused_with_what_differs(tmp_path):
    rows = Windows(positions(tmp_path / "a", 1001), length=10, seed=1)
    state = rows.state(640)
    assert state["sample"] == 640 and rows.resume(state) == 640
    copy = positions(tmp_path / "copy", 1001)
    assert Windows(copy, length=10, seed=1).resume(state) == 640, "a copy elsewhere is the same data"
    others = {
        "seed: was 1, is now 2": Windows(copy, length=10, seed=2),
        "length: was 10, is now 20": Windows(copy, length=20, seed=1),
        "tokens: was 1001, is now 1002": Windows(positions(tmp_path / "b", 1002), length=10, seed=1),
        "content: was ": Windows(positions(tmp_path / "c", 1001, base=1), length=10, seed=1),
        "corpora.more: was None": Windows({"": copy, "more": copy}, length=10, seed=1),
    }
    for why, other in others.items():
        with pytest.raises(UsageError, match=why):
            other.resume(state)
    for bad in ({}, {"sample": 1, "fingerprint": 3}, None):
        with pytest.raises(UsageError, match="not a state"):
            rows.resume(bad)


def test_a_stage_that_has_not_begun_may_change(tmp_path):
    named = corpora(tmp_path, web=300, code=100)
    before = Windows(named, length=10, weights={"web": 1, "code": 1})
    later = Windows(named, length=10, weights=[(0, {"web": 1, "code": 1}), (600, {"code": 1})])
    assert later.resume(before.state(600)) == 600
    with pytest.raises(UsageError, match=r"stages.600: was None"):
        later.resume(before.state(601))


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InputError, match=r"has 10 tokens, and a row takes 11 \(length \+ 1\)"):
        Windows(positions(tmp_path / "short", 10), length=10)
    with pytest.raises(UsageError, match="at least one token"):
        Windows(positions(tmp_path / "short", 10), length=0)
    with pytest.raises(UsageError, match="no corpus"):
        Windows({}, length=10)
    with pytest.raises(InputError, match="has no split val"):
        Windows(Source(path=tmp_path / "short", split="val", from_format="shards", from_dtype="uint32"), length=2)
    with pytest.raises(UsageError, match="from a local disk"):
        Windows("s3://bucket/data", length=10)
    rows = Windows(positions(tmp_path / "short", 10), length=3)
    for bad in (3, -4):
        with pytest.raises(IndexError):
            rows[bad]
    for bad in ([], [-1]):
        with pytest.raises(IndexError):
            rows.batch(bad)
    assert (rows[-1]["input_ids"] == rows[2]["input_ids"]).all() and len(list(rows)) == 3


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    rows = Windows(positions(tmp_path, 101), length=10, seed=None, vocabulary_size=96)
    assert rows.batch(range(9))["input_ids"].max() == 89
    with pytest.raises(InputError, match="has the id 100 in sample 9, and the model's vocabulary ends at 95"):
        rows.batch(range(10))
    few = Windows(positions(tmp_path, 101), length=10, seed=None, vocabulary_size=20)
    with pytest.raises(InputError, match="has the id 20 in sample 1"):  # only the label of its last token
        few.batch([1, 0])


def test_files_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_CHECK_SECONDS", 0)
    path = tmp_path / "train-00000.bin"
    made = positions(tmp_path, 1001)
    data = path.read_bytes()
    for change in (lambda: path.write_bytes(data[:-400]), lambda: path.write_bytes(data[::-1]), path.unlink):
        path.write_bytes(data)
        rows = Windows(made, length=10, seed=None)
        if change != path.unlink:  # an open file outlives its name, with the same content
            rows.batch(range(4))
        change()
        with pytest.raises(InputError, match=r"train-00000.bin: .* since it was opened"):
            rows.batch(range(100))


def test_a_file_cut_short_between_two_checks_is_an_error_not_a_crash(tmp_path):
    path = tmp_path / "train-00000.bin"
    rows = Windows(positions(tmp_path, 1001), length=10, seed=None)
    assert firsts(rows.batch(range(0, 99, 7))) == list(range(0, 990, 70))
    os.truncate(path, 2000)
    with pytest.raises(InputError, match="ends too early since it was opened"):
        rows.batch(range(100))


def test_anonymous_memory_is_flat(tmp_path):
    rows = Windows(positions(tmp_path, 200_001, shards=4), length=64, seed=1)

    def anonymous():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    for first in range(0, 2000, 8):
        rows.batch(range(first, first + 8))
    before = anonymous()
    for first in range(2000, 100_000, 8):
        rows.batch(range(first, first + 8))
    assert anonymous() - before < 512, "kB"


def test_a_batch_leaves_nothing_for_the_garbage_collector(tmp_path):
    """The pointers of numpy's array.ctypes did: cycles, which grew to megabytes before they were collected."""
    rows = Windows(positions(tmp_path, 20_001, shards=4), length=64, seed=1)
    rows.batch(range(8))
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for first in range(0, 8000, 8):
            rows.batch(range(first, first + 8))
        assert len(gc.get_objects()) - before < 100
    finally:
        gc.enable()


def test_scrambled_is_splitmix():
    assert scrambled(np.array([0]), np.uint64(1)).tolist() == [0xE220A8397B1DCDAF]


def test_corpora_of_different_tokenizers_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("the mill turns, and what it grinds is fine\n" * 500)
    for name, tokenizer in (("one", "gpt2"), ("other", "cl100k_base")):
        shardmill.prepare(
            shardmill.Spec(inputs=[str(tmp_path / "a.txt")], output=str(tmp_path / name), tokenizer=tokenizer)
        )
    with pytest.raises(UsageError, match="different tokenizers"):
        Windows({"one": tmp_path / "one", "other": tmp_path / "other"}, length=8)
