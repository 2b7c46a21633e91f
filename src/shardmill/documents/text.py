"""The documents or passages in a Part of plain text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardmill.documents import native, utf8
from shardmill.documents.native import Hashes
from shardmill.documents.pieces import AS_BEFORE, IsVal, Pieces, Position
from shardmill.documents.rejects import Location, Reject
from shardmill.documents.rules import (
    DOCUMENT_HEAD,
    PASSAGE_HEAD,
    TextRules,
    weight,
)
from shardmill.errors import InputError
from shardmill.system.names import show
from shardmill.tokens.strings import Flags, Numbers, Strings

NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """A span of one file. Its first piece may continue a document; its last may be continued."""

    file: int
    offset: int
    begin: int
    """Where the document that the first piece belongs to begins in the file."""
    data: bytes | memoryview
    documents: int = 1
    """How many end in it."""
    starts: Numbers | None = None
    """Where passages begin in data; None when documents are split whole."""
    keys: Hashes = field(default_factory=lambda: NO_KEYS)
    """The key of each passage, or the one key of the document that begins here and stays open."""
    open: bool
    forced: bool = False
    """The cut at the end of this Part had to be forced."""
    valid: bool = False
    """All of it is known to be UTF-8."""
    boms: int = 0
    """1 if a byte order mark precedes it."""
    dropped: bool = False
    """It belongs to a long document that is not in the sample."""
    path: str = ""

    @property
    def continues(self) -> bool:
        return self.offset > self.begin

    @property
    def is_whole(self) -> bool:
        """It is made of whole documents."""
        return self.starts is None and not (self.open or self.dropped or self.continues)

    @property
    def size(self) -> int:
        return weight(len(self.data), self.documents)

    @property
    def after(self) -> Position:
        """Where the next Part begins."""
        end = self.offset + len(self.data)
        return Position(file=self.file, offset=end, begin=self.begin if self.open else end)

    def pieces(self, base: int, rules: TextRules, is_val: IsVal) -> Pieces:
        invalid = not (self.valid or rules.judging or utf8.is_valid(self.data))
        if invalid and rules.on_error == "stop" and not rules.limited and rules.wanted is None:
            raise utf8.refusal(self.path, self.offset, bytes(self.data))
        found = pieces_of(self, base, rules, is_val, invalid=invalid)
        if invalid and rules.on_error == "replace":
            _repair(found, rules)
        elif invalid and rules.on_error == "stop":
            _end_at_bad_byte(found, self, rules)
        found.origin = self
        return found

    def origins(self, found: Pieces) -> Numbers:
        if self.starts is not None:  # passages of one document
            return np.full(len(found), self.begin, np.int64)
        return np.where(found.begins, self.offset + found.offsets, self.begin)

    def place_of(self, _piece: int, offset: int) -> Location:
        return Location(path=self.path, byte=self.offset + offset)


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallFiles:
    """Many files, each of which is one document: faster at once."""

    parts: tuple[TextPart, ...]
    texts: Strings

    @staticmethod
    def of(parts: Sequence[object], rules: TextRules) -> "SmallFiles | None":
        """None if some need a closer look."""
        if len(parts) < 2 or rules.separator is not None or rules.limited or rules.seed is None:
            return None
        found = tuple(part for part in parts if isinstance(part, TextPart) and part.is_whole)
        texts = Strings.of([bytes(part.data) for part in found])
        if len(found) < len(parts) or native.invalid(texts).any():
            return None
        return SmallFiles(parts=found, texts=texts)

    def pieces(self, rules: TextRules, is_val: IsVal) -> Pieces:
        noted, left_out = Pieces(), dict[str, Flags]()
        if rules.wanted is not None:
            left_out["documents_unsampled"] = ~rules.wanted.of(self.texts, DOCUMENT_HEAD)
        if marks := sum(part.boms for part in self.parts):
            noted.count("byte_order_marks", marks)
        numbers = np.arange(len(self.parts))
        found, _ = Pieces.of_documents(self.texts, numbers, left_out, noted)
        found.val, found.origin = is_val(rules.keys(found.texts, found.offsets)).view(np.int8), self
        return found

    def origins(self, found: Pieces) -> Numbers:
        return np.array([self.parts[number].begin for number in found.offsets.tolist()], np.int64)

    def place_of(self, _piece: int, number: int) -> Location:
        return Location(path=self.parts[number].path, byte=self.parts[number].offset)


def pieces_of(part: TextPart, base: int, rules: TextRules, is_val: IsVal, *, invalid: bool = False) -> Pieces:
    """The documents of one Part, or its passages, joined with neighbours of the same split."""
    suspect = invalid and rules.on_error == "skip"
    if part.starts is not None:
        found = _pieces_of_passages(part, rules, is_val, suspect=suspect)
    else:
        found = _pieces_of_documents(part, rules, suspect=suspect)
        begun = slice(0 if part.is_whole or found.begins.all() else 1, None)
        offsets = base + part.offset + found.offsets[begun]
        keys = part.keys[begun] if part.open else rules.keys(found.texts.take(begun), offsets)
        found.val[begun] = is_val(keys[: len(offsets)])
    if part.boms:
        found.count("byte_order_marks")
    if part.forced and len(found):
        found.count("forced_cuts", at=len(found) - 1)
    return found


def _pieces_of_passages(part: TextPart, rules: TextRules, is_val: IsVal, *, suspect: bool) -> Pieces:
    assert part.starts is not None
    data, keys = np.frombuffer(part.data, np.uint8), part.keys
    bounds = np.append(part.starts, len(data))
    wanted = np.ones(len(keys), np.bool_)
    if rules.wanted is not None:
        wanted = rules.wanted.of(Strings.within(data, bounds[:-1], bounds[1:]), PASSAGE_HEAD)
    val = np.full(len(keys), AS_BEFORE, np.int8)
    val[wanted] = is_val(keys[wanted])
    apart = rules.limited or rules.wanted is not None or rules.on_error == "skip"
    others = np.flatnonzero(val[1:] != val[:-1]) + 1
    turns = [0, *(range(1, len(keys)) if apart else others.tolist()), len(keys)]
    first, offsets = np.array(turns[:-1]), bounds[turns]
    begins, ends = np.zeros(len(first), np.bool_), np.zeros(len(first), np.bool_)
    begins[0], ends[-1] = not part.continues, not part.open
    found = Pieces(
        texts=(texts := Strings.within(data, offsets[:-1], offsets[1:])),
        offsets=offsets[:-1],
        val=val[first],
        begins=begins,
        ends=ends,
        passages=np.array(turns[1:]) - first,
    )
    for i in np.flatnonzero(~wanted).tolist():
        found.blank(i, "passages_unsampled")
    for i in np.flatnonzero(native.invalid(texts)).tolist() if suspect else ():
        found.reject(_reject(part, texts[i], int(found.offsets[i])), at=i)
        found.blank(i, "passages_rejected")
    return found


def _pieces_of_documents(part: TextPart, rules: TextRules, *, suspect: bool) -> Pieces:
    """Without their splits. Only the first can continue a document, and only an open Part, which is one piece, stays open."""
    texts, offsets = _documents(part, rules.separator)
    if part.is_whole and not suspect and rules.wanted is None and texts.sizes.all():  # as usual
        return Pieces.whole(texts, offsets)
    empty, noted = texts.sizes == 0, Pieces()
    unsampled, bad = np.zeros(len(texts), np.bool_), np.zeros(len(texts), np.bool_)
    if rules.wanted is not None:
        unsampled = ~rules.wanted.of(texts, DOCUMENT_HEAD) & ~empty
    if suspect:
        bad = native.invalid(texts) & ~empty & ~unsampled
    if part.continues or part.dropped or part.open:
        if bad[:1].any() and not part.dropped:  # all of the document was UTF-8 when its beginning was read
            raise InputError(
                f"{show(part.path)}: was modified since the job began; let whatever writes it finish, then start again with --overwrite"
            )
        empty[:1] = bad[:1] = False
        unsampled[:1] = part.dropped
    for i in np.flatnonzero(bad).tolist():
        noted.reject(_reject(part, texts[i], int(offsets[i])), at=i)
    counted = np.zeros(len(texts), np.bool_)  # where it began
    counted[:1] = part.dropped and part.continues
    unsampled &= ~counted
    left_out = {"documents_empty": empty, "documents_unsampled": unsampled, "documents_rejected": bad, "": counted}
    found, _ = Pieces.of_documents(texts, offsets, left_out, noted)
    if part.continues and not part.dropped:
        found.begins, found.all_whole = found.begins.copy(), False
        found.begins[:1], found.val[:1] = False, AS_BEFORE
    if part.open:
        found.ends, found.all_whole = found.ends.copy(), False
        found.ends[:1] = False
    return found


def _documents(part: TextPart, separator: bytes | None) -> tuple[Strings, Numbers]:
    """The documents of a Part and where each begins; after the last separator there is one only if there is text."""
    data = np.frombuffer(part.data, np.uint8)
    if separator is None or part.open:
        none = np.zeros(1, np.int64)
        return Strings.within(data, none, none + len(data)), none
    found = native.separators(data, separator, part.documents + 1)
    assert len(found) <= part.documents
    starts, ends = np.append(0, found + len(separator)), np.append(found, len(data))
    there = len(starts) - int(starts[-1] == len(data))
    return Strings.within(data, starts[:there], ends[:there]), starts[:there]


def _reject(part: TextPart, data: bytes, offset: int) -> Reject:
    return Reject(location=Location(path=part.path, byte=part.offset + offset), reason=utf8.complaint(data))


def _repair(pieces: Pieces, rules: TextRules) -> None:
    """Replace what is not UTF-8 with U+FFFD."""
    changed = {}
    for i in np.flatnonzero(native.invalid(pieces.texts)).tolist():
        data = pieces.texts[i]
        changed[i], count = utf8.replaced(data)
        pieces.count("replaced_characters", count, at=i)
        if rules.limited:
            pieces.replaced[i] = utf8.replaced_at(data)
    pieces.texts = pieces.texts.replaced(changed)


def _end_at_bad_byte(pieces: Pieces, part: TextPart, rules: TextRules) -> None:
    """Raise for the first piece that is not UTF-8; in a job with a limit, keep what precedes it, up to an exact cut."""
    for i in np.flatnonzero(native.invalid(pieces.texts)).tolist():
        data = pieces.texts[i]
        error = utf8.refusal(part.path, part.offset + int(pieces.offsets[i]), data)
        if not rules.limited:
            raise error
        pieces.keep(i + 1)
        good = rules.cuts.nearest(data, utf8.valid_bytes(data)) or 0
        pieces.ends, pieces.all_whole = pieces.ends.copy(), False
        pieces.texts.sizes[i], pieces.ends[i] = good, False
        pieces.error = i + 1, error
        return


def escaped(separator: str) -> bytes:
    r"""A separator as typed in a shell → its bytes: \n, \t, \r, \0, \\ and \xHH are recognized."""
    simple = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}

    def unescape(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) > 1 else simple[code]

    return re.sub(r"\\(x[0-9a-fA-F]{2}|[ntr0\\])", unescape, separator).encode()
