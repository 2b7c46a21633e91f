"""The inputs as a manifest lists them: up to 4,096 in the manifest itself, more in a sidecar file with a line for each.

A manifest is read whole, by people too. A million inputs in it would be 100 MB, so they are in manifest.inputs.jsonl,
and the manifest has a summary with its checksum. All of it is streamed.
"""

import itertools
import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii
from typing import Any

import xxhash

from shardmill.errors import OutputError, ShardmillError
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import INPUTS_NAME as NAME
from shardmill.inputs.input_files import InputFiles
from shardmill.io import reading, storage
from shardmill.io.fileset import FileSet, StoredFile
from shardmill.record.manifest import RUN_NAME, check_input, differences, load, when
from shardmill.system.names import show

# Also the most files whose content is sampled: more would take longer than a user waits for an answer.
MOST = 4096
_LARGEST_RUN = 1 << 30
_SHOWN = 20
_LINES_AT_ONCE = 4096

Inputs = list[dict[str, Any]] | dict[str, Any]
"""As in a manifest's job: each input, or {"files": how many, "bytes": of all, "list": NAME, "xxh3_128": of that file}."""


def describe(files: InputFiles) -> Inputs:
    """The inputs as they were when this was first called: a file that replaces one later is not what was read."""
    if "inputs" not in files.noted:
        total = files.total_bytes if files.known else None
        files.noted["inputs"] = in_manifest(lines_of(files), len(files), total)
    found: Inputs = files.noted["inputs"]
    return found


def in_manifest(lines: Iterator[bytes], count: int, total_bytes: int | None) -> Inputs:
    """The inputs, from one line for each; total_bytes is None if one of them is a pipe."""
    if count <= MOST:
        return [json.loads(line) for line in lines]
    digest = xxhash.xxh3_128()
    for line in lines:
        digest.update(line)
    return {"files": count, "bytes": total_bytes, "list": NAME, "xxh3_128": digest.hexdigest()}


def write_list(files: OutputFiles, lines: Iterator[bytes], count: int) -> None:
    """Write the sidecar file, if there are more inputs than the manifest lists."""
    if count > MOST and NAME not in files.states():
        while some := b"".join(itertools.islice(lines, _LINES_AT_ONCE)):
            files.append(NAME, memoryview(some))
        files.full(NAME)


def count(inputs: Inputs) -> int:
    return int(inputs["files"]) if isinstance(inputs, dict) else len(inputs)


def total_bytes(inputs: Inputs) -> int | None:
    """The size of all inputs together; None: one was a pipe."""
    if isinstance(inputs, dict):
        return None if inputs["bytes"] is None else int(inputs["bytes"])
    sizes = [entry["bytes"] for entry in inputs]
    return None if None in sizes else sum(sizes)


def lines_of(files: InputFiles) -> Iterator[bytes]:
    """A line of JSON for each input: its path and size, and a version or sample that reveals a change."""
    sampled = len(files) <= MOST
    special = bool(files.special)
    for number, (path, size) in enumerate(zip(files.paths, files.sizes.data, strict=True)):
        entry = f'"bytes": {size}, "path": {encode_basestring_ascii(path)}'
        if sampled or special:
            file = files[number]
            entry = entry if file.size is not None else entry.replace('"bytes": 0', '"bytes": null', 1)
            if file.version:
                entry += f', "version": {encode_basestring_ascii(file.version)}'
            elif sampled and file.local:
                with files.opened.reader(file) as reader:
                    entry += f', "sample": "{reading.sample(reader)}"'
        yield f"{{{entry}}}\n".encode()


def lines_in(there: FileSet, inputs: Inputs) -> Iterator[bytes]:
    """The same for the inputs in the manifest or journal there."""
    if isinstance(inputs, list):
        yield from (json.dumps(entry, sort_keys=True).encode() + b"\n" for entry in inputs)
        return
    file = StoredFile(fileset=there, name=NAME if there.size(NAME) is not None else NAME + storage.PARTIAL)
    try:
        for line in file.lines():
            check_input(json.loads(line))
            yield line + b"\n"
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise OutputError(
            f"{show(file.path)}: is not a list of inputs that shardmill wrote; it was edited or damaged"
        ) from e


def changes(there: FileSet, before: Inputs, now: Inputs, files: InputFiles, *, paths: bool = True) -> list[str]:
    """How the inputs in a manifest or journal differ from those now, up to a number; without paths, only in content."""
    found: list[str] = []
    if moved := count(before) != count(now):
        found.append(f"inputs: were {count(before):,}, are now {count(now):,}")
    try:
        lines = lines_in(there, now) if isinstance(now, list) else lines_of(files)
        pairs = itertools.zip_longest(lines_in(there, before), lines)
        for number, (one, other) in enumerate(pairs):
            if one == other:
                continue
            old, new = (_entry(line, paths=paths) for line in (one, other))
            if moved and (paths or old is None or new is None):  # all that follow are shifted
                was, new_one = (show(repr(entry["path"])) if entry and paths else "none" for entry in (old, new))
                return [*found, f"inputs[{number}]: was {was}, is now {new_one}"]
            found += differences(old or {}, new or {}, f"inputs[{number}].")
            if len(found) > _SHOWN:
                break
    except (ShardmillError, FileNotFoundError, ValueError, TypeError, KeyError) as e:
        found.append(f"inputs: differ, and the list of the old ones in {NAME} cannot be read ({type(e).__name__})")
    return found


def _entry(line: bytes | None, *, paths: bool) -> dict[str, Any] | None:
    if line is None:
        return None
    entry = dict(json.loads(line))
    return entry if paths else {**entry, "path": ""}


def times(files: InputFiles) -> list[int] | dict[str, Any]:
    """When the inputs were modified, in nanoseconds: a list, or if there are many, the latest time and a checksum of all."""
    if len(files) <= MOST:
        return [file.modified_ns for file in files]
    digest = xxhash.xxh3_128_hexdigest(files.modified.astype("<i8", copy=False).data)
    return {"last": int(files.modified.max()), "xxh3_128": digest}


def modified_since(before: Any, files: InputFiles) -> list[str]:
    """Inputs modified since times() returned this. If there are many, those newer than the latest time then are named."""
    now = times(files)
    comparable = isinstance(before, dict | list) and isinstance(before, list) == isinstance(now, list)
    if now == before or not comparable or len(now) != len(before):
        return []
    if isinstance(now, list):
        return [
            f"{show(files.path(number))}: was modified {when(was)}, is now {when(time)}"
            for number, (was, time) in enumerate(zip(before, now, strict=True))
            if was != time
        ]
    last = int(before["last"])
    newer = (files.modified > last).nonzero()[0]
    found = [
        f"{show(files.path(number))}: was modified {when(int(files.modified[number]))}; the newest input was from {when(last)}"
        for number in newer[:_SHOWN].tolist()
    ]
    if len(newer) > _SHOWN:
        found.append(f"inputs: {len(newer):,} are newer in all")
    return found or ["inputs: some modification times differ, none is newer: files were replaced by older ones"]


def modified(there: FileSet, files: InputFiles) -> list[str]:
    """Inputs of the complete job there that were modified since, as far as run.json can tell."""
    try:
        run = load(there.read_all(RUN_NAME, _LARGEST_RUN) or b"{}", there.path(RUN_NAME))
        return modified_since(run["inputs_modified_ns"], files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ShardmillError):
        return []
