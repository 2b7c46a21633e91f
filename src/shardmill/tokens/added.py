"""Added tokens → where they stand in a text, as the tokenizers library finds them when special tokens are ordinary text."""

import unicodedata
import weakref
from collections.abc import Sequence
from ctypes import CDLL, c_char_p, c_int64, c_uint32, c_uint64, c_void_p
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardmill.system import compiled
from shardmill.tokens.model import VERSION, AddedToken
from shardmill.tokens.strings import Strings

Spans = npt.NDArray[np.int64]
"""A row for each stretch of ordinary text and each token, in order: its piece, start, end, and id, or TEXT."""

TEXT = -1
_SPECIAL, _LSTRIP, _RSTRIP, _SINGLE_WORD = 1, 2, 4, 8
_CODE_POINTS = 0x110000
# Unicode assigns new characters in the first four planes only.
_MAY_BE_NEW = 0x40000
# Letters in circles and squares, which are symbols; and the two joiners.
_ALSO_WORDS = (*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A))
_JOINERS = (0x200C, 0x200D)


class Added:
    """Finds tokens for any number of threads: the leftmost, and of those that begin there the longest.

    All are looked for in the text as it is given: tokens that are `normalized` need a normalized text, and an Added of
    their own with their content normalized. Special ones are never found, but hide what begins inside them.

    >>> Added([AddedToken(content="<tag>", id=7)]).split([b"a<tag>b"])
    array([[ 0,  0,  1, -1], [ 0,  1,  6,  7], [ 0,  6,  7, -1]])
    """

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        library = self._library = _library()
        contents = [token.content.encode() for token in tokens]
        offsets = np.zeros(len(tokens) + 1, np.uint32)
        np.cumsum([len(content) for content in contents], out=offsets[1:])
        ids = np.array([token.id for token in tokens], np.uint32)
        flags = np.array([_flags(token) for token in tokens], np.uint8)
        words = word_characters() if any(token.single_word and not token.special for token in tokens) else None
        self.pointer = library.added_new(
            b"".join(contents), offsets.ctypes, ids.ctypes, flags.ctypes, len(tokens), words
        )
        if not self.pointer:
            raise MemoryError("out of memory for the added tokens")
        weakref.finalize(self, library.added_free, self.pointer)

    def split(self, pieces: Strings | Sequence[bytes]) -> Spans | None:
        """The pieces taken apart; None if none of them holds a token, which is found out fast."""
        texts, count = Strings.of(pieces), len(pieces)
        tokens = self._library.added_count(self.pointer, *texts.given)
        if not tokens:
            return None
        spans = np.empty((2 * tokens + count, 4), np.int64)
        rows = self._library.added_split(self.pointer, *texts.given, spans.ctypes)
        return spans[:rows]

    @property
    def memory(self) -> int:
        return int(self._library.added_memory(self.pointer))


def _flags(token: AddedToken) -> int:
    asked = (
        (_SPECIAL, token.special),
        (_LSTRIP, token.lstrip),
        (_RSTRIP, token.rstrip),
        (_SINGLE_WORD, token.single_word),
    )
    return sum(flag for flag, is_set in asked if is_set)


@lru_cache(maxsize=1)
def word_characters() -> bytes:
    """A bit for each code point: whether the reference takes it for part of a word, next to a token that must be one.

    That is \\w of Rust's regex crate. It is asked only about what this Python's Unicode does not know yet.
    """
    kinds = [unicodedata.category(chr(point)) for point in range(_CODE_POINTS)]
    flags = np.array([kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") for kind in kinds], np.bool_)
    flags[[*_ALSO_WORDS, *_JOINERS]] = True
    new = [point for point in range(_MAY_BE_NEW) if kinds[point] == "Cn"]
    flags[new] = _are_words(new)
    return np.packbits(flags, bitorder="little").tobytes()


def _are_words(points: list[int]) -> list[bool]:
    """A token that must be a single word is found before a character unless that is part of a word."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_tokens([tokenizers.AddedToken("<w>", single_word=True, normalized=False)])
    texts = [f"<w>{chr(point)}" for point in points]
    return [1 not in found.ids for found in made.encode_batch_fast(texts)]


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    pointers = c_char_p, c_void_p, c_void_p, c_void_p, c_uint32, c_char_p
    compiled.declare(library, "added_new", c_void_p, *pointers)
    compiled.declare(library, "added_free", None, c_void_p)
    compiled.declare(library, "added_count", c_int64, c_void_p, c_void_p, c_void_p, c_int64)
    compiled.declare(library, "added_split", c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p)
    compiled.declare(library, "added_memory", c_uint64, c_void_p)
    return library
