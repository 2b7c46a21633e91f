"""Merge and convert: the same tokens in other files, exactly, or a refusal that says why."""

import errno
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import shardmill
from edited import rewrite
from given_texts import load_once
from shardmill import Limits, Spec, Target, prepare
from shardmill.cli.main import cli
from shardmill.errors import InputError, OutputError, TemporaryError, UsageError
from shardmill.formats import output_files, registry
from shardmill.job import job
from shardmill.results import convert as transfers
from shardmill.results import eot as eot_module

DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(150)]
SHARDS = {
    name: {
        **({"shard_tokens": 900} if form.sharded else {}),
        **({"sample_tokens": 90} if form.sample_tokens else {}),
    }
    for name, form in registry.FORMATS.items()
}
LIMITS = Limits(engine="reference", workers=1)


def mill(root, name, documents=DOCUMENTS, **choices):
    (root / "a.txt").write_text("##".join(documents))
    spec = Spec(inputs=[root / "a.txt"], output=root / name, separator="##", **{"val_fraction": 0.05, **choices})
    prepare(spec, limits=LIMITS)
    return root / name


@pytest.fixture(autouse=True, scope="module")
def _loaded_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "load", load_once)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same text in every format, split by hash."""
    root = tmp_path_factory.mktemp("made")
    return {name: mill(root, name, format=name, split="hash", **SHARDS[name]) for name in registry.FORMATS}


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and path.name not in ("run.json", "manifest.json", "token_bytes.npy")
        and not path.name.endswith(".csv.gz")
    }


@pytest.mark.parametrize("to", registry.FORMATS)
@pytest.mark.parametrize("source", ["nanogpt", "build-nanogpt", "megatron", "olmo", "mds", "litdata"])
def test_what_is_converted_is_what_prepare_would_have_written(made, tmp_path, monkeypatch, source, to):
    """T1: the end-of-text tokens change sides too, whatever is read at a time."""
    monkeypatch.setattr(eot_module, "_CHUNK_TOKENS", 101)
    manifest = shardmill.convert(made[source], Target(output=tmp_path / "new", format=to, **SHARDS[to]))
    assert contents(tmp_path / "new") == contents(made[to])
    assert manifest.files == shardmill.open(made[to]).manifest.files
    assert manifest.job["made_by"] == "convert"


def test_a_first_shard_that_is_val_keeps_the_document_that_it_cuts(tmp_path):
    first = mill(tmp_path, "first", format="build-nanogpt", val_fraction=0.0005, shard_tokens=901)
    shardmill.convert(first, Target(output=tmp_path / "new", format="nanogpt"))
    new = shardmill.open(tmp_path / "new")
    whole = shardmill.open(mill(tmp_path, "whole", val_fraction=0))["train"][:].tolist()
    both = [*new["val"][:].tolist(), *new["train"][:].tolist()]
    assert both == whole and new["val"][-1] != 50256


@pytest.mark.parametrize("way", [["nanogpt"], ["nanogpt", "megatron", "llmc"], ["olmo", "build-nanogpt", "datatrove"]])
def test_a_first_shard_that_is_val_comes_back_from_anywhere(tmp_path, way):
    """The document that it cuts got a second mark once, on the way back."""
    first = mill(tmp_path, "first", format="build-nanogpt", val_fraction=0.0005, shard_tokens=901)
    last = first
    for number, name in enumerate([*way, "build-nanogpt"]):
        new = tmp_path / f"{number}"
        shardmill.convert(
            last,
            Target(
                output=new,
                format=name,
                **{**SHARDS[name], **({"shard_tokens": 901} if registry.get(name).sharded else {})},
            ),
        )
        last = new
    assert contents(last) == contents(first)


def test_back_and_forth_is_the_same(made, tmp_path):
    shardmill.convert(made["nanogpt"], Target(output=tmp_path / "a", format="llmc", shard_tokens=500, index=True))
    shardmill.convert(str(tmp_path / "a"), Target(output=str(tmp_path / "b"), format="nanogpt"))
    assert contents(tmp_path / "b") == contents(made["nanogpt"])


def test_merging_is_milling_one_after_the_other(tmp_path):
    """T2"""
    for name, shards in SHARDS.items():
        root = tmp_path / name
        root.mkdir()
        one = mill(root, "one", DOCUMENTS[:70], format=name, val_fraction=0, index=True, provenance=True, **shards)
        two = mill(root, "two", DOCUMENTS[70:], format=name, val_fraction=0, index=True, provenance=True, **shards)
        whole = mill(root, "whole", format=name, val_fraction=0, index=True, **shards)
        manifest = shardmill.merge([one, two], Target(output=root / "new"))
        got = contents(root / "new")
        places = np.frombuffer(got.pop("train.places"), "<u8").reshape(-1, 2)
        assert places[:, 0].tolist() == [0] * 70 + [1] * 80 and places[70, 1] == 0
        assert got == contents(whole)
        assert manifest.counts.documents == 150 and len(manifest.job["inputs"]) == 2


def test_outputs_that_differ_are_not_merged(made, tmp_path):
    """T3"""
    other = mill(tmp_path, "other", tokenizer="cl100k_base")
    with pytest.raises(
        UsageError, match=r"(?s)dtype: 'uint16' and 'uint32'.*prepare one again with the other's --token"
    ):
        shardmill.merge([made["nanogpt"], other], Target(output=tmp_path / "new"))
    with pytest.raises(
        UsageError, match=r"(?s)format: 'nanogpt' and 'megatron'.*shardmill convert .*megatron -o NEW --format nanogpt"
    ):
        shardmill.merge([made["nanogpt"], made["megatron"]], Target(output=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_is_not_known_is_refused(tmp_path):
    """T4"""
    (tmp_path / "a.txt").write_text("One text without documents.")
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "plain", val_fraction=0), limits=LIMITS)
    with pytest.raises(UsageError, match="the document boundaries in train are unknown"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="megatron"))
    with pytest.raises(UsageError, match="has no end-of-text tokens, and modded-nanogpt needs them"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="modded-nanogpt"))
    with pytest.raises(UsageError, match="the end-of-text token is unknown"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="nanogpt", eot="after"))
    wide = mill(tmp_path, "wide", tokenizer="cl100k_base")
    with pytest.raises(UsageError, match="uint16"):
        shardmill.convert(wide, Target(output=tmp_path / "new", format="modded-nanogpt"))
    shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="shards", shard_tokens=3))
    with pytest.raises(OutputError, match="holds the result of another job"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="nanogpt"))
    with pytest.raises(UsageError, match="is also the source"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "plain", format="nanogpt", overwrite=True))


@pytest.mark.parametrize("name", registry.FORMATS)
def test_files_without_our_manifest_are_read_too(made, tmp_path, name):
    """T5"""
    folder = tmp_path / "others"
    folder.mkdir()
    for file, data in contents(made[name]).items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(data)
    raw = name in ("nanogpt", "shards", "olmo")
    claims = {"from_format": name if raw else None, "from_dtype": "uint16" if raw else "auto", "eot_id": 50256}
    if raw and name != "olmo":
        with pytest.raises(UsageError, match="the format cannot be detected"):
            shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"))
        with pytest.raises(UsageError, match="how wide its integers are"):
            shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"), from_format=name)
    shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"), **claims)
    assert contents(tmp_path / "new") == contents(made["megatron"])


def refuse(folder, match, **claims):
    with pytest.raises((InputError, UsageError), match=match):
        shardmill.convert(folder, Target(output=folder.parent / "new", format="nanogpt"), **claims)


def test_damaged_files_are_refused_with_what_was_found_and_expected(made, tmp_path):
    folder = tmp_path / "others"
    folder.mkdir()
    refuse(folder, "holds no known token files")
    refuse(folder, "holds no .ds file", from_format="datatrove")
    good = contents(made["llmc"])
    for name, data in good.items():
        (folder / name).write_bytes(data)
    first = folder / "fineweb_train_000001.bin"
    first.write_bytes(struct.pack("<3i", 99, 1, 900) + good[first.name][12:])
    refuse(folder, "begins with magic 99, version 1; files of llm.c begin with 20240520, version 1", from_format="llmc")
    first.write_bytes(good[first.name][:8] + struct.pack("<i", 901) + good[first.name][12:])
    refuse(folder, "announces 901 tokens, and its 2,824 bytes hold 900")
    first.write_bytes(good[first.name])
    (folder / "fineweb_train_000003.bin").rename(tmp_path / "moved")
    refuse(folder, "number 3 is missing")


def test_damaged_indexes_are_refused(made, tmp_path):
    folder = tmp_path / "others"
    folder.mkdir()
    for name, data in contents(made["megatron"]).items():
        (folder / name).write_bytes(data)
    index = folder / "train.idx"
    good = index.read_bytes()
    index.write_bytes(b"MMAPIDX" + good[7:])
    refuse(folder, "a Megatron index starts with", from_format="megatron")
    index.write_bytes(good[:-8])
    refuse(folder, "it was truncated")
    index.write_bytes(good[:17] + b"\x07" + good[18:])
    refuse(folder, "integers of code 7")
    index.unlink()
    refuse(folder, "there is no train.idx next to it", from_format="megatron")
    trove = tmp_path / "trove"
    trove.mkdir()
    for name, data in contents(made["datatrove"]).items():
        (trove / name).write_bytes(data)
    (trove / "train.ds.index").write_bytes(struct.pack("<2Q", 5, 1 << 40))
    with pytest.raises(InputError, match="are not in order within"):
        shardmill.convert(trove, Target(output=tmp_path / "x", format="megatron"))
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").iterdir())


def test_a_manifest_with_other_files_is_refused(tmp_path):
    folder = mill(tmp_path, "mine", format="llmc", split="hash", shard_tokens=900)
    shard = folder / "fineweb_train_000002.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-2])
    with pytest.raises(InputError, match="it was changed or truncated"):
        shardmill.open(folder)
    shard.write_bytes(b"\0" + data[1:])
    with pytest.raises(InputError, match="its header is not the one"):
        shardmill.open(folder)
    shard.unlink()
    with pytest.raises(InputError, match="no such file"):
        shardmill.open(folder)
    side = {"name": "../x", "split": "train", "kind": "ends", "bytes": 0, "checksums": []}
    rewrite(folder, lambda content: content.update(sides=[side]))
    with pytest.raises(OutputError, match="not the name of a file"):
        shardmill.open(folder)


@pytest.mark.parametrize("name", ["nanogpt", "megatron"])
def test_not_waiting_for_the_disk_writes_the_same(made, tmp_path, name):
    for sync in (True, False):
        shardmill.convert(made["shards"], Target(output=tmp_path / str(sync), format=name, sync=sync))
    assert contents(tmp_path / "True") == contents(tmp_path / "False") == contents(made[name])


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_an_error_of_the_disk_beside_the_copying_is_not_lost(made, tmp_path, monkeypatch, call):
    monkeypatch.setattr(eot_module, "_CHUNK_TOKENS", 101)
    monkeypatch.setattr(output_files, "_SYNC_BYTES", 1)
    failed = []

    def fail_once(fd):
        if not failed:
            failed.append(fd)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail_once)
    with pytest.raises(TemporaryError, match="Input/output error"):
        shardmill.convert(made["nanogpt"], Target(output=tmp_path / "new", format="megatron"))
    assert failed and not (tmp_path / "new" / "manifest.json").exists()
    assert not list((tmp_path / "new").glob("train*"))


def test_a_disk_too_small_is_told_before_the_work(made, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers.storage, "free_bytes", lambda _: 100)
    with pytest.raises(OutputError, match="100 are free"):
        shardmill.merge([made["nanogpt"]], Target(output=tmp_path / "new"))


def test_what_a_killed_merge_left_is_replaced_by_the_next(made, tmp_path):
    program = (
        "import os, sys, pathlib, shardmill\n"
        "from shardmill.io import storage\n"
        "storage.watch = lambda step: os._exit(9) if step == sys.argv[3] else None\n"
        "shardmill.convert(sys.argv[1], shardmill.Target(output=pathlib.Path(sys.argv[2]), format='megatron'))\n"
    )
    for step in ("file-created", "files-sealed", "file-named", "names-synced", "run-written"):
        new = tmp_path / "new"
        assert subprocess.run([sys.executable, "-c", program, made["nanogpt"], new, step]).returncode == 9
        assert not (new / "manifest.json").exists()
        shardmill.convert(made["nanogpt"], Target(output=new, format="megatron"))
        assert contents(new) == contents(made["megatron"])
        assert shardmill.convert(made["nanogpt"], Target(output=new, format="megatron")) == shardmill.open(new).manifest
        with pytest.raises(OutputError, match="result of another job"):
            shardmill.convert(made["llmc"], Target(output=new, format="megatron"))
        shutil.rmtree(new)


def litdata_of(folder, tokens, dtype="<i4"):
    folder.mkdir(parents=True)
    data = struct.pack("<3I", 1, 12, 12 + 4 * len(tokens)) + np.array(tokens, dtype).tobytes()
    (folder / "chunk-0-0.bin").write_bytes(data)
    chunk = {"chunk_bytes": len(data), "chunk_size": 1, "dim": len(tokens), "filename": "chunk-0-0.bin"}
    config = {"data_format": ["no_header_tensor:16"], "compression": None}
    (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))


def command(*args):
    done = CliRunner().invoke(cli, [str(arg) for arg in args])
    return done.exit_code, done.stderr + str(done.exception or "")


def test_narrower_integers_are_written_where_every_id_fits(tmp_path):
    """--dtype says what is written; it was ignored, and nanoGPT read every other token as 0."""
    litdata_of(tmp_path / "lit", [15496, 995, 50256, 65_535])
    convert = ["convert", tmp_path / "lit", "--to", "nanogpt", "-o"]
    code, told = command(*convert, tmp_path / "narrow", "--dtype", "uint16")
    assert code == 0 and "get_batch" not in told
    assert np.fromfile(tmp_path / "narrow/train.bin", "<u2").tolist() == [15496, 995, 50256, 65_535]
    assert shardmill.open(tmp_path / "narrow").manifest.dtype == "uint16"
    code, told = command(*convert, tmp_path / "wide")
    assert code == 0 and "nanoGPT's own train.py reads uint16" in told
    assert np.fromfile(tmp_path / "wide/train.bin", "<u4").tolist() == [15496, 995, 50256, 65_535]
    code, told = command("convert", tmp_path / "lit", "--to", "modded-nanogpt", "-o", tmp_path / "modded")
    assert code and "pass --dtype uint16 if every id is below 65,536" in told


def test_an_id_that_does_not_fit_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(eot_module, "_CHUNK_TOKENS", 2)
    litdata_of(tmp_path / "lit", [15496, 995, 50256, 65_536, 100_000])
    code, told = command("convert", tmp_path / "lit", "--to", "nanogpt", "--dtype", "uint16", "-o", tmp_path / "new")
    assert code and "token 3 of train is 65,536, and uint16 files hold ids up to 65,535; pass --dtype uint32" in told
    assert not (tmp_path / "new").exists()
    wide = mill(tmp_path, "cl100k", tokenizer="cl100k_base")
    with pytest.raises(UsageError, match="uint16 ends at 65,535"):
        shardmill.convert(wide, Target(output=tmp_path / "new", format="shards", shard_tokens=900, dtype="uint16"))


def test_integers_of_our_own_files_become_wider_and_narrower(made, tmp_path):
    shardmill.convert(made["nanogpt"], Target(output=tmp_path / "wide", format="nanogpt", dtype="uint32"))
    assert shardmill.open(tmp_path / "wide").manifest.dtype == "uint32" and shardmill.verify(tmp_path / "wide").ok
    shardmill.convert(tmp_path / "wide", Target(output=tmp_path / "back", format="nanogpt", dtype="uint16"))
    assert contents(tmp_path / "back") == contents(made["nanogpt"])


def test_what_is_said_of_a_source_must_not_contradict_it(made, tmp_path):
    litdata_of(tmp_path / "lit", [1, 2, 3])
    target = Target(output=tmp_path / "new", format="nanogpt")
    for source, claims, reason in (
        (tmp_path / "lit", {"from_dtype": "uint16"}, "--from-dtype uint16: the files in .* hold uint32"),
        (made["megatron"], {"from_dtype": "uint32"}, "--from-dtype uint32: the files in .* hold uint16"),
        (made["megatron"], {"eot_id": 7}, "the manifest in .* says end-of-text after, id 50256"),
        (made["datatrove"], {"from_format": "datatrove", "from_dtype": "uint32"}, "hold uint16"),
        (made["datatrove"], {"from_format": "datatrove", "eot_id": 1 << 16}, "hold uint16, whose largest id is 65,535"),
    ):
        with pytest.raises(UsageError, match=reason):
            shardmill.convert(source, target, **claims)
    assert not (tmp_path / "new").exists()


def test_an_output_without_end_of_text_tokens_gets_them_if_they_are_named(tmp_path):
    bare = mill(tmp_path, "bare", eot="none", index=True)
    shardmill.convert(bare, Target(output=tmp_path / "new", format="nanogpt", eot="after"), eot_id=50256)
    marked = mill(tmp_path, "marked", index=True)
    assert contents(tmp_path / "new") == contents(marked)


@pytest.mark.parametrize("to", ["build-nanogpt", "llmc", "modded-nanogpt"])
def test_a_trainer_that_needs_a_val_shard_and_gets_none_is_told_of(tmp_path, to):
    without = mill(tmp_path, "without", val_fraction=0)
    convert = ["convert", "--to", to, "--shard-tokens", "900"]
    code, told = command(*convert, without, "-o", tmp_path / "new")
    assert code == 0 and f"there is no val shard, and {registry.get(to).trainer} stops without one" in told
    code, told = command(*convert, mill(tmp_path, "with"), "-o", tmp_path / "other")
    assert code == 0 and "there is no val shard" not in told


def rows(folder):
    found = {path.name: gzip.decompress(path.read_bytes()) for path in folder.glob("*.csv.gz")}
    return found or None


@pytest.mark.parametrize("eot", ["after", "none"])
def test_the_rows_of_olmo_keep_their_paths(tmp_path, monkeypatch, eot):
    """From olmo itself, and from anything that has places; whatever is read at a time."""
    monkeypatch.setattr(eot_module, "_CHUNK_TOKENS", 101)
    monkeypatch.setattr(eot_module, "_ROWS_AT_ONCE", 7)
    for name in ("b.txt", 'a,"\n.txt'):
        (tmp_path / name).write_text("##".join(DOCUMENTS))
    inputs = [tmp_path / "b.txt", tmp_path / 'a,"\n.txt']

    def milled(name, number=slice(None), **choices):
        choices = {"separator": "##", "eot": eot, "shard_tokens": 900, "val_fraction": 0.05, **choices}
        prepare(Spec(inputs=inputs[number], output=tmp_path / name, **choices), limits=LIMITS)
        return tmp_path / name

    whole = milled("whole", format="olmo")
    assert all(b"b.txt" in data or b'a,""\n.txt' in data for data in rows(whole).values())
    shardmill.convert(whole, Target(output=tmp_path / "again", shard_tokens=700))
    assert rows(tmp_path / "again") == rows(milled("other", format="olmo", shard_tokens=700))
    placed = milled("placed", format="shards", index=True, provenance=True)
    shardmill.convert(placed, Target(output=tmp_path / "from places", format="olmo", shard_tokens=900))
    assert rows(tmp_path / "from places") == rows(whole)
    parts = [milled(str(i), slice(i, i + 1), format="olmo", val_fraction=0) for i in range(2)]
    shardmill.merge(parts, Target(output=tmp_path / "merged"))
    assert rows(tmp_path / "merged") == rows(milled("one", format="olmo", val_fraction=0))
    shardmill.convert(tmp_path / "merged", Target(output=tmp_path / "once more"))
    assert contents(tmp_path / "once more") == contents(tmp_path / "one")
    assert rows(tmp_path / "once more") == rows(tmp_path / "one")


def test_rows_of_what_was_parted_end_where_they_do(tmp_path):
    """Running text: one of the splits has no end-of-text token for a document, but its rows tell where it ends."""
    folder = parted(tmp_path, format="olmo")
    shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"))
    expected = parted(tmp_path, format="megatron")
    assert contents(tmp_path / "new") == contents(expected)
    plain = parted(tmp_path, format="nanogpt")
    with pytest.raises(UsageError, match=r"running text divided between train and val.*--index"):
        shardmill.convert(plain, Target(output=tmp_path / "other", format="megatron"))


def parted(root, **choices):
    text = "\n".join(f"Line {i} of a text without documents, {i * i} words." for i in range(9000))
    for i in range(2):
        (root / f"{i}.txt").write_text(text * 3)
    output = root / f"parted-{choices['format']}"
    prepare(Spec(inputs=[root / "0.txt", root / "1.txt"], output=output, val_fraction=0.2, **choices))
    return output


def test_damaged_rows_are_refused(tmp_path):
    folder = mill(tmp_path, "olmo", format="olmo", shard_tokens=900)
    good = (folder / "train-00001.csv.gz").read_bytes()
    for data, reason in (
        (good[:-30], "ends too early"),
        (gzip.compress(b"1,2\r\n"), "its rows do not add up to"),
        (gzip.compress(b"0,901,0,a,0\r\n"), "a document ends at 901"),
        (gzip.compress(b"0,5,0,a,%d\r\n" % (1 << 70)), "from 1180591620717411303424"),
    ):
        (folder / "train-00001.csv.gz").write_bytes(data)
        with pytest.raises(InputError, match=reason):
            shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"))
        assert not (tmp_path / "new").exists()


def test_rejects_go_along(tmp_path):
    """T6, I6: the counts are added up, and the list must agree with them."""
    folders = []
    for number in range(2):
        lines = [json.dumps({"text": f"{number} bags of wheat, line {i}."}) for i in range(40)]
        lines[3 + number] = lines[20] = "{bad"
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
        folders.append(tmp_path / f"out{number}")
        spec = Spec(inputs=[tmp_path / f"{number}.jsonl"], output=folders[-1], on_error="skip", val_fraction=0.1)
        prepare(spec, limits=LIMITS)
    listed = [(folder / "rejects.jsonl").read_bytes() for folder in folders]
    shardmill.merge(folders, Target(output=tmp_path / "merged"))
    shardmill.convert(tmp_path / "merged", Target(output=tmp_path / "new", format="megatron"))
    for name in ("merged", "new"):
        assert (tmp_path / name / "rejects.jsonl").read_bytes() == listed[0] + listed[1]
        made = shardmill.open(tmp_path / name).manifest
        assert made.counts.documents_rejected == 4 and "rejects" in {side.kind for side in made.sidecars}
        assert shardmill.verify(tmp_path / name).ok


def test_a_merge_claims_what_holds_for_all_of_its_sources(tmp_path):
    """T7: what differs is not said; and limits add up, so that nobody misses the input that was not read."""
    (tmp_path / "a.txt").write_text("##".join(DOCUMENTS))
    folders = []
    for name, choices in (("one", {}), ("two", {"limit_documents": 9, "seed": 3}), ("three", {"limit_documents": 5})):
        spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / name, separator="##", val_fraction=0.05, **choices)
        prepare(spec, limits=LIMITS)
        folders.append(tmp_path / name)
    made = shardmill.merge(folders, Target(output=tmp_path / "new"))
    choices = made.job["choices"]
    assert "seed" not in choices and choices["separator"] == "##" and choices["limit_documents"] == 14
    assert made.counts.documents == 150 + 9 + 5 and shardmill.verify(tmp_path / "new").ok


@pytest.mark.parametrize("eot", ["before", "after"])
def test_a_merge_remembers_that_its_sources_were_cut_inside_a_document(tmp_path, monkeypatch, eot):
    """T8: each is one stream, whose first shard is val: no mark stands where the streams meet."""
    monkeypatch.setattr(eot_module, "_CHUNK_TOKENS", 101)
    halves = [DOCUMENTS[:70], DOCUMENTS[70:]]
    choices = {"format": "build-nanogpt", "val_fraction": 0.0005, "shard_tokens": 901, "eot": eot}
    plain, indexed = (
        [mill(tmp_path, f"{i}-{index}", half, index=index, **choices) for i, half in enumerate(halves)]
        for index in (False, True)
    )
    shardmill.merge(plain, Target(output=tmp_path / "merged"))
    shardmill.merge(indexed, Target(output=tmp_path / "true"))
    shardmill.convert(tmp_path / "merged", Target(output=tmp_path / "again", shard_tokens=500))
    for name in ("merged", "again"):
        for split in ("train", "val"):
            found = [end for some in shardmill.open(tmp_path / name)[split].document_ends() for end in some.tolist()]
            assert found == np.fromfile(tmp_path / f"true/{split}.ends", "<u8").tolist()
        kept = Target(output=tmp_path / f"{name}-megatron", format="megatron", eot=eot)
        shardmill.convert(tmp_path / name, kept)
    shardmill.convert(tmp_path / "true", Target(output=tmp_path / "expected", format="megatron", eot=eot))
    assert contents(tmp_path / "merged-megatron") == contents(tmp_path / "again-megatron")
    assert contents(tmp_path / "merged-megatron") == contents(tmp_path / "expected")
    other = {"before": "after", "after": "before"}[eot]
    with pytest.raises(UsageError, match="convert those outputs first and merge the results"):
        shardmill.convert(tmp_path / "again", Target(output=tmp_path / "moved", format="nanogpt", eot=other))
