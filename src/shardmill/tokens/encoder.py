"""Pieces of text → token ids: the fast engine where it is exact, the reference where it is not."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardmill.errors import ShardmillError, UsageError
from shardmill.spec import Engine
from shardmill.system.names import show
from shardmill.tokens import gigatoken, guard, native
from shardmill.tokens.cuts import Family
from shardmill.tokens.gigatoken import Gigatoken
from shardmill.tokens.guard import Guard
from shardmill.tokens.model import Model, Shape
from shardmill.tokens.native import Native
from shardmill.tokens.reference import Fast, Ids, Reference, TokenCounts, load_reference
from shardmill.tokens.tokenizer import Tokenizer, read_ranks

_BY_SPEED: tuple[Engine, ...] = ("native", "gigatoken")

_SHAPES: dict[Family, Shape] = {
    "gpt2": Shape(contractions="exact", prefix="blank", digits=0, newlines=False, tail="", whole_end=True),
    "cl100k": Shape(contractions="any case", digits=3, whole_end=True),
    "o200k": Shape(contractions="suffix any case", digits=3, case=True, tail="newlines and slashes"),
}
# The reference gets long text in spans of this size: an Encoding of the tokenizers library takes 100 times its text.
_SPAN_BYTES = 64 << 10
_NEAR_BYTES = 1 << 10
# With less input than this, the reference is done before a sweep for the guard would be.
_TOO_SMALL_TO_SWEEP = 32 << 20
# Only one thread at a time runs the reference on a long span without a cut, which takes 48 times its size.
_long_span = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Engines:
    """What all encoders of a job share. guard is None when the reference does all the work."""

    tokenizer: Tokenizer
    reference: Reference
    guard: Guard | None = None
    native: Native | None = None
    """The fast engine if it is the native one, which encodes for all threads at once."""
    note: str | None = None
    """Why no fast engine is used, if one might have been expected."""

    @property
    def name(self) -> str:
        if self.guard is None:
            return self.reference.version
        return gigatoken.version() if self.native is None else native.version()


def choose_engines(tokenizer: Tokenizer, engine: Engine, input_bytes: int, cache: Path) -> Engines:
    """The fastest engine that is exact for this tokenizer, or the one asked for."""
    try:
        reference, why = load_reference(tokenizer), None
        for fast in {"reference": (), "auto": _BY_SPEED}.get(engine, (engine,)):
            may_sweep = engine != "auto" or input_bytes >= _TOO_SMALL_TO_SWEEP
            found = _engines_with(fast, tokenizer, reference, cache, may_sweep=may_sweep)
            if isinstance(found, Engines):
                return found
            why = found
    finally:
        read_ranks.cache_clear()  # 8 MiB for GPT-2, four times that for o200k
    if why is not None and engine != "auto":
        raise UsageError(
            f"--engine {engine}: tokenizer {show(tokenizer.name)} cannot run on it, since {why}; use --engine auto"
        )
    note = None if why is None else f"{tokenizer.name} runs on {reference.version}, which is slower: {why}"
    return Engines(tokenizer=tokenizer, reference=reference, note=note)


def _engines_with(
    fast: Engine, tokenizer: Tokenizer, reference: Reference, cache: Path, *, may_sweep: bool
) -> Engines | str:
    """A fast engine and its guard, or why it cannot be used."""
    ours = fast == "native"
    if (why := why_not_native(tokenizer) if ours else gigatoken.why_not(tokenizer)) is not None:
        return why
    key = guard.table_key(native.version() if ours else gigatoken.version(), tokenizer, reference)
    try:
        shared = Native(native_model(tokenizer)) if ours else None
        found = guard.load_guard(key, lambda: shared or Gigatoken(tokenizer), reference, cache, may_sweep=may_sweep)
    except ShardmillError as e:
        return str(e)
    except Exception as e:  # gigatoken's loader raises many kinds
        return f"{fast} cannot load it: {e}"
    if found is None:
        return "the input is small, and comparing the engines first would take longer"
    return Engines(tokenizer=tokenizer, reference=reference, guard=found, native=shared)


def why_not_native(tokenizer: Tokenizer) -> str | None:
    if tokenizer.kind != "tiktoken":
        return "the native engine supports only tiktoken's encodings"
    return native.why_not(tokenizer.kind)


def native_model(tokenizer: Tokenizer) -> Model:
    """One of tiktoken's encodings."""
    ranks, shape = read_ranks(tokenizer.name), _SHAPES[tokenizer.family]
    return Model(scheme="bytes", vocabulary=ranks, merges=None, shape=shape, whole_words=True, classes="tiktoken")


class Encoder:
    """Encodes for one thread."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._fast = _fast(engines)
        self.bytes_since_renewal = 0

    def encode(self, pieces: list[bytes]) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has."""
        self.bytes_since_renewal += sum(map(len, pieces))
        if self._fast is None:
            return _join([self._by_reference(piece) for piece in pieces])
        if self._engines.guard is None or not self._engines.guard.occurs_in(pieces):
            return self._fast.encode(pieces)
        return _join([self._by_both(piece) for piece in pieces])

    def renew(self) -> None:
        """Drop gigatoken's cache of words and its memory. The native engine's is fixed."""
        self._fast = None
        self._fast = _fast(self._engines)
        self.bytes_since_renewal = 0

    def _by_both(self, piece: bytes) -> Ids:
        """The fast engine for everything except the spans with a guarded character."""
        assert self._fast is not None
        done: list[Ids] = []
        at = 0
        for start, end in self._guarded_spans(piece):
            done.append(self._fast.encode([piece[at:start]])[0])
            done.append(self._by_reference(piece[start:end]))
            at = end
        done.append(self._fast.encode([piece[at:]])[0])
        return np.concatenate(done)

    def _guarded_spans(self, piece: bytes) -> list[tuple[int, int]]:
        """Spans from exact cut to exact cut around guarded characters, those near each other in one."""
        assert self._engines.guard is not None
        cuts = self._engines.tokenizer.cuts
        spans: list[tuple[int, int]] = []
        for first, last in _groups(self._engines.guard.find(piece)):
            low = spans[-1][1] if spans else 0
            if last < low:
                continue
            start = cuts.last(piece, low, first) or low
            spans.append((start, cuts.first(piece, last + 1, len(piece)) or len(piece)))
        return spans

    def _by_reference(self, piece: bytes) -> Ids:
        spans: list[Ids] = []
        at = 0
        while at < len(piece):
            end = self._engines.tokenizer.cuts.first(piece, at + _SPAN_BYTES, len(piece)) or len(piece)
            spans.append(reference_ids(self._engines.reference, piece[at:end]))
            at = end
        return np.concatenate(spans) if spans else np.empty(0, np.uint32)


def _fast(engines: Engines) -> Fast | None:
    if engines.guard is None:
        return None
    return engines.native or Gigatoken(engines.tokenizer)


def _groups(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each group of offsets with small gaps; in a text full of them, a span for each would be slow."""
    first = last = offsets[0] if offsets else 0
    for offset in offsets:
        if offset - last > _NEAR_BYTES or offset - first > _SPAN_BYTES:
            yield first, last
            first = offset
        last = offset
    if offsets:
        yield first, last


def reference_ids(reference: Reference, text: bytes) -> Ids:
    if len(text) <= 2 * _SPAN_BYTES:
        return reference.encode(text)
    with _long_span:
        return reference.encode(text)


def _join(encoded: list[Ids]) -> tuple[Ids, TokenCounts]:
    counts = np.array([len(ids) for ids in encoded], np.int64)
    return (np.concatenate(encoded) if encoded else np.empty(0, np.uint32)), counts
