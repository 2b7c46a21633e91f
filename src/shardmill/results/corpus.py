"""An output folder → its tokens and documents again, read by position: nothing is mapped, nothing stays open."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from shardmill.errors import InputError, UsageError
from shardmill.formats.mds_litdata import SampleFile
from shardmill.formats.registry import FORMATS, Format, choose_shape
from shardmill.formats.shards import SPLITS, Shape, SplitName, Tokens, TokenType
from shardmill.inputs.input_files import Strings
from shardmill.io.fileset import FileSet, StoredFile, open_fileset
from shardmill.io.storage import Origin
from shardmill.record import input_list, journal, manifest
from shardmill.record.manifest import Manifest
from shardmill.results import document_index
from shardmill.results.document_index import Ends, Positions
from shardmill.system.names import show
from shardmill.tokens.reference import Reference, load_reference
from shardmill.tokens.tokenizer import ALIASES, ENCODINGS, load

# What is read at a time: small enough to stay in a core's cache until it is hashed and written.
CHUNK_TOKENS = 256 << 10
_LOOKUPS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile:
    """A file, and the tokens in it behind its header."""

    file: StoredFile
    offset: int
    tokens: int

    @property
    def path(self) -> str:
        """Where it is, as it may be shown."""
        return self.file.path

    def read(self, first: int, count: int, dtype: TokenType) -> Tokens:
        return np.frombuffer(self.file.read(self.offset + first * dtype.itemsize, count * dtype.itemsize), dtype)

    def origin(self, first: int, dtype: TokenType) -> Origin | None:
        """Where the tokens from the first on stand, if on this machine."""
        far = isinstance(self.file.fileset.folder, str)
        return None if far else Origin(self.path, self.offset + first * dtype.itemsize)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The tokens of one split: split[10:20] reads ten of them, however long it is.

    A read opens the file, reads and closes it, so a split costs no memory and works in every thread and process.
    Of a far one a few connections are kept, with at most 10 MiB ahead of each.
    """

    name: SplitName
    files: tuple[TokenFile | SampleFile, ...]
    dtype: TokenType
    ends: Ends | None = None
    """Files that say where documents end, if there are any."""
    eot_id: int | None = None
    eot_side: str = "none"
    cuts: tuple[int, ...] = ()
    """Where outputs meet that were merged, and one of them was cut inside a document: no end-of-text token is there."""

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Tokens: ...
    def __getitem__(self, place: int | slice) -> int | Tokens:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                raise ValueError("tokens are read in their order; take a slice without a step, and step through that")
            return self.read(start, max(start, stop))
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(f"token {place:,} of {len(self):,}")
        return int(self.read(at, at + 1)[0])

    def read(self, start: int, stop: int) -> Tokens:
        """The tokens [start, stop)."""
        parts = []
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop and number < len(self.files):
            file, first = self.files[number], start - self._starts[number]
            count = min(stop - start, file.tokens - first)
            parts.append(file.read(first, count, self.dtype))
            start, number = start + count, number + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def origin(self, start: int, stop: int) -> Origin | None:
        """Where the tokens [start, stop) stand, if in one file of this machine."""
        if not 0 <= start < stop <= len(self):
            return None
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        if stop > self._starts[number + 1]:
            return None
        return self.files[number].origin(start - self._starts[number], self.dtype)

    def chunks(self, size: int = CHUNK_TOKENS) -> Iterator[Tokens]:
        """All tokens in order, some at a time."""
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))

    @property
    def knows_documents(self) -> bool:
        return self.ends is not None or (self.eot_id is not None and self.eot_side != "none")

    def document_ends(self) -> Iterator[Positions]:
        """Where documents end, some at a time: from the index, or where the end-of-text tokens stand."""
        if self.ends is not None:
            yield from document_index.chunks(self.ends)
        elif self.knows_documents:
            yield from self._scan()
        else:
            raise UsageError(
                f"{show(self.files[0].path) if self.files else self.name}: where its documents end is not known: there is no index, and no end-of-text token marks them. Make it again with --index"
            )

    def documents(self) -> Iterator[Tokens]:
        """Each document with its end-of-text token; what follows the last end is one too."""
        begin = 0
        for some in self.document_ends():
            for end in some.tolist():
                if end > begin:
                    yield self.read(begin, end)
                begin = max(begin, end)
        if begin < len(self):
            yield self.read(begin, len(self))

    def document(self, number: int) -> Tokens:
        """One document by its number; at once with an index, else by looking through those before it."""
        if self.ends is not None:
            return self.read(*document_index.document(self.ends, number))
        for at, tokens in enumerate(self.documents()):
            if at == number:
                return tokens
        raise IndexError("no such document")

    def _scan(self) -> Iterator[Positions]:
        at = 0
        for tokens in self.chunks():
            found = self.ends_among(tokens, self.eot_side, at)
            if len(found):
                yield found + at
            at += len(tokens)

    def ends_among(self, tokens: Tokens, side: str, at: int) -> Positions:
        """Where documents end among the tokens from at on, their marks on this side of them."""
        marks = np.flatnonzero(tokens == self.eot_id) + (side == "after")
        cuts = np.array(self.cuts, np.int64) - at
        found = np.union1d(marks, cuts[(cuts >= 0) & (cuts <= len(tokens))]) if len(cuts) else marks
        # An end at the border of two stretches is told once: with the mark that shows it.
        found = found[found > 0] if side == "after" or at == 0 else found
        found = found[found < len(tokens)] if side == "before" else found
        last = at + len(tokens) == len(self) and not (len(found) and found[-1] == len(tokens))
        return np.append(found, len(tokens)) if last else found

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for file in self.files:
            starts.append(starts[-1] + file.tokens)
        return starts


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Token files of one format, by split: corpus["train"][:100]."""

    folder: Path | str
    """Or its address, as it may be shown."""
    format: Format
    dtype: TokenType
    splits: Mapping[SplitName, Split]
    eot_id: int | None
    eot_side: str
    manifest: Manifest | None = None
    """None: another program made them."""
    fileset: FileSet | None = None
    """Where the files of a manifest are."""
    tokenizer: str | None = None
    """The one that made it, as the user names it; of a manifest, which may be a stranger's, none is opened."""

    def __getitem__(self, split: SplitName) -> Split:
        if split not in self.splits:
            raise KeyError(f"{self.folder} has no {split}; it has {', '.join(self.splits) or 'no tokens'}")
        return self.splits[split]

    @property
    def tokens(self) -> int:
        return sum(len(split) for split in self.splits.values())

    @cached_property
    def decode(self) -> Callable[[Tokens | list[int]], str]:
        """The text of some tokens; characters that are not whole become U+FFFD."""
        return lambda ids: self.text(ids).decode("utf-8", "replace")

    def text(self, ids: Tokens | list[int]) -> bytes:
        """The same as UTF-8, at whose ends may be parts of a character."""
        try:
            return self.reference.decode([int(i) for i in ids])
        except (KeyError, OverflowError) as e:
            raise InputError(
                f"{show(self.folder)}: has tokens that its tokenizer does not know ({e}); look with shardmill verify"
            ) from e

    @cached_property
    def sources(self) -> Sequence[str]:
        """The paths of the inputs, by the numbers that provenance names them with."""
        return Strings(str(json.loads(line)["path"]) for line in self.input_lines())

    def input_lines(self) -> Iterator[bytes]:
        """Of each input a line of JSON, as the manifest has it."""
        if self.manifest is not None and self.fileset is not None:
            yield from input_list.lines_in(self.fileset, self.manifest.job.get("inputs", []))

    @cached_property
    def reference(self) -> Reference:
        job = self.manifest.job if self.manifest is not None else {}
        made_with = job.get("choices", {}).get("tokenizer")
        name = self.tokenizer if self.tokenizer is not None else made_with
        if name is None:
            raise UsageError(f"{show(self.folder)}: which tokenizer made it is not known, so it cannot be decoded")
        if self.tokenizer is None and ALIASES.get(name, name) not in ENCODINGS:
            raise UsageError(
                f"{show(self.folder)}: was made with the tokenizer {show(name)}; to see its text, say where that is with --tokenizer (in Python: shardmill.open(folder, tokenizer=...))"
            )
        found = load(name)
        if found.digest != job.get("tokenizer_sha256", found.digest):
            raise UsageError(
                f"tokenizer {show(name)} is not the one that made {show(self.folder)}: its SHA-256 is {found.digest}, the manifest has {show(str(job['tokenizer_sha256']))}; find the tokenizer.json it was made with"
            )
        return load_reference(found)


def open_corpus(folder: str | Path, *, tokenizer: str | None = None) -> Corpus:
    """A complete output of shardmill, here or at an address, its files looked at: all there, and as long as they should be.

    Of files on this machine the headers are compared too. tokenizer: what decodes the tokens; it need not be given
    for the encodings that come with shardmill.

        corpus = shardmill.open("data")
        text = corpus.decode(corpus["train"][:100])
    """
    return corpus_of(open_fileset(folder), tokenizer)


def corpus_of(fileset: FileSet, tokenizer: str | None = None) -> Corpus:
    made, folder = manifest.of(fileset), fileset.folder
    if made is None:
        if fileset.size(journal.NAME) is not None:
            raise InputError(f"{show(folder)}: the job there is not finished; run its command again, it goes on")
        raise InputError(
            f"{show(folder)}: has no manifest.json, so shardmill did not make it; to convert files that another program made, say which with --from ({', '.join(FORMATS)})"
        )
    found = FORMATS.get(str(made.job.get("choices", {}).get("format", "nanogpt")))
    if found is None or made.dtype not in ("uint16", "uint32"):
        raise InputError(f"{show(folder)}: the manifest names a format or integers that this version does not know")
    vocabulary = made.job.get("vocabulary_size")
    if made.dtype == "uint16" and isinstance(vocabulary, int) and vocabulary > 1 << 16:
        raise InputError(
            f"{show(folder)}: the manifest says uint16, which ends at 65,535, and a vocabulary of {vocabulary:,}; such tokens were cut off when they were written. Make it again"
        )
    dtype: TokenType = np.dtype("<u2" if made.dtype == "uint16" else "<u4")
    if isinstance(folder, str):
        _ask_for_all(fileset, made)
    shape = _shape_of(folder, made, found, dtype)
    splits = {split: _split_of(fileset, made, found, shape, split) for split in SPLITS}
    return Corpus(
        folder=folder,
        format=found,
        dtype=dtype,
        splits={name: split for name, split in splits.items() if split.files},
        eot_id=made.eot_id,
        eot_side=made.eot_side,
        manifest=made,
        fileset=fileset,
        tokenizer=tokenizer,
    )


def _shape_of(folder: Path | str, made: Manifest, found: Format, dtype: TokenType) -> Shape:
    asked = [made.job.get("choices", {}).get(name) for name in ("shard_tokens", "sample_tokens")]
    if not all(number is None or (type(number) is int and number > 0) for number in asked):
        raise InputError(f"{show(folder)}: the manifest says {asked}, not how many tokens a shard and a sample have")
    return choose_shape(found, dtype, *asked)


def _ask_for_all(fileset: FileSet, made: Manifest) -> None:
    """On the web each file must be asked for: side by side, a thousand shards take seconds."""
    with ThreadPoolExecutor(_LOOKUPS) as pool:
        for _ in pool.map(fileset.size, [file.name for file in made.files]):
            pass


def _split_of(fileset: FileSet, made: Manifest, found: Format, shape: Shape, name: SplitName) -> Split:
    files, dtype = [], shape.dtype
    for shard in made.files:
        if shard.split == name:
            file = StoredFile(fileset=fileset, name=shard.name)
            offset = len(found.header(0, shape)) if found.header else 0
            fits = file.size == shard.bytes == offset + shard.tokens * dtype.itemsize
            if not fits or shard.bytes > (found.max_shard_bytes or shard.bytes):
                raise InputError(
                    f"{show(file.path)}: has {file.size:,} bytes, and the manifest says {shard.bytes:,} with {shard.tokens:,} tokens; it was changed or cut short since. Make it again"
                )
            local = isinstance(fileset.folder, Path)
            if found.header and local and file.read(0, offset) != found.header(shard.tokens, shape):
                raise InputError(
                    f"{show(file.path)}: its header is not the one that shardmill wrote; it was changed since"
                )
            files.append(TokenFile(file=file, offset=offset, tokens=shard.tokens))
    tokens = sum(file.tokens for file in files)
    return Split(
        name=name,
        files=tuple(files),
        dtype=dtype,
        ends=_ends_of(fileset, made, name, tokens, dtype),
        eot_id=made.eot_id,
        eot_side=made.eot_side,
        cuts=_cuts_of(fileset, made, name, tokens),
    )


def _cuts_of(fileset: FileSet, made: Manifest, name: SplitName, tokens: int) -> tuple[int, ...]:
    cuts = made.job.get("cuts", {})
    found = cuts.get(name, []) if isinstance(cuts, dict) else None
    if not isinstance(found, list) or not all(type(cut) is int and 0 <= cut <= tokens for cut in found):
        raise InputError(f"{show(fileset.folder)}: the manifest does not say where its sources were cut; it is damaged")
    return tuple(found)


def _ends_of(fileset: FileSet, made: Manifest, name: SplitName, tokens: int, dtype: TokenType) -> Ends | None:
    for side in made.sides:
        if side.split == name and side.kind == "ends":
            return (document_index.open_ends(StoredFile(fileset=fileset, name=side.name), 0, tokens),)
        if side.split == name and side.kind == "megatron-index":
            return (
                document_index.open_megatron(StoredFile(fileset=fileset, name=side.name), 0, tokens * dtype.itemsize)[
                    0
                ],
            )
    return None
