"""How text becomes documents, and documents Parts: the settings of all readers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from xxhash import xxh3_64_intdigest

from shardmill.documents import native
from shardmill.documents.native import Hashes
from shardmill.documents.where import Where
from shardmill.spec import InputFormat, OnError
from shardmill.tokens.cuts import Cuts
from shardmill.tokens.strings import Flags, Numbers, Strings

BOM = b"\xef\xbb\xbf"
# All of the first Part is checked against the reference tokenizer, which is slow: it is kept small.
FIRST_PART_BYTES = 64 << 10
# The split of a document depends on a hash of its first bytes; a passage is smaller, and so is its hashed beginning.
DOCUMENT_HEAD = 64 << 10
PASSAGE_HEAD = 4 << 10
# Each document takes memory besides its text. So a Part has no more than this many of them, or, in the formats that C
# reads, one for so many bytes of a large block: they count as half a block, however short they are.
MAX_RECORDS = 8 << 10
_BYTES_OF_RECORD = 128
# A record up to this long is parsed at once by whoever reads, under the one reserve for reading; a longer one is parsed
# a window at a time, which takes three times as long.
HELD_BYTES = 4 << 20
# Memory for one page or record batch of Parquet and Arrow, unless the files turn out to need more.
LEAST_HELD = 16 << 20
_LEAST_WEIGHT = 64
# The last Block of a stretch takes what is left, up to this part of a Block more: a small one would cost as much Python.
_REST_SHARE = 8

_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sample:
    """Which documents or passages are in a sample: those with the lowest hashes of their beginnings."""

    limit: int
    seed: int

    def __call__(self, head: bytes) -> bool:
        return xxh3_64_intdigest(head, seed=self.seed) < self.limit

    def of(self, texts: Strings, most: int) -> Flags:
        """Which of many are, by so many of their first bytes."""
        return native.hashes(texts, most, self.seed) < self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Passages:
    """The passages in a span of text: where each begins, and where the last ends; and the key of each."""

    bounds: Numbers
    keys: Hashes
    forced: bool
    """The cut at its end had to be forced."""
    last: bool
    """Nothing follows in the file."""
    valid: bool
    """All of it is known to be UTF-8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """How text becomes documents, and documents Parts. block_bytes, range_bytes, max_window, max_held and spool do not change the result."""

    cuts: Cuts
    seed: int | None
    """Of the hash that decides the split; None: the offset in the input does."""
    separator: bytes | None
    passage_bytes: int | None
    """Split running text by passages of about this size; None: split by whole documents."""
    border: int | None
    """For a split by offset: the byte of the whole input where a passage must begin, as near as the text allows."""
    exact_border: bool = False
    """The passage begins at that very byte, by force: tokens there may differ from those of the whole text."""
    max_run_bytes: int
    block_bytes: int
    on_error: OnError = "stop"
    wanted: Sample | None = None
    where: Where | None = None
    """The filter on the fields of a record."""
    limited: bool = False
    """A limit may end the job anywhere: each passage is a piece, and errors after the limit do not matter."""
    judging: bool = False
    """The first pass, which only finds the split: whether text is UTF-8 does not matter."""
    field: str = "text"
    input_format: InputFormat = "auto"
    max_window: int = 0
    """The largest window that a decompressor may allocate."""
    max_held: int = 64 << 20
    """The largest page or record batch that may be read at once from Parquet and Arrow."""
    range_bytes: int = 0
    """How many bytes of whole documents C may mill in one call; 0: none."""
    spool: str | None = None
    """A folder for the replay buffer of pipes and compressed files; None: the system's folder for temporary files."""

    def key(self, head: bytes, offset: int) -> int:
        """What decides the split of a document or passage: its beginning, or its byte offset in the whole input."""
        return offset if self.seed is None else content_key(head, self.seed)

    def keys(self, texts: Strings, offsets: Numbers, most: int | None = None) -> Hashes:
        """The keys of many documents, or of passages, by so many of their first bytes."""
        if self.seed is None:
            return offsets.astype(np.uint64)
        return native.hashes(texts, DOCUMENT_HEAD if most is None else most, self.seed & _ALL)

    @property
    def hashed(self) -> tuple[int, int] | None:
        """How many of the first bytes of a document are hashed, and the seed; None: its offset is its key."""
        return self.hashed_of(DOCUMENT_HEAD)

    def hashed_of(self, most: int) -> tuple[int, int] | None:
        """The same, for what has so many bytes that count."""
        return None if self.seed is None else (most, self.seed & _ALL)

    @property
    def max_records(self) -> int:
        """How many documents a Part may have."""
        return max(MAX_RECORDS, self.block_bytes // _BYTES_OF_RECORD)

    @property
    def selects(self) -> bool:
        """Whether good documents are left out."""
        return self.wanted is not None or self.where is not None


def content_key(head: bytes, seed: int) -> int:
    """A 64-bit hash of the start of a document: equal documents get the same split, wherever they are."""
    return xxh3_64_intdigest(head, seed=seed & _ALL)


def block_bytes(file: int, at: int, rules: TextRules, end: int | None = None) -> int:
    """How large a Part should be that begins there. end: where the stretch ends; if little would be left, up to there."""
    if is_first(file, at):
        return min(rules.block_bytes, FIRST_PART_BYTES)
    return max(rules.block_bytes, 0 if end is None or end - at > most_bytes(rules) else end - at + 1)


def is_first(file: int, at: int) -> bool:
    """Whether the first Part of all begins there, all of which is compared with the reference."""
    return file == 0 and at <= len(BOM)


def most_bytes(rules: TextRules) -> int:
    """How large a Block may be."""
    return with_rest(rules.block_bytes, rules.max_run_bytes)


def with_rest(block: int, max_run: int) -> int:
    """A Block and what would be too little for one of its own."""
    return block + block // _REST_SHARE if block > max_run else block


def weight(size: int, documents: int) -> int:
    """How much of a block so many documents take up that have this many bytes in all."""
    return max(size, documents * _LEAST_WEIGHT)


def growing(first: int, last: int) -> Iterator[int]:
    """Sizes to try in turn until one contains a cut."""
    size = min(first, last)
    while size < last:
        yield size
        size *= 4
    yield last
