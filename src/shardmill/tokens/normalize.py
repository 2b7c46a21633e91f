"""Text → its normal form C, exactly as the reference makes it.

A quick check in C finds what might not be in that form yet (native/nfc.c): next to nothing of ordinary text. Only that
goes to the reference. The table of the check comes from the reference too (tools/make_nfc.py), for the versions that
were swept.
"""

import json
from collections.abc import Sequence
from ctypes import CDLL, byref, c_char_p, c_int64, c_void_p
from functools import lru_cache
from importlib import metadata, resources
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.system import compiled
from shardmill.tokens.native import VERSION
from shardmill.tokens.strings import Strings

TABLE = "nfc.json"
# As in nfc.c.
_KINDS = 0x30000
_SPANS = 1 << 10
# Most spans are a letter and its mark, and come again and again.
_KEPT, _KEPT_BYTES = 1 << 12, 64


def why_not() -> str | None:
    """Why text cannot be normalized here; None if it can."""
    if _table() is None:
        return f"it is not known what {_installed()} does in normal form C"
    return None


def normalize(pieces: Strings | Sequence[bytes]) -> Strings:
    """Each piece in normal form C; most come back as they are."""
    library, (kinds, pairs) = _library(), _arrays()
    texts, count = Strings.of(pieces), len(pieces)
    pointers, sizes, suspect = texts.pointers, texts.sizes, np.empty(count, np.bool_)
    given = pointers.ctypes, sizes.ctypes, count, kinds.ctypes, pairs.ctypes, len(pairs)
    if not library.nfc_suspects(*given, suspect.ctypes):
        return texts
    return texts.replaced({number: _normalize(library, texts[number]) for number in np.flatnonzero(suspect).tolist()})


def _normalize(library: CDLL, piece: bytes) -> bytes:
    kinds, pairs = _arrays()
    done, copied = list[bytes](), 0
    spans = np.empty((_SPANS, 2), np.int64)
    position = c_int64(0)
    while position.value < len(piece):
        where = piece, len(piece), byref(position), kinds.ctypes, pairs.ctypes, len(pairs), spans.ctypes, _SPANS
        count = library.nfc_spans(*where)
        for start, end in spans[:count].tolist():
            span = piece[start:end]
            done += piece[copied:start], (_kept if len(span) <= _KEPT_BYTES else _by_reference)(span)
            copied = end
    return b"".join([*done, piece[copied:]]) if done else piece


def _by_reference(span: bytes) -> bytes:
    from tokenizers import normalizers

    return str(normalizers.NFC().normalize_str(span.decode())).encode()


_kept = lru_cache(maxsize=_KEPT)(_by_reference)


def _installed() -> str:
    return f"tokenizers {metadata.version('tokenizers')}"


def _table() -> dict[str, Any] | None:
    """What tools/make_nfc.py found for the installed version."""
    tables: list[dict[str, Any]] = json.loads((resources.files("shardmill.tokens") / TABLE).read_bytes())["tables"]
    return next((table for table in tables if _installed() in table["made_with"]), None)


@lru_cache(maxsize=1)
def _arrays() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """The kind of each code point, and the pairs that compose."""
    table = _table()
    assert table is not None, "ask why_not first"
    runs = np.array(table["runs"], np.int64)
    kinds = np.repeat(runs[:, 1].astype(np.uint8), np.diff(np.append(runs[:, 0], _KINDS)))
    pairs = [before << 32 | int(joining) for joining, all_before in table["pairs"].items() for before in all_before]
    return kinds, np.array(sorted(pairs), np.uint64)


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    arrays = c_void_p, c_void_p, c_int64, c_void_p, c_int64
    compiled.declare(library, "nfc_spans", c_int64, c_char_p, c_int64, c_void_p, *arrays)
    given = c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p
    compiled.declare(library, "nfc_suspects", c_int64, *given)
    return library
