"""Milled Blocks whose turn to be written has not come: in memory first, then in temporary files beside the output."""

import os
import pickle
import tempfile
import threading
from dataclasses import dataclass
from typing import BinaryIO

from shardmill.errors import TemporaryError
from shardmill.job.block import Milled
from shardmill.system import buffers
from shardmill.system.names import show

# Arrays of so many bytes are written and read as they are: to copy them takes the GIL.
_LARGE = 64 << 10


@dataclass(frozen=True, slots=True)
class _OnDisk:
    stretch: int
    offset: int
    sizes: tuple[int, ...]
    """Of the result without its large arrays, and of each of those."""


Stored = Milled | _OnDisk


class Ahead:
    """Keeps at most so many bytes in memory and on disk; full says that there is no room for more.

    Nothing of it survives a kill: a resumed job mills again what was not written.
    """

    def __init__(self, folder: str | None, memory: int, disk: int) -> None:
        usable = folder is not None and os.path.isdir(folder) and os.access(folder, os.W_OK)
        self._folder, self._memory, self._disk = folder if usable else tempfile.gettempdir(), memory, disk
        self._in_memory = self._on_disk = 0
        self._files: dict[int, BinaryIO] = {}
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        if not self._disk:
            return self.half_full  # the rest is for what the workers are at
        # What depends on the Block before it cannot go to disk, and may take more memory than there is for all.
        return self._in_memory > self._memory or self._on_disk >= self._disk

    @property
    def half_full(self) -> bool:
        return self._in_memory > self._memory // 2

    def has_room(self, milled: Milled) -> bool:
        """Whether there is room for it in memory."""
        return self._in_memory + milled.nbytes <= self._memory

    def put(self, stretch: int, milled: Milled) -> Stored:
        """Where the Block waits."""
        if self._disk and not self.has_room(milled):
            try:
                return self._to_disk(stretch, _pieces(milled))
            except OSError:
                self._disk = 0  # it is full, say: from now on workers wait for each other
        with self._lock:
            self._in_memory += milled.nbytes
        return milled

    def take(self, stored: Stored) -> Milled:
        """The Block, when its turn has come."""
        if isinstance(stored, _OnDisk):
            rest, *arrays = self._read(stored)
            milled: Milled = pickle.loads(rest, buffers=arrays)
            return milled
        with self._lock:
            self._in_memory -= stored.nbytes
        return stored

    def done(self, stretch: int) -> None:
        """All of a stretch is written."""
        with self._lock:
            file = self._files.pop(stretch, None)
            if file is not None:
                self._on_disk -= file.seek(0, os.SEEK_END)
                file.close()

    def close(self) -> None:
        for stretch in list(self._files):
            self.done(stretch)

    def _to_disk(self, stretch: int, pieces: list[memoryview]) -> _OnDisk:
        sizes = tuple(map(len, pieces))
        with self._lock:
            file = self._files.get(stretch)
            if file is None:
                file = self._files[stretch] = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            at = file.seek(0, os.SEEK_END)
            file.truncate(at + sum(sizes))
            self._on_disk += sum(sizes)
        start = at
        for piece in pieces:
            while piece:
                written = os.pwrite(file.fileno(), piece, at)
                at, piece = at + written, piece[written:]
        return _OnDisk(stretch, start, sizes)

    def _read(self, stored: _OnDisk) -> list[memoryview]:
        file, pieces, at = self._files[stored.stretch], [], stored.offset
        for size in stored.sizes:
            pieces.append(buffers.take(size).data)
            left = pieces[-1]
            while left:
                read = os.preadv(file.fileno(), [left], at)
                if not read:
                    raise TemporaryError(
                        f"{show(str(self._folder))}: a temporary file is shorter than what was written to it; check the disk, then run the same command again"
                    )
                at, left = at + read, left[read:]
        return pieces


def _pieces(milled: Milled) -> list[memoryview]:
    """A result without its large arrays, and each of those."""
    arrays: list[memoryview] = []

    def stays(array: pickle.PickleBuffer) -> bool:
        if (data := array.raw()).nbytes < _LARGE:
            return True
        arrays.append(data)
        return False

    rest = pickle.dumps(milled, protocol=5, buffer_callback=stays)
    return [memoryview(rest), *arrays]
