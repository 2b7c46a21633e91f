"""I5: whatever the text, the resident memory of the command stays within --max-memory, and the bytes are the same.

Budgets are the smallest that the command itself says would do, and a little more: that is where every reserve counts.
"""

import json
import string
import subprocess
import time

import psutil
import pytest
from peaks import MB, MIB, SHARDMILL, again, documents, mill, mill_within, random_of, smallest, unseen_words, write

PLENTY = 4096
LINES = ("--separator", r"\n")
LETTERS_AND_DIGITS = string.ascii_letters + string.digits
HAN = map(chr, range(0x4E00, 0x9FA6))
NEW_IN_UNICODE_17 = b"\xe0\xa2\x8f"  # U+088F; the engines disagree on it, so the reference must do the text around it


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Each text is made when it is first asked for, and kept."""
    folder = tmp_path_factory.mktemp("texts")

    def text(name, pieces, size):
        file = folder / f"{name}-{size}.txt"
        return file if file.exists() else write(file, pieces(), size)

    return text


def words(texts, size):
    return texts("words", unseen_words, size)


def test_a_budget_that_cannot_work_is_refused_and_the_smallest_is_named(texts, tmp_path):
    refused = mill(words(texts, 60 * MB), tmp_path / "out", 32)
    assert refused.code == 2
    assert "--max-memory 32MiB is too little" in refused.message
    assert "the smallest that works is" in refused.message
    assert not refused.files


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "o200k_base"])
def test_the_smallest_budget_named_works_and_holds_for_words_never_seen(texts, tmp_path, tokenizer):
    text, options = words(texts, 60 * MB), ("--tokenizer", tokenizer, "--workers", "1")
    tight = mill_within(text, tmp_path / "out", smallest(text, tmp_path / "out", *options), *options)
    assert tight.files == mill(text, tmp_path / "out", PLENTY, *options).files


@pytest.mark.parametrize("max_memory", [400, 500, 700])
@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_cache_of_words_never_seen_stays_within_the_budget(texts, tmp_path, workers, max_memory):
    # gigatoken's cache is a hash table: when it is full, one of twice its size is made beside it.
    mill_within(words(texts, 80 * MB), tmp_path / "out", max_memory, "--workers", workers)


def test_four_times_the_input_takes_no_more_memory(texts, tmp_path):
    options = ("--workers", "1")
    less, more = words(texts, 15 * MB), words(texts, 60 * MB)
    budget = smallest(more, tmp_path / "out", *options)
    peaks = [mill_within(text, tmp_path / "out", budget, *options).peak for text in (less, more)]
    assert peaks[1] <= 1.05 * peaks[0]


@pytest.mark.parametrize("alphabet", [LETTERS_AND_DIGITS, tuple(HAN)], ids=["letters and digits", "Chinese"])
def test_one_long_line_without_spaces_stays_within_the_smallest_budget(texts, tmp_path, alphabet):
    text = texts(f"line{len(alphabet)}", lambda: random_of(alphabet), 40 * MB)
    budget = smallest(text, tmp_path / "out")
    assert mill_within(text, tmp_path / "out", budget).files == mill(text, tmp_path / "out", PLENTY).files


@pytest.mark.parametrize("more", [0, 30, 60])
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(lambda: random_of(string.digits), id="digits"),
        pytest.param(lambda: again(b" "), id="spaces"),
        pytest.param(lambda: again(b"\n"), id="newlines"),
        pytest.param(lambda: again("\u0301".encode()), id="accents"),
    ],
)
@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "o200k_base"])
def test_text_without_a_place_to_cut_stays_within_the_budget(texts, tmp_path, request, tokenizer, pieces, more):
    text = texts(f"solid{request.node.callspec.id.split('-')[1]}", pieces, 3 * MB)
    options = ("--tokenizer", tokenizer)
    budget = smallest(text, tmp_path / "out", *options) + more
    mill_within(text, tmp_path / "out", budget, *options)
