"""The guard knows every code point on which the engines differ, so the fast one is never used there (I7)."""

import json
import random
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import reference
import samples
from given_texts import load_once
from shardmill.tokens import gigatoken, guard
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.gigatoken import Gigatoken
from shardmill.tokens.guard import Guard, find_disagreements, load_guard, table_key, to_ranges
from shardmill.tokens.reference import load_reference

MARGIN = 40


@pytest.fixture(scope="module")
def r50k():
    tokenizer = load_once("r50k_base")
    return tokenizer, load_reference(tokenizer), Gigatoken(tokenizer)


@lru_cache(maxsize=8)
def engines_of(encoding, *, guarded=True):
    engines = choose_engines(load_once(encoding), "gigatoken", 0, Path("not used"))
    return engines if guarded else replace(engines, guard=Guard(frozenset()))


@lru_cache(maxsize=8)
def encoder_of(encoding, *, guarded):
    return Encoder(engines_of(encoding, guarded=guarded))


@pytest.fixture
def engines(encoding):
    return engines_of(encoding)


def encode(encoding, text, *, guarded=True):
    """What the mill does with one piece of text."""
    data = text.encode()
    ids, counts = encoder_of(encoding, guarded=guarded).encode([data])
    assert counts.tolist() == [len(ids)]
    return ids.tolist()


@pytest.mark.slow
def test_the_shipped_table_is_what_a_fresh_sweep_finds(r50k):
    """Every code point of every plane, in every context, on both engines: some ten seconds."""
    tokenizer, truth, fast = r50k
    shipped = json.loads((resources.files("shardmill.tokens") / guard.SHIPPED).read_text())
    assert shipped["format"] == guard.TABLE_FORMAT
    assert (
        to_ranges(find_disagreements(fast, truth))
        == shipped["tables"][table_key(gigatoken.version(), tokenizer, truth)]
    )


def test_the_shipped_tables_have_no_gap_and_no_surplus_at_their_borders(engines):
    """For all encodings: each code point near a border of the table, tried by itself."""
    fast = Gigatoken(engines.tokenizer)
    ranges = to_ranges(engines.guard.code_points)
    near = {
        point for first, last in ranges for edge in (first, last) for point in range(edge - MARGIN, edge + MARGIN + 1)
    }
    differ = {
        point for point in near if not 0xD800 <= point < 0xE000 and not guard._agree(fast, engines.reference, point)
    }
    assert differ == near & engines.guard.code_points


def test_every_encoding_has_a_table_for_the_pinned_versions(tokenizer, tmp_path):
    truth = load_reference(tokenizer)
    load_guard(table_key(gigatoken.version(), tokenizer, truth), pytest.fail, truth, tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing had to be computed"


def test_guarded_characters_give_the_tokens_of_the_reference(encoding, engines):
    assert encode(encoding, samples.GUARDED) == reference.encode(encoding, samples.GUARDED)
    rng = random.Random(11)
    points = sorted(engines.guard.code_points)
    words = samples.ALL.split(" ")
    for _ in range(150):
        text = "".join(
            rng.choice([chr(rng.choice(points)), rng.choice(words), " ", "\n", "'s", "A"]) for _ in range(30)
        )
        assert encode(encoding, text) == reference.encode(encoding, text)


def test_every_guarded_character_gives_the_tokens_of_the_reference(encoding, engines):
    text = " ".join(f"a{chr(point)}b {chr(point)}'s" for point in sorted(engines.guard.code_points))
    assert encode(encoding, text) == reference.encode(encoding, text)


def test_without_the_guard_the_tokens_are_wrong(encoding):
    assert encode(encoding, samples.GUARDED, guarded=False) != reference.encode(encoding, samples.GUARDED)


def test_only_the_span_around_a_guarded_character_goes_to_the_reference(engines):
    """Not the whole document, which may be a terabyte."""
    text = (samples.ENGLISH * 40 + "\U0001e6c0" + samples.ENGLISH * 40).encode()
    spans = Encoder(engines)._guarded_spans(text)
    at = text.index("\U0001e6c0".encode())
    assert len(spans) == 1
    assert spans[0][0] <= at < spans[0][1]
    assert spans[0][1] - spans[0][0] < 100


def test_texts_without_guarded_characters_need_no_guard(encoding, engines):
    for name, text in samples.SAMPLES.items():
        if not engines.guard.find(text.encode()):
            assert encode(encoding, text, guarded=False) == reference.encode(encoding, text), name


def test_the_guard_finds_exactly_its_characters():
    rng = random.Random(3)
    guarded = Guard(frozenset({0x61C, 0x88F, 0xA7CE, 0x1E6C0, *range(0x10940, 0x10950), 0x323B0}))
    near = [chr(point + step) for point in sorted(guarded.code_points) for step in (-64, -1, 0, 1, 64)]
    for size in (0, 10, 3000):  # the last is more than the guard looks at one by one
        text = "".join(rng.choice([*near, "a", "é", "中", "😀"]) for _ in range(size))
        offsets = np.cumsum([0, *(len(char.encode()) for char in text)]).tolist()
        assert guarded.find(text.encode()) == [
            at for at, char in zip(offsets, text) if ord(char) in guarded.code_points
        ]


def test_an_empty_guard_finds_nothing():
    assert Guard(frozenset()).find(samples.ALL.encode()) == []


def test_ranges_hold_the_points_and_no_others():
    points = frozenset({1, 2, 3, 7, 9, 10})
    assert to_ranges(points) == [[1, 3], [7, 7], [9, 10]]
    assert guard._from_ranges(to_ranges(points)) == points


def test_a_table_for_other_versions_is_computed_once_and_kept(r50k, tmp_path, monkeypatch):
    """As after an upgrade: the key is another, so the shipped table is not used."""
    tokenizer, truth, fast = r50k
    key = table_key("gigatoken 99", tokenizer, truth)
    swept = []
    monkeypatch.setattr(guard, "find_disagreements", lambda *_: swept.append(1) or frozenset({0x1E6C0}))
    for _ in range(2):
        assert load_guard(key, lambda: fast, truth, tmp_path).code_points == {0x1E6C0}
    assert len(swept) == 1
    (file,) = tmp_path.iterdir()
    file.write_text("damaged")
    assert load_guard(key, lambda: fast, truth, tmp_path).code_points == {0x1E6C0}
    assert len(swept) == 2
