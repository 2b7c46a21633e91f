"""Shards of samples → what mosaicml-streaming and litdata must know of them: the header of each, and index.json."""

import json
from typing import Any

import numpy as np
import xxhash

from shardmill.formats.shards import Shape, Shard

INDEX = "index.json"
# Both read 32-bit tokens as int32, whose bytes are the same: torch hardly knows uint32.
MDS_TYPES = {2: "uint16", 4: "int32"}
# The numbers of torch.uint16 and torch.int32 in litdata's table.
LITDATA_FORMATS = {2: "no_header_tensor:20", 4: "no_header_tensor:16"}
# What litdata's pytree writes for an item that is a tensor and nothing else.
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'


def mds_header(count: int, shape: Shape) -> bytes:
    """The number of samples, where each begins, where the last ends; then what stands in the index too, and zeros.

    It is as long as that of a full shard, so that it can be written before the tokens.
    """
    assert shape.sample_tokens and shape.shard_tokens is not None
    config = json.dumps(_mds_config(shape), sort_keys=True).encode()
    length = 4 * (2 + shape.shard_tokens // shape.sample_tokens) + len(config)
    places = length + np.arange(count // shape.sample_tokens + 1, dtype=np.int64) * _sample_bytes(shape)
    return (np.uint32(len(places) - 1).tobytes() + places.astype("<u4").tobytes() + config).ljust(length, b"\0")


def litdata_header(count: int, shape: Shape) -> bytes:
    """One item, where it begins, where it ends."""
    return np.array([1, 12, 12 + count * shape.dtype.itemsize], "<u4").tobytes()


def mds_index(shards: tuple[Shard, ...], shape: Shape) -> bytes:
    assert shape.sample_tokens
    listed = [
        {
            **_mds_config(shape),
            "raw_data": {"basename": _base_name(shard), "bytes": shard.bytes, "hashes": {}},
            "samples": shard.tokens // shape.sample_tokens,
            "zip_data": None,
        }
        for shard in shards
    ]
    return json.dumps({"shards": listed, "version": 2}, sort_keys=True).encode()


def litdata_index(shards: tuple[Shard, ...], shape: Shape) -> bytes:
    chunks = [
        {"chunk_bytes": shard.bytes, "chunk_size": 1, "dim": shard.tokens, "filename": _base_name(shard)}
        for shard in shards
    ]
    config = {
        "chunk_bytes": None,
        "chunk_size": shape.shard_tokens,
        "compression": None,
        "data_format": [LITDATA_FORMATS[shape.dtype.itemsize]],
        "data_spec": _LEAF,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    # litdata keeps what it fetched for as long as this is the same; a time would not be the same in two runs (I1).
    content = xxhash.xxh3_64_hexdigest("".join(sum_ for shard in shards for sum_ in shard.checksums).encode())
    return json.dumps({"chunks": chunks, "config": config, "updated_at": content}, sort_keys=True).encode()


def _mds_config(shape: Shape) -> dict[str, Any]:
    return {
        "column_encodings": [f"ndarray:{MDS_TYPES[shape.dtype.itemsize]}:{shape.sample_tokens}"],
        "column_names": ["tokens"],
        "column_sizes": [_sample_bytes(shape)],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }


def _sample_bytes(shape: Shape) -> int:
    assert shape.sample_tokens
    return shape.sample_tokens * shape.dtype.itemsize


def _base_name(shard: Shard) -> str:
    return shard.name.rpartition("/")[2]
