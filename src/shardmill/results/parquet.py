"""Tokens → rows of Parquet files, as datasets of Hugging Face, TRL and Axolotl read them."""

import io
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.errors import OutputError
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import PARQUET, Output
from shardmill.formats.shards import Positions, Provenance, Shard, SidecarFile, SplitName, Tokens

# A row is held in memory, in each of its columns.
_MOST_ROW_TOKENS = 1 << 26
_IDS, _ONES = pa.list_(pa.int32()), pa.list_(pa.int8())
# The Trainer of transformers and Axolotl want labels, which their models shift themselves, and Axolotl the mask.
_SCHEMA = pa.schema([("input_ids", _IDS), ("attention_mask", _ONES), ("labels", _IDS)])


class ParquetRows:
    """Grows SPLIT-00000.parquet and so on. A file has at most shard_tokens tokens, unless a single row has more."""

    def __init__(self, output: Output, files: OutputFiles) -> None:
        self._files, self._output = files, output
        self._tokens: Counter[tuple[SplitName, int]] = Counter()
        self._split: SplitName = "train"
        self._number = 0
        self._file: pq.ParquetWriter | None = None
        self._written = _Written()
        self._held: list[Tokens] = []
        """Tokens after the last row."""

    def append(self, split: SplitName, ids: Tokens, ends: Positions, _: Provenance) -> None:
        """The next tokens of a split, and where documents end among them. All of train comes before val."""
        if split != self._split:
            self.finish()
            self._split, self._number = split, 0
        held, sample = sum(map(len, self._held)), self._output.shape.sample_tokens
        self._held.append(ids)
        stops = held + ends if sample is None else np.arange(sample, held + len(ids) + 1, sample)
        if len(stops) and stops[-1]:
            tokens = np.concatenate(self._held)
            self._rows(tokens, np.union1d(0, stops))
            self._held = [tokens[stops[-1] :]]
        if sum(map(len, self._held)) > _MOST_ROW_TOKENS:
            raise OutputError(
                f"{self._name()}: a document has more than {_MOST_ROW_TOKENS:,} tokens, too many for a row; pass --sample-tokens to write rows of one length"
            )

    def finish(self) -> None:
        """Tokens after the last document become one more row; rows of a fixed length leave out a remainder that does not fill one."""
        rest = sum(map(len, self._held))
        if rest and self._output.shape.sample_tokens is None:
            self._rows(np.concatenate(self._held), np.array([0, rest]))
        self._held = []
        self._close()

    def shards(self) -> tuple[Shard, ...]:
        return tuple(
            self._files.shard(PARQUET.file_name(split, number), split, tokens)
            for (split, number), tokens in self._tokens.items()
        )

    def sidecars(self) -> tuple[SidecarFile, ...]:
        return ()

    def _rows(self, tokens: Tokens, borders: Positions) -> None:
        """Rows from border to border, in as many files as it takes."""
        limit = self._output.shard_tokens
        assert limit is not None
        while len(borders) > 1:
            room = limit - self._tokens[self._split, self._number]
            fit = int(np.searchsorted(borders, borders[0] + room, side="right")) - 1
            if not fit and self._file is not None:
                self._close()
                continue
            fit = max(1, fit)
            self._write(tokens[borders[0] : borders[fit]], borders[: fit + 1] - borders[0])
            borders = borders[fit:]

    def _write(self, tokens: Tokens, borders: Positions) -> None:
        if self._file is None:
            sink = pa.PythonFile(self._written, mode="w")
            self._file = pq.ParquetWriter(sink, _SCHEMA, compression="zstd", use_dictionary=["attention_mask"])
        ids = _lists(borders, tokens.view(np.int32))
        ones = _lists(borders, np.ones(len(tokens), np.int8))
        self._file.write_table(pa.Table.from_arrays([ids, ones, ids], schema=_SCHEMA))
        self._files.append(self._name(), memoryview(self._written.take()))
        self._tokens[self._split, self._number] += len(tokens)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._files.append(self._name(), memoryview(self._written.take()))
            self._files.full(self._name())
            self._file, self._written, self._number = None, _Written(), self._number + 1

    def _name(self) -> str:
        return PARQUET.file_name(self._split, self._number)


def _lists(borders: Positions, values: npt.NDArray[Any]) -> pa.ListArray:
    return pa.ListArray.from_arrays(borders.astype(np.int32), values)


class _Written(io.BytesIO):
    """What pyarrow has written of a file, until it is taken."""

    _taken = 0

    def tell(self) -> int:
        return self._taken + super().tell()

    def take(self) -> bytes:
        taken = self.getvalue()
        self._taken += len(taken)
        self.seek(0)
        self.truncate()
        return taken
