"""mosaicml-streaming's StreamingDataset, each sample as LLM Foundry's StreamingTextDataset turns it into a tensor."""

import json
import sys

import torch
from streaming import StreamingDataset

CONTEXT = 70
folder, found = sys.argv[1], {}
for split in ("train", "val"):
    seen = StreamingDataset(local=folder, split=split, shuffle=False, batch_size=1)
    samples = [torch.from_numpy(seen[i]["tokens"][:CONTEXT].copy()).to(torch.int64) for i in range(len(seen))]
    assert all(sample.shape == (CONTEXT,) for sample in samples)
    found[split] = torch.cat(samples).tolist()
json.dump({"tokens": found, "unseen": CONTEXT}, sys.stdout)
