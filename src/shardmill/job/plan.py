"""InputFiles → stretches, which workers read for themselves, and a stretch → Blocks, the units of work.

A stretch is some bytes of all inputs, taken together. It owns the documents that begin in them: it starts at the first
place at or after its first byte where reading can begin, whatever comes before, and ends where the next stretch starts.
So the documents, and their order, are the same for stretches and Blocks of any size.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardmill.documents import detect
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.documents.ranges import RangePart
from shardmill.documents.records import Counted
from shardmill.documents.rules import FIRST_PART_BYTES, TextRules
from shardmill.errors import ContentError, InputError, ShardmillError
from shardmill.inputs.input_files import InputFiles
from shardmill.io.frames import next_frame
from shardmill.io.reading import InputFile, InputReader
from shardmill.job.sources import Part, Source, failed, refuse_changed_reader, small_text
from shardmill.spec import WHOLE_FILE_BYTES
from shardmill.system.names import show

_MAX_PARTS = 4096
# How many Blocks a stretch has, and bytes at most. Opening a file and finding a place to start takes a fraction of a
# millisecond, and milling a MiB 2 ms; on a network, a request takes as long as many Blocks.
_BLOCKS, _REMOTE_BLOCKS = 16, 64
_MOST_BYTES = 64 << 20
# A compressed file, or one of columns, holds several times as much text. With large Blocks, a stretch has three or four.
_MOST_COMPRESSED_BYTES, _MOST_OF_LARGE = 8 << 20, 16 << 20
_LARGE_BLOCK = 8 << 20
# Formats in which a file is read from its beginning only.
_WHOLE = (".csv", ".tsv", ".warc", ".wet")
_WHOLE_IF_REMOTE = (".arrow", ".feather")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """The documents that begin in the bytes [first, until) of all inputs, taken together; until None: to the end."""

    number: int
    first: int
    until: int | None
    step: int = 0
    """If the next stretch has no place to start, this one ends where a later one has: after so many bytes more."""
    start: Position | None = None
    """Where it starts, if that is known already."""


def rest(start: Position = BEGINNING) -> Stretch:
    """All inputs from there on."""
    return Stretch(number=0, first=0, until=None, start=start)


EVERYTHING = rest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """About block_bytes of text in one or more Parts: one long span, or many small files."""

    index: int
    """0 only for the first of all."""
    parts: tuple[Part, ...]
    input_bytes: int
    """Bytes of the inputs that this Block consumes, BOMs included."""
    after: Position
    """Where the next Block starts."""
    before: Position | None = None
    """Where it starts in its own numbers, where those are not the file's: nobody knows how many lines precede a stretch that
    starts in the middle of a file, or a range, or how much text of a compressed file does."""


def stretches(files: InputFiles, rules: TextRules, start: Position, *, alone: bool = False) -> Iterator[Stretch]:
    """All of the inputs from start on, in order. A few numbers describe each, and any process can mill it.

    alone: only one thread encodes, so all is one stretch."""
    if start.file >= len(files):
        return
    suffix, compression = detect.suffixes(files.path(start.file))
    plain = compression is None and detect.FORMAT_OF_SUFFIX.get(suffix, "text") in ("text", "jsonl")
    blocks = _REMOTE_BLOCKS if files.special else _BLOCKS
    most = _MOST_OF_LARGE if max(rules.block_bytes, rules.range_bytes) > _LARGE_BLOCK else _MOST_COMPRESSED_BYTES
    most = _MOST_BYTES if plain or files.special else most
    step = max(rules.block_bytes, min(blocks * rules.block_bytes, most))
    step -= step % rules.block_bytes if plain else 0
    # The next stretch starts in a later frame than this one, which may have read on behind the bytes it has spent.
    at, number = files.base(start.file) + max(start.spent, start.frame), 0
    known: Position | None = start
    # A limit may end the job anywhere: nothing is read in vain. A pipe has no length.
    serial = alone or rules.limited or bool(files.pipes)
    frame = start.frame
    while at < files.total_bytes or number == 0:
        until = None if serial else _stretch_end(files, rules, at, frame, step)
        yield Stretch(number=number, first=at, until=until, step=step, start=known)
        if until is None:
            return
        at, number, known, frame = until, number + 1, None, until - files.base(files.at_byte(until))


def _stretch_end(files: InputFiles, rules: TextRules, at: int, frame: int, step: int) -> int | None:
    """A multiple of step; in a compressed file, the next frame, if it is known where frames begin, else the end of the
    file; before a file that is only read whole, as its name says, its beginning. None: the end of all.

    If a compressed file goes on at byte `at`, one of its frames begins at byte `frame`, not later.
    """
    until = (at // step + 1) * step
    if until >= files.total_bytes:
        return None
    number = files.at_byte(until)
    base, (suffix, compression) = files.base(number), detect.suffixes(files.path(number))
    whole = suffix in _WHOLE or (suffix in _WHOLE_IF_REMOTE and not files[number].local)
    if compression is not None or whole:
        if base > at:
            return base
        found = _next_frame(files, number, min(frame, at - base), until - base) if _has_entries(suffix, rules) else None
        until = files.base(number + 1) if found is None else base + found
    return until if until < files.total_bytes else None


def _has_entries(suffix: str, rules: TextRules) -> bool:
    """Whether a compressed file of this format can be entered in its middle."""
    by_name = detect.FORMAT_OF_SUFFIX.get(suffix, "text") if rules.input_format == "auto" else rules.input_format
    return by_name == "jsonl"


def _next_frame(files: InputFiles, number: int, frame: int, offset: int) -> int | None:
    file = files[number]
    if file.local:
        with contextlib.suppress(ShardmillError), files.opened.reader(file) as reader:  # reported when the file is read
            return next_frame(reader, frame, offset)
    return None


def blocks(
    files: InputFiles,
    rules: TextRules,
    stretch: Stretch = EVERYTHING,
    *,
    drop_behind: bool = False,
    stop: threading.Event | None = None,
) -> Generator[Block, None, None]:
    """All text of a stretch in order. Setting stop interrupts a thread that is waiting for bytes."""
    parts: list[Part] = []
    size = done = count = 0
    after = stretch.start or BEGINNING
    first = _first_index(stretch)
    before: Position | None = None

    def block() -> Block:
        index = first + count
        return Block(index=index, parts=tuple(parts), input_bytes=done, after=after, before=before)

    try:
        for read in _all_parts(files, rules, stretch, drop_behind=drop_behind, stop=stop):
            part = read.part
            if part is not None and parts:
                most = rules.block_bytes if first + count else min(rules.block_bytes, FIRST_PART_BYTES)
                # How many records a range has is known when it is milled.
                alone = isinstance(part, RangePart) or isinstance(parts[-1], RangePart)
                full = alone or size + part.size > most or len(parts) == _MAX_PARTS
            else:
                full = False
            if full or ((done or parts) and read.inside != (before is not None)):
                yield block()
                parts, size, done, count = [], 0, 0, count + 1
            if not (done or parts):
                before = read.at if read.inside else None
            done += read.spent
            after = read.after
            if part is not None:
                parts.append(part)
                size += part.size
    except ShardmillError:
        for part in parts:  # the error may be kept, and keeps what nobody will mill
            if isinstance(part, RangePart) and isinstance(part.reader, InputReader):
                part.reader.close()
        raise
    pipe = next(iter(files.pipes), None)
    empty = not (done or count or stretch.start != BEGINNING)
    if pipe is not None and empty and not any(isinstance(p, Counted) and p.error for p in parts):
        raise InputError(
            f"{show(pipe.path)}: nothing to mill, {'standard input' if pipe.path == '-' else 'the pipe'} is empty; did the command before it fail?"
        )
    if done or parts:
        yield block()


def _first_index(stretch: Stretch) -> int:
    return 0 if stretch.start == BEGINNING else 1 + stretch.first


def refuse_changed_in_part(files: InputFiles, number: int) -> None:
    """A limit ended the reading inside this file, or with the last Part of the one before it, so that nobody came to its
    end, where it shows whether it changed meanwhile."""
    for file in (files[n] for n in (number - 1, number) if 0 <= n < len(files)):
        if not file.once:
            with files.opened.reader(file) as reader:
                refuse_changed_reader(file, reader)


class _Read(NamedTuple):
    """A Part, or None for the rest of a file without one."""

    part: Part | None
    spent: int
    """How many bytes of the file it consumes."""
    at: Position
    after: Position
    """Where reading continues."""
    inside: bool
    """Numbers of records count from where the Block begins: nobody knows how many there are before."""


def _all_parts(
    files: InputFiles, rules: TextRules, stretch: Stretch, *, drop_behind: bool, stop: threading.Event | None
) -> Iterator[_Read]:
    first = files.beginning_at(stretch.first) if stretch.start is None else stretch.start.file
    for number, file in enumerate(files.since(first), first):
        base = files.base(number)
        if stretch.until is not None and base >= stretch.until:
            return
        inside = stretch.start is None and base < stretch.first
        is_small = file.size is not None and file.size <= rules.block_bytes  # not worth two stretches
        if inside and is_small:
            continue
        here = stretch.start if number == first and stretch.start is not None else Position(file=number)
        own, over = _own_rules(files, file, rules), Position(file=number + 1)
        done, end, entered = here.spent, None, not inside
        try:
            if not (inside or here.offset) and (small := small_text(file, number, own)) is not None:
                yield _Read(small, file.size or 0, here, over, False)
                continue
            with files.opened.reader(file, drop_behind=drop_behind, stop=stop, spool=rules.spool) as reader:
                refuse_changed_reader(file, reader)
                source = Source(file, number, reader, own)
                if inside:
                    entry = source.entry(stretch.first - base, base)
                    if entry is None:
                        continue  # all of it belongs to the stretch before
                    here, done, entered = entry, entry.spent, True
                end = None if is_small else _end(source, base, stretch, file.size or 0)
                for part in source.parts(here, base, end):
                    inside |= isinstance(part, RangePart) and part.unit == "line"
                    spent, after = source.resumable(part.after, done)
                    yield _Read(part, spent - done, here, after, inside)
                    done, here = spent, after
                refuse_changed_reader(file, reader)  # while it was read: what was read may be of two versions
                end = end if source.reached else None
        except InputError as e:
            if isinstance(e, ContentError) and not entered:
                continue  # so it was for the stretch where the file begins
            bad, end = failed(file, number, e, rules), None
            yield _Read(bad, 0, here, over, inside)
            # If the stretch before turns out to have read all of the file, the error does not count, but what comes next does.
            if bad.error is not None and not inside:
                return
        if end is not None:
            if end.spent > done:
                after = dataclasses.replace(here, spent=end.spent) if end.frame else end
                yield _Read(None, end.spent - done, here, after, inside)
            return
        yield _Read(None, max(0, (file.size or 0) - done), here, over, inside)


def _own_rules(files: InputFiles, file: InputFile, rules: TextRules) -> TextRules:
    """Running text is split by passages; a small file among others is one document, and so is what separators separate."""
    one_document = len(files) > 1 and file.size is not None and file.size <= WHOLE_FILE_BYTES
    if rules.passage_bytes is None or not (one_document or rules.separator is not None):
        return rules
    return dataclasses.replace(rules, passage_bytes=None)


def _end(source: Source, base: int, stretch: Stretch, size: int) -> Position | None:
    """Where the stretch ends in this file; None: with it. That is where the next stretch that starts in the file does."""
    border = None if stretch.until is None or stretch.until >= base + size else stretch.until - base
    while border is not None:
        if (entry := source.entry(border, base)) is not None:
            return entry
        border = source.next_border(border, (base + border) // stretch.step * stretch.step + stretch.step - base)
    return None
