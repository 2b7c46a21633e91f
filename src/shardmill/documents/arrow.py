"""An Arrow IPC file or stream (Feather, what datasets saves) → Parts of rows of its text column."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from shardmill.documents.columns import File, Rows, RowsPart, TooLarge, choose_column, inside, parts_of
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted, Place, ValuePart
from shardmill.documents.rules import TextRules
from shardmill.errors import InputError
from shardmill.names import show
from shardmill.reading import Reader

# A record batch up to this size is taken without having been seen beforehand.
MOST = 1 << 30
_MAGIC = b"ARROW1"
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
        brief = " ".join(str(e).split())[:300] + ("; the file was cut short" if source.ended else "")
        if of is None:
            raise InputError(
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
    """The bytes of the first record batch: what must be held at once, if the others are like it."""
    source = _Measured(reader, MOST)
    try:
        batches, _ = _open(source, reader)
        next(batches, None)
    except _FAILURES:
        pass
    return source.most


class _Measured(File):
    """Remembers the largest read."""

    most = 0

    def read(self, count: int | None = -1) -> bytes:
        self.most = max(self.most, count or 0)
        return super().read(count)
