"""zstd: the one of Python's own module, and that same one called from C: a local file's frames → their text."""

import sys
import weakref
from ctypes import CDLL, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p, cast
from functools import lru_cache

import numpy as np

from shardmill.io.reading import Reader, local_file
from shardmill.io.spool import AT_ONCE, Spool
from shardmill.system import compiled

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZstdDecompressor = zstd.ZstdDecompressor
ZstdError = zstd.ZstdError

HEAD = 32
"""Before a frame begins, so many bytes are taken, unless the file ends: more than its header has."""
_VERSION = 2
_WINDOW_LOG_MAX = 31  # no limit: windows are looked at before
_SET_WINDOW_LOG_MAX, _RESET_SESSION = 100, 1  # as in zstd.h
# Four times as many blocks of input as 4 MiB of text usually take.
_MARKS = 256
# Small reads share a buffer.
_LEAST_ROOM = 1 << 20
MORE, ENDED, TRUNCATED, UNREAD, DAMAGED = range(5)
"""Why no more was decompressed: see native/unzstd.c."""


def new_decompressor() -> ZstdDecompressor:
    """For one frame."""
    return ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})


def text_bytes(frame: bytes) -> int | None:
    """The length of a frame's text, if its header says."""
    try:
        return zstd.get_frame_info(frame).decompressed_size
    except ZstdError:
        return None


@lru_cache(maxsize=1)
def library() -> CDLL | None:
    """zstd itself, for C; None: the library that Python uses does not show all of its functions."""
    try:
        found = CDLL(zstd._zstd.__file__)  # type: ignore[attr-defined]
        for name in ("ZSTD_decompress", "ZSTD_decompressStream", "ZSTD_isError"):
            getattr(found, name)
        compiled.declare(found, "ZSTD_createDCtx", c_void_p)
        compiled.declare(found, "ZSTD_DCtx_setParameter", c_size_t, c_void_p, c_int, c_int)
        compiled.declare(found, "ZSTD_DCtx_reset", c_size_t, c_void_p, c_int)
        compiled.declare(found, "ZSTD_freeDCtx", c_size_t, c_void_p)
        compiled.declare(found, "ZSTD_getErrorName", c_char_p, c_size_t)
    except (OSError, AttributeError):
        return None
    return found


def function(name: str) -> int | None:
    """Where a function of zstd begins, for C; None: not known."""
    found = library()
    return None if found is None else cast(getattr(found, name), c_void_p).value


def last_block(file: int, size: int, at: int) -> int | None:
    """Where the last block of a frame ends whose first block begins there, in so many bytes of a file; None: it is not
    there, or the headers of its blocks make no sense."""
    end: int = _library().unzstd_last(file, size, at)
    return None if end < 0 else end


class Given(Structure):
    """As Frames in native/unzstd.c."""

    _fields_ = [
        *((name, c_void_p) for name in ("decompress", "is_error", "context")),
        *((name, c_int64) for name in ("file", "file_size", "block", "step")),
        ("data", c_void_p),
        *((name, c_int64) for name in ("at", "size", "taken", "full")),
        ("error", c_uint64),
        ("marks", c_void_p),
        *((name, c_int64) for name in ("marks_room", "marks_made", "start", "text")),
    ]


class Frames:
    """The frames of a local file, in C while other threads run: as compression.Members has those of any file."""

    def __init__(self, source: Reader, zstd: CDLL, block: int, step: int) -> None:
        """block: how many bytes of the file are taken at a time; step: of text, at most."""
        place = local_file(source, 0, sys.maxsize)
        assert place is not None
        self._source, self._zstd, self._step = source, zstd, step
        self._data, self._marks = np.empty(block + HEAD, np.uint8), np.empty((_MARKS, 2), np.int64)
        context = zstd.ZSTD_createDCtx()
        if not context:
            raise MemoryError("out of memory for a zstd decompressor")
        # Not when Python ends: a stopped job may have left a thread that is still decompressing.
        weakref.finalize(self, zstd.ZSTD_freeDCtx, context).atexit = False
        zstd.ZSTD_DCtx_setParameter(context, _SET_WINDOW_LOG_MAX, _WINDOW_LOG_MAX)
        self._given = Given(
            decompress=function("ZSTD_decompressStream"),
            is_error=function("ZSTD_isError"),
            context=context,
            file=place[0],
            file_size=place[1],
            block=block,
            step=step,
            data=compiled.address(self._data),
            marks=compiled.address(self._marks),
            marks_room=_MARKS,
        )
        self.begin(0)

    def begin(self, frame: int) -> None:
        """Go on at the frame that begins at this byte of the file."""
        given, self.ended = self._given, True
        self._zstd.ZSTD_DCtx_reset(given.context, _RESET_SESSION)
        given.at = given.size = given.full = given.error = 0
        given.taken = frame // given.block * given.block
        if frame:
            self._look_ahead()
            given.at = min(frame % given.block, given.size)

    @property
    def taken(self) -> int:
        """How many bytes of the file."""
        return int(self._given.taken)

    def head(self) -> bytes:
        """The first bytes of the next frame; none: the file ends."""
        self._look_ahead()
        return self._data[self._given.at : min(self._given.at + HEAD, self._given.size)].tobytes()

    @property
    def at(self) -> int:
        """Where in the file the next frame begins."""
        return int(self._given.taken - (self._given.size - self._given.at))

    def open(self) -> None:
        """Begin with the next frame."""
        self.ended, self._given.full = False, 0

    def add_to(self, text: Spool, wanted: int) -> list[list[int]]:
        """Add so many bytes of the frame, up to a step more, or fewer; returns where the text ended when so many bytes of
        the file had been taken."""
        given, wanted = self._given, min(wanted, AT_ONCE)
        room = text.room(wanted + self._step, at_least=_LEAST_ROOM)
        given.start = text.end
        why = _library().unzstd_take(byref(given), compiled.address(np.frombuffer(room, np.uint8)), wanted)
        text.filled(given.text)
        self.ended = why == ENDED
        if not given.text:
            self._refuse(why)
        marks: list[list[int]] = self._marks[: given.marks_made].tolist()
        return marks

    def _refuse(self, why: int) -> None:
        if why == DAMAGED:
            name = self._zstd.ZSTD_getErrorName(self._given.error).decode()
            raise ZstdError(f"Unable to decompress Zstandard data: {name}")
        if why == TRUNCATED:
            raise EOFError("the file is truncated")
        if why == UNREAD:
            self._source.read(self._given.taken, self._given.block)  # tells why

    def _look_ahead(self) -> None:
        while _library().unzstd_head(byref(self._given)) < 0:
            self._source.read(self._given.taken, self._given.block)  # tells why


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("io/native/unzstd.so", _VERSION)
    compiled.declare(library, "unzstd_last", c_int64, c_int, c_int64, c_int64)
    compiled.declare(library, "unzstd_head", c_int64, c_void_p)
    compiled.declare(library, "unzstd_take", c_int64, c_void_p, c_void_p, c_int64)
    return library
