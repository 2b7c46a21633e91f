"""Files that record where documents end → these positions, a few at a time, checked as they are read."""

import csv
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError
from shardmill.formats.indexes import MEGATRON_CODES, MEGATRON_HEADER
from shardmill.formats.shards import Positions
from shardmill.io.fileset import StoredFile
from shardmill.system.names import show

_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EndsFile:
    """The document ends among some tokens of a split: a uint64 each, counted from the first of these tokens."""

    file: StoredFile
    tokens: int
    count: int
    base: int = 0
    """How many tokens of the split come before these."""

    def read(self, first: int, count: int) -> Positions:
        """The ends of count documents, among the tokens of the split."""
        return self.base + _integers(self.file, 8 * first, count)


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronEnds:
    """The same from an .idx file, where a document may be several sequences."""

    file: StoredFile
    tokens: int
    count: int
    sequences: int
    itemsize: int
    base: int = 0

    def read(self, first: int, count: int) -> Positions:
        pointers = MEGATRON_HEADER + 4 * self.sequences
        after = _integers(self.file, pointers + 8 * (self.sequences + first + 1), count)
        if not len(after) or after[0] < 0 or after[-1] > self.sequences or (np.diff(after) < 0).any():
            raise InputError(
                f"{show(self.file.path)}: its document indices are not in ascending order; the index is damaged"
            )
        low, high = int(after[0]), min(int(after[-1]) + 1, self.sequences)
        starts = _integers(self.file, pointers + 8 * low, max(0, high - low)) // self.itemsize
        return self.base + np.append(starts, self.tokens)[np.where(after < self.sequences, after - low, -1)]


EndsPart = EndsFile | MegatronEnds
Ends = tuple[EndsPart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsFile:
    """OLMo's rows for one shard: where documents, or parts of them, lie in it, and where they came from."""

    file: StoredFile
    base: int
    tokens: int


def read_rows(files: Iterable[RowsFile]) -> Iterator[tuple[int, str, int]]:
    """Each document's end, the path of its input, and its position there. A document may have rows in many shards."""
    pending, end = None, 0
    for part in files:
        try:
            for _, after, number, path, position in csv.reader(_csv_lines(part.file)):
                if pending is not None and pending[0] != number:
                    yield end, pending[1], pending[2]
                if not end <= part.base + int(after) <= part.base + part.tokens or int(position) >> 62:
                    raise ValueError(f"a document ends at {after}, from {position}")
                pending, end = (number, path, int(position)), part.base + int(after)
        except (ValueError, csv.Error, zlib.error) as e:
            raise InputError(
                f"{show(part.file.path)}: its rows do not add up to {part.tokens:,} tokens ({show(str(e))}); it is damaged, or belongs to other tokens"
            ) from e
    if pending is not None:
        yield end, pending[1], pending[2]


def _csv_lines(file: StoredFile) -> Iterator[str]:
    """The lines of a .csv.gz, streamed."""
    unzip, rest = zlib.decompressobj(31), b""
    for at in range(0, file.size, _CHUNK):
        data = unzip.decompress(file.read(at, _CHUNK))
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode("utf-8", "surrogateescape") + "\n" for line in lines)
    if rest or not unzip.eof:
        raise ValueError("it ends too early")


def open_ends(file: StoredFile, tokens: int) -> EndsFile:
    """An .ends or .ds.index file for a token file of this many tokens."""
    count, rest = divmod(file.size, 8)
    if rest:
        raise InputError(f"{show(file.path)}: has {file.size:,} bytes, not a multiple of 8; it was truncated")
    return EndsFile(file=file, tokens=tokens, count=count)


def open_megatron(file: StoredFile, token_bytes: int) -> MegatronEnds:
    """An .idx file for a .bin of this many bytes."""
    head, path = file.read(0, MEGATRON_HEADER), file.path
    if head[:9] != b"MMIDIDX\0\0" or len(head) < MEGATRON_HEADER:
        raise InputError(
            f"{show(path)}: starts with {head[:9]!r}, but a Megatron index starts with {b'MMIDIDX' + bytes(2)!r}; name the right format with --from-format"
        )
    version, code, sequences, numbers = struct.unpack("<QBQQ", head[9:])
    itemsize = {code: itemsize for itemsize, code in MEGATRON_CODES.items()}.get(code)
    if version != 1 or itemsize is None:
        raise InputError(
            f"{show(path)}: has version {version} and integers of code {code}; supported: version 1 with code 8 (uint16) or 4 (int32)"
        )
    expected = MEGATRON_HEADER + 12 * sequences + 8 * numbers
    if file.size != expected or not numbers:
        raise InputError(
            f"{show(path)}: its header announces {sequences:,} sequences and {max(0, numbers - 1):,} documents, which take {expected:,} bytes, but it has {file.size:,}; it was truncated, or is the index of other tokens"
        )
    tokens, count = token_bytes // itemsize, numbers - 1
    return MegatronEnds(file=file, tokens=tokens, count=count, sequences=sequences, itemsize=itemsize)


def count_of(ends: Ends) -> int:
    return sum(part.count for part in ends)


def chunks(ends: Ends) -> Iterator[Positions]:
    """All ends, checked to be in order and within the tokens: the file may be a stranger's."""
    last = 0
    for part in ends:
        for first in range(0, part.count, _CHUNK):
            found = part.read(first, min(_CHUNK, part.count - first))
            if found[0] < last or (np.diff(found) < 0).any() or found[-1] > part.base + part.tokens:
                raise InputError(
                    f"{show(part.file.path)}: the ends of document {first:,} and those after it are not in order within the {part.tokens:,} tokens; the index is damaged, or belongs to other tokens"
                )
            last = int(found[-1])
            yield found


def document(ends: Ends, number: int) -> tuple[int, int]:
    """Where a document begins and ends; -1 is the last."""
    left, before = number + count_of(ends) if number < 0 else number, 0
    for part in ends if left >= 0 else ():
        if left < part.count:
            start, end = (before, *part.read(max(0, left - 1), 2 if left else 1).tolist())[-2:]
            if not before <= start <= end <= part.base + part.tokens:
                raise InputError(
                    f"{show(part.file.path)}: document {number:,} ends outside the token file; the index is damaged"
                )
            return start, end
        left, before = left - part.count, part.base + part.tokens
    raise IndexError(f"no document {number:,}; there are {count_of(ends):,}")


def _integers(file: StoredFile, offset: int, count: int) -> Positions:
    found: npt.NDArray[np.uint64] = np.frombuffer(file.read(offset, 8 * count), "<u8")
    return found.astype(np.int64)
