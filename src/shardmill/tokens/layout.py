"""The ids of pieces → tokens as they are written, and where documents and runs of one split end among them."""

import weakref
from collections.abc import Callable
from ctypes import CDLL, PyDLL, Structure, byref, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.system import buffers, compiled
from shardmill.tokens.model import VERSION, Ids, TokenCounts
from shardmill.tokens.strings import Flags, Numbers

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Sides = npt.NDArray[np.int8]
_COLUMNS = 4


class Turn:
    """So many threads may encode at once; the others wait in C.

    >>> with Turn(1):
    ...     pass
    """

    def __init__(self, count: int) -> None:
        self.at = _library().turn_new(count)
        if not self.at:
            raise MemoryError("out of memory")
        # Not when Python ends: a stopped job may have left a thread that is still encoding.
        weakref.finalize(self, _library().turn_free, self.at).atexit = False

    @property
    def for_c(self) -> dict[str, int]:
        """What other C takes and gives it by."""
        take, give = (compiled.function(_library(), name) for name in ("turn_take", "turn_give"))
        return {"take_turn": take, "give_turn": give, "turn": self.at}

    def __enter__(self) -> None:
        _library().turn_take(self.at)

    def __exit__(self, *_: object) -> None:
        _library().turn_give(self.at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the ids of pieces become tokens. A row for each piece; None: it is so of all."""

    dtype: "np.dtype[Any]"
    eot: int | None
    before: bool = False
    """The end-of-text token is the first of its document, not the last."""
    apart: bool = False
    """All of train comes before all of val."""
    has_eot: Flags | None = None
    closes: Flags | None = None
    """Which end a document."""
    val: Sides
    text_bytes: Numbers
    turn: Turn | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Laid:
    """Tokens in the order in which they are written.

    token_ends: where those of each piece end. ends, ended: where documents end, counted from the start of their run, and
    with which pieces. runs: of consecutive tokens of one split, which split that is, where its tokens and its ends stop,
    and how many bytes of text they are.
    """

    tokens: Tokens
    token_ends: Numbers
    ends: Numbers
    ended: Numbers
    runs: list[list[int]]
    seconds: float = 0.0
    """CPU time that encoding took."""


class Given(Structure):
    """As in native/layout.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("ids", "counts", "text_bytes", "has_eot", "closes", "val")),
        *((name, c_void_p) for name in ("tokens", "token_ends", "ends", "ended", "runs")),
        *(
            (name, c_int64)
            for name in (
                "pieces",
                "id_bytes",
                "token_bytes",
                "eot",
                "before",
                "apart",
                "runs_made",
                "nanoseconds",
            )
        ),
        ("turn", c_void_p),
    ]


def laid_by(layout: Layout, ids: Ids, call: Callable[[int, int, Any], int]) -> tuple[Laid, tuple[Ids, TokenCounts]]:
    """Ids and tokens in one call into C, which gets where to write the ids, how many each piece has, and what follows from
    these. It returns how many there are in all; there is room for as many as there can be."""
    counts = np.empty(len(layout.val), np.int64)
    made = _Made(layout, ids, counts)
    total = call(compiled.address(ids), compiled.address(counts), byref(made.given))
    if total < 0:
        raise MemoryError("out of memory: the native engine cannot encode a run of this length")
    return made.laid(), (ids[:total], counts)


def lay_out(encoded: tuple[Ids, TokenCounts], layout: Layout) -> Laid:
    """The ids of pieces, one after the other, and how many each has → tokens.

    >>> ids = np.array([1, 2, 3], np.uint16), np.array([2, 1])
    >>> layout = Layout(dtype=np.dtype("<u4"), eot=9, apart=True, val=np.array([1, 0], np.int8), text_bytes=np.array([7, 5]))
    >>> made = lay_out(ids, layout)
    >>> made.tokens, made.runs
    (array([3, 9, 1, 2, 9], dtype=uint32), [[0, 2, 1, 5], [1, 5, 2, 7]])
    """
    made = _Made(layout, *encoded)
    _library().layout_block(byref(made.given))
    return made.laid()


class _Made:
    """What the C fills in."""

    def __init__(self, layout: Layout, ids: Ids, counts: TokenCounts) -> None:
        pieces, eot = len(counts), -1 if layout.eot is None else layout.eot
        as_they_are = layout.eot is None and not layout.apart and ids.dtype == layout.dtype
        room = 0 if as_they_are else (len(ids) + pieces) * layout.dtype.itemsize
        self._tokens: Tokens = ids if as_they_are else buffers.take(room).view(layout.dtype)
        self._rows = np.empty((3 + _COLUMNS, pieces), np.int64)
        at, row = compiled.address(self._rows), 8 * pieces
        address, has_eot, closes = compiled.address, layout.has_eot, layout.closes
        self.given = Given(
            *(address(ids), address(counts), address(layout.text_bytes)),
            *(None if has_eot is None else address(has_eot), None if closes is None else address(closes)),
            *(address(layout.val), address(self._tokens), at, at + row, at + 2 * row, at + 3 * row),
            *(pieces, ids.itemsize, self._tokens.itemsize, eot, layout.before, layout.apart),
            turn=layout.turn and layout.turn.at,
        )
        self._layout = layout  # which holds what it points to

    def laid(self) -> Laid:
        rows, count = self._rows, self.given.runs_made
        runs: list[list[int]] = rows[3:].reshape(-1, _COLUMNS)[:count].tolist()
        tokens = self._tokens[: runs[-1][1] if runs else 0]
        return Laid(
            tokens=tokens,
            token_ends=rows[0],
            ends=rows[1],
            ended=rows[2],
            runs=runs,
            seconds=self.given.nanoseconds / 1e9,
        )


def sums(begins: Flags, val: Sides, passages: Numbers | None, pieces: int) -> list[int]:
    """Of the first pieces: how many begin a document, how many are whole documents in val, how many passages there are,
    and how many of them in val."""
    found = (c_int64 * 4)()
    given = compiled.address(begins), compiled.address(val), None if passages is None else compiled.address(passages)
    _quick().layout_sums(*given, pieces, found)
    return list(found)


def empties(ends: Numbers, since: int) -> int:
    """How many documents are empty that end there, the first of which begins at `since`.

    >>> empties(np.array([3, 3, 5]), 0), empties(np.array([3, 3, 5]), 3)
    (1, 2)
    """
    ends = np.ascontiguousarray(ends, np.int64)
    return int(_quick().layout_empty(compiled.address(ends), len(ends), since))


def ends_and_sizes(ends: Numbers, begin: int, since: int) -> tuple[Numbers, Numbers, int]:
    """Ends of documents, counted from `begin`, and their sizes, the first of which begins at `since`; how many are empty.

    >>> ends_and_sizes(np.array([3, 3, 5]), 10, 10)
    (array([13, 13, 15]), array([3, 0, 2]), 1)
    """
    moved, sizes, ends = (
        np.empty(len(ends), np.int64),
        np.empty(len(ends), np.int64),
        np.ascontiguousarray(ends, np.int64),
    )
    given = compiled.address(ends), len(ends), begin, since, compiled.address(moved), compiled.address(sizes)
    return moved, sizes, _quick().layout_ends(*given)


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    compiled.declare(library, "layout_block", None, c_void_p)
    compiled.declare(library, "turn_new", c_void_p, c_int64)
    for name in ("turn_free", "turn_take", "turn_give"):
        compiled.declare(library, name, None, c_void_p)
    return library


@lru_cache(maxsize=1)
def _quick() -> PyDLL:
    library = compiled.quick(_library())
    compiled.declare(library, "layout_sums", None, c_void_p, c_void_p, c_void_p, c_int64, c_void_p)
    compiled.declare(library, "layout_ends", c_int64, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)
    compiled.declare(library, "layout_empty", c_int64, c_void_p, c_int64, c_int64)
    return library
