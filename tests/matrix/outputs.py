"""The files of an output, by their bytes → tokens, ends and places, read as FORMAT.md says and by nothing of shardmill."""

import csv
import gzip
import io
import itertools
import json
import struct

import numpy as np

NAMES = {
    "nanogpt": "{split}.bin",
    "shards": "{split}-{n:05}.bin",
    "build-nanogpt": "edufineweb_{split}_{n:06}.npy",
    "llmc": "fineweb_{split}_{n:06}.bin",
    "modded-nanogpt": "fineweb_{split}_{n:06}.bin",
    "megatron": "{split}.bin",
    "datatrove": "{split}.ds",
    "olmo": "{split}-{n:05}.npy",
    "mds": "{split}/shard.{n:05}.mds",
    "litdata": "{split}/chunk-0-{n}.bin",
}
FROM_ONE = {"build-nanogpt", "llmc", "modded-nanogpt"}
JOINED = {"llmc", "modded-nanogpt", "mds", "litdata"}
BESIDES = {"manifest.json", "run.json", "rejects.jsonl", "manifest.inputs.jsonl", "token_bytes.npy"}


def shards(files, form, split):
    """The token files of a split in order, and where the tokens begin in each."""
    first = int(form in FROM_ONE and split == "train")
    names = (NAMES[form].format(split=split, n=n) for n in range(first, first + 10_000))
    found = []
    for name in names:
        if name not in files or (found and found[-1][0] == name):
            return found
        found.append((name, files[name][_header(files[name], form) :]))
    raise AssertionError("so many shards")


def _header(data, form):
    match form:
        case "build-nanogpt":
            return 128
        case "llmc" | "modded-nanogpt":
            return 1024
        case "mds":
            return struct.unpack_from("<I", data, 4)[0]
        case "litdata":
            return 12
    return 0


def told(data, form, dtype, sample):
    """How many tokens the header of a file says that it has; None where there is no header, or it does not say."""
    match form:
        case "build-nanogpt":
            return len(np.load(io.BytesIO(data)))
        case "llmc" | "modded-nanogpt":
            return struct.unpack_from("<3i", data)[2]
        case "mds":
            count = struct.unpack_from("<I", data)[0]
            ends = np.frombuffer(data, "<u4", count + 1, 4)
            assert np.diff(ends).tolist() == [sample * dtype.itemsize] * count
            return None
        case "litdata":
            one, begin, end = struct.unpack_from("<3I", data)
            assert (one, begin) == (1, 12) and end == len(data)
            return (end - 12) // dtype.itemsize
    return None


def ends(files, form, split, documents):
    """All that the files beside the tokens say about where documents end: name → ends."""
    found = {}
    if f"{split}.ends" in files:
        found[f"{split}.ends"] = np.frombuffer(files[f"{split}.ends"], "<u8").tolist()
    if f"{split}.document_offsets.npy" in files:
        offsets = np.load(io.BytesIO(files[f"{split}.document_offsets.npy"])).tolist()
        assert offsets[0] == 0
        found[f"{split}.document_offsets.npy"] = offsets[1:]
    if form == "datatrove" and f"{split}.ds.index" in files:
        found[f"{split}.ds.index"] = np.frombuffer(files[f"{split}.ds.index"], "<u8").tolist()
    if form == "megatron" and f"{split}.idx" in files:
        found[f"{split}.idx"] = _megatron(files[f"{split}.idx"])
    if form == "olmo":
        parts = rows(files, split)
        found[f"{split} rows"] = [
            end for i, (_, end, *_) in enumerate(parts) if i + 1 == len(parts) or parts[i + 1][2] != parts[i][2]
        ]
    return found if documents else {name: value for name, value in found.items() if value}


def _megatron(data):
    assert data[:9] == b"MMIDIDX\0\0"
    _, code, count, more = struct.unpack_from("<QBQQ", data, 9)
    sizes = np.frombuffer(data, "<i4", count, 34)
    begins = np.frombuffer(data, "<i8", count, 34 + 4 * count)
    numbers = np.frombuffer(data, "<i8", count + 1, 34 + 12 * count)
    item = {8: 2, 4: 4}[code]
    assert more == count + 1 and numbers.tolist() == list(range(count + 1)) and len(data) == 34 + 20 * count + 8
    assert begins.tolist() == (item * np.concatenate([[0], np.cumsum(sizes)[:-1]])).astype(int).tolist()[:count]
    return np.cumsum(sizes).tolist()


def rows(files, split):
    """OLMo's: start and end in the split, the number of the document, the path and the place; shard by shard."""
    found, before = [], 0
    for name, tokens in shards(files, "olmo", split):
        text = gzip.decompress(files[name.removesuffix(".npy") + ".csv.gz"]).decode()
        item = _itemsize(files)
        table = [
            (int(a), int(b), int(n), path, int(at)) for a, b, n, path, at in csv.reader(io.StringIO(text, newline=""))
        ]
        assert table[0][0] == 0 and table[-1][1] == len(tokens) // item
        assert all(one[1] == following[0] for one, following in itertools.pairwise(table))
        found += [(before + a, before + b, n, path, at) for a, b, n, path, at in table]
        before += len(tokens) // item
    return found


def _itemsize(files):
    return np.dtype(json.loads(files["manifest.json"])["dtype"]).itemsize


def places(files, split):
    return [tuple(place) for place in np.frombuffer(files[f"{split}.places"], "<u8").reshape(-1, 2).tolist()]
