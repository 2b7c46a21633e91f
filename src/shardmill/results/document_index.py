"""Files that say where documents end → those places, a few at a time, checked as they are read."""

import csv
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError
from shardmill.formats.indexes import MEGATRON_CODES, MEGATRON_HEADER
from shardmill.io.fileset import StoredFile
from shardmill.system.names import show

Positions = npt.NDArray[np.int64]
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EndsFile:
    """The document ends of some of the tokens of a split: a uint64 each, counted from where these tokens begin."""

    file: StoredFile
    base: int
    """How many tokens of the split come before those that the file speaks of."""
    tokens: int
    count: int

    def read(self, first: int, count: int) -> Positions:
        """The ends of count documents, among the tokens of the split."""
        return self.base + _integers(self.file, 8 * first, count).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronEnds:
    """The same from an .idx file, where a document may be several sequences."""

    file: StoredFile
    base: int
    tokens: int
    count: int
    sequences: int
    itemsize: int

    def read(self, first: int, count: int) -> Positions:
        pointers = MEGATRON_HEADER + 4 * self.sequences
        after = _integers(self.file, pointers + 8 * (self.sequences + first + 1), count).astype(np.int64)
        if not len(after) or after[0] < 0 or after[-1] > self.sequences or (np.diff(after) < 0).any():
            raise InputError(
                f"{show(self.file.path)}: the numbers of its documents are not in order; the index is damaged"
            )
        low, high = int(after[0]), min(int(after[-1]) + 1, self.sequences)
        begins = _integers(self.file, pointers + 8 * low, max(0, high - low)).astype(np.int64) // self.itemsize
        return self.base + np.append(begins, self.tokens)[np.where(after < self.sequences, after - low, -1)]


Ends = tuple[EndsFile | MegatronEnds, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsFile:
    """OLMo's rows for one shard: where documents, or parts of them, lie in it, and where they came from."""

    file: StoredFile
    base: int
    tokens: int


def read_rows(files: Iterable[RowsFile]) -> Iterator[tuple[int, str, int]]:
    """Of each document where it ends, the path of its input, and the place in that. One may have rows in many shards."""
    pending, end = None, 0
    for part in files:
        try:
            for _, after, number, path, place in csv.reader(_csv_lines(part.file)):
                if pending is not None and pending[0] != number:
                    yield end, pending[1], pending[2]
                if not end <= part.base + int(after) <= part.base + part.tokens or int(place) >> 62:
                    raise ValueError(f"a document ends at {after}, from {place}")
                pending, end = (number, path, int(place)), part.base + int(after)
        except (ValueError, csv.Error, zlib.error) as e:
            raise InputError(
                f"{show(part.file.path)}: are not the rows of {part.tokens:,} tokens ({show(str(e))}); it is damaged, or belongs to other tokens"
            ) from e
    if pending is not None:
        yield end, pending[1], pending[2]


def _csv_lines(file: StoredFile) -> Iterator[str]:
    """Of a .csv.gz, some bytes at a time."""
    unzip, rest = zlib.decompressobj(31), b""
    for at in range(0, file.size, _CHUNK):
        data = unzip.decompress(file.read(at, _CHUNK))
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode("utf-8", "surrogateescape") + "\n" for line in lines)
    if rest or not unzip.eof:
        raise ValueError("it ends too early")


def open_ends(file: StoredFile, base: int, tokens: int) -> EndsFile:
    size = file.size
    if size % 8:
        raise InputError(
            f"{show(file.path)}: has {size:,} bytes, which is no whole number of 8-byte document ends; it was cut short"
        )
    return EndsFile(file=file, base=base, tokens=tokens, count=size // 8)


def open_megatron(file: StoredFile, base: int, token_bytes: int) -> tuple[MegatronEnds, np.dtype[np.unsignedinteger]]:
    """An .idx file, and the integers of the .bin beside it, which has so many bytes."""
    size, head, path = file.size, file.read(0, MEGATRON_HEADER), file.path
    if head[:9] != b"MMIDIDX\0\0" or len(head) < MEGATRON_HEADER:
        raise InputError(
            f"{show(path)}: begins with {head[:9]!r}, and an index of Megatron with {b'MMIDIDX' + bytes(2)!r}; name the right format with --from"
        )
    version, code, sequences, numbers = struct.unpack("<QBQQ", head[9:])
    itemsize = {code: itemsize for itemsize, code in MEGATRON_CODES.items()}.get(code)
    if version != 1 or itemsize is None:
        raise InputError(
            f"{show(path)}: has version {version} and integers of code {code}; known are version 1 with code 8 (uint16) or 4 (int32)"
        )
    expected = MEGATRON_HEADER + 12 * sequences + 8 * numbers
    if size != expected or not numbers:
        raise InputError(
            f"{show(path)}: its header speaks of {sequences:,} sequences and {max(0, numbers - 1):,} documents, which take {expected:,} bytes, but it has {size:,}; it was cut short, or is the index of something else"
        )
    ends = MegatronEnds(
        file=file,
        base=base,
        tokens=token_bytes // itemsize,
        count=numbers - 1,
        sequences=sequences,
        itemsize=itemsize,
    )
    return ends, np.dtype("<u2" if itemsize == 2 else "<u4")


def count_of(ends: Ends) -> int:
    return sum(part.count for part in ends)


def chunks(ends: Ends) -> Iterator[Positions]:
    """All of them in order, and that order checked: what a stranger wrote must not lead beyond the tokens."""
    last = 0
    for part in ends:
        for first in range(0, part.count, _CHUNK):
            found = part.read(first, min(_CHUNK, part.count - first))
            if found[0] < last or (np.diff(found) < 0).any() or found[-1] > part.base + part.tokens:
                raise InputError(
                    f"{show(part.file.path)}: document {first:,} and those after it do not end in order within the {part.tokens:,} tokens; the index is damaged, or belongs to other tokens"
                )
            last = int(found[-1])
            yield found


def document(ends: Ends, number: int) -> tuple[int, int]:
    """Where a document begins and ends."""
    before = 0
    for part in ends:
        if number < part.count:
            pair = part.read(max(0, number - 1), 2 if number else 1)
            begin, end = (int(pair[0]), int(pair[1])) if number else (before, int(pair[0]))
            if not before <= begin <= end <= part.base + part.tokens:
                raise InputError(
                    f"{show(part.file.path)}: document {number:,} does not lie within the tokens; it is damaged"
                )
            return begin, end
        number, before = number - part.count, part.base + part.tokens
    raise IndexError("no such document")


def _integers(file: StoredFile, offset: int, count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(file.read(offset, 8 * count), "<u8")
