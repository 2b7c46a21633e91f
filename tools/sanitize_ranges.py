"""Rounds of `make sanitize` for ranges: a hostile file through prepare, with ranges and without, which must give the same."""

import contextlib
import ctypes
import gzip
import importlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.documents import ranges, text_reader
from shardmill.documents.columnar import chunks, parquet
from shardmill.errors import ShardmillError
from shardmill.job import job as jobs
from shardmill.job import workers
from shardmill.job.mill import prepare
from shardmill.spec import Limits, Spec
from shardmill.system import buffers
from shardmill.tokens.encoder import choose_engines
from shardmill.tokens.tokenizer import load

TESTS = Path(__file__).parent.parent / "tests"
_COMPOSED = "composed"
# Text may be cut before these capital letters with each of the tokenizers but one.
_WORDS = ["Kab ", "Naa", "Qaba ", "Oh| ", "Uaba", "Ne\u0301 ", "K\u00e9 ", "K.\n", "Q\n\n"]
_SEPARATORS = ["\n\n", "aa", "aba", " ", "|", "é", "\r\n", "ab" * 100]
# What has a size of its own, and how many slices it should be.
_SIZES = [
    (ranges, "SLICE_BYTES", 1),
    (ranges, "_PIECE_BYTES", 2),
    (text_reader, "_WINDOW", 8),
    (parquet, "_RANGE_BYTES", 4),
    (chunks, "_READ_BYTES", 4),
    (chunks, "_USUAL_BYTES", 1),
    (chunks, "_PAGES_BYTES", 4),
]

Text = Callable[[random.Random], bytes]
Damaged = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hostile:
    """Where hostile input comes from: text, damage to it, and how much of what is written is damaged."""

    rng: random.Random
    text: Text
    damaged: Damaged
    share: float

    def documents(self) -> list[bytes]:
        """Many short ones, and some that are empty or longer than a slice."""
        rng, longest = self.rng, self.rng.choice([20, 300, 2000])
        text = "".join(rng.choices(_WORDS, k=9000)) if rng.random() < 0.5 else self._nasty()
        sizes = rng.choices([0, 1, longest // 10, longest, rng.randrange(longest)], k=rng.choice([20, 100, 500]))
        starts = [rng.randrange(len(text)) for _ in sizes]
        return [text[start : start + size].encode() for start, size in zip(starts, sizes, strict=True)]

    def _nasty(self) -> str:
        return "".join(self.text(self.rng).decode() for _ in range(5)) or "x"

    def some(self, data: bytes) -> bytes:
        return self.damaged(self.rng, data) if self.rng.random() < self.share else data


def write_configs(folder: Path) -> None:
    """A byte-level tokenizer with added tokens, after NFC; those of SentencePiece are in sanitize_pieces.py."""
    from tokenizers import AddedToken, normalizers

    sys.path.insert(0, str(TESTS))
    try:
        tiny = importlib.import_module("tiny")
    finally:
        sys.path.pop(0)
    made = tiny.reference("gpt2", *tiny.trained())
    made.normalizer = normalizers.NFC()
    made.add_special_tokens(["</s>"])
    made.add_tokens([AddedToken("ab ", normalized=False), AddedToken("é", normalized=True)])
    (folder / f"{_COMPOSED}.json").write_text(made.to_str(), encoding="utf-8")


def _lines(hostile: Hostile) -> bytes:
    texts = [text.decode("utf-8", "replace") for text in hostile.documents()]
    ascii_only = hostile.rng.random() < 0.5
    lines = [json.dumps({"n": 1, "text": text}, ensure_ascii=ascii_only).encode() for text in texts]
    return b"\n".join([*map(hostile.some, lines), b""][: hostile.rng.choice([-1, len(lines) + 1])])


def _separated(hostile: Hostile, separator: str) -> bytes:
    return separator.encode().join(map(hostile.some, hostile.documents()))


def _running(hostile: Hostile) -> bytes:
    """With runs without a place where text may be cut; or lines of words, most of whose passages are milled in C."""
    if hostile.rng.random() < 0.6:
        line = " ".join(hostile.rng.choices(["a", "mill", "grinds", "Körner", "文字", " indented"], k=3000))
        return hostile.some(b"\n".join(line[at : at + 60].strip().encode() for at in range(0, len(line), 60)) * 6)
    texts = [*hostile.documents(), b"x" * hostile.rng.choice([0, 0, 3000])]
    return hostile.rng.choice([b"", b" ", b"\n"]).join(map(hostile.some, 2 * texts))[:50_000]


def _parquet(hostile: Hostile) -> bytes:
    rng, out = hostile.rng, io.BytesIO()
    values = [None if rng.random() < hostile.share else hostile.some(text) for text in hostile.documents()]
    pq.write_table(
        pa.table({"text": pa.array(rng.choice([1, 5]) * values, pa.binary())}),
        out,
        row_group_size=rng.choice([7, 50, 300]),
        data_page_size=rng.choice([64, 1000, 1 << 20]),
        write_batch_size=rng.choice([2, 100]),
        use_dictionary=rng.random() < 0.5,
        compression=rng.choice(["none", "zstd"]),
        data_page_version=rng.choice(["1.0", "2.0"]),
    )
    data = bytearray(out.getvalue())
    for _ in range(rng.randrange(4) if hostile.share else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _file(hostile: Hostile, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A file of any kind, and what a Spec must say of it."""
    separator = hostile.rng.choice(_SEPARATORS)
    made: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
        "a.jsonl": (lambda: _lines(hostile), {}),
        "a.jsonl.gz": (lambda: gzip.compress(_lines(hostile)), {}),
        "a.parquet": (lambda: _parquet(hostile), {}),
        "separated.txt": (lambda: _separated(hostile, separator), {"separator": separator}),
        "running.txt": (lambda: _running(hostile), {}),
    }
    name = hostile.rng.choice([*made])
    data, choices = made[name]
    file = folder / name
    file.write_bytes(data())
    return file, choices


def _choices(rng: random.Random) -> dict[str, Any]:
    most = rng.choice([100, 3000, 20_000, 50_000])
    return {
        "max_run_bytes": most,
        "passage_bytes": min(rng.choice([300, 2000]), most // 2),
        "val_fraction": rng.choice([0, 0.5, 1 - 2**-53]),
        "split": rng.choice([*5 * ["hash"], "head", "tail"]),
        "eot": rng.choice(["after", "before", "none"]),
        "dtype": rng.choice(["uint16", "uint32"]),
        "on_error": rng.choice(["stop", "skip", "replace"]),
        "seed": rng.randrange(9),
    }


class _Exact:
    """Calls C with tokens, ends, and what was read already, in buffers of exactly the sizes that it is told."""

    def __init__(self, memory: Callable[[], Any]) -> None:
        self._memory, self._library = memory, ranges._library()
        self.ranges_work = self._library.ranges_work

    def ranges_mill(self, reference: Any) -> int:
        given = reference._obj
        with self._memory() as memory:
            wanted = [(side.tokens, side.ends) for side in given.sides]
            for side in given.sides:
                side.tokens = memory.room(side.room * given.token_bytes)
                side.ends = memory.room(8 * given.ends_room)
            if given.memory:
                read = ctypes.string_at(given.memory, given.end - given.memory_at)
                given.memory = memory.room(len(read))
                ctypes.memmove(given.memory, read, len(read))
            why = self._library.ranges_mill(reference)
            for side, (tokens, ends) in zip(given.sides, wanted, strict=True):
                ctypes.memmove(tokens, side.tokens, side.count * given.token_bytes)
                ctypes.memmove(ends, side.ends, 8 * side.documents)
        return int(why)


@contextlib.contextmanager
def _exact(memory: Callable[[], Any]) -> Iterator[None]:
    """Nothing is in a buffer that was larger before."""
    library = _Exact(memory)
    with (
        patch.object(ranges, "_library", lambda: library),
        patch.object(ranges, "_work_of", lambda given: np.empty(library.ranges_work(ctypes.byref(given)), np.uint8)),
        patch.object(buffers, "take", lambda size, **_: np.empty(size, np.uint8)),
    ):
        yield


@contextlib.contextmanager
def _small(slice_bytes: int) -> Iterator[None]:
    with contextlib.ExitStack() as patches:
        for module, name, slices in _SIZES:
            patches.enter_context(patch.object(module, name, slices * slice_bytes))
        yield


@contextlib.contextmanager
def _cutting(file: Path, size: int) -> Iterator[None]:
    """The file is truncated when the first range is milled."""
    mill = ranges.mill

    def cut(*given: Any) -> ranges.Outcome:
        os.truncate(file, size)
        return mill(*given)

    with patch.object(ranges, "mill", cut):
        yield


def _made(spec: Spec, limits: Limits) -> object:
    """All that a job makes, or its error."""
    output = Path(spec.output)
    shutil.rmtree(output, ignore_errors=True)
    try:
        counts = prepare(spec, limits=limits).manifest.counts
    except ShardmillError as e:
        return str(e).partition(";")[0]  # what follows is a guess from the text around
    return counts, {file.name: file.read_bytes() for file in output.iterdir() if file.suffix != ".json"}


def _round(seed: int, folder: Path, text: Text, damaged: Damaged) -> None:
    rng = random.Random(seed)
    file, choices = _file(Hostile(rng=rng, text=text, damaged=damaged, share=rng.choice([0, 0, 0.01, 0.1])), folder)
    tokenizer = rng.choice(["gpt2", *(folder / f"{name}.json" for name in (_COMPOSED, "gemma"))])
    eot: dict[str, Any] = {} if tokenizer == "gpt2" else {"eot_token": "</s>"}
    spec = Spec(inputs=[file], output=folder / "out", tokenizer=str(tokenizer), **eot, **choices, **_choices(rng))
    block_bytes = max(rng.choice([300, 2000, 20_000]), file.stat().st_size // 50)
    limits = Limits(workers=rng.choice([1, 3, 9]), block_bytes=block_bytes)
    small = _small(rng.choice([80, 300, 5000]))
    if rng.random() < 0.1:
        with small, _cutting(file, rng.randrange(file.stat().st_size + 1)):
            _made(spec, limits)
        return
    with small:
        ours = _made(spec, limits)
    with patch.object(workers, "recipe_of", lambda *_: None):
        assert _made(spec, limits) == ours, f"seed {seed}: {spec} {limits}"


def once(
    folder: Path, rng: random.Random, text: Text, damaged: Damaged, memory: Callable[[], Any] | None = None
) -> Callable[[], None]:
    """A round. memory: of buffers without a byte to spare."""
    loaded = cache(load)
    engines = cache(lambda name: choose_engines(loaded(name), "native"))

    def once() -> None:
        exact = contextlib.nullcontext() if memory is None else _exact(memory)
        with (
            exact,
            patch.object(jobs, "load", loaded),
            patch.object(jobs, "choose_engines", lambda given, _: engines(given.name)),
        ):
            _round(rng.randrange(1 << 40), folder, text, damaged)

    return once
