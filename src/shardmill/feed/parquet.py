"""The documents of a split → Parquet files with a column input_ids, for trainers that read datasets of Hugging Face."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.errors import OutputError
from shardmill.feed.documents import refuse_unknown
from shardmill.feed.order import Numbers
from shardmill.feed.source import Opened, Source, open_source
from shardmill.io import storage
from shardmill.system.names import show

FILE_TOKENS = 100_000_000
# Tokens that are read and written at a time, unless a document has more.
_GROUP_TOKENS = 1 << 20
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])


def to_parquet(source: str | Path | Source, output: str | Path, *, file_tokens: int = FILE_TOKENS) -> list[Path]:
    """Write each document as a row with its token ids, to SPLIT-00000.parquet and so on; returns the files.

    >>> shardmill.to_parquet("data", "rows")
    [PosixPath('rows/train-00000.parquet')]
    """
    opened = open_source(source if isinstance(source, Source) else Source(path=source))
    refuse_unknown(opened)
    folder, made = Path(output), list[Path]()
    storage.make_folder(folder)
    groups = _groups(opened)
    group = next(groups, None)
    while group is not None:
        path = folder / f"{opened.split.name}-{len(made):05}.parquet"
        if path.exists():
            raise OutputError(f"{show(path)}: exists already; remove it, or choose another folder")
        file = storage.GrowingFile(path)
        try:
            written = 0
            with pq.ParquetWriter(pa.PythonFile(_Sink(file), mode="w"), _SCHEMA) as writer:
                while group is not None and written < file_tokens:
                    writer.write_table(_table(opened, group))
                    written, group = written + int(group[-1] - group[0]), next(groups, None)
            file.seal()
            file.publish()
        except BaseException:
            file.abandon()
            raise
        made.append(path)
    storage.sync_folder(folder)
    return made


def _groups(opened: Opened) -> Iterator[Numbers]:
    """Where neighbouring documents begin, and where the last of them ends, a group at a time."""
    start = 0
    for ends in opened.split.document_ends():
        at = 0
        while at < len(ends):
            stop = max(at + 1, int(np.searchsorted(ends, start + _GROUP_TOKENS, side="right")))
            if ends[stop - 1] > start:
                yield np.append(start, ends[at:stop])
            start, at = int(ends[stop - 1]), stop


def _table(opened: Opened, borders: Numbers) -> pa.Table:
    ids = opened.split.read(int(borders[0]), int(borders[-1])).astype(np.int32)
    offsets = np.unique(borders - borders[0]).astype(np.int32)  # an empty document is no row
    return pa.Table.from_arrays([pa.ListArray.from_arrays(offsets, ids)], schema=_SCHEMA)


class _Sink(io.RawIOBase):
    """What pyarrow writes goes to a file that gets its name at the end."""

    def __init__(self, file: storage.GrowingFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.bytes

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._file.append(memoryview(data))
        return len(data)
