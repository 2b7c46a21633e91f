"""An output folder → what an earlier run left in it, and room for this one."""

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.documents import rejects
from shardmill.errors import OutputError, UsageError
from shardmill.formats import registry
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.registry import Format
from shardmill.inputs.input_files import InputFiles
from shardmill.io import storage
from shardmill.io.fileset import FileSet, LocalFiles
from shardmill.io.object_store import ObjectStore
from shardmill.io.reading import InputFile
from shardmill.job.job import Job, versions
from shardmill.record import input_list, journal, manifest
from shardmill.record.journal import Checkpoint, Unfinished
from shardmill.record.manifest import Manifest
from shardmill.system.names import show

_BESIDES = (rejects.NAME, input_list.NAME)


def refuse_to_replace_inputs(output: Path, store: ObjectStore | None, files: InputFiles, format: Format) -> None:
    for file in files.special if store is not None else ():
        inside = f"{store.shown}/" if store is not None else ""
        if file.path.startswith(inside) and format.owns(file.path.removeprefix(inside)):
            raise _would_be_overwritten(file)
    ours = [path for path in (*_outputs(output, format), output / manifest.NAME) if path.exists()]
    # The same file has the same size: with a million inputs, few must be looked at again.
    alike = np.isin(files.sizes, [path.stat().st_size for path in ours]).nonzero()[0] if ours else ()
    for file in (files[int(number)] for number in alike):
        if file.local and any(path.samefile(file.path) for path in ours):
            raise _would_be_overwritten(file)


def _would_be_overwritten(file: InputFile) -> UsageError:
    return UsageError(f"{show(file.path)}: is an input and would be overwritten; choose another output folder with -o")


def look(output: Path, store: ObjectStore | None) -> FileSet | None:
    """What is where the result goes; None: nothing."""
    return store.files() if store is not None else LocalFiles(output) if output.is_dir() else None


def completed(there: FileSet | None, asked: dict[str, Any], files: InputFiles, *, begun: bool) -> Manifest | None:
    """The manifest if this very job is complete already; an error if another one is, or files that are not ours.

    begun: there is a journal, so they may be ours.
    """
    if there is None:
        return None
    old = manifest.of(there)
    if old is not None:
        changed = _changes(there, old.job, asked, files)
        if not changed:
            changed = input_list.modified(there, files) + _pipes(files)
        if changed:
            raise _another_job(there.folder, "holds the result of another job", changed)
        return old
    format = registry.get(asked["choices"]["format"])
    for name in there.names() if not begun else ():
        if format.owns(name) or name in _BESIDES:
            unfinished = (
                "" if isinstance(there.folder, Path) else ", or its unfinished job is in another staging folder"
            )
            raise OutputError(
                f"{show(there.path(name))}: exists, and shardmill did not make it{unfinished}; pass --overwrite to replace it, or choose another folder with -o"
            )
    return None


def unfinished(output: Path) -> bool:
    return (output / journal.NAME).exists()


def tidy(output: Path, store: ObjectStore | None, format: Format) -> None:
    """The job is complete: a kill between its last two steps leaves the journal, one elsewhere what was staged here."""
    if store is not None:
        _clear(output, format)
    journal.discard(output)


def left_behind(job: Job, *, overwrite: bool) -> Unfinished | None:
    """What an earlier run of this very job left; an error if it was another job.

    With overwrite: what an earlier run with overwrite left, else None, whatever there is. The same command goes on.
    """
    if not overwrite:
        return _left_by(job)
    try:
        left = _left_by(job)
        if left is not None and left.overwrites:
            known = left.checkpoint.files if left.checkpoint else {}
            OutputFiles(job.output, known, drop_behind=False, away=left.away).close()
            return left
    except OutputError:
        pass
    return None


def drop_unknown(output: Path, format: Format, known: Collection[str]) -> None:
    """Files that were begun after the last checkpoint: this run may not need them, if --on-error is another now."""
    for name in LocalFiles(output).names():
        stem = name.removesuffix(storage.PARTIAL)
        if stem not in (name, *known) and (format.owns(stem) or stem in _BESIDES):
            storage.remove(output / name)


def _left_by(job: Job) -> Unfinished | None:
    left = journal.read(job.output)
    if left is None:
        return None
    asked, began = versions(job), left.job
    at = left.checkpoint or Checkpoint()
    # What lies behind a limit was never judged.
    full = at.ended == job.spec.limit_documents or at.tokens == job.spec.limit_tokens
    if not at.counts.replaced_characters and not at.counts.rejected and not full and "choices" in began:
        began = {**began, "choices": {**began["choices"], "on_error": job.spec.on_error}}  # has not mattered yet
    changed = _changes(LocalFiles(job.output), began, asked, job.files) + _pipes(job.files)
    if changed:
        raise _another_job(job.spec.output, "holds an unfinished job that is not this one", changed)
    return left


def _changes(there: FileSet, before: dict[str, Any], asked: dict[str, Any], files: InputFiles) -> list[str]:
    """Field by field. Of inputs that are too many for that, the first that differ."""
    inputs, times = before.get("inputs"), before.get("modified")
    if not isinstance(asked["inputs"], dict) and not isinstance(inputs, dict):
        return manifest.differences(before, asked)
    aside = {"inputs": None, "modified": None}
    changed = manifest.differences({**before, **aside}, {**asked, **aside})
    if inputs != asked["inputs"]:
        return changed + input_list.changes(there, inputs or [], files)
    return changed + (input_list.modified_since(times, files) if times is not None else [])


def _pipes(files: InputFiles) -> list[str]:
    return [f"inputs: {show(file.path)} is a pipe, and may hold something else now" for file in files.pipes]


def _another_job(output: Path | str, what: str, changed: list[str]) -> OutputError:
    return OutputError(
        f"{show(output)} {what}:\n  "
        + "\n  ".join(changed[:20])
        + (f"\n  and {len(changed) - 20:,} more" if len(changed) > 20 else "")
        + "\nPass --overwrite to replace it, or choose another folder with -o."
    )


def _outputs(output: Path, format: Format) -> list[Path]:
    """Files there that a job of this format would write, or might leave beside its own for a trainer to find."""
    if not output.is_dir():
        return []
    return [output / name for name in LocalFiles(output).names() if format.owns(name) or name in _BESIDES]


def _made_before(output: Path) -> set[str]:
    """The files of the job whose manifest or journal is there."""
    names: set[str] = set()
    with contextlib.suppress(OutputError):
        if (made := manifest.read(output)) is not None:
            names |= {file.name for file in made.files} | {side.name for side in made.sides}
    with contextlib.suppress(OutputError):
        if (left := journal.read(output)) is not None and left.checkpoint is not None:
            names |= left.checkpoint.files.keys()
    return names


def make_room(output: Path, store: ObjectStore | None, format: Format, *, overwrite: bool) -> None:
    """See that files are taken, and remove what is to be replaced: the manifest first (I3)."""
    storage.check_writable(output)
    if store is not None:
        store.check_writable()
        _clear_store(store, format, overwrite=overwrite)
    if overwrite:
        _clear(output, format)
        storage.reached("old-result-removed")


def _clear(output: Path, format: Format) -> None:
    names = _replaced(output, format)
    for name in sorted(names, key=lambda name: (name != manifest.NAME, name != journal.NAME, name)):
        storage.remove(output / name)
    for split in {name.partition("/")[0] for name in names if "/" in name}:
        storage.remove_if_empty(output / split)


def _replaced(output: Path, format: Format) -> list[str]:
    """What --overwrite removes: of what really is in the folder, not behind a link in it, the files of an earlier job."""
    ours = {manifest.NAME, manifest.RUN_NAME, journal.NAME, *_BESIDES, *_made_before(output)}
    bare = ((name, name.removesuffix(storage.PARTIAL)) for name in LocalFiles(output).names())
    return [name for name, base in bare if base in ours or format.owns(base)]


def replaced_bytes(output: Path, format: Format) -> int:
    """How much space --overwrite frees."""
    found = [(output / name).lstat() for name in _replaced(output, format)] if output.is_dir() else []
    return sum(each.st_size for each in found if each.st_nlink == 1)


def _clear_store(store: ObjectStore, format: Format, *, overwrite: bool) -> None:
    there = store.files() if overwrite else None
    if there is None:
        return
    present, old = set(there.names()), set()
    with contextlib.suppress(OutputError):
        if (made := manifest.of(there)) is not None:
            old = {file.name for file in made.files} | {side.name for side in made.sides}
    names = sorted(name for name in present if name in old or format.owns(name) or name in _BESIDES)
    for name in (manifest.NAME, manifest.RUN_NAME, *names):
        if name in present:
            store.remove(name)


def still_there(store: ObjectStore, left: Unfinished | None, *, overwrite: bool) -> Unfinished | None:
    """What an earlier run left, if what it put in the store is there; an error, or with overwrite None, if not."""
    if left is None or left.checkpoint is None or not left.away:
        return left
    there = store.files()
    for name, state in sorted(left.checkpoint.files.items()):
        size = there.size(name) if there is not None else None
        if name in left.away and size != state.bytes:
            if overwrite:
                return None
            has = "is gone" if size is None else f"has {size:,} bytes"
            raise OutputError(
                f"{show(f'{store.shown}/{name}')}: {has}, and an earlier run of this job put {state.bytes:,} bytes there. Start again with --overwrite, or choose another folder with -o"
            )
    return left


def conclude(output: Path, store: ObjectStore | None, made: Manifest, run: dict[str, Any]) -> None:
    """All files have their names: now the report, the manifest (I3), and the journal away."""
    if store is not None:
        store.put(manifest.RUN_NAME, manifest.dump(run))
        storage.reached("run-written")
        storage.reached("manifest-putting")
        store.put(manifest.NAME, made.to_json())
    else:
        storage.write_whole(output / manifest.RUN_NAME, manifest.dump(run))
        storage.reached("run-written")
        manifest.write(output, made)
    storage.reached("manifest-written")
    journal.discard(output)
    storage.reached("journal-removed")
