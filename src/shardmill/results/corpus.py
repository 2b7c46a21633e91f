"""An output → its tokens and documents, read by position: nothing is mapped, nothing stays open."""

import bisect
import itertools
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from shardmill.errors import InputError, UsageError
from shardmill.formats.mds_litdata import SampleFile
from shardmill.formats.registry import FORMATS, Format, choose_shape
from shardmill.formats.shards import SPLITS, Positions, Shape, SplitName, Tokens, TokenType
from shardmill.inputs.input_files import Strings
from shardmill.io.fileset import FileSet, StoredFile, open_fileset
from shardmill.record import input_list, journal, manifest
from shardmill.record.manifest import Manifest
from shardmill.results import document_index
from shardmill.results.document_index import Ends
from shardmill.spec import Limits
from shardmill.system.names import show
from shardmill.tokens.names import BUNDLED
from shardmill.tokens.reference import Reference, load_reference
from shardmill.tokens.tokenizer import ENCODINGS, Tokenizer, load, load_recorded

# Tokens read at a time: few enough to stay in a core's cache until they are hashed and written.
CHUNK_TOKENS = 256 << 10
_LOOKUPS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile:
    """A file, and the tokens in it after its header."""

    file: StoredFile
    offset: int
    tokens: int

    def read(self, first: int, count: int, dtype: TokenType) -> Tokens:
        return np.frombuffer(self.file.read(self.offset + first * dtype.itemsize, count * dtype.itemsize), dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class Split:
    """The tokens of train or val: split[10:20] reads ten of them, split.document(3) a document.

    A read opens the file, reads and closes it, so a split takes no memory and works in every thread and process.
    For a remote one a few connections are kept, with at most 10 MiB read ahead on each.
    """

    name: SplitName
    files: tuple[TokenFile | SampleFile, ...]
    dtype: TokenType
    ends: Ends | None = None
    """Files that say where documents end, if there are any."""
    eot_id: int | None = None
    eot_side: str = "none"
    cuts: tuple[int, ...] = ()
    """Where merged outputs meet inside a document: there is no end-of-text token."""

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {len(self):,} tokens, {self.dtype.name})"

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> Tokens: ...
    def __getitem__(self, position: int | slice) -> int | Tokens:
        if isinstance(position, slice):
            start, stop, step = position.indices(len(self))
            if step != 1:
                raise ValueError("tokens are read in order; take a slice without a step, then step through the array")
            return self.read(start, max(start, stop))
        start = position + len(self) if position < 0 else position
        return int(self.read(start, start + 1)[0])

    def read(self, start: int, stop: int) -> Tokens:
        """The tokens from start up to, but not including, stop; both counted from the beginning."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start:,} to {stop:,} of {self.name}, which has {len(self):,}")
        parts = []
        while start < stop:
            file, first = self.locate(start)
            count = min(stop - start, file.tokens - first)
            parts.append(file.read(first, count, self.dtype))
            start += count
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def locate(self, position: int) -> tuple[TokenFile | SampleFile, int]:
        """The file that holds a token, and the number of the token in that file."""
        number = bisect.bisect_right(self._starts, position) - 1
        return self.files[number], position - self._starts[number]

    def chunks(self, size: int = CHUNK_TOKENS) -> Iterator[Tokens]:
        """All tokens in order, some at a time."""
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))

    @property
    def knows_documents(self) -> bool:
        return self.ends is not None or (self.eot_id is not None and self.eot_side != "none")

    def document_ends(self) -> Iterator[Positions]:
        """Where documents end, some at a time: from the index, or found by their end-of-text tokens."""
        if self.ends is not None:
            yield from document_index.chunks(self.ends)
        elif self.knows_documents:
            start = 0
            for tokens in self.chunks():
                if len(found := self.ends_among(tokens, self.eot_side, start)):
                    yield found + start
                start += len(tokens)
        else:
            raise UsageError(
                f"{show(self.files[0].file.path) if self.files else self.name}: the document boundaries are unknown: there is neither an index nor end-of-text tokens. Prepare it again with --index"
            )

    def documents(self) -> Iterator[Tokens]:
        """Each document, with its end-of-text token; tokens after the last end are one more."""
        return (self.read(start, stop) for start, stop in self._spans())

    def document(self, number: int) -> Tokens:
        """One document by its number, -1 for the last; without an index those before it are searched."""
        if self.ends is not None:
            return self.read(*document_index.document(self.ends, number))
        spans = self._spans()
        found = list(itertools.islice(spans, number, number + 1)) if number >= 0 else deque(spans, -number)
        if len(found) < max(1, -number):
            raise IndexError(f"{self.name} has no document {number:,}")
        return self.read(*found[0])

    def _spans(self) -> Iterator[tuple[int, int]]:
        start = 0
        for ends in self.document_ends():
            for end in ends.tolist():
                if end > start:
                    yield start, end
                start = end
        if start < len(self):
            yield start, len(self)

    def ends_among(self, tokens: Tokens, side: str, start: int) -> Positions:
        """Where documents end among the tokens that begin at start, their end-of-text tokens on this side."""
        found = np.flatnonzero(tokens == self.eot_id) + (side == "after")
        if self.cuts:
            cuts = np.array(self.cuts, np.int64) - start
            found = np.union1d(found, cuts[(cuts >= 0) & (cuts <= len(tokens))])
        # An end between two chunks is reported once: in the chunk that holds the end-of-text token.
        found = found[found > 0] if side == "after" or start == 0 else found
        found = found[found < len(tokens)] if side == "before" else found
        last = start + len(tokens) == len(self) and not (len(found) and found[-1] == len(tokens))
        return np.append(found, len(tokens)) if last else found

    @cached_property
    def _starts(self) -> list[int]:
        return list(itertools.accumulate((file.tokens for file in self.files), initial=0))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Corpus(Mapping[str, Split]):
    """A finished output: a mapping of its splits, corpus["train"] and corpus["val"].

    >>> corpus = shardmill.open("data")
    >>> list(corpus)
    ['train', 'val']
    >>> corpus["train"][:100].dtype
    dtype('uint16')
    """

    fileset: FileSet
    manifest: Manifest
    splits: Mapping[str, Split]
    eot_id: int | None
    tokenizer: str | None = None
    """The tokenizer that made it, as the user names it."""
    foreign: bool = False
    """Another program made the files, and the manifest says only what they say."""

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {len(split):,} tokens" for name, split in self.items())
        return f"Corpus({show(self.folder)!r}, {self.format}, {self.dtype.name}, {splits})"

    def __getitem__(self, name: str) -> Split:
        if name not in self.splits:
            raise KeyError(f"{show(self.folder)} has no split {name}; it has {', '.join(self) or 'no tokens'}")
        return self.splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def folder(self) -> Path | str:
        """The folder, or its URL without credentials."""
        return self.fileset.folder

    @property
    def format(self) -> str:
        return str(self.manifest.job["choices"].get("format", "nanogpt"))

    @property
    def dtype(self) -> TokenType:
        return np.dtype(self.manifest.dtype).newbyteorder("<")

    @property
    def eot_side(self) -> str:
        return self.manifest.eot_side

    @property
    def tokens(self) -> int:
        return sum(len(split) for split in self.values())

    def decode(self, tokens: Tokens | Sequence[int]) -> str:
        """The text of some tokens; incomplete characters become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Tokens | Sequence[int]) -> bytes:
        """The text of some tokens as UTF-8, which may begin or end inside a character."""
        try:
            return self.reference.decode([int(token) for token in tokens])
        except (KeyError, OverflowError) as e:
            raise InputError(
                f"{show(self.folder)}: has tokens that are not in its tokenizer's vocabulary ({e}); run shardmill verify"
            ) from e

    @cached_property
    def reference(self) -> Reference:
        return load_reference(self.load_tokenizer())

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer that made it: the one that the user names, or the recorded one, if it is still on this disk."""
        job = self.manifest.job
        name = self.tokenizer or job["choices"].get("tokenizer")
        if name is None:
            raise UsageError(f"{show(self.folder)}: the tokenizer that made it is unknown, so it cannot be decoded")
        bundled = BUNDLED.get(name, name) in ENCODINGS
        if self.tokenizer or bundled:
            found: Tokenizer | None = load(name, cache=Limits().cache_folder())
        else:
            found = load_recorded(name, str(job.get("tokenizer_sha256")))
        if found is None:
            raise UsageError(
                f"{show(self.folder)}: was made with the tokenizer {show(name)}, which is not here, or has changed; pass the path of its tokenizer.json with --tokenizer (in Python: tokenizer=...)"
            )
        if found.digest != job.get("tokenizer_sha256", found.digest):
            raise UsageError(
                f"tokenizer {show(name)} is not the one that made {show(self.folder)}: its SHA-256 is {found.digest}, the manifest has {show(str(job['tokenizer_sha256']))}; pass the tokenizer.json that it was made with"
            )
        return found

    @property
    def inputs(self) -> input_list.Inputs:
        """The inputs as the manifest has them."""
        found: input_list.Inputs = self.manifest.job["inputs"]
        return found

    def input_lines(self) -> Iterator[bytes]:
        """Of each input a line of JSON."""
        return input_list.lines_in(self.fileset, self.inputs)

    @cached_property
    def sources(self) -> Sequence[str]:
        """The paths of the inputs; provenance refers to them by number."""
        return Strings(str(json.loads(line)["path"]) for line in self.input_lines())

    def sidecar(self, kind: str, split: SplitName | None = None) -> StoredFile | None:
        return _sidecar(self.fileset, self.manifest, kind, split)


def open_corpus(folder: str | Path, *, tokenizer: str | None = None) -> Corpus:
    """Open a finished output in a folder or at a URL, and check that its files are there and have the right size.

    The headers of local files are compared too. tokenizer decodes the tokens; the bundled encodings are found without it.

    >>> corpus = shardmill.open("data")
    >>> text = corpus.decode(corpus["train"][:100])
    >>> last = corpus["train"].document(-1)
    """
    return corpus_of(open_fileset(folder), tokenizer)


def corpus_of(fileset: FileSet, tokenizer: str | None = None) -> Corpus:
    made, folder = manifest.of(fileset), fileset.folder
    if made is None:
        if fileset.size(journal.NAME) is not None:
            raise InputError(f"{show(folder)}: the job there is not finished; run its command again to resume it")
        raise InputError(
            f"{show(folder)}: has no manifest.json, so shardmill did not make it; to convert files of another program, name their format with --from-format ({', '.join(FORMATS)})"
        )
    found = FORMATS.get(str(made.job["choices"].get("format", "nanogpt")))
    if found is None:
        raise InputError(
            f"{show(folder)}: the manifest names a format that this version does not know; upgrade shardmill"
        )
    vocabulary = made.job.get("vocabulary_size")
    if made.dtype == "uint16" and isinstance(vocabulary, int) and vocabulary > 1 << 16:
        raise InputError(
            f"{show(folder)}: the manifest says uint16, which ends at 65,535, and a vocabulary of {vocabulary:,}; larger ids were truncated when they were written. Prepare it again"
        )
    dtype: TokenType = np.dtype("<u2" if made.dtype == "uint16" else "<u4")
    if isinstance(folder, str):  # each file is a request: in parallel, a thousand shards take seconds
        with ThreadPoolExecutor(_LOOKUPS) as pool:
            list(pool.map(fileset.size, [file.name for file in made.files]))
    shape = _shape_of(folder, made, found, dtype)
    every = (_split_of(fileset, made, found, shape, name) for name in SPLITS)
    splits: dict[str, Split] = {split.name: split for split in every if split.files}
    return Corpus(fileset=fileset, manifest=made, splits=splits, eot_id=made.eot_id, tokenizer=tokenizer)


def _shape_of(folder: Path | str, made: Manifest, found: Format, dtype: TokenType) -> Shape:
    asked = [made.job["choices"].get(name) for name in ("shard_tokens", "sample_tokens")]
    if not all(number is None or number > 0 for number in asked):
        raise InputError(
            f"{show(folder)}: the manifest has no valid shard_tokens and sample_tokens (found {asked}); it is damaged: prepare the output again"
        )
    return choose_shape(found, dtype, *asked)


def _split_of(fileset: FileSet, made: Manifest, found: Format, shape: Shape, name: SplitName) -> Split:
    files = []
    offset = len(found.header(0, shape)) if found.header else 0
    for shard in made.files:
        if shard.split == name:
            file = StoredFile(fileset=fileset, name=shard.name)
            fits = file.size == shard.bytes == offset + shard.tokens * shape.dtype.itemsize
            if not fits or shard.bytes > (found.max_shard_bytes or shard.bytes):
                raise InputError(
                    f"{show(file.path)}: has {file.size:,} bytes, but the manifest says {shard.bytes:,} with {shard.tokens:,} tokens; it was changed or truncated. Prepare it again"
                )
            local = isinstance(fileset.folder, Path)
            if found.header and local and file.read(0, offset) != found.header(shard.tokens, shape):
                raise InputError(f"{show(file.path)}: its header is not the one that shardmill wrote; it was changed")
            files.append(TokenFile(file=file, offset=offset, tokens=shard.tokens))
    tokens = sum(file.tokens for file in files)
    return Split(
        name=name,
        files=tuple(files),
        dtype=shape.dtype,
        ends=_ends_of(fileset, made, name, tokens, shape.dtype),
        eot_id=made.eot_id,
        eot_side=made.eot_side,
        cuts=_cuts_of(fileset, made, name, tokens),
    )


def _cuts_of(fileset: FileSet, made: Manifest, name: SplitName, tokens: int) -> tuple[int, ...]:
    cuts = made.job.get("cuts", {})
    found = cuts.get(name, []) if isinstance(cuts, dict) else None
    if not isinstance(found, list) or not all(type(cut) is int and 0 <= cut <= tokens for cut in found):
        raise InputError(f"{show(fileset.folder)}: job.cuts in the manifest is not a list of positions; it is damaged")
    return tuple(found)


def _ends_of(fileset: FileSet, made: Manifest, name: SplitName, tokens: int, dtype: TokenType) -> Ends | None:
    if (file := _sidecar(fileset, made, "ends", name)) is not None:
        return (document_index.open_ends(file, tokens),)
    if (file := _sidecar(fileset, made, "megatron-index", name)) is not None:
        return (document_index.open_megatron(file, tokens * dtype.itemsize),)
    return None


def _sidecar(fileset: FileSet, made: Manifest, kind: str, split: SplitName | None) -> StoredFile | None:
    names = [side.name for side in made.sidecars if side.kind == kind and side.split == split]
    return StoredFile(fileset=fileset, name=names[0]) if names else None
