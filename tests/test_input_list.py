"""Inputs too many for the manifest: the list beside it, and all that relies on it. Here, more than three are too many."""

import csv
import gzip
import json
import os
import shutil

import numpy as np
import pytest
import xxhash

import shardmill
from shardmill import Limits, Spec, Target, prepare, verify
from shardmill.errors import OutputError
from shardmill.inputs.find import find_inputs
from shardmill.inputs.input_files import InputFiles
from shardmill.io.fileset import LocalFiles
from shardmill.io.reading import InputFile
from shardmill.record import input_list, manifest

LIMITS = Limits(engine="reference", workers=1)
NASTY = ["a.txt", "b\n.txt", "c\udcff.txt", "d é.txt", 'e"\\.txt', "f" * 240 + ".txt"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(input_list, "MOST", 3)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for number, name in enumerate(NASTY):
        (tmp_path / "in" / name).write_text(f"file number {number}")
        os.utime(tmp_path / "in" / name, ns=(number * 10**9, number * 10**9))
    return tmp_path


def mill(folder, output="out", **choices):
    return prepare(Spec(inputs=[folder / "in"], output=folder / output, **choices), limits=LIMITS)


def change(folder, name, text, seconds):
    (folder / "in" / name).write_text(text)
    os.utime(folder / "in" / name, (seconds, seconds))


def test_the_manifest_counts_them_and_the_list_names_them(folder):
    """M3, M7: the checksum is that of the list, and each line of it is JSON."""
    made = mill(folder).manifest
    data = (folder / "out" / input_list.NAME).read_bytes()
    paths = [str(folder / "in" / name) for name in NASTY]
    assert [json.loads(line) for line in data.splitlines()] == [{"bytes": 13, "path": path} for path in paths]
    assert made.job["inputs"] == {
        "files": 6, "bytes": 78, "list": input_list.NAME, "xxh3_128": xxhash.xxh3_128_hexdigest(data)
    }  # fmt: skip
    (side,) = [side for side in made.sidecars if side.kind == "inputs"]
    assert side.name == input_list.NAME and side.bytes == len(data) and side.split is None
    assert manifest.of(LocalFiles(folder / "out")) == made and len((folder / "out/run.json").read_text()) < 1000


def test_few_inputs_stay_in_the_manifest(folder):
    """M3, M7"""
    for name in NASTY[3:]:
        (folder / "in" / name).unlink()
    made = mill(folder).manifest
    assert [entry["path"] for entry in made.job["inputs"]] == [str(folder / "in" / name) for name in NASTY[:3]]
    assert not (folder / "out" / input_list.NAME).exists() and all("sample" in entry for entry in made.job["inputs"])


def test_the_same_command_again_finds_it_complete(folder):
    mill(folder)
    assert mill(folder).already_complete


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda folder: change(folder, "d é.txt", "longer than it was", 3), "inputs[3].bytes: was 13, is now 18"),
        (lambda folder: change(folder, "d é.txt", "file number 9", 99), "d é.txt: was modified 1970-01-01 00:01:39"),
        (lambda folder: change(folder, "d é.txt", "older version", 1), "none is newer"),
        (lambda folder: change(folder, "c2.txt", "new", 3), "inputs: were 6, are now 7"),
        (lambda folder: change(folder, "c2.txt", "new", 3), "c\\udcff.txt', is now"),
        (lambda folder: (folder / "in" / "f").with_name(NASTY[5]).unlink(), "is now none"),
        (lambda folder: (folder / "in/a.txt").rename(folder / "in/a1.txt"), "inputs[0].path: was"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_inputs_that_changed_are_named(folder, monkeypatch, edit, told, finished):
    if finished:
        mill(folder)
    else:
        stop_after_the_first_checkpoint(folder, monkeypatch)
    edit(folder)
    with pytest.raises(OutputError) as refusal:
        mill(folder)
    assert told in str(refusal.value), refusal.value


def stop_after_the_first_checkpoint(folder, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shardmill.job.mill._manifest_of", stop)
        with pytest.raises(KeyboardInterrupt):
            mill(folder)
    assert (folder / "out/shardmill.journal").exists()


def test_a_stopped_job_goes_on_with_its_list(folder, monkeypatch):
    stop_after_the_first_checkpoint(folder, monkeypatch)
    assert mill(folder).manifest.to_json() == mill(folder, "whole").manifest.to_json()
    assert (folder / "out" / input_list.NAME).read_bytes() == (folder / "whole" / input_list.NAME).read_bytes()


def test_a_list_that_is_gone_is_said_to_be(folder):
    mill(folder)
    (folder / "out" / input_list.NAME).unlink()
    change(folder, "a.txt", "longer than it was", 3)
    with pytest.raises(OutputError, match=r"inputs: differ, and .* manifest\.inputs\.jsonl cannot be read"):
        mill(folder)


def test_verify_finds_damage_in_the_list_and_compares_with_sources_elsewhere(folder):
    mill(folder)
    shutil.copytree(folder / "in", folder / "moved")
    assert verify(folder / "out", sources=[str(folder / "moved")], limits=LIMITS).ok
    (folder / "moved/a.txt").write_text("longer than it was")
    (problem,) = verify(folder / "out", sources=[str(folder / "moved")], limits=LIMITS).problems
    assert "inputs[0].bytes: was 13, is now 18" in problem.what
    (folder / "moved/a.txt").unlink()
    (problem,) = verify(folder / "out", sources=[str(folder / "moved")], limits=LIMITS).problems
    assert "inputs: were 6, are now 5" in problem.what
    file = folder / "out" / input_list.NAME
    file.write_bytes(file.read_bytes().replace(b"a.txt", b"b.txt", 1))
    (problem,) = verify(folder / "out").problems
    assert problem.file == input_list.NAME and "damaged" in problem.what


@pytest.mark.parametrize("line", [b"{", b"[]", b"7", b'{"bytes": 1}', b'{"bytes": "x", "path": "a"}', b"[" * 100_000])
def test_a_damaged_list_is_refused_in_words(folder, line):
    mill(folder)
    file = folder / "out" / input_list.NAME
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(OutputError, match="not a list of inputs that shardmill wrote"):
        list(shardmill.open(folder / "out").sources)
    with pytest.raises(OutputError, match="not a list of inputs that shardmill wrote"):
        shardmill.convert(folder / "out", Target(output=folder / "new", format="olmo", shard_tokens=9))


def test_provenance_leads_to_the_names(folder):
    mill(folder, index=True, provenance=True, val_fraction=0)
    corpus = shardmill.open(folder / "out")
    places = np.fromfile(folder / "out/train.places", "<u8").reshape(-1, 2)
    assert list(corpus.sources) == [str(folder / "in" / name) for name in NASTY]
    assert [corpus.sources[int(number)] for number, _ in places] == list(corpus.sources)


def test_merge_and_convert_hand_the_list_on(folder):
    mill(folder, val_fraction=0)
    (folder / "in/z.txt").write_text("one more")
    mill(folder, "more", val_fraction=0)
    new = Target(output=folder / "new", format="megatron")
    made = shardmill.convert(folder / "out", new)
    assert (folder / "new" / input_list.NAME).read_bytes() == (folder / "out" / input_list.NAME).read_bytes()
    assert made.job["inputs"] == shardmill.open(folder / "out").manifest.job["inputs"] and verify(folder / "new").ok
    made = shardmill.merge([folder / "out", folder / "more"], Target(output=folder / "both"))
    assert made.job["inputs"]["files"] == 13 and made.job["inputs"]["bytes"] == made.counts.input_bytes
    both = [*shardmill.open(folder / "out").sources, *shardmill.open(folder / "more").sources]
    assert list(shardmill.open(folder / "both").sources) == both and verify(folder / "both").ok


def test_olmo_names_the_file_of_each_document(folder):
    mill(folder, format="olmo", val_fraction=0)
    with gzip.open(folder / "out/train-00000.csv.gz", "rt", newline="", errors="surrogateescape") as rows:
        assert [row[3] for row in csv.reader(rows)] == [str(folder / "in" / name) for name in NASTY]


def test_a_pipe_and_an_object_on_the_network_stand_in_the_list_too():
    many = [InputFile(path=f"s3://b/{i}", size=i, version=f'"{i}"') for i in range(4)]
    files = InputFiles([*many, InputFile(path="-", size=None, once=True), InputFile(path="a", size=7)])
    lines = [json.loads(line) for line in input_list.lines_of(files)]
    assert lines[1] == {"bytes": 1, "path": "s3://b/1", "version": '"1"'}
    assert lines[4:] == [{"bytes": None, "path": "-"}, {"bytes": 7, "path": "a"}]
    assert input_list.describe(files)["bytes"] is None and input_list.total_bytes(input_list.describe(files)) is None


def test_a_list_of_ours_is_no_input_and_a_strangers_is_not_replaced(folder):
    mill(folder)
    assert input_list.NAME not in {os.path.basename(file.path) for file in find_inputs([str(folder)])}
    (folder / "new").mkdir()
    (folder / "new" / input_list.NAME).write_text("mine")
    with pytest.raises(OutputError, match="shardmill did not write it"):
        mill(folder, "new")
    assert (folder / "new" / input_list.NAME).read_text() == "mine"
