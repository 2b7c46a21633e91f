"""The written tokens are the reference's for the whole text, wherever blocks, workers and engines part it (I1, I7)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milling import BLOCK_BYTES, mill_text, prepare_files

import reference
import samples
from given_texts import load_once, texts
from shardmill.errors import MismatchError
from shardmill.tokens import native
from shardmill.tokens.cuts import Cuts
from shardmill.tokens.layout import lay_out
from shardmill.tokens.native import Native

LONG = "\n\n".join(f"{number} {text}" for number in range(8) for text in samples.SAMPLES.values())


@pytest.fixture(params=["native", "reference"])
def engine(request, encoding):
    """Our own on the code path of this processor, and the reference; test_native.py has the other code paths."""
    if request.param == "native" and (why := native.why_not(load_once(encoding).kind)):
        pytest.skip(why)
    return request.param


def as_whole(text, **how):
    """Whether milling this text gives the tokens of the whole of it."""
    return mill_text(text, **how).train == reference.encode(how["tokenizer"], text)


@settings(max_examples=25)
@given(text=texts(max_pieces=20).filter(bool), block_bytes=st.sampled_from(BLOCK_BYTES))
def test_tokens_do_not_depend_on_block_size(encoding, engine, text, block_bytes):
    assert as_whole(text, tokenizer=encoding, engine=engine, block_bytes=block_bytes)


@settings(max_examples=25)
@given(text=st.lists(st.sampled_from(samples.NASTY), min_size=1, max_size=60).map("".join))
def test_nasty_characters_in_blocks_of_three_bytes_give_the_tokens_of_the_whole(encoding, engine, text):
    assert as_whole(text, tokenizer=encoding, engine=engine, block_bytes=3)


@pytest.mark.thin
@pytest.mark.parametrize("name", samples.SAMPLES)
def test_every_sample_gives_the_tokens_of_the_whole_in_blocks_of_any_size(encoding, engine, name):
    wrong = [
        block_bytes
        for block_bytes in (3, 64, 1 << 20)
        if not as_whole(samples.SAMPLES[name], tokenizer=encoding, engine=engine, block_bytes=block_bytes)
    ]
    assert wrong == []


@pytest.mark.parametrize("block_bytes, workers", [(64, 3), (1 << 20, 2)])
def test_a_run_gives_the_tokens_of_the_whole_text(encoding, engine, block_bytes, workers):
    text = samples.ALL if block_bytes == 64 else LONG
    how = {"tokenizer": encoding, "engine": engine, "block_bytes": block_bytes, "workers": workers}
    train, val, made = prepare_files([text.encode()], val_fraction=0, **how)
    assert (train, val) == (reference.encode(encoding, text), [])
    assert made.counts.input_bytes == len(text.encode())
    assert made.counts.forced_cuts == 0


def test_the_manifest_does_not_depend_on_limits(encoding):
    data = LONG.encode()
    made = [
        prepare_files([data, data[:999], data], tokenizer=encoding, val_fraction=0.1, on_error="replace", **limits)[2]
        for limits in (
            {"engine": "auto", "workers": 1, "block_bytes": 1 << 20},
            {"engine": "reference", "workers": 3, "block_bytes": 5000},
        )
    ]
    assert made[0].counts == made[1].counts
    assert made[0].files == made[1].files


def test_a_text_of_one_character_is_milled(encoding, engine):
    for character in ("a", " ", "\n", "中", "😀", "\0", "\U0001e6c0"):
        assert as_whole(character, tokenizer=encoding, engine=engine)


# The check can fail: the cut rules of the usual scripts, put in the place of ours, are found out by it.


def after_any_newline(_cuts, data, low, high):
    return data.rfind(b"\n", low, high - 1) + 1 or None


def before_any_space(_cuts, data, low, high):
    at = data.rfind(b" ", low + 1, high)
    return None if at < 0 else at


def anywhere(_cuts, data, low, high):
    return next((at for at in range(high - 1, low, -1) if data[at] & 0xC0 != 0x80), None)


@pytest.mark.parametrize("block_bytes", [3, 7, 64])
@pytest.mark.parametrize("rule", [after_any_newline, before_any_space, anywhere])
def test_the_check_finds_a_mill_that_cuts_elsewhere(encoding, rule, block_bytes, monkeypatch):
    monkeypatch.setattr(Cuts, "last", rule)
    gaps = [gap * count for gap in (" ", "\n", "\t", "\n ", " \n", " \u00a0") for count in range(1, 7)]
    text = "".join("x" * size + gap for size in range(1, 6) for gap in gaps)
    shifted = ("x" * shift + text for shift in range(block_bytes))
    assert any(not as_whole(text, tokenizer=encoding, engine="reference", block_bytes=block_bytes) for text in shifted)


def test_the_running_sample_finds_an_engine_that_differs(monkeypatch):
    """Not only our tests: every job compares a sample with the reference."""

    def one_wrong(self, texts, layout):
        ids, counts = self.encode(texts)
        ids = ids.copy()
        ids[len(ids) // 2] += 1
        return lay_out((ids, counts), layout), (ids, counts)

    monkeypatch.setattr(Native, "encode_and_lay_out", one_wrong)
    with pytest.raises(MismatchError, match=r"000\.txt byte 0: .*should be"):
        mill_text(samples.ENGLISH, tokenizer="r50k_base", engine="native")
