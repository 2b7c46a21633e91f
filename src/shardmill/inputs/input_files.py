"""InputFiles: the list of all inputs in some 50 bytes each, so that a million of them fit in any budget."""

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError
from shardmill.io.reading import InputFile

# An object on the network: its address, version and what is known of its place; measured: 1.2 to 1.5 KB.
_SPECIAL_BYTES = 1600
_LARGEST = 1 << 63


class Strings(Sequence[str]):
    """Many strings in one stretch of memory; each costs its UTF-8 and 8 bytes."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.data, self.ends = bytearray(), array("q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self.data += text.encode("utf-8", "surrogatepass")  # names that are not UTF-8 hold halves of pairs
        self.ends.append(len(self.data))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Strings": ...
    def __getitem__(self, index: int | slice) -> "str | Strings":
        if isinstance(index, slice):
            return Strings(self[number] for number in range(*index.indices(len(self))))
        index = _checked(index, len(self))
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


class InputFiles(Sequence[InputFile]):
    """Input files in their order, each made into an InputFile when it is asked for. Only grows.

    Files of this machine are columns: the folder once for all that follow each other in it, name, where the file
    ends when all are laid end to end, and when it was modified. What is on the network and what is a pipe is kept whole.
    """

    def __init__(self, files: Iterable[InputFile] = ()) -> None:
        self._folders, self._names = Strings(), Strings()
        self._first = array("q")
        """The number of the first file in each of the folders."""
        self._folder: str | None = None
        self._ends, self._modified = array("q"), array("q")
        self._special: dict[int, InputFile] = {}
        self.total_bytes = 0
        """Of all together; a pipe, whose length is not known, counts as nothing."""
        self.noted: dict[str, Any] = {}
        """What was found out about the list as a whole, at some cost."""
        for file in files:
            self.add(file)

    def add(self, file: InputFile) -> None:
        if file.local and file.size is not None and not file.version and -_LARGEST <= file.modified_ns < _LARGEST:
            self.add_local(file.path, file.size, file.modified_ns)
        else:
            self._special[len(self)] = file
            self._append("", "", file.size or 0, 0)

    def add_local(self, path: str, size: int, modified_ns: int) -> None:
        """A regular file of this machine."""
        if -_LARGEST <= modified_ns < _LARGEST:
            folder, slash, name = path.rpartition("/")
            self._append(folder + slash, name, size, modified_ns)
        else:  # a time that no column holds
            self._special[len(self)] = InputFile(path=path, size=size, modified_ns=modified_ns)
            self._append("", "", size, 0)

    def _append(self, folder: str, name: str, size: int, modified_ns: int) -> None:
        if folder != self._folder:
            self._first.append(len(self._ends))
            self._folders.append(folder)
            self._folder = folder
        if self.total_bytes + size >= _LARGEST:
            raise InputError(
                "the inputs claim to have more bytes together than there can be; check the sizes of the largest"
            )
        self.total_bytes += size
        self._names.append(name)
        self._ends.append(self.total_bytes)
        self._modified.append(modified_ns)

    @overload
    def __getitem__(self, index: int) -> InputFile: ...
    @overload
    def __getitem__(self, index: slice) -> "InputFiles": ...
    def __getitem__(self, index: int | slice) -> "InputFile | InputFiles":
        if isinstance(index, slice):
            return InputFiles(self[number] for number in range(*index.indices(len(self))))
        index = _checked(index, len(self))
        special = self._special.get(index)
        if special is not None:
            return special
        size = self._ends[index] - self.base(index)
        return InputFile(path=self.path(index), size=size, modified_ns=self._modified[index])

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[InputFile]:
        return self.since(0)

    def since(self, first: int) -> Iterator[InputFile]:
        """The files from this number on."""
        folder, until = "", first
        data, ends = self._names.data, self._names.ends
        for number in range(first, len(self)):
            if number == until:
                run = bisect_right(self._first, number)
                folder, until = self._folders[run - 1], self._first[run] if run < len(self._first) else len(self)
            special = self._special.get(number)
            if special is not None:
                yield special
                continue
            name = data[ends[number - 1] if number else 0 : ends[number]].decode("utf-8", "surrogatepass")
            size = self._ends[number] - (self._ends[number - 1] if number else 0)
            yield InputFile(path=folder + name, size=size, modified_ns=self._modified[number])

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
        """Where a file begins when all are laid end to end."""
        return self._ends[number - 1] if number else 0

    def at_byte(self, place: int) -> int:
        """The number of the file that this byte is in, when all are laid end to end."""
        return min(bisect_right(self._ends, place), len(self) - 1)

    @property
    def special(self) -> tuple[InputFile, ...]:
        """Those that are not plain files of this machine."""
        return tuple(self._special.values())

    @property
    def pipes(self) -> tuple[InputFile, ...]:
        """Those that can be read only once."""
        return tuple(file for file in self._special.values() if file.once)

    @property
    def known(self) -> bool:
        """Whether all sizes are."""
        return all(file.size is not None for file in self._special.values())

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Of all files; 0 where it is not known."""
        ends = np.frombuffer(self._ends, np.int64) if self._ends else np.empty(0, np.int64)
        sizes = ends.copy()
        sizes[1:] -= ends[:-1]
        return sizes

    @property
    def modified(self) -> npt.NDArray[np.int64]:
        """When each was modified, in nanoseconds; 0 for what is special."""
        return np.frombuffer(self._modified, np.int64) if self._modified else np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        """The memory that the list takes, about."""
        columns = self._folders.nbytes + self._names.nbytes + 8 * len(self._first) + 16 * len(self._ends)
        return columns + _SPECIAL_BYTES * len(self._special)


class Paths(Sequence[str]):
    """The paths of input files, each made when it is asked for."""

    def __init__(self, files: InputFiles) -> None:
        self._files = files

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._files.path(number) for number in range(*index.indices(len(self)))]
        return self._files.path(_checked(index, len(self)))

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        files = self._files
        names = enumerate(files._names)
        until = itertools.chain(itertools.islice(files._first, 1, None), (len(files),))
        for folder, first, after in zip(files._folders, files._first, until):
            for number, name in itertools.islice(names, after - first):
                yield files._special[number].path if number in files._special else folder + name


def _checked(index: int, length: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"there are {length:,} files, and no number {index:,}")
    return index % length
