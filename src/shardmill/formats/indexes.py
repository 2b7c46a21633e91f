"""Where documents end → the sidecar files of a format: indexes that are streamed, however many documents there are."""

import itertools
import struct
import zlib
from collections.abc import Iterator
from operator import itemgetter
from typing import Protocol

import numpy as np

from shardmill.errors import OutputError
from shardmill.formats import mds_litdata
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import Output, npy_header
from shardmill.formats.shards import SPLITS, Positions, Provenance, Shard, SplitName

# Entries that are put together at a time when a file is finished.
_CHUNK = 1 << 16
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEADER = 34
MEGATRON_CODES = {2: 8, 4: 4}  # uint16, int32
# nanotron looks up the tokenizer named in .ds.metadata on the hub.
_HUB_NAMES = {"r50k_base": "openai-community/gpt2"}
_ROW_BYTES = 24
_STORED_BYTES = 65_535


class Sidecar(Protocol):
    """Writes a file that accompanies the tokens of a split."""

    def add(self, split: SplitName, ends: Positions, sizes: Positions, places: Provenance) -> None:
        """Documents that end there in the tokens of the split; none is empty."""

    def finish(self, split: SplitName, shards: tuple[Shard, ...], documents: int) -> None:
        """All documents have been added, and these shards hold them. Written again after a kill, with the same bytes."""


def sidecars_of(output: Output, files: OutputFiles, *, finished: bool) -> Iterator[Sidecar]:
    match output.format.name:
        case "megatron":
            yield MegatronIndex(files, output, finished=finished)
        case "datatrove":
            yield DatatroveIndex(files, output)
        case "olmo":
            yield OlmoRows(files, output, finished=finished)
        case "mds" | "litdata":
            yield ShardList(files, output)
    if output.index:
        yield DocumentIndex(files, output)


class DocumentIndex:
    """SPLIT.ends: a uint64 for each document, and SPLIT.places: two. SPLIT.document_offsets.npy: the same as an array."""

    def __init__(self, files: OutputFiles, output: Output) -> None:
        self._files, self._provenance, self._offsets = files, output.provenance, output.offsets

    def add(self, split: SplitName, ends: Positions, _: Positions, places: Provenance) -> None:
        self._files.append(f"{split}.ends", ends.astype("<u8").data.cast("B"))
        if self._provenance:
            self._files.append(f"{split}.places", memoryview(places.astype("<u8").tobytes()))

    def finish(self, split: SplitName, _: tuple[Shard, ...], documents: int) -> None:
        if not (documents and self._offsets):
            return
        name = f"{split}.document_offsets.npy"
        self._files.append(name, memoryview(npy_header(documents + 1, "<i8") + bytes(8)))
        self._files.copy(f"{split}.ends", 0, 8 * documents, name)


class MegatronIndex:
    """SPLIT.idx: a header, the size of each document, then where each begins, then their numbers.

    The sizes are streamed after room for the header; the rest follows from them at the end.
    """

    def __init__(self, files: OutputFiles, output: Output, *, finished: bool) -> None:
        self._files, self._itemsize = files, output.dtype.itemsize
        self._begun = {name for name in files.states() if name.endswith(".idx")}
        for name in self._begun if not finished else ():
            files.restore_header(name, bytes(MEGATRON_HEADER))

    def add(self, split: SplitName, _: Positions, sizes: Positions, __: Provenance) -> None:
        name = f"{split}.idx"
        if name not in self._begun:
            self._files.append(name, memoryview(bytes(MEGATRON_HEADER)))
            self._begun.add(name)
        if sizes.max() > (1 << 31) - 1:
            raise OutputError(
                f"{name}: a document has {int(sizes.max()):,} tokens, and Megatron's index allows at most 2,147,483,647; split such documents with --separator, or choose another --format"
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


class DatatroveIndex:
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
    """SPLIT/index.json: the shards, as mosaicml-streaming or litdata lists them. It says nothing about documents."""

    def __init__(self, files: OutputFiles, output: Output) -> None:
        self._files, self._shape = files, output.shape
        self._index = mds_litdata.mds_index if output.format.name == "mds" else mds_litdata.litdata_index

    def add(self, split: SplitName, ends: Positions, sizes: Positions, places: Provenance) -> None:
        pass

    def finish(self, split: SplitName, shards: tuple[Shard, ...], _: int) -> None:
        if shards:
            self._files.append(f"{split}/{mds_litdata.INDEX}", memoryview(self._index(shards, self._shape)))


class OlmoRows:
    """SHARD.csv.gz: start, end, id, src, loc of each document. Until all are known, they are kept in SPLIT.rows."""

    def __init__(self, files: OutputFiles, output: Output, *, finished: bool) -> None:
        self._files, self._output = files, output
        if finished:
            for split in SPLITS:
                files.drop(f"{split}.rows")

    def add(self, split: SplitName, ends: Positions, _: Positions, places: Provenance) -> None:
        rows = np.empty((len(ends), 3), "<u8")
        rows[:, 0], rows[:, 1:] = ends, places
        self._files.append(f"{split}.rows", rows.data.cast("B"))

    def finish(self, split: SplitName, _: tuple[Shard, ...], documents: int) -> None:
        for shard, rows in itertools.groupby(self._rows(split, documents), key=itemgetter(0)):
            name = self._output.format.file_name(split, shard).removesuffix(".npy") + ".csv.gz"
            _write_stored_gzip(self._files, name, (some for _, some in rows))
        self._files.drop(f"{split}.rows")

    def _rows(self, split: SplitName, documents: int) -> Iterator[tuple[int, bytes]]:
        """Rows of documents, or parts of them, with the number of their shard: some at a time, from one input."""
        length, sources = self._output.shard_tokens, self._output.sources
        assert length is not None
        start = 0
        for first in range(0, documents, _CHUNK):
            data = self._files.read(f"{split}.rows", _ROW_BYTES * first, _ROW_BYTES * min(_CHUNK, documents - first))
            ends, inputs, places = np.frombuffer(data, "<u8").reshape(-1, 3).astype(np.int64).T
            borders = np.arange(start // length + 1, -(-int(ends[-1]) // length)) * length
            stops = np.union1d(ends, borders) if len(borders) else ends  # a document may continue in the next shard
            of, starts = np.searchsorted(ends, stops), np.append(start, stops[:-1])
            shards, start = starts // length, int(ends[-1])
            table = np.column_stack([starts % length, stops - shards * length, first + of, places[of]])
            runs = np.flatnonzero(np.diff(shards, prepend=-1) | np.diff(inputs[of], prepend=-1)).tolist()
            for begin, end in itertools.pairwise([*runs, len(stops)]):
                source, shard = int(inputs[of[begin]]), int(shards[begin])
                path = _quoted(sources[source]).replace(b"%", b"%%") if source < len(sources) else b""
                row = b"%d,%d,%d," + path + b",%d\r\n"
                yield shard, row * (end - begin) % tuple(table[begin:end].ravel().tolist())


def _write_stored_gzip(files: OutputFiles, name: str, chunks: Iterator[bytes]) -> None:
    """A gzip file of uncompressed blocks: the same bytes whatever the version of zlib (I1)."""
    rest, crc, size = bytearray(), 0, 0
    files.append(name, memoryview(b"\x1f\x8b\x08\0\0\0\0\0\0\xff"))
    for data in chunks:
        crc, size = zlib.crc32(data, crc), size + len(data)
        rest += data
        while len(rest) > _STORED_BYTES:
            files.append(name, memoryview(_block(rest[:_STORED_BYTES], last=False)))
            del rest[:_STORED_BYTES]
    files.append(name, memoryview(_block(rest, last=True) + struct.pack("<II", crc, size & 0xFFFFFFFF)))
    files.full(name)


def _block(data: bytearray, *, last: bool) -> bytes:
    return struct.pack("<BHH", last, len(data), len(data) ^ 0xFFFF) + data


def _quoted(path: str) -> bytes:
    """A CSV field with the bytes of the name on disk, whatever they are."""
    text = '"' + path.replace('"', '""') + '"' if set(path) & set(',"\r\n') else path
    return text.encode("utf-8", "surrogateescape")


def _metric(count: int) -> str:
    """Three digits and a unit, as datatrove writes it: 28.3 kT."""
    power = (len(str(count)) - 1) // 3
    value = count / 1000**power
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {' kMGTPE'[power].strip()}T"
