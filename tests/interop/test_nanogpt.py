"""A reader written from nanoGPT's rules loads our files as they are."""

import numpy as np

from shardmill import Spec, prepare

BLOCK, BATCH = 64, 8


def get_batch(folder, split, rng):
    """What a training loop does: a fresh memmap, random starts, inputs and the same shifted by one."""
    data = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="r")
    starts = rng.integers(0, len(data) - BLOCK, BATCH)
    x = np.stack([data[i : i + BLOCK].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1 : i + 1 + BLOCK].astype(np.int64) for i in starts])
    return x, y


def test_a_nanogpt_loop_reads_both_files(tmp_path):
    prepare(Spec(inputs=["samples/tinyshakespeare.txt"], output=tmp_path, val_fraction=0.1))
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        x, y = get_batch(tmp_path, split, rng)
        assert x.shape == y.shape == (BATCH, BLOCK) and (x[:, 1:] == y[:, :-1]).all()
        assert x.max() < 50257


def test_the_default_validation_set_is_long_enough_for_a_context_of_1024(tmp_path):
    prepare(Spec(inputs=["samples/tinyshakespeare.txt"], output=tmp_path))
    assert len(np.memmap(tmp_path / "val.bin", dtype=np.uint16, mode="r")) > 1025


def test_the_bytes_are_little_endian_and_have_no_header(tmp_path):
    """Golden bytes: "Hello world" is 15496, 995 in GPT-2, and 50256 ends a document."""
    (tmp_path / "a.txt").write_text("Hello world\nHello world\n")
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n", val_fraction=0))
    assert (tmp_path / "out/train.bin").read_bytes() == bytes.fromhex("883ce30350c4883ce30350c4")
    prepare(
        Spec(
            inputs=[tmp_path / "a.txt"],
            output=tmp_path / "wide",
            separator="\\n",
            val_fraction=0,
            dtype="uint32",
            eot="before",
        )
    )
    assert (tmp_path / "wide/train.bin").read_bytes() == bytes.fromhex(
        "50c40000883c0000e303000050c40000883c0000e3030000"
    )
