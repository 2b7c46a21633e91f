"""`make interop`: the programs that train on these formats read our files with their own code.

Each has an environment of its own under .interop/, made when it is missing. What could not be installed is said.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import shardmill

ROOT = Path(".interop")
DOCUMENTS = [f"Document {i} tells of the mill, the miller and {i * 7919} sacks.\n" * (i % 7 + 1) for i in range(500)]

DATATROVE = """
import json, sys
from datatrove.utils.dataset import DatatroveFolderDataset
folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
seen = DatatroveFolderDataset(folder, seq_len=63, filename_pattern="*train.ds", token_size=2, shuffle=False, return_positions=True)
rows = [seen[i] for i in range(len(seen))]
tokens = [token for row in rows for token in row["input_ids"].tolist()]
assert tokens == expected["tokens"][: len(tokens)] and len(expected["tokens"]) - len(tokens) < 64, "tokens differ"
starts = {0, *expected["ends"]}
places = [place for row in rows for place in row["positions"].tolist()]
wrong = [i for i in range(0, len(places)) if (places[i] == 0) != (i in starts or i % 64 == 0)]
assert not wrong, f"positions differ at {wrong[:5]}"
print(f"datatrove: {len(rows)} sequences, {len(tokens)} tokens")
"""

MEGATRON = """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
seen = IndexedDataset(folder + "/train")
begin = 0
assert len(seen) == len(expected["ends"]) and len(seen.document_indices) == len(seen) + 1
for i, end in enumerate(expected["ends"]):
    assert seen[i].tolist() == expected["tokens"][begin:end], i
    begin = end
print(f"megatron-core: {len(seen)} documents, {begin} tokens, {seen.index.dtype}")
"""

TORCH = """
import glob, json, sys
import numpy as np, torch
folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
tokens = []
for path in sorted(glob.glob(folder + "/*val*.npy")) + sorted(glob.glob(folder + "/*train*.npy")):
    tokens += torch.tensor(np.load(path).astype(np.int32), dtype=torch.long).tolist()
assert tokens == expected["tokens"], "tokens differ"
print(f"torch: {len(tokens)} tokens of build-nanogpt's shards")
"""

CONSUMERS = {
    "datatrove": ("datatrove", ["torch", "numpy", "datatrove[processing]", "tokenizers"], "datatrove", DATATROVE),
    "megatron": ("megatron", ["torch", "numpy", "megatron-core"], "megatron", MEGATRON),
    "torch": ("build-nanogpt", ["torch", "numpy"], "megatron", TORCH),
}


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "a.txt").write_text("##".join(DOCUMENTS))
        for consumer, (form, packages, environment, code) in CONSUMERS.items():
            folder = work / consumer
            shards = {"shard_tokens": 5000} if form == "build-nanogpt" else {"val_fraction": 0.0}
            spec = shardmill.Spec(
                inputs=(str(work / "a.txt"),), output=str(folder), separator="##", format=form, index=True, **shards
            )
            shardmill.prepare(spec)
            (work / f"{consumer}.json").write_text(json.dumps(_expected(folder)))
            python = _environment(environment, packages)
            if python is None or subprocess.run([python, "-c", code, folder, work / f"{consumer}.json"]).returncode:
                failed.append(consumer)
    print(f"failed: {', '.join(failed)}" if failed else "all of them read what we wrote")
    return bool(failed)


def _expected(folder: Path) -> dict[str, list[int]]:
    corpus = shardmill.open(folder)
    splits = [corpus.splits[split] for split in ("val", "train") if split in corpus.splits]
    return {
        "tokens": [token for split in splits for token in split[:].tolist()],
        "ends": [end for some in splits[-1].document_ends() for end in some.tolist()],
    }


def _environment(name: str, packages: list[str]) -> Path | None:
    """The Python of an environment with these packages; None if they cannot be installed."""
    home = ROOT / name
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], capture_output=True
    )
    if done.returncode:
        print(f"{name}: cannot be installed: {done.stderr.decode()[-300:]}", file=sys.stderr)
        return None
    return python


if __name__ == "__main__":
    sys.exit(main())
