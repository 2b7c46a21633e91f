"""Raw Snappy, the default of Parquet, a little at a time: the library only takes a page as a whole.

So it is given small pages of our making: what came last as a literal, and the next elements behind it.
"""

import pyarrow as pa

# No writer refers further back than a block of this size, since all compress in such blocks.
_FARTHEST = 64 << 10
_LONGEST_ELEMENT = 1 << 20
_LITERAL_OF_FOUR_BYTES = 63 << 2


def _element(tag: int) -> tuple[int, int]:
    """How many bytes an element takes, and how many it stands for; (0, 0) for a long literal."""
    match tag & 3, tag >> 2:
        case 0, size:
            return (size + 2, size + 1) if size < 60 else (0, 0)
        case 1, size:
            return 2, 4 + (size & 7)
        case kind, size:
            return (3 if kind == 2 else 5), size + 1


_TAKES, _GIVES = zip(*map(_element, range(256)), strict=True)


class Snappy:
    """One compressed page, with the manners of bz2's and zstd's objects."""

    def __init__(self) -> None:
        self._codec = pa.Codec("snappy")
        self._input = self._before = b""
        self._missing = -1
        """What is still to come, once the beginning told how much there is."""
        self.unused_data = b""
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._missing == 0

    def decompress(self, data: bytes, _max_length: int = -1, /) -> bytes:
        source = self._input + data
        start = 0 if self._missing >= 0 else self._begin(source)
        at, size = _whole_elements(source, start) if self._missing > 0 else (start, 0)
        if size > max(0, self._missing):
            raise ValueError("there is more text than its beginning says")
        if at == start and len(source) > _LONGEST_ELEMENT:
            raise ValueError("it is not made of blocks of 64 KiB")
        self._missing -= size
        self._input, self.unused_data = (b"", source[at:]) if self.eof else (source[at:], b"")
        return self._text(source[start:at], size) if size else b""

    def _begin(self, source: bytes) -> int:
        """The beginning of the page: how long its text is."""
        size = 0
        for at, byte in enumerate(source[:5]):
            size |= (byte & 127) << 7 * at
            if byte < 128:
                self._missing = size
                return at + 1
        return 0

    def _text(self, elements: bytes, size: int) -> bytes:
        before = len(self._before)
        if before:
            elements = bytes([_LITERAL_OF_FOUR_BYTES]) + (before - 1).to_bytes(4, "little") + self._before + elements
        page = _varint(before + size) + elements
        text = bytes(memoryview(self._codec.decompress(page, before + size)))
        self._before = text[-_FARTHEST:]
        return text[before:]


def _whole_elements(source: bytes, at: int) -> tuple[int, int]:
    """Where the last whole element ends, and how many bytes all of them stand for."""
    size, end = 0, len(source)
    while at < end:
        tag = source[at]
        following, gives = at + _TAKES[tag], _GIVES[tag]
        if not gives:
            start = at + (tag >> 2) - 58
            gives = int.from_bytes(source[at + 1 : start], "little") + 1
            following = start + gives
        if following > end:
            break
        at = following
        size += gives
    return at, size


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
