"""Reads a folder as modded-nanogpt's loader does: the header by torch.from_file, then the tokens into a uint16 tensor."""

import glob
import json
import sys

import torch


def load_shard(path):
    header = torch.from_file(path, False, 256, dtype=torch.int32)
    assert header[0] == 20240520, "magic number"
    assert header[1] == 1, "version"
    count = int(header[2])
    with open(path, "rb", buffering=0) as f:
        tokens = torch.empty(count, dtype=torch.uint16)
        f.seek(256 * 4)
        read = f.readinto(tokens.numpy())
        assert read == 2 * count, "number of tokens read does not match the header"
    return tokens.to(torch.int64)


folder, found = sys.argv[1], {}
for split in ("train", "val"):
    found[split] = torch.cat([load_shard(path) for path in sorted(glob.glob(f"{folder}/fineweb_{split}_*.bin"))])
starts = {split: (tokens == 50256).nonzero().flatten().tolist() for split, tokens in found.items()}
json.dump({"tokens": {split: tokens.tolist() for split, tokens in found.items()}, "starts": starts}, sys.stdout)
