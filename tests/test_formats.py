"""Every format: its files byte by byte, its refusals, and the same bytes after a kill at any step. FORMAT.md, clause by clause."""

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import reference
import shardmill
from shardmill import Limits, Spec, prepare
from shardmill.errors import TemporaryError, UsageError
from shardmill.formats import output_files as growing
from shardmill.formats import registry
from shardmill.io.storage import GrowingFile

HELLO = "Hello world\nHello\n"  # 15496 995 and 15496 in GPT-2
DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(120)]
SHARDED = {
    "shards": {"shard_tokens": 700},
    "build-nanogpt": {"shard_tokens": 700},
    "llmc": {"shard_tokens": 700},
    "modded-nanogpt": {"shard_tokens": 700},
    "olmo": {"shard_tokens": 700},
    "mds": {"shard_tokens": 700, "sample_tokens": 70},
    "litdata": {"shard_tokens": 700, "sample_tokens": 70},
}


def small(tmp_path, text=HELLO, **choices):
    (tmp_path / "a.txt").write_text(text)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n", **{"val_fraction": 0, **choices})
    return tmp_path / "out", prepare(spec, limits=Limits(engine="reference", workers=1)).manifest


def mill(tmp_path, name="out", **choices):
    (tmp_path / "a.txt").write_text("##".join(DOCUMENTS))
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / name, separator="##", **choices)
    return tmp_path / name, prepare(spec, limits=Limits(workers=2, block_bytes=900, engine="reference")).manifest


def names(folder):
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return found - {"manifest.json", "run.json", "token_bytes.npy"}


def stream(side):
    return reference.tokens("r50k_base", DOCUMENTS, eot=50256, side=side)


def test_the_command_line_knows_the_formats_of_the_registry():
    assert tuple(registry.FORMATS) == get_args(shardmill.spec.OutputFormat)


def test_p1_nanogpt_and_shards_are_bare_integers(tmp_path):
    """P1"""
    folder, _ = mill(tmp_path, format="shards", shard_tokens=1000, val_fraction=0)
    shards = sorted(folder.glob("train-*.bin"))
    assert [path.name for path in shards] == [f"train-{i:05}.bin" for i in range(len(shards))]
    assert all(path.stat().st_size == 2000 for path in shards[:-1])
    assert b"".join(path.read_bytes() for path in shards) == np.array(stream("after"), "<u2").tobytes()


def test_b1_b2_build_nanogpt_is_npy_with_a_padded_header(tmp_path):
    """B1, B2: golden bytes, and a last shard whose header was patched."""
    folder, made = small(tmp_path, format="build-nanogpt", shard_tokens=3, split="first-shard", val_fraction=0.0005)
    assert names(folder) == {"edufineweb_val_000000.npy", "edufineweb_train_000001.npy"}
    text = b"{'descr': '<u2', 'fortran_order': False, 'shape': (%d,), }"
    head = b"\x93NUMPY\x01\x00\x76\x00"
    val = (folder / "edufineweb_val_000000.npy").read_bytes()
    train = (folder / "edufineweb_train_000001.npy").read_bytes()
    assert val == head + (text % 3).ljust(117) + b"\n" + bytes.fromhex("50c4883ce303")
    assert train == head + (text % 2).ljust(117) + b"\n" + bytes.fromhex("50c4883c")
    assert np.load(folder / "edufineweb_train_000001.npy").tolist() == [50256, 15496]
    assert [(file.split, file.tokens, file.offset) for file in made.files] == [("train", 2, 128), ("val", 3, 128)]


def test_b3_shards_are_exact_slices_of_the_stream_and_the_first_is_val(tmp_path):
    """B3"""
    folder, made = mill(tmp_path, format="build-nanogpt", shard_tokens=700)
    expected = stream("before")
    order = ["edufineweb_val_000000.npy", *sorted(name for name in names(folder) if "train" in name)]
    assert [np.load(folder / name).tolist() for name in order] == [
        expected[i : i + 700] for i in range(0, len(expected), 700)
    ]
    assert made.eot_side == "before"


def test_c1_c2_llmc_has_a_header_of_1024_bytes(tmp_path):
    """C1, C2: golden bytes for both widths."""
    folder, _ = small(tmp_path, format="llmc", shard_tokens=3, val_fraction=0.0005)
    val = (folder / "fineweb_val_000000.bin").read_bytes()
    assert val == bytes.fromhex("88d8340101000000 03000000") + bytes(1012) + bytes.fromhex("50c4883ce303")
    wide = tmp_path / "wide"
    wide.mkdir()
    folder, _ = small(wide, format="llmc", shard_tokens=9, dtype="uint32", split="hash")
    assert (folder / "fineweb_train_000001.bin").read_bytes() == struct.pack("<3i", 20240801, 7, 5) + bytes(
        1012
    ) + struct.pack("<5I", 50256, 15496, 995, 50256, 15496)


def test_c3_a_short_last_shard_is_joined_to_the_one_before(tmp_path):
    """C3: llm.c stops at a shard that is shorter than a batch."""
    for name in ("llmc", "modded-nanogpt"):
        folder, made = mill(tmp_path, name, format=name, shard_tokens=700)
        sizes = [file.tokens for file in made.files if file.split == "train"]
        assert set(sizes[:-1]) == {700} and 700 < sizes[-1] < 1400
        got = []
        for path in [folder / "fineweb_val_000000.bin", *sorted(folder.glob("fineweb_train_*.bin"))]:
            data = path.read_bytes()
            assert np.frombuffer(data[:12], "<i4").tolist() == [20240520, 1, (len(data) - 1024) // 2]
            got += np.frombuffer(data[1024:], "<u2").tolist()
        assert got == stream("before")


def test_c4_a_shard_of_2_gib_is_refused():
    """C4"""
    most = ((1 << 31) - 1 - 1024) // 2 - (1 << 20) - 1
    for name in ("llmc", "modded-nanogpt"):
        assert registry.choose_shape(registry.get(name), np.dtype("<u2"), most, None).shard_tokens == most
        with pytest.raises(UsageError, match="32-bit"):
            registry.choose_shape(registry.get(name), np.dtype("<u2"), most + 1, None)


def test_g1_g2_megatron_index(tmp_path):
    """G1, G2: golden bytes."""
    folder, made = small(tmp_path, format="megatron")
    assert names(folder) == {"train.bin", "train.idx"}
    assert (folder / "train.bin").read_bytes() == struct.pack("<5H", 15496, 995, 50256, 15496, 50256)
    assert (folder / "train.idx").read_bytes() == (
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i2q3q", 3, 2, 0, 6, 0, 1, 2)
    )
    assert [side.name for side in made.sidecars] == ["token_bytes.npy", "train.idx"]


def test_g3_megatron_has_uint16_below_65500_and_int32_from_there():
    """G3"""
    megatron = registry.get("megatron")
    assert [registry.choose_dtype(megatron, size, "t", "auto").str for size in (65499, 65500, 65536, 65537)] == [
        "<u2",
        "<u4",
        "<u4",
        "<u4",
    ]
    assert registry.choose_dtype(registry.get("nanogpt"), 65536, "t", "auto").str == "<u2"
    assert registry.choose_dtype(megatron, 65536, "t", "uint16").str == "<u2"


def test_d1_d2_datatrove(tmp_path):
    """D1, D2: golden bytes."""
    folder, _ = small(tmp_path, format="datatrove")
    assert names(folder) == {"train.ds", "train.ds.index", "train.ds.metadata"}
    assert (folder / "train.ds").read_bytes() == struct.pack("<5H", 15496, 995, 50256, 15496, 50256)
    assert (folder / "train.ds.index").read_bytes() == struct.pack("<2Q", 3, 5)
    assert (folder / "train.ds.metadata").read_text() == "openai-community/gpt2|2\n5\n5.00 T"


def test_o1_o2_olmo(tmp_path):
    """O1, O2: raw integers under the name .npy, and a row for each document, or part of one, in each shard."""
    folder, _ = small(tmp_path, format="olmo", shard_tokens=4)
    assert names(folder) == {"train-00000.npy", "train-00000.csv.gz", "train-00001.npy", "train-00001.csv.gz"}
    assert (folder / "train-00000.npy").read_bytes() == struct.pack("<4H", 15496, 995, 50256, 15496)
    source = tmp_path / "a.txt"
    rows = [gzip.decompress((folder / f"train-0000{i}.csv.gz").read_bytes()).decode() for i in (0, 1)]
    assert rows == [f"0,3,0,{source},0\r\n3,4,1,{source},12\r\n", f"0,1,1,{source},12\r\n"]


def test_o2_rows_of_many_blocks_and_of_odd_names(tmp_path):
    """O2: a name with a comma is quoted, one that is no UTF-8 stands there as it is; blocks of 65,535 bytes."""
    odd = [os.fsdecode(b"a, \xff.txt"), os.fsdecode(b'b".txt')]
    for name in odd:
        (tmp_path / name).write_text("Hello\n" * 3000)
    spec = Spec(inputs=[tmp_path / name for name in odd], output=tmp_path / "out", separator="\\n", format="olmo", val_fraction=0)  # fmt: skip
    prepare(spec, limits=Limits(workers=1))
    data = (tmp_path / "out/train-00000.csv.gz").read_bytes()
    assert data[10:15] == struct.pack("<BHH", 0, 65535, 0)
    folder = os.fsencode(tmp_path)
    names = [b'"%s/a, \xff.txt"' % folder, b'"%s/b"".txt"' % folder]
    assert gzip.decompress(data) == b"".join(
        b"%d,%d,%d,%b,%d\r\n" % (2 * i, 2 * i + 2, i, names[i // 3000], 6 * (i % 3000)) for i in range(6000)
    )


def test_x1_x2_the_index_and_where_documents_came_from(tmp_path):
    """X1, X2: of whichever format, counted in the tokens of the split."""
    for name in registry.FORMATS:
        folder, _ = mill(tmp_path, name, format=name, index=True, provenance=True, **SHARDED.get(name, {}))
        side = registry.get(name).eot_side
        marked = [reference.tokens("r50k_base", [text], eot=50256, side=side) for text in DOCUMENTS]
        begins = np.cumsum([0, *(len(text) + 2 for text in DOCUMENTS)])
        by_place = {int(begin): len(ids) for begin, ids in zip(begins, marked, strict=False)}
        for split in ("train", "val"):
            ends = np.fromfile(folder / f"{split}.ends", "<u8")
            places = np.fromfile(folder / f"{split}.places", "<u8").reshape(-1, 2)
            sizes = np.diff(ends, prepend=np.uint64(0)).tolist()
            assert len(places) == len(ends) and not places[:, 0].any()
            cut = {0, len(sizes) - 1} if registry.get(name).first_shard_is_val else set()
            for number, (size, place) in enumerate(zip(sizes, places[:, 1].tolist(), strict=True)):
                assert size == by_place[place] or number in cut


def test_x4_the_index_as_an_array(tmp_path):
    """X4: what torchtitan's example of a memory-mapped source reads; not where a split is many files, or all are shards."""
    for name, form in registry.FORMATS.items():
        folder, made = mill(tmp_path, name, format=name, index=True, **SHARDED.get(name, {}))
        there = {path.name for path in folder.glob("*document_offsets.npy")}
        splits = {file.split for file in made.files}
        assert there == (set() if form.sharded else {f"{split}.document_offsets.npy" for split in splits})
        for split in splits if there else ():
            offsets = np.load(folder / f"{split}.document_offsets.npy", mmap_mode="r")
            ends = np.fromfile(folder / f"{split}.ends", "<i8")
            assert offsets.dtype == np.int64 and offsets[0] == 0 and (offsets[1:] == ends).all()
            assert offsets[-1] == sum(file.tokens for file in made.files if file.split == split)


def test_x3_passages_of_running_text_end_together(tmp_path):
    """X3: a document that is parted between train and val has an end in both."""
    text = "\n".join(f"Line {i} of a text without documents, {i * i} words." for i in range(9000))
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text(text * 3)
    spec = Spec(inputs=[tmp_path / "0.txt", tmp_path / "1.txt"], output=tmp_path / "out", val_fraction=0.2, index=True)
    made = prepare(spec).manifest
    for file in made.files:
        ends = np.fromfile(tmp_path / "out" / f"{file.split}.ends", "<u8").tolist()
        assert len(ends) == 2 and ends[-1] == file.tokens


def test_s1_side_files_are_in_the_manifest(tmp_path):
    """S1"""
    folder, made = mill(tmp_path, format="megatron", index=True, val_fraction=0)
    content = json.loads((folder / "manifest.json").read_text())
    assert {(side["name"], side["kind"], side["bytes"]) for side in content["sides"]} == {
        (name, kind, (folder / name).stat().st_size)
        for name, kind in (
            ("train.idx", "megatron-index"),
            ("train.ends", "ends"),
            ("train.document_offsets.npy", "offsets"),
            ("token_bytes.npy", "token-bytes"),
        )
    }
    assert content["files"][0]["offset"] == 0 and made.files[0].offset == 0


def test_patched_headers_have_the_right_checksums(tmp_path, monkeypatch):
    import xxhash

    for segment in (64, 300, 64 << 20):
        monkeypatch.setattr(growing, "SEGMENT_BYTES", max(segment, 128))
        folder, made = mill(tmp_path, str(segment), format="build-nanogpt", shard_tokens=700)
        for file in made.files:
            data, size = (folder / file.name).read_bytes(), max(segment, 128)
            assert list(file.checksums) == [
                xxhash.xxh3_64_hexdigest(data[i : i + size]) for i in range(0, len(data), size)
            ]


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"format": "nanogpt", "shard_tokens": 100}, "one file per split; leave it out, or choose the format shards"),
        ({"format": "megatron", "shard_tokens": 100}, "one file per split"),
        ({"format": "shards"}, "has no default shard length"),
        ({"format": "nanogpt", "split": "first-shard"}, "has no shards"),
        ({"format": "build-nanogpt", "val_fraction": 0.1}, "the first shard is the validation set"),
        ({"format": "build-nanogpt"}, "nothing would be left to train on"),
        ({"format": "modded-nanogpt", "eot": "after"}, "so there must be one before"),
        ({"format": "modded-nanogpt", "tokenizer": "cl100k_base"}, "version 1, which hold uint16"),
        ({"format": "llmc", "shard_tokens": 2_000_000_000}, "32-bit"),
        ({"format": "nanogpt", "provenance": True}, "pass --index"),
        ({"format": "parquet"}, "not known; choose one of nanogpt"),
        ({"format": "shards", "shard_tokens": 0}, "less than 1"),
        ({"tokenizer": "cl100k_base", "dtype": "uint16"}, "uint16 ends at 65,535"),
    ],
)
def test_choices_that_contradict_the_format_are_refused_with_the_reason(tmp_path, choices, reason):
    (tmp_path / "a.txt").write_text(HELLO)
    with pytest.raises(UsageError, match=reason):
        prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", **choices))
    assert not (tmp_path / "out").exists()


def test_modded_nanogpt_gets_its_end_of_text_token_even_for_a_single_text(tmp_path):
    (tmp_path / "a.txt").write_text("Hello world")
    spec = Spec(
        inputs=[tmp_path / "a.txt"], output=tmp_path / "out", format="modded-nanogpt", split="hash", val_fraction=0
    )
    assert prepare(spec).manifest.eot_side == "before"


def test_many_shards_need_few_descriptors(tmp_path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    (tmp_path / "a.txt").write_text("##".join(DOCUMENTS * 4))
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="##", format="shards", shard_tokens=50)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 90 if os.path.isdir("/proc") else 160, hard)
    )
    try:
        made = prepare(spec, limits=Limits(engine="reference", block_bytes=400, checkpoint_seconds=0)).manifest
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    train = [file.tokens for file in made.files if file.split == "train"]
    assert len(train) > 300 and set(train[:-1]) == {50}


def test_an_error_in_the_writing_stops_the_job(tmp_path, monkeypatch):
    """It hung once: what failed in the writing was handed in as the result of a Block, while nobody wrote any more."""

    def full(_self, *_):
        raise TemporaryError("no space left")

    monkeypatch.setattr(GrowingFile, "write", full)
    with pytest.raises(TemporaryError, match="no space left"):
        mill(tmp_path)


def test_another_format_overwrites_the_files_of_the_one_before(tmp_path):
    folder, _ = mill(tmp_path, format="shards", shard_tokens=700, index=True)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=folder, separator="##", format="megatron", val_fraction=0)
    (folder / "mine.txt").write_text("mine")
    prepare(spec, overwrite=True)
    assert names(folder) == {"train.bin", "train.idx", "mine.txt"}


# It has shards, and rows in files of their own; the matrix kills jobs of every format.
_QUICK = ("olmo",)


@pytest.mark.parametrize(
    "name", [*_QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in registry.FORMATS if name not in _QUICK)]
)
def test_the_same_bytes_after_kills_at_any_step(tmp_path, name):
    """I1, I4: a process is ended at a step, and the next goes on from what is on disk, again and again."""
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).parent / "killed.py",
            name,
            tmp_path,
            json.dumps(SHARDED.get(name, {})),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 15, "kills"
