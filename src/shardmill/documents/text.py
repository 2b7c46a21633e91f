"""A plain text file → Parts: stretches between exact cuts, with the documents or passages in each.

The file is read once, in order. A Part ends where a document ends or where the text can be cut exactly,
so the tokens do not depend on how large Parts are. Only text without any such place for max_run bytes is
cut by force, at that distance from the last exact cut: a place that the content alone decides.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from shardmill.cuts import CONTEXT_BYTES, Cuts
from shardmill.errors import InputError
from shardmill.storage import Reader, show

BOM = b"\xef\xbb\xbf"
# All of the first Part is checked against the reference tokenizer, which is slow: it is kept small.
FIRST_PART_BYTES = 64 << 10
# A document goes to train or val by a hash of its beginning, a passage by a hash of less: it is smaller.
DOCUMENT_HEAD = 64 << 10
PASSAGE_HEAD = 4 << 10

# Each document of a block takes some 200 bytes beside its text.
_MAX_DOCUMENTS = 16 << 10
# The rules for cuts look back two characters.
_BEFORE_BYTES = 8

Key = Callable[[bytes, int], int]
"""The beginning of a document or passage, and its byte offset in the whole job → what decides its split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A place where reading can begin again: a file, a byte in it, and where the document at that byte began."""

    file: int = 0
    offset: int = 0
    begin: int = 0


BEGINNING = Position()


@dataclass(frozen=True, kw_only=True, slots=True)
class Passages:
    """The passages in a stretch of text: where each begins, what decides its split, and where the last ends."""

    starts: tuple[int, ...]
    keys: tuple[int, ...]
    end: int
    forced: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """How text becomes documents, and documents Parts. Only block_bytes does not change the result."""

    cuts: Cuts
    key: Key
    separator: bytes | None
    passage_bytes: int | None
    """Judge running text by passages of about this size; None: judge each document as a whole."""
    border: int | None
    """A byte offset in the whole job where a passage must begin, as near as the text allows."""
    max_run_bytes: int
    block_bytes: int
    known: dict[tuple[int, int], Passages] = field(default_factory=dict)
    """Passages that a first pass found already, by file and offset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A stretch of one file. Its first piece may continue the document before, its last may stay open."""

    file: int
    offset: int
    begin: int
    """Where the document that the first piece belongs to begins in the file."""
    data: bytes
    starts: tuple[int, ...] = ()
    """Where passages begin in data; empty when documents are judged whole."""
    keys: tuple[int, ...] = ()
    """The key of each passage, or the one key of the document that begins here and stays open."""
    open: bool
    forced: bool = False
    """The cut at the end of this Part had to be forced."""

    @property
    def continues(self) -> bool:
        return self.offset > self.begin

    @property
    def after(self) -> Position:
        """Where the next Part begins."""
        end = self.offset + len(self.data)
        return Position(file=self.file, offset=end, begin=self.begin if self.open else end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """What is to be encoded, column by column.

    Piece i is data[i], at byte offsets[i] of the Part. val[i] says where it goes; None: where the piece
    before it went. begins[i] and ends[i] tell whether it is the beginning or the end of its document.
    """

    data: list[bytes]
    offsets: list[int]
    val: list[bool | None]
    begins: list[bool]
    ends: list[bool]
    empty_documents: int
    passages: tuple[int, int]
    """How many passages these are, and how many of them are val; (0, 0) when documents are judged whole."""


def read_parts(start: Position, reader: Reader, base: int, rules: TextRules) -> Iterator[Part]:
    """The Parts of one file, from start on; the file begins at byte base of the job. Consecutive, complete, never empty."""
    head = reader.read(0, 4 << 10)
    refuse_other_encodings(reader.path, head)
    if start.offset == 0 and head.startswith(BOM):
        start = Position(file=start.file, offset=len(BOM), begin=len(BOM))
    read = _read_documents if rules.passage_bytes is None else _read_passages
    yield from read(start, reader, base, rules)


def pieces_of(part: Part, base: int, rules: TextRules, is_val: Callable[[int], bool]) -> Pieces:
    """The documents of one Part, or its passages, neighbours that go the same way joined."""
    return _pieces_of_passages(part, is_val) if part.starts else _pieces_of_documents(part, base, rules, is_val)


def keys_of(part: Part, base: int, rules: TextRules) -> list[int]:
    """The keys of the documents or passages that begin in this Part, the empty ones aside."""
    if part.starts or part.open:
        return list(part.keys)
    documents = _documents(part, rules.separator)
    keys = [rules.key(text[:DOCUMENT_HEAD], base + part.offset + offset) for text, offset in documents if text]
    return keys[1:] if part.continues and documents[0][0] else keys


def _pieces_of_passages(part: Part, is_val: Callable[[int], bool]) -> Pieces:
    val = [is_val(key) for key in part.keys]
    turns = [0, *(i for i in range(1, len(val)) if val[i] != val[i - 1])]
    offsets = [part.starts[i] for i in turns]
    count = len(turns)
    return Pieces(
        data=[part.data[a:b] for a, b in zip(offsets, [*offsets[1:], len(part.data)], strict=True)],
        offsets=offsets,
        val=[val[i] for i in turns],
        begins=[not part.continues] + [False] * (count - 1),
        ends=[False] * (count - 1) + [not part.open],
        empty_documents=0,
        passages=(len(val), sum(val)),
    )


def _pieces_of_documents(part: Part, base: int, rules: TextRules, is_val: Callable[[int], bool]) -> Pieces:
    documents = _documents(part, rules.separator)
    # Only the first can continue a document, and only the last can stay open; an open Part is one piece.
    kept = [(text, offset) for i, (text, offset) in enumerate(documents) if text or (i == 0 and part.continues)]
    key, place = rules.key, base + part.offset
    val: list[bool | None]
    if part.open:
        val = [is_val(part.keys[0])] if part.keys else [None]
    else:
        val = [is_val(key(text[:DOCUMENT_HEAD], place + offset)) for text, offset in kept]
    begins, ends = [True] * len(kept), [True] * len(kept)
    if part.continues:
        val[0], begins[0] = None, False
    if part.open:
        ends[-1] = False
    return Pieces(
        data=[text for text, _ in kept],
        offsets=[offset for _, offset in kept],
        val=val,
        begins=begins,
        ends=ends,
        empty_documents=len(documents) - len(kept),
        passages=(0, 0),
    )


def _documents(part: Part, separator: bytes | None) -> list[tuple[bytes, int]]:
    """What lies between the separators of a Part, and where; after the last one there is a document only if there is text."""
    if separator is None or part.open:
        return [(part.data, 0)]
    texts = part.data.split(separator)
    if not texts[-1]:
        texts.pop()
    documents, offset = [], 0
    for text in texts:
        documents.append((text, offset))
        offset += len(text) + len(separator)
    return documents


def refuse_other_encodings(path: str, head: bytes) -> None:
    """UTF-16 and UTF-32 are named as such; as bytes they would be nonsense, and mostly valid UTF-8."""
    encoding = None
    if head.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        encoding = "UTF-32"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    elif len(head) >= 64:
        # Every other byte is zero: UTF-16 of a Western text without its mark. Scattered NULs are text.
        even, odd = head[0::2].count(0) / len(head[0::2]), head[1::2].count(0) / len(head[1::2])
        if max(even, odd) > 0.8 and min(even, odd) < 0.05:
            encoding = "UTF-16LE" if odd > even else "UTF-16BE"
    if encoding:
        raise InputError(
            f"{show(path)}: this is {encoding} text, and only UTF-8 is read; convert it first: iconv -f {encoding} -t UTF-8 {show(path)} > utf8.txt"
        )


def _read_documents(start: Position, reader: Reader, base: int, rules: TextRules) -> Iterator[Part]:
    at, begin = start.offset, start.begin
    while at < _size(reader):
        before = min(_BEFORE_BYTES, at - begin)
        data, document_ends, forced = _next_stretch(reader, at, before, rules, _block_bytes(start.file, at, rules))
        keys: tuple[int, ...] = ()
        if not document_ends and at == begin:
            head = reader.read(at, DOCUMENT_HEAD + len(rules.separator or b""))
            if rules.separator is not None:
                head = head.split(rules.separator, 1)[0]
            keys = (rules.key(head[:DOCUMENT_HEAD], base + at),)
        part = Part(
            file=start.file, offset=at, begin=begin, data=data, keys=keys, open=not document_ends, forced=forced
        )
        yield part
        at, begin = part.after.offset, part.after.begin
        reader.done_until(at)


def _next_stretch(reader: Reader, at: int, before: int, rules: TextRules, block_bytes: int) -> tuple[bytes, bool, bool]:
    """The next bytes of the file up to a document's end or an exact cut; whether a document ends there; whether by force.

    The document began at least `before` bytes earlier: they are context.
    """
    separator = rules.separator
    margin = CONTEXT_BYTES + len(separator or b"")
    for limit in _growing(block_bytes, rules.max_run_bytes):
        data = reader.read(at - before, before + limit + margin)
        high = before + limit
        if at - before + len(data) == reader.size and len(data) <= high:
            return data[before:], True, False
        if separator is not None:
            end = _documents_end(data[before : high + len(separator)], separator)
            if end:
                return data[before : before + end], True, False
        cut = rules.cuts.last(data, before, min(high, len(data)))
        if cut is not None:
            return data[before:cut], False, False
    return data[before : _character_boundary(data, before + rules.max_run_bytes)], False, True


def _read_passages(start: Position, reader: Reader, base: int, rules: TextRules) -> Iterator[Part]:
    at = start.offset
    while at < _size(reader):
        known = rules.known.pop((start.file, at), None)
        data, known = (
            (reader.read(at, known.end), known)
            if known
            else _find_passages(reader, base, at, rules, _block_bytes(start.file, at, rules))
        )
        yield Part(
            file=start.file,
            offset=at,
            begin=start.begin,
            data=data[: known.end],
            starts=known.starts,
            keys=known.keys,
            open=at + known.end < _size(reader),
            forced=known.forced,
        )
        at += known.end
        reader.done_until(at)


def _find_passages(reader: Reader, base: int, at: int, rules: TextRules, block_bytes: int) -> tuple[bytes, Passages]:
    """The next bytes of the file, and the passages that surely begin and end in them."""
    for limit in _growing(block_bytes, rules.max_run_bytes):
        data = reader.read(at, limit + CONTEXT_BYTES)
        at_end = at + len(data) == reader.size
        starts: list[int] = []
        end, forced = 0, False
        while end < len(data) and not forced:
            border, forced = _next_border(data, end, base + at, rules, at_end=at_end, rest=_size(reader) - at - end)
            if border is None:
                break
            starts.append(end)
            end = border
        if starts:
            break
    keys = [
        rules.key(data[a : min(b, a + PASSAGE_HEAD)], base + at + a)
        for a, b in zip(starts, [*starts[1:], end], strict=True)
    ]
    return data, Passages(starts=tuple(starts), keys=tuple(keys), end=end, forced=forced)


def _next_border(
    data: bytes, at: int, offset: int, rules: TextRules, *, at_end: bool, rest: int
) -> tuple[int | None, bool]:
    """Where the passage that begins at `at` ends, and whether by force; (None, …) when more text is needed to tell.

    Passages begin at lines that a hash of the line before picks, so that an edit moves only the borders
    near it; where there are no lines, at the first exact cut. What would be a short last passage, of the
    `rest` of the file, belongs to the one before: a validation set of a few tokens is of no use.
    """
    assert rules.passage_bytes is not None
    visible = len(data) if at_end else len(data) - CONTEXT_BYTES
    goal = at + rules.passage_bytes
    line_until = goal + rules.passage_bytes // 16
    border_ahead = rules.border is not None and offset + at < rules.border < offset + at + rest
    if border_ahead and rules.border is not None and rules.border <= offset + line_until:
        goal = line_until = max(rules.border - offset, at + _BEFORE_BYTES)  # what the rules look at is at hand
    elif rest < 2 * rules.passage_bytes and not border_ahead:
        return (len(data) if at_end else None), False
    if goal >= len(data):
        return (len(data) if at_end else None), False
    if line_until > visible and not at_end:
        return None, False
    after = goal
    while after := data.find(b"\n", after, line_until) + 1:
        if (
            after < len(data)
            and data[after] > 0x20 < data[after - 2]
            and xxh3_64_intdigest(data[after - 16 : after]) & 1
            and rules.cuts.is_line_cut(data, after)
        ):
            return after, False
    last = at + rules.max_run_bytes
    for window in range(line_until, last, 4 << 10):
        until = min(window + (4 << 10), last)
        if until > visible and not at_end:
            return None, False
        found = rules.cuts.first(data, window, min(until, len(data)), at)
        if found is not None:
            return found, False
        if until >= len(data):
            return len(data), False
    return _character_boundary(data, last), True


def _size(reader: Reader) -> int:
    """A pipe whose end is not in sight has no end for now; it is seen before any rule asks for it."""
    return 1 << 62 if reader.size is None else reader.size


def _block_bytes(file: int, at: int, rules: TextRules) -> int:
    return min(rules.block_bytes, FIRST_PART_BYTES) if file == 0 and at <= len(BOM) else rules.block_bytes


def _growing(first: int, last: int) -> Iterator[int]:
    """Block sizes to try in turn until one holds a place to cut."""
    size = min(first, last)
    while size < last:
        yield size
        size *= 4
    yield last


def _character_boundary(data: bytes, at: int) -> int:
    """The last place at or before `at` that is not inside a character."""
    for start in range(at - 1, max(0, at - 4), -1):
        if data[start] & 0xC0 != 0x80:
            size = 1 + (data[start] >= 0xC0) + (data[start] >= 0xE0) + (data[start] >= 0xF0)
            return start if at < start + size else at
    return at


def _documents_end(data: bytes, separator: bytes) -> int:
    """Where the last separator ends, or an earlier one if there would be too many documents for one block."""
    if data.count(separator) <= _MAX_DOCUMENTS:
        return _last_separator_end(data, separator)
    return len(data) - len(data.split(separator, _MAX_DOCUMENTS)[-1])


def _last_separator_end(data: bytes, separator: bytes) -> int:
    """Where the last separator in data ends, separators taken from left to right; 0 if there is none."""
    found = data.rfind(separator)
    if found < 0:
        return 0
    if data.find(separator, max(0, found - len(separator) + 1), found + len(separator) - 1) < 0:
        return found + len(separator)
    # An overlapping one begins earlier ("\n\n" in "\n\n\n"): only counting from the left tells which is real.
    return len(data) - len(data.split(separator)[-1])


def escaped(separator: str) -> bytes:
    r"""A separator as typed in a shell → its bytes: \n, \t, \r, \0, \\ and \xHH are understood."""
    simple = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}

    def unescape(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) > 1 else simple[code]

    return re.sub(r"\\(x[0-9a-fA-F]{2}|[ntr0\\])", unescape, separator).encode()
