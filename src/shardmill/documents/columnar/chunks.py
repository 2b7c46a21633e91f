"""A column chunk of a Parquet file → its rows, many pages at a time: those that are as usual, and small enough to hold."""

import numpy as np
import numpy.typing as npt

from shardmill.documents.columnar.columns import long_value
from shardmill.documents.columnar.native import ODD, SMALL, ChunkPages, Data, FoundPage, Window, address
from shardmill.documents.columnar.pages import DICTIONARY, MOST_HELD, PLAIN, Chunk, Held
from shardmill.documents.long_values import ValueReader
from shardmill.documents.rules import TextRules
from shardmill.io.compression import zstd_in_c
from shardmill.io.reading import local_file
from shardmill.system import buffers, compiled

LENGTH_BYTES = 4
"""Of a value in encoding PLAIN, before its text."""
_MOST_PAGES = 64
# A dictionary of more words is read by itself.
_MOST_WORDS = 32 << 10
# Of a chunk, so much is read at once.
_AHEAD_BYTES = 4 << 20

Ends = npt.NDArray[np.uint32]


class Pages:
    """The pages of a chunk, several of which are decompressed together. One that is odd in any way is left to others."""

    def __init__(self, largest: int) -> None:
        """largest: the most bytes that a page may need."""
        self._largest = min(largest, MOST_HELD)
        self._found, self._room = (FoundPage * _MOST_PAGES)(), np.empty(_MOST_WORDS, np.uint32)
        self._data = np.empty(0, np.uint8)

    def begin(self, chunk: Chunk, rows: int) -> None:
        """With another chunk, of which so many rows are wanted."""
        self._chunk, length = chunk, min(chunk.length, _AHEAD_BYTES)
        file = local_file(chunk.reader, chunk.start, chunk.length)
        if file is not None and length > len(self._data):
            self._data = buffers.take(length)
        zstd = zstd_in_c() if chunk.codec == "ZSTD" else None
        self._in_c = zstd is not None or chunk.codec == "UNCOMPRESSED"
        self._given = ChunkPages(
            file=-1 if file is None else file[0],
            next=chunk.start,
            end=chunk.end if file is None else min(chunk.end, chunk.start + file[1]),
            data=compiled.address(self._data),
            data_at=-1,
            data_room=len(self._data),
            top=chunk.max_level,
            decompress=zstd,
            ends=compiled.address(self._room),
            count=-1,
            words_room=_MOST_WORDS,
            rows=rows,
            largest=self._largest,
            pages=self._found,
            pages_room=_MOST_PAGES,
        )
        self.ends = self._room
        self.dictionary: Data = b""
        self._bodies: list[Data] = []
        self._by_dictionary = False

    def add_to(self, window: Window) -> int:
        """Rows of the next pages; returns what comes next."""
        given = self._given
        if given.now < given.found:
            return given.add_to(window)
        room = max(1, min(window.room, self._chunk.size))
        while True:
            why = self._take(window, room)
            if why == SMALL:
                room = self._found[0].size
            elif why != ODD or given.file >= 0 or not self._read():
                return why

    def _take(self, window: Window, room: int) -> int:
        given = self._given
        given.out_room = room
        if self._in_c:
            out = buffers.take(room)
            given.out = compiled.address(out)
            why = given.take_to(window)
            self._bodies = [out[: given.used].data]
        else:
            why = given.find()
            self._bodies = [self._decompressed(page) for page in self._found[: given.found]]
            why = why or given.add_to(window)
        pages = self._found[: given.found]
        if pages and pages[0].kind == DICTIONARY:
            self.dictionary = self._bodies[0]
        self._by_dictionary = any(page.encoding != PLAIN for page in pages)
        return why

    def _read(self) -> bool:
        """More of a chunk that is not in a local file."""
        given = self._given
        if given.data_at == given.next:
            return False
        read = self._chunk.reader.read(given.next, min(_AHEAD_BYTES, given.end - given.next))
        self._data = np.frombuffer(read, np.uint8)
        given.data, given.size, given.data_at = compiled.address(self._data), len(self._data), given.next
        return True

    def _decompressed(self, page: FoundPage) -> Data:
        start, size = page.at + page.levels, page.size - page.levels
        data = self._data[start : page.at + page.compressed].data
        try:
            body = self._chunk.decompressed(data, size) if page.packed and size else bytes(data)
        except ValueError:
            return b""  # the page is odd
        page.body = address(body) if len(body) == size else None
        return body

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
        """There is no next value: why."""
        page = self._given.page
        left = 0 if page.ends else page.size - page.at
        raise too_few_values() if not left else too_long_value() if left >= LENGTH_BYTES else ends_early()

    @property
    def next(self) -> int:
        """Where in the file the page begins that was not read yet."""
        return int(self._given.next)

    @property
    def words(self) -> int:
        """How many there are in the dictionary; -1: there is none."""
        return int(self._given.count)

    def go_to(self, at: int, rows: int) -> None:
        """Another page was read by itself."""
        self._given.next, self._given.rows = at, rows

    def set_dictionary(self, data: Data | None, ends: Ends) -> None:
        """One that was read by itself; None: it is not in memory, so that pages which refer to it are odd."""
        self._given.words_room = -1
        if data is not None:
            self.dictionary, self.ends = data, ends
            self._given.words, self._given.ends, self._given.count = address(data), ends.ctypes.data, len(ends)


def too_few_values() -> EOFError:
    return EOFError("a page has fewer values than its header says")


def too_long_value() -> ValueError:
    return ValueError("a value is longer than its page")


def ends_early() -> ValueError:
    return ValueError("a page ends too early")
