"""An Arrow IPC file or stream (Feather, what datasets saves) → Parts of rows of its text column."""

import io
import itertools
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.documents.columnar.columns import (
    Rows,
    RowsPart,
    ShortValues,
    Values,
    choose_column,
    fitting,
    long_value,
    parts_of,
)
from shardmill.documents.columnar.filtered import Column, Kept, columns_of, inside, lenient, scalars, texts
from shardmill.documents.long_values import BytesReader, ValuePart
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, damage_of, lost
from shardmill.documents.rejects import Location
from shardmill.documents.rules import MAX_RECORDS, TextRules, block_bytes
from shardmill.errors import ContentError, ShardmillError
from shardmill.io.reading import Reader, local_reader
from shardmill.system import machine
from shardmill.system.names import show
from shardmill.tokens.strings import Flags

_MAGIC = b"ARROW1"
_CONTINUES = b"\xff\xff\xff\xff"
# Batches to sample beforehand, unless they are further into the file than this.
_SAMPLES = 16
_FAR = 64 << 20
_MOST_HEADER = 16 << 20
# Of how many batches of a file it is known where they begin.
_MOST_KNOWN = 1 << 16
_DICTIONARY, _BATCH = 2, 3
_FAILURES = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError)
_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def read_parts(
    start: Position, reader: Reader, base: int, rules: TextRules, until: int | None = None
) -> Iterator[RowsPart | ValuePart | Counted]:
    """All rows of one file in order, from start on, to its end or to the batch that begins at byte `until`."""
    source = ReaderFile(reader, rules.max_held)
    row = 0
    of: Rows | None = None
    try:
        if reader.read(0, len(_MAGIC)) == _MAGIC:
            source.read(8)  # a file contains a stream: read as such, it needs no footer
        # Arrow's default allocator keeps what it once had; the system's returns it.
        stream = pa.ipc.open_stream(pa.PythonFile(source, mode="r"), memory_pool=pa.system_memory_pool())
        top, names = choose_column(stream.schema, rules.field, reader.path)
        filtered_by = columns_of(stream.schema, rules.where, reader.path)
        if start.offset and (known := _batches_of(reader)) is not None:
            row, at = known.before(reader, start.offset)
            if at:
                if known.dictionaries:
                    _next_batch(stream, source, reader)  # the first one, which they precede
                source.seek(at)
        of = Rows(file=start.file, path=reader.path, base=base, offset=source.tell())
        while until is None or source.tell() < until:
            batch = _next_batch(stream, source, reader)
            if batch is None:
                break
            if row + len(batch) > start.record:
                column = inside(batch.column(top), names)
                kept = _kept(batch, row, filtered_by, of, rules) if filtered_by else None
                yield from parts_of(_values(column, of, row, start.record, rules), of, start, rules, kept)
            row += len(batch)
            of = Rows(file=start.file, path=reader.path, base=base, offset=source.tell())
            reader.done_until(source.tell())
        if until is None and source.ended:
            raise OSError(damage_of(reader) or "its end-of-stream marker is missing")
    except _FAILURES as e:
        if source.failure is not None:
            raise source.failure from e
        brief = " ".join(str(e).split())[:300] + ("; the file is truncated" if source.ended else "")
        if of is None:
            raise ContentError(
                f"{show(reader.path)}: its Arrow schema cannot be read ({brief}); the file is damaged or truncated: fetch it again"
            ) from e
        yield lost(start.file, Location(path=reader.path, row=row), "row", brief)


def entry(reader: Reader, file: int, offset: int) -> Position | None:
    """The first record batch at or after this byte of a local file."""
    known = _batches_of(reader)
    found = None if known is None else known.behind(reader, offset)
    return None if found is None else Position(file=file, offset=found[1], record=found[0], spent=found[1])


def largest_batch(reader: Reader) -> int:
    """Bytes of the largest of the first record batches, from their headers alone: what must be held at once. What no
    machine could hold is told when it is read."""
    at = 8 if reader.read(0, len(_MAGIC)) == _MAGIC else 0
    most = 0
    for message in itertools.islice(_messages(reader, at), _SAMPLES):
        most = max(most, message.size if message.size <= machine.memory() else 0)
        if message.end > _FAR:
            break
        reader.done_until(message.end)
    return most


class _Batches:
    """Where record batches of a file begin, but for the first one, found by their headers as far as anyone asked: of small
    ones, some. Up to the first dictionary behind one of them: it replaces or extends another, so that reading cannot begin
    after it."""

    def __init__(self, begins: int, size: int) -> None:
        self.dictionaries = False
        self._at: int | None = begins
        self._row = self._batches = 0
        self._rows, self._starts = array("q"), array("q")
        self._apart = size // _MOST_KNOWN
        self._lock = threading.Lock()

    def behind(self, reader: Reader, offset: int) -> tuple[int, int] | None:
        """The first row of the first known batch at or after this byte, and where the batch begins."""
        with self._lock:
            while not (self._starts and self._starts[-1] >= offset):
                if not self._find_one(reader):
                    return None
            index = bisect_left(self._starts, offset)
            return self._rows[index], self._starts[index]

    def before(self, reader: Reader, offset: int) -> tuple[int, int]:
        """The same of the last known batch that begins at or before this byte; (0, 0): there is none."""
        with self._lock:
            while not (self._starts and self._starts[-1] > offset) and self._find_one(reader):
                pass
            index = bisect_right(self._starts, offset) - 1
            return (self._rows[index], self._starts[index]) if index >= 0 else (0, 0)

    def _find_one(self, reader: Reader) -> bool:
        """The next batch that is to be known."""
        while self._at is not None:
            message = next(_messages(reader, self._at), None)
            if message is None or (message.kind == _DICTIONARY and self._batches):
                self._at = None
                return False
            begins, row = self._at, self._row
            self._at = message.end
            self.dictionaries |= message.kind == _DICTIONARY
            if message.kind == _BATCH:
                self._row += message.rows
                self._batches += 1
                if self._batches > 1 and begins >= self._apart + (self._starts[-1] if self._starts else 0):
                    self._rows.append(row)
                    self._starts.append(begins)
                    return True
        return False


def _batches_of(reader: Reader) -> _Batches | None:
    local = local_reader(reader)
    if local is None:
        return None
    begins = 8 if reader.read(0, len(_MAGIC)) == _MAGIC else 0
    found: _Batches = local.file.noted.setdefault("batches", _Batches(begins, local.size))
    return found


class ReaderFile(io.RawIOBase):
    """A Reader as the file object that Arrow wants. It refuses to read more at once than is reserved."""

    def __init__(self, reader: Reader, most: int) -> None:
        self._reader, self._most, self._at = reader, most, 0
        self.ended = False
        """The last read reached the end of the file."""
        self.failure: ShardmillError | None = None
        """What went wrong with the input itself: Arrow may report it as a damaged file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._reader.size is not None

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.size or 0}[whence]
        return self._at

    def read(self, count: int | None = -1) -> bytes:
        wanted = count if count is not None and count >= 0 else 1 << 62
        self.refuse_more(wanted if self._reader.size is None else min(wanted, self._reader.size - self._at))
        try:
            data = self._reader.read(self._at, wanted)
        except ShardmillError as e:
            self.failure = e
            raise
        self._at += len(data)
        self.ended = len(data) < wanted
        return data

    def refuse_more(self, size: int) -> None:
        """Raise ValueError for more bytes than may be held."""
        if size > self._most:
            raise ValueError(f"{size:,} bytes would have to be held at once, and there is room for {self._most:,}")


def _next_batch(stream: Any, source: ReaderFile, reader: Reader) -> Any:
    for message in _messages(reader, source.tell()):  # dictionaries, then a batch
        source.refuse_more(message.size)
        if message.kind == _BATCH:
            break
    return next(stream, None)


def _kept(batch: Any, row: int, columns: tuple[Column, ...], of: Rows, rules: TextRules) -> Callable[[int, int], Flags]:
    """Which rows of a batch, which begins with this one, are wanted."""
    arrays = [(column.is_text, inside(batch.column(column.top), column.names)) for column in columns]
    loose = lenient(rules)
    found = [texts(_values(array, of, row, row, loose)) if is_text else scalars(array) for is_text, array in arrays]
    assert rules.where is not None
    return Kept(row, len(batch), rules.where, found).rows


def _values(array: Any, of: Rows, row: int, skip_to: int, rules: TextRules) -> Iterator[tuple[int, Values]]:
    """The values of an array, a window of text at a time, with the number of their first row."""
    array = _as_bytes(array)
    array.validate(full=True)  # a damaged file may have offsets that lead anywhere
    words = np.append(_sizes(array.dictionary), 0) if pa.types.is_dictionary(array.type) else None  # the last is null's
    at = max(0, skip_to - row)
    while at < len(array):
        part = array.slice(at, MAX_RECORDS)
        sizes = _sizes(part) if words is None else words[part.indices.cast(pa.int64()).fill_null(len(words) - 1)]
        count = fitting(sizes, block_bytes(of.file, row + at, rules), rules.max_run_bytes)
        values, size = ShortValues.of_array(part.slice(0, count)), int(sizes[0])
        long = size > rules.max_run_bytes  # then it is the only one
        yield row + at, long_value(BytesReader(of.path, values.texts[0]), 0, size, rules) if long else values
        at += count


def _as_bytes(array: Any) -> Any:
    """The same array without the claim that it is UTF-8."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _as_bytes(array.dictionary), safe=False)
    return array.view(_AS_BYTES.get(array.type, array.type))


def _sizes(array: Any) -> Any:
    """The bytes of each value; null has none, whatever its offsets say."""
    numbers = np.frombuffer(array.buffers()[1] or b"", np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    if pa.types.is_binary_view(array.type):  # the first of four numbers is the size
        sizes = numbers[::4][array.offset :][: len(array)].astype(np.int64)
    else:
        sizes = np.diff(numbers[array.offset : array.offset + len(array) + 1]).astype(np.int64)
    return sizes if not array.null_count else np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    kind: int
    rows: int
    """Of a batch."""
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
    if batch and _field(data, batch, 3):  # it is compressed: each buffer begins with its size, unless it is empty
        buffers = _follow(data, _field(data, batch, 2))
        for i in range(_number(data, buffers, "<I")):
            offset, held = struct.unpack_from("<qq", data, buffers + 4 + 16 * i)
            if not 0 <= offset <= offset + held <= body:
                raise IndexError
            if held:
                expanded += max(0, int.from_bytes(reader.read(at + size + offset, 8), "little", signed=True))
    length = _field(data, batch, 0) if batch else 0
    return _Message(
        kind=data[kind] if kind else 0,
        rows=_number(data, length, "<q") if length else 0,
        size=max(size, body, expanded),
        end=at + size + body,
    )


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
