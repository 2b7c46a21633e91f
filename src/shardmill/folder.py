"""An output folder → what an earlier run left in it, and room for this one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shardmill import journal, listing, manifest, rejects, storage
from shardmill.errors import OutputError, UsageError
from shardmill.formats import registry
from shardmill.formats.files import OutputFiles
from shardmill.formats.registry import Format
from shardmill.formats.shards import SPLITS
from shardmill.inputs import InputFiles
from shardmill.job import Job, versions
from shardmill.journal import Left
from shardmill.manifest import Counts, Manifest
from shardmill.names import show


def refuse_to_replace_inputs(output: Path, files: InputFiles, format: Format) -> None:
    ours = [*_outputs(output, format), *(path for path in [output / manifest.NAME] if path.exists())]
    # The same file has the same size: with a million inputs, few must be looked at again.
    alike = np.isin(files.sizes, [path.stat().st_size for path in ours]).nonzero()[0] if ours else ()
    for file in (files[int(number)] for number in alike):
        if file.local and any(path.samefile(file.path) for path in ours):
            raise UsageError(
                f"{show(file.path)}: is an input and would be overwritten; choose another output folder with -o"
            )


def completed(output: Path, asked: dict[str, Any], files: InputFiles) -> Manifest | None:
    """The manifest if this very job is complete already; an error if another one is, or files that are not ours."""
    old = manifest.read(output) if output.is_dir() else None
    if old is not None:
        changed = _changes(output, old.job, asked, files)
        if not changed:
            changed = listing.modified(output, files) + _pipes(files)
        if changed:
            raise _another_job(output, "holds the result of another job", changed)
        return old
    for path in _outputs(output, registry.get(asked["choices"]["format"])):
        if not (output / journal.NAME).exists():
            raise OutputError(
                f"{show(path)}: exists, and shardmill did not make it; pass --overwrite to replace it, or choose another folder with -o"
            )
    return None


def unfinished(output: Path) -> bool:
    return (output / journal.NAME).exists()


def tidy(output: Path) -> None:
    """The job is complete: a kill between its last two steps leaves the journal."""
    storage.remove(output / journal.NAME)


def left_behind(job: Job, *, overwrite: bool) -> Left | None:
    """What an earlier run of this very job left; an error if it was another job.

    With overwrite: what an earlier run with overwrite left, else None, whatever there is. The same command goes on.
    """
    if not overwrite:
        return _left_by(job)
    try:
        left = _left_by(job)
        if left is not None and left.overwrites:
            OutputFiles(job.output, left.checkpoint.files if left.checkpoint else {}, drop_behind=False).close()
            return left
    except OutputError:
        pass
    return None


def _left_by(job: Job) -> Left | None:
    left = journal.read(job.output)
    if left is None:
        return None
    asked, began = versions(job), left.job
    counts = left.checkpoint.counts if left.checkpoint else Counts()
    if not counts.replaced_characters and not counts.documents_rejected and "choices" in began:
        began = {**began, "choices": {**began["choices"], "on_error": job.spec.on_error}}  # has not mattered yet
    changed = _changes(job.output, began, asked, job.files) + _pipes(job.files)
    if changed:
        raise _another_job(job.output, "holds an unfinished job that is not this one", changed)
    return left


def _changes(output: Path, before: dict[str, Any], asked: dict[str, Any], files: InputFiles) -> list[str]:
    """Field by field. Of inputs that are too many for that, the first that differ."""
    inputs, times = before.get("inputs"), before.get("modified")
    if not isinstance(asked["inputs"], dict) and not isinstance(inputs, dict):
        return manifest.differences(before, asked)
    aside = {"inputs": None, "modified": None}
    changed = manifest.differences({**before, **aside}, {**asked, **aside})
    if inputs != asked["inputs"]:
        return changed + listing.changes(output, inputs or [], files)
    return changed + (listing.modified_since(times, files) if times is not None else [])


def _pipes(files: InputFiles) -> list[str]:
    return [f"inputs: {show(file.path)} is a pipe, and may hold something else now" for file in files.pipes]


def _another_job(output: Path, what: str, changed: list[str]) -> OutputError:
    return OutputError(
        f"{show(output)} {what}:\n  "
        + "\n  ".join(changed[:20])
        + (f"\n  and {len(changed) - 20:,} more" if len(changed) > 20 else "")
        + "\nPass --overwrite to replace it, or choose another folder with -o."
    )


def _outputs(output: Path, format: Format) -> list[Path]:
    """Files there that a job of this format would write, or might leave beside its own for a trainer to find."""
    besides = (rejects.NAME, listing.NAME)
    return sorted(output / name for name in _names(output) if format.owns(name) or name in besides)


def _names(output: Path) -> Iterator[str]:
    """What is in the folder, and in the subfolders that some formats have for each split."""
    for place in ("", *(f"{split}/" for split in SPLITS)):
        folder = output / place
        if folder.is_dir() and not (place and folder.is_symlink()):
            yield from (place + path.name for path in folder.iterdir())


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


def make_room(output: Path, format: Format, *, overwrite: bool) -> None:
    """See that the folder takes files, and remove what is to be replaced: the manifest first (I3)."""
    storage.check_writable(output)
    if overwrite:
        own = {name for found in _names(output) if format.owns(name := found.removesuffix(storage.PARTIAL))}
        names = sorted(_made_before(output) | own | {rejects.NAME, listing.NAME})
        for name in (manifest.NAME, manifest.RUN_NAME, journal.NAME, *names):
            storage.remove(output / name)
            storage.remove(output / (name + storage.PARTIAL))
        for split in {name.partition("/")[0] for name in names if "/" in name}:
            storage.remove_if_empty(output / split)
        storage.reached("old-result-removed")


def conclude(output: Path, made: Manifest, run: dict[str, Any]) -> None:
    """All files have their names: now the report, the manifest (I3), and the journal away."""
    storage.write_whole(output / manifest.RUN_NAME, manifest.dump(run))
    storage.reached("run-written")
    manifest.write(output, made)
    storage.reached("manifest-written")
    storage.remove(output / journal.NAME)
    storage.reached("journal-removed")
