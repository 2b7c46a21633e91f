"""A column of a Parquet row group → what reading it takes: found from its pages before the library decodes any.

The library makes room for whatever a page claims, and repeats a value as often as a page says. So the pages are
looked at first; that takes their headers alone, unless values may be repeated.
"""

from dataclasses import dataclass

import numpy as np

from shardmill.documents.columnar.long_pages import (
    BY_DICTIONARY,
    END_BYTES,
    Chunk,
    decompressed,
    ends_of,
    numbers_of,
    obstacle,
)
from shardmill.documents.columnar.pages import Page

# How many rows the library is asked for at once.
MOST_ROWS = 1024
# DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY; of the latter, a value may be the whole of the one before, and more.
_DELTA, _WITH_PREFIXES = (6, 7), 7
# In the library each value of a dictionary takes 16 bytes beside its text, each delta up to 8. That is a third of it,
# rounded up, since what is held is reserved three times over.
_WORD_BYTES, _DELTA_BYTES = 6, 3


@dataclass(kw_only=True, slots=True)
class Needs:
    """What reading a chunk takes."""

    values: int = 0
    damage: str | None = None
    """How many values there are before a page that is damaged, and what is wrong with it."""
    held: int = 0
    """What the library holds at once of the pages."""
    streamed: int = 0
    """The same where they are read a window at a time."""
    obstacle: str | None = None
    """Why they cannot be read a window at a time, if so."""
    mean: int = 0
    """The mean size of the values of a page, of the page with the longest."""
    repeated: int = 0
    """How long a value may be that a page repeats; 0: all that is repeated fits in memory."""


def needs(chunk: Chunk) -> Needs:
    """Look at all pages of a chunk, up to one that is damaged."""
    found = Needs()
    words: Page | None = None
    coded: list[Page] = []
    try:
        for page in chunk.pages():
            if page.is_dictionary and words is not None:
                raise ValueError("it has two dictionaries")
            _add(found, chunk, page)
            words = page if page.is_dictionary else words
            if page.encoding in BY_DICTIONARY and page.is_data and len(coded) <= MOST_ROWS:
                coded.append(page)
    except (ValueError, IndexError) as e:
        found.damage = str(e)
    most_rows = min(MOST_ROWS, found.values)
    if words is not None and coded and most_rows * words.size > chunk.held >= words.size:
        found.repeated = max(found.repeated, _longest(chunk, words, coded))
    return found


def _add(found: Needs, chunk: Chunk, page: Page) -> None:
    if page.encoding in _DELTA and page.size <= chunk.held:
        _refuse_more_deltas(chunk, page)
    if page.encoding == _WITH_PREFIXES:
        found.repeated = max(found.repeated, page.size)
    if page.is_dictionary:
        if chunk.is_bytes and END_BYTES * page.values > page.size:
            raise ValueError(f"a dictionary of {page.values:,} values in {page.size:,} bytes")
        found.streamed = max(found.streamed, END_BYTES * page.values)
    each = _WORD_BYTES if page.is_dictionary else _DELTA_BYTES if page.encoding in _DELTA else 0
    found.held = max(found.held, max(page.size, page.compressed) + each * page.values)
    found.mean = max(found.mean, page.size // max(1, page.values))
    found.obstacle = found.obstacle or obstacle(chunk, page)
    found.values += page.values if page.is_data else 0


def _longest(chunk: Chunk, words: Page, coded: list[Page]) -> int:
    """The longest value of a dictionary; 0 when the text that is written by number fits in memory, all of it."""
    if not chunk.is_bytes:
        return words.size // max(1, words.values)
    if len(coded) <= MOST_ROWS and words.size * _most_uses(chunk, words, coded) <= chunk.held:
        return 0
    try:
        ends = ends_of(decompressed(chunk, words), words.values)
    except ValueError:  # LZ4 of old; or it is damaged, as will be told
        return words.size
    return int(np.diff(np.array(ends, np.int64), prepend=0).max(initial=0))


def _most_uses(chunk: Chunk, words: Page, coded: list[Page]) -> int:
    """How often the value is written that is written most often; or how often values are, where they are many."""
    count = sum(page.values for page in coded)
    if count > min(2 * words.values, 64 * MOST_ROWS) or max(page.size for page in coded) > chunk.held:
        return count
    uses = np.zeros(words.values, np.int64)
    for page in coded:
        try:
            numbers = numbers_of(chunk, page)
        except ValueError:  # told when it is read
            return count
        if numbers.max(initial=0) >= words.values:
            return count
        uses += np.bincount(numbers, minlength=words.values)
    return int(uses.max(initial=0))


def _refuse_more_deltas(chunk: Chunk, page: Page) -> None:
    """The library makes room for as many lengths as a page of deltas claims, whatever its header says."""
    data = decompressed(chunk, page)
    at = 4 + int.from_bytes(data[:4], "little") if chunk.max_level and not page.is_v2 else 0
    for _ in range(2 if page.encoding == _WITH_PREFIXES else 1):
        at = _end_of_deltas(data, at, page.values)


def _end_of_deltas(data: bytes, at: int, most: int) -> int:
    """Where a sequence of deltas ends that has so many at most."""
    block, at = _varint(data, at)
    parts, at = _varint(data, at)
    count, at = _varint(data, at)
    _, at = _varint(data, at)
    if not block or not parts or count > most:
        raise ValueError(f"a page of {most:,} values has {count:,} lengths")
    left = count - 1
    while left > 0:
        _, at = _varint(data, at)
        widths, at = data[at : at + parts], at + parts
        for width in widths[: -(-left * parts // block)]:
            at += width * (block // parts) // 8
        left -= block
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 127 and shift < 63:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | (data[at] & 127) << shift, at + 1
