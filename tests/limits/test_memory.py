"""I5: whatever the text, the resident memory of the command stays within --max-memory, and the bytes are the same.

Most budgets are the smallest that the command itself names, or a little more: there every reserve counts.
"""

import string
import subprocess
import time

import psutil
import pytest
from peaks import MB, SHARDMILL, again, documents, mill, mill_within, random_of, smallest, unseen_words, write

pytestmark = pytest.mark.slow

PLENTY = 4096
LINES = ("--separator", r"\n")
ONE = ("--workers", "1")
SOLID = {
    "digits": lambda: random_of(string.digits),
    "spaces": lambda: again(" "),
    "newlines": lambda: again("\n"),
    "accents": lambda: again("\u0301"),
}


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Makes each text when it is first asked for, and keeps it."""
    folder = tmp_path_factory.mktemp("texts")

    def text(name, pieces, size):
        file = folder / f"{name}-{size}.txt"
        return file if file.exists() else write(file, pieces(), size)

    return text


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


def assert_the_smallest_budget_holds(text, output, *options):
    """It must also change nothing in the result."""
    tight = mill_within(text, output, smallest(text, output, *options), *options)
    assert tight.files == mill_within(text, output, PLENTY, *options).files


# ---- the budget itself


def test_a_budget_that_cannot_work_is_refused_and_the_smallest_is_named(texts, output):
    refused = mill(texts("words", unseen_words, MB), output, 32)
    assert refused.code == 2
    assert "--max-memory 32MiB is too little" in refused.message
    assert "the smallest that works is" in refused.message
    assert not refused.files


def test_a_little_less_than_the_smallest_budget_is_refused_too(texts, output):
    text = texts("words", unseen_words, MB)
    assert mill(text, output, smallest(text, output) - 8).code == 2


def test_the_mill_is_one_process_so_that_its_peak_is_that_of_the_whole_tree(texts, output):
    command = [SHARDMILL, "prepare", str(texts("words", unseen_words, 10 * MB)), "-o", str(output), "-q"]
    with subprocess.Popen([*command, "--workers", "3"]) as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                assert not process.children()
            except psutil.NoSuchProcess:
                break
            time.sleep(0.02)
    assert running.returncode == 0


# ---- words that no cache has seen


def test_the_smallest_budget_holds_for_words_never_seen(texts, output):
    assert_the_smallest_budget_holds(texts("words", unseen_words, 60 * MB), output, *ONE)


@pytest.mark.parametrize("tokenizer", ["cl100k_base", "o200k_base"])
def test_the_smallest_budget_holds_for_every_vocabulary(texts, output, tokenizer):
    assert_the_smallest_budget_holds(texts("words", unseen_words, 10 * MB), output, "--tokenizer", tokenizer, *ONE)


def test_four_times_the_input_takes_no_more_memory(texts, output):
    less, more = (texts("words", unseen_words, size) for size in (20 * MB, 80 * MB))
    budget = smallest(more, output, *ONE)
    assert mill_within(more, output, budget, *ONE).peak <= 1.05 * mill_within(less, output, budget, *ONE).peak


# ---- text that is hard to cut


@pytest.mark.parametrize(
    "alphabet",
    [
        pytest.param(string.ascii_letters + string.digits, id="letters and digits"),
        pytest.param("".join(map(chr, range(0x4E00, 0x9FA6))), id="Chinese"),
    ],
)
def test_one_long_line_without_spaces_stays_within_the_smallest_budget(texts, output, alphabet):
    text = texts(f"line{len(alphabet)}", lambda: random_of(alphabet), 40 * MB if alphabet.isascii() else 20 * MB)
    assert_the_smallest_budget_holds(text, output, *ONE)


@pytest.mark.parametrize(
    ("solid", "options"),
    [
        ("digits", ("--tokenizer", "gpt2")),
        ("spaces", ("--tokenizer", "gpt2")),
        ("newlines", ("--tokenizer", "gpt2")),
        ("accents", ("--tokenizer", "gpt2")),
        ("accents", ("--tokenizer", "cl100k_base")),
        ("accents", ("--tokenizer", "o200k_base")),
        ("spaces", ("--tokenizer", "o200k_base")),  # one MiB of spaces is too much for tiktoken's pattern
        ("digits", ("--engine", "reference")),
        ("accents", ("--engine", "reference")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_text_without_a_place_to_cut_stays_within_the_smallest_budget(texts, output, solid, options):
    text = texts(solid, SOLID[solid], 2 * MB)
    mill_within(text, output, smallest(text, output, *options), *options)


@pytest.mark.parametrize("more", [30, 60])
def test_text_without_a_place_to_cut_stays_within_a_budget_for_larger_blocks(texts, output, more):
    text = texts("digits", SOLID["digits"], 2 * MB)
    mill_within(text, output, smallest(text, output) + more)


@pytest.mark.parametrize("solid", ["digits", "accents"])
def test_a_tokenizer_json_stays_within_the_smallest_budget(texts, output, gpt2_json, solid):
    text = texts(solid, SOLID[solid], 2 * MB)
    mill_within(text, output, smallest(text, output, "--tokenizer", gpt2_json), "--tokenizer", gpt2_json)


def test_the_reference_alone_stays_within_the_smallest_budget(texts, output):
    assert_the_smallest_budget_holds(texts("words", unseen_words, 10 * MB), output, "--engine", "reference")


def test_replacing_bytes_that_are_not_utf8_stays_within_the_smallest_budget(texts, output):
    options = ("--on-error", "replace")
    text = texts("broken", lambda: again(b"\xff"), 3 * MB)
    mill_within(text, output, smallest(text, output, *options), *options)


# ---- many documents


def test_many_one_line_documents_stay_within_the_smallest_budget(texts, output):
    assert_the_smallest_budget_holds(texts("documents", documents, 300_000 * 36), output, *LINES)


@pytest.mark.parametrize(("document", "more"), [("a\n", 0), ("a\n", 25), ("a\n", 50), ("\n", 50)])
def test_documents_of_next_to_nothing_stay_within_the_budget(texts, output, document, more):
    # A block of them is half a million Python objects of each kind.
    text = texts(f"tiny{len(document)}", lambda: again(document), 3 * MB)
    budget = smallest(text, output, *LINES, *ONE) + more
    mill_within(text, output, budget, *LINES, *ONE)


def test_a_tiny_val_fraction_does_not_keep_a_key_of_every_document(texts, output):
    # Below 40 expected val documents a first pass looks for the lowest hashes.
    options = (*LINES, "--val-fraction", "0.00001")
    text = texts("documents", documents, 1_000_000 * 36)
    mill_within(text, output, smallest(text, output, *options), *options)


def test_many_small_files_stay_within_the_smallest_budget(tmp_path, output):
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number}.txt").write_text(f"file {number} says nothing else\n")
    assert_the_smallest_budget_holds(folder, output)
