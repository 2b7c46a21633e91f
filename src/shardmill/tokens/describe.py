"""A tokenizer → what a user may want to know about it: which engine runs it here, why, and how fast."""

import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from shardmill.spec import Engine
from shardmill.tokens.encoder import Encoder, Engines, choose_engines
from shardmill.tokens.tokenizer import Tokenizer

_MODELS = {"bytes": "byte-level BPE", "sentencepiece": "SentencePiece BPE"}
_CUTS = {
    "gpt2": "at spaces, at lines and in words",
    "cl100k": "at spaces, at lines and in words",
    "o200k": "at spaces, at lines and in words",
    "spaces": "at spaces and at lines",
    "unknown": "nowhere: long documents are cut by force, and the cuts counted",
}
_SLOW_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What `shardmill tokenizers NAME` shows."""

    name: str
    file: str
    sha256: str
    vocabulary_size: int
    special_tokens: int
    added_tokens: int | None
    """Those that are found in the text; None if the file was not understood."""
    model: str | None
    normal_form: str | None
    cuts: str
    engine: str
    note: str | None
    """Why our own engine does not run it."""
    megabytes_per_second: float
    """On one core, nothing learned before, on the source code of shardmill itself."""


def describe(tokenizer: Tokenizer, engine: Engine = "auto") -> Description:
    engines = choose_engines(tokenizer, engine)
    known = None if isinstance(tokenizer.model, str) else tokenizer.model
    return Description(
        name=tokenizer.name,
        file=str(tokenizer.source),
        sha256=tokenizer.digest,
        vocabulary_size=tokenizer.size,
        special_tokens=len(tokenizer.specials),
        added_tokens=None if known is None else len(known.added) - len(tokenizer.specials),
        model=None if known is None else _MODELS[known.scheme],
        normal_form="NFC" if known and known.nfc else None,
        cuts=_CUTS.get(tokenizer.family, "at spaces, at lines and between letters that no token joins"),
        engine=engines.name,
        note=engines.note,
        megabytes_per_second=_speed(engines),
    )


def _speed(engines: Engines) -> float:
    package = Path(str(resources.files("shardmill")))
    text = b"".join(file.read_bytes() for file in sorted(package.rglob("*.py")))
    text = text if engines.ours else text[:_SLOW_BYTES]
    encoder = Encoder(engines)
    encoder.encode([b"warm"])
    started = time.thread_time()
    encoder.encode([text])
    return len(text) / 1e6 / max(time.thread_time() - started, 1e-9)
