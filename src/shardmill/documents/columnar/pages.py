"""A column of a Parquet row group → the sizes of its pages, from their headers alone.

The library allocates whatever a page header asks for, so it is looked at before: one value of a gigabyte is
one page of a gigabyte. Headers are Thrift in its compact form; of their fields a few are of interest.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.io.reading import Reader

_HEADER_BYTES = 64 << 10
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_MOST = (1 << 31) - 1  # sizes and counts in a header are of 32 bits
_DEEPEST = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    size: int
    """Bytes when decompressed."""
    compressed: int
    values: int
    kind: int
    encoding: int
    levels: int = 0
    """Of a page of version 2: bytes before the values, never compressed, that tell which are null."""
    packed: bool = True
    """Of a page of version 2: whether the values are compressed at all."""
    at: int = 0
    """Where it begins, behind its header."""

    @property
    def is_dictionary(self) -> bool:
        return self.kind == _DICTIONARY

    @property
    def is_data(self) -> bool:
        return self.kind in (_DATA, _DATA_V2)

    @property
    def is_v2(self) -> bool:
        return self.kind == _DATA_V2


def pages_of(reader: Reader, start: int, length: int, values: int) -> Iterator[Page]:
    """The pages of a column chunk in order, until they hold so many values. Raises ValueError where there is no header."""
    at, end, seen = start, start + length, 0
    while at < end and seen < values:
        thrift = _Thrift(reader.read(at, min(512, end - at)))
        try:
            page = _page(thrift)
        except IndexError:  # statistics of long values make long headers
            thrift = _Thrift(reader.read(at, min(_HEADER_BYTES, end - at)))
            try:
                page = _page(thrift)
            except IndexError:
                raise ValueError(f"there is no page header at byte {at:,}") from None
        told = (page.size, page.compressed, page.values, page.levels)
        if min(told) < 0 or max(told) > _MOST or page.levels > page.compressed:
            raise ValueError(f"there is no page header at byte {at:,}")
        at += thrift.at
        yield dataclasses.replace(page, at=at)
        at += page.compressed
        seen += page.values if page.is_data else 0


def _page(thrift: "_Thrift") -> Page:
    found = thrift.struct()
    kind, size, compressed = (found.get(i, -1) for i in (1, 2, 3))
    if not all(isinstance(value, int) for value in (kind, size, compressed)):
        raise ValueError("a page header has fields of the wrong type")
    details = found.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(int(kind), 0))  # type: ignore[call-overload]
    told = details if isinstance(details, dict) else {}
    number = {name: value for name, value in told.items() if isinstance(value, int)}
    v2 = kind == _DATA_V2
    return Page(
        size=size,  # type: ignore[arg-type]
        compressed=compressed,  # type: ignore[arg-type]
        values=number.get(1, 0),
        kind=kind,  # type: ignore[arg-type]
        encoding=number.get(4 if v2 else 2, -1),
        levels=number.get(5, 0) + number.get(6, 0) if v2 else 0,
        packed=bool(number.get(7, True)),
    )


class _Thrift:
    """Reads Thrift's compact protocol; running out of bytes is an IndexError.

    Whatever it reads takes a byte at least, so that the work is bounded by the bytes, whatever they claim.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, object]:
        fields: dict[int, object] = {}
        number = 0
        while byte := self._byte():
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            fields[number] = self._value(byte & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> object:
        if depth > _DEEPEST:
            raise ValueError("a page header is nested too deeply")
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7 | 8:
                self._skip(8 if kind == 7 else self._varint())
                return None
            case 9 | 10:
                head = self._byte()
                count = self._varint() if head >> 4 == 15 else head >> 4
                for _ in range(count):  # in a list, a boolean is a byte
                    self._value(3 if head & 15 in (1, 2) else head & 15, depth + 1)
                return None
            case 12:
                return self.struct(depth + 1)
            case _:
                raise ValueError("a page header has a field of no known type")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
