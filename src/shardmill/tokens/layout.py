"""The ids of pieces → tokens as they are written, and where documents and runs of one split end among them."""

from ctypes import CDLL, Structure, byref, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.system import compiled
from shardmill.tokens.model import Ids, TokenCounts
from shardmill.tokens.native import VERSION
from shardmill.tokens.strings import Flags, Numbers

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Sides = npt.NDArray[np.int8]
_COLUMNS = 4


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


class _Given(Structure):
    """As in native/layout.c."""

    _fields_ = [
        *((name, c_void_p) for name in ("ids", "counts", "text_bytes", "has_eot", "closes", "val")),
        *((name, c_void_p) for name in ("tokens", "token_ends", "ends", "ended", "runs")),
        *((name, c_int64) for name in ("pieces", "id_bytes", "token_bytes", "eot", "before", "apart")),
    ]


def lay_out(
    encoded: tuple[Ids, TokenCounts],
    columns: tuple[Flags, Flags, Sides, Numbers],
    eot: int | None,
    dtype: "np.dtype[Any]",
    *,
    before: bool = False,
    apart: bool = False,
) -> Laid:
    """columns: which pieces have an end-of-text token, which end a document, the split of each, and its bytes of text.

    before: the end-of-text token is the first of its document; apart: all of train comes before all of val.

    >>> ids, every = (np.array([1, 2, 3], np.uint16), np.array([2, 1])), np.array([True, True])
    >>> made = lay_out(ids, (every, every, np.array([1, 0], np.int8), np.array([7, 5])), 9, np.dtype("<u4"), apart=True)
    >>> made.tokens, made.runs
    (array([3, 9, 1, 2, 9], dtype=uint32), [[0, 2, 1, 5], [1, 5, 2, 7]])
    """
    (ids, counts), (has_eot, closes, val, text_bytes) = encoded, columns
    pieces = len(counts)
    if eot is None:
        has_eot = np.zeros(pieces, np.bool_)
    as_they_are = eot is None and not apart and ids.dtype == dtype
    tokens: Tokens = ids if as_they_are else np.empty(len(ids) + int(np.count_nonzero(has_eot)), dtype)
    rows = np.empty((3 + _COLUMNS, pieces), np.int64)
    at, row = rows.ctypes.data, 8 * pieces
    given = _Given(
        *(each.ctypes.data for each in (ids, counts, text_bytes, has_eot, closes, val, tokens)),
        *(at + number * row for number in range(4)),
        *(pieces, ids.itemsize, tokens.itemsize, eot or 0, before, apart),
    )
    count = _library().layout_block(byref(given))
    runs: list[list[int]] = rows[3:].reshape(-1, _COLUMNS)[:count].tolist()
    return Laid(tokens=tokens, token_ends=rows[0], ends=rows[1], ended=rows[2], runs=runs)


def sums(begins: Flags, val: Sides, passages: Numbers | None, pieces: int) -> list[int]:
    """Of the first pieces: how many begin a document, how many are whole documents in val, how many passages there are,
    and how many of them in val."""
    found = (c_int64 * 4)()
    given = begins.ctypes.data, val.ctypes.data, None if passages is None else passages.ctypes.data
    _library().layout_sums(*given, pieces, found)
    return list(found)


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    compiled.declare(library, "layout_block", c_int64, c_void_p)
    compiled.declare(library, "layout_sums", None, c_void_p, c_void_p, c_void_p, c_int64, c_void_p)
    return library
