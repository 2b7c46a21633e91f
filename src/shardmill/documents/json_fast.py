"""Lines of JSON in which nothing is odd → the text in one field of each, by native/lines.c where it was compiled.

Other threads run meanwhile; msgspec, which does it otherwise, holds the GIL.
"""

from ctypes import CDLL, c_char_p, c_int64, c_void_p
from functools import lru_cache

import numpy as np

from shardmill.documents import utf8
from shardmill.documents.rules import MAX_RECORDS
from shardmill.system import compiled

_VERSION = 1
# The library copies 16 bytes at a time.
_SLACK = 16


def texts(data: bytes, path: tuple[str, ...]) -> list[bytes] | None:
    """The text of each line, none of them empty; None if some line is odd, or there is no library.

    What is given is what Python's json gives, with the field there once in each line.
    """
    library = _library()
    if library is None or not utf8.is_valid(data):
        return None
    names = [name.encode() for name in path]
    name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    out = np.empty(len(data) + _SLACK, np.uint8)
    ends = np.empty(MAX_RECORDS, np.int64)
    count = library.lines_texts(
        data, len(data), b"".join(names), name_ends.ctypes, len(names), out.ctypes, ends.ctypes, len(ends)
    )
    if count < 0:
        return None
    view, begin, found = out.data, 0, []
    for end in ends[:count].tolist():
        found.append(view[begin:end].tobytes())
        begin = end
    return found


@lru_cache(maxsize=1)
def _library() -> CDLL | None:
    library = compiled.load("documents/native/lines.so", _VERSION)
    if library is not None:
        pointers = c_char_p, c_int64, c_char_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64
        compiled.declare(library, "lines_texts", c_int64, *pointers)
    return library
