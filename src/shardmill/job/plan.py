"""InputFiles → stretches, which workers read for themselves, and a stretch → Blocks, the units of work.

A stretch is some bytes of all inputs, taken together. It owns the documents that begin in them: it starts at the first
place at or after its first byte where reading can begin, whatever comes before, and ends where the next stretch starts.
So the documents, and their order, are the same for stretches and Blocks of any size.
"""

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.documents import detect
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.documents.records import Counted
from shardmill.documents.rules import FIRST_PART_BYTES, TextRules
from shardmill.errors import ContentError, InputError
from shardmill.inputs.input_files import InputFiles
from shardmill.io.reading import InputFile, open_input
from shardmill.job.sources import Part, Source, failed, refuse_changed_reader, small_text
from shardmill.spec import WHOLE_FILE_BYTES
from shardmill.system.names import show

_MAX_PARTS = 4096
# How many Blocks a stretch has, and bytes at most. Opening a file and finding a place to start takes a fraction of a
# millisecond, and milling a MiB 2 ms; on a network, a request takes as long as many Blocks.
_BLOCKS, _REMOTE_BLOCKS = 16, 64
_MOST_BYTES = 16 << 20
# Formats in which a file is read from its beginning only.
_WHOLE = (".csv", ".tsv", ".warc", ".wet", ".arrow", ".feather")


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
    lines_before: int | None = None
    """How many lines of the stretch precede it, where how many precede the stretch is not known."""


def stretches(files: InputFiles, rules: TextRules, start: Position) -> Iterator[Stretch]:
    """All of the inputs from start on, in order. A few numbers describe each, and any process can mill it."""
    blocks, most = (_REMOTE_BLOCKS, 4 * _MOST_BYTES) if files.special else (_BLOCKS, _MOST_BYTES)
    step = max(rules.block_bytes, min(blocks * rules.block_bytes, most))
    if start.file >= len(files):
        return
    at, number = files.base(start.file) + start.spent, 0
    known: Position | None = start
    # A limit may end the job anywhere: nothing is read in vain. A pipe has no length.
    serial = rules.limited or bool(files.pipes)
    while at < files.total_bytes or number == 0:
        until = None if serial else _stretch_end(files, at, step)
        yield Stretch(number=number, first=at, until=until, step=step, start=known)
        if until is None:
            return
        at, number, known = until, number + 1, None


def _stretch_end(files: InputFiles, at: int, step: int) -> int | None:
    """A multiple of step, or the end of a file that is only read whole, as its name says; None: the end of all."""
    until = (at // step + 1) * step
    if until < files.total_bytes:
        number = files.at_byte(until)
        suffix, compression = detect.suffixes(files.path(number))
        if compression is not None or suffix in _WHOLE:
            until = files.base(number) if files.base(number) > at else files.base(number + 1)
    return until if until < files.total_bytes else None


def blocks(
    files: InputFiles,
    rules: TextRules,
    stretch: Stretch = EVERYTHING,
    *,
    drop_behind: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[Block]:
    """All text of a stretch in order. Setting stop interrupts a thread that is waiting for bytes."""
    parts: list[Part] = []
    size = done = count = 0
    after = stretch.start or BEGINNING
    first = _first_index(stretch)
    lines: int | None = None

    def block() -> Block:
        index = first + count
        return Block(index=index, parts=tuple(parts), input_bytes=done, after=after, lines_before=lines)

    for part, spent, position, uncounted in _all_parts(files, rules, stretch, drop_behind=drop_behind, stop=stop):
        if part is not None and parts:
            most = rules.block_bytes if first + count else min(rules.block_bytes, FIRST_PART_BYTES)
            # Numbers of lines are not known in the file where the stretch starts, but in those behind it.
            if size + part.size > most or len(parts) == _MAX_PARTS or (lines is not None and not uncounted):
                yield block()
                parts, size, done, count = [], 0, 0, count + 1
        if not parts:
            lines = (after.record if count else 0) if uncounted else None
        done += spent
        after = position
        if part is not None:
            parts.append(part)
            size += part.size
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
            with open_input(file) as reader:
                refuse_changed_reader(file, reader)


_Read = tuple[Part | None, int, Position, bool]
"""A Part, or None for the rest of a file without one; how many bytes it consumes; where reading continues; and whether
its lines are counted from the start of the stretch."""


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
        known = stretch.start if number == first and stretch.start is not None else Position(file=number)
        done, end, own = known.spent, None, _own_rules(files, file, rules)
        try:
            if not (inside or known.offset) and (small := small_text(file, number, own)) is not None:
                yield small, file.size or 0, Position(file=number + 1), False
                continue
            with open_input(file, drop_behind=drop_behind, stop=stop, spool=rules.spool) as reader:
                refuse_changed_reader(file, reader)
                source = Source(file, number, reader, own)
                here = source.entry(stretch.first - base, base) if inside else known
                if here is None:
                    continue  # all of it belongs to the stretch before
                done = here.spent
                end = None if is_small else _end(source, base, stretch, file.size)
                for part in source.parts(here, base, end):
                    spent, after = source.resumable(part.after, done)
                    yield part, spent - done, after, inside and source.counts_lines
                    done = spent
                refuse_changed_reader(file, reader)  # while it was read: what was read may be of two versions
        except InputError as e:
            if inside and isinstance(e, ContentError):
                continue  # so it was for the stretch where the file begins
            bad = failed(file, number, e, rules)
            yield bad, 0, Position(file=number + 1), False
            if bad.error is not None:
                return
        if end is not None:
            if end.spent > done:
                yield None, end.spent - done, end, False
            return
        yield None, max(0, (file.size or 0) - done), Position(file=number + 1), False


def _own_rules(files: InputFiles, file: InputFile, rules: TextRules) -> TextRules:
    """Running text is split by passages; a small file among others is one document, and so is what separators separate."""
    one_document = len(files) > 1 and file.size is not None and file.size <= WHOLE_FILE_BYTES
    if rules.passage_bytes is None or not (one_document or rules.separator is not None):
        return rules
    return dataclasses.replace(rules, passage_bytes=None)


def _end(source: Source, base: int, stretch: Stretch, size: int | None) -> Position | None:
    """Where the stretch ends in this file; None: with it. That is where the next stretch that starts in the file does."""
    if stretch.until is None or size is None:
        return None
    entries = (source.entry(at, base) for at in range(stretch.until - base, size, stretch.step))
    return next((entry for entry in entries if entry is not None), None)
