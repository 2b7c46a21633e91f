"""datatrove's own dataset class, as nanotron has it: sequences of 64 tokens, and where in its document each stands."""

import json
import sys

from datatrove.utils.dataset import DatatroveFolderDataset

SEQUENCE = 64
folder, found, starts = sys.argv[1], {"train": [], "val": []}, {}
for split, tokens in found.items():
    seen = DatatroveFolderDataset(
        folder,
        seq_len=SEQUENCE - 1,
        filename_pattern=f"*{split}.ds",
        token_size=2,
        shuffle=False,
        return_positions=True,
    )
    rows = [seen[i] for i in range(len(seen))]
    tokens += [token for row in rows for token in row["input_ids"].tolist()]
    places = [place for row in rows for place in row["positions"].tolist()]
    starts[split] = [i for i, place in enumerate(places) if place == 0]
json.dump({"tokens": found, "starts": starts, "block": SEQUENCE}, sys.stdout)
