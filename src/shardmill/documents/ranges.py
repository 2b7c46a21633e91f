"""Ranges: some megabytes of whole documents in one file → their tokens, in one call into C (native/ranges.c).

Whoever reads an input finds only where a range ends; the worker that mills it reads it. What is unusual in any way is left
to the caller, record by record: the rest of a range is Parts like any others.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from ctypes import Structure, byref, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from shardmill.documents import native
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.rejects import Location
from shardmill.documents.rules import PASSAGE_HEAD, TextRules, with_rest
from shardmill.io.compression import UNCOUNTED
from shardmill.io.reading import InputReader
from shardmill.system import buffers, compiled
from shardmill.tokens.layout import Tokens, Turn
from shardmill.tokens.model import Ids, TokenCounts, Whole
from shardmill.tokens.strings import Numbers, Strings

T = TypeVar("T")

LINES, SEPARATED, CHUNKS, PASSAGES = range(4)
"""What is in a range, as in native/ranges.h."""
_UNUSUAL = 1
# What is in a cache of the second level while all is done with it: what was read, its texts, ids and tokens.
SLICE_BYTES = 256 << 10
# Running text is encoded so much at once, if it is all of one split.
_PIECE_BYTES = 1 << 20
# A slice has room for records of so many bytes and more; of shorter ones there are fewer bytes in it.
_LEAST_RECORD = 64
# Tokens of text have fewer bytes than this on average.
_LONG_TOKEN = 5
# For the end of a line, or a separator, behind the longest text.
_SLACK = 4 << 10

_this_thread = threading.local()


class InMemory(NamedTuple):
    """What was read of a file already, which may be compressed or remote: these bytes from an offset on."""

    path: str
    offset: int
    data: memoryview


@dataclass(frozen=True, kw_only=True, slots=True)
class RangePart:
    """Documents from byte or row `at` to `end` of a local file, which were not read yet; or whole lines that were."""

    file: int
    reader: InputReader | InMemory
    """For this Part alone."""
    at: int
    end: int
    base: int
    """The byte of the whole input where the file begins."""
    rules: TextRules
    size: int
    """About how many bytes of text."""
    record: int = 0
    """The number of its first record, where those are counted."""
    unit: Literal["byte", "line", "row"]
    """Where it begins and ends is a byte or a row; how many lines it has is known when it is milled."""
    passages: bool = False
    """It is in the middle of a document, and made of whole passages."""
    after: Position
    """Where the next Part starts."""
    span: tuple[int, int]
    """The bytes of the file that nobody reads again."""
    given: Callable[[], tuple[dict[str, Any], object]]
    """What C must know of it, and what holds that."""
    rest: Callable[[int, int, bool], Iterator[Any]]
    """The usual Parts from a byte or row and a record on: to its end, or a small one, to where a document ends."""

    def pieces(self, _base: int, _rules: TextRules, _is_val: IsVal) -> Pieces:
        raise AssertionError("C mills it; its rest has pieces")

    @property
    def hashed(self) -> tuple[int, int] | None:
        """How many of the first bytes of a document or passage make its key, and the seed; None: where it begins."""
        return self.rules.hashed_of(PASSAGE_HEAD) if self.passages else self.rules.hashed

    def place(self, at: int) -> Location:
        """The location of what begins at this byte or row."""
        path = self.reader.path
        # Nobody knows yet how much text precedes a stretch of a compressed file.
        byte = None if at >= UNCOUNTED else at
        return Location(path=path, row=at) if self.unit == "row" else Location(path=path, byte=byte)

    def reached(self, after: Position) -> tuple[int, int]:
        """Where a Part of the rest ends, and the number of the record there."""
        at = after.record if self.unit == "row" else after.offset
        return at, after.record if self.unit == "line" else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What becomes of documents: their split, their ids, and their tokens."""

    keys: "npt.NDArray[np.uint64]"
    """If there are any, in order, val is what has one of them."""
    limit: int
    above: bool
    """Val has keys from the limit on, not below it."""
    whole: Whole
    turn: Turn | None
    dtype: "np.dtype[Any]"
    eot: int | None
    before: bool

    def most_in_val(self, is_hashed: bool) -> float:
        """For what share of a range there should be room in val. Without hashes, all of it may be val."""
        share = self.limit / (1 << 64)
        return min(1.0, 2 * (1 - share if self.above else share)) if is_hashed and not len(self.keys) else 1.0


class Kept(NamedTuple):
    """One slice of a range: its texts, where they begin, and their ids."""

    texts: Strings
    starts: Numbers
    encoded: tuple[Ids, TokenCounts]


class Side(NamedTuple):
    """What goes to one split: tokens, where documents end among them, and how much text they are."""

    tokens: Tokens
    ends: Numbers
    text_bytes: int


class Outcome(NamedTuple):
    """How far a range was milled, and whether it ends there, before what is unusual; records or passages, those that are
    empty, those in val, and whether the last is; train and val."""

    at: int
    unusual: bool
    records: int
    empty: int
    in_val: int
    last_in_val: bool
    sides: tuple[Side, Side]
    kept: Callable[[], Kept] | None
    """A slice that can be compared with the reference; until the next range is milled."""
    seconds: float
    """CPU time that encoding took."""


class _Side(Structure):
    _fields_ = [
        *(("tokens", c_void_p), ("ends", c_void_p)),
        *((name, c_int64) for name in ("room", "count", "documents", "text")),
    ]


class _Slice(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("data", "out", "ids", "odd", "texts", "sizes", "starts", "counts", "keys")),
        *((name, c_int64) for name in ("count", "records", "used", "at")),
    ]


class _Range(Structure):
    """As in native/ranges.h."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "file", "at", "end")),
        *(("memory", c_void_p), ("memory_at", c_int64)),
        *((name, c_int64) for name in ("slice_bytes", "slice_room", "rows", "longest")),
        *(("names", c_void_p), ("name_ends", c_void_p), ("name_count", c_int64)),
        *(("separator", c_void_p), ("separator_size", c_int64)),
        *(("chunks", c_void_p), ("dictionary", c_void_p), ("dictionary_room", c_int64)),
        *((name, c_int64) for name in ("reach", "context", "file_size", "window_bytes")),
        *(("find_borders", c_void_p), ("adjacent", c_void_p), ("adjacent_count", c_int64)),
        *(("val_keys", c_void_p), ("val_key_count", c_int64)),
        *((name, c_int64) for name in ("most", "base", "above", "no_limit")),
        *(("seed", c_uint64), ("limit", c_uint64)),
        *((name, c_void_p) for name in ("encode", "engine", "take_turn", "give_turn", "turn")),
        *((name, c_int64) for name in ("id_bytes", "ids_per_byte", "ids_per_text", "token_bytes", "eot", "before")),
        ("ends_room", c_int64),
        ("sides", _Side * 2),
        ("work", c_void_p),
        *((name, c_int64) for name in ("keep", "done", "records", "empty", "in_val", "last_in_val", "nanoseconds")),
        *((name, c_void_p) for name in ("window", "borders", "visible")),
        ("slices", _Slice * 2),
    ]


def mill(part: RangePart, at: int, recipe: Recipe, keep: int) -> Outcome:
    """The tokens of the documents from there on, as far as they are usual; keep chooses the slice that is kept."""
    of_kind, _held = part.given()
    slice_bytes = _PIECE_BYTES if part.passages else SLICE_BYTES
    whole, longest = recipe.whole, part.rules.max_run_bytes
    slice_room = max(slice_bytes, longest + _SLACK)
    rows = slice_room // _LEAST_RECORD
    given = _Range(
        at=at,
        end=part.end,
        slice_bytes=slice_bytes,
        slice_room=slice_room,
        rows=rows,
        longest=longest,
        base=part.base,
        above=recipe.above,
        no_limit=recipe.limit >= 1 << 64,
        limit=min(recipe.limit, (1 << 64) - 1),
        val_keys=compiled.address(recipe.keys),
        val_key_count=len(recipe.keys),
        encode=whole.inside if part.passages else whole.function,
        engine=whole.engine,
        **({} if recipe.turn is None else recipe.turn.for_c),
        id_bytes=whole.dtype.itemsize,
        ids_per_byte=whole.ids_per_byte,
        ids_per_text=whole.ids_per_text,
        token_bytes=recipe.dtype.itemsize,
        eot=-1 if recipe.eot is None else recipe.eot,
        before=recipe.before,
        ends_room=max(rows, part.size // _LEAST_RECORD),
        **_source(part.reader),
        keep=keep % max(1, part.size // slice_bytes),
        **of_kind,
    )
    given.most, given.seed = part.hashed or (0, 0)
    in_val = int(part.size * recipe.most_in_val(part.hashed is not None))
    for side, size in zip(given.sides, (part.size, in_val)):
        side.room = (size + slice_room) * whole.ids_per_byte + given.ends_room * (whole.ids_per_text + 1) + _SLACK
    return _milled(given, recipe, max(0, part.size - in_val) // _LONG_TOKEN)


def _source(reader: InputReader | InMemory) -> dict[str, Any]:
    if isinstance(reader, InputReader):
        return {"file": reader.file.descriptor}
    return {"memory": compiled.address(np.frombuffer(reader.data, np.uint8)), "memory_at": reader.offset}


def _milled(given: _Range, recipe: Recipe, least: int) -> Outcome:
    """least: so many tokens are sure to be in train."""
    library, work, width = _library(), _work_of(given), recipe.dtype.itemsize
    given.work, starts, at = compiled.address(work), list[int](), 0
    for side in given.sides:
        starts.append(at)
        at += -(-side.room * width // 8) * 8 + given.ends_room * 8
    made = buffers.take(at, used=least * width)
    for side, start, after in zip(given.sides, starts, (*starts[1:], at)):
        side.tokens = compiled.address(made) + start
        side.ends = compiled.address(made) + after - given.ends_room * 8
    unusual, sides = library.ranges_mill(byref(given)) == _UNUSUAL, list[Side]()
    for side, start in zip(given.sides, starts):
        first = side.ends - compiled.address(made)
        ends = made[first : first + 8 * side.documents].view(np.int64)
        tokens = made[start : start + side.count * width].view(recipe.dtype)
        sides.append(Side(tokens, ends, side.text))
    kept = given.slices[1] if given.done > given.keep else None
    return Outcome(
        given.at,
        unusual,
        given.records,
        given.empty,
        given.in_val,
        bool(given.last_in_val),
        (sides[0], sides[1]),
        partial(_kept, kept, work, recipe.whole) if kept is not None and kept.count else None,
        given.nanoseconds / 1e9,
    )


def _work_of(given: _Range) -> buffers.Bytes:
    """Memory of this thread, which is used again for each range."""
    size, work = _library().ranges_work(byref(given)), getattr(_this_thread, "work", None)
    if work is None or len(work) < size:
        work = _this_thread.work = buffers.take(size, used=0)
    return work


def _kept(kept: _Slice, work: buffers.Bytes, whole: Whole) -> Kept:
    count, origin = kept.count, compiled.address(work)

    def column(where: int) -> Numbers:
        return work[where - origin :][: 8 * count].view(np.int64)

    counts = column(kept.counts)
    ids = work[kept.ids - origin :].view(whole.dtype)[: int(counts.sum())] if count else work[:0].view(whole.dtype)
    texts = Strings(column(kept.texts), column(kept.sizes), (work,))
    return Kept(texts, column(kept.starts) + kept.at, (ids, counts))


def end_of(at: int, size: int, rules: TextRules, find: Callable[[int], int | None]) -> int | None:
    """Where a range ends that begins there: with the file or stretch, which has so many bytes, or where find finds the end
    of a record at or after a byte. None: there is none nearby."""
    about = rules.range_bytes
    return size if size - at <= with_rest(about, 0) else find(at + about)


def rest(
    read: Callable[[TextRules], Iterator[T]], rules: TextRules, to_end: bool, is_whole: Callable[[T], bool]
) -> Iterator[T]:
    """The rest of a range, as read yields it with these rules: to its end, or a small part, up to where a document ends."""
    if to_end:
        yield from read(dataclasses.replace(rules, range_bytes=0))
        return
    least = min(rules.block_bytes, rules.max_run_bytes)
    for part in read(dataclasses.replace(rules, range_bytes=0, block_bytes=least)):
        yield part
        if is_whole(part):
            return


@lru_cache(maxsize=1)
def _library() -> Any:
    library = native._library()
    compiled.declare(library, "ranges_work", c_int64, c_void_p)
    compiled.declare(library, "ranges_mill", c_int64, c_void_p)
    return library
