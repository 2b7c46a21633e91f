"""The installed references, asked about every code point → tables of character classes, and of what normal form C changes.

Nothing here comes from the Unicode standard. Of normalization only this is taken for granted: characters are decomposed,
the marks between two starters are sorted, and then characters are composed. Which ones is found by asking.
"""

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

from shardmill.tokens import classes, tables
from shardmill.tokens.classes import NUMBER, PATTERNS, POINTS, Reference
from shardmill.tokens.normalize import CHANGES, JOINS, KINDS
from shardmill.tokens.tables import Kind, Table

# A character that composes with more than these is always left to the reference: the jamo of Korean.
_MOST_PAIRS = 300
_LOWEST, _HIGHEST = "\u0334", "\u0345"  # the marks that are sorted first and last
_SEPARATOR = "\n"
_HANGUL, _JAMO = range(0xAC00, 0xD7A4), range(0x1100, 0x1200)
# Planes 4 to 13 are unassigned, and 15 and 16 private, in every version.
_POINTS = [*range(0x40000), *range(0x40000, 0xE0000, 61), *range(0xE0000, 0xE1000), *range(0xE1000, POINTS, 61)]


def unknown() -> Iterator[tuple[Kind, Table]]:
    """The tables of the installed versions that nobody has asked yet. Each takes seconds."""
    for reference, package in classes.PACKAGES.items():
        if tables.find("classes", tables.installed(package)) is None:
            yield "classes", sweep_classes(reference)
    if tables.find("nfc", tables.installed("tokenizers")) is None:
        yield "nfc", sweep_nfc()


def sweep_classes(reference: Reference) -> Table:
    ask = letters_of_tiktoken if reference == "tiktoken" else letters_of_tokenizers
    found = np.zeros(POINTS, np.uint8)
    for number, pattern in PATTERNS.items():
        points = [ord(c) for c in ask(pattern)]
        assert not found[points].any(), "each has one class"
        found[points] = number
    more = [] if reference == "tiktoken" else [point for point in _digits() if found[point] != NUMBER]
    return {"made_with": [classes.installed(reference)], "runs": _runs(found), "digits": more}


def _runs(kinds: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> list[list[int]]:
    """Where the kind changes, and to what."""
    begins = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist()]
    return [[begin, int(kinds[begin])] for begin in begins]


def _every() -> str:
    return "".join(chr(point) for point in range(POINTS) if not 0xD800 <= point < 0xE000)


def letters_of_tiktoken(pattern: str) -> Iterable[str]:
    """An encoding leaves out what its pattern does not match, and gives bytes here."""
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return bytes(encoding.encode_ordinary(_every())).decode()


def letters_of_tokenizers(pattern: str) -> Iterable[str]:
    rest = normalizers.Replace(Regex(pattern), "").normalize_str(_every())
    return sorted(set(_every()) - set(rest))


def _digits() -> list[int]:
    """What the pre-tokenizer Digits takes for one: Rust has tables of its own."""
    pieces = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str("x".join(_every()))
    digits = {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "x"}
    missing = {ord(c) for c in letters_of_tokenizers(r"\p{N}")} - digits
    assert not missing, "a number that is no digit would be a part of a word"
    return sorted(digits)


def sweep_nfc() -> Table:
    """What tokenizers' normal form C does to each code point, as native/nfc.c reads it."""
    every = [chr(point) for point in _POINTS if not 0xD800 <= point < 0xE000 and chr(point) != _SEPARATOR]
    changed = set(_unequal(every))
    # A mark is sorted before or behind another one.
    marks = {text[1] for text in _unequal([f"a{c}{_LOWEST}" for c in every if c not in changed]) if text[1] != _LOWEST}
    marks |= {text[2] for text in _unequal([f"a{_HIGHEST}{c}" for c in every if c not in changed])}
    marks |= {_LOWEST, _HIGHEST}
    apart = str(normalizers.NFD().normalize_str(_SEPARATOR.join(every))).split(_SEPARATOR)
    nfd = dict(zip(every, apart, strict=True))
    composites = [c for c in every if c not in changed and len(nfd[c]) > 1]
    joins = {part for c in composites for part in nfd[c][1:]}
    assert not any(nfd[c][0] in joins | marks for c in every if c not in changed | joins | marks)
    assert all(ord(c) < KINDS for c in changed | joins | marks)
    kinds = np.zeros(KINDS, np.uint8)
    order = _ordered(sorted(marks - joins))
    kinds[list(map(ord, changed))] = CHANGES
    kinds[list(map(ord, joins))] = JOINS
    kinds[list(order)] = list(order.values())
    pairs = _composing(sorted({*composites, *(nfd[c][:1] for c in composites)} - joins - marks), sorted(joins))
    for joining in [joining for joining, before in pairs.items() if len(before) > _MOST_PAIRS]:
        kinds[joining] = CHANGES
        del pairs[joining]
    # What only sorts must leave a starter alone that has a mark in it; syllables of Korean, which have none, are alike.
    some = [c for c in composites if ord(c) not in _HANGUL[3:]]
    assert not _unequal([c + chr(mark) for c in some for mark in order])
    listed = {str(join): before for join, before in pairs.items()}
    return {"made_with": [tables.installed("tokenizers")], "runs": _runs(kinds), "pairs": listed}


def _unequal(texts: list[str]) -> list[str]:
    """Those that are changed; all at once, since a call has its price."""
    made = str(normalizers.NFC().normalize_str(_SEPARATOR.join(texts))).split(_SEPARATOR)
    return [text for text, now in zip(texts, made, strict=True) if text != now]


def _ordered(marks: list[str]) -> dict[int, int]:
    """The place of each mark in the order in which they are sorted; those that stay as they are have the same."""

    def compare(x: str, y: str) -> int:
        return len(_unequal([f"a{x}{y}"])) - len(_unequal([f"a{y}{x}"]))

    places, place, first = dict[int, int](), 0, ""
    for mark in sorted(marks, key=functools.cmp_to_key(compare)):
        if not first or compare(first, mark):
            place, first = place + 1, mark
        places[ord(mark)] = place
    return places


def _composing(before: list[str], joins: list[str]) -> dict[int, list[int]]:
    """For each character that joins, those before it that it changes."""
    others = [c for c in before if ord(c) not in _HANGUL[3:]]
    return {
        ord(join): sorted(
            ord(text[0]) for text in _unequal([c + join for c in (before if ord(join) in _JAMO else others)])
        )
        for join in joins
    }
