"""Rounds of `make sanitize` for the engine of SentencePiece-style tokenizers and for added tokens."""

import importlib
import json
import random
import string
import sys
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_void_p, string_at
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.tokens.native import cpu_paths

TESTS = Path(__file__).parent.parent / "tests"
_NAMES = ("gemma", "phi 3")
_THREADS = 8


def write_configs(folder: Path) -> None:
    """Small tokenizers, trained here: the library that trains them starts threads, which a sanitizer would watch."""
    for name, config in _shapes().CONFIGS.items():
        if name in _NAMES:
            (folder / f"{name}.json").write_text(json.dumps(config()), encoding="utf-8")


def _shapes() -> Any:
    sys.path.insert(0, str(TESTS))
    try:
        return importlib.import_module("sentencepieces")
    finally:
        sys.path.pop(0)


class Pieces:
    """An engine whose text and ids are in buffers without a byte to spare."""

    def __init__(self, folder: Path, name: str, memory: Callable[[], Any], **how: Any) -> None:
        from shardmill.tokens.added import Added
        from shardmill.tokens.sentencepiece import SentencePiece

        self.config = json.loads((folder / f"{name}.json").read_bytes())
        model = _shapes().model_of(self.config)
        self._made, self._memory = SentencePiece(model, **how), memory
        self.added = Added(model.added)

    def encode(self, pieces: list[bytes]) -> bytes:
        made = self._made
        with self._memory() as memory:
            texts = np.array([memory.copy(piece) for piece in pieces], np.uint64).tobytes()
            sizes = np.array([len(piece) for piece in pieces], np.int64).tobytes()
            most = made._ids_per_byte * sum(map(len, pieces)) + len(pieces) + 16
            ids, counts = memory.room(4 * most), memory.room(8 * len(pieces))
            starts = bytes(i % 2 for i in range(len(pieces)))
            given = c_void_p(memory.copy(texts)), c_void_p(memory.copy(sizes)), c_void_p(memory.copy(starts))
            total = made._library.sp_encode(
                c_void_p(made._engine), *given, c_int64(len(pieces)), c_void_p(ids), c_void_p(counts)
            )
            assert total >= 0
            return string_at(ids, 4 * total)


def _normalize(pieces: list[str]) -> list[bytes]:
    """In normal form C. The library that is asked about it is left out: a sanitizer would watch its threads."""
    from shardmill.tokens import normalize

    normalize._by_reference = lambda lines: unicodedata.normalize("NFC", lines.decode()).encode()
    return list(normalize.normalize([piece.encode() for piece in pieces]))


def _decomposed(rng: random.Random) -> list[str]:
    texts = [unicodedata.normalize("NFD", text) for text in _shapes().samples.SAMPLES.values()]
    return [text[at:] for text in texts for at in [rng.randrange(len(text))]]


def address(
    folder: Path, rng: random.Random, memory: Callable[[], Any], damaged: Callable[[random.Random, bytes], bytes]
) -> Callable[[], None]:
    """A round: every path gives the same ids, and damaged text none that matter."""
    how: tuple[dict[str, Any], ...] = (*({"path": path} for path in cpu_paths()), {"small": True})
    engines = [[Pieces(folder, name, memory, **kind) for kind in how] for name in _NAMES]

    def once() -> None:
        for alike in engines:
            pieces = [text.encode() for text in _shapes().documents(alike[0].config, rng.randrange(1 << 40), 12)]
            pieces.append(rng.choice([b"=", b"ab ", b"a", "é".encode()]) * rng.randrange(12_000))
            assert len({engine.encode(pieces) for engine in alike}) == 1
            alike[0].added.split(pieces)
            _normalize(_decomposed(rng))
            for engine in alike:
                engine.encode([damaged(rng, piece) for piece in pieces])

    return once


def thread(folder: Path, rng: random.Random, memory: Callable[[], Any]) -> Callable[[], None]:
    """A round: threads that teach one engine new pieces, and empty its tables all the time."""
    engines = [Pieces(folder, "gemma", memory, small=small) for small in (False, True)]
    shared = [text.encode() for text in _shapes().documents(engines[0].config, 0, 200)]
    expected = engines[0].encode(shared)
    decomposed = _decomposed(rng)
    normal = _normalize(decomposed)

    def work(seed: int) -> None:
        own = random.Random(seed)
        words = ["".join(own.choices(string.ascii_letters, k=own.choice([5, 12, 40]))) for _ in range(500)]
        for engine in engines:
            engine.encode([" ".join(words).encode()])
            assert engine.encode(shared) == expected
        assert _normalize(decomposed) == normal
        _normalize(_decomposed(own))

    def once() -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, [rng.randrange(1 << 40) for _ in range(_THREADS)]))

    return once
