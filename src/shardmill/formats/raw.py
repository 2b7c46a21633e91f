"""Tokens → train.bin and val.bin as nanoGPT reads them: little-endian integers and nothing else."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardmill.errors import UsageError
from shardmill.formats.files import OutputFiles
from shardmill.names import show
from shardmill.spec import Dtype
from shardmill.tokens.tokenizer import Tokenizer

SplitName = Literal["train", "val"]
FILES: dict[SplitName, str] = {"train": "train.bin", "val": "val.bin"}
EOT_SIDE = "after"


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

    def __init__(self, files: OutputFiles, dtype: np.dtype[np.unsignedinteger[npt.NBitBase]]) -> None:
        self._files = files
        self._dtype = dtype

    def append(
        self, split: SplitName, ids: npt.NDArray[np.unsignedinteger[npt.NBitBase]], _ends: npt.NDArray[np.int64]
    ) -> None:
        assert ids.dtype == self._dtype
        if len(ids):
            self._files.append(FILES[split], ids.data.cast("B"))

    def shards(self) -> tuple[Shard, ...]:
        """What has been written."""
        states = self._files.states()
        return tuple(
            Shard(
                name=name,
                split=split,
                tokens=states[name].bytes // self._dtype.itemsize,
                bytes=states[name].bytes,
                checksums=states[name].all_checksums,
            )
            for split, name in FILES.items()
            if name in states
        )
