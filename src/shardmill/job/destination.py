"""Where the result goes, a folder or an object store → what is there already, and room for the new."""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
from shardmill.job.upload import Renaming, Upload
from shardmill.record import input_list, journal, manifest
from shardmill.record.journal import Journal, Unfinished
from shardmill.record.manifest import Manifest
from shardmill.spec import Limits
from shardmill.system.names import is_url, show
from shardmill.tokens import token_bytes

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Folder:
    """A local folder, with some of the methods of an ObjectStore."""

    shown: Path

    def files(self) -> FileSet | None:
        return LocalFiles(self.shown) if self.shown.is_dir() else None

    def put(self, name: str, data: bytes) -> None:
        storage.write_whole(self.shown / name, data)

    def remove(self, name: str) -> None:
        storage.remove(self.shown / name)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the result goes, and the local folder where its files grow: the same one, or a store's staging folder."""

    target: Folder | ObjectStore
    folder: Path

    @property
    def staged(self) -> bool:
        return isinstance(self.target, ObjectStore)


def destination_of(output: str | Path, limits: Limits) -> Destination:
    if is_url(output := str(output)):
        return Destination(ObjectStore(output, limits.network_seconds), limits.work_folder(output))
    return local(Path(output))


def local(folder: Path) -> Destination:
    return Destination(Folder(folder), folder)


def publisher_of(
    destination: Destination, files: OutputFiles, log: Journal, format: Format, limit: int
) -> Renaming | Upload:
    """What brings finished files to the destination; limit: the most bytes that may be staged."""
    if isinstance(destination.target, ObjectStore):
        destination.target.abort_unfinished(format.owns)
        return Upload(destination.target, files, log, limit)
    return Renaming(files)


def refuse_inputs(destination: Destination, inputs: InputFiles, format: Format) -> None:
    """An error if the job would overwrite one of its inputs."""
    prefix = f"{destination.target.shown}/"
    for file in inputs.special if destination.staged else ():
        if file.path.startswith(prefix) and format.owns(file.path.removeprefix(prefix)):
            raise _would_be_overwritten(file)
    there = LocalFiles(destination.folder).names() if destination.folder.is_dir() else []
    names = [name for name in there if format.owns(name) or name == manifest.NAME]
    ours = [path for path in (destination.folder / name for name in names) if path.exists()]
    # The same file has the same size: of a million inputs, few must be looked at.
    alike = np.isin(inputs.sizes, [path.stat().st_size for path in ours]).nonzero()[0] if ours else ()
    for file in (inputs[int(number)] for number in alike):
        if file.local and any(path.samefile(file.path) for path in ours):
            raise _would_be_overwritten(file)


def _would_be_overwritten(file: InputFile) -> UsageError:
    return UsageError(f"{show(file.path)}: is an input and would be overwritten; choose another output folder with -o")


def completed(destination: Destination, asked: dict[str, Any], inputs: InputFiles) -> Manifest | None:
    """The manifest if this job is complete already; an error if another one is, or if there are files that are not ours."""
    there = destination.target.files()
    if there is None:
        return None
    old = manifest.of(there)
    if old is not None:
        changed = _changes(there, old.job, asked, inputs) or input_list.modified(there, inputs) + _pipes(inputs)
        if changed:
            raise _another_job(there.folder, "holds the result of another job", changed)
        return old
    format = registry.get(asked["choices"]["format"])
    for name in there.names() if not (destination.folder / journal.NAME).exists() else ():
        if format.owns(name):
            staged = "" if isinstance(there.folder, Path) else ", or its unfinished job is in another staging folder"
            whose = ", and shardmill did not write it" if format.described else " already"
            raise OutputError(
                f"{show(there.path(name))}: exists{whose}{staged}; pass --overwrite to replace it, or choose another folder with -o"
            )
    return None


def has_leftovers(destination: Destination) -> bool:
    """Whether an earlier run left something on this disk that is not the result."""
    return (destination.folder if destination.staged else destination.folder / journal.NAME).exists()


def left_by_earlier_run(destination: Destination, job: Job, *, overwrite: bool) -> Unfinished | None:
    """What an earlier run of this very job left; an error if it was another job, or if some of it is gone.

    With overwrite: only what an earlier run with overwrite left, so that the same command resumes it.
    """
    if not overwrite:
        return _left_by(destination, job)
    with contextlib.suppress(OutputError):
        found = _left_by(destination, job)
        if found is not None and found.overwrites:
            OutputFiles(job.output, found.checkpoint.files, drop_behind=False, uploaded=found.uploaded).close()
            return found
    return None


def _left_by(destination: Destination, job: Job) -> Unfinished | None:
    found = journal.read(destination.folder)
    if found is None:
        return None
    began, at = found.job, found.checkpoint
    # What lies beyond a limit was never judged.
    full = at.ended == job.spec.limit_documents or at.tokens == job.spec.limit_tokens
    if not at.counts.replaced_characters and not at.counts.rejected and not full and "choices" in began:
        began = {**began, "choices": {**began["choices"], "on_error": job.spec.on_error}}  # has not mattered yet
    changed = _changes(LocalFiles(destination.folder), began, versions(job), job.files) + _pipes(job.files)
    if changed:
        raise _another_job(destination.target.shown, "holds an unfinished job that is not this one", changed)
    _check_uploaded(destination, found)
    return found


def _check_uploaded(destination: Destination, found: Unfinished) -> None:
    there = destination.target.files() if found.uploaded else None
    for name in sorted(found.uploaded & found.checkpoint.files.keys()):
        size, expected = there.size(name) if there is not None else None, found.checkpoint.files[name].bytes
        if size != expected:
            has = "is gone" if size is None else f"has {size:,} bytes"
            raise OutputError(
                f"{show(f'{destination.target.shown}/{name}')}: {has}, and an earlier run of this job uploaded {expected:,} bytes. Start over with --overwrite, or choose another folder with -o"
            )


def _changes(there: FileSet, before: dict[str, Any], asked: dict[str, Any], inputs: InputFiles) -> list[str]:
    """Field by field; of the inputs, the first that differ."""
    apart = {"inputs": None, "modified": None}
    changed = manifest.differences({**before, **apart}, {**asked, **apart})
    if before.get("inputs") != asked["inputs"]:
        changed += input_list.changes(there, before.get("inputs", []), asked["inputs"], inputs)
    return changed + input_list.modified_since(before.get("modified"), inputs)


def _pipes(inputs: InputFiles) -> list[str]:
    return [f"inputs: {show(file.path)} is a pipe, and may hold something else now" for file in inputs.pipes]


def _another_job(output: Path | str, what: str, changed: list[str]) -> OutputError:
    return OutputError(
        f"{show(output)} {what}:\n  "
        + "\n  ".join(changed[:_SHOWN])
        + (f"\n  and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else "")
        + "\nPass --overwrite to replace it, or choose another folder with -o."
    )


def drop_unknown(folder: Path, format: Format, known: Collection[str]) -> None:
    """Remove files begun after the last checkpoint: this run may not need them, if --on-error is different now."""
    for name in LocalFiles(folder).names():
        bare = name.removesuffix(storage.PARTIAL)
        if bare not in (name, *known) and format.owns(bare):
            storage.remove(folder / name)


def make_room(destination: Destination, format: Format, *, overwrite: bool) -> None:
    """Check that files can be written, and remove the old result."""
    storage.check_writable(destination.folder)
    if isinstance(destination.target, ObjectStore):
        destination.target.check_writable()
    if overwrite:
        _clear(destination, format)
        _clear(local(destination.folder), format)  # and what is staged
        storage.reached("old-result-removed")


def tidy(destination: Destination, format: Format) -> None:
    """The job is complete: remove the journal that a kill between the last two steps left, and what is staged."""
    if destination.staged:
        _clear(local(destination.folder), format)
    journal.discard(destination.folder)


def _clear(destination: Destination, format: Format) -> None:
    """The manifest goes first (I3)."""
    names = _replaced(destination, format)
    for name in sorted(names, key=lambda name: (name != manifest.NAME, name != journal.NAME, name)):
        destination.target.remove(name)
    for split in {name.partition("/")[0] for name in names if "/" in name}:
        storage.remove_if_empty(destination.folder / split)


def _replaced(destination: Destination, format: Format) -> list[str]:
    """What --overwrite removes: the files of an earlier job, not those behind a link."""
    there = destination.target.files()
    if there is None:
        return []
    ours = {manifest.NAME, manifest.RUN_NAME, journal.NAME}
    with contextlib.suppress(OutputError):
        ours |= made.names if (made := manifest.of(there)) is not None else set()
    with contextlib.suppress(OutputError):
        ours |= left.checkpoint.files.keys() if (left := journal.read(destination.folder)) is not None else set()
    bare = ((name, name.removesuffix(storage.PARTIAL)) for name in there.names())
    return [name for name, base in bare if base in ours or format.owns(base)]


def replaced_bytes(folder: Path, format: Format) -> int:
    """How much space --overwrite frees."""
    found = [(folder / name).lstat() for name in _replaced(local(folder), format)]
    return sum(each.st_size for each in found if each.st_nlink == 1)


def conclude(destination: Destination, made: Manifest, run: dict[str, Any], table: bytes | None = None) -> None:
    """All files have their names: now the table of token bytes, the report, the manifest (I3); then the journal goes."""
    if table is not None:
        destination.target.put(token_bytes.NAME, table)
    destination.target.put(manifest.RUN_NAME, manifest.dump(run))
    storage.reached("run-written")
    destination.target.put(manifest.NAME, made.to_json())
    storage.reached("manifest-written")
    journal.discard(destination.folder)
    storage.reached("journal-removed")
