"""InputFiles: the list of all inputs, in about 50 bytes each, so that a million of them fit in any budget."""

from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError
from shardmill.io.open_files import OpenFiles
from shardmill.io.reading import InputFile

# Measured for a remote file, with its URL and version: 1.2 to 1.5 KB.
_SPECIAL_BYTES = 1600
_LARGEST = 1 << 63
T = TypeVar("T")


class _Packed(Sequence[T]):
    """A sequence whose items are made when asked for."""

    @abstractmethod
    def _item(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._item(number) for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no item {index:,}: there are {len(self):,}")
        return self._item(index % len(self))


class Strings(_Packed[str]):
    """Many strings in one buffer; each costs its UTF-8 and 8 bytes."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.data, self.ends = bytearray(), array("q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self.data += text.encode("utf-8", "surrogatepass")  # file names that are not UTF-8 hold lone surrogates
        self.ends.append(len(self.data))

    def _item(self, index: int) -> str:
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for end in self.ends:
            yield self.data[begin:end].decode("utf-8", "surrogatepass")
            begin = end

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def nbytes(self) -> int:
        return len(self.data) + 8 * len(self.ends)


class InputFiles(_Packed[InputFile]):
    """Input files in order. Only grows.

    Local files are stored in columns: name, end offset in the concatenation of all files, and modification time; the
    folder is stored once for a run of files in it. Remote files and pipes ("special") are kept as they are.
    """

    def __init__(self, files: Iterable[InputFile] = (), opened: OpenFiles | None = None) -> None:
        self.opened = opened or OpenFiles()
        """Those that are open; a list of some of the files shares them."""
        self._folders, self._names = Strings(), Strings()
        self._first = array("q")
        """The number of the first file in each folder."""
        self._folder: str | None = None
        self._ends, self._modified = array("q"), array("q")
        self._special: dict[int, InputFile] = {}
        self.total_bytes = 0
        """Of all files; a pipe, whose size is not known, counts as 0."""
        self.noted: dict[str, Any] = {}
        """Facts about the whole list that were expensive to find."""
        self.left_out: Counter[str] = Counter()
        """How many files were found in folders but not taken, by name or kind."""
        self.repeated = ""
        """Files that were found more than once, for people."""
        for file in files:
            self.add(file)

    def add(self, file: InputFile) -> None:
        if file.local and file.size is not None and not file.version:
            self.add_local(file.path, file.size, file.modified_ns)
        else:
            self._add_special(file)

    def add_local(self, path: str, size: int, modified_ns: int) -> None:
        """Add a regular file on this machine."""
        if -_LARGEST <= modified_ns < _LARGEST:
            folder, slash, name = path.rpartition("/")
            self._append(folder + slash, name, size, modified_ns)
        else:  # the time does not fit the column
            self._add_special(InputFile(path=path, size=size, modified_ns=modified_ns))

    def _add_special(self, file: InputFile) -> None:
        self._special[len(self)] = file
        self._append("", "", file.size or 0, 0)

    def _append(self, folder: str, name: str, size: int, modified_ns: int) -> None:
        if folder != self._folder:
            self._first.append(len(self._ends))
            self._folders.append(folder)
            self._folder = folder
        if self.total_bytes + size >= _LARGEST:
            raise InputError("the sizes of the inputs add up to more than 8 EiB; check the sizes of the largest files")
        self.total_bytes += size
        self._names.append(name)
        self._ends.append(self.total_bytes)
        self._modified.append(modified_ns)

    def _item(self, index: int) -> InputFile:
        return self._file(index, self.path(index))

    def _file(self, number: int, path: str) -> InputFile:
        special = self._special.get(number)
        size = self._ends[number] - (self._ends[number - 1] if number else 0)
        return special or InputFile(path=path, size=size, modified_ns=self._modified[number])

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[InputFile]:
        return self.since(0)

    def since(self, first: int) -> Iterator[InputFile]:
        """The files from this number on."""
        for number, path in enumerate(self.paths_since(first), first):
            yield self._file(number, path)

    def paths_since(self, first: int) -> Iterator[str]:
        """The paths of the files from this number on."""
        folder, until, end = "", first, self._names.ends[first - 1] if 0 < first <= len(self) else 0
        for number in range(first, len(self)):
            if number == until:
                run = bisect_right(self._first, number)
                folder, until = self._folders[run - 1], self._first[run] if run < len(self._first) else len(self)
            begin, end = end, self._names.ends[number]
            name = self._names.data[begin:end].decode("utf-8", "surrogatepass")
            yield self._special[number].path if number in self._special else folder + name

    def path(self, number: int) -> str:
        if number in self._special:
            return self._special[number].path
        return self._folders[bisect_right(self._first, number) - 1] + self._names[number]

    @property
    def paths(self) -> "Paths":
        return Paths(self)

    def size(self, number: int) -> int | None:
        special = self._special.get(number)
        return self._ends[number] - self.base(number) if special is None else special.size

    def base(self, number: int) -> int:
        """The offset of a file in the concatenation of all."""
        return self._ends[number - 1] if number else 0

    def at_byte(self, offset: int) -> int:
        """The number of the file at this offset in the concatenation of all."""
        return min(bisect_right(self._ends, offset), len(self) - 1)

    def beginning_at(self, offset: int) -> int:
        """The number of the first file that begins at this offset in the concatenation of all, or goes on there."""
        number = bisect_left(self._ends, offset) if offset else 0
        return number + 1 if offset and number < len(self) and self._ends[number] == offset else number

    @property
    def special(self) -> tuple[InputFile, ...]:
        """Those that are not regular local files."""
        return tuple(self._special.values())

    @property
    def pipes(self) -> tuple[InputFile, ...]:
        """Those that can be read only once."""
        return tuple(file for file in self._special.values() if file.once)

    @property
    def known(self) -> bool:
        """Whether all sizes are known."""
        return not self.pipes

    @property
    def largest(self) -> InputFile:
        return self[int(self.sizes.argmax())]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Of all files; 0 where it is not known."""
        ends = np.array(self._ends, np.int64)
        ends[1:] -= ends[:-1].copy()
        return ends

    @property
    def modified(self) -> npt.NDArray[np.int64]:
        """Modification times in ns; 0 for special files."""
        return np.frombuffer(self._modified, np.int64) if self._modified else np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        """About how much memory the list takes."""
        columns = self._folders.nbytes + self._names.nbytes + 8 * len(self._first) + 16 * len(self._ends)
        return columns + _SPECIAL_BYTES * len(self._special)


class Paths(_Packed[str]):
    """The paths of all input files."""

    def __init__(self, files: InputFiles) -> None:
        self._files = files

    def _item(self, index: int) -> str:
        return self._files.path(index)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return self._files.paths_since(0)
