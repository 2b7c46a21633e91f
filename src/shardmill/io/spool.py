"""What was read of a stream and is still needed → bytes by position again; what is long lies on disk meanwhile."""

import os
import tempfile
from collections import deque
from typing import BinaryIO

from shardmill.errors import TemporaryError
from shardmill.system.names import show

# Readers look less than a block ahead, except in a record that is long.
IN_MEMORY = 4 << 20


class Spool:
    """A stretch of a stream: it grows at its end, and what is done with is dropped at its beginning."""

    def __init__(self, path: str, folder: str | None, start: int = 0) -> None:
        self._path, self._folder = path, folder
        self._chunks: deque[bytes] = deque()
        self._memory = start
        """Where in the stream the chunks begin; what is before them lies in the file."""
        self._file: BinaryIO | None = None
        self.start = self.end = start

    def append(self, data: bytes) -> None:
        self._chunks.append(data)
        self.end += len(data)
        while self.end - self._memory > IN_MEMORY and len(self._chunks) > 1:
            self._put_on_disk(self._chunks[0])
            self._memory += len(self._chunks.popleft())

    def drop(self, offset: int) -> None:
        """Nothing before offset is needed again."""
        if offset < self._memory:
            return  # a file is let go of as a whole
        self._close()
        while self._chunks and self._memory + len(self._chunks[0]) <= offset:
            self._memory += len(self._chunks.popleft())
        self.start = self._memory

    def read(self, low: int, high: int) -> bytes:
        """The bytes [low, high), as far as they are there; none of them was dropped."""
        found, at = [], self._memory
        if low < self._memory:
            assert self._file is not None and low >= self.start
            self._file.seek(low - self.start)
            missing = min(high, self._memory) - low
            while missing and (chunk := self._file.read(missing)):  # a read may give less than was asked for
                found.append(chunk)
                missing -= len(chunk)
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
        return found[0] if len(found) == 1 else b"".join(found)

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put_on_disk(self, data: bytes) -> None:
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
                f"{show(self._path)}: it holds a record of more than {self._memory - self.start:,} bytes, which is put on disk while it is read, in {show(folder or tempfile.gettempdir())}, and that failed: {e.strerror}; "
                "make room there, then run the same command again"
            ) from e
