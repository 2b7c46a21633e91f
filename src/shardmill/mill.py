"""The mill itself: text files in, token files out.

prepare      what is there already; decide everything (job.py); run; give the files their names, the manifest last
_run         goes on where an earlier run was stopped, and leaves what a later one needs
_Output      takes the milled Blocks in order (line.py has the workers that bring them), with checkpoints (journal.py)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardmill import folder, listing, machine, rejects, storage
from shardmill.block import Milled
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.errors import MismatchError, ShardmillError, TemporaryError
from shardmill.estimates import check_space, separator_hint
from shardmill.formats import registry
from shardmill.formats.files import OutputFiles
from shardmill.formats.shards import SPLITS
from shardmill.formats.writer import FormatWriter, Writer
from shardmill.job import Job, choose_splitter, describe, find, make_job, versions
from shardmill.journal import Checkpoint, Checkpoints, Journal, Left
from shardmill.line import mill_blocks
from shardmill.lock import locked
from shardmill.manifest import Counts, Manifest
from shardmill.quota import Quota
from shardmill.spec import Limits, Spec

Phase = Literal["loading", "splitting", "milling"]

_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job is; given to on_progress several times a second.

    First the tokenizer is loaded ("loading"; half a minute when the engines must be compared for a tokenizer
    seen the first time), then a small input is read once for the split ("splitting"), then comes the work.
    """

    phase: Phase
    input_bytes: int
    total_bytes: int
    tokens: int
    memory: int
    seconds: float
    resumed_bytes: int = 0
    """How much of input_bytes an earlier run did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What prepare did. run holds what may differ from run to run; it is also in run.json."""

    output: Path
    manifest: Manifest
    run: dict[str, Any]
    notes: tuple[str, ...]
    already_complete: bool = False


@dataclass(kw_only=True, slots=True)
class Done:
    """What has been written so far."""

    index: int = 0
    position: Position = BEGINNING
    val: bool = False
    tokens: int = 0
    ended: int = 0
    counts: Counts = field(default_factory=Counts)
    checked_bytes: int = 0
    resumed_bytes: int = 0
    started: float = field(default_factory=time.perf_counter)


def prepare(
    spec: Spec,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    overwrite: bool = False,
) -> Result:
    """Mill the inputs of spec into its output folder, or go on where an earlier run of the same job was stopped.

    Never prints; raises ShardmillError with a message for the user.
    """
    started = time.perf_counter()
    limits = limits or Limits()
    files, tokenizer = find(spec, limits)
    output = Path(spec.output)
    format = registry.check(spec)
    folder.refuse_to_replace_inputs(output, files, format)
    asked = describe(spec, files, tokenizer)
    complete = None if overwrite else folder.completed(output, asked, files)
    if complete is not None and not folder.unfinished(output):
        return Result(output=output, manifest=complete, run={}, notes=(), already_complete=True)
    report = on_progress or (lambda _: None)
    report(_progress("loading", files.total_bytes, Done()))
    job = make_job(spec, files, tokenizer, limits)
    with locked(output):
        if not overwrite and (complete := folder.completed(output, asked, files)) is not None:
            folder.tidy(output)
            return Result(output=output, manifest=complete, run={}, notes=(), already_complete=True)
        left = folder.left_behind(job, overwrite=overwrite)
        warning = check_space(job, written=left.bytes if left else 0)
        if left is None:
            folder.make_room(output, format, overwrite=overwrite)
        log = Journal(output, left, overwrites=overwrite)
        made, done = _run(job, limits, log, left, report)
        run = _run_report(job, done, time.perf_counter() - started)
        folder.conclude(output, made, run)
    return Result(
        output=output, manifest=made, run=run, notes=tuple(note for note in (warning, *_notes(job, made)) if note)
    )


def _run(
    job: Job, limits: Limits, log: Journal, left: Left | None, report: Callable[[Progress], None]
) -> tuple[Manifest, Done]:
    """Do what is left of the job. What is written when it fails stays, for the same command to go on with."""
    files: OutputFiles | None = None
    output: _Output | None = None
    try:
        if left is None or left.job != versions(job):
            log.begin(versions(job))
        at = left.checkpoint if left and left.checkpoint else Checkpoint()
        files = OutputFiles(job.output, at.files, drop_behind=job.big)
        writer = FormatWriter(job.writes, files, at.extra, finished=at.finished)
        files.verify()
        _list_inputs(job, files)
        splitter = choose_splitter(job, left.split if left else None, log.split, _first_pass_reporter(job, report))
        output = _Output(job, writer, files, log, limits, at)
        try:
            if not output.full:
                mill_blocks(job, splitter, at.position, at.index, output.write, lambda: report(output.progress()))
        finally:
            output.commit()
        output.finish()
        made = _manifest_of(job, output.done, writer)
        files.seal()
        files.publish()
    except BaseException as e:
        tokens = output.done.tokens if output else left.checkpoint.tokens if left and left.checkpoint else 0
        worth_keeping = tokens > 0 or isinstance(e, TemporaryError) or not isinstance(e, ShardmillError)
        if files is not None and (isinstance(e, MismatchError) or not worth_keeping):
            files.abandon()
            log.remove()
        elif files is not None:
            files.close()
        raise
    finally:
        log.close()
    return made, output.done


def _list_inputs(job: Job, files: OutputFiles) -> None:
    """Inputs that are too many for the manifest get a file of their own."""
    if len(job.files) > listing.MOST and listing.NAME not in files.states():
        for some in listing.in_pieces(listing.lines_of(job.files)):
            files.append(listing.NAME, some)
        files.full(listing.NAME)


class _Output:
    """Takes the milled Blocks in order, and sees that what was written of them is durable soon."""

    def __init__(
        self, job: Job, writer: Writer, files: OutputFiles, log: Journal, limits: Limits, at: Checkpoint
    ) -> None:
        self.done = Done(
            index=at.index,
            position=at.position,
            val=at.val,
            tokens=at.tokens,
            ended=at.ended,
            counts=at.counts,
            resumed_bytes=at.counts.input_bytes,
        )
        self._quota = Quota(job, at.ended, at.tokens, at.counts.input_bytes)
        self._total_bytes = job.total_bytes
        self._finished = at.finished
        self._writer, self._files = writer, files
        self._checkpoints = Checkpoints(
            log, files, seconds=limits.checkpoint_seconds, input_bytes=limits.checkpoint_bytes
        )
        self._torn = False

    @property
    def full(self) -> bool:
        """Whether as much is written as was asked for."""
        return self._quota.full

    def write(self, milled: Milled) -> bool:
        """Returns whether more is wanted."""
        done, self._torn = self.done, True
        milled = self._quota.cut(milled)
        for run in milled.runs:
            done.val = done.val if run.val is None else run.val
            self._writer.append("val" if done.val else "train", run.tokens, run.ends, run.places)
            done.tokens += len(run.tokens)
            done.ended += len(run.ends)
        if milled.rejects:
            self._files.append(rejects.NAME, memoryview(b"".join(reject.to_json() for reject in milled.rejects)))
        done.counts += milled.counts
        done.checked_bytes += milled.checked_bytes
        done.position, done.index = milled.after, milled.index + 1
        self._torn = False
        storage.reached("block-written")
        self._checkpoints.offer(done.counts.input_bytes, self._now)
        return not self._quota.full

    def commit(self) -> None:
        """Make all that was written durable; not when a Block was left half-written, by an error that is on its way."""
        self._checkpoints.settle()
        if not self._torn and self.done.index:
            self._checkpoints.commit(self._now())

    def finish(self) -> None:
        """All is written: what the format adds at the end too. From here on only names are missing."""
        if not self._finished:
            self._writer.finish()
            storage.reached("files-finished")
            self._finished = True
            self._checkpoints.commit(self._now())

    def progress(self) -> Progress:
        return _progress("milling", self._total_bytes, self.done)

    def _now(self) -> Checkpoint:
        done = self.done
        return Checkpoint(
            index=done.index,
            position=done.position,
            val=done.val,
            tokens=done.tokens,
            ended=done.ended,
            counts=done.counts,
            files=self._files.states(),
            extra=self._writer.extra(),
            finished=self._finished,
        )


def _manifest_of(job: Job, done: Done, writer: Writer) -> Manifest:
    limited = job.spec.limit_documents is not None or job.spec.limit_tokens is not None
    if done.counts.input_bytes != job.total_bytes and job.files.known and not limited:  # I6
        raise ShardmillError(
            f"{done.counts.input_bytes:,} of {job.total_bytes:,} input bytes were read; this is a bug in shardmill, please report it"
        )
    return Manifest(
        job=job.describe(),
        dtype=job.dtype.name,
        eot_id=job.eot_id,
        eot_side=job.eot_side,
        counts=done.counts,
        files=writer.shards(),
        sides=writer.sides(),
    )


def _progress(phase: Phase, total_bytes: int, done: Done) -> Progress:
    return Progress(
        phase=phase,
        input_bytes=done.counts.input_bytes,
        total_bytes=total_bytes,
        tokens=done.tokens,
        memory=machine.rss(),
        seconds=time.perf_counter() - done.started,
        resumed_bytes=done.resumed_bytes,
    )


def _first_pass_reporter(job: Job, report: Callable[[Progress], None]) -> Callable[[int], None]:
    """Adds up the bytes that the first pass has read, and reports a few times a second."""
    seen, last, started = 0, time.monotonic(), time.perf_counter()

    def read(size: int) -> None:
        nonlocal seen, last
        seen += size
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            report(_progress("splitting", job.total_bytes, Done(counts=Counts(input_bytes=seen), started=started)))

    return read


def _notes(job: Job, made: Manifest) -> tuple[str, ...]:
    """What the user should know about this result, in sentences."""
    notes = [job.engines.note] if job.engines.note else []
    if (hint := separator_hint(job)) is not None:
        notes.append(hint)
    if job.rules.separator is not None and job.plain and made.counts.documents <= len(job.files):
        notes.append(f"the separator {job.spec.separator!r} does not occur in the text; each file was one document")
    if made.counts.forced_cuts:
        notes.append(
            f"{made.counts.forced_cuts:,} cuts were forced in text without any safe place for {job.spec.max_run_bytes:,} bytes; the tokens there may differ from the reference's"
        )
    if made.counts.replaced_characters:
        notes.append(
            f"{made.counts.replaced_characters:,} replacement characters (U+FFFD) stand for bytes that are not UTF-8"
        )
    if made.counts.documents_rejected:
        notes.append(
            f"left out: {made.counts.documents_rejected:,} bad of {made.counts.documents:,} documents; {rejects.NAME} lists them"
        )
    if made.counts.passages_rejected:
        notes.append(
            f"left out: {made.counts.passages_rejected:,} bad passages of running text; {rejects.NAME} lists them"
        )
    if job.val_fraction and not any(file.split == "val" for file in made.files):
        notes.append(
            "there is no validation set: too few different documents or passages for the split that was asked for"
        )
    sample = job.writes.shape.sample_tokens or 0
    for split in SPLITS:
        tokens = sum(file.tokens for file in made.files if file.split == split)
        if 0 < tokens < sample:
            notes.append(
                f"{split} has {tokens:,} tokens, and {sample:,} make a sample (--sample-tokens), so {job.writes.format.trainer} finds none in it"
            )
    if job.writes.first_shard_is_val and not any(file.split == "train" for file in made.files):
        notes.append(
            f"there is no train shard: all {made.tokens:,} tokens fit in the first shard, which is the validation set; pass a smaller --shard-tokens, or --split hash"
        )
    return tuple(notes)


def _run_report(job: Job, done: Done, seconds: float) -> dict[str, Any]:
    milling = time.perf_counter() - done.started
    here = done.counts.input_bytes - done.resumed_bytes
    return {
        "seconds": round(seconds, 3),
        "milling_seconds": round(milling, 3),
        "bytes_per_second": round(here / milling),
        "resumed_bytes": done.resumed_bytes,
        "engine": job.engines.name,
        "reference": job.engines.reference.version,
        "checked_bytes": done.checked_bytes,
        "checked_share": round(done.checked_bytes / max(1, here), 6),
        "inputs_modified_ns": listing.times(job.files),
        "workers": job.budget.workers,
        "block_bytes": job.rules.block_bytes,
        "max_memory": job.budget.max_memory,
        "peak_memory": machine.peak_rss(),
    }
