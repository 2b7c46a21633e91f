"""Shards of samples → their headers and index.json, as mosaicml-streaming and litdata read them.

And back: the tokens of shards whose samples vary in length. LLM Foundry's script writes `ndarray:int32` without a
shape. A sample is then: the number of bytes that follow, as a uint32; a byte with the number of axes (here 1) times 4
plus a code for the next integer (0: uint8, 1: uint16, 2: uint32); the number of tokens, in the narrowest integer that
holds it; the tokens. The shard begins with the number of samples and the offsets where they begin and end, all uint32.
"""

import json
from dataclasses import dataclass
from posixpath import basename
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from shardmill.errors import InputError
from shardmill.formats.shards import Positions, Shape, Shard, Tokens, TokenType
from shardmill.io.fileset import StoredFile
from shardmill.system.names import show

INDEX = "index.json"
# Both read 32-bit tokens as int32, which has the same bytes: torch hardly supports uint32.
MDS_TYPES = {2: "uint16", 4: "int32"}
# The numbers of torch.uint16 and torch.int32 in litdata's table.
LITDATA_FORMATS = {2: "no_header_tensor:20", 4: "no_header_tensor:16"}
# What litdata's pytree writes for an item that is a single tensor.
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'
# The width of a sample's length → its code, and the range of lengths written with it.
_WIDTHS = {1: (0, 1, 255), 2: (1, 256, 65_535), 4: (2, 65_536, (1 << 32) - 1)}


def mds_header(count: int, shape: Shape) -> bytes:
    """The number of samples, where each begins, where the last ends; then the shard's entry in the index, and zeros.

    It is always as long as that of a full shard, so that it can be written before the tokens.
    """
    assert shape.sample_tokens and shape.shard_tokens is not None
    config = json.dumps(_mds_config(shape), sort_keys=True).encode()
    length = 4 * (2 + shape.shard_tokens // shape.sample_tokens) + len(config)
    offsets = length + np.arange(count // shape.sample_tokens + 1, dtype=np.int64) * _sample_bytes(shape)
    return (np.uint32(len(offsets) - 1).tobytes() + offsets.astype("<u4").tobytes() + config).ljust(length, b"\0")


def litdata_header(count: int, shape: Shape) -> bytes:
    """One item: where it begins, and where it ends."""
    return np.array([1, 12, 12 + count * shape.dtype.itemsize], "<u4").tobytes()


def mds_index(shards: tuple[Shard, ...], shape: Shape) -> bytes:
    assert shape.sample_tokens
    listed = [
        {
            **_mds_config(shape),
            "raw_data": {"basename": basename(shard.name), "bytes": shard.bytes, "hashes": {}},
            "samples": shard.tokens // shape.sample_tokens,
            "zip_data": None,
        }
        for shard in shards
    ]
    return json.dumps({"shards": listed, "version": 2}, sort_keys=True).encode()


def litdata_index(shards: tuple[Shard, ...], shape: Shape) -> bytes:
    chunks = [
        {"chunk_bytes": shard.bytes, "chunk_size": 1, "dim": shard.tokens, "filename": basename(shard.name)}
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
    # litdata caches downloads as long as this stays the same; a time would differ between two runs (I1).
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFile:
    """A shard whose samples vary in length. Their offsets are read on every access, so even millions take no memory."""

    file: StoredFile
    samples: int
    tokens: int

    def read(self, first: int, count: int, dtype: TokenType) -> Tokens:
        offsets = _offsets(self.file, self.samples)
        counts = _counts(self.file, offsets, dtype.itemsize)
        starts = np.cumsum(counts) - counts
        begin = int(np.searchsorted(starts, first, side="right")) - 1
        end = int(np.searchsorted(starts, first + count, side="left"))
        data = self.file.read(int(offsets[begin]), int(offsets[end] - offsets[begin]))
        found: list[bytes] = []
        at = 0
        for size, tokens in zip(np.diff(offsets[begin : end + 1]).tolist(), counts[begin:end].tolist(), strict=True):
            head = _head(size, tokens)
            if data[at : at + len(head)] != head:
                raise InputError(
                    f"{show(self.file.path)}: a sample at byte {int(offsets[begin]) + at:,} is not one row of {tokens:,} tokens; the shard is damaged, or its arrays have more than one dimension"
                )
            found.append(data[at + len(head) : at + size])
            at += size
        skipped = first - int(starts[begin])
        return np.frombuffer(b"".join(found), dtype)[skipped : skipped + count]


def open_samples(file: StoredFile, samples: int, dtype: TokenType) -> SampleFile:
    counts = _counts(file, _offsets(file, samples), dtype.itemsize)
    return SampleFile(file=file, samples=samples, tokens=int(counts.sum()))


def _offsets(file: StoredFile, samples: int) -> Positions:
    """Where each sample begins, and where the last one ends."""
    head = np.frombuffer(file.read(0, 4 * (samples + 2)), "<u4").astype(np.int64)
    offsets = head[1:]
    if len(offsets) != samples + 1 or head[0] != samples or (np.diff(offsets) <= 0).any() or offsets[-1] != file.size:
        raise InputError(
            f"{show(file.path)}: its header does not list the {samples:,} samples that index.json promises; it was truncated, or is another file"
        )
    return offsets


def _counts(file: StoredFile, offsets: Positions, itemsize: int) -> Positions:
    """The number of tokens in each sample, derived from its size."""
    sizes = np.diff(offsets)
    counts: npt.NDArray[np.int64] = np.zeros(len(sizes), np.int64)
    for width, (_, least, most) in _WIDTHS.items():
        tokens, rest = np.divmod(sizes - 5 - width, itemsize)
        fits = (rest == 0) & (tokens >= least) & (tokens <= most)
        counts[fits] = tokens[fits]
    if not counts.all():
        odd = int(np.flatnonzero(counts == 0)[0])
        raise InputError(
            f"{show(file.path)}: sample {odd:,} has {int(sizes[odd]):,} bytes, not a multiple of {itemsize}-byte tokens; the shard is damaged, or its arrays have more than one dimension"
        )
    return counts


def _head(size: int, tokens: int) -> bytes:
    width, code = next((width, code) for width, (code, _, most) in _WIDTHS.items() if tokens <= most)
    return (size - 4).to_bytes(4, "little") + bytes([1 << 2 | code]) + tokens.to_bytes(width, "little")
