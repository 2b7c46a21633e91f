"""SentencePiece-style byte pair encoding, which has no words: a Model → an engine, compiled from native/sp*.c."""

import weakref
from collections.abc import Sequence
from ctypes import CDLL, Structure, byref, c_int, c_int64, c_uint64, c_void_p
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardmill.system import buffers, compiled
from shardmill.tokens import native
from shardmill.tokens.added import Added
from shardmill.tokens.layout import Laid, Layout, laid_by
from shardmill.tokens.model import VERSION, AddedToken, Ids, Model, NotSupported, TokenCounts, Whole
from shardmill.tokens.strings import Flags, Strings

_NEVER, _EACH, _FIRST = range(3)
# The engine stores up to 16 ids at a time.
_SLACK_IDS = 16


class _Asked(Structure):
    """As in native/sp.c."""

    _fields_ = (
        ("added", c_void_p),
        ("normalized", c_void_p),
        ("closed", c_void_p),
        ("prepend", c_int),
        ("metaspace", c_int),
        ("path", c_int),
        ("small", c_int),
    )


class SentencePiece:
    """One engine for any number of threads, which share what it has learned. Its memory is fixed.

    For a Model in which neighbours.why_not finds nothing wrong.
    """

    def __init__(self, model: Model, *, path: str | None = None, small: bool = False) -> None:
        """path: one of cpu_paths; small: tables that are full after a few words, for tests."""
        library = self._library = _library()
        raw = [token for token in model.added if not token.normalized]
        added, normalized = _finder(raw), _finder(_normalized(model))
        closed = np.zeros(128, np.uint8)
        closed[[] if model.prepend or normalized else _closed_bytes(raw)] = 1
        prepend = _NEVER if not model.prepend else _FIRST if model.metaspace else _EACH
        pointers = [each.pointer if each else None for each in (added, normalized)]
        which = native.cpu_paths()[path or native.cpu_path()]
        asked = _Asked(*pointers, compiled.address(closed), prepend, model.metaspace, which, small)
        (vocabulary, _kept), why = native.vocabulary_of(native.find_live(model)), c_int(0)
        self._engine = library.sp_new(byref(vocabulary), byref(asked), byref(why))
        if not self._engine:
            raise NotSupported(native.REASONS[why.value])
        weakref.finalize(self, _free, library, self._engine, (added, normalized))
        self._memory = int(library.sp_memory(self._engine)) + sum(each.memory for each in (added, normalized) if each)
        # Text between two added tokens may get a ▁ of its own.
        self._ids_per_byte = 2 if prepend == _EACH and added else 1

    def encode(self, pieces: Strings | Sequence[bytes], starts: Flags | bool = True) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has; starts: whether each begins its document."""
        texts, count = Strings.of(pieces), len(pieces)
        flags = np.empty(count, np.uint8)
        flags[:] = starts
        ids, counts = self._room(texts), np.empty(count, np.int64)
        pointers, sizes, _ = texts.given
        given = pointers, sizes, flags.ctypes, count, ids.ctypes, counts.ctypes
        total = self._library.sp_encode(self._engine, *given)
        if total < 0:
            raise MemoryError("out of memory: the native engine cannot encode a run of this length")
        return ids[:total], counts

    def encode_and_lay_out(self, texts: Strings, begins: Flags, layout: Layout) -> tuple[Laid, tuple[Ids, TokenCounts]]:
        """The same, and the tokens as they are written, in one call."""
        pointers, sizes, count = texts.given
        given = self._engine, pointers, sizes, compiled.address(begins), count
        return laid_by(layout, self._room(texts), lambda *room: self._library.sp_block(*given, *room))

    @property
    def whole(self) -> Whole:
        return Whole(
            function=compiled.function(self._library, "sp_encode_whole"),
            inside=compiled.function(self._library, "sp_encode_inside"),
            engine=self._engine,
            dtype=np.dtype(np.uint32),
            ids_per_byte=self._ids_per_byte,
            ids_per_text=1,
            owner=self,
        )

    def _room(self, texts: Strings) -> Ids:
        return buffers.take(4 * (self._ids_per_byte * texts.total + len(texts) + _SLACK_IDS)).view(np.uint32)

    @property
    def memory(self) -> int:
        return self._memory


def _free(library: CDLL, engine: int, _finders: tuple[Added | None, ...]) -> None:
    """The finders of added tokens, which the engine uses, are freed after it."""
    library.sp_free(engine)


def _finder(tokens: Sequence[AddedToken]) -> Added | None:
    """Special tokens are ordinary text; where there are no others, there is nothing to find."""
    return Added(tokens) if any(not token.special for token in tokens) else None


def _normalized(model: Model) -> list[AddedToken]:
    """The tokens that are looked for in the normalized text, as they are spelled there."""
    tokens = [token for token in model.added if token.normalized]
    if model.metaspace:  # which is no normalizer
        return tokens
    before = "▁" if model.prepend else ""
    return [replace(token, content=before + token.content.replace(" ", "▁")) for token in tokens]


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


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    compiled.declare(library, "sp_new", c_void_p, c_void_p, c_void_p, c_void_p)
    compiled.declare(library, "sp_free", None, c_void_p)
    given = c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p
    compiled.declare(library, "sp_encode", c_int64, *given)
    compiled.declare(library, "sp_block", c_int64, *given, c_void_p)
    compiled.declare(library, "sp_memory", c_uint64, c_void_p)
    return library
