"""Tokens → train.bin and val.bin as nanoGPT reads them: little-endian integers and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from shardmill.errors import UsageError
from shardmill.spec import Dtype
from shardmill.storage import GrowingFile, show
from shardmill.tokens.tokenizer import Tokenizer

SplitName = Literal["train", "val"]
FILES: dict[SplitName, str] = {"train": "train.bin", "val": "val.bin"}
EOT_SIDE = "after"
# Checksums are kept for stretches of this size, so that a damaged one can be named and a job resumed.
SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One finished file: its size, and the xxh3-64 of each 64 MiB of it."""

    name: str
    split: SplitName
    tokens: int
    bytes: int
    checksums: tuple[str, ...]


def choose_dtype(tokenizer: Tokenizer, asked: Dtype) -> np.dtype[np.unsignedinteger[npt.NBitBase]]:
    """The smallest of uint16 and uint32 that holds every id, special ones too; never narrower than the vocabulary."""
    fits = tokenizer.size <= 1 << 16
    if asked == "uint16" and not fits:
        raise UsageError(
            f"--dtype uint16: tokenizer {show(tokenizer.name)} has ids up to {tokenizer.size - 1:,}, and uint16 ends at 65,535; use --dtype uint32 or auto"
        )
    return np.dtype("<u2" if asked != "uint32" and fits else "<u4")


class RawWriter:
    """Grows one file for each split that gets tokens; a split without any gets no file."""

    def __init__(self, folder: Path, dtype: np.dtype[np.unsignedinteger[npt.NBitBase]], *, drop_behind: bool) -> None:
        self.folder = folder
        self.dtype = dtype
        self._drop_behind = drop_behind
        self._files: dict[SplitName, _CheckedFile] = {}

    def append(self, split: SplitName, ids: npt.NDArray[np.unsignedinteger[npt.NBitBase]]) -> None:
        assert ids.dtype == self.dtype
        if len(ids):
            if split not in self._files:
                self._files[split] = _CheckedFile(self.folder / FILES[split], drop_behind=self._drop_behind)
            self._files[split].append(ids.data.cast("B"))

    def finish(self) -> Sequence[Shard]:
        """Give all files their final names."""
        shards = []
        for split, file in sorted(self._files.items()):
            checksums = file.finish()
            shards.append(
                Shard(
                    name=FILES[split],
                    split=split,
                    tokens=file.bytes // self.dtype.itemsize,
                    bytes=file.bytes,
                    checksums=checksums,
                )
            )
        return shards

    def abandon(self) -> None:
        for file in self._files.values():
            file.abandon()


class _CheckedFile:
    def __init__(self, path: Path, *, drop_behind: bool) -> None:
        self._file = GrowingFile(path, drop_behind=drop_behind)
        self._hash = xxhash.xxh3_64()
        self._room = SEGMENT_BYTES
        self._checksums: list[str] = []

    @property
    def bytes(self) -> int:
        return self._file.bytes

    def append(self, data: memoryview) -> None:
        self._file.append(data)
        while data.nbytes >= self._room:
            self._hash.update(data[: self._room])
            self._checksums.append(self._hash.hexdigest())
            data = data[self._room :]
            self._hash.reset()
            self._room = SEGMENT_BYTES
        self._hash.update(data)
        self._room -= data.nbytes

    def finish(self) -> tuple[str, ...]:
        self._file.finish()
        if self._room < SEGMENT_BYTES:
            self._checksums.append(self._hash.hexdigest())
        return tuple(self._checksums)

    def abandon(self) -> None:
        self._file.abandon()
