"""Documents in rows: masks, positions, sequence lengths, and where each came from, against a slow oracle."""

import itertools
import multiprocessing
import random
import time
from pathlib import Path

import numpy as np
import pytest

import shardmill
from feeding import milled, positions, texts_of
from shardmill import Documents, InputError, Spec, Target, UsageError, Windows, convert, prepare
from shardmill.spec import Limits

LENGTH = 48


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(Limits, "cache_folder", lambda _: folder)
    return folder


def described_slowly(row, starts, eot_id):
    """Of a row of tokens that begins at starts[0], where documents begin at starts: token by token."""
    ids, positions_, labels = [], [], []
    document, since = -1, 0
    for column in range(len(row) - 1):
        if column == 0 or column in starts:
            document, since = document + 1, column
        ids.append(document)
        positions_.append(column - since)
        ends = column + 1 in starts
        labels.append(-100 if ends and row[column + 1] != eot_id else int(row[column + 1]))
    return ids, positions_, labels


@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("kind", ["index", "megatron", "scan"])
def test_rows_say_where_documents_begin_and_do_not_predict_across(tmp_path, cache, side, kind):
    out = milled(tmp_path, texts_of(random.Random(2), 80, 60), eot=side, index=kind == "index")
    if kind == "megatron":
        convert(out, Target(output=tmp_path / "m", format="megatron", eot=side))
        out = tmp_path / "m"
    split = shardmill.open(out)["train"]
    ends = list(itertools.accumulate(len(document) for document in split.documents()))
    rows = Windows(out, length=LENGTH, documents=Documents(most=12), seed=1)
    for samples in (range(5), range(7, 40)):
        batch = rows.batch(samples)
        flat = []
        for i, sample in enumerate(samples):
            start = int(rows._places(0, np.array([sample]))[0]) * LENGTH
            row = split[start : start + LENGTH + 1]
            begins = {end - start for end in ends if start < end <= start + LENGTH}
            ids, places, labels = described_slowly(row, begins, split.eot_id)
            assert batch["input_ids"][i].tolist() == row[:-1].tolist()
            assert batch["labels"][i].tolist() == labels
            assert batch["document_ids"][i].tolist() == ids and batch["position_ids"][i].tolist() == places
            flat += [i * LENGTH + column for column in range(LENGTH) if places[column] == 0]
        assert (side == "after") == (-100 in batch["labels"]), "end-of-text before the next document may be predicted"
        size = len(samples) * 12 + 1
        assert batch["cu_seqlens"].tolist() == flat + [len(samples) * LENGTH] * (size - len(flat))
    assert cache.exists() == (kind != "index")
    assert (rows[3]["cu_seqlens"][:1] == [0]).all() and rows[3]["document_ids"].shape == (LENGTH,)


def test_the_scan_for_documents_is_done_once(tmp_path, cache, monkeypatch):
    out = milled(tmp_path, texts_of(random.Random(2), 40))
    first = Windows(out, length=LENGTH, documents=True)[0]
    (file,) = cache.iterdir()
    monkeypatch.setattr(shardmill.Split, "document_ends", lambda _: pytest.fail("scanned again"))
    again = Windows(out, length=LENGTH, documents=True)[0]
    assert all((first[name] == again[name]).all() for name in first)
    assert file.name.startswith("ends-") and not list(cache.glob("*.partial"))


def scanned_by_a_rank(out, log, ready):
    """One of several processes that open the same output at once; each scan is written down."""
    scan = shardmill.Split.document_ends

    def slowly(split):
        with open(log, "a") as file:
            file.write("scanned\n")
        time.sleep(0.5)
        return scan(split)

    shardmill.Split.document_ends = slowly
    ready.wait()
    return Windows(out, length=LENGTH, documents=True, seed=1).batch(range(20))["document_ids"].tolist()


def test_of_several_ranks_one_scans_and_the_others_wait(tmp_path, cache):
    out = milled(tmp_path, texts_of(random.Random(2), 40))
    fork = multiprocessing.get_context("fork")
    with fork.Manager() as manager, fork.Pool(4) as pool:
        ready = manager.Barrier(4)
        found = pool.starmap(scanned_by_a_rank, [(out, tmp_path / "log", ready)] * 4, chunksize=1)
    assert (tmp_path / "log").read_text() == "scanned\n"
    assert all(ids == found[0] for ids in found) and np.max(found[0]) > 0
    assert [path.suffix for path in cache.iterdir()] == [".u8"], "no lock and nothing unfinished is left"


def test_a_scan_that_fails_leaves_nothing_and_is_done_by_the_next(tmp_path, cache, monkeypatch):
    out = milled(tmp_path, texts_of(random.Random(2), 40))
    with monkeypatch.context() as patched:
        patched.setattr(shardmill.Split, "read", lambda *_: (_ for _ in ()).throw(InputError("unreadable")))
        with pytest.raises(InputError, match="unreadable"):
            Windows(out, length=LENGTH, documents=True)
    assert not list(cache.iterdir())
    assert Windows(out, length=LENGTH, documents=True)[0]["document_ids"].max() > 0


def test_rows_that_begin_with_documents(tmp_path):
    out = milled(tmp_path, texts_of(random.Random(3), 80, 60), eot="before")
    split = shardmill.open(out)["train"]
    starts = [0, *itertools.accumulate(len(document) for document in split.documents())]
    rows = Windows(out, length=LENGTH, documents=Documents(begin=True), seed=None)
    found = rows.batch(range(len(rows)))["input_ids"]
    for number, row in enumerate(found.tolist()):
        near = [start for start in starts if number * LENGTH <= start < (number + 1) * LENGTH]
        start = near[0] if near and near[0] + LENGTH < len(split) else number * LENGTH
        assert row == split[start : start + LENGTH].tolist()
    assert sum(row[0] == split.eot_id for row in found.tolist()) > len(found) / 2


def test_a_row_with_more_documents_than_room_is_refused(tmp_path):
    out = milled(tmp_path, ["a"] * 200)
    with pytest.raises(UsageError, match=r"a row holds 24 documents, and cu_seqlens has room for 5; .*most=24"):
        Windows(out, length=LENGTH, documents=Documents(most=5)).batch(range(3))


def test_unknown_documents_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(UsageError, match=r"document boundaries are unknown.*--index"):
        Windows(positions(tmp_path / "raw", 1001), length=10, documents=True)
    (tmp_path / "a.txt").write_text("".join(f"Line {i} of the text.\n" for i in range(4000)))
    for index in (False, True):  # one text, divided by passages: only one split has its end-of-text token
        options = {"val_fraction": 0.3, "passage_bytes": 512, "eot": "after", "index": index}
        spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", **options)
        prepare(spec, overwrite=True)
        if index:
            assert Windows(tmp_path / "out", length=10, documents=True)[0]["document_ids"].max() == 0
        else:
            with pytest.raises(UsageError, match=r"document boundaries are unknown.*--index"):
                Windows(tmp_path / "out", length=10, documents=True)


@pytest.mark.parametrize("damage", ["cut", "other", "mixed up", "late"])
def test_a_damaged_index_is_refused(tmp_path, damage):
    out = Path(milled(tmp_path, texts_of(random.Random(2), 80), index=True))
    path = out / "train.ends"
    ends = np.fromfile(path, "<u8")
    if damage == "late":
        rows = Windows(out, length=LENGTH, documents=True)
        path.write_bytes(ends[:-9].tobytes())
        with pytest.raises(InputError, match=r"train.ends: was changed or removed since it was opened"):
            rows.batch(range(8))
        return
    if damage == "cut":
        path.write_bytes(ends.tobytes()[:-3])
    elif damage == "other":
        (ends // 2).tofile(path)
    else:
        random.Random(1).shuffle(ends[:-1])
        ends.tofile(path)
    with pytest.raises(InputError, match=r"truncated|damaged"):
        Windows(out, length=LENGTH, documents=True, seed=None).batch(range(60))


def test_where_names_the_file_and_line_of_every_document(tmp_path):
    out = milled(tmp_path, [f"{i} " + "word " * (i % 40) for i in range(100)], index=True, provenance=True)
    corpus = shardmill.open(out)
    rows = Windows({"web": out}, length=LENGTH, seed=5)
    for sample in range(0, len(rows), 3):
        row, found = rows[sample]["input_ids"], rows.where(sample)
        assert found[0].start == 0 and found[-1].stop == LENGTH
        assert all(now.stop == then.start for now, then in itertools.pairwise(found))
        for origin in found:
            document = corpus["train"].document(origin.document)
            text = corpus.decode(document)
            assert (
                origin.path.endswith("in.jsonl") and text.startswith(f"{origin.position} ") and origin.corpus == "web"
            )
            inside = row[origin.start : origin.stop].tolist()
            assert any(document[i : i + len(inside)].tolist() == inside for i in range(len(document)))


def test_where_needs_provenance(tmp_path):
    out = milled(tmp_path, texts_of(random.Random(1), 40), index=True)
    with pytest.raises(UsageError, match="--index --provenance"):
        Windows(out, length=LENGTH).where(0)
