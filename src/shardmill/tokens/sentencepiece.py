"""SentencePiece-style byte pair encoding, which has no words: a Model → an engine, compiled from native/sp*.c."""

import weakref
from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import lru_cache

import numpy as np

from shardmill.errors import ShardmillError
from shardmill.system import compiled
from shardmill.tokens.added import Added
from shardmill.tokens.model import AddedToken, Ids, Model, TokenCounts
from shardmill.tokens.native import VERSION

_NEVER, _EACH, _FIRST = range(3)
# The engine stores up to 16 ids at a time.
_SLACK_IDS = 16
# As sp.h numbers them.
_REASONS = {
    1: "out of memory for the native engine",
    2: "a merge gives a token that is not in the vocabulary",
    3: "a merge takes or gives a token for a byte",
    4: "it has too many tokens or merges for the native engine",
    5: "it has tokens too long for the native engine",
    6: "two of its tokens are spelled alike",
}


class _Vocabulary(Structure):
    """As in native/sp.h."""

    _fields_ = (
        ("text", c_void_p),
        ("offsets", c_void_p),
        ("ids", c_void_p),
        ("merges", c_void_p),
        ("count", c_uint32),
        ("merge_count", c_uint32),
    )


def why_not() -> str | None:
    """Why this engine cannot run here; None if it can."""
    if _library() is None:
        return "the native engine was not compiled when shardmill was installed; install a C compiler, then reinstall shardmill"
    return None


class SentencePiece:
    """One engine for any number of threads, which share what it has learned. Its memory is fixed.

    For a Model in which neighbours.why_not finds nothing wrong.
    """

    def __init__(self, model: Model, *, portable: bool = False, small: bool = False) -> None:
        """small: tables that are full after a few words, for tests."""
        library = _library()
        assert library is not None, "ask why_not first"
        tokens = _looked_for(model.added)
        closed = np.zeros(128, np.uint8)
        closed[[] if model.prepend else _closed_bytes(tokens)] = 1
        added = Added(tokens) if tokens else None
        prepend = _NEVER if not model.prepend else _FIRST if model.metaspace else _EACH
        vocabulary, why = _vocabulary(model), c_int(0)
        pointer = added.pointer if added else None
        self._library = library
        self._engine = library.sp_new(byref(vocabulary), pointer, closed.ctypes, prepend, portable, small, byref(why))
        if not self._engine:
            raise ShardmillError(_REASONS[why.value])
        weakref.finalize(self, _free, library, self._engine, added)
        self._memory = int(library.sp_memory(self._engine)) + (added.memory if added else 0)
        # Text between two added tokens may get a ▁ of its own.
        self._ids_per_byte = 2 if prepend == _EACH and added else 1

    def encode(self, pieces: list[bytes], starts: Sequence[bool] | bool = True) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has; starts: whether each begins its document."""
        count = len(pieces)
        sizes = np.fromiter(map(len, pieces), np.int64, count)
        flags = np.empty(count, np.uint8)
        flags[:] = starts
        ids = np.empty(self._ids_per_byte * int(sizes.sum()) + count + _SLACK_IDS, np.uint32)
        counts = np.empty(count, np.int64)
        texts = (c_char_p * count)(*pieces)
        given = texts, sizes.ctypes, flags.ctypes, count, ids.ctypes, counts.ctypes
        total = self._library.sp_encode(self._engine, *given)
        if total < 0:
            raise MemoryError("out of memory: the native engine cannot encode a run of this length")
        return ids[:total], counts

    @property
    def memory(self) -> int:
        return self._memory


def _free(library: CDLL, engine: int, _added: Added | None) -> None:
    """The added tokens, which the engine uses, are freed after it."""
    library.sp_free(engine)


def _looked_for(tokens: Sequence[AddedToken]) -> list[AddedToken]:
    """The added tokens that matter: all that are searched in the raw text, unless all of them are special."""
    raw = [token for token in tokens if not token.normalized]
    return raw if any(not token.special for token in raw) else []


def _closed_bytes(tokens: Sequence[AddedToken]) -> list[int]:
    """ASCII characters that are always part of added tokens: each is one, and stands in no other but runs of itself."""
    plain = not any(token.lstrip or token.rstrip or token.single_word for token in tokens)
    alone = (
        {token.content for token in tokens if len(token.content) == 1 and token.content.isascii()} if plain else set()
    )
    for token in tokens:
        if token.special or len(set(token.content)) > 1:
            alone -= set(token.content)
    return sorted(map(ord, alone))


def _vocabulary(model: Model) -> _Vocabulary:
    """As C takes it: pointers to the arrays of the Model."""
    assert model.merges is not None
    arrays = model.tokens.joined, model.tokens.offsets, model.ids, model.merges
    return _Vocabulary(*(array.ctypes.data for array in arrays), len(model.tokens), len(model.merges))


@lru_cache(maxsize=1)
def _library() -> CDLL | None:
    library = compiled.load("tokens/native/engine.so", VERSION)
    if library is not None:
        made = POINTER(_Vocabulary), c_void_p, c_void_p, c_int, c_int, c_int, c_void_p
        compiled.declare(library, "sp_new", c_void_p, *made)
        compiled.declare(library, "sp_free", None, c_void_p)
        given = c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p
        compiled.declare(library, "sp_encode", c_int64, *given)
        compiled.declare(library, "sp_memory", c_uint64, c_void_p)
    return library
