"""A column chunk of a Parquet file → its rows, many pages at a time: those that are as usual, and small enough to hold."""

import numpy as np
import numpy.typing as npt

from shardmill.documents.columnar.columns import long_value
from shardmill.documents.columnar.native import ChunkPages, Data, FoundPage, Window, address
from shardmill.documents.columnar.pages import DICTIONARY, MOST_HELD, PLAIN, Ahead, Chunk, Held
from shardmill.documents.long_values import ValueReader
from shardmill.documents.rules import TextRules
from shardmill.io.compression import zstd_in_c
from shardmill.system import buffers, compiled

_MOST_PAGES = 64
# A dictionary of more words is read by itself.
_MOST_WORDS = 32 << 10

Ends = npt.NDArray[np.uint32]


class Pages:
    """Some pages, decompressed together, and their rows. A page that is odd in any way, or damaged, is left to others."""

    def __init__(self, chunk: Chunk, largest: int) -> None:
        """largest: the most bytes that a page may need."""
        self._chunk, self._largest, self._ahead = chunk, min(largest, MOST_HELD), Ahead(chunk)
        zstd = zstd_in_c() if chunk.codec == "ZSTD" else None
        self._in_c = zstd is not None or chunk.codec == "UNCOMPRESSED"
        self._found, self.ends = (FoundPage * _MOST_PAGES)(), np.empty(_MOST_WORDS, np.uint32)
        self._given = ChunkPages(
            top=chunk.max_level,
            decompress=zstd,
            ends=compiled.address(self.ends),
            count=-1,
            room=_MOST_WORDS,
            pages=self._found,
        )
        self._data, self._at = memoryview(b""), chunk.start
        self._bodies: list[Data] = []
        self._by_dictionary = False
        self.dictionary: Data = b""

    def find(self, at: int, rows: int, most: int) -> bool:
        """The next pages, from a byte of the file on; they decompress to about so many bytes. False: an odd one is next.

        rows: how many the chunk still has."""
        given = self._given
        for read in (self._ahead.known, self._ahead.more):
            self._data, self._at = read(at), at
            given.data, given.size, given.rows = address(self._data), len(self._data), rows
            size = given.find(_MOST_PAGES, self._largest, most)
            if given.found:
                break
        else:
            return False
        pages = self._found[: given.found]
        has_dictionary = pages[0].kind == DICTIONARY
        if has_dictionary and self.end < self._chunk.end:  # it is needed longer than the others
            given.found, size, pages = 1, pages[0].size, pages[:1]
        if self._in_c:
            out = buffers.take(size)
            self._bodies = [out.data]
            given.decompress_to(out)
        else:
            self._bodies = [self._decompressed(page) for page in pages]
        self.dictionary = self._bodies[0] if has_dictionary else self.dictionary
        self._by_dictionary = any(page.encoding != PLAIN for page in pages)
        return True

    def _decompressed(self, page: FoundPage) -> Data:
        size, data = page.size - page.levels, self._data[page.at + page.levels : page.at + page.compressed]
        try:
            body = self._chunk.decompressed(data, size) if page.packed and size else bytes(data)
        except ValueError:
            return b""  # the page is odd
        page.body = address(body) if len(body) == size else None
        return body

    def add_to(self, window: Window) -> int:
        """Rows; returns what comes next."""
        return self._given.add_to(window)

    def owners(self, _window: Window, _first: int, _rules: TextRules) -> list[Data]:
        """What holds their texts."""
        others = [self.dictionary] if self._by_dictionary and self.dictionary is not self._bodies[0] else []
        return [*self._bodies, *others]

    def long(self, rules: TextRules) -> ValueReader:
        """The value that is told to be long."""
        at = self._given.page.data + self._given.page.start
        owner = next(each for each in (*self._bodies, self.dictionary) if 0 <= at - address(each) < len(each))
        start = at - address(owner)
        return long_value(Held(self._chunk.reader.path, owner), start, start + self._given.page.length, rules)

    def go_on(self) -> None:
        raise too_few_values()

    @property
    def start(self) -> int:
        """Where in the file the page begins at which the rows are."""
        return int(self._at + self._found[self._given.now].start)

    @property
    def end(self) -> int:
        """Where in the file the last of the pages ends."""
        last = self._found[self._given.found - 1]
        return int(self._at + last.at + last.compressed)

    @property
    def words(self) -> int:
        """How many there are in the dictionary; -1: there is none."""
        return int(self._given.count)

    def set_dictionary(self, data: Data | None, ends: Ends) -> None:
        """One that was read by itself; None: it is not in memory, so that pages which refer to it are odd."""
        self._given.room = -1
        if data is not None:
            self.dictionary, self.ends = data, ends
            self._given.words, self._given.ends, self._given.count = address(data), ends.ctypes.data, len(ends)


def too_few_values() -> EOFError:
    return EOFError("a page has fewer values than its header says")
