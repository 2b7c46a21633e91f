"""Passages begin where the text says so: any part of it has the borders of the whole, and none is too long."""

import bisect
import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from shardmill.documents.native import CONTEXT, LEAST_REACH, LONGEST, passage_borders

MASK = (1 << 64) - 1
FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
WHITESPACE = {*"\x85\xa0\u1680\u180e\u2028\u2029\u202f\u205f\u3000\ufeff", *map(chr, range(0x2000, 0x200C))}
WHITESPACE |= {*map(chr, range(0x21))}


def mixed(a, b):
    return (a * b & MASK) ^ (a * b >> 64)


def chance(at):
    return mixed(mixed(at ^ FIRST, SECOND) ^ FIRST, SECOND)


def is_visible(char):
    try:
        return char.decode() not in WHITESPACE
    except UnicodeDecodeError:
        return False


def visible_at(data, at):
    size = next((n for top, n in ((0x80, 1), (0xE0, 2), (0xF0, 3)) if data[at : at + 1] < bytes([top])), 4)
    return at + size <= len(data) and is_visible(data[at : at + size])


def visible_before(data, at):
    size = 1
    while size < 4 and data[at - size] & 0xC0 == 0x80:
        size += 1
    return is_visible(data[at - size : at])


def candidates(data, reach):
    """Of each class, best first: offset → key."""

    def hashed(at):
        first, second, behind = (int.from_bytes(data[at - n : at - n + 8], "little") for n in (16, 8, 0))
        before = mixed(first ^ FIRST, second ^ SECOND)
        return mixed(before ^ FIRST, behind ^ SECOND), chance(at)

    def is_line(at):
        return data[at - 1] == 0x0A and data[at] != 0x2F and visible_at(data, at) and visible_before(data, at - 1)

    def is_blank(at):
        picked = data[at] == 0x20 and (data[at - 1] ^ data[at + 1]) & 15 == 0
        return picked and visible_at(data, at + 1) and visible_before(data, at)

    every = range(reach, len(data) - reach)
    step = max(1, reach // 16)
    return (
        {at: hashed(at) for at in every if is_line(at)},
        {at: hashed(at) for at in every if is_blank(at)},
        {at: (0, chance(at)) for at in every if at % step == 0 and data[at] & 0xC0 != 0x80},
    )


def oracle(data, reach):
    """The rule, word for word."""

    def near(places, at, distance=reach):
        return places[bisect.bisect_left(places, at - distance) : bisect.bisect_right(places, at + distance)]

    found, better = [], []
    for keys in candidates(data, reach):
        count = [at for at in sorted(keys) if not near(better, at)]
        found += [at for at in count if keys[at] == min(keys[other] for other in near(count, at))]
        better = sorted(better + count)
    ends = sorted([0, *found, len(data)])
    for point in range(0, len(data), 2 * reach):
        if not near(ends, point, 4 * reach):
            back = next((n for n in range(3) if data[point - n] & 0xC0 != 0x80), 3)
            found.append(point - back)
    return sorted(found)


def found_in(data, reach, begin=0, end=None):
    """Those in [begin, end), from no more than the text that the rule needs around it."""
    end = len(data) if end is None else end
    low, high = max(0, begin - CONTEXT * reach), min(len(data), end + CONTEXT * reach)
    span = (begin - low, end - low)
    some = np.frombuffer(data[low:high], np.uint8)
    found, _ = passage_borders(some, low, reach, span, begins=low == 0, ends=high == len(data))
    return (found + low).tolist()


def texts(seed, size):
    """Texts of every kind, put together at random, so that lines begin and end anywhere."""
    rng = random.Random(seed)
    kinds = {
        "english": samples.ENGLISH,
        "chinese": samples.CHINESE.replace("\n", "").replace(" ", ""),
        "chinese lines": samples.CHINESE,
        "code": samples.PYTHON + samples.C,
        "json": json.dumps([{"text": samples.GERMAN, "n": n} for n in range(3)]),
        "tight json": json.dumps({"a": list(range(300))}, separators=(",", ":")),
        "empty lines": samples.ENGLISH.replace("\n", "\n\n"),
        "crlf": samples.ENGLISH.replace("\n", "\r\n"),
        "same": "same line\n" * 300,
        "letter": "e" * 3000,
        "character": "字" * 1500,
        "spaces": " " * 2000,
        "nothing": "\n" * 2000,
        "words": "again " * 500,
    }
    made = b""
    while len(made) < size:
        text = kinds[rng.choice(list(kinds))].encode()
        at = rng.randrange(len(text))
        made += (text[at:] + text[:at])[: rng.randrange(3000)]
        made += rng.choice([b"", b"", b"\n", b"\xff\xfe", b"\xe5\xad", b"\xe3\x80\x80\n"])
    return made[:size]


@given(st.integers(0, 10**9), st.integers(0, 12_000), st.sampled_from([LEAST_REACH, 40, 100, 333]))
def test_borders_are_those_of_the_rule(seed, size, reach):
    data = texts(seed, size)
    assert found_in(data, reach) == oracle(data, reach)


@given(st.integers(0, 10**9), st.sampled_from([LEAST_REACH, 57, 150]), st.data())
def test_any_part_of_a_text_has_the_borders_of_the_whole(seed, reach, choose):
    data = texts(seed, choose.draw(st.integers(0, 30_000)))
    whole = found_in(data, reach)
    begin = choose.draw(st.integers(0, len(data)))
    end = choose.draw(st.integers(begin, len(data)))
    assert found_in(data, reach, begin, end) == [at for at in whole if begin <= at < end]


@given(st.integers(0, 10**9), st.sampled_from([LEAST_REACH, 64, 150]))
def test_passages_are_neither_too_short_nor_too_long(seed, reach):
    data = texts(seed, 40_000)
    ends = [0, *found_in(data, reach), len(data)]
    lengths = [b - a for a, b in itertools.pairwise(ends)]
    assert min(lengths) >= reach and max(lengths) <= LONGEST * reach + 3


@pytest.mark.parametrize("reach", [64, 1000])
def test_an_edit_moves_only_borders_nearby(reach):
    data = b"".join(b"This is the line of a text with the number %d.\n" % i for i in range(3000))
    before = found_in(data, reach)
    edited = data[:40_000] + b"something new\n" + data[40_000:]
    after = [at if at < 40_000 else at - 14 for at in found_in(edited, reach)]
    assert {at for at in {*before} ^ {*after} if abs(at - 40_000) > 3 * reach} == set()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 129])
def test_a_text_that_is_too_short_for_two_passages_is_one(size):
    assert len(found_in(b"a line\n" * 1000, 64)) > 20
    assert found_in((b"a line\n" * 100)[:size], 64) == oracle((b"a line\n" * 100)[:size], 64)
