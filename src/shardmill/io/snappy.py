"""Raw Snappy, the default codec of Parquet, streamed: the library decompresses only whole pages.

So it gets small pages built here: the last 64 KiB of output as a literal, followed by the next elements.
"""

# Compressors work in blocks of this size, so no element refers further back.
_FARTHEST = 64 << 10
_LONGEST_ELEMENT = 1 << 20
_LITERAL_OF_FOUR_BYTES = 63 << 2


def _element(tag: int) -> tuple[int, int]:
    """The length of an element with this tag, and of its output; (0, 0) for a long literal."""
    match tag & 3, tag >> 2:
        case 0, size:
            return (size + 2, size + 1) if size < 60 else (0, 0)
        case 1, size:
            return 2, 4 + (size & 7)
        case kind, size:
            return (3 if kind == 2 else 5), size + 1


_LENGTHS, _OUTPUTS = zip(*map(_element, range(256)), strict=True)


class Snappy:
    """Decompresses one page: the interface of bz2 and zstd."""

    def __init__(self) -> None:
        import pyarrow as pa  # takes memory and time that a job without Parquet does not have to spend

        self._codec = pa.Codec("snappy")
        self._input = self._window = b""
        self._missing = -1
        """Bytes of output still to come; -1 before the preamble was read."""
        self.unused_data = b""
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._missing == 0

    def decompress(self, data: bytes, _max_length: int = -1, /) -> bytes:
        source = self._input + data
        start = 0 if self._missing >= 0 else self._preamble(source)
        at, size = _whole_elements(source, start) if self._missing > 0 else (start, 0)
        if size > max(0, self._missing):
            raise ValueError("there is more data than its preamble says")
        if at == start and len(source) > _LONGEST_ELEMENT:
            raise ValueError("it is not made of blocks of 64 KiB")
        self._missing -= size
        self._input, self.unused_data = (b"", source[at:]) if self.eof else (source[at:], b"")
        return self._decompress(source[start:at], size) if size else b""

    def _preamble(self, source: bytes) -> int:
        """Read the length of the output; returns the length of the preamble, 0 if it is not complete."""
        size = 0
        for at, byte in enumerate(source[:5]):
            size |= (byte & 127) << 7 * at
            if byte < 128:
                self._missing = size
                return at + 1
        return 0

    def _decompress(self, elements: bytes, size: int) -> bytes:
        before = len(self._window)
        if before:
            elements = bytes([_LITERAL_OF_FOUR_BYTES]) + (before - 1).to_bytes(4, "little") + self._window + elements
        preamble = [before + size >> shift & 127 | 128 for shift in (0, 7, 14, 21)]  # padded to five bytes
        page = bytes([*preamble, before + size >> 28]) + elements
        data = bytes(self._codec.decompress(page, before + size, asbytes=True))
        self._window = data[-_FARTHEST:]
        return data[before:]


def _whole_elements(source: bytes, at: int) -> tuple[int, int]:
    """Where the last complete element ends, and the length of the output up to there."""
    size, end = 0, len(source)
    while at < end:
        tag = source[at]
        following, output = at + _LENGTHS[tag], _OUTPUTS[tag]
        if not output:
            start = at + (tag >> 2) - 58
            output = int.from_bytes(source[at + 1 : start], "little") + 1
            following = start + output
        if following > end:
            break
        at = following
        size += output
    return at, size
