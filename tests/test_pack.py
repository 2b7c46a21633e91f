"""Packing against an oracle that places one document at a time, and plans read as rows."""

import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardmill
from command import run
from feeding import milled, positions, texts_of
from shardmill import Documents, InputError, Source, UsageError, Windows, pack
from shardmill.feed import mixture
from shardmill.feed import pack as packing
from shardmill.feed.plan import GOES_ON, HEADER_BYTES, SPAN


def best_fit_slowly(lengths, capacity):
    """Best-fit decreasing, one item at a time: how full each row is."""
    rooms = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        room = min(fitting) if fitting else capacity
        if fitting:
            rooms.remove(room)
        rooms.append(room - length)
    return sorted(capacity - room for room in rooms)


@given(data=st.data(), capacity=st.integers(1, 60))
def test_packing_in_bulk_is_best_fit_one_by_one(data, capacity):
    lengths = np.array(data.draw(st.lists(st.integers(1, capacity), max_size=200)), np.int64)
    histogram = np.bincount(lengths, minlength=capacity + 1)
    rows = packing._rows_of(lengths, histogram, capacity)
    used = np.bincount(rows, lengths).astype(int).tolist() if len(rows) else []
    expected = best_fit_slowly(lengths.tolist(), capacity)
    assert sorted(used) == expected
    assert sum(step.rows for step in packing.best_fit(histogram, capacity) if step.new) == len(expected)


@given(st.lists(st.integers(0, (1 << 40) - 1) | st.integers(0, 70_000)))
def test_sorting_by_16_bits_is_stable(values):
    values = np.array(values, np.int64)
    assert packing._sorted_stably(values).tolist() == np.argsort(values, kind="stable").tolist()


def read_plan(path):
    """A plan by its description alone: the spans of each row."""
    data = Path(path).read_bytes()
    made = json.loads(data[:HEADER_BYTES].rstrip(b"\0"))["plan"]
    spans = np.frombuffer(data, SPAN, made["spans"], HEADER_BYTES)
    ends = np.frombuffer(data, "<u8", made["rows"], HEADER_BYTES + 12 * made["spans"]).tolist()
    found = [(int(s["start"]), int(s["length"]) & (GOES_ON - 1), bool(s["length"] & GOES_ON)) for s in spans]
    return made, [found[a:b] for a, b in itertools.pairwise([0, *ends])]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents of 1 to about 300 tokens."""
    return Path(milled(tmp_path_factory.mktemp("pack"), texts_of(random.Random(4), 300, 300), index=True))


@pytest.mark.parametrize("long", ["fragment", "crop", "drop"])
@pytest.mark.parametrize("window", [1 << 20, 70])
def test_a_plan_has_every_token_once_unless_it_says_that_it_is_lost(corpus, tmp_path, long, window):
    """K1, K2"""
    length = 128
    made = pack(corpus, length=length, long=long, window=window, output=tmp_path / "a.plan")
    header, rows = read_plan(tmp_path / "a.plan")
    sizes = [len(document) for document in shardmill.open(corpus)["train"].documents()]
    starts = [0, *itertools.accumulate(sizes)]
    expected = []
    for start, size in zip(starts, sizes):
        pieces = [(start + at, min(length, size - at), at + length < size) for at in range(0, size, length)]
        expected += {"fragment": pieces, "crop": pieces[:1], "drop": pieces if size <= length else []}[long]
    assert sorted(itertools.chain(*rows)) == expected
    assert all(sum(size for _, size, _ in row) <= length for row in rows)
    assert made.rows == len(rows) == header["rows"] and made.documents == len(sizes)
    assert made.lost == sum(sizes) - sum(size for _, size, _ in expected)
    assert made.cut == sum(size > length for size in sizes) and (long == "fragment") == (made.lost == 0)
    assert made.padded == len(rows) * length - sum(size for _, size, _ in expected)
    assert made.rows_at_once == len(best_fit_slowly([size for _, size, _ in expected], length)) <= made.rows
    assert window == 70 or made.rows == made.rows_at_once


def test_the_same_plan_each_time_and_rows_in_another_order_for_another_seed(corpus, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pack(corpus, length=64, seed=seed, output=tmp_path / f"{name}.plan")
    a, b, c = ((tmp_path / f"{name}.plan").read_bytes() for name in "abc")
    assert a == b != c
    (_, one), (_, other) = read_plan(tmp_path / "a.plan"), read_plan(tmp_path / "c.plan")
    assert one != other and sorted(one) == sorted(other)
    assert [path.name for path in tmp_path.iterdir() if "rows" in path.name or "partial" in path.name] == []


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("long", ["fragment", "crop", "drop"])
def test_windows_read_plans(tmp_path, side, long):
    out = Path(milled(tmp_path, texts_of(random.Random(5), 120, 200), eot=side, index=True))
    pack(out, length=96, long=long)
    _, plan = read_plan(out / "train-96.plan")
    split = shardmill.open(out)["train"]
    rows = Windows(Source(path=out, plan=out / "train-96.plan"), length=96, documents=True, seed=None)
    assert len(rows) == len(plan)
    batch = rows.batch(range(len(rows)))
    for i, spans in enumerate(plan):
        tokens, labels, ids, places = [], [], [], []
        for number, (start, size, goes_on) in enumerate(spans):
            tokens += split[start : start + size].tolist()
            after = split[start + size : start + size + 1].tolist()
            keep = goes_on or after == [split.eot_id]
            labels += [*split[start + 1 : start + size].tolist(), after[0] if keep and after else -100]
            ids += [number] * size
            places += range(size)
        rest = 96 - len(tokens)
        assert batch["input_ids"][i].tolist() == tokens + [split.eot_id] * rest
        assert batch["labels"][i].tolist() == labels + [-100] * rest
        assert batch["document_ids"][i].tolist() == ids + [len(spans)] * rest
        assert batch["position_ids"][i].tolist() == places + list(range(rest))
        alone = rows[i]
        assert all((alone[name] == batch[name][i]).all() for name in batch if name != "cu_seqlens")
    assert rows.resume(rows.state(7)) == 7
    with pytest.raises(UsageError, match=r"plan: was \{"):
        Windows(out, length=96, seed=None).resume(rows.state(7))


def test_padding_counts_in_a_mixture_by_tokens(tmp_path):
    """Of a plan whose rows are a third padding, half again as many are drawn."""
    full = milled(tmp_path / "full", texts_of(random.Random(5), 50), index=True)
    loose = Path(milled(tmp_path / "loose", ["the mill turns text " * 12 + "x"] * 60, index=True))
    made = pack(loose, length=72)
    density = 1 - made.padded / (made.rows * 72)
    assert density < 0.75
    rows = Windows(
        {"a": full, "b": Source(path=loose, plan=loose / "train-72.plan")}, length=72, weights={"a": 1, "b": 1}
    )
    a, b = rows._stages[0].counts
    assert b * density == pytest.approx(a, rel=0.001)


def test_where_in_a_plan(tmp_path):
    out = Path(milled(tmp_path, [f"{i} " + "word " * (i % 60) for i in range(100)], index=True, provenance=True))
    pack(out, length=48)
    rows = Windows(Source(path=out, plan=out / "train-48.plan"), length=48)
    corpus = shardmill.open(out)
    for sample in range(0, len(rows), 5):
        row = rows[sample]["input_ids"]
        for origin in rows.where(sample):
            document, inside = corpus["train"].document(origin.document), row[origin.start : origin.stop].tolist()
            assert corpus.decode(document).startswith(f"{origin.position} ")
            assert any(document[i : i + len(inside)].tolist() == inside for i in range(len(document)))


def test_a_plan_of_another_corpus_or_length_and_a_damaged_one_are_refused(corpus, tmp_path):
    path = tmp_path / "a.plan"
    pack(corpus, length=64, output=path)
    other = milled(tmp_path, texts_of(random.Random(6), 100), index=True)
    with pytest.raises(UsageError, match=r"is a plan for other tokens than those of .*tokens: was"):
        Windows(Source(path=other, plan=path), length=64)
    with pytest.raises(InputError, match="its rows have 64 tokens, not 32"):
        Windows(Source(path=corpus, plan=path), length=32)
    whole = path.read_bytes()
    spans = json.loads(whole[:HEADER_BYTES].rstrip(b"\0"))["plan"]["spans"]
    changes = {
        "not a plan": b"x" + whole[1:],
        "not a plan that": whole[:200],
        "it was truncated": whole[:5000],
        "size|truncated": whole[:-8],
        "damaged": whole[:HEADER_BYTES] + b"\xff" * 12 * spans + whole[HEADER_BYTES + 12 * spans :],
        "impossible rows": whole[: HEADER_BYTES + 12 * spans] + b"\0" * (len(whole) - HEADER_BYTES - 12 * spans),
    }
    for why, data in changes.items():
        path.write_bytes(data)
        with pytest.raises(InputError, match=why):
            Windows(Source(path=corpus, plan=path), length=64).batch(range(8))
    path.write_bytes(whole)
    rows = Windows(Source(path=corpus, plan=path), length=64)
    path.write_bytes(whole[:-100])
    with pytest.raises(InputError, match="was changed or removed"):
        rows.batch(range(8))


def test_what_cannot_be_packed_is_refused(corpus, tmp_path):
    with pytest.raises(UsageError, match="document boundaries are unknown"):
        pack(positions(tmp_path / "raw", 100), length=10)
    with pytest.raises(UsageError, match="must be at least 1"):
        pack(corpus, length=0)
    with pytest.raises(UsageError, match="no document fits into a row of 1 token"):
        pack(corpus, length=1, long="drop", output=tmp_path / "x.plan")
    with pytest.raises(UsageError, match="could be mistaken for a token file"):
        pack(corpus, length=10, output=tmp_path / "train.bin")
    assert not list(tmp_path.glob("x.plan*"))


def test_the_command_says_what_is_lost_padded_and_cut(corpus, tmp_path):
    options = ["--strategy", "best-fit", "--long", "crop", "-o", "c.plan", "--json"]
    done = run("pack", corpus, "--length", "128", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["lost"] > 0 and made["rows"] and f"lost    {made['lost']:,} tokens" in done.stderr
    assert done.stderr.splitlines() == [
        f"300 documents, {made['tokens']:,} tokens → {made['rows']:,} rows of 128",
        f"lost    {made['lost']:,} tokens ({made['lost'] / made['tokens']:.2%} of all)",
        f"padded  {made['padded']:,} places ({made['padded'] / made['rows'] / 128:.2%} of the rows)",
        f"cut     {made['cut']:,} documents longer than a row: only their beginning is kept",
        "rows    as few as packing all documents at once",
        f'load it: Windows(Source(path="{corpus}", plan="c.plan"), length=128)',
    ]
    done = run("pack", corpus, "--length", "128", "--window", "40", "-o", "w.plan", cwd=tmp_path)
    assert re.search(
        r"rows    [\d.]+% more than packing all documents at once \([\d,]+\); a larger --window", done.stderr
    )
    assert shardmill.verify(corpus).ok, "a plan beside an output is not part of it"
    done = run("pack", corpus, "--length", "128", cwd=tmp_path)
    assert done.returncode == 0 and (corpus / "train-128.plan").exists() and shardmill.verify(corpus).ok


def test_documents_of_all_kinds_fit_in_one_batch_of_a_plan(corpus, tmp_path):
    pack(corpus, length=256, output=tmp_path / "p.plan")
    most = 64
    rows = Windows(Source(path=corpus, plan=tmp_path / "p.plan"), length=256, documents=Documents(most=most))
    batch = rows.batch(range(4))
    limits = batch["cu_seqlens"]
    assert len(limits) == 4 * most + 1 and limits[0] == 0 and limits[-1] == 4 * 256 and (np.diff(limits) >= 0).all()


def test_a_mixture_of_plans_and_windows_says_of_each_row_what_its_corpus_says(corpus, tmp_path):
    pack(corpus, length=64, output=tmp_path / "p.plan")
    planned = Source(path=corpus, plan=tmp_path / "p.plan")
    mixed = Windows({"a": corpus, "b": planned}, length=64, seed=None, weights={"a": 1, "b": 2}, documents=True)
    alone = [Windows(source, length=64, seed=None, documents=True) for source in (corpus, planned)]
    batch = mixed.batch(range(60))
    owners, numbers = mixture.draw(mixed._stages, 0, np.arange(60))
    assert 10 < owners.sum() < 50
    for i, (owner, number) in enumerate(zip(owners.tolist(), numbers.tolist())):
        row = alone[owner].batch([number])
        assert all((row[name][0] == batch[name][i]).all() for name in row if name != "cu_seqlens")
