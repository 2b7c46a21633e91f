"""InputFiles → Blocks: the units of work, cut as the files are read, the same for the same files and rules."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardmill.documents import text
from shardmill.documents.text import BEGINNING, Part, Position, TextRules
from shardmill.errors import InputError
from shardmill.sources import InputFile
from shardmill.spec import WHOLE_FILE_BYTES
from shardmill.storage import InputReader, show

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
) -> Iterator[Block]:
    """All text of all files in order, Block after Block; from start on, the first Block with this index."""
    parts: list[Part] = []
    size = empty = marks = done = 0
    after = start
    for number, (file, base) in enumerate(zip(files, file_bases(files), strict=True)):
        if number < start.file:
            continue
        position = start if number == start.file else Position(file=number)
        end = position.offset
        for part in _parts_of(position, file, base, rules_for(files, file, rules), drop_behind=drop_behind):
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
            marks += file.size > 0
            done += file.size
            after = Position(file=number + 1)
    if done or empty:
        yield Block(
            index=index, parts=tuple(parts), input_bytes=done, empty_files=empty, byte_order_marks=marks, after=after
        )


def file_bases(files: Sequence[InputFile]) -> list[int]:
    """Where each file begins when all are laid end to end."""
    bases, total = [], 0
    for file in files:
        bases.append(total)
        total += file.size
    return bases


def rules_for(files: Sequence[InputFile], file: InputFile, rules: TextRules) -> TextRules:
    """Running text is judged for train or val by passages; a small file among others, as the document it is."""
    running = rules.separator is None and (len(files) == 1 or file.size > WHOLE_FILE_BYTES)
    return rules if running else dataclasses.replace(rules, passage_bytes=None)


def _parts_of(start: Position, file: InputFile, base: int, rules: TextRules, *, drop_behind: bool) -> Iterator[Part]:
    if file.size == 0:
        return
    with InputReader(file.path, drop_behind=drop_behind) as reader:
        _refuse_changed(file, reader)
        yield from text.read_parts(start, reader, base, rules)
        _refuse_changed(file, reader)  # while it was read: what was read may be of two versions


def _refuse_changed(file: InputFile, reader: InputReader) -> None:
    size, modified_ns = reader.now()
    if size != file.size:
        raise InputError(
            f"{show(file.path)}: had {file.size:,} bytes when the job began and has {size:,} now; let whatever writes it finish, then start again with --overwrite"
        )
    if modified_ns != file.modified_ns:
        raise InputError(
            f"{show(file.path)}: was modified since the job began; let whatever writes it finish, then start again with --overwrite"
        )
