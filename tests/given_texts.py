"""Texts for property tests, and tokenizers loaded once."""

from functools import lru_cache

from hypothesis import strategies as st

import samples
from shardmill.tokens.tokenizer import load

load_once = lru_cache(maxsize=64)(load)


@st.composite
def _snippets(draw):
    text = draw(st.sampled_from(list(samples.SAMPLES.values())))
    start = draw(st.integers(0, len(text) - 1))
    return text[start : start + draw(st.integers(1, 40))]


def texts(*, max_pieces):
    """Snippets of the samples, nasty characters and any Unicode, in a row."""
    unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    piece = st.one_of(_snippets(), _snippets(), st.sampled_from(samples.NASTY), unicode)
    return st.lists(piece, max_size=max_pieces).map("".join)
