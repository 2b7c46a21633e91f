"""Pages of Parquet in C, while other threads run: their headers, and the rows in them; pages.c and chunks.c in ../native/."""

from ctypes import (
    CDLL,
    CFUNCTYPE,
    PyDLL,
    Structure,
    byref,
    c_char_p,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)
from ctypes import cast as c_cast
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardmill.documents import native
from shardmill.io import zstd
from shardmill.system import buffers, compiled
from shardmill.tokens.strings import Flags, Numbers, Strings

DONE, FULL, LONG, NO_VALUE, NO_LEVEL, NO_WORD, ODD, MORE = range(8)
"""What comes next, when rows were found: see pages_rows and chunks_take."""
# Texts stay in the pages that they are in, unless those are more than so many times as large.
_MOST_TIMES = 4

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
"""The kinds of pages."""
_MOST_PAGES = 1024

_DECOMPRESS = CFUNCTYPE(c_size_t, c_void_p, c_size_t, c_void_p, c_size_t)

Data = bytes | memoryview
Headers = npt.NDArray[np.int64]


def address(data: Data) -> int:
    return compiled.address(np.frombuffer(data, np.uint8)) if len(data) else 0


class Runs(Structure):
    """Numbers in Parquet's RLE: one number over and over, or groups of eight, each number of `width` bits."""

    _fields_ = [
        ("data", c_char_p),
        *((name, c_int64) for name in ("at", "size", "width", "left", "bit")),
        ("number", c_uint64),
    ]


class PageRows(Structure):
    """What is left of the rows of a page."""

    _fields_ = [
        ("levels", Runs),
        ("numbers", Runs),
        ("top", c_int64),
        ("rows", c_int64),
        ("data", c_void_p),
        ("at", c_int64),
        ("size", c_int64),
        ("ends", c_void_p),
        *((name, c_int64) for name in ("words", "level", "start", "length", "why")),
    ]


class Window(Structure):
    """Rows that were found, in arrays for `most` of them: texts of so many bytes in all."""

    _fields_ = [
        *((name, c_void_p) for name in ("texts", "sizes", "null")),
        *((name, c_int64) for name in ("count", "most", "size", "room", "longest")),
    ]
    count: int
    size: int
    room: int

    def __init__(self, most: int, longest: int) -> None:
        self._texts, self._sizes = np.empty(most, np.int64), np.empty(most, np.int64)
        self._null = np.empty(most, np.bool_)
        where = (array.ctypes.data for array in (self._texts, self._sizes, self._null))
        super().__init__(*where, 0, most, 0, 0, longest)

    def add(self, page: PageRows) -> int:
        """Rows of a page; returns what comes next."""
        _library().pages_rows(byref(page), byref(self))
        return int(page.why)

    def since(self, first: int) -> tuple[Numbers, Numbers]:
        """Where the texts are of the rows from the first on, and their sizes."""
        return self._texts[first : self.count], self._sizes[first : self.count]

    def take(self, owners: list[Data], held: int) -> tuple[Strings, Flags]:
        """All rows, and which are null; then it is empty. Their texts are in owners, of so many bytes."""
        count, size = self.count, self.size
        pointers, sizes = self._texts[:count].copy(), self._sizes[:count].copy()
        kept: tuple[object, ...] = tuple(owners)
        if held > _MOST_TIMES * size:
            copy = buffers.take(size)
            _library().pages_copy(pointers.ctypes.data, sizes.ctypes.data, count, copy.ctypes.data)
            kept = (copy,)
        self.count = self.size = 0
        return Strings(pointers, sizes, kept, size), self._null[:count].copy()


class FoundPage(Structure):
    """A page of a chunk, as in ../native/chunks.c."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "size", "compressed", "values", "encoding", "levels", "packed")),
        ("start", c_int64),
        ("at", c_int64),
        ("body", c_void_p),
    ]


class Chunks(Structure):
    """Consecutive chunks of a column, as far as they were read; likewise."""

    _fields_ = [
        ("file", c_int64),
        ("chunks", c_void_p),
        *((name, c_int64) for name in ("chunk_count", "chunk", "next", "end", "rows")),
        ("data", c_void_p),
        *((name, c_int64) for name in ("size", "data_at", "data_room", "data_usual", "top")),
        *((name, c_void_p) for name in ("decompress", "words", "ends")),
        *((name, c_int64) for name in ("count", "words_room", "largest")),
        ("out", c_void_p),
        *((name, c_int64) for name in ("out_room", "used")),
        ("found", FoundPage),
        *((name, c_int64) for name in ("has_page", "begun")),
        ("page", PageRows),
    ]


def function(codec: str) -> int | None:
    """What decompresses pages in C: its address, or 0 if there is nothing to decompress; None: pyarrow must do it."""
    if codec == "SNAPPY":
        return c_cast(_library().snappy_decompress, c_void_p).value
    return zstd.function("ZSTD_decompress") if codec == "ZSTD" else 0 if codec == "UNCOMPRESSED" else None


def decompressed(codec: str, data: Data, size: int) -> Data | None:
    """What a page decompresses to, which has this size; None: pyarrow must do it, or tell what is wrong with it."""
    if not (where := function(codec)):
        return None
    out = buffers.take(size)
    done = _DECOMPRESS(where)(compiled.address(out), size, address(data), len(data))
    return out.data if done == size else None


def headers(descriptor: int, chunk: Numbers) -> Headers | None:
    """A row for each page of a chunk, which is told as in Place, with the columns of FoundPage; None: one of the headers is
    damaged, or they have not as many values as the chunk."""
    place, parts = chunk.copy(), list[Headers]()
    while place[2] > 0:
        some: Headers = np.empty((_MOST_PAGES, sizeof(FoundPage) // 8), np.int64)
        count = _library().chunks_pages(descriptor, place.ctypes.data, some.ctypes.data, _MOST_PAGES)
        if count <= 0:
            return None
        parts.append(some[:count])
        kind, _, compressed, values, *_, at, _ = some[:count].T
        place[0], place[2] = at[-1] + compressed[-1], place[2] - values[kind != DICTIONARY].sum()
    return np.concatenate(parts) if parts and not place[2] else None


def header(data: bytes) -> tuple[int, tuple[int, ...]]:
    """The length of the page header that begins here, and its numbers: its kind, bytes of the page when decompressed, and
    as it is, values, encoding, bytes of levels, whether it is compressed. 0: there is more of it; -1: it is damaged."""
    found = (c_int64 * 7)()
    return _quick().pages_header(data, len(data), found), tuple(found)


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = native._library()
    compiled.declare(library, "pages_rows", None, c_void_p, c_void_p)
    compiled.declare(library, "pages_copy", None, c_void_p, c_void_p, c_int64, c_void_p)
    compiled.declare(library, "chunks_pages", c_int64, c_int64, c_void_p, c_void_p, c_int64)
    return library


@lru_cache(maxsize=1)
def _quick() -> PyDLL:
    library = compiled.quick(_library())
    compiled.declare(library, "pages_header", c_int64, c_char_p, c_int64, c_void_p)
    return library
