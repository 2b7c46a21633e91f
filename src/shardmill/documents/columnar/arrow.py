"""An Arrow IPC file or stream (Feather, what datasets saves) → Parts of rows of its text column."""

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardmill.documents.columnar.columns import File, Rows, RowsPart, TooLarge, choose_column, inside, parts_of
from shardmill.documents.long_values import ValuePart
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import TextRules
from shardmill.errors import ContentError
from shardmill.io.reading import Reader
from shardmill.system.names import show

_MAGIC = b"ARROW1"
_CONTINUES = b"\xff\xff\xff\xff"
# So many batches are looked at beforehand, unless they lie further in than this.
_LOOKS = 16
_FAR = 64 << 20
_MOST_HEADER = 16 << 20
_DICTIONARY, _BATCH = 2, 3
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
            location=Location(path=reader.path, row=row),
            complaint=f"the rest of the file, from this row on, is lost: {brief}",
        )


def _open(source: File, reader: Reader) -> tuple[Iterator[Any], Any]:
    """Record batches in order. A file is read as the stream that it holds: so a lost footer loses nothing."""
    if reader.read(0, len(_MAGIC)) == _MAGIC:
        source.read(8)
    stream = pa.ipc.open_stream(pa.PythonFile(source, mode="r"))
    return _batches(stream, source, reader), stream.schema


def _batches(stream: Any, source: File, reader: Reader) -> Iterator[Any]:
    while True:
        for size in _sizes(reader, source.tell()):
            source.refuse_more(size)
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            return
        yield batch


def largest_batch(reader: Reader) -> int:
    """The bytes of the largest of the first record batches, from their headers alone: what must be held at once."""
    at = 8 if reader.read(0, len(_MAGIC)) == _MAGIC else 0
    most = 0
    for message in itertools.islice(_messages(reader, at), _LOOKS):
        most = max(most, message.size)
        if message.end > _FAR:
            break
        reader.done_until(message.end)
    return most


def _sizes(reader: Reader, at: int) -> Iterator[int]:
    """What the messages up to the next record batch take: dictionaries, and the batch."""
    for message in _messages(reader, at):
        yield message.size
        if message.is_batch:
            return


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    is_batch: bool
    size: int
    """Of its header, its body, or what the body decompresses to, the largest."""
    end: int


def _messages(reader: Reader, at: int) -> Iterator[_Message]:
    """The messages from there on, as their headers tell; up to one that is damaged, as is told when it is read."""
    while True:
        head = reader.read(at, 8)
        mark = 4 if head.startswith(_CONTINUES) else 0  # streams of old have none
        size = int.from_bytes(head[mark : mark + 4], "little")
        at += mark + 4
        if not 0 < size <= _MOST_HEADER:
            return
        try:
            message = _message(reader, at, size)
        except (struct.error, IndexError):
            return
        if not at + size <= message.end <= (1 << 62 if reader.size is None else reader.size):
            return
        yield message
        at = message.end


def _message(reader: Reader, at: int, size: int) -> _Message:
    """From its flatbuffer: a Message of a schema, a DictionaryBatch or a RecordBatch."""
    data = reader.read(at, size)
    root = _follow(data, 0)
    kind, place = _field(data, root, 1), _field(data, root, 3)
    body = _number(data, place, "<q") if place else 0
    batch = _follow(data, _field(data, root, 2)) if kind and data[kind] in (_DICTIONARY, _BATCH) else 0
    if batch and data[kind] == _DICTIONARY:
        batch = _follow(data, _field(data, batch, 1))
    expanded = 0
    if batch and _field(data, batch, 3):  # it is compressed: each buffer begins with its size
        buffers = _follow(data, _field(data, batch, 2))
        for i in range(_number(data, buffers, "<I")):
            offset = _number(data, buffers + 4 + 16 * i, "<q")
            if not 0 <= offset <= body:
                raise IndexError
            expanded += max(0, int.from_bytes(reader.read(at + size + offset, 8), "little", signed=True))
    is_batch = bool(kind and data[kind] == _BATCH)
    return _Message(is_batch=is_batch, size=max(size, body, expanded), end=at + size + body)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table of a flatbuffer stands; 0: it is left out."""
    fields = table - _number(data, table, "<i")
    if 6 + 2 * number > _number(data, fields, "<H"):
        return 0
    offset = _number(data, fields + 4 + 2 * number, "<H")
    return table + offset if offset else 0


def _follow(data: bytes, at: int) -> int:
    return at + _number(data, at, "<I")


def _number(data: bytes, at: int, kind: str) -> int:
    return int(struct.unpack_from(kind, data, at)[0])
