"""mds and litdata: their bytes, what is refused, and their subfolders. FORMAT.md, clauses Q and L."""

import json
import struct

import numpy as np
import pytest

import reference
import shardmill
from shardmill import Limits, Spec, Target, prepare
from shardmill.errors import InputError, OutputError, UsageError
from shardmill.formats import registry
from shardmill.results import eot

HELLO = "Hello world\nHello\n"  # 15496 995 and 15496 in GPT-2
TOKENS = [15496, 995, 50256, 15496, 50256]
LIMITS = Limits(engine="reference", workers=1)


def mill(root, format, text=HELLO, **choices):
    (root / "a.txt").write_text(text)
    spec = Spec(
        inputs=[root / "a.txt"], output=root / "out", separator="\\n", format=format, **{"val_fraction": 0, **choices}
    )
    return prepare(spec, limits=LIMITS)


def names(folder):
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return found - {"token_bytes.npy"}


def mds_config(encoding, size):
    return (
        b'{"column_encodings": ["%s"], "column_names": ["tokens"], "column_sizes": [%d], "compression": null, '
        b'"format": "mds", "hashes": [], "size_limit": null, "version": 2}' % (encoding, size)
    )


def test_q1_q2_an_mds_shard(tmp_path):
    """Q1, Q2: golden bytes; the second shard has fewer samples, and zeros where their places would be."""
    made = mill(tmp_path, "mds", HELLO + "Hello\nHello world\n", shard_tokens=6, sample_tokens=2).manifest
    assert names(tmp_path / "out") - {"manifest.json", "run.json"} == {
        "train/index.json",
        "train/shard.00000.mds",
        "train/shard.00001.mds",
    }
    config = mds_config(b"ndarray:uint16:2", 4)
    first = 20 + len(config)
    assert (tmp_path / "out/train/shard.00000.mds").read_bytes() == (
        struct.pack("<5I", 3, first, first + 4, first + 8, first + 12) + config + struct.pack("<6H", *TOKENS, 15496)
    )
    assert (tmp_path / "out/train/shard.00001.mds").read_bytes() == (
        struct.pack("<4I", 2, first, first + 4, first + 8)
        + config
        + bytes(4)
        + struct.pack("<4H", 50256, 15496, 995, 50256)
    )
    assert [(file.tokens, file.offset) for file in made.files] == [(6, first), (4, first)]


def test_q3_the_index_of_mds(tmp_path):
    """Q3: golden bytes; 32 bits are called int32."""
    mill(tmp_path, "mds", shard_tokens=4, sample_tokens=2, dtype="uint32")
    config = mds_config(b"ndarray:int32:2", 8)
    size = 16 + len(config) + 5 * 4
    assert (tmp_path / "out/train/index.json").read_bytes() == (
        b'{"shards": [{'
        + config[1:-1].replace(
            b'"size_limit"',
            b'"raw_data": {"basename": "shard.00000.mds", "bytes": %d, "hashes": {}}, "samples": 2, "size_limit"'
            % size,
        )
        + b', "zip_data": null}], "version": 2}'
    )


@pytest.mark.parametrize("format", ["mds", "litdata"])
def test_q4_l3_what_does_not_fill_a_sample_is_joined_to_the_shard_before(tmp_path, format):
    """Q4, L3: no token is lost, and none is in a shard without samples."""
    for count, sample, sizes in ((40, 12, [36, 36, 36, 36, 36, 20]), (30, 18, [36, 36, 36, 42])):
        (tmp_path / str(count)).mkdir()
        made = mill(tmp_path / str(count), format, HELLO * count, shard_tokens=36, sample_tokens=sample).manifest
        assert [file.tokens for file in made.files] == sizes
        assert shardmill.open(tmp_path / str(count) / "out")["train"][:].tolist() == TOKENS * count


def test_a_split_without_a_whole_sample_is_told(tmp_path):
    (note,) = mill(tmp_path, "mds", sample_tokens=6, shard_tokens=6).notes
    assert note.startswith("train has about 5 tokens, fewer than one sample of 6 (--sample-tokens)")
    index = json.loads((tmp_path / "out/train/index.json").read_text())
    assert [shard["samples"] for shard in index["shards"]] == [0]


def test_l1_l2_litdata_chunks_and_their_index(tmp_path):
    """L1, L2: golden bytes; what tells a changed dataset from this one is made of its checksums, not of the time."""
    made = mill(tmp_path, "litdata", shard_tokens=4, sample_tokens=1, eot="before", val_fraction=0.5).manifest
    assert names(tmp_path / "out") >= {"train/index.json", "val/index.json", "train/chunk-0-0.bin", "val/chunk-0-0.bin"}
    train = tmp_path / "out/train"
    tokens = shardmill.open(tmp_path / "out")["train"][:].tolist()
    data = struct.pack(f"<3I{len(tokens)}H", 1, 12, 12 + 2 * len(tokens), *tokens)
    assert (train / "chunk-0-0.bin").read_bytes() == data
    index = json.loads((train / "index.json").read_text())
    digest = index.pop("updated_at")
    assert len(digest) == 16 and digest != json.loads((tmp_path / "out/val/index.json").read_text())["updated_at"]
    assert index == {
        "chunks": [{"chunk_bytes": len(data), "chunk_size": 1, "dim": len(tokens), "filename": "chunk-0-0.bin"}],
        "config": {
            "chunk_bytes": None,
            "chunk_size": 4,
            "compression": None,
            "data_format": ["no_header_tensor:20"],
            "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
            "encryption": None,
            "item_loader": "TokensLoader",
        },
    }
    assert {side.kind for side in made.sidecars} == {"shards", "token-bytes"}
    wide = shardmill.convert(tmp_path / "out", Target(output=tmp_path / "wide", format="litdata"))
    assert wide.dtype == "uint16"


def test_wide_tokens_are_int32_in_litdata(tmp_path):
    mill(tmp_path, "litdata", dtype="uint32")
    index = json.loads((tmp_path / "out/train/index.json").read_text())
    assert index["config"]["data_format"] == ["no_header_tensor:16"]
    assert (tmp_path / "out/train/chunk-0-0.bin").read_bytes() == struct.pack("<3I5I", 1, 12, 32, *TOKENS)


def test_shards_are_whole_samples_and_short_enough_for_32_bits():
    mds, litdata, narrow = registry.get("mds"), registry.get("litdata"), np.dtype("<u2")
    assert registry.choose_shape(mds, narrow, None, None).shard_tokens == 1 << 25
    assert registry.choose_shape(mds, narrow, None, 3000).shard_tokens == (1 << 25) // 3000 * 3000
    assert registry.choose_shape(litdata, narrow, None, None).shard_tokens == (1 << 25) // 2049 * 2049
    for form in (mds, litdata):
        assert registry.choose_shape(form, narrow, 901, 100).shard_tokens == 1000
        with pytest.raises(UsageError, match="must stay below 4 GiB"):
            registry.choose_shape(form, narrow, 1 << 31, 2048)
        with pytest.raises(UsageError, match="holds at most 1,048,576"):
            registry.choose_shape(form, narrow, 1 << 21, 1)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"format": "nanogpt", "sample_tokens": 100}, "has no samples; leave it out"),
        ({"format": "mds", "sample_tokens": 0}, "less than 1"),
    ],
)
def test_choices_that_contradict_samples_are_refused(tmp_path, choices, reason):
    with pytest.raises(UsageError, match=reason):
        mill(tmp_path, **choices)
    assert not (tmp_path / "out").exists()


def test_convert_takes_other_samples(tmp_path):
    mill(tmp_path, "mds", HELLO * 40, shard_tokens=36, sample_tokens=12)
    shardmill.convert(tmp_path / "out", Target(output=tmp_path / "new", sample_tokens=7))
    index = json.loads((tmp_path / "new/train/index.json").read_text())
    assert [shard["samples"] for shard in index["shards"]] == [200 // 7]
    with pytest.raises(UsageError, match="has no samples"):
        shardmill.convert(tmp_path / "out", Target(output=tmp_path / "raw", format="nanogpt", sample_tokens=7))


def test_a_link_or_a_file_where_the_subfolder_must_be_is_refused(tmp_path):
    """I8: nothing is written outside the output folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="train: is a symlink or a file where a folder is needed"):
        mill(tmp_path, "mds")
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "out/train").unlink()
    (tmp_path / "out/train").write_text("mine")
    with pytest.raises(OutputError, match="is a symlink or a file"):
        mill(tmp_path, "mds")
    assert (tmp_path / "out/train").read_text() == "mine"


def test_overwriting_leaves_what_is_not_ours_in_the_subfolder(tmp_path):
    """I8"""
    mill(tmp_path, "litdata", val_fraction=0.5)
    (tmp_path / "out/train/mine.txt").write_text("mine")
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n", val_fraction=0)
    prepare(spec, limits=LIMITS, overwrite=True)
    assert names(tmp_path / "out") == {"train.bin", "train/mine.txt", "manifest.json", "run.json"}
    assert not (tmp_path / "out/val").exists()
    (tmp_path / "new/train").mkdir(parents=True)
    (tmp_path / "new/train/index.json").write_text("{}")
    with pytest.raises(OutputError, match="exists, and shardmill did not write it"):
        shardmill.convert(tmp_path / "out", Target(output=tmp_path / "new", format="mds"))


def test_chunks_of_many_items_that_another_program_made_are_read(tmp_path):
    """T5: as LitGPT makes them, an item for each document, int32, one folder for all."""
    items = [[*reference.encode("r50k_base", text), 50256] for text in ("Hello world", "Hello", "Hello world Hello")]
    offsets = np.cumsum([4 * (2 + len(items)), *(4 * len(item) for item in items)])
    data = struct.pack(f"<{1 + len(offsets)}I", len(items), *offsets.tolist())
    data += b"".join(np.array(item, "<i4").tobytes() for item in items)
    (tmp_path / "lit").mkdir()
    (tmp_path / "lit/chunk-0-0.bin").write_bytes(data)
    tokens = [token for item in items for token in item]
    chunk = {"chunk_bytes": len(data), "chunk_size": len(items), "dim": len(tokens), "filename": "chunk-0-0.bin"}
    index = {"chunks": [chunk], "config": {"data_format": ["no_header_tensor:16"], "compression": None}}

    def convert(index):
        (tmp_path / "lit/index.json").write_text(json.dumps(index))
        target = Target(output=tmp_path / "new", format="megatron", overwrite=True)
        return shardmill.convert(tmp_path / "lit", target, eot_id=50256)

    convert(index)
    assert shardmill.open(tmp_path / "new")["train"][:].tolist() == tokens
    for change, reason in (
        ({"chunks": [{**chunk, "dim": 3}]}, "announces 3 tokens, and its 56 bytes hold 9"),
        ({"chunks": [{**chunk, "filename": "../lit/chunk-0-0.bin"}]}, "which is not in the same folder"),
        ({"config": {"data_format": ["jpeg"]}}, "supported: tokens of TokensLoader"),
        ({"config": {}}, "is not an index of litdata"),
        ({"chunks": []}, "lists any shard"),
    ):
        with pytest.raises(InputError, match=reason):
            convert({**index, **change})


def test_mds_that_cannot_be_read_is_refused_with_the_reason(tmp_path):
    mill(tmp_path, "mds", HELLO * 9, shard_tokens=10, sample_tokens=5)
    folder = tmp_path / "out"
    (folder / "manifest.json").unlink()
    index = json.loads((folder / "train/index.json").read_text())
    (first, *rest) = index["shards"]
    for change, reason in (
        ({"column_encodings": ["ndarray:float32"]}, "supported: a single column tokens"),
        ({"column_encodings": ["ndarray:uint16"]}, "a sample at byte .* is not one row of 2 tokens"),
        ({"column_encodings": ["ndarray:int32"], "samples": 7}, "does not list the 7 samples"),
        ({"column_encodings": ["ndarray:int64"]}, "sample 0 has 10 bytes, not a multiple of 8-byte tokens"),
        ({"compression": "zstd"}, "compression zstd"),
        ({"raw_data": {**first["raw_data"], "bytes": 7}}, "index.json says 7"),
        ({"raw_data": {**first["raw_data"], "basename": "gone.mds"}}, "no such file"),
    ):
        (folder / "train/index.json").write_text(json.dumps({**index, "shards": [{**first, **change}, *rest]}))
        with pytest.raises(InputError, match=reason):
            shardmill.convert(folder, Target(output=tmp_path / "new", format="nanogpt"))


def mds_of_samples(folder, samples, dtype):
    """As mosaicml-streaming writes `ndarray:DTYPE`: each sample with its size, axes and length before its tokens."""
    folder.mkdir(parents=True)
    encoded = []
    for tokens in samples:
        width = 1 if len(tokens) < 1 << 8 else 2 if len(tokens) < 1 << 16 else 4
        axes = struct.pack("<B", 1 << 2 | width.bit_length() - 1) + len(tokens).to_bytes(width, "little")
        body = axes + np.array(tokens, dtype).tobytes()
        encoded.append(struct.pack("<I", len(body)) + body)
    config = {"column_names": ["tokens"], "column_encodings": [f"ndarray:{dtype}"], "column_sizes": [None]}
    config |= {"compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2}
    text = json.dumps(config, sort_keys=True).encode()
    places = np.cumsum([4 * (2 + len(samples)) + len(text), *map(len, encoded)]).astype("<u4").tobytes()
    data = struct.pack("<I", len(samples)) + places + text + b"".join(encoded)
    (folder / "shard.00000.mds").write_bytes(data)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = {**config, "raw_data": raw, "samples": len(samples), "zip_data": None}
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))


@pytest.mark.parametrize("lengths", [[2048] * 5, [1, 255, 256, 70_000, 3, 65_535, 65_536, 9]])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16"])
def test_what_llm_foundry_writes_is_read(tmp_path, monkeypatch, dtype, lengths):
    """T5: it gives no shape, so each sample has its own."""
    monkeypatch.setattr(eot, "_CHUNK_TOKENS", 1001)
    chance = np.random.default_rng(7)
    samples = [chance.integers(0, 50257, length).tolist() for length in lengths]
    mds_of_samples(tmp_path / "mds/train", samples, dtype)
    mds_of_samples(tmp_path / "mds/val", samples[:2], dtype)
    made = shardmill.convert(tmp_path / "mds", Target(output=tmp_path / "new", format="nanogpt", dtype="uint16"))
    new = shardmill.open(tmp_path / "new")
    assert made.dtype == "uint16" and shardmill.verify(tmp_path / "new").ok
    assert new["train"][:].tolist() == [token for sample in samples for token in sample]
    assert new["val"][:].tolist() == [*samples[0], *samples[1]]


def test_samples_of_more_than_one_axis_and_negative_ids_are_refused(tmp_path):
    target = Target(output=tmp_path / "new", format="nanogpt")
    mds_of_samples(tmp_path / "padded", [[1, 2, -100, 4]], "int32")
    with pytest.raises(InputError, match=r"token 2 of train is 4,294,967,196 \(-100 as a signed integer\)"):
        shardmill.convert(tmp_path / "padded", target)
    mds_of_samples(tmp_path / "square", [[1, 2, 3, 4]] * 3, "int32")
    shard = tmp_path / "square/shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b"\x12\0\0\0\x04\x04", b"\x12\0\0\0\x08\x02"))
    with pytest.raises(InputError, match="more than one dimension"):
        shardmill.convert(tmp_path / "square", target)
    assert not (tmp_path / "new").exists()
