"""The ids of pieces → tokens as they are written: with end-of-text tokens, in the type of the output, in any order."""

from ctypes import CDLL, c_int64, c_uint32, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.system import compiled
from shardmill.tokens.model import Ids, TokenCounts
from shardmill.tokens.native import VERSION
from shardmill.tokens.strings import Flags, Numbers

Tokens = npt.NDArray[np.unsignedinteger[Any]]


def lay_out(
    encoded: tuple[Ids, TokenCounts], has_eot: Flags, places: Numbers, eot: int, dtype: "np.dtype[Any]", *, before: bool
) -> Tokens:
    """The tokens of piece i are at places[i]; before: its end-of-text token, if it has one, is the first of them.

    >>> ids = np.array([1, 2, 3], np.uint16), np.array([2, 1])
    >>> lay_out(ids, np.array([True, True]), np.array([0, 3]), 9, np.dtype("<u4"), before=False)
    array([1, 2, 9, 3, 9], dtype=uint32)
    """
    ids, counts = encoded
    tokens = np.empty(len(ids) + int(np.count_nonzero(has_eot)), dtype)
    given = ids.ctypes.data, ids.itemsize, counts.ctypes.data, places.ctypes.data, has_eot.ctypes.data
    _library().layout_tokens(*given, len(counts), eot, before, tokens.ctypes.data, tokens.itemsize)
    return tokens


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    given = c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_uint32, c_int64, c_void_p, c_int64
    compiled.declare(library, "layout_tokens", None, *given)
    return library
