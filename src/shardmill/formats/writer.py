"""Tokens in the order of the text → the files of a format: token files, and what stands beside them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shardmill.formats.indexes import KINDS, sidecars_of
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import Output
from shardmill.formats.shards import SPLITS, Positions, Provenance, Shard, ShardFiles, SidecarFile, SplitName, Tokens
from shardmill.io.storage import Origin


class Writer(Protocol):
    """What the mill needs. What has been written, and extra(), are enough to go on after a kill."""

    def append(self, split: SplitName, ids: Tokens, ends: Positions, places: Provenance) -> None:
        """The next tokens of a split, where documents end among them, and where each of those came from."""

    def finish(self) -> None:
        """All was appended: write what can only be known now."""

    def extra(self) -> dict[str, int]: ...
    def shards(self) -> tuple[Shard, ...]: ...
    def sides(self) -> tuple[SidecarFile, ...]: ...


@dataclass(kw_only=True, slots=True)
class _Split:
    files: ShardFiles
    end: int
    """Where its last whole document ends."""
    documents: int


class FormatWriter:
    """Parts the shards, and tells the sides where documents end."""

    def __init__(
        self, output: Output, files: OutputFiles, extra: dict[str, int] | None = None, *, finished: bool = False
    ) -> None:
        known = extra or {}
        self._files, self._output = files, output
        self._splits = {
            split: _Split(
                files=ShardFiles(files, output.layout(), split, finished=finished),
                end=known.get(f"{split}.end", 0),
                documents=known.get(f"{split}.documents", 0),
            )
            for split in SPLITS
        }
        self._sides = sidecars_of(output, files, finished=finished)
        self._first = (output.shard_tokens or 0) if output.first_shard_is_val else 0
        if finished and output.format.sides == "olmo":
            for split in SPLITS:
                files.drop(f"{split}.rows")

    def append(self, split: SplitName, ids: Tokens, ends: Positions, places: Provenance) -> None:
        room = self._first - self._splits["val"].files.tokens
        if split == "train" and room > 0:  # the first shard is the validation set
            inside = int(np.searchsorted(ends, room, side="right"))
            self._append("val", ids[:room], ends[:inside], places[:inside])
            ids, ends, places = ids[room:], ends[inside:] - room, places[inside:]
        if len(ids) or len(ends):
            self._append(split, ids, ends, places)

    def copy(self, split: SplitName, ids: Tokens, ends: Positions, places: Provenance, origin: Origin | None) -> None:
        """As append, of tokens that stand in another file already."""
        assert not self._first
        self._append(split, ids, ends, places, origin)

    def finish(self) -> None:
        for split, grown in self._splits.items():
            self._close(split, np.zeros((1, 2), np.uint64))
            grown.files.finish()
            for side in self._sides:
                side.finish(split, grown.files.shards(), grown.documents)

    def extra(self) -> dict[str, int]:
        return {
            f"{split}.{name}": value
            for split, grown in self._splits.items()
            for name, value in (("end", grown.end), ("documents", grown.documents))
        }

    def shards(self) -> tuple[Shard, ...]:
        return tuple(shard for grown in self._splits.values() for shard in grown.files.shards())

    def sides(self) -> tuple[SidecarFile, ...]:
        return tuple(
            SidecarFile(
                name=name,
                split=None if kind in ("rejects", "inputs") else "val" if name.startswith("val") else "train",
                kind=kind,
                bytes=state.bytes,
                checksums=state.all_checksums,
            )
            for name, state in sorted(self._files.states().items())
            for suffix, kind in KINDS.items()
            if name.endswith(suffix)
        )

    def _append(
        self, split: SplitName, ids: Tokens, ends: Positions, places: Provenance, origin: Origin | None = None
    ) -> None:
        begin = self._splits[split].files.tokens
        self._splits[split].files.append(ids, origin)
        if len(ends):
            # Running text may be parted by passages: what the other split has of this document ends with it.
            self._close("val" if split == "train" else "train", places[:1])
            self._documents(split, ends + begin, places)

    def _close(self, split: SplitName, place: Provenance) -> None:
        grown = self._splits[split]
        if grown.files.tokens > grown.end:
            self._documents(split, np.array([grown.files.tokens], np.int64), place)

    def _documents(self, split: SplitName, ends: Positions, places: Provenance) -> None:
        grown = self._splits[split]
        sizes = np.diff(ends, prepend=grown.end)
        some = sizes > 0
        if not some.all():
            ends, sizes, places = ends[some], sizes[some], places[some]
        if len(ends):
            grown.end, grown.documents = int(ends[-1]), grown.documents + len(ends)
            for side in self._sides:
                side.add(split, ends, sizes, places)
