"""Where the frames of a .zst file begin, or the members of a .gz file in BGZF: by their headers, without decompressing."""

from shardmill.io.reading import Reader

# A frame is looked for in so many headers, which takes some milliseconds; a larger one is read as if it were the last.
_MOST_HEADERS = 20_000
_ZSTD, _SKIPPABLE = 0xFD2FB528, range(0x184D2A50, 0x184D2A60)
_BGZF, _BGZF_EXTRA = b"\x1f\x8b\x08\x04", b"BC\x02\x00"
_RLE, _RESERVED = 1, 3
_LARGEST_BLOCK = 128 << 10


def next_frame(source: Reader, frame: int, offset: int) -> int | None:
    """The first frame that begins at or after this byte, found from a frame before it.

    None: there is none nearby, or the headers make no sense or do not tell where a member ends.
    """
    at, left = frame, _MOST_HEADERS
    while left > 0:
        head = source.read(at, 18)
        magic = int.from_bytes(head[:4], "little")
        in_bgzf = head.startswith(_BGZF) and head[12:16] == _BGZF_EXTRA and len(head) == 18
        if not (magic == _ZSTD or (magic in _SKIPPABLE and len(head) >= 8) or in_bgzf):
            return None
        if at >= offset:
            return at
        left -= 1
        if magic == _ZSTD:
            end, left = _end_of_zstd(source, at, left)
            if end is None:
                return None
            at = end
        else:
            at += int.from_bytes(head[16:18], "little") + 1 if in_bgzf else 8 + int.from_bytes(head[4:8], "little")
    return None


def zstd_header_bytes(flags: int) -> int:
    """How long the header of a frame is, by its fifth byte."""
    single = flags >> 5 & 1
    return 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]


def _end_of_zstd(source: Reader, at: int, left: int) -> tuple[int | None, int]:
    """Where a frame ends, by the headers of its blocks; and how many more headers may be read."""
    flags = source.read(at + 4, 1)
    at += zstd_header_bytes(flags[0]) if flags else 0
    while left > 0:
        left -= 1
        data = source.read(at, 3)
        header = int.from_bytes(data, "little")
        kind, size = header >> 1 & 3, header >> 3
        if len(data) < 3 or kind == _RESERVED or size > _LARGEST_BLOCK:
            return None, left
        at += 3 + (1 if kind == _RLE else size)
        if header & 1:
            return at + (4 if flags[0] & 4 else 0), left  # behind the checksum
    return None, left
