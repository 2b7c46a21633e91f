"""Running text → passages with content-defined borders: the units of the split.

A border is told by what stands near it (native/passages.c), so whoever begins to read in the middle of a text finds the
passages that the whole text has, and an edit moves only the borders near it.
"""

import numpy as np

from shardmill.documents import native
from shardmill.documents.rules import PASSAGE_HEAD, Passages, TextRules, growing
from shardmill.io.reading import Reader
from shardmill.tokens.cuts import CONTEXT_BYTES, Cuts

# The rules for cuts look back two characters.
BEFORE_BYTES = 8
# For tokenizers without known exact cuts, passages still end at spaces and lines, but by force: val must get its share.
_BY_FORCE = Cuts("spaces")

Border = tuple[int, bool]
"""Where a passage begins, and whether the text is cut there by force."""


def find_passages(
    reader: Reader, base: int, at: int, rules: TextRules, about: int, last: int | None = None
) -> tuple[memoryview, Passages]:
    """The next bytes of the file, about so many, and the passages that begin and end in them, up to `last`, a border."""
    for limit in (about,) if about >= rules.max_run_bytes else growing(about, rules.max_run_bytes):
        data, low, at_end = _around(reader, at, limit, rules)
        here = at - low
        until = len(data) if at_end else here + limit + 1
        if last is not None:
            until = min(until, last - low + 1)
        borders = _borders(data, low, base, (here + 1, until), rules, at_end=at_end)
        if borders or at_end:
            break
    at_end &= last is None
    borders = _not_too_far_apart(data, here, borders, rules, at_end=at_end)
    starts = [here, *(end for end, _ in borders[:-1])]
    ends = [end for end, _ in borders]
    keys = [rules.key(data[a : min(b, a + PASSAGE_HEAD)], base + low + a) for a, b in zip(starts, ends)]
    end, forced = borders[-1] if borders else (here, False)
    return memoryview(data)[here:end], Passages(
        starts=tuple(start - here for start in starts[: len(ends)]),
        keys=tuple(keys),
        end=end - here,
        forced=forced,
        last=at_end and end == len(data),
    )


def _not_too_far_apart(
    data: bytes, here: int, borders: list[Border], rules: TextRules, *, at_end: bool
) -> list[Border]:
    """The borders up to the first that is forced, or that must be: max_run_bytes behind the one before it."""
    found, last = [], here
    for border, forced in [*borders, (len(data), False)] if at_end else borders:
        if border - last > rules.max_run_bytes:
            break
        if border > last:
            found.append((border, forced))
        last = border
        if forced:
            return found
    else:
        if found or at_end:
            return found
    return [*found, (character_boundary(data, last + rules.max_run_bytes), True)]


def first_border(reader: Reader, base: int, at: int, rules: TextRules) -> int | None:
    """The first border at or after this byte; None: none nearby."""
    for limit in growing(4 * _reach(rules), rules.max_run_bytes):
        data, low, at_end = _around(reader, at, limit, rules)
        borders = _borders(data, low, base, (at - low, at - low + limit), rules, at_end=at_end)
        if borders or at_end:
            break
    return low + borders[0][0] if borders else None


def context_bytes(rules: TextRules) -> int:
    """How much of the text before a byte tells where passages begin after it."""
    return native.CONTEXT * _reach(rules) + CONTEXT_BYTES


def _reach(rules: TextRules) -> int:
    """No two borders are nearer; passages are twice as long on average."""
    assert rules.passage_bytes is not None
    return max(native.LEAST_REACH, rules.passage_bytes // 2)


def _around(reader: Reader, at: int, limit: int, rules: TextRules) -> tuple[bytes, int, bool]:
    """The text there with what tells its borders; where it begins; and whether the file ends with it."""
    context = context_bytes(rules)
    low = max(0, at - context)
    length = at - low + limit + context
    data = reader.read(low, length)
    return data, low, len(data) < length if reader.size is None else low + len(data) == reader.size


def _borders(
    data: bytes, low: int, base: int, span: tuple[int, int], rules: TextRules, *, at_end: bool
) -> list[Border]:
    """All borders in a span of data, which begins at byte `low` of the file, at exact cuts where there are any."""
    begin, until = span
    reach = _reach(rules)
    # A border is moved to the next cut.
    span = max(0, begin - reach // 2), until
    text = np.frombuffer(data, np.uint8)
    places = native.passage_borders(text, low, reach, span, begins=low == 0, ends=at_end).tolist()
    forced = rules.cuts.family == "unknown"
    cuts = _BY_FORCE if forced else rules.cuts
    found = [
        (cut, forced) for at in places if (cut := cuts.at_or_after(data, at, reach // 2, at_end=at_end)) is not None
    ]
    if rules.border is not None:
        found = sorted({*found, *_border_of_split(data, rules.border - base - low, rules, at_end=at_end)})
    return [(cut, forced) for cut, forced in found if begin <= cut < until]


def _border_of_split(data: bytes, at: int, rules: TextRules, *, at_end: bool) -> list[Border]:
    """Where the split of head or tail is, if that is in this text."""
    if not 0 < at < len(data):
        return []
    if rules.exact_border:
        return [(at, True)]
    limit = 4 * _reach(rules)
    cut = rules.cuts.at_or_after(data, max(at, BEFORE_BYTES), limit, at_end=at_end)
    if cut is not None:
        return [(cut, False)]
    return [] if at_end and at + limit >= len(data) else [(character_boundary(data, at), True)]


def character_boundary(data: bytes, at: int) -> int:
    """The last offset up to `at` that is not inside a character."""
    for start in range(at - 1, max(0, at - 4), -1):
        if data[start] & 0xC0 != 0x80:
            size = 1 + (data[start] >= 0xC0) + (data[start] >= 0xE0) + (data[start] >= 0xF0)
            return start if at < start + size else at
    return at
