"""Train or val is decided by a document's own content, so it stays decided whatever happens around it."""

import numpy as np
import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardmill.documents.pieces import BEGINNING
from shardmill.documents.rules import content_key
from shardmill.job.split import (
    FEW,
    Lowest,
    Splitter,
    border,
    by_lowest,
    by_threshold,
    enough,
    passage_bytes,
)

DOCUMENTS = [f"document number {number}".encode() for number in range(1000)]
documents_and_share = given(
    documents=st.lists(st.binary(min_size=1, max_size=8), max_size=40),
    fraction=st.floats(0.0001, 0.9999),
    seed=st.integers(0, 5),
)


def is_val(splitter, key):
    return bool(splitter.is_val(np.array([key], np.uint64))[0])


def lowest_of(keys):
    """As the first pass finds them: block after block."""
    found = Lowest()
    for start in range(0, len(keys), 7):
        some = keys[start : start + 7]
        found = found.plus(some, len(some), BEGINNING)
    return found


def val_of(documents, fraction, seed=0):
    keys = [content_key(document, seed) for document in documents]
    splitter = by_lowest(lowest_of(keys), fraction) if len(keys) < enough(fraction) else by_threshold(fraction)
    return [document for document, key in zip(documents, keys) if is_val(splitter, key)]


@documents_and_share
def test_order_does_not_matter(documents, fraction, seed):
    val = val_of(documents, fraction, seed)
    assert sorted(val_of(documents[::-1], fraction, seed)) == sorted(val)
    assert sorted(val_of(sorted(documents), fraction, seed)) == sorted(val)


@documents_and_share
def test_duplicates_stay_on_one_side(documents, fraction, seed):
    twice = documents + documents[::2]
    val = val_of(twice, fraction, seed)
    assert all(val.count(document) in (0, twice.count(document)) for document in set(twice))


@documents_and_share
def test_neither_side_is_empty_when_two_documents_differ(documents, fraction, seed):
    val = val_of(documents, fraction, seed)
    if len(set(documents)) >= 2:
        assert 0 < len(val) < len(documents)
    else:
        assert val == []


@settings(max_examples=50)
@given(count=st.integers(2, 300), fraction=st.floats(0.001, 0.5))
def test_a_small_input_gives_exactly_the_lowest_hashes(count, fraction):
    assume(count < enough(fraction))
    documents = DOCUMENTS[:count]
    wanted = min(max(1, int(count * fraction + 0.5)), count - 1)
    keys = [content_key(document, 0) for document in documents]
    lowest = sorted(documents, key=lambda document: content_key(document, 0))[:wanted]
    splitter = by_lowest(lowest_of(keys), fraction)
    assert sorted(document for document, key in zip(documents, keys) if is_val(splitter, key)) == sorted(lowest)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.9])
def test_a_threshold_gives_about_the_share_asked_for(fraction):
    splitter = by_threshold(fraction)
    share = sum(is_val(splitter, content_key(document, 0)) for document in DOCUMENTS) / len(DOCUMENTS)
    assert abs(share - fraction) < 0.05


def test_more_documents_move_none_that_was_judged_by_threshold():
    assert len(DOCUMENTS) > enough(0.1)
    assert set(val_of(DOCUMENTS[:700], 0.1)) <= set(val_of(DOCUMENTS, 0.1))


def test_the_threshold_takes_over_when_enough_would_be_val():
    assert enough(0.0005) == FEW / 0.0005
    assert enough(0) == 0


@pytest.mark.parametrize("fraction", [0.05, 0.5])
def test_the_seed_changes_the_choice(fraction):
    choices = {tuple(val_of(DOCUMENTS, fraction, seed)) for seed in range(10)}
    assert len(choices) == 10


def test_any_seed_is_taken():
    keys = {content_key(b"text", seed) for seed in (0, 1, -1, (1 << 64) - 1, 1 << 63)}
    assert len(keys) == 4, "-1 is 2**64 - 1"


def test_the_key_is_xxh3_of_the_content():
    """Pinned: another hash would move documents between the sides of corpora that exist."""
    assert content_key(b"shardmill", 7) == xxhash.xxh3_64_intdigest(b"shardmill", seed=7)
    assert content_key(b"", 0) == 0x2D06800538D394C2


def test_nothing_is_val_when_nothing_is_asked_for():
    keys = [content_key(document, 0) for document in DOCUMENTS]
    assert not any(is_val(by_lowest(lowest_of(keys), 0), key) for key in keys)
    assert not any(is_val(by_threshold(0), key) for key in keys)


def test_one_document_however_often_is_train():
    assert val_of([b"same"] * 50, 0.5) == []
    assert val_of([b"same"], 0.5) == []
    assert val_of([], 0.5) == []


def test_head_and_tail_are_judged_by_place():
    head, tail = (Splitter(mode=mode, limit=border(mode, 0.1, 1000)) for mode in ("head", "tail"))
    assert [place for place in range(0, 1000, 50) if is_val(head, place)] == [0, 50]
    assert [place for place in range(0, 1000, 50) if is_val(tail, place)] == [900, 950]
    assert border("hash", 0.1, 1000) is None


@given(largest=st.integers(1, 1 << 24), total=st.integers(0, 1 << 45))
def test_passages_are_never_longer_than_the_spec_says(largest, total):
    assert 1 <= passage_bytes(largest, total) <= largest


def test_a_large_input_has_the_passages_of_the_spec_and_a_small_one_smaller():
    assert passage_bytes(64 << 10, 1 << 40) == 64 << 10
    assert passage_bytes(64 << 10, 1 << 20) < 64 << 10
