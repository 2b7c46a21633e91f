"""Our own engine gives the reference's tokens for every text, on every path through it, in memory of a fixed size."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patterns
import samples
import tiny
from given_texts import load_once, texts
from shardmill.errors import ShardmillError, UsageError
from shardmill.system import compiled, machine
from shardmill.tokens import classes, native, sweep
from shardmill.tokens import encoder as encoders
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.model import VERSION
from shardmill.tokens.native import Native
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import read_ranks

NAMES = ("r50k_base", "o200k_base")
# What the pattern tells apart, at the borders where it does.
BORDERS = "it's we'll 'S 'tis y'all'd've '' ' 'x  two   three\n\nnext \t\r\n 12 345a6 é'é ñ中文。字 \xa0\xa0x \u3000\u3000 ’s 😀😀 👍🏽!\0\0 ...'re"


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module", params=native.cpu_paths())
def engine(request, name):
    return Native(load_once(name).model, path=request.param)


@pytest.fixture(scope="module")
def truth(name):
    return load_reference(load_once(name))


def differing(engine, truth, pieces):
    """The pieces whose ids are not the reference's, encoded in one call."""
    data = [piece.encode() for piece in pieces]
    ids, counts = engine.encode(data)
    assert len(counts) == len(pieces) and counts.sum() == len(ids)
    parts = np.split(ids, np.cumsum(counts)[:-1]) if pieces else []
    return [piece for piece, part in zip(pieces, parts) if part.tolist() != truth.encode(piece.encode()).tolist()]


def unseen_words(seed, count):
    letters = np.random.default_rng(seed).integers(ord("a"), ord("z") + 1, (count, 8), np.uint8)
    letters[:, 7] = ord(" ")
    return letters.tobytes()


def test_every_sample_gives_the_tokens_of_the_reference(engine, truth):
    assert differing(engine, truth, [*samples.SAMPLES.values(), samples.ALL, samples.ALL * 20]) == []


def test_a_text_gives_the_same_tokens_wherever_it_begins(engine, truth):
    """Blocks of 64 bytes, and windows of 16 KiB."""
    for lead in ("x", " ", "é"):
        assert differing(engine, truth, [lead * shift + BORDERS for shift in range(131)]) == []
    for size in (16384, 2 * 16384):
        near = [f"{'word ' * (size // 5)}{'!' * shift}{BORDERS}" for shift in range(-130 % 7, 131, 3)]
        assert differing(engine, truth, near) == []
        assert differing(engine, truth, [("w" * 9 + " ") * (size // 10) + BORDERS[:end] for end in range(90)]) == []


@settings(max_examples=60)
@given(text=texts(max_pieces=40))
def test_made_up_texts_give_the_tokens_of_the_reference(engine, truth, text):
    assert differing(engine, truth, [text]) == []


@settings(max_examples=60)
@given(pieces=st.lists(st.lists(st.sampled_from(samples.NASTY), max_size=80).map("".join), max_size=5))
def test_nasty_characters_give_the_tokens_of_the_reference(engine, truth, pieces):
    assert differing(engine, truth, pieces) == []


def test_every_character_gives_the_tokens_of_the_reference(engine, truth):
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 61)]
    pieces = [
        "".join(f"a{chr(p)}{chr(p)}1 {chr(p)}'s  {chr(p)}\n{chr(p)}'LL" for p in points[at : at + 512])
        for at in range(0, len(points), 512)
    ]
    assert differing(engine, truth, pieces) == []


def test_every_token_of_the_vocabulary_is_one_token(engine, name):
    tokens = read_ranks(name)
    whole = [token for token in tokens if re.fullmatch(rb" ?[a-zA-Z]+| ?[0-9]{1,3}", token)]
    ids, counts = engine.encode(whole)
    assert ids.tolist() == [tokens[token] for token in whole]
    assert set(counts.tolist()) == {1}


def test_many_small_and_empty_pieces_are_encoded_each_by_itself(engine, truth):
    rng = random.Random(5)
    pieces = ["".join(rng.choices([*BORDERS, ""], k=rng.randrange(4))) for _ in range(20_000)]
    assert "" in pieces
    assert differing(engine, truth, pieces) == []
    assert differing(engine, truth, []) == []


HUGE = {
    "letter": "a",
    "digit": "1",
    "space": " ",
    "newline": "\n",
    "accent": "é",
    "sign": "=",
    "wide space": "\u3000",
    "nul": "\0",
    "Chinese": "中文",
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_word_without_end_gives_the_tokens_of_the_reference_in_time(engine, truth, kind):
    """Four times the word may not take sixteen times as long."""
    short, long = (HUGE[kind] * (size // len(HUGE[kind].encode())) for size in (1 << 15, 1 << 17))
    assert differing(engine, truth, [short, short + "x", f"x {short}'s", f"{short} {short}"]) == []
    seconds = []
    for text in (short, long):
        started = time.thread_time()
        for _ in range(3):
            engine.encode([text.encode()])
        seconds.append(time.thread_time() - started)
    assert seconds[1] < 10 * seconds[0] + 0.05


def test_long_words_of_any_kind_give_the_tokens_of_the_reference(engine, truth):
    rng = random.Random(7)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyz",
        "aäoöuüß",
        "0123456789",
        "-=_*#",
        "ไทยกขค",
        "😀👍🏽🇩🇪",
        "한국어",
        "\n\t ",
        "中文字典",
    ]
    pieces = [
        "".join(rng.choices(rng.choice(alphabets), k=rng.choice([15, 16, 17, 40, 48, 49, 70, 300, 2500])))
        for _ in range(400)
    ]
    assert differing(engine, truth, pieces * 2) == []


def test_threads_share_one_engine_while_its_tables_fill_and_are_emptied(name="r50k_base"):
    engine, alone = (Native(load_once(name).model) for _ in range(2))
    parts = [unseen_words(seed, 130_000) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: engine.encode([part])[0], parts))
    for part, ids in zip(parts, found):
        assert np.array_equal(ids, alone.encode([part])[0])
    begin = parts[-1][:20_000].rpartition(b" ")[0]
    expected = load_reference(load_once(name)).encode(begin)
    assert np.array_equal(found[-1][: len(expected)], expected)


def test_memory_is_fixed_whatever_is_encoded(name="o200k_base"):
    engine = Native(load_once(name).model)
    assert engine.memory < 64 << 20
    held, text = engine.memory, unseen_words(1, 200_000)
    engine.encode([text])
    grown = []
    for seed in range(2, 8):
        before = machine.rss()
        engine.encode([unseen_words(seed, 200_000)])
        grown.append(machine.rss() - before)
    assert engine.memory == held
    assert min(grown) < 1 << 20  # other threads of this process may take memory during some of them


def test_bytes_that_are_not_text_are_safe_and_come_back(engine, name):
    """The mill never gives such bytes; the engine must not fall over them, nor learn wrong words from them."""
    tokens = {rank: token for token, rank in read_ranks(name).items()}
    rng = random.Random(3)
    for size in [*range(70), 5_000, 40_000]:
        data = bytes(rng.choice([rng.randrange(256), 0xFF, 0xE4, 0x20]) for _ in range(size))
        ids, _ = engine.encode([data])
        assert b"".join(tokens[rank] for rank in ids.tolist()).startswith(data[:1])
    assert engine.encode([b"a\xff", b"a"])[1].tolist()[1] == 1


@pytest.mark.slow
def test_the_table_of_classes_is_what_the_installed_references_say():
    """Letters, asked of each; `make classes` asks about all classes."""
    letters = sweep.letters_of_tiktoken(r"\p{L}"), sweep.letters_of_tokenizers(r"\p{L}")
    for reference, found in zip(("tiktoken", "huggingface"), letters, strict=True):
        table = classes.find(reference)
        if table is None:
            pytest.skip(f"{classes.installed(reference)} was not swept: the engine does not run")
        assert np.flatnonzero(np.isin(table, (1, 2, 3))).tolist() == sorted(map(ord, found))


def test_a_reference_that_was_not_swept_is_named(monkeypatch):
    assert native.why_not("huggingface") is None
    monkeypatch.setattr(classes, "installed", lambda _: "tokenizers 0.99.0")
    assert "does not know the character classes of tokenizers 0.99.0" in native.why_not("huggingface")


def test_the_library_and_its_door_agree_on_the_version():
    source = (Path(native.__file__).parent / "native" / "engine.c").read_text()
    assert int(re.search(r"engine_version\(void\)\n{\n    return (\d+);", source)[1]) == VERSION


@pytest.mark.parametrize("family", patterns.FAMILIES)
def test_words_and_ids_of_random_texts_are_those_of_the_library(family):
    """On both kernels and one character at a time. Ids alone would hide wrong words."""
    differs, rng = tiny.trial(family), random.Random(family)
    for _ in range(60):
        text = patterns.random_text(rng)
        assert differs(text) is None, text


@pytest.mark.parametrize("family", patterns.FAMILIES)
def test_every_kind_of_character_gives_the_words_of_the_library(family):
    """The first and last of each run of code points with one class; tools/fuzz_engine.py --every tries all of them."""
    table = classes.find("huggingface", digits=True)
    edges = np.flatnonzero(np.diff(table))
    points = [
        int(p) for p in np.union1d(edges, edges + 1)[:: 5 if family == "gpt2" else 12] if not 0xD800 <= p < 0xE000
    ]
    differs = tiny.trial(family)
    for at in range(0, len(points), 256):
        assert differs(patterns.contexts(list(map(chr, points[at : at + 256])))) is None, hex(points[at])


ALPHABETS = ("abc", "ab é", "aé中文", "a1'.", "\U0001f600\u200d\ufe0f")


def some_words(rng, alphabet, vocabulary):
    """Made of the alphabet, and tokens: one that no merge gives may still be a whole word."""
    tokens = [token.decode(errors="ignore") for token in rng.sample(sorted(vocabulary), 20)]
    words = ["".join(rng.choices(alphabet, k=rng.choice([1, 3, 8, 20, 60]))) for _ in range(11)]
    words.append("".join(rng.choices(alphabet, k=rng.choice([60, 3000]))))  # longer than what is merged in one go
    return " ".join(rng.sample([*tokens, *words], 32))


@pytest.mark.parametrize("whole_words", [False, True])
def test_any_list_of_merges_gives_the_ids_of_the_library(whole_words):
    """In any order, with any ids, several for one token, some that never happen, tokens that none gives, bytes missing."""
    rng = random.Random(11)
    for _ in range(15):
        alphabet = rng.choice(ALPHABETS)
        vocabulary, merges = tiny.random_merges(rng, alphabet)
        merges += rng.sample(merges, 2)
        if rng.random() < 0.4:
            lost = bytes([rng.choice(alphabet.encode())])
            vocabulary = {token: number for token, number in vocabulary.items() if token != lost}
            merges = [merge for merge in merges if lost not in merge]
        truth = tiny.reference("llama3", vocabulary, merges, whole_words=whole_words)
        engine = Native(
            tiny.model("llama3", vocabulary, merges, whole_words=whole_words), path=rng.choice([*native.cpu_paths()])
        )
        for _ in range(8):
            text = some_words(rng, alphabet, vocabulary)
            assert engine.encode([text.encode()])[0].tolist() == truth.encode(text).ids, (text, merges)


def test_long_words_are_merged_as_if_in_one_go():
    """Window by window, whose ends must not show: with tokens of up to a thousand letters, windows often do not fit."""
    for seed in range(30):
        rng = random.Random(seed)
        alphabet = rng.choice(["a", "ab", "abc", "abcd"])
        vocabulary, merges = tiny.random_merges(rng, alphabet)
        runs = [(b"a" * 2**i, b"a" * 2**i) for i in range(rng.randrange(11))]
        merges = rng.sample([*merges, *runs], len(merges) + len(runs))
        tokens = sorted({*vocabulary, *(part for pair in runs for part in (*pair, b"".join(pair)))})
        vocabulary = {token: number for number, token in enumerate(tokens)}
        truth, engine = tiny.reference("gpt2", vocabulary, merges), Native(tiny.model("gpt2", vocabulary, merges))
        for size in (64, 65, rng.randrange(50, 3000), 6000):
            some = "".join(rng.choices(alphabet, k=size))
            for text in (some, "".join(letter * rng.randrange(1, 200) for letter in some[: size // 50])):
                assert engine.encode([text.encode()])[0].tolist() == truth.encode(text).ids, (seed, text)


def test_threads_that_empty_the_tables_give_the_ids_of_the_library():
    """With tables that are full after a few words, each call empties them, while others wait."""
    engine, truth = Native(tiny.model("qwen2", *tiny.trained()), small=True), tiny.reference("qwen2", *tiny.trained())

    def work(seed):
        rng = random.Random(seed)
        texts = [patterns.random_text(rng) + " ".join(rng.choices(samples.ALL.split(), k=200)) for _ in range(12)]
        return [text for text in texts if engine.encode([text.encode()])[0].tolist() != truth.encode(text).ids]

    with ThreadPoolExecutor(8) as pool:
        assert all(wrong == [] for wrong in pool.map(work, range(8)))


@pytest.mark.parametrize("path", native.cpu_paths())
def test_words_of_a_script_without_spaces_are_parted_only_where_no_merge_crosses(path):
    """Thai has few pairs of letters that no token holds: what is before and behind them tells, and parts of letters."""
    rng = random.Random(13)
    letters = [chr(0x0E01 + i).encode() for i in range(5)]
    for part in (b"", letters[0][:2]) * 4:
        merges = [(letters[0][:1], letters[0][1:2]), *((letter[:2], letter[2:]) for letter in letters)]
        common = list(letters)
        for _ in range(rng.choice([30, 60])):
            left, right = rng.choice(common), rng.choice([*common, part or common[0]])
            if left + right not in common and len(left + right) <= 12:
                merges.append((left, right))
                common.append(left + right)
        tokens = [*(bytes([byte]) for byte in range(256)), *(left + right for left, right in merges)]
        vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
        truth = tiny.reference("llama3", vocabulary, merges)
        engine = Native(tiny.model("llama3", vocabulary, merges), path=path)
        for size in (5, 12, 30, 100, 3000):
            for _ in range(20 if size < 3000 else 2):
                text = b"".join(rng.choices(letters, k=size)).decode()
                assert engine.encode([text.encode()])[0].tolist() == truth.encode(text).ids, (text, merges)


def test_without_a_list_of_merges_any_two_parts_of_a_token_merge():
    import tiktoken

    rng = random.Random(12)
    for _ in range(15):
        alphabet = rng.choice(ALPHABETS)
        tokens = list(tiny.random_merges(rng, alphabet)[0])
        ranks = dict(zip(tokens, rng.sample(range(2 * len(tokens)), len(tokens)), strict=True))
        pattern = "|".join(patterns.PATTERNS["qwen2"])
        truth = tiktoken.Encoding("made up", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        engine = Native(tiny.model("qwen2", ranks, None, whole_words=True))
        for _ in range(8):
            text = some_words(rng, alphabet, ranks)
            assert engine.encode([text.encode()])[0].tolist() == truth.encode_ordinary(text), (text, ranks)


def test_a_merge_of_what_is_no_token_is_refused():
    vocabulary = {bytes([byte]): byte for byte in range(256)}
    with pytest.raises(ShardmillError, match="gives a token that is not in the vocabulary"):
        Native(tiny.model("gpt2", vocabulary, [(b"a", b"b")]))


def test_tokens_that_take_too_long_to_merge_are_refused():
    """Merging a token takes the square of its length."""
    vocabulary = {bytes([byte]): byte for byte in range(256)} | {b"a" * n: 255 + n for n in range(2, 4000)}
    with pytest.raises(ShardmillError, match="tokens too long"):
        Native(tiny.model("gpt2", vocabulary, None))


def test_it_is_chosen_where_it_can_run():
    engines = choose_engines(load_once("r50k_base"), "auto")
    assert engines.name == native.version() and engines.note is None
    ids, counts = Encoder(engines).encode([b"hello world"], [True])
    assert (ids.dtype, ids.tolist(), counts.tolist()) == (np.uint16, [31373, 995], [2])


@pytest.fixture
def nothing_kept(monkeypatch):
    """An engine is made anew, not taken from another test."""
    monkeypatch.setattr(encoders, "_make", encoders._make.__wrapped__)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("engine", ["auto", "native"])
def test_without_its_library_nothing_runs_slowly_instead(monkeypatch, engine):
    monkeypatch.setattr(native, "_library", lambda: compiled.load("tokens/native/none.so", 0))
    with pytest.raises(ShardmillError, match=r"native/none.so: is missing; run `make native`"):
        choose_engines(load_once("r50k_base"), engine)


@pytest.mark.usefixtures("nothing_kept")
def test_a_version_of_the_reference_that_was_not_swept_runs_on_the_reference(monkeypatch):
    monkeypatch.setattr(classes, "installed", lambda _: "tiktoken 99")
    found = choose_engines(load_once("r50k_base"), "auto")
    assert found.ours is None and "does not know the character classes of tiktoken 99" in found.note
    with pytest.raises(UsageError, match=r"--engine native: .*character classes.*use --engine auto"):
        choose_engines(load_once("r50k_base"), "native")
