"""Megatron's IndexedDataset: every document by its number."""

import json
import sys

from megatron.core.datasets.indexed_dataset import IndexedDataset

folder, found, starts = sys.argv[1], {"train": [], "val": []}, {"train": [], "val": []}
for split, tokens in found.items():
    seen = IndexedDataset(f"{folder}/{split}")
    assert len(seen.document_indices) == len(seen) + 1
    for number in range(len(seen)):
        starts[split].append(len(tokens))
        tokens += seen[number].tolist()
json.dump({"tokens": found, "starts": starts}, sys.stdout)
