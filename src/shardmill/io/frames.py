"""Where the frames of a .zst file begin, or the members of a .gz file in BGZF: by their headers, without decompressing."""

from shardmill.io.reading import Reader

# How far a frame is looked for, in some thousands of headers. Where there is none, the file is read as if it had no other.
_FAR = 256 << 20
_ZSTD, _SKIPPABLE = 0xFD2FB528, range(0x184D2A50, 0x184D2A60)
_BGZF, _BGZF_EXTRA = b"\x1f\x8b\x08\x04", b"BC\x02\x00"
_RLE, _RESERVED = 1, 3
_LARGEST_BLOCK = 128 << 10


def next_frame(source: Reader, frame: int, offset: int) -> int | None:
    """The first frame that begins at or after this byte, found from a frame before it.

    None: there is none nearby, or the headers make no sense or do not tell where a member ends.
    """
    at: int | None = frame
    while at is not None and at < offset + _FAR:
        head = source.read(at, 18)
        magic = int.from_bytes(head[:4], "little")
        in_bgzf = head.startswith(_BGZF) and head[12:16] == _BGZF_EXTRA and len(head) == 18
        is_skippable = magic in _SKIPPABLE and len(head) >= 8
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
    """Where a frame ends, by the headers of its blocks; None: further away than that, or it makes no sense."""
    if len(head) < 9:  # the shortest frame
        return None
    at += zstd_header_bytes(head[4])
    while at < most:
        data = source.read(at, 3)
        header = int.from_bytes(data, "little")
        kind, size = header >> 1 & 3, header >> 3
        if len(data) < 3 or kind == _RESERVED or (kind != _RLE and size > _LARGEST_BLOCK):
            return None
        at += 3 + (1 if kind == _RLE else size)
        if header & 1:
            return at + (4 if head[4] & 4 else 0)  # behind the checksum
    return None
