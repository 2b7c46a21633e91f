"""Paths, globs and folders → InputFiles, in a stable order."""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardmill.documents.compression import SUFFIXES
from shardmill.documents.detect import FORMATS, is_known
from shardmill.errors import InputError, UsageError
from shardmill.storage import input_error, show

# Files that hold no text in any form that is read, by name.
_NOT_TEXT = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bin", ".npy", ".npz", ".pt", ".safetensors", ".pdf", ".docx")

# What stands beside the text in folders that datasets saves, and in our own: it is not taken from a folder.
_BESIDES = frozenset(
    ("dataset_info.json", "dataset_dict.json", "state.json", "manifest.json", "run.json", "rejects.jsonl")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file to mill, as it was when the job began."""

    path: str
    size: int
    modified_ns: int
    once: bool = False
    """It can be read only once, so there is no first pass over it."""


def find_inputs(patterns: Iterable[str]) -> tuple[InputFile, ...]:
    """All files that the patterns mean: arguments in the order given, what each finds in natural order, none twice."""
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        for path in _expand(pattern):
            real = os.path.realpath(path)
            if real not in found:
                found[real] = _stat(path)
    files = tuple(found.values())
    if all(file.size == 0 for file in files):
        names = ", ".join(show(file.path) for file in files[:3]) + (" …" if len(files) > 3 else "")
        raise InputError(
            f"{names}: nothing to mill, {'the file is' if len(files) == 1 else f'all {len(files):,} files are'} empty"
        )
    return files


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Sorts part-2 before part-10, and the same everywhere: by code points, not by locale."""
    return [
        (0, int(piece), piece) if piece.isdecimal() and piece.isascii() else (1, 0, piece)
        for piece in re.split(r"([0-9]+)", path)
    ]


def _expand(pattern: str) -> Iterator[str]:
    if pattern == "-" or "://" in pattern:
        raise UsageError(f"{show(pattern)}: this version reads local files only; save the data as a file first")
    if os.path.isdir(pattern):
        yield from _files_in(pattern)
    elif os.path.exists(pattern) or not glob.has_magic(pattern):
        yield _checked(pattern)
    else:
        matches = sorted(glob.glob(pattern, recursive=True), key=natural_key)
        if not matches:
            raise InputError(f"{show(pattern)}: no file matches this pattern; try it with ls")
        for match in matches:
            if os.path.isdir(match):
                yield from _files_in(match)
            else:
                yield _checked(match)


def _files_in(folder: str) -> Iterator[str]:
    def unreadable(e: OSError) -> None:
        raise input_error(str(e.filename), e)

    names: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [
            os.path.join(parent, name)
            for name in files
            if is_known(name) and name not in _BESIDES and not name.startswith(".")
        ]
    if not names:
        raise InputError(
            f"{show(folder)}: no text in this folder; looked for files ending in {', '.join(FORMATS)}, and each of them with {', '.join(SUFFIXES)} behind it. Files with other names can be given one by one or as a glob."
        )
    yield from sorted(names, key=natural_key)


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
        stat = os.stat(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied", path)
    except OSError as e:
        raise input_error(path, e) from e
    if not os.path.isfile(path):
        raise InputError(
            f"{show(path)}: is not a regular file; pipes and devices are not read by this version, save the data as a file first"
        )
    return InputFile(path=path, size=stat.st_size, modified_ns=stat.st_mtime_ns)
