"""InputFiles → Blocks: the units of work, cut as the files are read, the same for the same files and rules."""

import contextlib
import dataclasses
import itertools
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardmill.documents import delimited, detect, jsonl, passages, text, utf8, warc
from shardmill.documents.columnar import columns
from shardmill.documents.pieces import BEGINNING, Pieces, Position
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import BOM, FIRST_PART_BYTES, HELD_BYTES, MAX_RECORDS, Passages, TextRules
from shardmill.errors import ContentError, InputError, ShardmillError
from shardmill.inputs.input_files import InputFiles
from shardmill.io.compression import Decompressed
from shardmill.io.reading import InputFile, InputReader, Reader, open_input, read_whole
from shardmill.io.spool import IN_MEMORY
from shardmill.spec import WHOLE_FILE_BYTES, InputFormat
from shardmill.system.names import show

_MAX_PARTS = 4096
_LOOKS = 32
_SMALL_BYTES = FIRST_PART_BYTES
# How many records there are is guessed from so much of so many files, and must exceed what is needed by a tenth.
# What is decompressed for that stays in memory.
_GUESSES = 4
_GUESS_BYTES = IN_MEMORY * 3 // 4
_SAFETY = 1.1
_SURVEYED_AT_FIRST = 1024
# Passages of the first pass that are kept for the second: for some gigabytes of text a few megabytes.
_KNOWN_PARTS = 8192


class Checked(Protocol):
    """A Part that was found to be good, or of which is known what is not."""

    def keys(self, base: int, rules: TextRules, /) -> tuple[list[int], int]:
        """What decides the split of each document or passage that begins in it and will be written; and how many
        records, documents or passages begin in it, the empty and the bad ones too."""

    def pieces(self, base: int, rules: TextRules, is_val: Callable[[int], bool], /) -> Pieces: ...

    def place_of(self, piece: int, offset: int, /) -> str:
        """Where a piece stands, in words."""

    def origins(self, found: Pieces, /) -> list[int] | npt.NDArray[np.int64]:
        """Of each piece, the byte of the file, or the number of the line or row, where its document begins."""


class Part(Protocol):
    """Some documents of one file, or a stretch of one; read in order, and taken apart by a worker."""

    @property
    def file(self) -> int: ...

    @property
    def size(self) -> int:
        """About how many bytes of text."""

    @property
    def after(self) -> Position:
        """Where the next Part begins."""

    def checked(self, rules: TextRules, /) -> Checked:
        """Raises InputError for the first bad record in it, if bad records are errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """About block_bytes of text in one or more Parts: one long stretch, or many small files."""

    index: int
    parts: tuple[Part, ...]
    input_bytes: int
    """Bytes of the inputs that are done with when this Block is, byte order marks included."""
    after: Position
    """Where the next Block begins."""


def blocks(
    files: InputFiles,
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
    size = done = 0
    after = start
    for part, spent, position in _all_parts(files, rules, start, drop_behind=drop_behind, stop=stop):
        if part is not None and parts:
            most = rules.block_bytes if index else min(rules.block_bytes, FIRST_PART_BYTES)
            if size + part.size > most or len(parts) == _MAX_PARTS:
                yield Block(index=index, parts=tuple(parts), input_bytes=done, after=after)
                parts, size, done, index = [], 0, 0, index + 1
        done += spent
        after = position
        if part is not None:
            parts.append(part)
            size += part.size
    pipe = next(iter(files.pipes), None)
    if pipe is not None and not (done or index) and not any(isinstance(p, Counted) and p.error for p in parts):
        raise InputError(
            f"{show(pipe.path)}: nothing to mill, {'standard input' if pipe.path == '-' else 'the pipe'} is empty; did the command before it fail?"
        )
    if done or parts:
        yield Block(index=index, parts=tuple(parts), input_bytes=done, after=after)


def rules_by_file(files: InputFiles, rules: TextRules) -> Callable[[int], TextRules]:
    """Running text is judged for train or val by passages; a small file among others, as the document it is."""
    whole = dataclasses.replace(rules, passage_bytes=None)

    def choose(number: int) -> TextRules:
        size = files.size(number)
        return rules if len(files) == 1 or size is None or size > WHOLE_FILE_BYTES else whole

    return choose if rules.separator is None else lambda _: whole


def can_survey(files: InputFiles, rules: TextRules) -> bool:
    """Whether the keys of plain text can be had without reading all of it: it is running text, judged by passages."""
    large = len(files) == 1 or bool((files.sizes > WHOLE_FILE_BYTES).all())
    return rules.separator is None and rules.passage_bytes is not None and large and rules.wanted is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a look at some of the files tells before the work begins."""

    plain: bool
    """All are plain text."""
    window: int
    """What decompressing them takes."""
    held: int
    """What of them must be held at once: a page, a record batch, a record of a compressed stream. 0: nothing."""


def look(files: InputFiles, asked: InputFormat, field: str) -> Look:
    """Open the files that are not plain text by name, a few of them, and the first of the others."""
    names = enumerate(files.paths)
    odd = array("q", (number for number, path in names if not path.endswith(detect.TEXT) and not _is_text(path)))
    plain, window, held = not odd and not files.pipes and asked in ("auto", "text"), 0, 0
    for file in (files[number] for number in (0, *odd[:: max(1, len(odd) // _LOOKS)])):
        if file.once:
            held = max(held, 0 if is_text(file, asked) else HELD_BYTES)
            continue
        with contextlib.suppress(ContentError), open_input(file) as reader:  # told in its turn
            own = detect.window(reader)
            found = detect.format_of(detect.uncompressed(reader, max_window=own), asked)
            window = max(window, own)
            held = max(
                held, (IN_MEMORY if own else 0) + (HELD_BYTES if found in ("jsonl", "csv", "tsv", "warc") else 0)
            )
            plain &= found == "text" and not own
            if found == "parquet":
                from shardmill.documents.columnar import (
                    parquet,  # a tenth of a second, which plain text need not wait for
                )

                held = max(held, columns.LEAST_HELD, parquet.largest_page(reader, field))
            elif found == "arrow":
                from shardmill.documents.columnar import arrow

                held = max(held, columns.LEAST_HELD, arrow.largest_batch(reader))
            if found in ("parquet", "arrow"):
                columns.return_memory()
    return Look(plain=plain, window=window, held=held)


def survey(files: InputFiles, rules: TextRules, start: Position) -> Iterator[tuple[Block, list[int], int]]:
    """For the first pass over running text: Blocks without their Parts, the keys of their passages, and how many.

    What is found is kept for the second pass, as far as there is room; what is known already is not looked for.
    """
    for number in range(start.file, len(files)):
        file, base = files[number], files.base(number)
        if not file.size:
            continue
        with open_input(file) as reader:
            mark = len(BOM) if reader.read(0, len(BOM)) == BOM else 0
            at = start.offset if number == start.file and start.offset else mark
            begin = at - mark if at == mark else at
            found_before = _known(number, at, rules)
            at = found_before[-1][0] + found_before[-1][1].end if found_before else at
            for offset, found in itertools.chain(found_before, passages.survey(reader, base, at, rules)):
                if len(rules.known) < _KNOWN_PARTS:
                    rules.known[number, offset] = found
                after = Position(file=number, offset=offset + found.end, begin=mark)
                done, begin = after.offset - begin, after.offset
                yield Block(index=0, parts=(), input_bytes=done, after=after), list(found.keys), len(found.keys)


def begin_survey(files: InputFiles, rules: TextRules) -> None:
    """Find some of it, less than half a gigabyte of text; what is wrong is told in its turn."""
    with contextlib.suppress(ShardmillError):
        for _ in itertools.islice(survey(files, rules, BEGINNING), _SURVEYED_AT_FIRST):
            pass


def _known(number: int, at: int, rules: TextRules) -> list[tuple[int, Passages]]:
    """What a survey has found in a file from there on."""
    known: list[tuple[int, Passages]] = []
    while (found := rules.known.get((number, at))) is not None:
        known.append((at, found))
        at += found.end
    return known


def seems_to_have_records(files: InputFiles, rules: TextRules, enough: float) -> bool:
    """Whether there are very likely so many records, as the beginnings of a few files tell; no where one cannot tell."""
    records = spent = 0
    for number in range(0, len(files), -(-len(files) // _GUESSES)):
        try:
            with open_input(files[number]) as opened:
                reader = detect.uncompressed(opened, max_window=rules.max_window)
                head = reader.read(0, _GUESS_BYTES)
                match detect.format_of(reader, rules.input_format):
                    case "jsonl":
                        records += jsonl.count_records(head)
                    case "text" if rules.separator is not None:
                        records += head.count(rules.separator)
                    case _:
                        return False
                whole = len(head) < _GUESS_BYTES
                taken = reader.spent(len(head)) if isinstance(reader, Decompressed) else len(head)
                spent += files[number].size or 0 if whole else taken
        except ContentError:
            return False  # told in its turn
    return records * files.total_bytes >= _SAFETY * enough * max(1, spent)


def has_records(files: InputFiles, rules: TextRules, enough: float) -> bool:
    """Whether there are surely so many records, as a glance at files of JSON lines and Parquet tells; no otherwise."""
    for file in files:
        try:
            with open_input(file) as opened:
                reader = detect.uncompressed(opened, max_window=rules.max_window)
                match detect.format_of(reader, rules.input_format):
                    case "parquet":
                        from shardmill.documents.columnar import parquet

                        enough -= parquet.rows(reader, rules.field)
                    case "jsonl" if jsonl.has_lines(reader, enough):
                        return True
                    case _:
                        return False
        except ContentError:
            return False  # told in its turn
        if enough <= 0:
            return True
    return False


def is_text(file: InputFile, asked: InputFormat) -> bool:
    """Whether this one file is text, compressed or not, and so perhaps one running text."""
    if asked != "auto" or file.once:
        return (
            asked in ("auto", "text") and detect.FORMAT_OF_SUFFIX.get(detect.suffixes(file.path)[0], "text") == "text"
        )
    try:
        with open_input(file) as reader:
            own = detect.window(reader)
            return detect.format_of(detect.uncompressed(reader, max_window=own), asked) == "text"
    except ContentError:
        return False  # told in its turn


def _is_text(path: str) -> bool:
    suffix, compression = detect.suffixes(path)
    return suffix in detect.TEXT and compression is None


def _all_parts(
    files: InputFiles,
    rules: TextRules,
    start: Position,
    *,
    drop_behind: bool,
    stop: threading.Event | None,
) -> Iterator[tuple[Part | None, int, Position]]:
    """Each Part, how many bytes are done with it, and where reading goes on; None: the end of a file, only bytes are done."""
    rules_of = rules_by_file(files, rules)
    for number, file in enumerate(files.since(start.file), start.file):
        position = start if number == start.file else Position(file=number)
        done = position.spent
        try:
            if position.offset == 0 and (small := _small_text(file, number, rules_of(number))) is not None:
                yield small, file.size or 0, Position(file=number + 1)
                continue
            with open_input(file, drop_behind=drop_behind, stop=stop, spool=rules.spool) as reader:
                _refuse_changed_reader(file, reader)
                source = _Source(file, reader, rules)
                for part in source.parts(position, files.base(number), rules_of(number)):
                    spent = max(done, source.spent(part.after) if part.after.file == number else file.size or 0)
                    yield part, spent - done, source.marked(part.after, spent)
                    done = spent
                _refuse_changed_reader(file, reader)  # while it was read: what was read may be of two versions
        except InputError as e:
            failed = _failed(file, number, e, rules)
            yield failed, 0, Position(file=number + 1)
            if failed.error is not None:
                return
        yield None, max(0, (file.size or 0) - done), Position(file=number + 1)


def _small_text(file: InputFile, number: int, rules: TextRules) -> Part | None:
    """All of a small file of plain text in one go: of a million files, most are such. None: read it the usual way."""
    small = file.size and file.size <= min(_SMALL_BYTES, rules.block_bytes, rules.max_run_bytes)
    if not small or not file.local or rules.passage_bytes is not None:
        return None
    if rules.input_format not in ("auto", "text") or not file.path.endswith(detect.TEXT):
        return None
    data, found = read_whole(file.path, file.size or 0)
    _refuse_changed(file, found.st_size, found.st_mtime_ns)
    if not detect.is_plain(data):
        return None
    utf8.refuse_other_encodings(file.path, data[: detect.HEAD_BYTES])
    mark = len(BOM) if data.startswith(BOM) else 0
    documents = 1 if rules.separator is None else data.count(rules.separator) + 1
    if len(data) == mark or documents > MAX_RECORDS:
        return None
    return text.TextPart(
        file=number,
        offset=mark,
        begin=mark,
        data=data[mark:] if mark else data,
        documents=documents,
        open=False,
        bom=bool(mark),
        path=file.path,
    )


def refuse_changed_in_part(files: InputFiles, number: int) -> None:
    """A limit ended the reading inside this file, so its end did not tell whether it changed meanwhile."""
    if number < len(files) and not files[number].once:
        with open_input(files[number]) as reader:
            _refuse_changed_reader(files[number], reader)


def _refuse_changed_reader(file: InputFile, reader: Reader) -> None:
    if isinstance(reader, InputReader):
        for size, modified_ns in reader.now():
            _refuse_changed(file, size, modified_ns)


def _refuse_changed(file: InputFile, size: int, modified_ns: int) -> None:
    if size != file.size:
        raise InputError(
            f"{show(file.path)}: had {file.size:,} bytes when the job began and has {size:,} now; let whatever writes it finish, then start again with --overwrite"
        )
    if modified_ns != file.modified_ns:
        raise InputError(
            f"{show(file.path)}: was modified since the job began; let whatever writes it finish, then start again with --overwrite"
        )


class _Source:
    """One open file: its format, and how much of it is done at a Position."""

    def __init__(self, file: InputFile, reader: Reader, rules: TextRules) -> None:
        self._file = file
        self._number = 0
        self._reader = detect.uncompressed(reader, max_window=rules.max_window, spool=rules.spool)
        self._format = detect.format_of(self._reader, rules.input_format)
        if rules.border is not None and (self._format == "arrow" or isinstance(self._reader, Decompressed)):
            raise InputError(
                f"{show(file.path)}: --split head and tail go by places in the input, and a compressed or Arrow file tells none beforehand; use --split hash, or decompress it first"
            )

    def parts(self, start: Position, base: int, rules: TextRules) -> Iterator[Part]:
        self._number = start.file
        if isinstance(self._reader, Decompressed):
            self._reader.jump = (start.frame, start.frame_text)
        match self._format:
            case "jsonl":
                yield from jsonl.read_parts(start, self._reader, base, rules)
            case "csv" | "tsv":
                delimiter = "," if self._format == "csv" else "\t"
                yield from delimited.read_parts(start, self._reader, base, rules, delimiter)
            case "warc":
                yield from warc.read_parts(start, self._reader, base, rules)
            case "parquet":
                from shardmill.documents.columnar import parquet

                yield from parquet.read_parts(start, self._reader, base, rules)
            case "arrow":
                from shardmill.documents.columnar import arrow

                yield from arrow.read_parts(start, self._reader, base, rules)
            case _:
                yield from self._text(start, base, rules)

    def spent(self, position: Position) -> int:
        """The bytes of the file that are done where reading goes on at this Position."""
        if isinstance(self._reader, Decompressed):
            return self._reader.spent(position.offset)
        return position.offset

    def marked(self, position: Position, spent: int) -> Position:
        """The same with what is done there, and with the place where a decompressor can begin to go on."""
        if position.file != self._number:
            return position
        frame, text = self._reader.frame(position.offset) if isinstance(self._reader, Decompressed) else (0, 0)
        return dataclasses.replace(position, spent=spent, frame=frame, frame_text=text)

    def _text(self, start: Position, base: int, rules: TextRules) -> Iterator[Part]:
        none = True
        for part in text.read_parts(start, self._reader, base, rules):
            if rules.on_error != "skip" and getattr(self._reader, "damage", None) is not None:
                break  # where the data breaks off there may be half a character: that is not what went wrong
            none = False
            yield part
        after = Position(file=start.file + 1)
        damage = getattr(self._reader, "damage", None)
        if damage is not None:
            place = Location(path=self._file.path)
            yield Counted(file=start.file, after=after, location=place, complaint=f"the rest of it is lost: {damage}")
        elif none and not start.offset:  # nothing in it, but perhaps a mark
            marks = len(self._reader.read(0, 1))
            yield Counted(file=start.file, after=after, location=Location(path=self._file.path), empty=1, boms=marks)


def _failed(file: InputFile, number: int, error: InputError, rules: TextRules) -> Counted:
    """A file that cannot be read, or not on: told in its turn, after what comes before it.

    Only content is skipped: a file that is gone, denied or changed may be whole again in a minute.
    """
    after, place = Position(file=number + 1), Location(path=file.path)
    if rules.on_error == "skip" and isinstance(error, ContentError):
        message = str(error).removeprefix(f"{show(file.path)}: ")
        return Counted(file=number, after=after, location=place, complaint=message)
    return Counted(file=number, after=after, location=place, error=error)
