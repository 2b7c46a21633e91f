"""Replay buffer of a stream: what was read and may be read again, in memory first, then on disk."""

import os
import tempfile
from collections import deque
from typing import BinaryIO

from shardmill.errors import TemporaryError
from shardmill.system.names import show

# Readers ask for this much at once, and look back less, except within a long record.
AT_ONCE = 4 << 20
IN_MEMORY = 6 << 20

_NO_BYTES = memoryview(b"")

Data = bytes | memoryview


class Spool:
    """The bytes [start, end) of a stream: appended at the end, dropped from the start, read anywhere between.

    Beyond in_memory bytes (IN_MEMORY by default) the oldest move to a temporary file in the folder.
    """

    def __init__(self, path: str, folder: str | None, start: int = 0, *, in_memory: int | None = None) -> None:
        self._path, self._folder = path, folder
        self._in_memory = IN_MEMORY if in_memory is None else in_memory
        self._chunks: deque[Data] = deque()
        self._memory = start
        """Position of the first chunk in the stream; what comes before it is in the file."""
        self._done = start
        """Nothing before it will be read again."""
        self._last, self._used = _NO_BYTES, 0
        """The buffer that the last chunk is in, if it was made by room(), and how much of it is used."""
        self._file: BinaryIO | None = None
        self.start = self.end = start

    def append(self, data: bytes) -> None:
        self._chunks.append(data)
        self._grow(len(data))

    def room(self, size: int, *, at_least: int = 0) -> memoryview:
        """Where to write up to so many bytes that come next; then call filled. What is held is moved in front of them, if
        it is little: so nearly all that is read is in one piece."""
        if len(self._last) - self._used < size:
            size = max(size, at_least)
            low = min(max(self._done, self._memory), self.end)
            held = self.end - low
            if held > min(size, self._in_memory - size):
                self._last, self._used = _buffer(size), 0
                self._chunks.append(b"")
            else:
                self._move(low, _buffer(held + size))
        return self._last[self._used :]

    def filled(self, size: int) -> None:
        """So many bytes were written to the room."""
        self._used += size
        self._chunks[-1] = self._last[: self._used]
        self._grow(size)

    def cut(self, end: int) -> None:
        """The stream ends here, somewhere in what was added last."""
        if end < self.end:
            self._chunks[-1] = self._chunks[-1][: end - self.end]
            self.end = end

    def _move(self, low: int, buffer: memoryview) -> None:
        """What is in memory from there on becomes the beginning of a buffer."""
        at = 0
        for piece in self.pieces(low, self.end):
            buffer[at : at + len(piece)] = piece
            at += len(piece)
        self._last, self._used, self._memory = buffer, at, low
        self._chunks = deque([buffer[:at]])
        self.start = low if self._file is None else self.start

    def _grow(self, size: int) -> None:
        self.end += size
        while self.end - self._memory > self._in_memory and len(self._chunks) > 1:
            self._move_to_disk(self._chunks[0])
            self._memory += len(self._chunks.popleft())

    def drop(self, offset: int) -> None:
        """Nothing before offset will be read again."""
        self._done = max(self._done, offset)
        if offset < self._memory:
            return  # the file is only dropped as a whole
        self._close()
        while self._chunks and self._memory + len(self._chunks[0]) <= offset:
            self._memory += len(self._chunks.popleft())
        if not self._chunks:
            self._last, self._used = _NO_BYTES, 0
        self.start = self._memory

    def read(self, low: int, high: int) -> bytes:
        """The bytes [low, high), as far as they were appended; none of them may have been dropped."""
        return b"".join(self.pieces(low, high))

    def pieces(self, low: int, high: int) -> list[Data]:
        """The same, in pieces."""
        found, at = list[Data](), self._memory
        if low < self._memory:
            assert self._file is not None and low >= self.start
            self._file.seek(low - self.start)
            missing = min(high, self._memory) - low
            while missing and (some := self._file.read(missing)):  # a read may return less than was asked for
                found.append(some)
                missing -= len(some)
            if missing:
                raise TemporaryError(
                    f"{show(self._path)}: the temporary file for a long record is {missing:,} bytes short; check the disk, then run the same command again"
                )
        for chunk in self._chunks:
            if at >= high:
                break
            if at + len(chunk) > low:
                found.append(chunk[max(0, low - at) : high - at])
            at += len(chunk)
        return found

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _move_to_disk(self, data: Data) -> None:
        folder = self._folder if self._folder is not None and os.path.isdir(self._folder) else None
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._file.seek(0, os.SEEK_END)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            raise TemporaryError(
                f"{show(self._path)}: a record longer than {self._memory - self.start:,} bytes must be buffered on disk, and writing to {show(folder or tempfile.gettempdir())} failed: {e.strerror}; "
                "free some space there, then run the same command again"
            ) from e


def _buffer(size: int) -> memoryview:
    from shardmill.system import buffers  # imports numpy, which the command does without until there is work

    return buffers.take(size).data
