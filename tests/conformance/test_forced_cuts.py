"""Text without a place to cut is cut by force: where the content says, the same for all Limits, and counted (I1, I7)."""

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milling import BLOCK_BYTES, mill_files, mill_text

import reference
import samples
from given_texts import texts
from shardmill.errors import UsageError
from shardmill.tokens.tokenizer import read_ranks

RUNS = [character * count for character in ("1", "a", "=", "A", "\0", "\u0301", "1\u0301") for count in (70, 200)]


@lru_cache(maxsize=3)
def vocabulary(encoding):
    return {rank: token for token, rank in read_ranks(encoding).items()}


def spelled(encoding, tokens):
    return b"".join(map(vocabulary(encoding).get, tokens)).decode()


@settings(max_examples=8)
@given(parts=st.lists(st.one_of(texts(max_pieces=3), st.sampled_from(RUNS)), min_size=1, max_size=6))
def test_forced_cuts_do_not_depend_on_block_size(encoding, parts):
    text = "".join(parts) + "1" * 100
    how = {"tokenizer": encoding, "engine": "reference", "max_run_bytes": 64, "passage_bytes": 16}
    outs = [mill_text(text, block_bytes=size, **how) for size in BLOCK_BYTES]
    assert [out.train for out in outs] == [outs[0].train] * len(outs)
    assert [out.counts for out in outs] == [outs[0].counts] * len(outs)


@pytest.mark.parametrize("encoding", ["r50k_base", "cl100k_base"])
def test_a_forced_cut_does_not_depend_on_which_cut_came_before(encoding):
    """Story: a place one character after the beginning of a block was not seen to be exact, so the run after it was measured
    from the beginning of the block."""
    text = "中中中中" + "1" * 40
    how = {"tokenizer": encoding, "engine": "reference", "max_run_bytes": 16, "passage_bytes": 8}
    outs = [mill_text(text, block_bytes=size, **how).train for size in (7, 64)]
    assert outs[0] == outs[1]


@settings(max_examples=15)
@given(parts=st.lists(st.one_of(texts(max_pieces=3), st.sampled_from(RUNS)), min_size=1, max_size=8))
def test_forced_cuts_lose_no_text_and_without_them_the_tokens_are_exact(encoding, parts):
    text = "".join(parts) + "."
    out = mill_text(text, tokenizer=encoding, block_bytes=7, max_run_bytes=64, passage_bytes=16)
    assert spelled(encoding, out.train) == text
    if out.counts["forced_cuts"] == 0:
        assert out.train == reference.encode(encoding, text)


def test_forced_cuts_are_counted_every_so_many_bytes(encoding):
    for size, forced in ((64, 0), (65, 1), (128, 1), (129, 2), (640, 9)):
        out = mill_text("7" * size, tokenizer=encoding, max_run_bytes=64, passage_bytes=16)
        assert out.counts["forced_cuts"] == forced


def test_passages_are_cut_by_force_too_and_alike(encoding):
    text = f"{samples.ALL}{'7' * 9000} {samples.ALL}"
    how = {"tokenizer": encoding, "val_fraction": 0.3, "max_run_bytes": 2600, "passage_bytes": 1300}
    outs = [mill_text(text, block_bytes=size, **how) for size in (64, 1000, 1 << 20)]
    assert outs[0].counts["forced_cuts"] > 0
    assert all((out.train, out.val, out.counts) == (outs[0].train, outs[0].val, outs[0].counts) for out in outs)
    assert spelled(encoding, outs[0].both) == text


def test_a_forced_cut_is_never_inside_a_character():
    """Story: stray bytes behind a character moved the cut into it, and a good character was replaced."""
    data = b"1" * 57 + "😀".encode() + b"\x80" * 200
    out = mill_files(
        [data], tokenizer="r50k_base", on_error="replace", val_fraction=0, max_run_bytes=64, passage_bytes=16
    )
    assert out.counts["forced_cuts"] > 0
    assert spelled("r50k_base", out.train) == data.decode(errors="replace")


@pytest.mark.parametrize("max_run_bytes", [2, 3, 4, 5])
def test_the_shortest_run_holds_every_character_or_is_refused(max_run_bytes):
    """Story: four bytes of one character did not fit a run of three, and a Part without text was made."""
    try:
        out = mill_text("😀😀😀", tokenizer="r50k_base", max_run_bytes=max_run_bytes, passage_bytes=1)
    except UsageError:
        return
    assert spelled("r50k_base", out.train) == "😀😀😀"
