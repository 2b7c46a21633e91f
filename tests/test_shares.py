"""Several threads that share a Block give what one gives: ids, tokens, ends and runs."""

import random

import numpy as np
import pytest

import samples
from sentencepieces import CONFIGS, model_of
from shardmill.tokens.bytelevel import ByteLevel
from shardmill.tokens.layout import Layout
from shardmill.tokens.sentencepiece import SentencePiece
from shardmill.tokens.strings import Strings
from shardmill.tokens.tokenizer import load

ENGINES = {
    "gpt2": lambda: ByteLevel(load("gpt2").model),
    "o200k": lambda: ByteLevel(load("o200k_base").model),
    **{name: lambda name=name: SentencePiece(model_of(CONFIGS[name]())) for name in ("gemma", "phi 3", "llama 2")},
}
TEXT = samples.ALL.encode() * 40


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    return ENGINES[request.param]()


def pieces_of(rng, count):
    """Pieces of very different sizes, empty ones among them; together enough for many threads."""
    starts = [rng.randrange(len(TEXT)) for _ in range(count)]
    cut = [TEXT[at : at + rng.choice([0, 1, 30, 3000, 400_000])] for at in starts]
    return [piece.decode(errors="ignore").encode() for piece in cut]


def laid(engine, pieces, threads, **how):
    rng = random.Random(len(pieces))
    flags = np.array([[rng.random() < 0.5 for _ in pieces] for _ in range(3)], np.bool_).reshape(3, len(pieces))
    texts = Strings.of(pieces)
    layout = Layout(val=flags[0].view(np.int8), text_bytes=texts.sizes, closes=flags[1], threads=threads, **how)
    made, (ids, counts) = engine.encode_and_lay_out(texts, flags[2], layout)
    columns = made.tokens, made.token_ends, made.ends[: flags[1].sum()], ids, counts
    return [each.tolist() for each in columns], made.runs


@pytest.mark.parametrize("how", [{"eot": None}, {"eot": 7}, {"eot": 7, "apart": True, "before": True}], ids=str)
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_any_number_of_threads_gives_the_same(engine, how, dtype):
    rng = random.Random(1)
    how = {**how, "dtype": np.dtype(dtype)}
    for pieces in (pieces_of(rng, 30), [TEXT], [b"", TEXT, b""], [b"a"], [b""], []):
        alone = laid(engine, pieces, 1, **how)
        for threads in (2, 3, 16, 1000):
            assert laid(engine, pieces, threads, **how) == alone


def test_the_time_of_all_threads_is_counted(engine):
    texts = Strings.of([TEXT] * 8)
    layout = {"dtype": np.dtype("<u4"), "eot": None, "val": np.zeros(8, np.int8), "text_bytes": texts.sizes}
    begins = np.ones(8, np.bool_)
    engine.encode_and_lay_out(texts, begins, Layout(**layout))
    alone, shared = (
        min(engine.encode_and_lay_out(texts, begins, Layout(**layout, threads=n))[0].seconds for _ in range(5))
        for n in (1, 4)
    )
    assert 0.5 * alone < shared < 3 * alone
