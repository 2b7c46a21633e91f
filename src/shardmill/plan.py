"""InputFiles → Blocks: the units of work, cut as the files are read, the same for the same files and rules."""

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardmill.documents import text
from shardmill.documents.text import BEGINNING, Part, Position, TextRules
from shardmill.errors import InputError
from shardmill.sources import InputFile
from shardmill.spec import WHOLE_FILE_BYTES
from shardmill.storage import open_input, show

_MAX_PARTS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """About block_bytes of text in one or more Parts: one long stretch, or many small files."""

    index: int
    parts: tuple[Part, ...]
    input_bytes: int
    """Bytes of the inputs that are done with when this Block is, byte order marks included."""
    empty_files: int
    byte_order_marks: int
    after: Position
    """Where the next Block begins."""


def blocks(
    files: Sequence[InputFile],
    rules: TextRules,
    start: Position = BEGINNING,
    index: int = 0,
    *,
    drop_behind: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[Block]:
    """All text of all files in order, Block after Block; from start on, the first Block with this index.

    Set stop to have a thread that waits for bytes give up.
    """
    parts: list[Part] = []
    size = empty = marks = done = 0
    after = start
    reading = _Reading(drop_behind=drop_behind, stop=stop)
    for number, (file, base) in enumerate(zip(files, file_bases(files), strict=True)):
        if number < start.file:
            continue
        position = start if number == start.file else Position(file=number)
        end = position.offset
        for part in _parts_of(position, file, base, rules_for(files, file, rules), reading):
            if parts and (
                size + len(part.data) > (rules.block_bytes if index else text.FIRST_PART_BYTES)
                or len(parts) == _MAX_PARTS
            ):
                yield Block(
                    index=index,
                    parts=tuple(parts),
                    input_bytes=done,
                    empty_files=empty,
                    byte_order_marks=marks,
                    after=after,
                )
                parts, size, empty, marks, done, index = [], 0, 0, 0, 0, index + 1
            marks += end == 0 and part.offset > 0
            done += part.offset + len(part.data) - end
            end = part.offset + len(part.data)
            after = part.after
            parts.append(part)
            size += len(part.data)
        if end == 0:  # nothing in it, but perhaps a mark
            empty += 1
            marks += (file.size or 0) > 0
            done += file.size or 0
            after = Position(file=number + 1)
    if not (done or index) and (pipe := next((file for file in files if file.size is None), None)) is not None:
        raise InputError(
            f"{show(pipe.path)}: nothing to mill, {'standard input' if pipe.path == '-' else 'the pipe'} is empty; did the command before it fail?"
        )
    if done or empty:
        yield Block(
            index=index, parts=tuple(parts), input_bytes=done, empty_files=empty, byte_order_marks=marks, after=after
        )


def file_bases(files: Sequence[InputFile]) -> list[int]:
    """Where each file begins when all are laid end to end; a pipe, whose length is not known, counts as nothing."""
    bases, total = [], 0
    for file in files:
        bases.append(total)
        total += file.size or 0
    return bases


def rules_for(files: Sequence[InputFile], file: InputFile, rules: TextRules) -> TextRules:
    """Running text is judged for train or val by passages; a small file among others, as the document it is."""
    running = rules.separator is None and (len(files) == 1 or file.size is None or file.size > WHOLE_FILE_BYTES)
    return rules if running else dataclasses.replace(rules, passage_bytes=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    drop_behind: bool
    stop: threading.Event | None


def _parts_of(start: Position, file: InputFile, base: int, rules: TextRules, reading: _Reading) -> Iterator[Part]:
    if file.size == 0:
        return
    with open_input(file, drop_behind=reading.drop_behind, stop=reading.stop) as reader:
        if file.size is not None and reader.size != file.size:
            raise InputError(
                f"{show(file.path)}: had {file.size:,} bytes when the job began and has {reader.size or 0:,} now; let whatever writes it finish, then run again"
            )
        yield from text.read_parts(start, reader, base, rules)
