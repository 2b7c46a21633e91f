"""How text becomes documents, and documents Parts: what all readers are told."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardmill.spec import InputFormat, OnError
from shardmill.tokens.cuts import Cuts

BOM = b"\xef\xbb\xbf"
# All of the first Part is checked against the reference tokenizer, which is slow: it is kept small.
FIRST_PART_BYTES = 64 << 10
# A document goes to train or val by a hash of its beginning, a passage by a hash of less: it is smaller.
DOCUMENT_HEAD = 64 << 10
PASSAGE_HEAD = 4 << 10
# Each document of a block takes some 400 bytes beside its text. So a Part has no more than this of them, and
# however short they are, they weigh as much as half a block.
MAX_RECORDS = 8 << 10
# A record up to this long is parsed at once by whoever reads, under the one reserve for reading; a longer one is parsed
# a window at a time, which takes three times as long.
HELD_BYTES = 4 << 20
_LEAST_WEIGHT = 64

Key = Callable[[bytes, int], int]
"""The beginning of a document or passage, and its byte offset in the whole job → what decides its split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passages:
    """The passages in a stretch of text: where each begins, what decides its split, and where the last ends."""

    starts: tuple[int, ...]
    keys: tuple[int, ...]
    end: int
    forced: bool
    last: bool
    """Nothing follows in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """How text becomes documents, and documents Parts. Only block_bytes does not change the result."""

    cuts: Cuts
    key: Key
    separator: bytes | None
    passage_bytes: int | None
    """Judge running text by passages of about this size; None: judge each document as a whole."""
    border: int | None
    """A byte offset in the whole job where a passage must begin, as near as the text allows."""
    max_run_bytes: int
    block_bytes: int
    known: dict[tuple[int, int], Passages] = field(default_factory=dict)
    """Passages that a first pass found already, by file and offset."""
    on_error: OnError = "stop"
    wanted: Callable[[bytes], bool] | None = None
    """The beginning of a document or passage → whether it is in the sample."""
    limited: bool = False
    """A limit may end the job anywhere: each passage is a piece, and what is wrong behind the limit does not matter."""
    judging: bool = False
    """The first pass for the split: whether text is UTF-8 does not matter."""
    field: str = "text"
    input_format: InputFormat = "auto"
    max_window: int = 0
    """What a decompressor may take for itself."""
    max_held: int = 64 << 20
    """What Parquet and Arrow may read at once: a page, a record batch."""
    spool: str | None = None
    """A folder for long records of what cannot be read backwards; None: where the system has such files."""


def block_bytes(file: int, at: int, rules: TextRules) -> int:
    return min(rules.block_bytes, FIRST_PART_BYTES) if file == 0 and at <= len(BOM) else rules.block_bytes


def weight(size: int, documents: int) -> int:
    """How much of a block so many documents take, which have this many bytes together."""
    return max(size, documents * _LEAST_WEIGHT)


def growing(first: int, last: int) -> Iterator[int]:
    """Block sizes to try in turn until one holds a place to cut."""
    size = min(first, last)
    while size < last:
        yield size
        size *= 4
    yield last
