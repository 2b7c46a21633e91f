"""Reads a folder as nanoGPT's get_batch does, but at one place after the other: a fresh memmap, inputs and targets."""

import json
import os
import sys

import numpy as np
import torch

BLOCK = 64
folder, found = sys.argv[1], {"train": [], "val": []}
for split, tokens in found.items():
    while True:
        data = np.memmap(os.path.join(folder, f"{split}.bin"), dtype=np.uint16, mode="r")
        at = len(tokens)
        if at == len(data):
            break
        x = torch.from_numpy(data[at : at + BLOCK].astype(np.int64))
        y = torch.from_numpy(data[at + 1 : at + 1 + BLOCK].astype(np.int64))
        assert torch.equal(x[1:], y[: len(x) - 1])
        tokens += x.tolist()
json.dump({"tokens": found}, sys.stdout)
