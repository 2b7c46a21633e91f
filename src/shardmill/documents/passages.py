"""Running text → passages with content-defined borders: the units of the split.

A border is told by what stands near it (native/passages.c), so whoever begins to read in the middle of a text finds the
passages that the whole text has, and an edit moves only the borders near it.
"""

from ctypes import CFUNCTYPE, c_int64, c_uint8, c_void_p, memmove
from typing import Any

import numpy as np

from shardmill.documents import native
from shardmill.documents.rules import PASSAGE_HEAD, Passages, TextRules, growing
from shardmill.io.reading import Reader
from shardmill.system import compiled
from shardmill.tokens.cuts import CONTEXT_BYTES, Cuts
from shardmill.tokens.strings import Flags, Numbers, Strings

# The rules for cuts look back two characters.
BEFORE_BYTES = 8
# For tokenizers without known exact cuts, passages still end at spaces and lines, but by force: val must get its share.
_BY_FORCE = Cuts("spaces")

_DECLINED = -1

Border = tuple[int, bool]
"""Where a passage begins, and whether the text is cut there by force."""


def find_passages(
    reader: Reader, base: int, at: int, rules: TextRules, about: int, last: int | None = None
) -> tuple[memoryview, Passages]:
    """The next bytes of the file, about so many, and the passages that begin and end in them, up to `last`, a border."""
    for limit in (about,) if about >= rules.max_run_bytes else growing(about, rules.max_run_bytes):
        data, low, at_end, valid = _around(reader, at, limit, rules)
        here = at - low
        until = len(data) if at_end else here + limit + 1
        if last is not None:
            until = min(until, last - low + 1)
        borders, forced = _borders(data, low, base, (here + 1, until), rules, at_end=at_end)
        if len(borders) or at_end:
            break
    at_end &= last is None
    bounds, by_force = _not_too_far_apart(data, here, borders, forced, rules, at_end=at_end)
    texts, end = Strings.within(np.frombuffer(data, np.uint8), bounds[:-1], bounds[1:]), int(bounds[-1])
    text = data[here:end]
    if len(text) < len(data) // 2:
        text = memoryview(bytes(text))  # so that little text does not keep much in memory
    return text, Passages(
        bounds=bounds - here,
        keys=rules.keys(texts, base + low + bounds[:-1], PASSAGE_HEAD),
        forced=by_force,
        last=at_end and end == len(data),
        valid=valid,
    )


def _not_too_far_apart(
    data: memoryview, here: int, borders: Numbers, forced: Flags, rules: TextRules, *, at_end: bool
) -> tuple[Numbers, bool]:
    """From here on, the borders up to the first that is forced, or that is missing within max_run_bytes of the one before
    it: then there is one at the last exact cut, or by force. And whether the last is forced."""
    bounds = np.concatenate(([here], borders, [len(data)] if at_end and len(data) > max([here, *borders[-1:]]) else []))
    bounds = bounds.astype(np.int64)
    far = np.flatnonzero(np.diff(bounds) > rules.max_run_bytes)
    if len(far):
        bounds = bounds[: far[0] + 1]
    if forced[: len(bounds) - 1].any():
        return bounds[: int(forced.argmax()) + 2], True
    if not len(far) and (len(bounds) > 1 or at_end):
        return bounds, False
    last = int(bounds[-1])
    cut = rules.cuts.nearest(bytes(data), last + rules.max_run_bytes, last)
    if cut is not None:
        return np.append(bounds, cut), False
    return np.append(bounds, character_boundary(data, last + rules.max_run_bytes)), True


def first_border(reader: Reader, base: int, at: int, rules: TextRules) -> int | None:
    """The first border at or after this byte; None: none nearby."""
    for limit in growing(4 * reach_of(rules), rules.max_run_bytes):
        data, low, at_end, _ = _around(reader, at, limit, rules)
        borders, _ = _borders(data, low, base, (at - low, at - low + limit), rules, at_end=at_end)
        if len(borders) or at_end:
            break
    return low + int(borders[0]) if len(borders) else None


def borders_for_c(reader: Reader, base: int, rules: TextRules) -> Any:
    """A function that C calls to find the borders in text that it has read, as in native/ranges.h."""

    def find(data: int, low: int, size: int, first: int, after: int, out: int, most: int) -> int:
        try:
            text = memoryview((c_uint8 * size).from_address(data)).cast("B")
            found, forced = _borders(text, low, base, (first, after), rules, at_end=low + size == reader.size)
        except Exception:  # told when the caller tries again without C
            return _DECLINED
        if forced.any() or len(found) > most:
            return _DECLINED
        found = found.astype(np.int64, copy=False)
        memmove(out, compiled.address(found), found.nbytes)
        return len(found)

    return CFUNCTYPE(c_int64, c_void_p, *[c_int64] * 4, c_void_p, c_int64)(find)


def context_bytes(rules: TextRules) -> int:
    """How much of the text before a byte tells where passages begin after it."""
    return native.CONTEXT * reach_of(rules) + CONTEXT_BYTES


def reach_of(rules: TextRules) -> int:
    """No two borders are nearer; passages are twice as long on average."""
    assert rules.passage_bytes is not None
    return max(native.LEAST_REACH, rules.passage_bytes // 2)


def _around(reader: Reader, at: int, limit: int, rules: TextRules) -> tuple[memoryview, int, bool, bool]:
    """The text there with what tells its borders; where it begins; and whether the file ends with it, and whether all of
    it is known to be UTF-8."""
    context = context_bytes(rules)
    low = max(0, at - context)
    length = at - low + limit + context
    data, valid = native.read_text(reader, low, length, check=not rules.judging)
    return data, low, len(data) < length if reader.size is None else low + len(data) == reader.size, valid


def _borders(
    data: memoryview, low: int, base: int, span: tuple[int, int], rules: TextRules, *, at_end: bool
) -> tuple[Numbers, Flags]:
    """All borders in a span of data, which begins at byte `low` of the file, at exact cuts where there are any; and
    which of them are cut by force."""
    asked, reach = span, reach_of(rules)
    # A border is moved to the next cut.
    span = max(0, span[0] - reach // 2), span[1]
    text = np.frombuffer(data, np.uint8)
    places, visible = native.passage_borders(text, low, reach, span, begins=low == 0, ends=at_end)
    unknown = rules.cuts.family == "unknown"
    found = (_BY_FORCE if unknown else rules.cuts).each_at_or_after(data, places, visible, reach // 2, at_end=at_end)
    forced = np.full(len(found), unknown)
    if rules.border is not None:
        for cut, by_force in _border_of_split(data, rules.border - base - low, rules, at_end=at_end):
            if cut not in found:
                at = int(np.searchsorted(found, cut))
                found, forced = np.insert(found, at, cut), np.insert(forced, at, by_force)
    first, after = np.searchsorted(found, asked).tolist()
    return found[first:after], forced[first:after]


def _border_of_split(data: memoryview, at: int, rules: TextRules, *, at_end: bool) -> list[Border]:
    """Where the split of head or tail is, if that is in this text."""
    if not 0 < at < len(data):
        return []
    if rules.exact_border:
        return [(at, True)]
    limit = 4 * reach_of(rules)
    cut = rules.cuts.at_or_after(bytes(data), max(at, BEFORE_BYTES), limit, at_end=at_end)
    if cut is not None:
        return [(cut, False)]
    return [] if at_end and at + limit >= len(data) else [(character_boundary(data, at), True)]


def character_boundary(data: bytes | memoryview, at: int) -> int:
    """The last offset up to `at` that is not inside a character."""
    for start in range(at - 1, max(0, at - 4), -1):
        if data[start] & 0xC0 != 0x80:
            size = 1 + (data[start] >= 0xC0) + (data[start] >= 0xE0) + (data[start] >= 0xF0)
            return start if at < start + size else at
    return at
