"""Normal form C is what the reference makes of the text, whatever the form it comes in."""

import json
import random
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

import samples
from given_texts import texts
from shardmill.tokens import normalize
from shardmill.tokens.encoder import choose_engines
from shardmill.tokens.normalize import _arrays
from shardmill.tokens.strings import Strings
from shardmill.tokens.tokenizer import load

pytestmark = pytest.mark.skipif(normalize.why_not() is not None, reason=str(normalize.why_not()))
NFC = normalizers.NFC()
# Letters that compose, marks in and out of order, what is always changed, jamo, and Indic signs that join.
LETTERS = [*"aeou<K ", *"éǖṩ가각ड़क़ầ", "\u09c7", "\u0b92", "\u1025", "\u212b", "\u2126", "豈", "ﬁ", "\U0001d15e"]
MARKS = [
    *"\u0301\u0323\u0327\u0345\u0334\u093c\u094d\u09be\u0bd7\u102e\u1161\u1175\u11a8\u064e\u0651\u0e38\u0e48\u3099"
]


def differing(pieces):
    found = normalize.normalize([piece.encode() for piece in pieces])
    return [piece for piece, made in zip(pieces, found, strict=True) if made.decode() != NFC.normalize_str(piece)]


@pytest.mark.parametrize("form", ["as they are", "NFC", "NFD", "NFKC", "NFKD"])
def test_every_sample_in_every_form(form):
    every = [*samples.SAMPLES.values(), samples.ALL, samples.ALL * 20]
    assert differing(every if form == "as they are" else [unicodedata.normalize(form, text) for text in every]) == []


@given(st.lists(st.sampled_from([*LETTERS, *MARKS, *MARKS, "x", "\n"]), max_size=40).map("".join))
def test_letters_and_marks_in_any_order(text):
    assert differing([text]) == []


@given(texts(max_pieces=20))
def test_made_up_texts(text):
    assert differing([text, unicodedata.normalize("NFD", text)]) == []


def test_every_character_behind_letters_and_before_marks():
    points = [chr(p) for p in [*range(0xD800), *range(0xE000, 0x33000), *range(0xE0000, 0xE0200)]]
    for near in ("a{}", "e\u0301{}", "{}\u0301", "{}\u0323\u0301", "가{}", "\u1100{}", "{}{}"):
        assert differing(["".join(near.format(c, c) + "." for c in points[at : at + 500]) for at in range(0, len(points), 500)]) == []  # fmt: skip


def test_every_pair_that_composes_is_found_and_what_is_near_it():
    _, pairs = _arrays()
    found = [chr(int(pair) >> 32) + chr(int(pair) & 0xFFFFFFFF) for pair in pairs]
    assert len(found) > 900 and differing(found) == []
    assert all(NFC.normalize_str(pair) != pair for pair in found)
    rng = random.Random(1)
    assert differing([rng.choice(found)[0] + rng.choice(found)[1] for _ in range(20_000)]) == []


def test_text_that_is_in_the_form_comes_back_as_it_is():
    pieces = [text.encode() for text in (samples.ENGLISH, "中文字" * 100, "Привет, мир", "한국어", "हिन्दी में", "ที่นี่")]
    assert list(normalize.normalize(pieces)) == pieces
    texts = Strings.of(pieces)
    assert normalize.normalize(texts) is texts


def test_a_version_that_was_not_swept_is_left_to_the_reference(gpt2_json, tmp_path, monkeypatch):
    config = json.loads(Path(gpt2_json).read_text()) | {"normalizer": {"type": "NFC"}}
    # Indented, its digest is its own: once the engine that another test had made of the same file was found.
    (tmp_path / "tokenizer.json").write_text(json.dumps(config, indent=1))
    monkeypatch.setattr(normalize, "_installed", lambda: "tokenizers 99")
    found = choose_engines(load(str(tmp_path)), "auto")
    assert found.ours is None and "not known what tokenizers 99 does in normal form C" in found.note


def test_more_spans_than_are_found_at_once():
    text = "e\u0301 x" * 5000
    assert differing([text, "\u0301" * 70_000, "e" + "\u0323\u0301" * 40_000]) == []


def test_decomposed_text_is_slower_but_no_catastrophe():
    """A thirtieth of the 250 MB/s that English has with Qwen is 8 MB/s."""
    text = unicodedata.normalize(
        "NFD", "Tất cả mọi người sinh ra đều được tự do và bình đẳng. 한국어 문장. " * 4000
    ).encode()
    started = time.thread_time()
    normalize.normalize([text])
    assert len(text) / (time.thread_time() - started) > 2e6  # a busy machine is slower
