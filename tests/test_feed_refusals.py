"""What cannot be fed to a trainer is refused, in these words."""

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from feeding import milled, positions, texts_of
from shardmill import InputError, Source, UsageError, Windows, pack, samples_of
from shardmill.feed import source


def refused(kind, message, action):
    with pytest.raises(kind) as found:
        action()
    assert str(found.value) == message


def test_a_corpus_shorter_than_a_row(tmp_path):
    refused(
        InputError,
        f"{tmp_path} (train): has 10 tokens, and a row takes 11 (length + 1); choose a smaller length, or a larger corpus",
        lambda: Windows(positions(tmp_path, 10), length=10),
    )


def test_ranks_that_do_not_divide_a_batch():
    refused(
        UsageError,
        "a batch of 32 samples cannot be divided among 5 ranks; choose a multiple of 5",
        lambda: samples_of(0, 32, rank=0, ranks=5),
    )


def test_ids_that_the_model_does_not_have(tmp_path):
    rows = Windows(positions(tmp_path, 101), length=10, seed=None, vocabulary_size=96)
    refused(
        InputError,
        f"{tmp_path} (train): has the id 100 in sample 9, and the model's vocabulary ends at 95; the tokens come from another tokenizer, or vocabulary_size is too small",
        lambda: rows.batch(range(10)),
    )


def test_weights_that_are_negative_or_sum_to_nothing(tmp_path):
    corpora = {name: positions(tmp_path / name, 101) for name in ("web", "code")}
    for weights, why in (
        ({"web": -1, "code": 2}, "weights: web has -1; a weight is a number from 0 on"),
        ({"web": 0, "code": 0}, "weights: they sum to 0, so there is nothing to draw from"),
    ):
        refused(UsageError, why, lambda: Windows(corpora, length=10, weights=weights))  # noqa: B023


@pytest.fixture
def out(tmp_path):
    return Path(milled(tmp_path, texts_of(random.Random(2), 80), index=True))


def test_a_damaged_index(out):
    path = out / "train.ends"
    ends = np.fromfile(path, "<u8")
    damaged = {
        f"{path}: does not end with the {ends[-1]:,} tokens of {out} (train); the index is damaged, or belongs to other tokens. Restore it, or prepare the output again": ends[:-1],
        f"{path}: the ends of documents are not in ascending order; the index is damaged. Restore it, or prepare the output again": np.append(np.random.default_rng(1).permutation(ends[:-1]), ends[-1]),
    }  # fmt: skip
    for message, data in damaged.items():
        data.tofile(path)
        refused(InputError, message, lambda: Windows(out, length=32, documents=True, seed=None).batch(range(60)))
    path.write_bytes(ends.tobytes()[:-3])
    message = f"{path}: has {8 * len(ends) - 3:,} bytes, not a multiple of 8; it was truncated"
    refused(InputError, message, lambda: Windows(out, length=32, documents=True))


def test_a_plan_of_another_corpus(out, tmp_path):
    pack(out, length=64, output=tmp_path / "a.plan")
    other = milled(tmp_path / "other", texts_of(random.Random(6), 100), index=True)
    with pytest.raises(UsageError) as found:
        Windows(Source(path=other, plan=tmp_path / "a.plan"), length=64)
    what = f"{tmp_path}/a.plan: is a plan for other tokens than those of {other} (train): "
    pattern = (
        re.escape(what)
        + r"content: was '\w{16}', is now '\w{16}'; tokens: was \d+, is now \d+. Run shardmill pack again"
    )
    assert re.fullmatch(pattern, str(found.value)), found.value


@pytest.mark.parametrize("name", ["train.bin", "train.ends", "train-64.plan"])
@pytest.mark.parametrize("how", ["shorter", "other content", "gone"])
def test_files_that_change_while_they_are_read(out, monkeypatch, name, how):
    monkeypatch.setattr(source, "_CHECK_SECONDS", 0)
    pack(out, length=64)
    plan = out / "train-64.plan" if name.endswith("plan") else None
    rows = Windows(Source(path=out, plan=plan), length=64, documents=True)
    path, first = out / name, rows.batch(range(8))
    if how == "gone":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-8] if how == "shorter" else data[: len(data) // 2] + data[: -(len(data) // 2)])
        os.utime(path, ns=(0, 0))
    if name == "train.bin" and how == "gone":  # an open file outlives its name
        assert (rows.batch(range(8))["input_ids"] == first["input_ids"]).all()
        return
    message = (
        "was changed since it was opened, so its rows are no longer those of this run; restore it, or open it again"
        if name == "train.bin"
        else "was changed or removed since it was opened; restore it, and start again"
    )
    refused(InputError, f"{path}: {message}", lambda: rows.batch(range(8)))
