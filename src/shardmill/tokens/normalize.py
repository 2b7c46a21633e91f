"""Text → its normal form C, exactly as the reference makes it.

A quick check in C finds what might not be in that form yet (native/nfc.c): next to nothing of ordinary text. Only that
goes to the reference, and what comes again is remembered. The table of the check comes from the reference too
(sweep.py), for the versions that were asked.
"""

import weakref
from collections.abc import Sequence
from ctypes import CDLL, byref, c_char_p, c_int, c_int64, c_void_p
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardmill.system import buffers, compiled
from shardmill.system.buffers import Bytes
from shardmill.tokens import tables
from shardmill.tokens.model import VERSION
from shardmill.tokens.strings import Strings

# As in nfc.c.
KINDS, JOINS, CHANGES = 0x30000, 254, 255
_SPANS = 1 << 10
# Where a text grows by more than this, the reference is asked.
_MOST_GROWTH = 64 << 10
_newest: "_Check | None" = None


def why_not() -> str | None:
    """Why text cannot be normalized here; None if it can."""
    if _table() is None:
        return f"it is not known what {_installed()} does in normal form C; {tables.SWEEP}"
    return None


def normalize(pieces: Strings | Sequence[bytes]) -> Strings:
    """Each piece in normal form C; most come back as they are."""
    check, texts, suspect = check_of_form(), Strings.of(pieces), np.empty(len(pieces), np.bool_)
    if not check.library.nfc_suspects(check.pointer, *texts.given, suspect.ctypes):
        return texts
    some = texts.take(numbers := np.flatnonzero(suspect))
    places = zip(some.pointers.tolist(), some.sizes.tolist(), strict=True)
    return texts.replaced({number: check.normalize(*place) for number, place in zip(numbers.tolist(), places)})


class _Check:
    """The check of the installed version, for all threads, with what it has learned of the reference."""

    def __init__(self, library: CDLL) -> None:
        self._tables = kinds, pairs = _arrays()
        self.library = library
        self.pointer = library.nfc_new(kinds.ctypes, pairs.ctypes, len(pairs))
        if not self.pointer:
            raise MemoryError("out of memory for the check of normal form C")
        weakref.finalize(self, library.nfc_free, self.pointer)

    def normalize(self, text: int, size: int) -> Bytes:
        """The text of so many bytes at this address."""
        done, position = list[Bytes](), c_int64(0)
        rows, asked = np.empty(_SPANS + 2, np.int64), buffers.take(size + _SPANS)
        while (left := size - position.value) > 0:
            out = buffers.take(left + _MOST_GROWTH)
            given = text, size, byref(position), out.ctypes, len(out), rows.ctypes, _SPANS, asked.ctypes
            count = self.library.nfc_normalize(self.pointer, *given)
            written, lines = rows[count : count + 2].tolist()
            if count:
                made = _by_reference(asked[:lines].tobytes())
                whole = buffers.take(written + len(made))
                answered = out.ctypes, rows.ctypes, count, asked.ctypes, made, len(made), whole.ctypes
                out, written = whole, self.library.nfc_join(self.pointer, *answered)
            done.append(out[:written])
        return done[0] if len(done) == 1 else np.concatenate(done)


def _by_reference(lines: bytes) -> bytes:
    """Many spans at once, since a call has its price. A newline joins nothing."""
    from tokenizers import normalizers

    return str(normalizers.NFC().normalize_str(lines.decode())).encode()


def _installed() -> str:
    return tables.installed("tokenizers")


def _table() -> tables.Table | None:
    return tables.find("nfc", _installed())


def check_of_form() -> _Check:
    """A new one when the last has learned as much as it can, which goes when nobody uses it any more."""
    global _newest
    library, check = _library(), _newest
    if check is None or library.nfc_full(check.pointer):
        check = _newest = _Check(library)
    return check


@lru_cache(maxsize=1)
def _arrays() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """The kind of each code point, and the pairs that compose."""
    table = _table()
    assert table is not None, "ask why_not first"
    runs = np.array(table["runs"], np.int64)
    kinds = np.repeat(runs[:, 1].astype(np.uint8), np.diff(np.append(runs[:, 0], KINDS)))
    pairs = [before << 32 | int(joining) for joining, all_before in table["pairs"].items() for before in all_before]
    return kinds, np.array(sorted(pairs), np.uint64)


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("tokens/native/engine.so", VERSION)
    compiled.declare(library, "nfc_new", c_void_p, c_void_p, c_void_p, c_int64)
    compiled.declare(library, "nfc_suspects", c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p)
    compiled.declare(library, "nfc_full", c_int, c_void_p)
    compiled.declare(library, "nfc_free", None, c_void_p)
    where = c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p
    compiled.declare(library, "nfc_normalize", c_int64, c_void_p, *where)
    made = c_void_p, c_void_p, c_int64, c_void_p, c_char_p, c_int64, c_void_p
    compiled.declare(library, "nfc_join", c_int64, c_void_p, *made)
    return library
