"""One input file → its Parts: opened, looked at, read in its format, and entered in the middle where that is certain."""

import contextlib
import dataclasses
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from shardmill.documents import delimited, detect, jsonl, text, text_reader, utf8, warc
from shardmill.documents import rules as document_rules
from shardmill.documents.pieces import IsVal, Pieces, Position
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import BOM, FIRST_PART_BYTES, HELD_BYTES, MAX_RECORDS, TextRules
from shardmill.documents.where import Where
from shardmill.errors import ContentError, InputError
from shardmill.inputs.input_files import InputFiles
from shardmill.io.compression import UNCOUNTED, Decompressed
from shardmill.io.frames import next_frame
from shardmill.io.reading import InputFile, InputReader, Reader, Until, read_whole
from shardmill.io.spool import AT_ONCE, IN_MEMORY
from shardmill.spec import InputFormat
from shardmill.system.names import show

_PROBED_FILES = 32
_SMALL_BYTES = FIRST_PART_BYTES
# What is compressed holds so many times as much text, and mostly more.
_TEXT_IN_PACKED = 2
_HEAD_BYTES = 4 << 20
# Separators that are common in text files, and how often they must occur to be taken for such. The last is weak.
_LIKELY_SEPARATORS = {"<|endoftext|>": 3, "<|end_of_text|>": 3, "<|eot_id|>": 3, "</s>": 3, "<eos>": 3, "\n\n\n": 30}


class Part(Protocol):
    """Some documents of one file, or a span of one document; read in order, parsed by a worker."""

    @property
    def file(self) -> int: ...

    @property
    def size(self) -> int:
        """About how many bytes of text."""

    @property
    def after(self) -> Position:
        """Where the next Part starts."""

    def pieces(self, base: int, rules: TextRules, is_val: IsVal, /) -> Pieces:
        """Asks is_val about the keys of the documents or passages that start in it and will be written. The file begins at
        byte `base` of the whole input. Raises InputError for the first bad record, if bad records are errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What opening some of the files shows before the work starts."""

    plain: bool
    """All are plain text."""
    first_is_text: bool
    """The first is text, compressed or not."""
    columns: bool = False
    """The first is Parquet."""
    window: int
    """The memory that decompressing them takes."""
    held: int
    """How much of them must be in memory at once: a page, a record batch, a record of a compressed stream."""

    def text_bytes(self, total_bytes: int) -> int:
        """About how much text is in so many bytes, if not more."""
        return total_bytes * (_TEXT_IN_PACKED if self.columns or self.window else 1)


def probe(files: InputFiles, asked: InputFormat, field: str, where: Where | None = None) -> Probe:
    """Open the first file, and a sample of those that are not plain text by name."""
    odd = array("q", (number for number, path in enumerate(files.paths) if not path.lower().endswith(detect.TEXT)))
    if where is not None and len(odd) < len(files) and asked == "auto":
        raise without_fields(next(path for path in files.paths if path.lower().endswith(detect.TEXT)))
    plain, window, held = not odd and not files.pipes and asked in ("auto", "text"), 0, 0
    by_name = detect.FORMAT_OF_SUFFIX.get(detect.suffixes(files[0].path)[0], "text")
    first_is_text, columns = asked in ("auto", "text") and by_name == "text", asked == "parquet"
    for number in (0, *odd[:: max(1, len(odd) // _PROBED_FILES)]):
        file, found = files[number], None
        if file.once:
            held = max(held, HELD_BYTES)
            continue
        with contextlib.suppress(ContentError), files.opened.reader(file) as reader:  # reported when it is read
            own = detect.window(reader)
            found = detect.content_of(reader, asked, max_window=own)[1]
            window = max(window, own)
            held = max(held, (IN_MEMORY if own else 0) + _held(reader, found, field, where))
            if where is not None and found == "text":
                raise without_fields(file.path)
            plain &= found == "text" and not own
        if number == 0 and asked == "auto":
            first_is_text, columns = found == "text", found == "parquet"
    return Probe(plain=plain, first_is_text=first_is_text, columns=columns, window=window, held=held)


def likely_separator(files: InputFiles) -> tuple[str, int, int] | None:
    """What seems to separate documents in the largest text, how often it occurs at the beginning, and how long that is."""
    try:
        with files.opened.reader(files.largest) as reader:
            head = reader.read(0, _HEAD_BYTES)
    except InputError:  # the job reports it
        return None
    counts = ((separator, head.count(separator.encode()), len(head)) for separator in _LIKELY_SEPARATORS)
    return next((found for found in counts if found[1] >= _LIKELY_SEPARATORS[found[0]]), None)


def without_fields(path: str) -> InputError:
    return InputError(
        f"{show(path)}: --where looks at the fields of records, and plain text has none; leave it out with --exclude, or prepare it without --where"
    )


def _held(reader: Reader, found: InputFormat, field: str, where: Where | None) -> int:
    if found not in ("parquet", "arrow"):
        return 0 if found == "text" else HELD_BYTES
    # Imported here: it takes a tenth of a second, which plain text need not wait for.
    if found == "parquet":
        from shardmill.documents.columnar import parquet

        held = parquet.largest_page(reader, field, where)
    else:
        from shardmill.documents.columnar import arrow

        held = arrow.largest_batch(reader)
    return max(document_rules.LEAST_HELD, held)


def small_text(file: InputFile, number: int, rules: TextRules) -> Part | None:
    """A small file of plain text, read at once, as most of a million files are. None: read it the usual way."""
    small = file.size and file.size <= min(_SMALL_BYTES, rules.block_bytes, rules.max_run_bytes)
    if not small or not file.local or rules.passage_bytes is not None or rules.where is not None:
        return None
    if rules.input_format not in ("auto", "text") or not file.path.endswith(detect.TEXT):
        return None
    data, found = read_whole(file.path, file.size or 0)
    _refuse_changed(file, found.st_size, found.st_mtime_ns)
    if not detect.is_plain(data):
        return None
    utf8.refuse_other_encodings(file.path, data[: detect.HEAD_BYTES])
    bom = len(BOM) if data.startswith(BOM) else 0
    documents = 1 if rules.separator is None else data.count(rules.separator) + 1
    if len(data) == bom or documents > MAX_RECORDS:
        return None
    return text.TextPart(
        file=number,
        offset=bom,
        begin=bom,
        data=data[bom:] if bom else data,
        documents=documents,
        open=False,
        boms=1 if bom else 0,
        path=file.path,
    )


def refuse_changed_reader(file: InputFile, reader: Reader) -> None:
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


class Source:
    """One open file and its format."""

    def __init__(self, file: InputFile, number: int, reader: Reader, rules: TextRules) -> None:
        self._file, self._number, self._rules, self._opened = file, number, rules, reader
        self._until: Position | None = None
        self._reader, self._format = detect.content_of(
            reader, rules.input_format, max_window=rules.max_window, spool=rules.spool
        )
        if isinstance(self._reader, Decompressed):
            self._rules = dataclasses.replace(rules, block_bytes=min(rules.block_bytes, AT_ONCE))
        if rules.border is not None and (self._format == "arrow" or isinstance(self._reader, Decompressed)):
            raise InputError(
                f"{show(file.path)}: --split head and tail need byte offsets in the input, which a compressed or Arrow file does not have; use --split hash, or decompress it first"
            )

        if rules.where is not None and self._format == "text":
            raise without_fields(file.path)
        # What must be read again to resume.
        self._behind = text_reader.behind(rules) if self._format == "text" else 0

    def entry(self, offset: int, base: int) -> Position | None:
        """The first place at or after this byte where reading can begin, whatever comes before it; None: none nearby.

        In JSON lines, its record counts from 0: how many lines there are before it is not known. The file begins at byte
        `base` of the whole input.
        """
        if isinstance(self._reader, Decompressed):
            return self._entry_at_frame(self._reader, offset)
        if self._reader.size is None:
            return None
        match self._format:
            case "jsonl":
                found = jsonl.entry(self._reader, offset, self._rules)
            case "text":
                return text_reader.entry(self._reader, self._number, base, offset, self._rules)
            case "parquet":
                from shardmill.documents.columnar import parquet

                return parquet.entry(self._reader, self._number, offset, self._rules)
            case "arrow":
                from shardmill.documents.columnar import arrow

                return arrow.entry(self._reader, self._number, offset)
            case _:
                return None
        return None if found is None else Position(file=self._number, offset=found, spent=found)

    def _entry_at_frame(self, reader: Decompressed, frame: int) -> Position | None:
        """After the first newline of a frame that begins at this byte. Its text counts from UNCOUNTED."""
        rules = self._rules
        if not self._file.local or self._format != "jsonl":
            return None
        reader.begin(frame, UNCOUNTED)
        found = jsonl.entry(reader, UNCOUNTED + 1, rules)
        here = None if found is None else Position(file=self._number, offset=found)
        return here and dataclasses.replace(here, spent=frame, frame=frame, frame_text=UNCOUNTED)

    def next_border(self, border: int, offset: int) -> int | None:
        """The first byte at or after offset where entry may find a place; given one before it."""
        if isinstance(self._reader, Decompressed):
            return next_frame(self._opened, border, offset)
        return offset if offset < (self._file.size or 0) else None

    @property
    def reached(self) -> bool:
        """Whether reading ended at an entry, and not before it or behind it, as in a damaged file."""
        return not isinstance(self._reader, Decompressed) or self._reader.reached

    def parts(self, start: Position, base: int, until: Position | None = None) -> Iterator[Part]:
        """The Parts from start on, to the end or to an entry."""
        rules, reader = self._rules, self._reader
        self._until, whole = until, reader
        if isinstance(reader, Decompressed):
            reader.begin(start.frame, start.frame_text)
            reader.until = None if until is None else (until.frame, until.offset - until.frame_text)
            until = None
        elif until is not None:
            whole = Until(reader, until.offset)
        match self._format:
            case "jsonl":
                yield from jsonl.read_parts(start, whole, base, rules)
            case "csv" | "tsv":
                delimiter = "," if self._format == "csv" else "\t"
                yield from delimited.read_parts(start, reader, base, rules, delimiter)
            case "warc":
                yield from warc.read_parts(start, reader, base, rules)
            case "parquet":
                from shardmill.documents.columnar import parquet

                yield from parquet.read_parts(start, reader, base, rules, None if until is None else until.record)
            case "arrow":
                from shardmill.documents.columnar import arrow

                yield from arrow.read_parts(start, reader, base, rules, None if until is None else until.offset)
            case _:
                yield from self._text(start, base, until)

    def resumable(self, after: Position, done: int) -> tuple[int, Position]:
        """How many bytes of the file are done there, and the Position with that and with where a decompressor can start."""
        if after.file != self._number:
            return max(done, self._file.size or 0), after
        spent, frame, text = after.offset, 0, 0
        if isinstance(self._reader, Decompressed):
            spent, (frame, text) = (
                self._reader.spent(after.offset),
                self._reader.frame(max(0, after.offset - self._behind)),
            )
            spent = spent if self._until is None else min(spent, self._until.spent)
        spent = max(done, spent)
        return spent, Position(
            file=after.file,
            offset=after.offset,
            begin=after.begin,
            record=after.record,
            spent=spent,
            frame=frame,
            frame_text=text,
        )

    def _text(self, start: Position, base: int, until: Position | None) -> Iterator[Part]:
        none = True
        for part in text_reader.read_parts(start, self._reader, base, self._rules, until=until):
            if self._rules.on_error != "skip" and getattr(self._reader, "damage", None) is not None:
                break  # damaged data may end in half a character, which would hide what went wrong
            none = False
            yield part
        if self._until is not None and self.reached:
            return
        after = Position(file=start.file + 1)
        damage = getattr(self._reader, "damage", None)
        if damage is not None:
            place = Location(path=self._file.path)
            yield Counted(file=start.file, after=after, location=place, complaint=f"the rest of it is lost: {damage}")
        elif none and not start.offset:  # nothing in it, except perhaps a BOM
            marks = len(self._reader.read(0, 1))
            yield Counted(file=start.file, after=after, location=Location(path=self._file.path), empty=1, boms=marks)


def failed(file: InputFile, number: int, error: InputError, rules: TextRules) -> Counted:
    """A file that cannot be read any further, reported after what comes before it.

    Only bad content is skipped: a file that is missing, denied or changed may be readable again in a minute.
    """
    after, place = Position(file=number + 1), Location(path=file.path)
    if rules.on_error == "skip" and isinstance(error, ContentError):
        message = str(error).removeprefix(f"{show(file.path)}: ")
        return Counted(file=number, after=after, location=place, complaint=message)
    return Counted(file=number, after=after, location=place, error=error)
