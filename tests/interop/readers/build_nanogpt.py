"""Reads a folder as build-nanogpt's loader does: every file with the split in its name, in order, as torch.long."""

import json
import os
import sys

import numpy as np
import torch


def load_tokens(path):
    return torch.tensor(np.load(path).astype(np.int32), dtype=torch.long)


folder, found = sys.argv[1], {}
for split in ("train", "val"):
    shards = sorted(os.path.join(folder, name) for name in os.listdir(folder) if split in name)
    found[split] = torch.cat([load_tokens(path) for path in shards]).tolist()
json.dump({"tokens": found}, sys.stdout)
