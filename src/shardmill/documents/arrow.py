"""An Arrow IPC file or stream (Feather, what datasets saves) → Parts of rows of its text column."""

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from shardmill.documents.columns import File, Rows, RowsPart, TooLarge, choose_column, inside, parts_of
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Place, ValuePart
from shardmill.documents.rules import TextRules
from shardmill.errors import ContentError
from shardmill.names import show
from shardmill.reading import Reader

_MAGIC = b"ARROW1"
_CONTINUES = b"\xff\xff\xff\xff"
# So many batches are looked at beforehand, unless they lie further in than this.
_LOOKS = 16
_FAR = 64 << 20
_MOST_HEADER = 16 << 20
_MOST_BODY = 1 << 40
_FAILURES = (pa.ArrowException, OSError, TooLarge, MemoryError, ValueError, OverflowError)


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules
) -> Iterator[RowsPart | ValuePart | Counted]:
    """All rows of one file in order, from start on."""
    source = File(reader, rules.max_held)
    row = 0
    of: Rows | None = None
    begin = start.begin
    try:
        batches, schema = _open(source, reader)
        top, names = choose_column(schema, rules.field, reader.path)
        of = Rows(file=start.file, path=reader.path, base=base, offset=source.tell())
        for batch in batches:
            if row + len(batch) > start.record:
                skipped = max(0, start.record - row)
                array = inside(batch.column(schema.get_field_index(top)), names).slice(skipped)
                yield from parts_of(array, of, row + skipped, begin, rules)
                begin = 0
            row += len(batch)
            of = Rows(file=start.file, path=reader.path, base=base, offset=source.tell())
            reader.done_until(source.tell())
        if source.ended:
            raise OSError(getattr(reader, "damage", None) or "it ends without its end mark")
    except _FAILURES as e:
        source.refuse_failure()
        brief = " ".join(str(e).split())[:300] + ("; the file was cut short" if source.ended else "")
        if of is None:
            raise ContentError(
                f"{show(reader.path)}: its Arrow schema cannot be read ({brief}); the file is damaged or was cut short: fetch it again"
            ) from e
        yield Counted(
            file=start.file,
            after=Position(file=start.file + 1),
            place=Place(path=reader.path, row=row),
            complaint=f"the rest of the file, from this row on, is lost: {brief}",
        )


def _open(source: File, reader: Reader) -> tuple[Iterator[Any], Any]:
    """Record batches in order. A file is read as the stream that it holds: so a lost footer loses nothing."""
    if reader.read(0, len(_MAGIC)) == _MAGIC:
        source.read(8)
    stream = pa.ipc.open_stream(pa.PythonFile(source, mode="r"))
    return _batches(stream), stream.schema


def _batches(stream: Any) -> Iterator[Any]:
    while True:
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            return
        yield batch


def largest_batch(reader: Reader) -> int:
    """The bytes of the largest of the first record batches, from their headers alone: what must be held at once."""
    at = 8 if reader.read(0, len(_MAGIC)) == _MAGIC else 0
    most = 0
    for _ in range(_LOOKS):
        head = reader.read(at, 8)
        mark = 4 if head.startswith(_CONTINUES) else 0  # streams of old have none
        size = int.from_bytes(head[mark : mark + 4], "little")
        at += mark + 4
        if not 0 < size <= _MOST_HEADER or at > _FAR:
            break
        try:
            body = _body_bytes(reader.read(at, size))
        except struct.error:
            break
        if not 0 <= body <= (_MOST_BODY if reader.size is None else reader.size - at):
            break  # damaged; told when it is read
        most = max(most, size, body)
        at += size + body
        reader.done_until(at)
    return most


def _body_bytes(message: bytes) -> int:
    """How many bytes follow a message: the fourth field of its flatbuffer."""
    (table,) = struct.unpack_from("<I", message)
    (back,) = struct.unpack_from("<i", message, table)
    (size,) = struct.unpack_from("<H", message, table - back)
    if size < 12:
        return 0
    (place,) = struct.unpack_from("<H", message, table - back + 10)
    return int(struct.unpack_from("<q", message, table + place)[0]) if place else 0
