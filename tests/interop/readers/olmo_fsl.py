"""OLMo-core's NumpyFSLDataset: instances of 50 tokens; and where its rows in .csv.gz say that documents begin."""

import glob
import json
import os
import sys
import tempfile

from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.utils import iter_document_indices

SEQUENCE, SHARD = 50, 5000
GPT2 = TokenizerConfig(vocab_size=50257, eos_token_id=50256, pad_token_id=50256)
folder, found, starts = sys.argv[1], {"train": [], "val": []}, {}
for split, tokens in found.items():
    seen = NumpyFSLDatasetConfig.glob(
        f"{folder}/{split}-*.npy",
        tokenizer=GPT2,
        sequence_length=SEQUENCE,
        dtype=NumpyDatasetDType.uint16,
        work_dir=tempfile.mkdtemp(dir=os.path.dirname(folder)),
    ).build()
    seen.prepare()
    tokens += [token for i in range(len(seen)) for token in seen[i]["input_ids"].tolist()]
    rows = [
        number * SHARD + start
        for number, path in enumerate(sorted(glob.glob(f"{folder}/{split}-*.npy")))
        for start, _ in iter_document_indices(path, use_array_if_local=False)
    ]
    starts[split] = [start for start in rows if start < len(tokens)]
json.dump({"tokens": found, "starts": starts, "block": SHARD, "unseen": SEQUENCE}, sys.stdout)
