"""What is asked of many documents at once, in C while other threads run; its source is in native/."""

from ctypes import CDLL, PyDLL, Structure, byref, c_char_p, c_int, c_int64, c_uint8, c_uint64, c_void_p
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardmill.io.compression import Decompressed
from shardmill.io.reading import Reader, local_file
from shardmill.system import buffers, compiled
from shardmill.tokens.strings import Flags, Numbers, Strings

_VERSION = 12
# The reach of a passage is at least this, and so many times the reach tell whether there is a border.
LEAST_REACH = 32
CONTEXT = 8
# Passages are longer than the reach, twice as long on average, and at most so many times.
LONGEST = 10
# Hashing so many bytes takes less time than others need to notice that the GIL is free.
_QUICK_BYTES = 256 << 10
# The parser of lines copies 16 bytes at a time.
_SLACK = 16

_NO_STARTS = np.empty(0, np.int64)

Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]


class Lines(Structure):
    """As in native/lines.h."""

    _fields_ = [
        ("data", c_void_p),
        ("size", c_int64),
        ("count", c_int64),
        ("names", c_void_p),
        ("name_ends", c_void_p),
        ("name_count", c_int64),
        *((name, c_void_p) for name in ("out", "texts", "sizes", "starts", "declined")),
        ("most", c_int64),
        ("seed", c_uint64),
        ("hashes", c_void_p),
        ("unusual", c_int64),
    ]


class Examined(NamedTuple):
    """Texts; which of them are odd; if none is odd or empty, their keys, where they were asked for; where their lines
    start."""

    texts: Strings
    odd: Flags
    usual: bool
    keys: Hashes | None
    starts: Numbers


def texts_of_lines(data: Bytes, count: int, path: tuple[str, ...], hashed: tuple[int, int] | None = None) -> Examined:
    r"""The text in one field of each line of JSON, as Python's json reads it. Lines that are unusual in any way were not
    parsed, and are odd. hashed: how many of the first bytes of a text make its key, and the seed.

    >>> found = texts_of_lines(np.frombuffer(b'{"text": "a"}\n{"text": 5}\n', np.uint8), 2, ("text",))
    >>> list(found.texts), found.odd.tolist(), found.usual, found.starts.tolist()
    ([b'a', b''], [False, True], False, [0, 14])
    """
    _, *name_bytes = names_of(path)
    out, rows, unusual = buffers.take(len(data) + _SLACK), np.empty((4, count), np.int64), np.empty(count, np.bool_)
    address, at = compiled.address, compiled.address(rows)
    given = Lines(
        *(address(data), len(data), count, *name_bytes, len(path)),
        *(address(out), at, at + 8 * count, at + 16 * count, address(unusual)),
        *(hashed or (0, 0)),
        None if hashed is None else at + 24 * count,
    )
    size = _library().lines_texts(byref(given))
    assert size == len(data), "that many lines"
    usual = not given.unusual
    keys = rows[3].view(np.uint64) if usual and hashed is not None else None
    return Examined(Strings(rows[0], rows[1], (out,), len(data)), unusual, usual, keys, rows[2])


@lru_cache
def names_of(path: tuple[str, ...]) -> tuple[object, int, int]:
    """The names of a field in sequence, and where each ends: what holds them, and where these two begin for C."""
    names = [name.encode() for name in path]
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    joined = np.frombuffer(b"".join(names), np.uint8)
    return (joined, ends), compiled.address(joined), compiled.address(ends)


def examine(texts: Strings, odd: Flags, hashed: tuple[int, int] | None = None) -> Examined:
    """Texts that may not be UTF-8: those are odd, too."""
    odd, keys = odd.copy(), None if hashed is None else np.empty(len(texts), np.uint64)
    given = compiled.address(odd), *(hashed or (0, 0)), None if keys is None else compiled.address(keys)
    usual = not _library().texts_examine(*texts.given, *given)
    return Examined(texts, odd, usual, keys if usual else None, _NO_STARTS)


def read_text(reader: Reader, offset: int, length: int, *, check: bool = True) -> tuple[memoryview, bool]:
    """As Reader.read, and whether it is UTF-8, apart from characters that are cut off at an end which is not that of the
    file; False: not known."""
    place = local_file(reader, offset, length)
    if place is not None:
        data, valid = buffers.take(place[1]), c_int64(check)
        ends = offset + len(data) == reader.size
        done = _library().texts_read(place[0], offset, len(data), ends, compiled.address(data), byref(valid))
        if done == len(data):
            return data.data, bool(valid.value)
    return memoryview(reader.read(offset, length)), False


def read_lines(
    reader: Reader, offset: int, length: int, newline: bytes, most: tuple[int, int]
) -> tuple[memoryview, tuple[int, int]]:
    """As Reader.read; where the last of the whole lines ends, and how many there are, as whole_lines has it. Where the
    file ends, its last line need not end, unless it is damaged there."""
    place = local_file(reader, offset, length)
    if place is not None:
        data, found = buffers.take(place[1] + _SLACK)[: place[1]], (c_int64 * 2)()  # as large as what it is parsed to
        given = compiled.address(data), newline[0], *most, len(data) < length, found
        if _library().texts_read_lines(place[0], offset, len(data), *given) == len(data):
            return data.data, (found[0], found[1])
    if isinstance(reader, Decompressed):
        return _joined_lines(reader, offset, length, newline, most)
    text = reader.read(offset, length)
    return memoryview(text), whole_lines(text, newline, most, ends=len(text) < length)


def _joined_lines(
    reader: Decompressed, offset: int, length: int, newline: bytes, most: tuple[int, int]
) -> tuple[memoryview, tuple[int, int]]:
    pieces = reader.pieces(offset, length)
    size = sum(map(len, pieces))
    ends = size < length and reader.damage is None
    if len(pieces) <= 1:
        return memoryview(data := pieces[0] if pieces else b""), whole_lines(data, newline, most, ends=ends)
    arrays = [np.frombuffer(piece, np.uint8) for piece in pieces]
    starts, sizes = [compiled.address(array) for array in arrays], [len(array) for array in arrays]
    several = Strings(np.array(starts, np.int64), np.array(sizes, np.int64), tuple(arrays))
    joined, found = buffers.take(size), (c_int64 * 2)()
    _library().texts_join_lines(*several.given, compiled.address(joined), newline[0], *most, ends, found)
    return joined.data, (found[0], found[1])


def is_utf8(data: bytes | memoryview) -> bool:
    return bool(_library().texts_are_utf8(compiled.address(np.frombuffer(data, np.uint8)), len(data)))


def invalid(texts: Strings) -> Flags:
    """Which texts are not UTF-8."""
    found = np.empty(len(texts), np.bool_)
    _library().texts_invalid(*texts.given, compiled.address(found))
    return found


def hashes(texts: Strings, most: int, seed: int) -> Hashes:
    """The seeded xxh3 of the beginning of each text, of so many bytes at most."""
    found = np.empty(len(texts), np.uint64)
    (_quick() if len(texts) * most < _QUICK_BYTES else _library()).texts_hashes(
        *texts.given, most, seed, compiled.address(found)
    )
    return found


def below(keys: Hashes, limit: int, *, above: bool = False) -> Flags:
    """Which keys are below a limit, or (above) are not."""
    found = np.empty(len(keys), np.bool_)
    if limit >= 1 << 64:
        found[:] = not above
    else:
        _quick().texts_below(compiled.address(keys), len(keys), limit, above, compiled.address(found))
    return found


def separators(data: Bytes, separator: bytes, most: int) -> Numbers:
    """Where separators begin, from left to right, as bytes.split finds them; at most so many.

    >>> separators(np.frombuffer(b"ababa", np.uint8), b"aba", 9)
    array([0])
    """
    found = np.empty(most, np.int64)
    return found[
        : _library().texts_separators(
            compiled.address(data), len(data), separator, len(separator), compiled.address(found), most
        )
    ]


def whole_lines(data: bytes | memoryview, newline: bytes, most: tuple[int, int], *, ends: bool) -> tuple[int, int]:
    r"""Where the last of the whole lines ends, and how many there are: at most so many, and none longer than that. ends:
    the last need not end.

    >>> whole_lines(b"one\ntwo\nthr", b"\n", (9, 3), ends=False), whole_lines(b"one\ntwo\nthr", b"\n", (9, 3), ends=True)
    ((8, 2), (11, 3))
    """
    count, place = c_int64(), compiled.address(np.frombuffer(data, np.uint8))
    return _library().texts_lines(place, len(data), newline[0], *most, ends, byref(count)), count.value


def plain_ends(data: Bytes, most: int) -> Numbers:
    """Where values end that stand each behind its length of four bytes, as far as they are whole; at most so many."""
    found = np.empty(most, np.int64)
    return found[: _library().texts_plain(compiled.address(data), len(data), compiled.address(found), most)]


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
    where = compiled.address(data), len(data), offset, reach, begins, ends, *span
    count = _library().passages_borders(*where, compiled.address(found), compiled.address(visible), len(found))
    if count < 0:
        raise MemoryError("out of memory for the borders of passages")
    return found[:count], visible[:count]


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("documents/native/lines.so", _VERSION)
    compiled.declare(library, "lines_texts", c_int64, c_void_p)
    texts = c_void_p, c_void_p, c_int64
    compiled.declare(library, "texts_are_utf8", c_int64, c_void_p, c_int64)
    compiled.declare(library, "texts_invalid", c_int64, *texts, c_void_p)
    compiled.declare(library, "texts_examine", c_int64, *texts, c_void_p, c_int64, c_uint64, c_void_p)
    compiled.declare(library, "texts_hashes", None, *texts, c_int64, c_uint64, c_void_p)
    compiled.declare(library, "texts_separators", c_int64, c_void_p, c_int64, c_char_p, c_int64, c_void_p, c_int64)
    compiled.declare(library, "texts_lines", c_int64, c_void_p, c_int64, c_uint8, *[c_int64] * 3, c_void_p)
    file = c_int, c_int64, c_int64
    compiled.declare(library, "texts_read", c_int64, *file, c_int64, c_void_p, c_void_p)
    compiled.declare(library, "texts_read_lines", c_int64, *file, c_void_p, c_uint8, *[c_int64] * 3, c_void_p)
    given = c_void_p, c_uint8, *[c_int64] * 3, c_void_p
    compiled.declare(library, "texts_join_lines", None, *texts, *given)
    compiled.declare(library, "texts_plain", c_int64, c_void_p, c_int64, c_void_p, c_int64)
    compiled.declare(library, "passages_borders", c_int64, c_void_p, *[c_int64] * 7, c_void_p, c_void_p, c_int64)
    return library


@lru_cache(maxsize=1)
def _quick() -> PyDLL:
    library = compiled.quick(_library())
    compiled.declare(library, "texts_below", None, c_void_p, c_int64, c_uint64, c_int64, c_void_p)
    compiled.declare(library, "texts_hashes", None, c_void_p, c_void_p, c_int64, c_int64, c_uint64, c_void_p)
    return library
