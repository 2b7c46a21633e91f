"""Tokens in the order of the text → the files of a format: token files and their sidecar files."""

import numpy as np

from shardmill.formats.indexes import sidecars_of
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import Output
from shardmill.formats.shards import SPLITS, Positions, Provenance, Shard, SidecarFile, SplitName, SplitText, Tokens
from shardmill.tokens.layout import empties, ends_and_sizes
from shardmill.tokens.token_bytes import token_bytes_of

_NOWHERE = np.zeros((8 << 10, 2), np.uint64)


class ShardFiles:
    """Grows the token files of one split, starting from what they already hold, and counts its documents.

    A header holds the number of tokens, so each file starts with the header of a full one, and only the last of a
    split has to be patched at the end.
    """

    def __init__(
        self, files: OutputFiles, output: Output, split: SplitName, extra: dict[str, int], *, finished: bool
    ) -> None:
        self._files, self._output, self._split = files, output, split
        self._last = ""
        """The name of the last shard."""
        self.end, self.documents = extra.get(f"{split}.end", 0), extra.get(f"{split}.documents", 0)
        """Where the last whole document ends, and how many there are."""
        self.text_bytes = extra.get(f"{split}.bytes", 0)
        states = files.states()
        self._sizes: list[int] = []
        while (name := self._name(len(self._sizes))) in states and (output.shard_tokens or not self._sizes):
            self._sizes.append((states[name].bytes - output.header_bytes) // output.dtype.itemsize)
        self.tokens = sum(self._sizes)
        count = len(self._sizes)
        self._last = self._name(count - 1) if count else ""
        for number in range(count - 1):
            files.full(self._name(number))
        # At the end the last shard may be patched, or joined to the one before.
        self._open = 2 if output.least_tokens else 1
        for number in range(count - self._open):
            files.settle(self._name(number))
        if finished and output.least_tokens:
            files.drop(self._name(count))  # the one that was joined to the one before
        for number in range(max(0, count - self._open), count) if output.header_bytes and not finished else ():
            files.restore_header(self._name(number), self._full_header())

    def append(self, ids: Tokens) -> None:
        assert ids.dtype == self._output.dtype
        self.tokens += len(ids)
        limit = self._output.shard_tokens
        while len(ids):
            if not self._sizes or self._sizes[-1] == limit:
                self._begin_shard()
            part = ids if limit is None else ids[: limit - self._sizes[-1]]
            self._files.append(self._last, part.data.cast("B"))
            self._sizes[-1] += len(part)
            ids = ids[len(part) :]

    def finish(self) -> None:
        """Join a last shard that is too short to the one before it, and correct the header of the last one."""
        least = self._output.format.least_shards if self._split == "train" else 1
        if len(self._sizes) > least and self._sizes[-1] < self._output.least_tokens:
            self._join_last()
        if self._sizes and (header := self._output.header(self._sizes[-1])) != self._full_header():
            self._files.patch(self._last, header)

    def shards(self) -> tuple[Shard, ...]:
        return tuple(
            self._files.shard(self._name(number), self._split, tokens, self._output.header_bytes)
            for number, tokens in enumerate(self._sizes)
        )

    def _begin_shard(self) -> None:
        if self._sizes:
            self._files.full(self._name(len(self._sizes) - 1))
        self._sizes.append(0)
        if (settled := len(self._sizes) - self._open - 1) >= 0:
            self._files.settle(self._name(settled))
        self._last = self._name(len(self._sizes) - 1)
        if self._output.header_bytes:
            self._files.append(self._last, memoryview(self._full_header()))

    def _join_last(self) -> None:
        size, itemsize = self._sizes.pop(), self._output.dtype.itemsize
        last, before = self._last, self._name(len(self._sizes) - 1)
        self._last = before
        self._files.copy(last, self._output.header_bytes, size * itemsize, before)
        self._files.drop(last)
        self._sizes[-1] += size

    def _name(self, number: int) -> str:
        return self._output.format.file_name(self._split, number)

    def _full_header(self) -> bytes:
        return self._output.header(self._output.shard_tokens or 0)


class FormatWriter:
    """Writes tokens to shards and document ends to sidecars. The files and extra() are enough to resume after a kill."""

    def __init__(
        self, output: Output, files: OutputFiles, extra: dict[str, int] | None = None, *, finished: bool = False
    ) -> None:
        self._files, self._output = files, output
        self._splits = {split: ShardFiles(files, output, split, extra or {}, finished=finished) for split in SPLITS}
        self._sidecars = [*sidecars_of(output, files, finished=finished)]

    def append(
        self, split: SplitName, ids: Tokens, ends: Positions, places: Provenance | None, text_bytes: int = 0
    ) -> None:
        """The next tokens of a split, where documents end among them, where each came from, and how much text they are."""
        if places is None:  # nothing records them
            places = _NOWHERE[: len(ends)] if len(ends) <= len(_NOWHERE) else np.zeros((len(ends), 2), np.uint64)
        room = self._output.val_tokens - self._splits["val"].tokens
        if split == "train" and room > 0:  # the first shard is the validation set
            inside = int(np.searchsorted(ends, room, side="right"))
            self._append("val", ids[:room], ends[:inside], places[:inside])
            in_val = self._bytes_of(ids[:room]) if room < len(ids) else text_bytes
            self._splits["val"].text_bytes += in_val
            text_bytes -= in_val
            ids, ends, places = ids[room:], ends[inside:] - room, places[inside:]
        self._splits[split].text_bytes += text_bytes
        if len(ids) or len(ends):
            self._append(split, ids, ends, places)

    def finish(self) -> None:
        """Everything has been appended: write what can only be known now."""
        for split, grown in self._splits.items():
            self._close(split, np.zeros((1, 2), np.uint64))
            grown.finish()
            for sidecar in self._sidecars:
                sidecar.finish(split, grown.shards(), grown.documents)

    def extra(self) -> dict[str, int]:
        ends = {f"{split}.end": grown.end for split, grown in self._splits.items()}
        sizes = {f"{split}.bytes": grown.text_bytes for split, grown in self._splits.items()}
        return ends | sizes | {f"{split}.documents": grown.documents for split, grown in self._splits.items()}

    def text(self) -> dict[SplitName, SplitText]:
        """How much text was written to each split."""
        return {name: SplitText(bytes=each.text_bytes, documents=each.documents) for name, each in self._splits.items()}

    def _bytes_of(self, ids: Tokens) -> int:
        known = token_bytes_of(self._output.vocabulary) if self._output.vocabulary is not None else None
        return int(known.sizes[ids].sum()) if known is not None else 0

    def shards(self) -> tuple[Shard, ...]:
        return tuple(shard for grown in self._splits.values() for shard in grown.shards())

    def sidecars(self) -> tuple[SidecarFile, ...]:
        return tuple(
            SidecarFile(
                name=name,
                split=next((split for split in SPLITS if name.startswith(split)), None),
                kind=kind,
                bytes=state.bytes,
                checksums=state.all_checksums,
            )
            for name, state in sorted(self._files.states().items())
            if (kind := self._output.format.kind_of(name)) is not None
        )

    def _append(self, split: SplitName, ids: Tokens, ends: Positions, places: Provenance) -> None:
        begin = self._splits[split].tokens
        self._splits[split].append(ids)
        if len(ends):
            # Running text is split by passages: what the other split has of this document ends with it.
            self._close("val" if split == "train" else "train", places[:1])
            self._documents(split, ends, begin, places)

    def _close(self, split: SplitName, place: Provenance) -> None:
        grown = self._splits[split]
        if grown.tokens > grown.end:
            self._documents(split, np.array([grown.tokens], np.int64), 0, place)

    def _documents(self, split: SplitName, ends: Positions, begin: int, places: Provenance) -> None:
        """Documents that end there, counted from a token of the split; those without tokens are left out."""
        grown = self._splits[split]
        if not self._sidecars:  # nothing records where they end
            grown.documents += len(ends) - empties(ends, grown.end - begin)
            grown.end = begin + int(ends[-1])
            return
        ends, sizes, empty = ends_and_sizes(ends, begin, grown.end)
        if empty:
            some = sizes > 0
            ends, sizes, places = ends[some], sizes[some], places[some]
        if len(ends):
            grown.end, grown.documents = int(ends[-1]), grown.documents + len(ends)
            for sidecar in self._sidecars:
                sidecar.add(split, ends, sizes, places)
