"""convert --format parquet: every token once, in order, in rows that datasets of Hugging Face read."""

import json
import random
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

import shardmill
from command import run
from feeding import milled, positions, texts_of
from shardmill import OutputError, Spec, Target, UsageError, convert, prepare
from shardmill.results import eot, parquet


def rows_of(folder, split, column="input_ids"):
    files = sorted(folder.glob(f"{split}-*.parquet"))
    return [row for file in files for row in pq.read_table(file)[column].to_pylist()]


@pytest.fixture
def out(tmp_path):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts_of(random.Random(1), 90))
    (tmp_path / "in.jsonl").write_text(lines)
    return prepare(Spec(inputs=[tmp_path / "in.jsonl"], output=tmp_path / "out", val_fraction=0.2)).output


@pytest.mark.parametrize("chunk", [7, 50, 2 << 20])
@pytest.mark.parametrize("side", ["after", "before", "none"])
def test_each_document_is_a_row(out, tmp_path, monkeypatch, chunk, side):
    """W1, W2, W3"""
    monkeypatch.setattr(eot, "_CHUNK_TOKENS", chunk)
    made = convert(out, Target(output=tmp_path / "rows", format="parquet", shard_tokens=2000, eot=side))
    for name, split in shardmill.open(out).items():
        found = rows_of(tmp_path / "rows", name)
        documents = [document.tolist()[:-1] for document in split.documents()]
        mark = [split.eot_id]
        assert found == [{"after": d + mark, "before": mark + d, "none": d}[side] for d in documents]
        assert rows_of(tmp_path / "rows", name, "labels") == found
        assert rows_of(tmp_path / "rows", name, "attention_mask") == [[1] * len(row) for row in found]
    files = [pq.read_table(tmp_path / "rows" / file.name)["input_ids"].to_pylist() for file in made.files]
    assert [file.tokens for file in made.files] == [sum(map(len, rows)) for rows in files]
    assert all(file.tokens <= 2000 for file in made.files) and len(files) > 2
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == sorted(file.name for file in made.files)


def test_rows_of_one_length(out, tmp_path, monkeypatch):
    """W2: what does not fill a row is left out, as in transformers' run_clm.py; rows of a batch must have one length."""
    monkeypatch.setattr(eot, "_CHUNK_TOKENS", 333)
    convert(out, Target(output=tmp_path / "rows", format="parquet", sample_tokens=64, shard_tokens=1000))
    for name, split in shardmill.open(out).items():
        whole = split[: len(split) // 64 * 64].reshape(-1, 64).tolist()
        assert rows_of(tmp_path / "rows", name) == whole
    assert all(len(pq.read_table(path)) <= 15 for path in (tmp_path / "rows").iterdir())


def test_the_command_says_how_to_load_it_and_refuses_what_is_there(out, tmp_path):
    done = run("convert", out, "--format", "parquet", "-o", "rows", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'load it: datasets.load_dataset("parquet", data_files="rows/train-*.parquet")' in done.stderr
    again = run("convert", out, "--format", "parquet", "-o", "rows", cwd=tmp_path)
    assert again.returncode == 1 and "rows/train-00000.parquet: exists already; pass --overwrite" in again.stderr
    before = rows_of(tmp_path / "rows", "train")
    over = run(
        "convert", out, "--format", "parquet", "-o", "rows", "--overwrite", "--shard-tokens", "500", cwd=tmp_path
    )
    assert over.returncode == 0 and rows_of(tmp_path / "rows", "train") == before
    other = run("prepare", tmp_path / "in.jsonl", "--format", "parquet", "-o", "new", cwd=tmp_path)
    assert other.returncode == 2 and "parquet" in other.stderr


@pytest.mark.parametrize("step", ["file-created", "files-sealed", "file-named", "names-synced"])
def test_killed_at_any_step_the_same_command_writes_it_all(out, tmp_path, step):
    code = f"""
import os, shardmill
from shardmill.io import storage
storage.watch = lambda step: os._exit(9) if step == {step!r} else None
shardmill.convert({str(out)!r}, shardmill.Target(output="rows", format="parquet", shard_tokens=700))
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert killed.returncode == 9 and (tmp_path / "rows/shardmill.journal").exists()
    target = Target(output=tmp_path / "rows", format="parquet", shard_tokens=700)
    convert(out, target)
    convert(out, Target(output=tmp_path / "whole", format="parquet", shard_tokens=700))
    found, whole = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("rows", "whole")
    )
    assert found == whole


def test_what_cannot_be_a_row_is_refused(out, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"the document boundaries in train are unknown .*--format parquet needs them"):
        source, target = positions(tmp_path / "raw", 100), Target(output=tmp_path / "rows", format="parquet")
        convert(source.path, target, from_format="shards", from_dtype="uint32")
    for wrong in ({"dtype": "uint16"}, {"index": True}):
        with pytest.raises(
            UsageError, match="ids are int32, and rows say where documents end; drop --dtype and --index"
        ):
            convert(out, Target(output=tmp_path / "rows", format="parquet", **wrong))
    monkeypatch.setattr(parquet, "_MOST_ROW_TOKENS", 50)
    monkeypatch.setattr(eot, "_CHUNK_TOKENS", 20)
    with pytest.raises(
        OutputError, match=r"a document has more than 50 tokens, too many for a row; pass --sample-tokens"
    ):
        convert(out, Target(output=tmp_path / "rows", format="parquet"))
    assert not (tmp_path / "rows").exists()


def test_rows_without_end_of_text_tokens_need_an_index(tmp_path):
    for index in (True, False):
        made = milled(tmp_path / str(index), texts_of(random.Random(1), 30), eot="none", index=index)
        target = Target(output=tmp_path / f"rows-{index}", format="parquet")
        if index:
            convert(made, target)
            assert len(rows_of(tmp_path / "rows-True", "train")) == 30
        else:
            with pytest.raises(UsageError, match="there is neither an index nor end-of-text tokens"):
                convert(made, target)
