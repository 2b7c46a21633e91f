"""Paths, folders, globs, lists, URLs and standard input → InputFiles, in a stable order."""

import glob
import heapq
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import xxhash

from shardmill.documents.detect import FORMAT_OF_SUFFIX
from shardmill.errors import InputError, ShardmillError, UsageError
from shardmill.inputs.choose import Chooser, Folder, listed
from shardmill.inputs.input_files import InputFiles, Strings
from shardmill.io.compression import SUFFIXES
from shardmill.io.reading import STDIN, input_error
from shardmill.io.reading import InputFile as InputFile
from shardmill.io.urls import Resolver, fixed_part
from shardmill.spec import NETWORK_SECONDS
from shardmill.system.names import is_url, show

# Formats that are not supported, by suffix.
_UNSUPPORTED = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bin", ".npy", ".npz", ".pt", ".safetensors", ".pdf", ".docx")
# URLs in a list are looked up in parallel: one after the other, 2,000 would take minutes.
_LOOKUPS = 16
# Names sorted at once: a key takes 300 bytes.
_SORTED_AT_ONCE = 1 << 16
_CHECKED_EVERY = 1 << 14
# A list up to this size is completed whatever the budget, so that job.py can name the smallest budget that works.
_SHORT_LIST = 128 << 20
_READABLE_BY_ALL = 0o444
_NUMBERS = re.compile("([0-9]+)")
_DIGITS = str.maketrans("123456789", "000000000")

Found = InputFile | tuple[str, int, int]
"""An input; a regular local file as its path, size and modification time."""


class _Search:
    """The state of one search."""

    def __init__(self, chooser: Chooser, network_seconds: float, *, may_repeat: bool) -> None:
        self.chooser, self.resolver = chooser, Resolver(network_seconds)
        self.may_repeat = may_repeat
        """Whether a file may be found twice."""


def find_inputs(
    patterns: Iterable[str],
    chooser: Chooser | None = None,
    *,
    network_seconds: float = NETWORK_SECONDS,
    most_bytes: int | None = None,
) -> InputFiles:
    """All files that the patterns name: patterns in the order given, the files of each in natural order, none twice.

    The chooser says which files of folders and globs are taken. A list that would take more than most_bytes of memory is
    refused.

    >>> [file.path for file in find_inputs(["corpus/", "s3://bucket/more/*.jsonl.zst"])]
    """
    patterns, chooser = tuple(patterns), chooser or Chooser()
    search = _Search(chooser, network_seconds, may_repeat=len(patterns) > 1 or not os.path.isdir(patterns[0]))
    files = InputFiles()
    for pattern in patterns:
        for found in _read_list(pattern[1:], search) if pattern.startswith("@") else _expand(pattern, search):
            if isinstance(found, InputFile):
                files.add(found)
            else:
                files.add_local(*found)
            if not len(files) % _CHECKED_EVERY:
                _refuse_too_many(files, most_bytes)
    if search.may_repeat and len(files) > 1:
        files = _without_duplicates(files)
    files.left_out = chooser.left_out
    if not files.total_bytes and files.known:
        names = ", ".join(show(file.path) for file in files[:3]) + (" …" if len(files) > 3 else "")
        raise InputError(
            f"{names}: nothing to tokenize, {'the file is' if len(files) == 1 else f'all {len(files):,} files are'} empty"
        )
    return files


def _refuse_too_many(files: InputFiles, most_bytes: int | None) -> None:
    if most_bytes is not None and files.nbytes > max(most_bytes, _SHORT_LIST):
        raise UsageError(
            f"{show(files[-1].path)}: is input number {len(files):,} of even more, and listing them alone takes more than the memory limit of {most_bytes >> 20:,} MiB; pass a larger --max-memory, or prepare some folders at a time and join the results with shardmill merge"
        )


def _without_duplicates(files: InputFiles) -> InputFiles:
    """The first of each file. Only names whose hashes are equal are compared: a million would not fit in memory."""
    _real_folder.cache_clear()  # the current folder may have changed
    digests = (xxhash.xxh3_64_intdigest(_identity(file).encode("utf-8", "surrogatepass")) for file in files)
    hashes = np.fromiter(digests, np.uint64, len(files))
    order = np.argsort(hashes, kind="stable")
    duplicate = np.zeros(len(files), np.bool_)
    seen: set[str] = set()
    for at in np.flatnonzero(np.diff(hashes[order]) == 0).data:
        if not at or hashes[order[at - 1]] != hashes[order[at]]:
            seen = {_identity(files[int(order[at])])}
        file = files[int(order[at + 1])]
        if _identity(file) in seen:
            if file.once:
                raise UsageError(f"{show(file.path)}: is named twice, but can be read only once; name it once")
            duplicate[order[at + 1]] = True
        seen.add(_identity(file))
    if not duplicate.any():
        return files
    found, more = InputFiles(itertools.compress(files, ~duplicate)), int(duplicate.sum()) - 1
    found.repeated = show(files.path(int(duplicate.argmax()))) + (f" and {more:,} more" if more else "")
    return found


def _identity(file: InputFile) -> str:
    return file.remote.identity if file.remote is not None else _real_path(file.path)


def _real_path(path: str) -> str:
    """os.path.realpath, but without resolving every parent folder again for each of a million files."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return f"{_real_folder(folder)}/{name}"


@lru_cache(maxsize=1024)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def natural_key(path: str) -> tuple[str | int, ...]:
    """Sorts part-2 before part-10, and by code points, so that the order does not depend on the locale."""
    pieces = _NUMBERS.split(path)
    key: list[str | int] = [pieces[0]]
    for number, text in zip(pieces[1::2], pieces[2::2], strict=True):
        key += (int(number), number, text)
    return tuple(key)


def in_natural_order(names: Iterable[str]) -> Iterator[str]:
    """Consumes all names at once, but sorts some at a time: the keys of a million would take 300 MB."""
    rest = iter(names)
    runs: list[Iterable[str]] = []
    while some := _sorted(list(itertools.islice(rest, _SORTED_AT_ONCE))):
        if len(some) < _SORTED_AT_ONCE and not runs:
            return iter(some)
        runs.append(Strings(some))
    return heapq.merge(*runs, key=natural_key)


def _sorted(names: list[str]) -> list[str]:
    # Where all names have digits at the same positions, as in part-0001 and part-0002, plain order is natural order.
    alike = len({name.translate(_DIGITS) for name in names}) <= 1
    return sorted(names) if alike else sorted(names, key=natural_key)


def _expand(pattern: str, search: _Search) -> Iterator[Found]:
    if pattern == STDIN:
        yield InputFile(path=STDIN, size=None, once=True)
        return
    found: Iterator[Found]
    if is_url(pattern):
        found = _remote_files(pattern, search)
    elif os.path.isdir(pattern):
        found = map(_stat, _walk(pattern, "", search))
    elif os.path.exists(pattern) or not glob.has_magic(pattern):
        yield _stat(_checked(pattern))
        return
    else:
        found = _matches(pattern, search)
    before = search.chooser.left_out.copy()
    if (first := next(found, None)) is None:
        raise _nothing_taken(pattern, search.chooser.left_out - before)
    yield first
    yield from found


def _matches(pattern: str, search: _Search) -> Iterator[Found]:
    """The files that a glob names, and those in the folders that it names."""
    fixed, match = len(fixed_part(pattern)), None
    for match in in_natural_order(glob.iglob(pattern, recursive=True)):
        if os.path.isdir(match):
            yield from map(_stat, _walk(match, os.path.join(match[fixed:], ""), search))
        elif search.chooser.from_glob(match[fixed:]):
            yield _stat(_checked(match))
    if match is None:
        raise InputError(f"{show(pattern)}: no file matches this pattern; check it with ls")


def _remote_files(url: str, search: _Search) -> Iterator[InputFile]:
    chooser, found = search.chooser, search.resolver.find(url)
    in_folder = set(chooser.of_paths(below for _, below, inside in found if inside))
    taken = [
        file
        for file, below, inside in found
        if (below in in_folder if inside else not below or chooser.from_glob(below))
    ]
    for remote in sorted(taken, key=lambda remote: natural_key(remote.path)):
        _checked(remote.path.partition("?")[0] if remote.path.startswith("http") else remote.path)
        yield InputFile(path=remote.path, size=remote.size, version=remote.version, remote=remote)


def _read_list(path: str, search: _Search) -> Iterator[Found]:
    """The inputs that a file lists, one per line, relative to its folder; blank lines and # comments are ignored."""
    folder = os.path.dirname(path)
    if is_url(path):
        raise UsageError(f"@{show(path)}: a list must be a local file; download it first")

    def listed() -> Iterator[tuple[int, str]]:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                if (line := line.strip()) and not line.startswith("#"):
                    yield number, line

    def find(entry: tuple[int, str]) -> Iterator[Found]:
        number, line = entry
        try:
            if line.startswith("@") or line == STDIN:
                raise UsageError(f"{show(line)}: a list holds only paths and URLs; write ./{show(line)} for a file")
            yield from _expand(line if is_url(line) else os.path.join(folder, line), search)
        except ShardmillError as e:
            raise type(e)(f"{show(path)} line {number:,}: {e}") from e

    entries, empty = listed(), True
    try:
        with ThreadPoolExecutor(_LOOKUPS) as pool:
            while batch := list(itertools.islice(entries, 64 * _LOOKUPS)):
                empty = False
                # Threads help with the network; for local files they would only cost.
                remote = any(is_url(line) for _, line in batch)
                for files in pool.map(lambda entry: list(find(entry)), batch) if remote else map(find, batch):
                    yield from files
    except OSError as e:
        raise input_error(path, e) from e
    if empty:
        raise InputError(f"{show(path)}: lists no input; write one path or URL per line")


def _walk(folder: str, below: str, search: _Search) -> Iterator[str]:
    """Folder by folder, yet in the natural order of all paths: folder names are sorted with their slash.

    below is the path that patterns see before that of a file in the folder.
    """
    prefix = os.path.join(folder, "")
    outside = len(prefix)
    entered = [(prefix, _contents(folder, below, search))]
    while entered:
        prefix, names = entered[-1]
        for name in names:
            if name.endswith("/"):
                inner = prefix + name
                entered.append((inner, _contents(inner, below + inner[outside:], search)))
                break
            yield prefix + name
        else:
            entered.pop()


def _contents(folder: str, below: str, search: _Search) -> Iterator[str]:
    chosen = Folder(search.chooser, below)
    try:
        with os.scandir(folder) as entries:
            names = in_natural_order(_names(entries, chosen, search))
    except OSError as e:
        raise input_error(folder, e) from e
    return filter(chosen.takes, names)


def _names(entries: Iterator[os.DirEntry[str]], chosen: Folder, search: _Search) -> Iterator[str]:
    """What may be taken from a folder: files and, with a slash at the end, folders; symlinks to folders are not."""
    for entry in entries:
        name = entry.name
        if entry.is_symlink():
            if not os.path.isdir(entry.path) and chosen.may_take(name):
                search.may_repeat = True
                yield name
        elif entry.is_dir() and not name.startswith("."):
            yield name + "/"
        elif chosen.may_take(name):
            yield name


def _nothing_taken(folder: str, left_out: Counter[str]) -> InputError:
    """Nothing that is there is an input."""
    supported = f"Supported: {', '.join(FORMAT_OF_SUFFIX)}, each also compressed ({', '.join(SUFFIXES)})."
    if not left_out:
        return InputError(f"{show(folder)}: no text in this folder, which is empty. {supported}")
    return InputError(
        f"{show(folder)}: no text in this folder; left out: {listed(left_out)}. {supported} --include takes what its pattern matches, whatever the name: --include '*.log'"
    )


def _checked(path: str) -> str:
    suffix = os.path.splitext(path)[1].lower()
    if ".tar." in os.path.basename(path).lower():
        suffix = ".tar"
    if suffix in _UNSUPPORTED:
        raise InputError(
            f"{show(path)}: {suffix} is not supported. Supported: {', '.join(FORMAT_OF_SUFFIX)}. Convert the file first, or rename it if it really is text"
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
        raise InputError(
            f"{show(path)}: is not a regular file; devices are not supported, but pipes are: … | shardmill prepare -"
        )
    return path, found.st_size, found.st_mtime_ns
