"""Windows are a source for Grain as they are: torchtitan and MaxText read them. `make faces` runs this."""

import random
from pathlib import Path

import numpy as np
import pytest

grain = pytest.importorskip("grain")

import shardmill  # noqa: E402
from feeding import firsts, milled, positions, texts_of  # noqa: E402
from shardmill import Windows  # noqa: E402


def test_windows_are_a_source_for_grain(tmp_path):
    rows = Windows(positions(tmp_path, 2001, shards=2), length=10, seed=1)
    dataset = grain.MapDataset.source(rows).batch(8)
    assert len(dataset) == 25 and firsts(dataset[3]) == firsts(rows.batch(range(24, 32)))
    iterator = iter(dataset.to_iter_dataset())
    for _ in range(5):
        next(iterator)
    state = iterator.get_state()
    again = iter(dataset.to_iter_dataset())
    again.set_state(state)
    assert firsts(next(again)) == firsts(next(iterator)) == firsts(rows.batch(range(40, 48)))


def test_what_torchtitan_calls_pretokenized_data(tmp_path):
    """Its README maps tokens.bin as uint32, loads document_offsets.npy, and takes documents by number."""
    out = Path(milled(tmp_path, texts_of(random.Random(1), 90), index=True, dtype="uint32"))

    class Pretokenized:
        tokens = np.memmap(out / "train.bin", dtype=np.uint32, mode="r")
        offsets = np.load(out / "train.document_offsets.npy")

        def __len__(self):
            return len(self.offsets) - 1

        def __getitem__(self, index):
            start, end = self.offsets[index : index + 2]
            return np.asarray(self.tokens[start:end], dtype=np.int64)

    dataset = grain.MapDataset.source(Pretokenized())
    documents = [document.tolist() for document in shardmill.open(out)["train"].documents()]
    assert [dataset[i].tolist() for i in range(len(dataset))] == documents
