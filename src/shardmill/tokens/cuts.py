"""A tokenizer's pattern and vocabulary → the offsets where text can be cut without changing a token.

A tokenizer first splits text into pretokens with a regular expression, then merges bytes within each. A cut is exact
if both halves, tokenized separately, give the tokens of the whole. Five rules find exact cuts; each needs only a few
characters of context and holds for every pattern family named here.

    space   x| y      before a single space between two characters that are not whitespace: a pretoken contains a
                      space only at its start
    line    x\\n|y     after a single newline between such characters (and y is not "/", which o200k joins to the
                      punctuation before the newline)
    edge    文|。      between a letter and punctuation or a symbol, except the apostrophe of "don't"
    word    中|文      inside a run of letters, between two bytes that are adjacent in no token of the vocabulary: no
                      merge can cross them
    symbol  😀|😀😀    the same inside a run of symbols

Cutting after any newline or before any space is *not* exact: "x\\n\\ny" and "x  y" are two of many texts in which the
pretoken depends on what follows the whitespace.

SentencePiece-style tokenizers have no pretokens. One rule finds their cuts: between two characters that are adjacent in
no token of the vocabulary (neighbours.py).
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.tokens.neighbours import ANY, POINT_BITS, UNDERLINE, Pairs

Family = Literal["gpt2", "cl100k", "o200k", "spaces", "sentencepiece", "unknown"]
"""gpt2: letters are one run. cl100k (also Llama 3, Qwen 2): the same, a leading symbol joins the word.
o200k: words also end where lower case is followed by upper. spaces: only the space and line rules hold.
sentencepiece: only its own rule holds. unknown: no cut is known to be exact."""

# How much context the rules need on both sides of a cut. Two characters would do, except for o200k, where a run of
# caseless letters must be followed to its end.
CONTEXT_BYTES = 1 << 10

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

# Whitespace for any engine: the Unicode property White_Space, and what some engines add to it.
_WHITESPACE = frozenset(
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"
    + "".join(map(chr, range(0x2000, 0x200B)))
)
_PLAIN = frozenset(range(0x21, 0x7F))  # bytes of visible ASCII
_INVALID, _OTHER_LETTER, _LOWER, _UPPER, _MODIFIER, _NUMBER, _MARK, _SPACE, _SYMBOL, _UNSURE = range(10)
_LETTERS = (_OTHER_LETTER, _LOWER, _UPPER, _MODIFIER)
_TABLE_SIZE = 0x30000
# Had one category until Unicode 13, which Python 3.10 has, and has another since.
_RECLASSIFIED = "\u1734"
_SPACES_TRIED = 64


class Cuts:
    """Finds exact cuts in text that starts at an exact cut or with a document."""

    def __init__(
        self, family: Family, vocabulary: Iterable[bytes] | None = None, *, adjacent: Flags | Pairs | None = None
    ) -> None:
        """Without a vocabulary, any two bytes may be adjacent in a token. adjacent: what was found out before, and for
        sentencepiece the neighbours."""
        self.family = family
        self.adjacent = _adjacent_pairs(vocabulary) if adjacent is None else adjacent

    def last(self, data: bytes, low: int, high: int) -> int | None:
        """The last exact cut found in low < cut < high; a space is preferred, since it is found fastest.

        At low the text starts, or was cut exactly; what is before low and after high is context.
        """
        at = high
        for _ in range(_SPACES_TRIED if self.family != "unknown" else 0):
            at = data.rfind(b" ", low + 1, at)
            if at < 0:
                break
            if self._is_space_cut(data, at):
                return at
        return self.nearest(data, high, low)

    def nearest(self, data: bytes, high: int, low: int = 0) -> int | None:
        """The last of all exact cuts in low < cut < high. At low the text starts, or was cut exactly."""
        for size in (4 << 10, 64 << 10, high - low) if self.family != "unknown" else ():
            found = self._exact(data, max(low + 1, high - size), high, low)
            if len(found):
                return int(found[-1])
        return None

    def first(self, data: bytes, low: int, high: int, start: int = 0) -> int | None:
        """The first exact cut in low ≤ cut < high, searched window by window from low on.

        At start the text starts, or was cut exactly. The answer depends only on the text from start on, provided that
        CONTEXT_BYTES, or the end of the document, follow high.
        """
        if self.family == "unknown":
            return None
        for window in range(max(low, start + 1), high, 4 << 10):
            end = min(window + (4 << 10), high)
            if (space := self.first_space(data, window, end)) is not None:
                return space
            found = self._exact(data, window, end, start)
            if len(found):
                return int(found[0])
        return None

    def at_or_after(self, data: bytes, at: int, limit: int, *, at_end: bool = False) -> int | None:
        """The first exact cut at `at` or in so many bytes behind it, in text that may start in a word, and end in one
        unless the document does."""
        if 0 < at < len(data) and (
            (data[at] == 0x20 and self._is_space_cut(data, at)) or (data[at - 1] == 0x0A and self.is_line_cut(data, at))
        ):
            return at
        return self.first_anywhere(data, at, min(at + limit, len(data) - (0 if at_end else CONTEXT_BYTES)))

    def each_at_or_after(
        self, data: memoryview, places: Numbers, visible: Flags, limit: int, *, at_end: bool = False
    ) -> Numbers:
        """The same for each of many places, sorted; without those behind which there is none. visible: which are known to
        be a blank or behind a newline, between characters that are not whitespace."""
        if self.family == "sentencepiece" and len(places):
            visible = visible & self._are_apart(data, places)
        if self.family != "unknown" and visible.all():
            return places
        text = bytes(data)
        cuts = [
            at if exact else self.at_or_after(text, at, limit, at_end=at_end)
            for at, exact in zip(places.tolist(), visible.tolist())
        ]
        return np.unique(np.array([cut for cut in cuts if cut is not None], np.int64))

    def first_anywhere(self, data: bytes, low: int, high: int) -> int | None:
        """The first exact cut in low ≤ cut < high, in text that may start in the middle of a word, and may end in one."""
        if self.family == "unknown":
            return None
        for window in range(low, high, 4 << 10):
            end = min(window + (4 << 10), high)
            if (space := self.first_space(data, window, end)) is not None:
                return space
            if self.family == "sentencepiece":
                found = self._apart(data, window, end)
            else:
                found = self._judge(data, window, end, window - CONTEXT_BYTES, len(data))
            if len(found):
                return int(found[0])
        return None

    def first_space(self, data: bytes, low: int, high: int) -> int | None:
        """What first() tries first in a window that starts at low: a space that is an exact cut."""
        at = low - 1
        for _ in range(_SPACES_TRIED if self.family != "unknown" else 0):
            at = data.find(b" ", at + 1, high)
            if at < 0:
                break
            if self._is_space_cut(data, at):
                return at
        return None

    def is_line_cut(self, data: bytes, at: int) -> bool:
        """Whether a cut at `at`, just after a newline, is exact by the line rule."""
        if self.family == "sentencepiece":
            return self._is_apart(data, at)
        if self.family == "unknown" or at < 2 or at >= len(data) or data[at] == 0x2F:
            return False
        if data[at - 2] in _PLAIN and data[at] in _PLAIN:
            return True
        return _not_whitespace_before(data, at - 1) and _not_whitespace_at(data, at)

    def _is_space_cut(self, data: bytes, at: int) -> bool:
        """The space rule for the space at `at`; the common case costs two look-ups."""
        if self.family == "sentencepiece":
            return self._is_apart(data, at)
        if at < 1 or at + 1 >= len(data):
            return False
        if data[at - 1] in _PLAIN and data[at + 1] in _PLAIN:
            return True
        return _not_whitespace_before(data, at) and _not_whitespace_at(data, at + 1)

    def _is_apart(self, data: bytes, at: int) -> bool:
        """Whether `at` is a cut by the rule of SentencePiece."""
        return 0 < at < len(data) and len(self._apart(data, at, at + 1)) == 1

    def _are_apart(self, data: memoryview, places: Numbers) -> Flags:
        """Which of many places are; each is more than 3 bytes from the ends, or as far as no character reaches."""
        around = [bytes(data[max(0, at - 4) : at + 4]) for at in places.tolist()]
        starts = np.cumsum([0, *(len(each) + 1 for each in around)])[:-1]
        return np.isin(starts + np.minimum(places, 4), self._apart(b"\n".join(around), 1, sum(map(len, around)) * 2))

    def _apart(self, data: bytes, low: int, high: int) -> npt.NDArray[np.int64]:
        """All cuts in [low, high) by the rule of SentencePiece; none beside what is not UTF-8."""
        base = max(0, low - 4)
        while base and data[base] & 0xC0 == 0x80:
            base -= 1
        points, offsets = code_points(data[base : high + 4])
        invalid = (points >= 0xD800) & (points < 0xE000)
        points = np.where(points == 0x20, UNDERLINE, points).astype(np.uint64)
        first, second = points[:-1] << np.uint64(POINT_BITS), points[1:]
        places = offsets[1:] + base
        apart = ~invalid[:-1] & ~invalid[1:] & (places >= low) & (places < high)
        for pair in (first | second, first | np.uint64(ANY), np.uint64(ANY << POINT_BITS) | second):
            apart &= ~_are_among(pair, self.adjacent)
        return np.asarray(places[apart], np.int64)

    def _exact(self, data: bytes, low: int, high: int, start: int = 0) -> npt.NDArray[np.int64]:
        """All exact cuts in [low, high), by every rule at once."""
        if self.family == "sentencepiece":
            return self._apart(data, max(low, start + 1), high)
        near = low - CONTEXT_BYTES
        found = self._judge(data, low, high, near, start)
        if not len(found) and self.family == "o200k" and near > start:
            # Only the whole word up to here shows whether a cut between caseless letters is exact.
            found = self._judge(data, low, high, start, start)
        return found

    def _judge(self, data: bytes, low: int, high: int, since: int, start: int) -> npt.NDArray[np.int64]:
        base = max(0, since)
        while base and data[base] & 0xC0 == 0x80:
            base -= 1
        points, offsets = code_points(data[base : high + CONTEXT_BYTES])
        kind = _kinds()[np.minimum(points, _TABLE_SIZE - 1)]
        places = offsets[2:-1] + base
        before, here = kind[1:-2], kind[2:-1]
        point_before, point = points[1:-2], points[2:-1]
        solid = (kind != _SPACE) & (kind != _INVALID)
        letter = np.isin(kind, _LETTERS)
        symbol = (kind == _SYMBOL) & (points != 0x27) & (points != 0x2F)

        exact = (point == 0x20) & solid[1:-2] & solid[3:]
        exact |= (point_before == 0x0A) & solid[:-3] & solid[2:-1] & (point != 0x2F)
        if self.family != "spaces":
            if self.family == "o200k":
                word = (before == _LOWER) & (here == _LOWER)
                alike = _cased_alike(kind, int(np.searchsorted(offsets, start - base)))[2:-1]
                word |= (before == _OTHER_LETTER) & (here == _OTHER_LETTER) & alike
            else:
                word = letter[1:-2] & letter[2:-1]
            raw = np.frombuffer(data, np.uint8)
            unmergeable = ~self.adjacent[raw[places - 1].astype(np.intp) << 8 | raw[places]]
            exact |= letter[1:-2] & (here == _SYMBOL) & (point != 0x27)
            exact |= unmergeable & (word & letter[:-3] | symbol[1:-2] & symbol[2:-1] & symbol[3:])
        return np.asarray(places[exact & (places >= low) & (places < high)], np.int64)


def _are_among(values: Pairs, of: npt.NDArray[Any]) -> Flags:
    """Which values are in a sorted array."""
    found = np.searchsorted(of, values)
    return np.asarray(of[np.minimum(found, len(of) - 1)] == values)


def _not_whitespace_before(data: bytes, at: int) -> bool:
    if data[at - 1] < 0x80:
        return chr(data[at - 1]) not in _WHITESPACE
    start = at - 1
    while start > 0 and at - start < 4 and data[start] & 0xC0 == 0x80:
        start -= 1
    return _is_solid(data[start:at])


def _not_whitespace_at(data: bytes, at: int) -> bool:
    first = data[at]
    if first < 0x80:
        return chr(first) not in _WHITESPACE
    return _is_solid(data[at : at + (2 if first < 0xE0 else 3 if first < 0xF0 else 4)])


def _is_solid(char: bytes) -> bool:
    try:
        return char.decode() not in _WHITESPACE
    except UnicodeDecodeError:
        return False


def code_points(data: bytes) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Each code point of data and the byte where it starts; a byte that is not UTF-8 becomes a surrogate."""
    text = data.decode("utf-8", "surrogateescape")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    sizes[(points >= 0xD800) & (points < 0xE000)] = 1
    offsets = np.zeros(len(points), np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    return points, offsets


def _cased_alike(kind: npt.NDArray[np.uint8], start: int) -> Flags:
    """For o200k: where a word that starts at a cut continues as the uncut word would.

    Its words are upper* lower+, and caseless letters are in both classes. The uncut word may already be in its lower
    half while the new one is not; they diverge at the next upper-case letter. So there must be no upper-case letter
    next, or no lower-case one before, back to the start of the word. At start, which may lie outside, text starts.
    """
    index = np.arange(len(kind))
    unclear = (kind == _INVALID) | (kind == _UNSURE)
    strong = ~np.isin(kind, (_OTHER_LETTER, _MODIFIER, _MARK))
    following = np.minimum.accumulate(np.where(strong, index, len(kind))[::-1])[::-1]
    next_kind = np.append(kind, _UNSURE)[following]
    no_upper_next = (next_kind != _UPPER) & (next_kind != _INVALID) & (next_kind != _UNSURE)
    in_word = np.isin(kind, (*_LETTERS, _MARK)) | unclear
    last_lower = np.maximum.accumulate(np.where((kind == _LOWER) | unclear, index, -1))
    last_begin = np.maximum.accumulate(np.where(in_word, -2, index))
    last_begin[start:] = np.maximum(last_begin[start:], start - 1)
    return np.asarray(no_upper_next | (last_begin >= last_lower))


@lru_cache(maxsize=1)
def _kinds() -> npt.NDArray[np.uint8]:
    """The kind of each code point, where all engines must agree on it.

    Engines ship different versions of Unicode. Only characters that had a kind already in Unicode 3.2 and still have it
    get one, and pictographs, which no version makes letters or numbers.
    """
    names = {
        "Lo": _OTHER_LETTER,
        "Ll": _LOWER,
        "Lu": _UPPER,
        "Lt": _UPPER,
        "Lm": _MODIFIER,
        "N": _NUMBER,
        "M": _MARK,
        "P": _SYMBOL,
        "S": _SYMBOL,
    }
    old = unicodedata.ucd_3_2_0.category
    table = np.full(_TABLE_SIZE, _UNSURE, np.uint8)
    for point in range(_TABLE_SIZE):
        category = unicodedata.category(chr(point))
        if old(chr(point)) == category:
            table[point] = names.get(category) or names.get(category[0]) or _UNSURE
    for start, stop in ((0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00)):
        table[start:stop] = _SYMBOL
    table[[ord(c) for c in _RECLASSIFIED]] = _UNSURE
    table[[ord(c) for c in _WHITESPACE]] = _SPACE
    table[0xD800:0xE000] = _INVALID
    return table


def _adjacent_pairs(vocabulary: Iterable[bytes] | None) -> Flags:
    """flags[a << 8 | b]: some token contains byte a directly before byte b."""
    if vocabulary is None:
        return np.ones(1 << 16, np.bool_)
    tokens = list(vocabulary)
    ends = np.cumsum([len(token) for token in tokens])
    return adjacent_bytes(np.frombuffer(b"".join(tokens), np.uint8), ends)


def adjacent_bytes(joined: npt.NDArray[np.uint8], ends: npt.NDArray[np.integer[Any]]) -> Flags:
    """The same for tokens one after the other, and where each ends."""
    flags = np.zeros(1 << 16, np.bool_)
    if len(ends):
        joined = joined[: ends[-1]].astype(np.uint16)  # small: a vocabulary may have many tokens
        pairs = joined[:-1] << 8 | joined[1:]
        inside = np.ones(len(pairs), np.bool_)
        inside[ends[:-1] - 1] = False
        flags[pairs[inside]] = True
    return flags
