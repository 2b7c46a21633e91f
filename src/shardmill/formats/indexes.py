"""Where documents end → the files beside the tokens: indexes that are streamed, however many documents there are."""

import struct
from typing import Protocol

import numpy as np

from shardmill.documents import rejects
from shardmill.errors import OutputError
from shardmill.formats import mds_litdata
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import Output
from shardmill.formats.shards import Positions, Provenance, Shard, SplitName

KINDS = {
    ".ends": "ends",
    ".places": "places",
    ".idx": "megatron-index",
    ".index": "ends",
    ".metadata": "metadata",
    ".csv.gz": "rows",
    f"/{mds_litdata.INDEX}": "shards",
    rejects.NAME: "rejects",
    "manifest.inputs.jsonl": "inputs",
}
# Entries that are put together at a time when a file is finished.
_CHUNK = 1 << 16
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEADER = 34
MEGATRON_CODES = {2: 8, 4: 4}  # uint16, int32
# nanotron looks for a tokenizer of the name in .ds.metadata on the hub.
_HUB_NAMES = {"r50k_base": "openai-community/gpt2"}


class Sidecar(Protocol):
    """Something that is written beside the tokens of a split."""

    def add(self, split: SplitName, ends: Positions, sizes: Positions, places: Provenance) -> None:
        """Documents that end there in the tokens of the split; none is empty."""

    def finish(self, split: SplitName, shards: tuple[Shard, ...], documents: int) -> None:
        """All documents were added, and these shards hold them. What this writes is written again after a kill, the same."""


def sidecars_of(output: Output, files: OutputFiles, *, finished: bool) -> list[Sidecar]:
    sides: list[Sidecar] = []
    match output.format.sides:
        case "megatron":
            sides.append(Megatron(files, output, finished=finished))
        case "datatrove":
            sides.append(Datatrove(files, output))
        case "olmo":
            from shardmill.formats.olmo import Olmo  # and Arrow with it

            sides.append(Olmo(files, output))
        case "mds" | "litdata":
            sides.append(ShardList(files, output))
    if output.index:
        sides.append(EndsWriter(files, provenance=output.provenance))
    return sides


class EndsWriter:
    """SPLIT.ends: a uint64 for each document, and SPLIT.places: two."""

    def __init__(self, files: OutputFiles, *, provenance: bool) -> None:
        self._files, self._provenance = files, provenance

    def add(self, split: SplitName, ends: Positions, _: Positions, places: Provenance) -> None:
        self._files.append(f"{split}.ends", ends.astype("<u8").data.cast("B"))
        if self._provenance:
            self._files.append(f"{split}.places", memoryview(places.astype("<u8").tobytes()))

    def finish(self, split: SplitName, shards: tuple[Shard, ...], documents: int) -> None:
        pass


class Megatron:
    """SPLIT.idx: a header, the size of each document, then where each begins, then their numbers.

    The sizes are streamed behind room for the header; the rest follows from them when all are there.
    """

    def __init__(self, files: OutputFiles, output: Output, *, finished: bool) -> None:
        self._files, self._itemsize = files, output.dtype.itemsize
        self._begun = {name for name in files.states() if name.endswith(".idx")}
        for name in self._begun if not finished else ():
            files.head(name, bytes(MEGATRON_HEADER))

    def add(self, split: SplitName, _: Positions, sizes: Positions, __: Provenance) -> None:
        name = f"{split}.idx"
        if name not in self._begun:
            self._files.append(name, memoryview(bytes(MEGATRON_HEADER)))
            self._begun.add(name)
        if sizes.max() > (1 << 31) - 1:
            raise OutputError(
                f"{name}: a document has {int(sizes.max()):,} tokens, and Megatron's index holds at most 2,147,483,647 for one; split such documents with --separator, or choose another --format"
            )
        self._files.append(name, sizes.astype("<i4").data.cast("B"))

    def finish(self, split: SplitName, _: tuple[Shard, ...], documents: int) -> None:
        name = f"{split}.idx"
        if not documents:
            return
        at = 0
        for first in range(0, documents, _CHUNK):
            count = min(_CHUNK, documents - first)
            sizes = np.frombuffer(self._files.read(name, MEGATRON_HEADER + 4 * first, 4 * count), "<i4")
            ends = at + np.cumsum(sizes, dtype=np.int64) * self._itemsize
            self._files.append(name, memoryview(np.concatenate([[at], ends[:-1]]).astype("<i8").tobytes()))
            at = int(ends[-1])
        for first in range(0, documents + 1, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, documents + 1), dtype="<i8")
            self._files.append(name, memoryview(numbers.tobytes()))
        header = struct.pack("<QBQQ", 1, MEGATRON_CODES[self._itemsize], documents, documents + 1)
        self._files.patch(name, _MEGATRON_MAGIC + header)


class Datatrove:
    """SPLIT.ds.index: where documents end; SPLIT.ds.metadata: three lines for people."""

    def __init__(self, files: OutputFiles, output: Output) -> None:
        self._files, self._output = files, output

    def add(self, split: SplitName, ends: Positions, _: Positions, __: Provenance) -> None:
        self._files.append(f"{split}.ds.index", ends.astype("<u8").data.cast("B"))

    def finish(self, split: SplitName, shards: tuple[Shard, ...], _: int) -> None:
        if tokens := sum(shard.tokens for shard in shards):
            name = _HUB_NAMES.get(self._output.tokenizer, self._output.tokenizer)
            lines = (f"{name}|{self._output.dtype.itemsize}", str(tokens), _metric(tokens))
            self._files.append(f"{split}.ds.metadata", memoryview("\n".join(lines).encode()))


class ShardList:
    """SPLIT/index.json: the shards, as mosaicml-streaming or litdata wants to know them. Nothing of documents."""

    def __init__(self, files: OutputFiles, output: Output) -> None:
        self._files, self._shape = files, output.shape
        self._index = mds_litdata.mds_index if output.format.sides == "mds" else mds_litdata.litdata_index

    def add(self, split: SplitName, ends: Positions, sizes: Positions, places: Provenance) -> None:
        pass

    def finish(self, split: SplitName, shards: tuple[Shard, ...], _: int) -> None:
        if shards:
            self._files.append(f"{split}/{mds_litdata.INDEX}", memoryview(self._index(shards, self._shape)))


def _metric(count: int) -> str:
    """Three digits and a unit, as datatrove writes it: 28.3 kT."""
    power = (len(str(count)) - 1) // 3
    value = count / 1000**power
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {' kMGTPE'[power].strip()}T"
