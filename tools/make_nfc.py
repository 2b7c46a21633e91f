"""`make classes`: ask the installed tokenizers library what normal form C does to each code point, and keep what is known of other versions.

Nothing here comes from the Unicode standard. What is assumed is how normalization works: decompose, sort the marks
between two starters, compose. Which characters do what is found by asking.
"""

import functools
import itertools
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from tokenizers import normalizers

TABLE = Path("src/shardmill/tokens/nfc.json")
VERSION = f"tokenizers {metadata.version('tokenizers')}"
END, JOINS, CHANGES = 0x30000, 254, 255
# A character that composes with more than these is always left to the reference: the jamo of Korean.
MOST_PAIRS = 300
LOWEST, HIGHEST = "\u0334", "\u0345"  # the marks that are sorted first and last
SEPARATOR = "\n"
HANGUL, JAMO = range(0xAC00, 0xD7A4), range(0x1100, 0x1200)
# Planes 4 to 13 are unassigned, and 15 and 16 private, in every version.
POINTS = [*range(0x40000), *range(0x40000, 0xE0000, 61), *range(0xE0000, 0xE1000), *range(0xE1000, 0x110000, 61)]


def main() -> None:
    every = [chr(point) for point in POINTS if not 0xD800 <= point < 0xE000 and chr(point) != SEPARATOR]
    changed = set(unequal(every))
    # A mark is sorted before or behind another one.
    marks = {text[1] for text in unequal([f"a{c}{LOWEST}" for c in every if c not in changed]) if text[1] != LOWEST}
    marks |= {text[2] for text in unequal([f"a{HIGHEST}{c}" for c in every if c not in changed])}
    marks |= {LOWEST, HIGHEST}
    apart = str(normalizers.NFD().normalize_str(SEPARATOR.join(every))).split(SEPARATOR)
    nfd = dict(zip(every, apart, strict=True))
    composites = [c for c in every if c not in changed and len(nfd[c]) > 1]
    joins = {part for c in composites for part in nfd[c][1:]}
    assert not any(nfd[c][0] in joins | marks for c in every if c not in changed | joins | marks)
    assert all(ord(c) < END for c in changed | joins | marks)
    kinds = dict.fromkeys(map(ord, changed), CHANGES) | dict.fromkeys(map(ord, joins), JOINS)
    order = ordered(sorted(marks - joins))
    kinds |= order
    pairs = composing(sorted({*composites, *(nfd[c][:1] for c in composites)} - joins - marks), sorted(joins))
    for joining in [joining for joining, before in pairs.items() if len(before) > MOST_PAIRS]:
        kinds[joining] = CHANGES
        del pairs[joining]
    # What only sorts must leave a starter alone that has a mark in it; syllables of Korean, which have none, are alike.
    some = [c for c in composites if ord(c) not in HANGUL[3:]]
    assert not unequal([c + chr(mark) for c in some for mark in order])
    print(
        f"{VERSION}: {len(changed):,} change, {len(joins):,} join, {len(order):,} sort in {max(order.values())} classes"
    )
    keep({"runs": runs(kinds), "pairs": {str(join): before for join, before in pairs.items()}})


def unequal(texts: list[str]) -> list[str]:
    """Those that are changed; all at once, since a call has its price."""
    made = str(normalizers.NFC().normalize_str(SEPARATOR.join(texts))).split(SEPARATOR)
    return [text for text, now in zip(texts, made, strict=True) if text != now]


def keep(found: dict[str, Any]) -> None:
    """With the table of another version, if that is the same."""
    tables = json.loads(TABLE.read_text())["tables"] if TABLE.exists() else []
    for table in tables:
        table["made_with"] = [version for version in table["made_with"] if version != VERSION]
    same = next((table for table in tables if {**table, **found} == table), None)
    if same is None:
        tables.append(same := {"made_with": [], **found})
    same["made_with"] = sorted([*same["made_with"], VERSION])
    tables = [table for table in tables if table["made_with"]]
    TABLE.write_text(json.dumps({"format": 1, "tables": tables}, separators=(",", ":")) + "\n")


def ordered(marks: list[str]) -> dict[int, int]:
    """The place of each mark in the order in which they are sorted; those that stay as they are have the same."""

    def compare(x: str, y: str) -> int:
        return len(unequal([f"a{x}{y}"])) - len(unequal([f"a{y}{x}"]))

    places, place, first = dict[int, int](), 0, ""
    for mark in sorted(marks, key=functools.cmp_to_key(compare)):
        if not first or compare(first, mark):
            place, first = place + 1, mark
        places[ord(mark)] = place
    return places


def composing(before: list[str], joins: list[str]) -> dict[int, list[int]]:
    """For each character that joins, those before it that it changes."""
    others = [c for c in before if ord(c) not in HANGUL[3:]]
    return {
        ord(join): sorted(
            ord(text[0]) for text in unequal([c + join for c in (before if ord(join) in JAMO else others)])
        )
        for join in joins
    }


def runs(kinds: dict[int, int]) -> list[list[int]]:
    """Where the kind changes, and to what."""
    every = [kinds.get(point, 0) for point in range(END)]
    return [
        [0, every[0]],
        *([at, kind] for at, (last, kind) in enumerate(itertools.pairwise(every), 1) if last != kind),
    ]


if __name__ == "__main__":
    main()
