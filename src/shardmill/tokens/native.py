"""The native engine: byte-level BPE in C, for every pattern that its scanner knows; compiled from native/."""

import weakref
from collections.abc import Callable, Sequence
from ctypes import (
    CDLL,
    CFUNCTYPE,
    Structure,
    addressof,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    memmove,
)
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.errors import UsageError
from shardmill.system import buffers, compiled
from shardmill.tokens import classes, tables
from shardmill.tokens.layout import Laid, Layout, laid_by
from shardmill.tokens.model import VERSION, Ids, Model, NotSupported, Shape, Texts, TokenCounts, Whole
from shardmill.tokens.strings import Strings

# The engine stores up to eight ids at a time, where fewer are left.
_SLACK_IDS = 16
_CPU_PATHS = 4
_DECLINED = -2
# As engine.h numbers them.
REASONS = {
    1: "out of memory for the native engine",
    2: "a merge gives a token that is not in the vocabulary",
    3: "it has too many tokens or merges for the native engine",
    4: "it has tokens too long for the native engine",
}
_CONTRACTIONS = {"none": 0, "exact": 1, "any case": 2, "suffix any case": 3}


def version() -> str:
    return f"native {VERSION}"


def cpu_paths() -> dict[str, int]:
    """The code paths that this processor can take, the fastest first, and their numbers in native/cpu.h.

    >>> list(cpu_paths())
    ['avx512', 'avx2', 'plain']
    """
    names = {number: _library().cpu_name(number) for number in range(_CPU_PATHS)}
    return {name.decode(): number for number, name in names.items() if name}


def cpu_path() -> str:
    """The path that engines take: the fastest, or what SHARDMILL_CPU names, for tests.

    >>> cpu_path()
    'avx512'
    """
    paths, taken = cpu_paths(), _library().cpu_path()
    if taken < 0:
        raise UsageError(
            f"SHARDMILL_CPU names no code path that this machine has; set it to {' or '.join(paths)}, or unset it"
        )
    return next(name for name, number in paths.items() if number == taken)


def why_not(reference: classes.Reference) -> str | None:
    """Why this engine cannot run a tokenizer whose tokens this reference defines; None if it can."""
    if tables.find("classes", classes.installed(reference)) is None:
        return (
            f"the native engine does not know the character classes of {classes.installed(reference)}; {tables.SWEEP}"
        )
    return None


class _Shape(Structure):
    """As in native/engine.h."""

    _fields_ = [
        ("kind", c_uint8),
        ("contractions", c_uint8),
        ("any_prefix", c_uint8),
        ("digits", c_uint8),
        ("newlines", c_uint8),
        ("slashes", c_uint8),
        ("whole_end", c_uint8),
        ("marks", c_uint8),
        ("numbers_first", c_uint8),
        ("whole_words", c_uint8),
    ]


class Vocabulary(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("text", "offsets", "ids", "merges", "live")),
        ("count", c_uint32),
        ("merge_count", c_uint32),
    ]


class _Given(Structure):
    _fields_ = [
        ("vocabulary", Vocabulary),
        ("classes", c_void_p),
        ("shape", _Shape),
        ("path", c_uint8),
        ("small", c_uint8),
    ]


class _Guarded(Structure):
    """As in native/whole.c."""

    _fields_ = [(name, c_void_p) for name in ("engine", "raw", "normalized", "nfc", "otherwise")]


class Native:
    """One engine for any number of threads, which share its cache of words. Its memory is fixed."""

    def __init__(self, model: Model, *, path: str | None = None, small: bool = False) -> None:
        """path: one of cpu_paths; small: tables that are full after a few words. Both are for tests."""
        library = self._library = _library()
        given, _kept = given_to_engine(find_live(model), path=path, small=small)
        self._engine = library.engine_new(byref(given))
        if not self._engine:
            raise NotSupported(REASONS[1])
        weakref.finalize(self, library.engine_free, self._engine)
        self._dtype = np.dtype(np.uint16 if model.ids.max() < 1 << 16 else np.uint32)

    def encode(self, pieces: Strings | Sequence[bytes]) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has."""
        texts = Strings.of(pieces)
        ids, counts = self._room(texts), np.empty(len(texts), np.int64)
        total = self._library.engine_encode(self._engine, *texts.given, compiled.address(ids), compiled.address(counts))
        if total < 0:
            raise MemoryError("out of memory: the native engine cannot encode a word of this length")
        return ids[:total], counts

    def encode_and_lay_out(self, texts: Strings, layout: Layout) -> tuple[Laid, tuple[Ids, TokenCounts]]:
        """The same, and the tokens as they are written, in one call."""
        block = self._library.engine_block
        return laid_by(layout, self._room(texts), lambda *room: block(self._engine, *texts.given, *room))

    def whole(
        self,
        raw: int | None,
        normalized: int | None,
        nfc: int | None,
        otherwise: Callable[[Strings], tuple[Ids, TokenCounts]],
    ) -> Whole:
        """For C: with what is looked for in the text first, if there is any of it, and what encodes texts that have it."""
        looks, called = raw or normalized or nfc, called_by_c(otherwise, self._dtype, _SLACK_IDS)
        guarded = _Guarded(self._engine, raw, normalized, nfc, cast(called, c_void_p))
        function = compiled.function(self._library, "guarded_encode" if looks else "engine_encode")
        engine = addressof(guarded) if looks else self._engine
        return Whole(
            function=function, inside=function, engine=engine, dtype=self._dtype, owner=(self, guarded, called)
        )

    def _room(self, texts: Strings) -> Ids:
        return buffers.take((texts.total + _SLACK_IDS) * self._dtype.itemsize).view(self._dtype)

    def words(self, text: bytes, *, scalar: bool = False) -> list[bytes]:
        """The words of a text, found with bits or (scalar) one character at a time: for tests."""
        sizes = np.empty(len(text) + 1, np.int64)
        count = self._library.engine_words(self._engine, text, len(text), scalar, sizes.ctypes)
        ends = np.cumsum(sizes[:count]).tolist()
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def memory(self) -> int:
        return int(self._library.engine_memory(self._engine))


def called_by_c(encode: Callable[[Strings], tuple[Ids, TokenCounts]], dtype: "np.dtype[Any]", slack: int) -> Any:
    """A function as C calls it: texts → their ids, and how many each has, where C has room for one for each byte and `slack`
    more; how many there are, or less than 0."""

    def called(_: None, texts: int, sizes: int, count: int, ids: int, counts: int) -> int:
        try:
            pointers, of_each = (np.ctypeslib.as_array((c_int64 * count).from_address(at)) for at in (texts, sizes))
            found, number = encode(Strings(pointers, of_each, ()))
        except Exception:  # told when the caller tries again without C
            return _DECLINED
        if found.itemsize > dtype.itemsize or len(found) > int(of_each.sum()) + slack:
            return _DECLINED
        found = found.astype(dtype, copy=False)
        memmove(ids, compiled.address(found), found.nbytes)
        memmove(counts, compiled.address(number), number.nbytes)
        return len(found)

    return CFUNCTYPE(c_int64, *[c_void_p] * 3, c_int64, *[c_void_p] * 2)(called)


def with_live(model: Model) -> Model:
    """The Model with the merges that can happen, which take most of the time to find; as it is where that cannot be done.

    >>> with_live(Model.of({b"a": 0, b"b": 1, b"ab": 2}, [(b"a", b"b")], scheme="bytes")).live
    array([[4294967295,          0,          0],
           [4294967295,          0,          0],
           [         0,          0,          1]], dtype=uint32)
    """
    try:
        return find_live(model)
    except NotSupported:
        return model


def find_live(model: Model) -> Model:
    """The same, for either scheme; NotSupported says why it cannot be done."""
    if model.live is not None:
        return model
    live = np.empty((len(model.tokens), 3), np.uint32)
    given, _kept = vocabulary_of(model)
    if why := _library().engine_live(byref(given), model.scheme == "sentencepiece", live.ctypes):
        raise NotSupported(REASONS[why])
    return replace(model, live=live)


def token_numbers(tokens: Texts, parts: Sequence[str]) -> npt.NDArray[np.uint32]:
    """The place of each part among the tokens, in UTF-8; KeyError if one is not there.

    >>> token_numbers(Texts.of([b"a", b"bc"]), ["bc", "a"])
    array([1, 0], dtype=uint32)
    """
    joined = "\udcff".join([*parts, ""]).encode("utf-8", "surrogateescape")
    found = np.empty(len(parts), np.uint32)
    given = Vocabulary(text=tokens.joined.ctypes.data, offsets=tokens.offsets.ctypes.data, count=len(tokens))
    ends = joined.count(b"\xff")
    if ends != len(parts) or _library().engine_numbers(byref(given), joined, found.ctypes, len(parts)):
        raise KeyError("a merge of something that is no token")
    return found


def vocabulary_of(model: Model) -> tuple[Vocabulary, dict[str, npt.NDArray[Any]]]:
    """Tokens and merges as the C sees them, and the arrays that it points to."""
    kept: dict[str, npt.NDArray[Any]] = {"text": model.tokens.joined, "offsets": model.tokens.offsets, "ids": model.ids}
    some = {"merges": model.merges, "live": model.live}
    kept |= {name: np.ascontiguousarray(array) for name, array in some.items() if array is not None}
    pointers = {name: compiled.address(array) for name, array in kept.items()}
    return Vocabulary(
        count=len(model.tokens), merge_count=0 if model.merges is None else len(model.merges), **pointers
    ), kept


def given_to_engine(
    model: Model, *, path: str | None = None, small: bool = False
) -> tuple[_Given, dict[str, npt.NDArray[Any]]]:
    """A byte-level tokenizer as the C sees it, and the arrays that it points to."""
    assert model.shape is not None
    vocabulary, kept = vocabulary_of(model)
    table = classes.find(model.classes, digits=model.shape.first == "digits")
    assert table is not None, "ask why_not first"
    shape = _row(model.shape, whole_words=model.whole_words)
    given = _Given(
        vocabulary=vocabulary,
        classes=compiled.address(table),
        shape=shape,
        path=cpu_paths()[path or cpu_path()],
        small=small,
    )
    return given, {**kept, "classes": table}


def _row(shape: Shape, *, whole_words: bool) -> _Shape:
    deepseek = shape.first == "deepseek"
    return _Shape(
        kind=2 if deepseek else int(shape.case),
        contractions=_CONTRACTIONS[shape.contractions],
        any_prefix=shape.prefix == "any",
        digits=1 if shape.first == "digits" else shape.digits,
        newlines=shape.newlines,
        slashes=shape.tail == "newlines and slashes",
        whole_end=shape.whole_end,
        marks=shape.marks or deepseek,
        numbers_first=shape.first != "",
        whole_words=whole_words,
    )


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    compiled.declare(library, "cpu_name", c_char_p, c_int)
    compiled.declare(library, "cpu_path", c_int)
    compiled.declare(library, "engine_new", c_void_p, c_void_p)
    compiled.declare(library, "engine_live", c_int, c_void_p, c_int, c_void_p)
    compiled.declare(library, "engine_numbers", c_int, c_void_p, c_char_p, c_void_p, c_uint32)
    compiled.declare(library, "engine_free", None, c_void_p)
    pointers = c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p
    compiled.declare(library, "engine_encode", c_int64, *pointers)
    compiled.declare(library, "engine_block", c_int64, *pointers, c_void_p)
    compiled.declare(library, "engine_words", c_int64, c_void_p, c_char_p, c_int64, c_int, c_void_p)
    compiled.declare(library, "engine_memory", c_uint64, c_void_p)
    return library
