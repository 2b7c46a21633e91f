"""Windows are a source for Grain as they are: torchtitan and MaxText read them. `make faces` runs this."""

import pytest

grain = pytest.importorskip("grain")

from feeding import firsts, positions  # noqa: E402
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
