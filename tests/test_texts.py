"""What is asked of many documents at once is what Python says of each."""

import random
import tempfile

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import samples
from shardmill.documents import native, utf8
from shardmill.io.reading import InputReader
from shardmill.tokens.layout import Layout, lay_out
from shardmill.tokens.strings import Strings

SAMPLES = [text.encode() for text in samples.SAMPLES.values()]
# Bytes of which most strings are nearly UTF-8: first bytes of every length, at the ends of their ranges, and what may follow.
BITS = [b"a", b" " * 15, b"\x80", b"\xbf", b"\xc1", b"\xc2\x80", b"\xdf", b"\xe0\xa0\x80", b"\xe0\x9f", b"\xed\x9f\xbf", b"\xed\xa0\x80",
        b"\xef\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf0\x8f", b"\xf4\x8f\xbf\xbf", b"\xf4\x90", b"\xf5", b"\xff", "é文😀".encode()]  # fmt: skip
nearly_utf8 = st.lists(st.sampled_from(BITS), max_size=12).map(b"".join)


def is_utf8(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(nearly_utf8 | st.binary(max_size=40), max_size=8))
def test_what_is_not_utf8_is_what_python_cannot_decode(texts):
    assert native.invalid(Strings.of(texts)).tolist() == [not is_utf8(text) for text in texts]


def test_a_bad_byte_is_found_wherever_it_is():
    for sample in SAMPLES[:12]:
        for at in range(0, min(len(sample), 70)):
            changed = sample[:at] + b"\xff" + sample[at + 1 :]
            assert native.invalid(Strings.of([sample, changed, sample])).tolist() == [False, True, False]


def test_a_text_ends_where_it_ends_whatever_stands_behind_it():
    """Half a character is not completed by the next text."""
    data = np.frombuffer("é".encode(), np.uint8)
    halves = Strings.within(data, np.array([0, 1, 0]), np.array([1, 2, 2]))
    assert native.invalid(halves).tolist() == [True, True, False]


def test_hashes_are_those_of_the_xxhash_package():
    rng = random.Random(3)
    sizes = [*range(1100), 4096, 4097, 65535, 65536, 65537, 100_000]
    texts = [rng.randbytes(size) for size in sizes]
    for seed in (0, 7, (1 << 64) - 1, rng.getrandbits(64)):
        for most in (1 << 16, 100):
            found = native.hashes(Strings.of(texts), most, seed).tolist()
            assert found == [xxhash.xxh3_64_intdigest(text[:most], seed=seed) for text in texts]


@pytest.mark.parametrize("separator", [b"\n", b"\n\n", b"aba", b"aa", b"<|endoftext|>", b"\0", b"\0\0"])
@given(data=st.data())
def test_separators_are_where_split_finds_them(separator, data):
    letters = st.sampled_from([*(bytes([byte]) for byte in separator), b"x", separator, separator * 2])
    text = data.draw(st.lists(letters, max_size=60).map(b"".join))
    found = native.separators(np.frombuffer(text, np.uint8), separator, len(text) + 1).tolist()
    ends = np.cumsum([len(part) + len(separator) for part in text.split(separator)][:-1]) - len(separator)
    assert found == ends.tolist()
    assert native.separators(np.frombuffer(text, np.uint8), separator, 2).tolist() == found[:2]


@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(0, 400))
def test_values_behind_their_lengths_end_where_they_should(values, cut):
    data = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    ends = np.cumsum([4 + len(value) for value in values]).tolist()
    whole = [end for end in ends if end <= cut]
    assert native.plain_ends(np.frombuffer(data[:cut], np.uint8), 99).tolist() == whole
    assert native.plain_ends(np.frombuffer(data, np.uint8), 3).tolist() == ends[:3]


def test_a_value_that_claims_to_be_longer_than_its_page_is_no_value():
    data = b"\1\0\0\0a\xff\xff\xff\xffb"
    assert native.plain_ends(np.frombuffer(data, np.uint8), 9).tolist() == [5]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4), max_size=4))
def test_strings_are_joined_taken_and_replaced_as_lists_are(lists):
    joined = Strings.joined([Strings.of(each) for each in [[], *lists]])
    flat = [text for each in lists for text in each]
    assert list(joined) == flat and joined.sizes.tolist() == [len(text) for text in flat]
    assert list(joined.heads(2)) == [text[:2] for text in flat]
    assert list(joined.take(slice(1, None))) == flat[1:]
    changed = {number: b"new" * number for number in range(0, len(flat), 2)}
    assert list(joined.replaced(changed)) == [changed.get(number, text) for number, text in enumerate(flat)]
    assert list(joined) == flat


ids_of_pieces = st.lists(st.integers(0, 60_000), max_size=5)


@given(
    st.lists(st.tuples(ids_of_pieces, st.booleans(), st.booleans(), st.sampled_from([0, 1, -1])), max_size=8), st.data()
)
def test_tokens_are_laid_out_with_their_end_of_text_by_split(pieces, data):
    before, eot = data.draw(st.booleans()), data.draw(st.sampled_from([None, 9]))
    narrow, wide = data.draw(st.tuples(st.sampled_from(["<u2", "<u4"]), st.sampled_from(["<u2", "<u4"])))
    apart = data.draw(st.booleans()) and all(val >= 0 for *_, val in pieces)
    order = sorted(range(len(pieces)), key=lambda number: pieces[number][3]) if apart else range(len(pieces))
    expected, runs, ends, ended = [], [], [], []
    for number in order:
        ids, has, closes, val = pieces[number]
        if not runs or runs[-1][0] != val:
            start = len(expected)
            runs.append([val, 0, 0, 0])
        mark = [9] * (has and eot is not None)
        expected += mark * before + ids + mark * (not before)
        if closes:
            ends.append(len(expected) - start)
            ended.append(number)
        runs[-1] = [val, len(expected), len(ends), runs[-1][3] + number]
    ids, counts = np.array([token for ids, *_ in pieces for token in ids], narrow), [len(ids) for ids, *_ in pieces]
    has_eot, closes = (np.array([piece[column] for piece in pieces], np.bool_) for column in (1, 2))
    columns = {"val": np.array([val for *_, val in pieces], np.int8), "text_bytes": np.arange(len(pieces))}
    columns |= {"has_eot": None if has_eot.all() else has_eot, "closes": None if closes.all() else closes}
    made = lay_out(
        (ids, np.array(counts, np.int64)), Layout(dtype=np.dtype(wide), eot=eot, before=before, apart=apart, **columns)
    )
    assert made.tokens.tolist() == expected and made.tokens.dtype == wide and made.runs == runs
    assert made.ends[: len(ends)].tolist() == ends and made.ended[: len(ended)].tolist() == ended


@given(
    st.binary(max_size=30),
    st.text(alphabet="a\u00e9\u20ac\U0001f600", max_size=12),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_what_is_read_of_a_file_is_said_to_be_text_only_if_every_span_of_whole_characters_is(bad, text, offset, size):
    data = text.encode()[: len(text) * 2] + bad[: len(bad) // 2] + text.encode()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with InputReader(file.name) as reader:
            found, valid = native.read_text(reader, min(offset, len(data)), size)
            some = data[offset : offset + size]
            assert bytes(found) == some
    inner = some[0 if not offset else next((i for i, c in enumerate(some[:4]) if c & 0xC0 != 0x80), len(some)) :]
    if offset + size < len(data):
        inner = next((inner[: len(inner) - cut] for cut in range(4) if utf8.is_valid(inner[: len(inner) - cut])), inner)
    assert valid <= utf8.is_valid(inner)
    assert valid or not utf8.is_valid(some)


@given(st.lists(nearly_utf8, min_size=1, max_size=6), st.integers(0, 3), st.integers(1, 2), st.booleans())
def test_what_is_read_is_judged_the_same_where_slices_of_it_meet(bits, before, slices, ends):
    """It is looked at 256 KiB at a time."""
    middle = b"".join(bits)
    data = "é".encode() + b"x" * (slices * (256 << 10) - 2 - before) + middle + b"y" * (256 << 10)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        reader = InputReader(file.name)
        until = len(data) if ends else len(data) - (256 << 10)
        read, valid = native.read_text(reader, 0, until)
        assert bytes(read) == data[:until]
        # A character may be cut off at an end that is not that of the file.
        assert valid == any(
            is_utf8(data[: until - cut]) for cut in range(1 if ends else 4) if ends or is_cut(data, until, cut)
        )
        assert native.read_text(reader, 1, until - 1)[1] == valid, "so may the first character"


def is_cut(data, until, cut):
    """Whether a character that begins so far before the end reaches behind it."""
    lead = data[until - cut]
    return not cut or (0xC2 <= lead <= 0xF4 and cut < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4))
