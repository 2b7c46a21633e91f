"""Lines of JSON → the text in one field of each, parsed by native/lines.c while other threads run.

Lines that are unusual in any way are left to the caller.
"""

from ctypes import CDLL, c_char_p, c_int64, c_void_p
from functools import lru_cache

import numpy as np

from shardmill.documents import utf8
from shardmill.documents.rules import MAX_RECORDS
from shardmill.system import compiled

_VERSION = 2
# The library copies 16 bytes at a time.
_SLACK = 16


def texts(data: bytes, newline: bytes, path: tuple[str, ...]) -> list[bytes | None]:
    r"""The text of each line as Python's json reads it; None: the line is unusual, and was not parsed.

    texts(b'{"text": "a"}\n{"text": 5}\n', b"\n", ("text",)) == [b"a", None]
    """
    if newline != b"\n":
        return [None] * (data.count(newline) + (not data.endswith(newline)))
    names = [name.encode() for name in path]
    name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    out = np.empty(len(data) + _SLACK, np.uint8)
    ends = np.empty(MAX_RECORDS, np.int64)
    count = _library().lines_texts(
        data, len(data), b"".join(names), name_ends.ctypes, len(names), out.ctypes, ends.ctypes, len(ends)
    )
    assert count >= 0, "too many lines"
    view, begin = out.data, 0
    found: list[bytes | None] = []
    for end in ends[:count].tolist():
        found.append(None if end < 0 else view[begin:end].tobytes())
        begin = max(begin, end)
    if not utf8.is_valid(data):
        return [text if utf8.is_valid(line) else None for text, line in zip(found, data.split(b"\n"))]
    return found


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("documents/native/lines.so", _VERSION)
    pointers = c_char_p, c_int64, c_char_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64
    compiled.declare(library, "lines_texts", c_int64, *pointers)
    return library
