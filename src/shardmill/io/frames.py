"""Where the frames of a .zst file begin, or the members of a .gz file in BGZF: by their headers, without decompressing."""

import itertools
from collections.abc import Iterator

from shardmill.io import zstd
from shardmill.io.reading import Reader, local_file

# How far a frame is looked for, in some thousands of headers. Where there is none, the file is read as if it had no other.
_FAR = 256 << 20
_ZSTD = 0xFD2FB528
SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_BGZF, _BGZF_EXTRA = b"\x1f\x8b\x08\x04", b"BC\x02\x00"
_RLE, _RESERVED = 1, 3
_SHORTEST = 9  # frame
LARGEST_BLOCK = 128 << 10  # what a block of zstd decompresses to at most, and usually


def next_frame(source: Reader, frame: int, offset: int) -> int | None:
    """The first frame that begins at or after this byte, found from a frame before it.

    None: there is none nearby, or the headers make no sense or do not tell where a member ends.
    """
    at: int | None = frame
    while at is not None and at < offset + _FAR:
        head = source.read(at, 18)
        magic = int.from_bytes(head[:4], "little")
        in_bgzf = head.startswith(_BGZF) and head[12:16] == _BGZF_EXTRA and len(head) == 18
        is_skippable = magic in SKIPPABLE and len(head) >= 8
        if not (magic == _ZSTD or is_skippable or in_bgzf):
            return None
        if at >= offset:
            return at
        if magic == _ZSTD:
            at = _end_of_zstd(source, at, head, offset + _FAR)
        else:
            at += int.from_bytes(head[16:18], "little") + 1 if in_bgzf else 8 + int.from_bytes(head[4:8], "little")
    return None


def zstd_header_bytes(flags: int) -> int:
    """How long the header of a frame is, by its fifth byte."""
    single = flags >> 5 & 1
    return 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]


def _end_of_zstd(source: Reader, at: int, head: bytes, most: int) -> int | None:
    """Where a frame ends; None: further away than that, or it makes no sense."""
    if len(head) < _SHORTEST:
        return None
    if (file := local_file(source, 0, most)) is not None:
        end = zstd.last_block(*file, at + zstd_header_bytes(head[4]))
    else:
        near = itertools.takewhile(lambda block: block[1] or block[0] < most, zstd_blocks(source, at, head))
        end = next((end for end, is_last in near if is_last), None)
    return None if end is None else end + (4 if head[4] & 4 else 0)  # after the checksum


def zstd_blocks(source: Reader, at: int, head: bytes) -> Iterator[tuple[int, bool]]:
    """Where each block of a frame ends, by their headers, and whether it is the last; fewer if they make no sense."""
    at, is_last = at + zstd_header_bytes(head[4]), False
    while not is_last:
        data = source.read(at, 3)
        header = int.from_bytes(data, "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if len(data) < 3 or kind == _RESERVED or (kind != _RLE and size > LARGEST_BLOCK):
            return
        at += 3 + (1 if kind == _RLE else size)
        yield at, is_last
