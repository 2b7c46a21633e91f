"""A folder of token files → its tokens by position, read many spans at a time; an error if they change while in use."""

import contextlib
import os
import resource
import time
from ctypes import CDLL, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from shardmill.errors import InputError, UsageError
from shardmill.feed.order import Numbers
from shardmill.formats.shards import SplitName, TokenType
from shardmill.results.corpus import Corpus, Split, TokenFile
from shardmill.results.foreign import open_claimed
from shardmill.spec import Claims, Dtype, OutputFormat
from shardmill.system import compiled
from shardmill.system.names import is_url, show

_VERSION = 1
_CHECK_SECONDS = 1.0
_EDGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One corpus to read rows from: an output of shardmill, or token files of another program.

    plan: rows that `shardmill pack` made. The rest is for files that do not say it themselves, as in shardmill.convert.

    >>> source = shardmill.Source(path="data", split="val")
    """

    path: str | Path
    split: SplitName = "train"
    plan: str | Path | None = None
    from_format: OutputFormat | None = None
    from_dtype: Dtype = "auto"
    eot_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A source whose files were found, with all that its rows are made of."""

    source: Source
    corpus: Corpus
    split: Split
    files: "TokenFiles"

    @property
    def shown(self) -> str:
        return f"{show(self.source.path)} ({self.split.name})"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for the same samples: by content, so a copy in another folder is the same."""
        return {"tokens": len(self.split), "content": self._content()}

    def _content(self) -> str:
        digest = xxhash.xxh3_64()
        if self.corpus.foreign:
            for found in self.files.files:
                file, last = found.file, max(0, found.file.size - _EDGE_BYTES)
                digest.update(f"{os.path.basename(file.path)} {found.tokens}".encode())
                digest.update(file.read(0, _EDGE_BYTES) + file.read(last, _EDGE_BYTES))
        else:
            for shard in self.corpus.manifest.files:
                if shard.split == self.split.name:
                    digest.update(f"{shard.tokens} {shard.checksums}".encode())
        return digest.hexdigest()


def open_source(source: Source) -> Opened:
    """Find the files of a source; an error if they are not all there."""
    if is_url(source.path):
        raise UsageError(f"{show(source.path)}: rows are read from a local disk; download it first")
    claims = Claims(from_format=source.from_format, from_dtype=source.from_dtype, eot_id=source.eot_id)
    corpus = open_claimed(source.path, claims)
    if source.split not in corpus:
        raise InputError(f"{show(source.path)}: has no split {source.split}; it has {', '.join(corpus) or 'no tokens'}")
    split = corpus[source.split]
    return Opened(source=source, corpus=corpus, split=split, files=TokenFiles(split))


@dataclass(slots=True)
class _Descriptor:
    """An open file, closed with its last user: one thread may still read it when another has dropped it."""

    number: int
    checked: float = -1.0

    def __del__(self) -> None:
        os.close(self.number)


class TokenFiles:
    """The tokens of a split by position. Used by any number of threads, and by processes that were forked or sent a copy.

    Nothing is mapped: a file that shrinks is an error, not a crash.
    """

    def __init__(self, split: Split) -> None:
        self.dtype: TokenType = split.dtype
        self.files: list[TokenFile] = []
        for file in split.files:
            if not isinstance(file, TokenFile):
                raise UsageError(
                    f"{show(file.file.path)}: its samples vary in length; convert it first (shardmill convert)"
                )
            self.files.append(file)
        self._versions = [_version(file.file.path) for file in self.files]
        """Of the files when they were opened first."""
        offsets, counts = np.array([(file.offset, file.tokens) for file in self.files], np.int64).T
        self.tokens, self._ends = len(split), np.cumsum(counts)
        # Where token 0 of the split would lie if each file held all tokens before its own.
        self._offsets = offsets - (self._ends - counts) * self.dtype.itemsize
        self._open: dict[int, _Descriptor] = {}
        self._most_open = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def read(self, starts: Numbers, counts: Numbers) -> npt.NDArray[Any]:
        """The tokens of each span, one span after the other."""
        numbers = np.searchsorted(self._ends, starts, side="right")
        if (starts + counts > self._ends[numbers]).any():
            starts, counts, numbers = self._within_files(starts, counts, numbers)
        now, width = time.monotonic(), self.dtype.itemsize
        order = numbers.tolist()
        files = {number: self._descriptor(number, now) for number in set(order)}
        offsets = self._offsets[numbers] + starts * width
        out = np.empty(int(counts.sum()), self.dtype)
        read = _read_spans([files[number].number for number in order], offsets, counts * width, out)
        if read < len(order):
            raise _changed(self.files[int(numbers[read])], "ends too early")
        return out

    def _within_files(self, starts: Numbers, counts: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The same spans, cut where files end."""
        cut: list[tuple[int, int, int]] = []
        for start, count, number in zip(starts.tolist(), counts.tolist(), numbers.tolist(), strict=True):
            stop = start + count
            while start < stop:
                end = min(stop, int(self._ends[number]))
                cut.append((start, end - start, number))
                start, number = end, number + 1
        found = np.array(cut, np.int64)
        return found[:, 0], found[:, 1], found[:, 2]

    def _descriptor(self, number: int, now: float) -> _Descriptor:
        """The open file; now and then it is compared with what it was."""
        found = self._open.get(number)
        if found is None:
            if len(self._open) >= self._most_open:
                self._open.popitem()
            try:
                found = _Descriptor(os.open(self.files[number].file.path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as e:
                raise _changed(self.files[number], f"cannot be opened any more ({e.strerror})") from e
            self._open[number] = found
        if now - found.checked > _CHECK_SECONDS or found.checked < 0:
            if _version(found.number) != self._versions[number]:
                raise _changed(self.files[number], "was changed")
            found.checked = now
        return found

    def stamp(self) -> str:
        """Differs if any file is another one, or was changed."""
        paths = [os.path.abspath(file.file.path) for file in self.files]
        files = [(path, *version) for path, version in zip(paths, self._versions, strict=True)]
        return xxhash.xxh3_64_hexdigest(repr(files).encode())


def _read_spans(files: list[int], offsets: Numbers, sizes: Numbers, out: npt.NDArray[Any]) -> int:
    """Read bytes of files, one span after the other. Returns how many spans were read to their end."""
    found = np.array(files, np.int32), np.ascontiguousarray(offsets), np.ascontiguousarray(sizes)
    # Addresses: each array.ctypes would leave a cycle, and memory grew by 1.3 KiB with a thousand batches.
    given = [array.ctypes.data for array in found]
    return int(_library().spans_read(*given, len(files), out.ctypes.data))


@lru_cache(maxsize=1)
def _library() -> CDLL:
    library = compiled.load("feed/native/spans.so", _VERSION)
    compiled.declare(library, "spans_read", c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p)
    return library


class Mapped:
    """An array in a file, mapped: for the small files that are searched, not read. check() comes before each use."""

    def __init__(self, path: Path, dtype: np.dtype[Any], *, offset: int = 0, count: int | None = None) -> None:
        self.path, self._dtype, self._offset = path, dtype, offset
        self._version = size, _ = _version(path)
        found, rest = divmod(size - offset, dtype.itemsize)
        self._count = found if count is None else count
        if (count is None and rest) or self._count > found:
            raise InputError(f"{show(path)}: has {size:,} bytes, an impossible size; it was truncated. Make it again")
        self.array = self._map()

    def _map(self) -> npt.NDArray[Any]:
        if not self._count:
            return np.empty(0, self._dtype)
        return np.memmap(self.path, self._dtype, "r", self._offset, (self._count,)).view(np.ndarray)

    def check(self) -> None:
        """An error if the file was changed: one that was cut short would end the process."""
        with contextlib.suppress(OSError):
            if _version(self.path) == self._version:
                return
        raise InputError(f"{show(self.path)}: was changed or removed since it was opened; restore it, and start again")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "array": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.array = self._map()


def _version(file: str | Path | int) -> tuple[int, int]:
    """The size of a file, and when it was modified: others if it was changed."""
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


def _changed(file: TokenFile, how: str) -> InputError:
    return InputError(
        f"{show(file.file.path)}: {how} since it was opened, so its rows are no longer those of this run; restore it, or open it again"
    )
