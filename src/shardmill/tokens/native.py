"""The native engine: a custom SIMD tokenizer for GPT-2, compiled from native/."""

import json
import weakref
from ctypes import CDLL, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardmill.errors import ShardmillError
from shardmill.system import compiled
from shardmill.tokens.reference import Ids, TokenCounts
from shardmill.tokens.tokenizer import Tokenizer, read_ranks

# Goes up with every change that could change a token; the compiled library has one too.
VERSION = 1

_FOLDER = Path(str(resources.files("shardmill"))) / "tokens"
# The engine stores ids 16 bytes at a time.
_SLACK_IDS = 8


def version() -> str:
    return f"native {VERSION}"


def why_not(tokenizer: Tokenizer) -> str | None:
    """Why this engine cannot run a tokenizer; None if it can."""
    if tokenizer.kind != "tiktoken" or tokenizer.family != "gpt2":
        return "the native engine supports only GPT-2's own vocabulary"
    if _library() is None:
        return "the native engine was not compiled when shardmill was installed; install a C compiler, then reinstall shardmill"
    return None


class Native:
    """One engine for any number of threads, which share its cache of words. Its memory is fixed."""

    def __init__(self, tokenizer: Tokenizer, *, portable: bool = False) -> None:
        library = _library()
        assert library is not None, "ask why_not first"
        ranks = read_ranks(tokenizer.name)
        tokens = sorted(ranks, key=ranks.__getitem__)
        offsets = np.zeros(len(tokens) + 1, np.uint32)
        np.cumsum([len(token) for token in tokens], out=offsets[1:])
        classes = _classes()
        self._library = library
        self._engine = library.engine_new(b"".join(tokens), offsets.ctypes, len(tokens), classes.ctypes, portable)
        if not self._engine:
            raise ShardmillError("out of memory for the native engine, or it does not support this vocabulary")
        weakref.finalize(self, library.engine_free, self._engine)
        self._dtype = np.dtype(np.uint16 if len(tokens) <= 1 << 16 else np.uint32)

    def encode(self, pieces: list[bytes]) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has."""
        count = len(pieces)
        sizes = np.fromiter(map(len, pieces), np.int64, count)
        ids = np.empty(int(sizes.sum()) + _SLACK_IDS, self._dtype)
        counts = np.empty(count, np.int64)
        texts = (c_char_p * count)(*pieces)
        total = self._library.engine_encode(self._engine, texts, sizes.ctypes, count, ids.ctypes, counts.ctypes)
        if total < 0:
            raise MemoryError("out of memory: the native engine cannot encode a word of this length")
        return ids[:total], counts

    @property
    def memory(self) -> int:
        return int(self._library.engine_memory(self._engine))


def _classes() -> npt.NDArray[np.uint8]:
    """The class of each code point, as tools/make_classes.py determined it."""
    runs = np.array(json.loads((_FOLDER / "classes.json").read_bytes())["runs"], np.int64)
    return np.repeat(runs[:, 1].astype(np.uint8), np.diff(np.append(runs[:, 0], 0x110000)))


@lru_cache(maxsize=1)
def _library() -> CDLL | None:
    library = compiled.load("tokens/native/engine.so", VERSION)
    if library is not None:
        compiled.declare(library, "engine_new", c_void_p, c_char_p, c_void_p, c_uint32, c_void_p, c_int)
        compiled.declare(library, "engine_free", None, c_void_p)
        pointers = c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p
        compiled.declare(library, "engine_encode", c_int64, *pointers)
        compiled.declare(library, "engine_memory", c_uint64, c_void_p)
    return library
