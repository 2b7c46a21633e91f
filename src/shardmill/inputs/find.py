"""Paths, folders, globs, lists, URLs and standard input → InputFiles, in a stable order."""

import glob
import heapq
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import xxhash

from shardmill.documents.detect import FORMAT_OF_SUFFIX, is_known
from shardmill.errors import InputError, ShardmillError, UsageError
from shardmill.inputs.input_files import InputFiles, Strings
from shardmill.io.compression import SUFFIXES
from shardmill.io.reading import STDIN, input_error
from shardmill.io.reading import InputFile as InputFile
from shardmill.io.urls import Resolver
from shardmill.spec import NETWORK_SECONDS
from shardmill.system.names import is_url, show

# Files that hold no text in any form that is read, by name.
_NOT_TEXT = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bin", ".npy", ".npz", ".pt", ".safetensors", ".pdf", ".docx")

# What stands beside the text in folders that datasets saves, and in our own: it is not taken from a folder.
_BESIDES = frozenset(
    (
        "dataset_info.json",
        "dataset_dict.json",
        "state.json",
        "manifest.json",
        "run.json",
        "rejects.jsonl",
        "manifest.inputs.jsonl",
    )
)


# Addresses in a list are looked up side by side: one after the other, 2,000 would take minutes.
_LOOKUPS = 16
# So many names are sorted at once: a key takes 300 bytes.
_SORTED_AT_ONCE = 1 << 16
_CHECKED_EVERY = 1 << 14
# Up to here all are found whatever the budget, so that a refusal can name the smallest that works: job.py.
_SHORT_LIST = 128 << 20
_READABLE_BY_ALL = 0o444
_KNOWN_SUFFIXES = tuple(FORMAT_OF_SUFFIX)
_NUMBERS = re.compile("([0-9]+)")
_DIGITS = str.maketrans("123456789", "000000000")

Found = InputFile | tuple[str, int, int]
"""An input; a plain file of this machine as its path, size and when it was modified."""


class _Search:
    """One search: what it knows of the network, and whether it may find a file twice."""

    def __init__(self, patience: float, *, doubtful: bool) -> None:
        self.places = Resolver(patience)
        self.doubtful = doubtful


def find_inputs(
    patterns: Iterable[str], *, patience: float = NETWORK_SECONDS, most_bytes: int | None = None
) -> InputFiles:
    """All files that the patterns mean: arguments in the order given, what each finds in natural order, none twice.

    A list of them that would take more than most_bytes of memory is refused.
    """
    patterns = tuple(patterns)
    search = _Search(patience, doubtful=len(patterns) > 1 or not os.path.isdir(patterns[0]))
    files = InputFiles()
    for pattern in patterns:
        for found in _read_list(pattern[1:], search) if pattern.startswith("@") else _expand(pattern, search):
            if isinstance(found, InputFile):
                files.add(found)
            else:
                files.add_local(*found)
            if not len(files) % _CHECKED_EVERY:
                _refuse_too_many(files, most_bytes)
    if search.doubtful and len(files) > 1:
        files = _without_doubles(files)
    if not files.total_bytes and files.known:
        names = ", ".join(show(file.path) for file in files[:3]) + (" …" if len(files) > 3 else "")
        raise InputError(
            f"{names}: nothing to mill, {'the file is' if len(files) == 1 else f'all {len(files):,} files are'} empty"
        )
    return files


def _refuse_too_many(files: InputFiles, most_bytes: int | None) -> None:
    if most_bytes is not None and files.nbytes > max(most_bytes, _SHORT_LIST):
        raise UsageError(
            f"{show(files[-1].path)}: is input number {len(files):,}, there are more, and their list alone takes more than the {most_bytes >> 20:,} MiB of memory that may be used; pass a larger --max-memory, or mill some folders at a time and join the results with shardmill merge"
        )


def _without_doubles(files: InputFiles) -> InputFiles:
    """The first of those that are the same file. Hashes find the candidates: a million names would be too many to keep."""
    _real_folder.cache_clear()  # the current folder may be another now
    hashes = np.fromiter(
        (xxhash.xxh3_64_intdigest(_identity(file).encode("utf-8", "surrogatepass")) for file in files),
        np.uint64,
        len(files),
    )
    order = np.argsort(hashes, kind="stable")
    alike = np.flatnonzero(np.diff(hashes[order]) == 0)
    double = np.zeros(len(files), np.bool_)
    first = 0
    for place in alike.data:
        first = first if place and hashes[order[place]] == hashes[order[place - 1]] else place
        number = int(order[place + 1])
        if any(_identity(files[int(other)]) == _identity(files[number]) for other in order[first : place + 1]):
            if files[number].once:
                raise UsageError(f"{show(files[number].path)}: is named twice, and can be read only once; name it once")
            double[number] = True
    return InputFiles(itertools.compress(files, ~double)) if double.any() else files


def _identity(file: InputFile) -> str:
    return file.remote.identity if file.remote is not None else _real_path(file.path)


def _real_path(path: str) -> str:
    """As os.path.realpath, which looks at every folder on the way, for each of a million files."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return f"{_real_folder(folder)}/{name}"


@lru_cache(maxsize=1024)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def natural_key(path: str) -> tuple[str | int, ...]:
    """Sorts part-2 before part-10, and the same everywhere: by code points, not by locale."""
    pieces = _NUMBERS.split(path)
    key: list[str | int] = [pieces[0]]
    for number, text in zip(pieces[1::2], pieces[2::2], strict=True):
        key += (int(number), number, text)
    return tuple(key)


def in_natural_order(names: Iterable[str]) -> Iterator[str]:
    """All names are taken at once, but sorted some at a time: the keys of a million would take 300 MB."""
    rest = iter(names)
    runs: list[Iterable[str]] = []
    while some := _sorted(list(itertools.islice(rest, _SORTED_AT_ONCE))):
        if len(some) < _SORTED_AT_ONCE and not runs:
            return iter(some)
        runs.append(Strings(some))
    return heapq.merge(*runs, key=natural_key)


def _sorted(names: list[str]) -> list[str]:
    # With digits at the same places in all names, as in part-0001 and part-0002, their order is the natural one.
    alike = len({name.translate(_DIGITS) for name in names}) <= 1
    return sorted(names) if alike else sorted(names, key=natural_key)


def _expand(pattern: str, search: _Search) -> Iterator[Found]:
    if pattern == STDIN:
        yield InputFile(path=STDIN, size=None, once=True)
    elif is_url(pattern):
        yield from _on_the_network(pattern, search.places)
    elif os.path.isdir(pattern):
        yield from map(_stat, _files_in(pattern, search))
    elif os.path.exists(pattern) or not glob.has_magic(pattern):
        yield _stat(_checked(pattern))
    else:
        match = None
        for match in in_natural_order(glob.iglob(pattern, recursive=True)):
            if os.path.isdir(match):
                yield from map(_stat, _files_in(match, search))
            else:
                yield _stat(_checked(match))
        if match is None:
            raise InputError(f"{show(pattern)}: no file matches this pattern; try it with ls")


def _on_the_network(url: str, places: Resolver) -> Iterator[InputFile]:
    found = places.find(url, _wanted)
    if not found:
        raise _no_text(url)
    for remote in sorted(found, key=lambda remote: natural_key(remote.path)):
        _checked(remote.path.partition("?")[0] if remote.path.startswith("http") else remote.path)
        yield InputFile(path=remote.path, size=remote.size, version=remote.version, remote=remote)


def _read_list(path: str, search: _Search) -> Iterator[Found]:
    """The inputs that a file names, one a line, relative to its folder; blank lines and # comments aside."""
    folder = os.path.dirname(path)
    if is_url(path):
        raise UsageError(f"@{show(path)}: a list must be a file of this machine; download it first")

    def named() -> Iterator[tuple[int, str]]:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                if (line := line.strip()) and not line.startswith("#"):
                    yield number, line

    def find(entry: tuple[int, str]) -> Iterator[Found]:
        number, line = entry
        try:
            if line.startswith("@") or line == STDIN:
                raise UsageError(
                    f"{show(line)}: a list holds paths and addresses only; write ./{show(line)} for a file"
                )
            yield from _expand(line if is_url(line) else os.path.join(folder, line), search)
        except ShardmillError as e:
            raise type(e)(f"{show(path)} line {number:,}: {e}") from e

    entries, empty = named(), True
    try:
        with ThreadPoolExecutor(_LOOKUPS) as pool:
            while batch := list(itertools.islice(entries, 64 * _LOOKUPS)):
                empty = False
                # Threads are for the network: for files of this machine they would only cost.
                far = any(is_url(line) for _, line in batch)
                for files in pool.map(lambda entry: list(find(entry)), batch) if far else map(find, batch):
                    yield from files
    except OSError as e:
        raise input_error(path, e) from e
    if empty:
        raise InputError(f"{show(path)}: names no input; write one path or address a line")


def _files_in(folder: str, search: _Search) -> Iterator[str]:
    none = True
    for path in _walk(folder, search):
        none = False
        yield path
    if none:
        raise _no_text(folder)


def _walk(folder: str, search: _Search) -> Iterator[str]:
    """Folder by folder, yet in the natural order of all paths: the names of folders are sorted with their slash."""
    prefix = os.path.join(folder, "")
    begun = [(prefix, _contents(folder, search))]
    while begun:
        prefix, names = begun[-1]
        for name in names:
            if name.endswith("/"):
                begun.append((prefix + name, _contents(prefix + name, search)))
                break
            yield prefix + name
        else:
            begun.pop()


def _contents(folder: str, search: _Search) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            return in_natural_order(_names(entries, search))
    except OSError as e:
        raise input_error(folder, e) from e


def _names(entries: Iterator[os.DirEntry[str]], search: _Search) -> Iterator[str]:
    """What is taken from a folder: wanted files, and folders, each with a slash behind its name; links to folders aside."""
    for entry in entries:
        name = entry.name
        if name.startswith("."):
            continue
        if entry.is_symlink():
            if not os.path.isdir(entry.path) and _wanted(name):
                search.doubtful = True
                yield name
        elif entry.is_dir():
            yield name + "/"
        elif _wanted(name):
            yield name


def _wanted(path: str) -> bool:
    """Whether a file is taken from a folder, by its path below that folder."""
    names = path.split("/")
    known = names[-1].endswith(_KNOWN_SUFFIXES) or is_known(names[-1])
    return known and names[-1] not in _BESIDES and not any(name.startswith(".") for name in names)


def _no_text(folder: str) -> InputError:
    return InputError(
        f"{show(folder)}: no text in this folder; looked for files ending in {', '.join(FORMAT_OF_SUFFIX)}, and each of them with {', '.join(SUFFIXES)} behind it. Files with other names can be given one by one or as a glob."
    )


def _checked(path: str) -> str:
    suffix = os.path.splitext(path)[1].lower()
    if ".tar." in os.path.basename(path).lower():
        suffix = ".tar"
    if suffix in _NOT_TEXT:
        raise InputError(
            f"{show(path)}: {suffix} is none of the formats that are read ({', '.join(FORMAT_OF_SUFFIX)}); turn it into one of them first, or rename it if it really is text"
        )
    return path


def _stat(path: str) -> Found:
    try:
        found = os.stat(path)
        if found.st_mode & _READABLE_BY_ALL != _READABLE_BY_ALL and not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied", path)
    except OSError as e:
        raise input_error(path, e) from e
    if stat.S_ISFIFO(found.st_mode):
        return InputFile(path=path, size=None, once=True)
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{show(path)}: is not a file; devices are not read, but pipes are: … | shardmill prepare -")
    return path, found.st_size, found.st_mtime_ns
