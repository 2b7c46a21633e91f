"""A compressed file → a Reader of its decompressed bytes: read forward, with a replay buffer.

Files of many gzip members, zstd frames, bzip2 or xz streams are decompressed as one text. Input is taken in blocks
at fixed offsets, so each byte of text always corresponds to the same number of compressed bytes.
"""

import bisect
import bz2
import itertools
import lzma
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

from shardmill.io import zstd
from shardmill.io.frames import LARGEST_BLOCK, SKIPPABLE, zstd_blocks, zstd_header_bytes
from shardmill.io.reading import Reader, local_file
from shardmill.io.snappy import Snappy
from shardmill.io.spool import Data, Spool

try:  # 2.5 times as fast
    from isal import isal_zlib as deflate
except ImportError:  # not available for this machine
    deflate = zlib  # type: ignore[misc]

Compression = Literal["gzip", "zstd", "bzip2", "xz", "snappy"]
SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
# Memory that every decompressor may use: the window of zstd -19.
LEAST_WINDOW = 8 << 20

HEAD_BYTES = 64 << 10
# Offsets in the text from here on are relative to a frame before which there is an unknown amount of text.
UNCOUNTED = 1 << 50

_LOOK_BACK = 4 << 10
_INPUT_BYTES = 64 << 10
_OUTPUT_BYTES = 256 << 10
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_ERROR: Any = deflate.error
_FAILURES = (zlib.error, _GZIP_ERROR, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError)
_MOST_INDEX = 16 << 20
_MOST_BLOCKS = 20_000


def compression_of(head: bytes) -> Compression | None:
    """The compression of a file, by its first bytes."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(_ZSTD_MAGIC) or (len(head) >= 8 and int.from_bytes(head[:4], "little") in SKIPPABLE):
        return "zstd"
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    return "xz" if head.startswith(b"\xfd7zXZ\x00") else None


def window_of(head: bytes) -> int:
    """The memory that decompressing will need, as far as the first bytes tell."""
    match compression_of(head):
        case "zstd" if head.startswith(_ZSTD_MAGIC) and len(head) >= 18:
            return max(LEAST_WINDOW, _zstd_window(head))
        case "xz" if len(head) >= 18 and head[14] == 0x21 and head[15] == 1 and head[16] <= 40:
            bits = head[16]
            return max(LEAST_WINDOW, (2 | bits & 1) << (bits // 2 + 11))
        case _:
            return LEAST_WINDOW


def promised_bytes(source: Reader, read: int, text: int) -> int | None:
    """How many bytes a file decompresses to, if it says: one zstd frame, gzip member or xz stream. Others give None.

    read bytes of the file gave text bytes of text. gzip keeps only the last 32 bits of the length, so the length nearest
    to what that ratio predicts is taken. A zstd frame without its length has blocks, nearly all of the same length.
    """
    size, head = source.size or 0, source.read(0, 18)
    end = source.read(max(0, size - 12), 12)
    likely = text * size / max(1, read)
    match compression_of(head):
        case "zstd":
            return zstd.text_bytes(head) or _by_blocks(source, read, text)
        case "gzip":
            length = int.from_bytes(end[-4:], "little")
            return length + max(0, round((likely - length) / (1 << 32))) * (1 << 32)
        case "xz" if end.endswith(b"YZ"):
            index = 4 * (int.from_bytes(end[4:8], "little") + 1)
            return _xz_text_bytes(source.read(size - 12 - index, index)) if index < min(size, _MOST_INDEX) else None
        case _:
            return None


def _xz_text_bytes(index: bytes) -> int | None:
    """From the index at the end of a stream, which has the length of each block; numbers are in groups of 7 bits."""
    numbers, number, shift = [], 0, 0
    for byte in index[1:]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    blocks = numbers[0] if numbers else 0
    return sum(numbers[2 : 2 * blocks + 2 : 2]) if blocks and len(numbers) > 2 * blocks else None


def _by_blocks(source: Reader, read: int, text: int) -> int | None:
    """The length of a zstd frame's text, from the number of blocks in what was read and in all of it, by their headers."""
    size, head = source.size or 0, source.read(0, 18)
    known = list(itertools.islice(zstd_blocks(source, 0, head), _MOST_BLOCKS))
    *starts, end = zstd_header_bytes(head[4]), *(end for end, _ in known)
    if (before := bisect.bisect_left(starts, read)) < 2:
        return None
    surely = bisect.bisect_left(starts, read - 2 * _INPUT_BYTES)  # the decompressor is ahead of the text
    usual = text / before <= LARGEST_BLOCK <= text / max(1, surely)
    blocks = len(known) if known[-1][1] else len(known) * size / end  # as many as follow at this rate
    return round(blocks * (LARGEST_BLOCK if usual else text / before))


def _zstd_window(head: bytes) -> int:
    """From the frame header: the window, or the content size in a frame without one."""
    flags = head[4]
    if not flags & 0x20:
        return (1 << (10 + (head[5] >> 3))) // 8 * (8 + (head[5] & 7))
    at, size = 5 + (0, 1, 2, 4)[flags & 3], (1, 2, 4, 8)[flags >> 6]
    return int.from_bytes(head[at : at + size], "little")


class Decompressed:
    """The decompressed bytes of a file, as a Reader. Going back before done_until means starting over, at begin().

    spool is a folder for the replay buffer, should it outgrow memory.
    """

    def __init__(
        self, source: Reader, kind: Compression, *, max_window: int = LEAST_WINDOW, spool: str | None = None
    ) -> None:
        self.path = source.path
        self._source, self._kind, self._max_window, self._spool = source, kind, max_window, spool
        self._done, self._jump = 0, (0, 0)
        self._head, self._members = b"", _members_of(source, kind)
        self.until: tuple[int, int] | None = None
        """(frame, bytes): the text ends this many bytes after the start of the frame at that byte of the file."""
        self._begin()

    @property
    def size(self) -> int | None:
        return self._end if self._at_end else None

    @property
    def reached(self) -> bool:
        """Whether the text was read up to `until`."""
        return self._stop is not None and self._end == self._stop

    def begin(self, frame: int, text: int) -> None:
        """Go on at the frame that begins at this byte of the file; the first byte of its text is number `text`."""
        if text and not self._head:
            self._head = self.read(0, HEAD_BYTES)
        self._jump = (frame, text) if text else (0, 0)
        if text or self._buffer.start:
            self._begin(*self._jump)

    def read(self, offset: int, length: int) -> bytes:
        """As in every Reader; a damaged stream ends where the damage is (see damage)."""
        return b"".join(self.pieces(offset, length))

    def pieces(self, offset: int, length: int) -> list[Data]:
        """The same, in pieces."""
        if offset < self._buffer.start:
            if self._head and offset + length <= HEAD_BYTES:  # all formats look there, wherever they begin
                return [self._head[offset : offset + length]]
            self._begin(*(self._jump if offset >= self._jump[1] else (0, 0)))
        while self._end < offset + length and not self._at_end and self.damage is None:
            self._advance(offset + length)
        return self._buffer.pieces(offset, min(offset + length, self._end))

    def done_until(self, offset: int) -> None:
        self._done = max(self._done, offset)
        frame, text = self._jump
        if self._end < text <= self._done:  # nothing in between is needed
            self._begin(frame, text)
            self._done = offset
        self._drop()

    def frame(self, offset: int) -> tuple[int, int]:
        """The last frame that starts at or before this byte of text: its offsets in the file and in the text."""
        return max((start for start in self._frames if start[1] <= offset), default=(0, 0))

    def spent(self, offset: int) -> int:
        """How many compressed bytes were read to get the text up to offset."""
        return self._taken[min(bisect.bisect_left(self._taken, [offset]), len(self._taken) - 1)][1]

    @property
    def _end(self) -> int:
        return self._buffer.end

    def _begin(self, frame: int = 0, text: int = 0) -> None:
        self.damage: str | None = None
        """Why the text ends too early."""
        self._buffer = Spool(self.path, self._spool, text)
        self._done = 0
        self._at_end = False
        self._stop: int | None = None
        self._frames: deque[tuple[int, int]] = deque()
        self._members.begin(frame)
        self._taken = [[text, self._members.taken]]
        """Where the text ended when so many bytes of the file had been taken."""

    def _advance(self, until: int) -> None:
        """Decompress a little more: not far beyond that byte of the text."""
        try:
            if self._members.ended:
                self._next_member()
            else:
                self._taken += self._members.add_to(self._buffer, min(until, self._stop or until) - self._end)
        except _FAILURES as e:
            self.damage = f"the {self._kind} data is damaged {self._where()}: {e}"
        if self._stop is not None and self._end >= self._stop:
            self._buffer.cut(self._stop)
            self._at_end = True
        if self._taken[-1][1] == self._members.taken:
            self._taken.pop()
        self._taken.append([self._end, self._members.taken])
        self._drop()

    def _where(self) -> str:
        """In numbers that do not depend on where reading began."""
        frame, text = self._frames[-1] if self._frames else (0, 0)
        part = f" of the part at byte {frame:,} of the file" if frame else ""
        return f"after {self._end - text:,} bytes of text{part}"

    def _next_member(self) -> None:
        """Start the next member, frame or stream."""
        head, at = self._members.head(), self._members.at
        if not head:
            self._at_end = True
            return
        if compression_of(head) != self._kind and self._kind != "snappy":
            raise ValueError(f"no {self._kind} data follows at byte {at:,}")
        if self._kind != "snappy" and window_of(head) > self._max_window:
            raise ValueError(
                f"it needs a window of {window_of(head) >> 20} MiB of memory, more than the first parts of the inputs; decompress it first"
            )
        self._frames.append((at, self._end))
        if self.until is not None and at == self.until[0]:
            self._stop = self._end + self.until[1]
        self._members.open()

    def _drop(self) -> None:
        self._buffer.drop(self._done - _LOOK_BACK)
        del self._taken[: min(bisect.bisect_left(self._taken, [self._done]), len(self._taken) - 1)]
        while len(self._frames) > 1 and self._frames[1][1] <= self._done:
            self._frames.popleft()
        self._source.done_until(max(0, self._members.taken - _INPUT_BYTES))


class _Members(Protocol):
    """The members, frames or streams of a file, decompressed one after the other."""

    ended: bool
    """Whether the next one is to be begun."""

    @property
    def taken(self) -> int:
        """How many bytes of the file were taken."""

    @property
    def at(self) -> int:
        """Where in the file the next member begins."""

    def begin(self, frame: int) -> None:
        """Go on at the member that begins at this byte of the file."""

    def head(self) -> bytes:
        """The first bytes of the next member; none: the file ends."""

    def open(self) -> None:
        """Begin with the next member."""

    def add_to(self, text: Spool, wanted: int) -> list[list[int]]:
        """Add some text of this member; returns where it ended when so many bytes of the file had been taken, if they were
        taken more than once. Raises one of _FAILURES if there is none."""


def _members_of(source: Reader, kind: Compression) -> _Members:
    in_c = zstd.library() if kind == "zstd" and local_file(source, 0, 0) is not None else None
    return _InPython(source, kind) if in_c is None else zstd.Frames(source, in_c, _INPUT_BYTES, _OUTPUT_BYTES)


class _InPython:
    """Those of any kind, from any source."""

    def __init__(self, source: Reader, kind: Compression) -> None:
        self._source, self._kind = source, kind
        self.begin(0)

    def begin(self, frame: int) -> None:
        self._member: _Member | None = None
        self._is_first = frame == 0
        self._input, self.ended = b"", True
        # Blocks of input have the same offsets, whichever member is the first.
        self.taken = frame // _INPUT_BYTES * _INPUT_BYTES
        if frame:
            self._source.done_until(self.taken)
            self._more_input()
            self._input = self._input[frame % _INPUT_BYTES :]

    @property
    def at(self) -> int:
        return self.taken - len(self._input)

    def head(self) -> bytes:
        while len(self._input) < zstd.HEAD and self._more_input():
            pass
        if not self._is_first and self._kind != "zstd":  # zeros after the last are padding
            self._input = self._input.lstrip(b"\0")
            while len(self._input) < zstd.HEAD and self._more_input():
                self._input = self._input.lstrip(b"\0")
        return self._input

    def open(self) -> None:
        self._member, self.ended, self._is_first = _MEMBERS[self._kind](), False, False

    def add_to(self, text: Spool, wanted: int) -> list[list[int]]:  # noqa: ARG002
        member, data = self._member, b""
        assert member is not None
        if member.needs_input:
            if not self._input and not self._more_input():
                raise EOFError("the file is truncated")
            data, self._input = self._input, b""
        if found := member.decompress(data, _OUTPUT_BYTES):
            text.append(found)
        if member.eof:
            self._input, self._member, self.ended = member.unused_data, None, True
        return []

    def _more_input(self) -> bool:
        more = self._source.read(self.taken, _INPUT_BYTES)
        self.taken += len(more)
        self._input += more
        return bool(more)


class _Gzip:
    """zlib with the interface of the others."""

    def __init__(self) -> None:
        self._inner = deflate.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(out) < max_length
        return out


_Member = _Gzip | Snappy | bz2.BZ2Decompressor | lzma.LZMADecompressor | zstd.ZstdDecompressor
"""Decompresses one member, frame or stream."""
_MEMBERS: dict[Compression, Callable[[], _Member]] = {
    "gzip": _Gzip,
    "zstd": zstd.new_decompressor,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "snappy": Snappy,  # for pages of Parquet; Snappy files are not supported
}
