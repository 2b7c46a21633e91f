"""Readers written from the rules of each trainer load our files as they are. `make interop` lets the real ones do it."""

import csv
import gzip
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import reference
from shardmill import Limits, Spec, prepare

DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(120)]
LIMITS = Limits(engine="reference", workers=1)


def mill(tmp_path, form, **choices):
    (tmp_path / "a.txt").write_text("##".join(DOCUMENTS))
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="##", format=form, **choices)
    prepare(spec, limits=LIMITS)
    return tmp_path / "out"


def expected(side):
    return reference.tokens("r50k_base", DOCUMENTS, eot=50256, side=side)


def test_a_build_nanogpt_loader_finds_both_splits_by_substring_and_walks_the_shards(tmp_path):
    folder = mill(tmp_path, "build-nanogpt", shard_tokens=700)
    tokens = []
    for split in ("val", "train"):
        shards = sorted(path for path in folder.iterdir() if split in path.name)
        assert shards
        for path in shards:
            loaded = np.load(path).astype(np.int32)
            assert loaded.ndim == 1
            tokens += loaded.tolist()
    assert tokens == expected("before")


def test_a_modded_nanogpt_loader_finds_a_document_start_in_every_window(tmp_path):
    """Its batches begin at the token before each document."""
    folder = mill(tmp_path, "modded-nanogpt", shard_tokens=700)
    tokens = []
    for path in [*folder.glob("fineweb_val_*.bin"), *sorted(folder.glob("fineweb_train_*.bin"))]:
        header = np.fromfile(path, np.int32, 256)
        assert header[0] == 20240520 and header[1] == 1
        with open(path, "rb", buffering=0) as f:
            f.seek(256 * 4)
            shard = np.empty(header[2], np.uint16)
            assert f.readinto(shard.data.cast("B")) == 2 * header[2], "number of tokens read does not match the header"
        tokens += shard.tolist()
    starts = np.flatnonzero(np.array(tokens) == 50256)
    assert starts[0] == 0 and len(starts) == len(DOCUMENTS) and tokens == expected("before")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_c_program_reads_the_llmc_layout(tmp_path):
    folder = mill(tmp_path, "llmc", shard_tokens=700)
    program = tmp_path / "reader"
    subprocess.run(["cc", "-O1", "-o", program, Path(__file__).parent / "llmc_reader.c"], check=True)
    tokens = []
    for path in [*folder.glob("fineweb_val_*.bin"), *sorted(folder.glob("fineweb_train_*.bin"))]:
        done = subprocess.run([program, path, "700"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tokens += [int(line) for line in done.stdout.split()]
    assert tokens == expected("before")


def test_a_megatron_reader_gets_every_document(tmp_path):
    folder = mill(tmp_path, "megatron", val_fraction=0)
    with open(folder / "train.idx", "rb") as f:
        assert f.read(9) == b"MMIDIDX\x00\x00"
        version, code, sequences, numbers = struct.unpack("<QBQQ", f.read(25))
        assert (version, code) == (1, 8)
        sizes = np.frombuffer(f.read(4 * sequences), np.int32)
        pointers = np.frombuffer(f.read(8 * sequences), np.int64)
        documents = np.frombuffer(f.read(8 * numbers), np.int64)
        assert not f.read()
    assert documents.tolist() == list(range(len(DOCUMENTS) + 1))
    data = (folder / "train.bin").read_bytes()
    for text, size, pointer in zip(DOCUMENTS, sizes, pointers, strict=True):
        ids = np.frombuffer(data, np.uint16, count=size, offset=pointer).tolist()
        assert ids == [*reference.encode("r50k_base", text), 50256]


def test_an_olmo_reader_gets_every_document_from_the_rows(tmp_path):
    folder = mill(tmp_path, "olmo", shard_tokens=700, val_fraction=0)
    parts = {}
    for path in sorted(folder.glob("train-*.npy")):
        tokens = np.memmap(path, mode="r", dtype=np.uint16)
        with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="") as f:
            for start, end, name, source, _ in csv.reader(f):
                assert source == str(tmp_path / "a.txt")
                parts.setdefault(int(name), []).extend(tokens[int(start) : int(end)].tolist())
    assert [parts[i] for i in range(len(DOCUMENTS))] == [
        [*reference.encode("r50k_base", text), 50256] for text in DOCUMENTS
    ]
