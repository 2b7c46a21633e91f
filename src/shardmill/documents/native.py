"""What is asked of many documents at once, in C while other threads run; its source is in native/."""

from ctypes import CDLL, byref, c_char_p, c_int64, c_uint8, c_uint64, c_void_p
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardmill.system import compiled
from shardmill.tokens.strings import Flags, Numbers, Strings

_VERSION = 7
# The reach of a passage is at least this, and so many times the reach tell whether there is a border.
LEAST_REACH = 32
CONTEXT = 8
# Passages are longer than the reach, twice as long on average, and at most so many times.
LONGEST = 10
# The parser of lines copies 16 bytes at a time.
_SLACK = 16

Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]


def texts_of_lines(data: Bytes, count: int, path: tuple[str, ...]) -> tuple[Strings, Flags]:
    r"""The text in one field of each line of JSON, as Python's json reads it, and which lines are unusual in any way:
    those were not parsed, and have no text.

    >>> texts, unusual = texts_of_lines(np.frombuffer(b'{"text": "a"}\n{"text": 5}\n', np.uint8), 2, ("text",))
    >>> list(texts), unusual.tolist()
    ([b'a', b''], [False, True])
    """
    names = [name.encode() for name in path]
    name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    out, unusual = np.empty(len(data) + _SLACK, np.uint8), np.empty(count, np.bool_)
    pointers, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
    field = b"".join(names), name_ends.ctypes.data, len(names)
    made = out.ctypes.data, pointers.ctypes.data, sizes.ctypes.data, unusual.ctypes.data
    size = _library().lines_texts(data.ctypes.data, len(data), *field, count, *made)
    assert size == len(data), "that many lines"
    return Strings(pointers, sizes, (out,)), unusual


def is_utf8(data: bytes | memoryview) -> bool:
    return bool(_library().texts_are_utf8(np.frombuffer(data, np.uint8).ctypes.data, len(data)))


def invalid(texts: Strings) -> Flags:
    """Which texts are not UTF-8."""
    found = np.empty(len(texts), np.bool_)
    _library().texts_invalid(*texts.given, found.ctypes.data)
    return found


def hashes(texts: Strings, most: int, seed: int) -> Hashes:
    """The seeded xxh3 of the beginning of each text, of so many bytes at most."""
    found = np.empty(len(texts), np.uint64)
    _library().texts_hashes(*texts.given, most, seed, found.ctypes.data)
    return found


def separators(data: Bytes, separator: bytes, most: int) -> Numbers:
    """Where separators begin, from left to right, as bytes.split finds them; at most so many.

    >>> separators(np.frombuffer(b"ababa", np.uint8), b"aba", 9)
    array([0])
    """
    found = np.empty(most, np.int64)
    return found[
        : _library().texts_separators(data.ctypes.data, len(data), separator, len(separator), found.ctypes.data, most)
    ]


def whole_lines(data: bytes, newline: bytes, most: int, *, ends: bool) -> tuple[int, int]:
    r"""Where the last of the whole lines ends, and how many there are, at most so many; ends: the last need not end.

    >>> whole_lines(b"one\ntwo\nthr", b"\n", 9, ends=False), whole_lines(b"one\ntwo\nthr", b"\n", 9, ends=True)
    ((8, 2), (11, 3))
    """
    count = c_int64()
    return _library().texts_lines(data, len(data), newline[0], most, ends, byref(count)), count.value


def plain_ends(data: Bytes, most: int) -> Numbers:
    """Where values end that stand each behind its length of four bytes, as far as they are whole; at most so many."""
    found = np.empty(most, np.int64)
    return found[: _library().texts_plain(data.ctypes.data, len(data), found.ctypes.data, most)]


def passage_borders(
    data: Bytes, offset: int, reach: int, span: tuple[int, int], *, begins: bool, ends: bool
) -> tuple[Numbers, Flags]:
    """Where passages begin in this span of data, which is at this offset of the text, and which of them begin with a line
    or a blank between visible characters. begins, ends: the text does so with the data. Otherwise CONTEXT times the reach is known before or behind the span: so any part of a text has the borders that
    it has in the whole, and nobody need know where the passage before began.

    >>> lines = np.frombuffer(b"".join(b"line %d of a text\\n" % i for i in range(2000)), np.uint8)
    >>> whole, _ = passage_borders(lines, 0, 1000, (0, len(lines)), begins=True, ends=True)
    >>> part, _ = passage_borders(lines[2000:], 2000, 1000, (8000, 12_000), begins=False, ends=True)
    >>> (part + 2000).tolist() == [at for at in whole if 10_000 <= at < 14_000]
    True
    """
    assert reach >= LEAST_REACH
    found = np.empty(max(0, span[1] - span[0]) // reach + 2, np.int64)
    visible = np.empty(len(found), np.bool_)
    where = data.ctypes.data, len(data), offset, reach, begins, ends, *span
    count = _library().passages_borders(*where, found.ctypes.data, visible.ctypes.data, len(found))
    if count < 0:
        raise MemoryError("out of memory for the borders of passages")
    return found[:count], visible[:count]


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("documents/native/lines.so", _VERSION)
    field, made = (c_char_p, c_void_p, c_int64), (c_void_p, c_void_p, c_void_p, c_void_p)
    compiled.declare(library, "lines_texts", c_int64, c_void_p, c_int64, *field, c_int64, *made)
    texts = c_void_p, c_void_p, c_int64
    compiled.declare(library, "texts_are_utf8", c_int64, c_void_p, c_int64)
    compiled.declare(library, "texts_invalid", c_int64, *texts, c_void_p)
    compiled.declare(library, "texts_hashes", None, *texts, c_int64, c_uint64, c_void_p)
    compiled.declare(library, "texts_separators", c_int64, c_void_p, c_int64, c_char_p, c_int64, c_void_p, c_int64)
    compiled.declare(library, "texts_lines", c_int64, c_char_p, c_int64, c_uint8, c_int64, c_int64, c_void_p)
    compiled.declare(library, "texts_plain", c_int64, c_void_p, c_int64, c_void_p, c_int64)
    compiled.declare(library, "passages_borders", c_int64, c_void_p, *[c_int64] * 7, c_void_p, c_void_p, c_int64)
    return library
