"""FORMAT.md, clause by clause."""

import json
import os

import numpy as np
import pytest
import xxhash

from shardmill import Limits, Spec, prepare
from shardmill.formats import output_files
from shardmill.io.reading import InputReader, sample
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import load

DOCUMENTS = [
    f"Document {i} tells of the mill, the miller and {i * 7919} sacks of text.\n" * (i % 9 + 1) for i in range(300)
]


@pytest.fixture(scope="module")
def encode():
    reference = load_reference(load("gpt2"))
    return lambda text: reference.encode(text.encode()).tolist()


def mill(tmp_path, *, name="out", **choices):
    (tmp_path / "a.txt").write_text("##".join(DOCUMENTS))
    prepared = prepare(
        Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / name, separator="##", **choices),
        limits=Limits(workers=2, block_bytes=5000),
    )
    return tmp_path / name, prepared.manifest


@pytest.mark.parametrize(("tokenizer", "dtype"), [("gpt2", "<u2"), ("cl100k_base", "<u4"), ("o200k_base", "<u4")])
def test_r1_r2_files_are_bare_little_endian_integers_of_the_smallest_size_that_fits(tmp_path, tokenizer, dtype):
    """R1, R2"""
    folder, made = mill(tmp_path, tokenizer=tokenizer, val_fraction=0)
    reference = load_reference(load(tokenizer))
    eot = load(tokenizer).specials["<|endoftext|>"]
    expected = [token for text in DOCUMENTS for token in [*reference.encode(text.encode()).tolist(), eot]]
    assert (folder / "train.bin").read_bytes() == np.array(expected, dtype).tobytes()
    assert np.dtype(made.dtype) == np.dtype(dtype)


def test_r3_r4_documents_keep_their_order_and_get_their_end(tmp_path, encode):
    """R3, R4"""
    for side in ("after", "before", "none"):
        folder, made = mill(tmp_path, name=side, eot=side, val_fraction=0.05)
        got = {split: np.fromfile(folder / f"{split}.bin", "<u2").tolist() for split in ("train", "val")}
        at = {"train": 0, "val": 0}
        for text in DOCUMENTS:
            ids = encode(text)
            whole = {"after": [*ids, 50256], "before": [50256, *ids], "none": ids}[side]
            split = next(s for s in ("val", "train") if got[s][at[s] : at[s] + len(whole)] == whole)
            at[split] += len(whole)
        assert at == {split: len(ids) for split, ids in got.items()}
        assert made.counts.documents_val == 15


def test_r5_a_split_without_tokens_has_no_file(tmp_path):
    """R5"""
    folder, _ = mill(tmp_path, val_fraction=0)
    assert sorted(os.listdir(folder)) == ["manifest.json", "run.json", "token_bytes.npy", "train.bin"]


def test_r6_m1_what_grows_is_partial_and_the_manifest_comes_last(tmp_path, monkeypatch):
    """R6, M1: seen through the order of renames."""
    named = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda a, b: (named.append((os.path.basename(a), os.path.basename(b))), replace(a, b))
    )
    mill(tmp_path, val_fraction=0.05)
    assert named[-1] == ("manifest.json.partial", "manifest.json")
    assert {("train.bin.partial", "train.bin"), ("val.bin.partial", "val.bin")} <= set(named[:-1])


def test_m2_to_m6_m8_j1_the_manifest_says_all_of_it(tmp_path):
    """M2, M3, M4, M5, M6, M8, J1"""
    folder, _ = mill(tmp_path, val_fraction=0.05)
    text = (folder / "manifest.json").read_text()
    assert text.isascii() and text.startswith('{\n "format": 4,\n "checksum": "') and text.endswith("\n")
    content = json.loads(text)
    rest = text.partition(f' "checksum": "{content["checksum"]}",\n')[2]
    assert content["checksum"] == xxhash.xxh3_128_hexdigest(rest.encode())
    assert list(content)[1:] == sorted(list(content)[1:])
    assert set(content["job"]) == {"choices", "inputs", "tokenizer_sha256", "vocabulary_size"}
    assert content["job"]["inputs"] == [
        {
            "path": str(tmp_path / "a.txt"),
            "bytes": (tmp_path / "a.txt").stat().st_size,
            "sample": sample(InputReader(str(tmp_path / "a.txt"))),
        }
    ]
    for file in content["files"]:
        data = (folder / file["name"]).read_bytes()
        assert (file["bytes"], file["tokens"]) == (len(data), len(data) // 2)
        assert file["checksums"] == [xxhash.xxh3_64_hexdigest(data)]
    assert (
        content["counts"]["documents"] == 300
        and content["counts"]["input_bytes"] == content["job"]["inputs"][0]["bytes"]
    )
    assert content["dtype"] == "uint16" and content["eot"] == {"id": 50256, "side": "after"}
    assert "checked_bytes" in json.loads((folder / "run.json").read_text())


def test_m4_checksums_are_of_segments(tmp_path, monkeypatch):
    """M4"""
    monkeypatch.setattr(output_files, "SEGMENT_BYTES", 1000)
    folder, made = mill(tmp_path, val_fraction=0)
    data = (folder / "train.bin").read_bytes()
    assert list(made.files[0].checksums) == [
        xxhash.xxh3_64_hexdigest(data[i : i + 1000]) for i in range(0, len(data), 1000)
    ]
