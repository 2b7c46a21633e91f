"""Paths, folders, globs, lists, URLs and standard input → InputFiles, in a stable order."""

import glob
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from shardmill.documents.compression import SUFFIXES
from shardmill.documents.detect import FORMATS, is_known
from shardmill.errors import InputError, ShardmillError, UsageError
from shardmill.names import is_url, show
from shardmill.places import Places
from shardmill.reading import STDIN, input_error
from shardmill.reading import InputFile as InputFile
from shardmill.spec import NETWORK_SECONDS

# Files that hold no text in any form that is read, by name.
_NOT_TEXT = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bin", ".npy", ".npz", ".pt", ".safetensors", ".pdf", ".docx")

# What stands beside the text in folders that datasets saves, and in our own: it is not taken from a folder.
_BESIDES = frozenset(
    ("dataset_info.json", "dataset_dict.json", "state.json", "manifest.json", "run.json", "rejects.jsonl")
)


# Addresses in a list are looked up side by side: one after the other, 2,000 would take minutes.
_LOOKUPS = 16


def find_inputs(patterns: Iterable[str], *, patience: float = NETWORK_SECONDS) -> tuple[InputFile, ...]:
    """All files that the patterns mean: arguments in the order given, what each finds in natural order, none twice."""
    _real_folder.cache_clear()  # the current folder may be another now
    places = Places(patience)
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        for file in _read_list(pattern[1:], places) if pattern.startswith("@") else _expand(pattern, places):
            identity = file.remote.identity if file.remote is not None else _real_path(file.path)
            if file.once and identity in found:
                raise UsageError(f"{show(file.path)}: is named twice, and can be read only once; name it once")
            found.setdefault(identity, file)
    files = tuple(found.values())
    if all(file.size == 0 for file in files):
        names = ", ".join(show(file.path) for file in files[:3]) + (" …" if len(files) > 3 else "")
        raise InputError(
            f"{names}: nothing to mill, {'the file is' if len(files) == 1 else f'all {len(files):,} files are'} empty"
        )
    return files


def _real_path(path: str) -> str:
    """As os.path.realpath, which looks at every folder on the way, for each of a million files."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return f"{_real_folder(folder)}/{name}"


@lru_cache(maxsize=1024)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Sorts part-2 before part-10, and the same everywhere: by code points, not by locale."""
    return [
        (0, int(piece), piece) if piece.isdecimal() and piece.isascii() else (1, 0, piece)
        for piece in re.split(r"([0-9]+)", path)
    ]


def _expand(pattern: str, places: Places) -> Iterator[InputFile]:
    if pattern == STDIN:
        yield InputFile(path=STDIN, size=None, once=True)
    elif is_url(pattern):
        yield from _on_the_network(pattern, places)
    elif os.path.isdir(pattern):
        yield from map(_stat, _files_in(pattern))
    elif os.path.exists(pattern) or not glob.has_magic(pattern):
        yield _stat(_checked(pattern))
    else:
        matches = sorted(glob.glob(pattern, recursive=True), key=natural_key)
        if not matches:
            raise InputError(f"{show(pattern)}: no file matches this pattern; try it with ls")
        for match in matches:
            if os.path.isdir(match):
                yield from map(_stat, _files_in(match))
            else:
                yield _stat(_checked(match))


def _on_the_network(url: str, places: Places) -> Iterator[InputFile]:
    found = places.find(url, _wanted)
    if not found:
        raise _no_text(url)
    for remote in sorted(found, key=lambda remote: natural_key(remote.path)):
        _checked(remote.path.partition("?")[0] if remote.path.startswith("http") else remote.path)
        yield InputFile(path=remote.path, size=remote.size, version=remote.version, remote=remote)


def _read_list(path: str, places: Places) -> Iterator[InputFile]:
    """The inputs that a file names, one a line, relative to its folder; blank lines and # comments aside."""
    folder = os.path.dirname(path)
    if is_url(path):
        raise UsageError(f"@{show(path)}: a list must be a file of this machine; download it first")

    def named() -> Iterator[tuple[int, str]]:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                if (line := line.strip()) and not line.startswith("#"):
                    yield number, line

    def find(entry: tuple[int, str]) -> list[InputFile]:
        number, line = entry
        try:
            if line.startswith("@") or line == STDIN:
                raise UsageError(
                    f"{show(line)}: a list holds paths and addresses only; write ./{show(line)} for a file"
                )
            return list(_expand(line if is_url(line) else os.path.join(folder, line), places))
        except ShardmillError as e:
            raise type(e)(f"{show(path)} line {number:,}: {e}") from e

    entries, empty = named(), True
    try:
        with ThreadPoolExecutor(_LOOKUPS) as pool:
            while batch := list(itertools.islice(entries, 64 * _LOOKUPS)):
                empty = False
                # Threads are for the network: for files of this machine they would only cost.
                far = any(is_url(line) for _, line in batch)
                for files in pool.map(find, batch) if far else map(find, batch):
                    yield from files
    except OSError as e:
        raise input_error(path, e) from e
    if empty:
        raise InputError(f"{show(path)}: names no input; write one path or address a line")


def _files_in(folder: str) -> Iterator[str]:
    def unreadable(e: OSError) -> None:
        raise input_error(str(e.filename), e)

    names: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [os.path.join(parent, name) for name in files if _wanted(name)]
    if not names:
        raise _no_text(folder)
    yield from sorted(names, key=natural_key)


def _wanted(path: str) -> bool:
    """Whether a file is taken from a folder, by its path below that folder."""
    names = path.split("/")
    return is_known(names[-1]) and names[-1] not in _BESIDES and not any(name.startswith(".") for name in names)


def _no_text(folder: str) -> InputError:
    return InputError(
        f"{show(folder)}: no text in this folder; looked for files ending in {', '.join(FORMATS)}, and each of them with {', '.join(SUFFIXES)} behind it. Files with other names can be given one by one or as a glob."
    )


def _checked(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if ".tar." in os.path.basename(path).lower():
        suffix = ".tar"
    if suffix in _NOT_TEXT:
        raise InputError(
            f"{show(path)}: {suffix} is none of the formats that are read ({', '.join(FORMATS)}); turn it into one of them first, or rename it if it really is text"
        )
    return path


def _stat(path: str) -> InputFile:
    try:
        found = os.stat(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied", path)
    except OSError as e:
        raise input_error(path, e) from e
    if stat.S_ISFIFO(found.st_mode):
        return InputFile(path=path, size=None, once=True)
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{show(path)}: is not a file; devices are not read, but pipes are: … | shardmill prepare -")
    return InputFile(path=path, size=found.st_size, modified_ns=found.st_mtime_ns)
