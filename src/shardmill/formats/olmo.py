"""Where documents end and came from → the rows beside each shard of OLMo's format, in .csv.gz."""

import struct
import zlib
from ctypes import CDLL, c_char_p, c_int64, c_void_p
from functools import lru_cache

import numpy as np

from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import Output
from shardmill.formats.shards import Positions, Provenance, Shard, SplitName
from shardmill.system import compiled

# Rows that are put together at a time when a file is finished.
_CHUNK = 1 << 16
_ROW_BYTES = 24
_STORED = 65_535
_VERSION = 1
# Four numbers, and what stands between them.
_LONGEST_ROW = 4 * 20 + 6


class Olmo:
    """SHARD.csv.gz: start, end, id, src, loc of each document. Until all are known they stand in SPLIT.rows."""

    def __init__(self, files: OutputFiles, output: Output) -> None:
        self._files, self._output = files, output

    def add(self, split: SplitName, ends: Positions, _: Positions, places: Provenance) -> None:
        rows = np.empty((len(ends), 3), "<u8")
        rows[:, 0], rows[:, 1:] = ends, places
        self._files.append(f"{split}.rows", rows.data.cast("B"))

    def finish(self, split: SplitName, _: tuple[Shard, ...], documents: int) -> None:
        name, length = f"{split}.rows", self._output.shard_tokens
        assert length is not None
        out: _StoredGzip | None = None
        shard = start = 0
        for first in range(0, documents, _CHUNK):
            count = min(_CHUNK, documents - first)
            data = self._files.read(name, _ROW_BYTES * first, _ROW_BYTES * count)
            rows = np.frombuffer(data, "<u8").reshape(count, 3).astype(np.int64)
            numbers = np.arange(first, first + count)
            while len(rows):  # as much of them as belongs to this shard; a document may go on in the next
                until = (shard + 1) * length
                whole = int(np.searchsorted(rows[:, 0], until, side="right"))
                cut = whole < len(rows) and max(start, int(rows[whole - 1, 0]) if whole else 0) < until
                some = rows[: whole + cut]
                ends = np.minimum(some[:, 0], until)
                if len(some):
                    out = out or self._open(split, shard)
                    table = np.empty((len(some), 5), np.uint64)
                    table[:, 0] = np.concatenate([[start], ends[:-1]]) - shard * length
                    table[:, 1], table[:, 2], table[:, 4] = ends - shard * length, numbers[: len(some)], some[:, 2]
                    names, table[:, 3] = self._names(some[:, 1])
                    out.write(_lines(table, names))
                    start = int(ends[-1])
                if start == until and out is not None:
                    out.close()
                    out, shard = None, shard + 1
                rows, numbers = rows[whole:], numbers[whole:]
        if out is not None:
            out.close()
        self._files.drop(name)

    def _open(self, split: SplitName, shard: int) -> "_StoredGzip":
        tokens_name = self._output.format.file_name(split, shard)
        return _StoredGzip(self._files, tokens_name.removesuffix(".npy") + ".csv.gz")

    def _names(self, numbers: Positions) -> tuple[list[bytes], Positions]:
        """The paths of the inputs with these numbers, each once, and which of them is whose; one not known has none."""
        sources = self._output.sources
        some, which = np.unique(numbers, return_inverse=True)
        names = [_quoted(sources[number]) if number < len(sources) else b"" for number in some.tolist()]
        return names, which


def _lines(table: Provenance, names: list[bytes]) -> bytes | memoryview:
    """The rows of some documents: begin, end, number, name, place; the name by its number among names."""
    library = _library()
    if library is None:
        rows = table.tolist()
        return b"".join([b"%d,%d,%d,%s,%d\r\n" % (begin, end, n, names[of], at) for begin, end, n, of, at in rows])
    name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    room = _LONGEST_ROW * len(table) + int(np.diff(name_ends, prepend=0)[table[:, 3].astype(np.intp)].sum())
    out = np.empty(room, np.uint8)
    size = library.rows_write(table.ctypes, len(table), b"".join(names), name_ends.ctypes, out.ctypes)
    return out.data[:size]


@lru_cache(maxsize=1)
def _library() -> CDLL | None:
    library = compiled.load("formats/native/rows.so", _VERSION)
    if library is not None:
        compiled.declare(library, "rows_write", c_int64, c_void_p, c_int64, c_char_p, c_void_p, c_void_p)
    return library


class _StoredGzip:
    """A gzip file of uncompressed blocks: the same bytes whatever the version of zlib (I1)."""

    def __init__(self, files: OutputFiles, name: str) -> None:
        self._files, self._name = files, name
        self._rest, self._crc, self._size = bytearray(), 0, 0
        files.append(name, memoryview(b"\x1f\x8b\x08\0\0\0\0\0\0\xff"))

    def write(self, data: bytes | memoryview) -> None:
        self._rest += data
        self._crc, self._size = zlib.crc32(data, self._crc), self._size + len(data)
        whole = max(0, len(self._rest) - 1) // _STORED * _STORED  # what fills the last block may be the end
        blocks = [_block(self._rest[at : at + _STORED], last=False) for at in range(0, whole, _STORED)]
        del self._rest[:whole]
        if blocks:
            self._files.append(self._name, memoryview(b"".join(blocks)))

    def close(self) -> None:
        end = struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)
        self._files.append(self._name, memoryview(_block(self._rest, last=True) + end))
        self._files.full(self._name)


def _block(data: bytearray, *, last: bool) -> bytes:
    size = len(data)
    return struct.pack("<BHH", last, size, size ^ 0xFFFF) + data


def _quoted(path: str) -> bytes:
    """As it stands on disk, whatever its bytes are."""
    text = '"' + path.replace('"', '""') + '"' if set(path) & set(',"\r\n') else path
    return text.encode("utf-8", "surrogateescape")
