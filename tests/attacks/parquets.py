"""Parquet files as no library would write them: one column of text, with pages whose headers say whatever they like."""

import struct

from shardmill.documents.columnar.pages import Chunk
from shardmill.documents.long_values import BytesReader


class Long(int):
    """A number that Parquet writes as one of 64 bits; others have 32."""


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def thrift(value):
    """The type of a value in Thrift's compact protocol, and its bytes; a dict is a struct, by the numbers of its fields."""
    match value:
        case int():
            return (6 if isinstance(value, Long) else 5), varint(value << 1)
        case bytes():
            return 8, varint(len(value)) + value
        case list():  # of fewer than 15 items
            kinds, items = zip(*map(thrift, value), strict=True)
            return 9, bytes([len(items) << 4 | kinds[0]]) + b"".join(items)
        case dict():
            out, last = b"", 0
            for number, (kind, data) in ((number, thrift(item)) for number, item in sorted(value.items())):
                out += bytes([(number - last) << 4 | kind]) + data
                last = number
            return 12, out + b"\0"


def pages_of(data, start=0, length=None, values=1 << 40):
    """The pages of a column chunk, as our own reader finds them."""
    reader = BytesReader("a.parquet", data)
    length = len(data) if length is None else length
    return list(
        Chunk(
            reader=reader, start=start, length=length, size=length, values=values, codec="UNCOMPRESSED", max_level=0
        ).pages()
    )


def plain(*values):
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def page(body, values, *, encoding=0, size=None, extra=b""):
    """A page of data; extra are further fields of its header."""
    told = {1: values, 2: encoding, 3: 3, 4: 3}
    head = thrift({1: 0, 2: len(body) if size is None else size, 3: len(body), 5: told})[1]
    return head[:-1] + extra + b"\0" + body


def dictionary(body, values):
    return thrift({1: 2, 2: len(body), 3: len(body), 7: {1: values, 2: 0}})[1] + body


def file(*pages, rows, in_group=None, codec=0, changes=()):
    """A file of one row group; the first of several pages is its dictionary. changes are fields of the column chunk."""
    chunk = b"".join(pages)
    first = len(pages[0]) if len(pages) > 1 else 0
    sizes = {5: Long(rows), 6: Long(len(chunk)), 7: Long(len(chunk)), 9: Long(4 + first)}
    meta = {1: 6, 2: [0], 3: [b"text"], 4: codec, **sizes, **({11: Long(4)} if first else {}), **dict(changes)}
    group = {1: [{2: Long(4), 3: meta}], 2: Long(len(chunk)), 3: Long(rows if in_group is None else in_group)}
    schema = [{4: b"schema", 5: 1}, {1: 6, 3: 0, 4: b"text", 6: 0}]
    footer = thrift({1: 1, 2: schema, 3: Long(rows), 4: [group]})[1]
    return b"PAR1" + chunk + footer + struct.pack("<I", len(footer)) + b"PAR1"
