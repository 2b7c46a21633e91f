"""Merge and convert: the same tokens in other files, exactly, or a refusal that says why."""

import errno
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest

import shardmill
from edited import rewrite
from shardmill import Limits, Spec, Target, prepare, storage
from shardmill import transfer as transfers
from shardmill.errors import InputError, OutputError, TemporaryError, UsageError
from shardmill.foreign import Claims
from shardmill.formats import files, registry

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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same text in every format, split by hash."""
    root = tmp_path_factory.mktemp("made")
    return {name: mill(root, name, format=name, split="hash", **SHARDS[name]) for name in registry.FORMATS}


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("run.json", "manifest.json") and not path.name.endswith(".csv.gz")
    }


@pytest.mark.parametrize("to", registry.FORMATS)
@pytest.mark.parametrize("source", ["nanogpt", "build-nanogpt", "megatron", "olmo", "mds", "litdata"])
def test_what_is_converted_is_what_prepare_would_have_written(made, tmp_path, monkeypatch, source, to):
    """T1: the end-of-text tokens change sides too, whatever is read at a time."""
    monkeypatch.setattr(transfers, "_CHUNK_TOKENS", 101)
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


@pytest.mark.parametrize("can", [True, False, "later not"])
@pytest.mark.parametrize("to", ["nanogpt", "llmc", "build-nanogpt", "mds"])
def test_files_share_what_they_can_and_the_rest_is_written(made, tmp_path, monkeypatch, to, can):
    """As on a file system that can, in blocks of 4 bytes; here the stand-in for the system's call copies them."""
    shared = []

    def clone(target, request, numbers):
        source, offset, length, at = struct.unpack("qQQQ", numbers)
        assert request == 0x4020940D and not (offset % 4 or length % 4 or at % 4) and at == os.fstat(target).st_size
        if not can or (can == "later not" and len(shared) == 3):
            raise OSError(errno.EOPNOTSUPP, "cannot")
        os.pwrite(target, os.pread(source, length, offset), at)
        shared.append(length)

    monkeypatch.setattr(transfers, "_CHUNK_TOKENS", 102)
    monkeypatch.setattr(storage, "_SHARED_BYTES", 4)
    monkeypatch.setattr(storage.fcntl, "ioctl", clone)
    shardmill.convert(made["megatron"], Target(output=tmp_path / "new", format=to, **SHARDS[to]))
    assert contents(tmp_path / "new") == contents(made[to])
    assert not shardmill.verify(tmp_path / "new").problems
    tokens = shardmill.open(tmp_path / "new").tokens
    moved = to in ("llmc", "build-nanogpt")  # by one token: nothing is where a block begins
    assert sum(shared) > 2 * 0.8 * tokens if can is True and not moved else len(shared) <= 3


def test_outputs_that_differ_are_not_merged(made, tmp_path):
    """T3"""
    other = mill(tmp_path, "other", tokenizer="cl100k_base")
    with pytest.raises(UsageError, match=r"(?s)dtype: was 'uint16', is now 'uint32'.*tokenizer_sha256"):
        shardmill.merge([made["nanogpt"], other], Target(output=tmp_path / "new"))
    with pytest.raises(UsageError, match="format: was 'nanogpt', is now 'megatron'"):
        shardmill.merge([made["nanogpt"], made["megatron"]], Target(output=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_is_not_known_is_refused(tmp_path):
    """T4"""
    (tmp_path / "a.txt").write_text("One text without documents.")
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "plain", val_fraction=0), limits=LIMITS)
    with pytest.raises(UsageError, match="where documents end in train is not known"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="megatron"))
    with pytest.raises(UsageError, match="has no end-of-text tokens, and modded-nanogpt needs them"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="modded-nanogpt"))
    with pytest.raises(UsageError, match="which token ends a text is not known"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="nanogpt", eot="after"))
    wide = mill(tmp_path, "wide", tokenizer="cl100k_base")
    with pytest.raises(UsageError, match="uint16"):
        shardmill.convert(wide, Target(output=tmp_path / "new", format="modded-nanogpt"))
    shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="shards", shard_tokens=3))
    with pytest.raises(OutputError, match="holds the result of another job"):
        shardmill.convert(tmp_path / "plain", Target(output=tmp_path / "new", format="nanogpt"))
    with pytest.raises(UsageError, match="is the source too"):
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
    claims = Claims(format=name if raw else None, dtype="uint16" if raw else "auto", eot_id=50256)
    if raw and name != "olmo":
        with pytest.raises(UsageError, match="the format cannot be told"):
            shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"))
        with pytest.raises(UsageError, match="how wide its integers are"):
            shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"), Claims(format=name))
    shardmill.convert(folder, Target(output=tmp_path / "new", format="megatron"), claims)
    assert contents(tmp_path / "new") == contents(made["megatron"])


def refuse(folder, claims, match):
    with pytest.raises((InputError, UsageError), match=match):
        shardmill.convert(folder, Target(output=folder.parent / "new", format="nanogpt"), claims)


def test_damaged_files_are_refused_with_what_was_found_and_expected(made, tmp_path):
    folder = tmp_path / "others"
    folder.mkdir()
    refuse(folder, Claims(), "holds no token files that are known")
    refuse(folder, Claims(format="datatrove"), "holds no .ds file")
    good = contents(made["llmc"])
    for name, data in good.items():
        (folder / name).write_bytes(data)
    first = folder / "fineweb_train_000001.bin"
    first.write_bytes(struct.pack("<3i", 99, 1, 900) + good[first.name][12:])
    refuse(
        folder, Claims(format="llmc"), "begins with magic 99, version 1; files of llm.c begin with 20240520, version 1"
    )
    first.write_bytes(good[first.name][:8] + struct.pack("<i", 901) + good[first.name][12:])
    refuse(folder, Claims(), "says 901 tokens, and there is room for 900")
    first.write_bytes(good[first.name])
    (folder / "fineweb_train_000003.bin").rename(tmp_path / "moved")
    refuse(folder, Claims(), "number 3 is missing")


def test_damaged_indexes_are_refused(made, tmp_path):
    folder = tmp_path / "others"
    folder.mkdir()
    for name, data in contents(made["megatron"]).items():
        (folder / name).write_bytes(data)
    index = folder / "train.idx"
    good = index.read_bytes()
    index.write_bytes(b"MMAPIDX" + good[7:])
    refuse(folder, Claims(format="megatron"), "an index of Megatron with")
    index.write_bytes(good[:-8])
    refuse(folder, Claims(), "it was cut short")
    index.write_bytes(good[:17] + b"\x07" + good[18:])
    refuse(folder, Claims(), "integers of code 7")
    index.unlink()
    refuse(folder, Claims(format="megatron"), "no train.idx beside it")
    trove = tmp_path / "trove"
    trove.mkdir()
    for name, data in contents(made["datatrove"]).items():
        (trove / name).write_bytes(data)
    (trove / "train.ds.index").write_bytes(struct.pack("<2Q", 5, 1 << 40))
    with pytest.raises(InputError, match="do not end in order within"):
        shardmill.convert(trove, Target(output=tmp_path / "x", format="megatron"), Claims())
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").iterdir())


def test_a_manifest_with_other_files_is_refused(tmp_path):
    folder = mill(tmp_path, "mine", format="llmc", split="hash", shard_tokens=900)
    shard = folder / "fineweb_train_000002.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-2])
    with pytest.raises(InputError, match="it was changed or cut short since"):
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
    monkeypatch.setattr(transfers, "_CHUNK_TOKENS", 101)
    monkeypatch.setattr(files, "_SYNC_BYTES", 1)
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
        "from shardmill import storage\n"
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
