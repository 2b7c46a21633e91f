"""A plain text file → Parts: spans between exact cuts, with the documents or passages in each.

The file is read in order, from its start or from a place in the middle that is told by the text nearby. A Part ends where
a document ends or where the text can be cut exactly, so the tokens do not depend on the size of Parts. Only text that
cannot be cut exactly for max_run_bytes is cut by force, at that distance from the last exact cut, which depends on nothing
but the content.
"""

import dataclasses
from collections.abc import Iterator
from ctypes import c_void_p, cast
from functools import partial
from typing import Any

import numpy as np

from shardmill.documents import native, ranges, utf8
from shardmill.documents.passages import (
    BEFORE_BYTES,
    borders_for_c,
    character_boundary,
    context_bytes,
    find_passages,
    first_border,
    reach_of,
)
from shardmill.documents.pieces import Position
from shardmill.documents.ranges import RangePart
from shardmill.documents.records import Counted
from shardmill.documents.rejects import Location
from shardmill.documents.rules import (
    BOM,
    DOCUMENT_HEAD,
    TextRules,
    block_bytes,
    growing,
)
from shardmill.documents.text import NO_KEYS, TextPart
from shardmill.errors import InputError
from shardmill.io.reading import Reader, Until, local_file, local_reader
from shardmill.system import compiled
from shardmill.system.names import show
from shardmill.tokens.cuts import CONTEXT_BYTES

# So much running text is read at once from a local file.
_WINDOW = 4 << 20
_LONGEST_SEPARATOR = 1 << 10
# In a run of separators that overlap, no more of them are looked at.
_MOST_OVERLAPS = 4 << 10


def read_parts(
    start: Position,
    reader: Reader,
    base: int,
    rules: TextRules,
    *,
    is_value: bool = False,
    until: Position | None = None,
) -> Iterator[TextPart | Counted | RangePart]:
    """The Parts of one file, or of one value, from start on, to its end or to an entry; it begins at byte `base` of the
    whole input."""
    head = b"" if is_value else reader.read(0, 4 << 10)
    utf8.refuse_other_encodings(reader.path, head)
    bom = start.offset == 0 and head.startswith(BOM)
    if bom:
        start = Position(file=start.file, offset=len(BOM), begin=len(BOM))
    read = _read_documents if rules.passage_bytes is None else _read_passages
    for part in read(start, reader, base, rules, until):
        if isinstance(part, RangePart):  # which nobody has read yet
            yield part
            continue
        yield dataclasses.replace(part, boms=1) if bom else part
        bom = False
        reader.done_until(max(0, part.after.offset - behind(rules)))


def behind(rules: TextRules) -> int:
    """How much of what was read must be read again to go on."""
    return 0 if rules.passage_bytes is None else context_bytes(rules)


def entry(reader: Reader, file: int, base: int, offset: int, rules: TextRules) -> Position | None:
    """The first place at or after this byte where reading can begin, whatever comes before it; None: none nearby."""
    if rules.passage_bytes is not None:
        found = first_border(reader, base, offset, rules)
        begin = len(BOM) if reader.read(0, len(BOM)) == BOM else 0
        return None if found is None else Position(file=file, offset=found, begin=begin, spent=found)
    bom = len(BOM) if reader.read(0, len(BOM)) == BOM else 0
    if rules.separator is not None:
        found = _separated(reader, max(offset, bom + 1), bom, rules)
        return None if found is None else Position(file=file, offset=found, begin=found, spent=found)
    if rules.on_error == "skip":
        return None  # whether the file is UTF-8 must be known before anything of it is written
    found = _cut_after(reader, max(offset, bom + BEFORE_BYTES), rules)
    return None if found is None else Position(file=file, offset=found, begin=bom, spent=found)


def _separated(reader: Reader, offset: int, since: int, rules: TextRules) -> int | None:
    """The end of the first separator that no other overlaps which begins before it: reading from anywhere before finds it."""
    separator = rules.separator or b""
    size = len(separator)
    low = max(since, offset - 2 * size)
    for limit in growing(64 << 10, rules.max_run_bytes):
        data = reader.read(low, limit)
        at = data.find(separator, max(0, offset - size - low))
        for _ in range(_MOST_OVERLAPS):
            if at < 0:
                break
            if data.find(separator, max(0, at - size + 1), at - 1 + size) < 0:
                return low + at + size if reader.read(low + at + size, 1) else None
            at = data.find(separator, at + 1)
        else:
            return None
    return None


def _cut_after(reader: Reader, offset: int, rules: TextRules) -> int | None:
    low = offset - CONTEXT_BYTES if offset > CONTEXT_BYTES else 0
    for limit in growing(4 << 10, rules.max_run_bytes):
        data = reader.read(low, limit + 2 * CONTEXT_BYTES)
        found = rules.cuts.first_anywhere(data, offset - low, min(offset - low + limit, len(data) - CONTEXT_BYTES))
        if found is not None:
            return low + found
    return None


def _read_documents(
    start: Position, reader: Reader, base: int, rules: TextRules, until: Position | None
) -> Iterator[TextPart | Counted | RangePart]:
    at, begin = start.offset, start.begin
    end = None if until is None else until.offset
    if end is not None and rules.separator is not None:
        reader, end = Until(reader, end), None
    separator = rules.separator or b""
    skips = rules.on_error == "skip" and not rules.judging
    reader.done_until(begin)
    dropped = at > begin and rules.wanted is not None and not rules.wanted(_head(reader, begin, separator))
    if at > begin and not dropped and skips:
        _refuse_half_a_document(reader, begin, separator)
    reader.done_until(at)
    while at != end:
        if rules.range_bytes and at == begin and (some := _range(reader, start.file, at, base, rules)) is not None:
            yield some
            at = begin = some.end
            continue
        before = min(BEFORE_BYTES, at - begin)
        about = block_bytes(start.file, at, rules, reader.size)
        data, ended, forced, valid = _next_span(reader, at, before, rules, about, end)
        if not data:
            return
        keys = NO_KEYS
        if not ended and at == begin:
            head = _head(reader, at, separator)
            dropped = rules.wanted is not None and not rules.wanted(head)
            if skips and not dropped:
                _, following, complaint = utf8.find_end(reader, at, separator)
                if complaint is not None:
                    after = Position(file=start.file, offset=following, begin=following)
                    location = Location(path=reader.path, byte=at)
                    yield Counted(file=start.file, after=after, location=location, complaint=complaint)
                    at = begin = following
                    continue
            keys = np.array([rules.key(head, base + at)], np.uint64)
        part = TextPart(
            file=start.file,
            offset=at,
            begin=begin,
            data=data,
            documents=ended,
            keys=keys,
            open=not ended,
            forced=forced,
            valid=valid,
            dropped=dropped and not (at == begin and ended),
            path=reader.path,
        )
        yield part
        at, begin = part.after.offset, part.after.begin


def _range(reader: Reader, file: int, at: int, base: int, rules: TextRules) -> RangePart | None:
    """Documents that C reads, too; None: here it should not."""
    local, size, separator = local_reader(reader), reader.size or 0, rules.separator
    if local is None or separator is None or len(separator) > _LONGEST_SEPARATOR or at <= len(BOM) or at == size:
        return None
    end = ranges.end_of(at, size, rules, lambda about: _separated(reader, about, at, rules))
    if end is None:
        return None
    own, bytes_of = local.again(), np.frombuffer(separator, np.uint8)

    def given() -> tuple[dict[str, Any], object]:
        where = {"separator": compiled.address(bytes_of), "separator_size": len(separator)}
        return {"kind": ranges.SEPARATED, **where}, bytes_of

    def rest(at: int, _: int, to_end: bool) -> Iterator[TextPart | Counted | RangePart]:
        start = Position(file=file, offset=at, begin=at)
        read = partial(_read_documents, start, Until(own, end), base, until=None)
        return ranges.rest(read, rules, to_end, lambda part: part.after.begin == part.after.offset)

    return RangePart(
        file=file,
        reader=own,
        at=at,
        end=end,
        base=base,
        rules=rules,
        size=end - at,
        unit="byte",
        after=Position(file=file, offset=end, begin=end),
        span=(at, end),
        given=given,
        rest=rest,
    )


def _refuse_half_a_document(reader: Reader, begin: int, separator: bytes) -> None:
    """The beginning of a document was written under another policy: if it is bad, it can no longer be skipped."""
    complaint = utf8.find_end(reader, begin, separator)[2]
    if complaint is not None:
        raise InputError(
            f"{show(reader.path)}: part of the document that begins at byte {begin:,} has already been written, and {complaint}, so it can no longer be skipped; pass --on-error replace to resume, or start again with --overwrite"
        )


def _head(reader: Reader, begin: int, separator: bytes) -> bytes:
    """The beginning of the document that begins there."""
    head = reader.read(begin, DOCUMENT_HEAD + len(separator))
    return (head.split(separator, 1)[0] if separator else head)[:DOCUMENT_HEAD]


def _next_span(
    reader: Reader, at: int, before: int, rules: TextRules, about: int, last: int | None = None
) -> tuple[memoryview, int, bool, bool]:
    """The next bytes of the file up to the end of a document or an exact cut; how many documents end, 0 at a cut; whether
    the cut was forced; and whether it is known to be UTF-8. The document began at least `before` bytes earlier: they are
    context. At `last`, if given, there is an exact cut.
    """
    separator = rules.separator
    margin = CONTEXT_BYTES + len(separator or b"")
    if separator is not None and about > rules.max_run_bytes:
        found = _whole_documents(reader, at, before, rules, about)
        if found is not None:
            return found
    for limit in growing(about, rules.max_run_bytes):
        if last is not None and at + limit >= last:
            return memoryview(reader.read(at, last - at)), 0, False, False
        data, valid = _read(reader, at, before, limit + margin, rules)
        high = before + limit
        file_ends = len(data) <= high
        count = 0
        if separator is not None:
            window = np.frombuffer(data, np.uint8)[before : high + len(separator)]
            end, count = _documents_end(window, separator, rules.max_records)
            if end and (not file_ends or count == rules.max_records):
                return _some(data, before, before + end), count, False, valid
        if file_ends:
            return data[before:], count + 1, False, valid
        cut = rules.cuts.last(bytes(data), before, min(high, len(data)))
        if cut is not None:
            return _some(data, before, cut), 0, False, valid
    return _some(data, before, character_boundary(data, before + rules.max_run_bytes)), 0, True, valid


def _whole_documents(
    reader: Reader, at: int, before: int, rules: TextRules, about: int
) -> tuple[memoryview, int, bool, bool] | None:
    """Several times max_run_bytes of documents that are not longer than that, as _next_span has it; None: the first is."""
    separator, longest = rules.separator or b"", rules.max_run_bytes
    data, valid = _read(reader, at, before, about + len(separator), rules)
    text = np.frombuffer(data, np.uint8)[before:]
    ends = native.separators(text, separator, rules.max_records)
    starts = np.append(0, ends + len(separator))
    too_long = np.flatnonzero(np.diff(np.append(starts, len(text) + len(separator))) - len(separator) > longest)
    count = min(len(ends), int(too_long[0]) if len(too_long) else len(ends))
    if len(text) < about + len(separator) and not len(too_long) and count < rules.max_records:
        return data[before:], count + 1, False, valid
    return (_some(data, before, before + int(starts[count])), count, False, valid) if count else None


def _read(reader: Reader, at: int, before: int, length: int, rules: TextRules) -> tuple[memoryview, bool]:
    """Text with so much before it, and whether it is known to be UTF-8."""
    data, valid = native.read_text(reader, at - before, before + length, check=not rules.judging)
    # A character that is cut off at the beginning of what was read was no reason to complain.
    return data, valid and not (len(data) > before and data[before] & 0xC0 == 0x80)


def _some(data: memoryview, start: int, stop: int) -> memoryview:
    """A copy if it is only a small part, so that little text does not keep much in memory."""
    return data[start:stop] if stop - start > len(data) // 2 else memoryview(bytes(data[start:stop]))


def _read_passages(
    start: Position, reader: Reader, base: int, rules: TextRules, until: Position | None
) -> Iterator[TextPart | RangePart]:
    at, last = start.offset, False
    while not last and (until is None or at < until.offset):
        if rules.range_bytes and (some := _range_of_passages(reader, start, at, base, rules, until)) is not None:
            yield some
            at = some.end
            continue
        size = block_bytes(start.file, at, rules, reader.size if until is None else until.offset)
        # What tells the borders at both ends is read twice, so several Parts are read at once.
        about = max(size, _WINDOW) if size >= _WINDOW // 4 and local_file(reader, at, 1) is not None else size
        data, found = find_passages(reader, base, at, rules, about, None if until is None else until.offset)
        if not len(found.keys):
            return
        bounds, first = found.bounds, 0
        while first < len(found.keys):
            stop = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, side="right")) - 1)
            begin, end = int(bounds[first]), int(bounds[stop])
            last = found.last and end == len(data)
            yield TextPart(
                file=start.file,
                offset=at + begin,
                begin=start.begin,
                data=data[begin:end],
                starts=bounds[first:stop] - begin,
                keys=found.keys[first:stop],
                open=not last,
                forced=found.forced and end == len(data),
                valid=found.valid,
                path=reader.path,
            )
            first = stop
        at += len(data)


def _range_of_passages(
    reader: Reader, start: Position, at: int, base: int, rules: TextRules, until: Position | None
) -> RangePart | None:
    """Passages in the middle of a text that C reads, too; None: here it should not."""
    local, cuts = local_reader(reader), rules.cuts
    if local is None or cuts.family == "unknown" or at == start.begin:
        return None
    if until is not None:
        end = ranges.end_of(at, until.offset, rules, lambda about: first_border(reader, base, about, rules))
    elif (reader.size or 0) - at > rules.range_bytes:
        end = first_border(reader, base, at + rules.range_bytes, rules)
    else:
        end = None
    context = context_bytes(rules)
    if end is None or (rules.border is not None and at - context <= rules.border - base <= end + context):
        return None
    own, reach = local.again(), reach_of(rules)
    adjacent = cuts.adjacent if cuts.family == "sentencepiece" else None

    def given() -> tuple[dict[str, Any], object]:
        find = borders_for_c(own, base, rules)
        window = {"window_bytes": _WINDOW, "file_size": own.size, "reach": reach, "context": context}
        apart = {} if adjacent is None else {"adjacent": compiled.address(adjacent), "adjacent_count": len(adjacent)}
        return {"kind": ranges.PASSAGES, "find_borders": cast(find, c_void_p), **window, **apart}, (adjacent, find)

    def rest(at: int, _: int, to_end: bool) -> Iterator[TextPart | RangePart]:
        here = Position(file=start.file, offset=at, begin=start.begin)
        there = Position(file=start.file, offset=end, begin=start.begin)
        return ranges.rest(partial(_read_passages, here, own, base, until=there), rules, to_end, lambda _: True)

    return RangePart(
        file=start.file,
        reader=own,
        at=at,
        end=end,
        base=base,
        rules=rules,
        size=end - at,
        unit="byte",
        passages=True,
        after=Position(file=start.file, offset=end, begin=start.begin),
        span=(max(0, at - context), end - context),
        given=given,
        rest=rest,
    )


def _documents_end(data: native.Bytes, separator: bytes, most: int) -> tuple[int, int]:
    """Where the last separator ends, counted from the left, or an earlier one if there are too many; and how many."""
    found = native.separators(data, separator, most)
    return (int(found[-1]) + len(separator) if len(found) else 0), len(found)
