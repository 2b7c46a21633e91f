"""Cuts promises: a text cut at any place it names gives the tokens of the whole (I7)."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import pytest
import tiktoken
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import samples
from given_texts import load_once, texts
from shardmill.tokens.cuts import CONTEXT_BYTES, Cuts, _kinds
from shardmill.tokens.tokenizer import ENCODINGS, read_ranks

SMALL_ALPHABET = ("a", "B", "'", "s", " ", "\n", "/", "中", "!", "1", "\u0301", "\u3000")
LETTERS = ("a", "B", "é", "É", "中", "文", "ʰ", "\u0301", "'", "s", "。", "1")
PROSE = ["english", "chinese", "japanese", "korean", "hindi", "arabic", "russian", "german", "python", "c"]


@dataclass
class Subject:
    """A tokenizer, and the places where it may be cut."""

    cuts: Cuts
    encode: Callable[[str], list[int]]


def real(encoding):
    return Subject(load_once(encoding).cuts, partial(reference.encode, encoding))


@lru_cache(maxsize=8)
def strict(encoding):
    """The pattern of an encoding with a vocabulary of nearly all pairs of bytes: a pretoken that begins elsewhere shows.

    Only where a character beyond ASCII follows another there is no pair, so there are many places to cut.
    """
    pairs = (bytes([a, b]) for a in reversed(range(256)) for b in range(256) if not (0x80 <= a < 0xC0 <= b))
    ranks = {token: rank for rank, token in enumerate([*(bytes([a]) for a in range(256)), *pairs])}
    known = ENCODINGS[encoding]
    encoder = tiktoken.Encoding("strict", pat_str=known.pattern, mergeable_ranks=ranks, special_tokens={})
    return Subject(Cuts(known.family, ranks), encoder.encode_ordinary)


def exact(cuts, data, low=0, high=None):
    """The cuts that the rules find in a text that begins at its first byte."""
    return cuts._exact(data, low, len(data) if high is None else high, 0).tolist()


def cuts_of(cuts, data):
    """Every cut that Cuts names in a whole text, by whichever of its doors."""
    named = set(exact(cuts, data))
    named |= {cut for high in range(2, len(data) + 1, 5) if (cut := cuts.last(data, 0, high))}
    named |= {cut for low in range(0, len(data), 5) if (cut := cuts.first(data, low, len(data)))}
    named |= {at for at in range(1, len(data)) if data[at - 1] == 0x0A and cuts.is_line_cut(data, at)}
    return sorted(named)


def wrong_cuts(subject, text):
    """The cuts named for this text that change its tokens, cut one at a time; [-1] if only all at once do."""
    data, whole = text.encode(), subject.encode(text)
    named = cuts_of(subject.cuts, data)
    wrong = [cut for cut in named if pieces(subject, data, [cut]) != whole]
    return wrong or ([-1] if pieces(subject, data, named) != whole else [])


def pieces(subject, data, cuts):
    borders = zip([0, *cuts], [*cuts, len(data)])
    return [token for a, b in borders for token in subject.encode(data[a:b].decode())]


@pytest.fixture(params=[real, strict])
def subject(request, encoding):
    return request.param(encoding)


@settings(max_examples=60)
@given(text=texts(max_pieces=12))
def test_a_cut_changes_no_token(subject, text):
    assert wrong_cuts(subject, text) == []


@settings(max_examples=100)
@given(text=st.lists(st.sampled_from(samples.NASTY), max_size=24).map("".join))
def test_a_cut_among_nasty_characters_changes_no_token(subject, text):
    assert wrong_cuts(subject, text) == []


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_a_cut_in_any_script_changes_no_token(subject, name):
    assert wrong_cuts(subject, samples.SAMPLES[name]) == []


@settings(max_examples=60)
@given(text=texts(max_pieces=12), size=st.integers(1, 40), forward=st.booleans())
def test_going_on_from_cut_to_cut_changes_no_token(subject, text, size, forward):
    """As the mill does it: each cut is looked for behind the one before, with the text before that in view."""
    data, taken = text.encode(), [0]
    while taken[-1] < len(data):
        at = taken[-1]
        if forward:
            cut = subject.cuts.first(data, at + size, len(data), at)
        else:
            found = (subject.cuts.last(data, at, high) for high in range(at + size, len(data) + 1, size))
            cut = next((cut for cut in found if cut is not None), None)
        taken.append(len(data) if cut is None else cut)
    assert pieces(subject, data, taken[1:-1]) == subject.encode(text)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alphabet", [SMALL_ALPHABET, LETTERS], ids=["small_alphabet", "letters"])
def test_a_cut_in_any_short_text_changes_no_token(encoding, alphabet, step):
    """Texts of up to five characters, from their start to their end; every one of two, or of three where it may take time."""
    subject = strict(encoding)
    steps = [(1, 1), (2, 1), (3, step), (4, 7 * step), (5, 197 * step)]
    drawn = [(itertools.product(alphabet, repeat=size), each) for size, each in steps]
    wrong, checked = [], 0
    for text in ("".join(chars) for product, step in drawn for chars in itertools.islice(product, 0, None, step)):
        data = text.encode()
        named = set(exact(subject.cuts, data))
        named |= {subject.cuts.last(data, 0, len(data)), subject.cuts.first(data, 0, len(data))} - {None}
        checked += len(named)
        wrong += [(text, cut) for cut in named if pieces(subject, data, [cut]) != subject.encode(text)]
    assert wrong == []
    assert checked > 300 / step


@pytest.mark.parametrize("step", [31, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alphabet", [SMALL_ALPHABET, LETTERS], ids=["small_alphabet", "letters"])
def test_a_cut_in_any_five_characters_inside_a_text_changes_no_token(encoding, alphabet, step):
    """One in so many of them all, each between two words; cut at the first place of each, then at the second, …"""
    subject = strict(encoding)
    fives = itertools.islice(itertools.product(alphabet, repeat=5), 0, None, step)
    words = ["q" + "".join(five) + " q" for five in fives]
    data = "".join(words).encode()
    starts = np.cumsum([0, *(len(word.encode()) for word in words)])
    whole = subject.encode(data.decode())
    named = np.array(exact(subject.cuts, data))
    place = named - starts[np.searchsorted(starts, named, side="right") - 1]
    assert len(named) > 300_000 / step
    for at in np.unique(place):
        assert pieces(subject, data, named[place == at].tolist()) == whole, f"{at} bytes into one of the words"


@pytest.mark.parametrize("rule", ["after any newline", "before any space"])
def test_the_check_finds_a_rule_that_is_not_exact(encoding, rule, monkeypatch):
    """The simple rules that most scripts use; the same check that passes above must fail for them."""

    def simple(_cuts, data, start, end, *_):
        newline = [at for at in range(max(start, 1), end) if data[at - 1 : at] == b"\n"]
        space = [at for at in range(max(start, 1), end) if data[at : at + 1] == b" "]
        return np.array(newline if rule == "after any newline" else space, np.int64)

    monkeypatch.setattr(Cuts, "_exact", simple)
    assert wrong_cuts(strict(encoding), samples.WHITESPACE)
    assert wrong_cuts(real(encoding), samples.WHITESPACE)


def test_every_condition_of_the_rules_is_needed(monkeypatch):
    """Each rule without its condition is found out: none of them is there for show."""
    with monkeypatch.context() as patch:
        patch.setattr(Cuts, "_is_space_cut", lambda _, data, at: 0 < at < len(data) - 1)
        assert wrong_cuts(real("cl100k_base"), samples.WHITESPACE)
    with monkeypatch.context() as patch:
        cuts = load_once("o200k_base").cuts
        patch.setattr(cuts, "adjacent", np.zeros_like(cuts.adjacent))
        assert wrong_cuts(real("o200k_base"), samples.CHINESE_WITHOUT_PUNCTUATION)
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.tokens.cuts._cased_alike", lambda kind, *_: np.ones(len(kind), np.bool_))
        assert wrong_cuts(strict("o200k_base"), "a中文Bc")
    assert wrong_cuts(strict("o200k_base"), "a中文Bc") == []


def test_every_token_is_what_merging_makes_of_its_bytes(encoding):
    """The word rule needs it: half a word that is a token by itself must not be merged otherwise inside the word."""
    ranks = read_ranks(encoding)
    some = [token for token in ranks if 2 < len(token) < 24][:: len(ranks) // 50_000]
    assert [token for token in some if merged(token, ranks) != [token]] == []


def merged(token, ranks):
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        rank, i = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        if rank == len(ranks):
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


@pytest.mark.parametrize("name", PROSE)
def test_every_kind_of_prose_has_many_places_to_cut(tokenizer, name):
    data = samples.SAMPLES[name].encode()
    places = [0, *exact(tokenizer.cuts, data), len(data)]
    assert max(b - a for a, b in itertools.pairwise(places)) < 200


@pytest.mark.parametrize("name", ["thai", "chinese_without_punctuation"])
def test_text_without_spaces_has_places_to_cut(name):
    for encoding in ("r50k_base", "cl100k_base"):
        data = samples.SAMPLES[name].encode()
        assert len(exact(load_once(encoding).cuts, data)) > len(data) / 30


@settings(max_examples=60)
@given(text=texts(max_pieces=8), low=st.integers(0, 2000), size=st.integers(0, 2000))
def test_last_and_first_stay_inside_their_bounds(encoding, text, low, size):
    data, cuts = text.encode(), load_once(encoding).cuts
    low = min(low, len(data))
    high = min(low + size, len(data))
    last, first = cuts.last(data, low, high), cuts.first(data, low, high)
    assert last is None or low < last < high
    assert first is None or low <= first < high
    if low + 1 < high and exact(cuts, data, low + 1, high):
        assert last is not None
        assert first is not None


@settings(max_examples=40)
@given(text=texts(max_pieces=6), cut=st.integers(0, 4000), before=st.integers(0, 3000))
def test_first_depends_only_on_the_text_around(encoding, text, cut, before):
    """The border of a passage must not move with the block that is read: context on both sides decides alone."""
    data, cuts = (samples.ALL + text + samples.ALL).encode(), load_once(encoding).cuts
    low = CONTEXT_BYTES + cut
    start = max(0, low - CONTEXT_BYTES - 3 - before)
    while data[start] & 0xC0 == 0x80:
        start -= 1
    found = cuts.first(data, low, low + 2000)
    again = cuts.first(data[start : low + 2000 + CONTEXT_BYTES], low - start, low - start + 2000)
    assert again == (None if found is None else found - start)


def test_bytes_that_are_not_utf8_are_never_beside_a_cut(encoding, tokenizer):
    """So that putting U+FFFD for them gives the same text whether it is done before the cut or after."""
    rng = random.Random(5)
    good = samples.ALL.encode()
    for _ in range(300):
        at = rng.randrange(len(good) - 60)
        data = bytearray(good[at : at + 60])
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(0x80, 0x100)
        whole = bytes(data).decode(errors="replace")
        for cut in cuts_of(tokenizer.cuts, bytes(data)):
            left, right = (bytes(half).decode(errors="replace") for half in (data[:cut], data[cut:]))
            assert left + right == whole, (bytes(data), cut)
            assert reference.encode(encoding, left) + reference.encode(encoding, right) == reference.encode(
                encoding, whole
            )


def test_only_spaces_and_lines_are_cut_when_nothing_else_is_known():
    data = "x中文字。y z\nw don't".encode()
    places = exact(Cuts("spaces"), data)
    assert [data[at - 1 : at + 1] for at in places] == [b"y ", b"\nw", b"w "]


def test_without_a_vocabulary_no_word_is_parted():
    data = "x中文字。y😀😀😀".encode()
    assert [data[:at].decode() for at in exact(Cuts("gpt2"), data)] == ["x中文字", "x中文字。y"]


def test_an_unknown_tokenizer_is_never_cut():
    data = samples.ENGLISH.encode()
    cuts = Cuts("unknown")
    assert cuts.last(data, 0, len(data)) is None
    assert cuts.first(data, 0, len(data)) is None
    assert not any(cuts.is_line_cut(data, at) for at in range(len(data)))


def test_text_is_cut_in_the_same_places_on_every_python():
    """Each has another version of Unicode. In that of Python 3.10, U+1734 has another category than in later ones."""
    assert xxhash.xxh3_64_hexdigest(_kinds().tobytes()) == "12a74deb8d0a520f"


def test_all_encodings_are_tested():
    assert set(ENCODINGS) == {"r50k_base", "cl100k_base", "o200k_base"}
