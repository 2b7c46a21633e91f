"""Token files whose tokens are their own positions, so that a row shows where it was read."""

import json

import numpy as np

from shardmill import Source, Spec, prepare


def positions(folder, count, *, base=0, shards=1, name="train"):
    """Raw uint32 in several files: token i is base + i."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.arange(base, base + count, dtype="<u4")
    for number, part in enumerate(np.array_split(tokens, shards)):
        part.tofile(folder / f"{name}-{number:05}.bin")
    return Source(path=folder, from_format="shards", from_dtype="uint32")


def milled(folder, texts, **options):
    """An output of shardmill: each text is a document."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "in.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return prepare(Spec(inputs=[lines], output=folder / "out", val_fraction=0, **options)).output


def texts_of(rng, count, longest=120):
    return [" ".join(["the mill turns text"] * rng.randint(1, longest // 4)) + f" {i}" for i in range(count)]


def firsts(batch):
    return batch["input_ids"][:, 0].tolist()
