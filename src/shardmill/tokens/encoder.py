"""Pieces of text → token ids: by our own engine where it knows the tokenizer, otherwise by the reference."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shardmill.errors import UsageError
from shardmill.spec import Engine
from shardmill.system.names import show
from shardmill.tokens import native, normalize
from shardmill.tokens.bytelevel import ByteLevel
from shardmill.tokens.layout import Laid, Layout, Turn, lay_out
from shardmill.tokens.model import Ids, NotSupported, TokenCounts, Whole
from shardmill.tokens.reference import Later, Reference, load_reference
from shardmill.tokens.sentencepiece import SentencePiece
from shardmill.tokens.strings import Flags, Strings
from shardmill.tokens.tokenizer import Tokenizer

# The reference gets long text in spans of this size: an Encoding of the tokenizers library takes 100 times its text.
_SPAN_BYTES = 64 << 10
# Only one thread at a time runs the reference on a long span without a cut, which takes 48 times its size.
_long_span = threading.Lock()


class Ours(Protocol):
    """Our own engine, for all threads at once. Its memory is fixed."""

    @property
    def memory(self) -> int: ...

    @property
    def whole(self) -> Whole:
        """How C encodes whole documents by itself."""

    def encode(self, pieces: Strings, begins: Flags, /) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has; begins: whether a piece begins its document."""

    def encode_and_lay_out(
        self, pieces: Strings, begins: Flags, layout: Layout, /
    ) -> tuple[Laid, tuple[Ids, TokenCounts]]:
        """The same, and the tokens as they are written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engines:
    """What all encoders of a job share. ours is None when the reference does all the work."""

    tokenizer: Tokenizer
    reference: Reference
    ours: Ours | None = None
    note: str | None = None
    """Why our own engine does not run it, unless that was asked for."""

    @property
    def name(self) -> str:
        return self.reference.version if self.ours is None else native.version()


def choose_engines(tokenizer: Tokenizer, engine: Engine) -> Engines:
    """Our own engine if it knows the tokenizer, or what was asked for. The reference is loaded when it is first needed."""
    if engine == "reference":
        return Engines(tokenizer=tokenizer, reference=load_reference(tokenizer))
    reference = Later(tokenizer)
    ours = _make(tokenizer)
    if not isinstance(ours, str):
        return Engines(tokenizer=tokenizer, reference=reference, ours=ours)
    if engine == "native":
        raise UsageError(
            f"--engine native: tokenizer {show(tokenizer.name)} cannot run on it, since {ours}; use --engine auto"
        )
    note = f"{tokenizer.name} runs on {reference.version}, which is slower: {ours}"
    return Engines(tokenizer=tokenizer, reference=reference.load(), note=note)


def _make(tokenizer: Tokenizer) -> Ours | str:
    """Our own engine, or why it cannot run this tokenizer here."""
    model = tokenizer.model
    if isinstance(model, str):
        return model
    is_bytes = model.scheme == "bytes"
    why = (native.why_not(model.classes) if is_bytes else None) or (normalize.why_not() if model.nfc else None)
    try:
        return why or (ByteLevel(model) if is_bytes else SentencePiece(model))
    except NotSupported as e:
        return str(e)


class Encoder:
    """Encodes for any number of threads; those that encode Blocks take turns, if turn is set."""

    def __init__(self, engines: Engines, turn: Turn | None = None) -> None:
        self._engines, self._turn = engines, turn

    def encode(
        self, pieces: Strings | Sequence[bytes], begins: Flags | Sequence[bool] | None = None
    ) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has. begins: which begin their document; None: all."""
        texts = Strings.of(pieces)
        flags = np.ones(len(texts), np.bool_) if begins is None else np.asarray(begins, np.bool_)
        if self._engines.ours is not None:
            return self._engines.ours.encode(texts, flags)
        encoded = [self._by_reference(piece, begin) for piece, begin in zip(texts, flags.tolist(), strict=True)]
        counts = np.array([len(ids) for ids in encoded], np.int64)
        return (np.concatenate(encoded) if encoded else np.empty(0, np.uint32)), counts

    def encode_and_lay_out(self, texts: Strings, begins: Flags, layout: Layout) -> tuple[Laid, tuple[Ids, TokenCounts]]:
        """The tokens as they are written, and what encode gives."""
        if self._engines.ours is not None:
            layout = layout if self._turn is None else replace(layout, turn=self._turn)
            return self._engines.ours.encode_and_lay_out(texts, begins, layout)
        encoded = self.encode(texts, begins)
        return lay_out(encoded, layout), encoded

    def _by_reference(self, piece: bytes, begins: bool) -> Ids:
        spans: list[Ids] = []
        at = 0
        while at < len(piece):
            end = self._engines.tokenizer.cuts.first(piece, at + _SPAN_BYTES, len(piece)) or len(piece)
            spans.append(reference_ids(self._engines.reference, piece[at:end], begins=begins and not at))
            at = end
        return np.concatenate(spans) if spans else np.empty(0, np.uint32)


def reference_ids(reference: Reference, text: bytes, *, begins: bool) -> Ids:
    if len(text) <= 2 * _SPAN_BYTES:
        return reference.encode(text, begins=begins)
    with _long_span:
        return reference.encode(text, begins=begins)
