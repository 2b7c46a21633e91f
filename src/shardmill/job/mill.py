"""The mill itself: text files in, token files out.

prepare      what is there already; decide everything (job.py); run; give the files their names, the manifest last
_run         goes on where an earlier run was stopped, and leaves what a later one needs
_Output      takes the milled Blocks in order (workers.py has the workers that bring them), with checkpoints (journal.py)
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardmill.documents import rejects
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.errors import MismatchError, ShardmillError, TemporaryError
from shardmill.formats import registry
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.writer import FormatWriter, Writer
from shardmill.io import storage
from shardmill.io.lock import locked
from shardmill.io.object_store import ObjectStore
from shardmill.job import output_folder
from shardmill.job.block import Milled
from shardmill.job.estimate import check_space, with_staging_limit
from shardmill.job.job import Job, choose_splitter, describe, find, make_job, versions
from shardmill.job.notes import notes_on
from shardmill.job.plan import refuse_changed_in_part
from shardmill.job.truncate import Truncation
from shardmill.job.upload import Upload
from shardmill.job.workers import mill_blocks
from shardmill.record import input_list
from shardmill.record.journal import Checkpoint, Checkpoints, Journal, Unfinished
from shardmill.record.manifest import Counts, Manifest
from shardmill.spec import Limits, Spec
from shardmill.system import machine
from shardmill.system.names import is_url

Phase = Literal["loading", "splitting", "milling", "uploading"]

_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job is; given to on_progress several times a second.

    First the tokenizer is loaded ("loading"; half a minute when the engines must be compared for a tokenizer
    seen the first time), then a small input is read once for the split ("splitting"), then comes the work; at the
    end what is left of it goes to the store, if the result does ("uploading").
    """

    phase: Phase
    input_bytes: int
    total_bytes: int
    tokens: int
    memory: int
    seconds: float
    resumed_bytes: int = 0
    """How much of input_bytes an earlier run did."""
    staged_bytes: int = 0
    """What waits on this disk to be put in the store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What prepare did. run holds what may differ from run to run; it is also in run.json."""

    output: Path | str
    """The folder, or its address in a store."""
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
    has_text: bool = False
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
    output, format = limits.work_folder(spec.output), registry.check(spec)
    store = ObjectStore(spec.output, limits.network_seconds) if is_url(spec.output) else None
    result = store.shown if store is not None else output
    output_folder.refuse_to_replace_inputs(output, store, files, format)
    asked = describe(spec, files, tokenizer)

    def completed() -> Manifest | None:
        begun = output_folder.unfinished(output)
        return (
            None if overwrite else output_folder.completed(output_folder.look(output, store), asked, files, begun=begun)
        )

    left_over = output_folder.unfinished(output) or (store is not None and output.exists())
    if (complete := completed()) is not None and not left_over:
        return Result(output=result, manifest=complete, run={}, notes=(), already_complete=True)
    report = on_progress or (lambda _: None)
    report(_progress("loading", files.total_bytes, Done()))
    job = make_job(spec, files, tokenizer, limits, begins=not left_over)
    with locked(output, temporary=store is not None):
        if (complete := completed()) is not None:
            output_folder.tidy(output, store, format)
            return Result(output=result, manifest=complete, run={}, notes=(), already_complete=True)
        left = output_folder.left_behind(job, overwrite=overwrite)
        if store is not None:
            left = output_folder.still_there(store, left, overwrite=overwrite)
            store.abort_unfinished(format.owns)
        limits = with_staging_limit(job, limits, written=left.bytes if left else 0)
        warning = check_space(job, limits, written=left.bytes if left else 0)
        if left is None:
            output_folder.make_room(output, store, format, overwrite=overwrite)
        log = Journal(output, left, overwrites=overwrite)
        made, done = _run(job, limits, log, left, store, report)
        run = _run_report(job, done, time.perf_counter() - started)
        output_folder.conclude(output, store, made, run)
    return Result(
        output=result, manifest=made, run=run, notes=tuple(note for note in (warning, *notes_on(job, made)) if note)
    )


def _run(
    job: Job,
    limits: Limits,
    log: Journal,
    left: Unfinished | None,
    store: ObjectStore | None,
    report: Callable[[Progress], None],
) -> tuple[Manifest, Done]:
    """Do what is left of the job. What is written when it fails stays, for the same command to go on with."""
    files: OutputFiles | None = None
    output: _Output | None = None
    upload: Upload | None = None
    try:
        if left is None or left.job != versions(job):
            log.begin(versions(job))
        at = left.checkpoint if left and left.checkpoint else Checkpoint()
        files = OutputFiles(job.output, at.files, drop_behind=job.big, away=left.away if left else ())
        writer = FormatWriter(job.writes, files, at.extra, finished=at.finished)
        files.verify()
        output_folder.drop_unknown(job.output, job.writes.format, at.files)
        _list_inputs(job, files)
        if store is not None:
            upload = Upload(store, files, log, limits.max_staging or 0)
            upload.durable(at)
        reporter = _first_pass_reporter(job, report)
        splitter = choose_splitter(job, left.split if left else None, log.split, reporter)
        durable = upload.durable if upload else lambda _: None
        seconds, input_bytes = limits.checkpoint_seconds, limits.checkpoint_bytes
        checkpoints = Checkpoints(log, files, seconds=seconds, input_bytes=input_bytes, durable=durable)
        output = _Output(job, writer, files, checkpoints, upload, at)
        try:
            if not output.full:
                idle = functools.partial(_tell, report, output)
                mill_blocks(job, splitter, at.position, at.index, output.write, idle, output.halt)
                if output.full:
                    refuse_changed_in_part(job.files, output.done.position.file)
        finally:
            output.commit()
        output.finish()
        made = _manifest_of(job, output.done, writer)
        files.seal()
        if upload is None:
            files.publish()
        else:
            upload.finish(functools.partial(_tell, report, output, "uploading"))
    except BaseException as e:
        if upload is not None:
            upload.close()
        tokens = output.done.tokens if output else left.checkpoint.tokens if left and left.checkpoint else 0
        worth_keeping = tokens > 0 or isinstance(e, TemporaryError) or not isinstance(e, ShardmillError)
        if files is not None:
            _leave(files, log, store, keep=worth_keeping and not isinstance(e, MismatchError))
        raise
    finally:
        log.close()
    return made, output.done


def _leave(files: OutputFiles, log: Journal, store: ObjectStore | None, *, keep: bool) -> None:
    """Keep what was made for the next run, or throw it away."""
    if keep:
        files.close()
        return
    if store is not None:
        with contextlib.suppress(ShardmillError):  # the first error is the one to tell
            for name in files.states().keys() - files.remaining():
                store.remove(name)
    log.remove()  # first: it must not speak of files that are gone
    files.abandon()


def _list_inputs(job: Job, files: OutputFiles) -> None:
    """Inputs that are too many for the manifest get a file of their own."""
    if len(job.files) > input_list.MOST and input_list.NAME not in files.states():
        for some in input_list.in_pieces(input_list.lines_of(job.files)):
            files.append(input_list.NAME, some)
        files.full(input_list.NAME)


def _tell(report: Callable[[Progress], None], output: "_Output", phase: Phase = "milling") -> None:
    report(output.progress(phase))


class _Output:
    """Takes the milled Blocks in order, and sees that what was written of them is durable soon."""

    def __init__(
        self,
        job: Job,
        writer: Writer,
        files: OutputFiles,
        checkpoints: Checkpoints,
        upload: Upload | None,
        at: Checkpoint,
    ) -> None:
        self.halt = threading.Event()
        """Set when the job ends: whoever waits for room need not."""
        self.done = Done(
            index=at.index,
            position=at.position,
            val=at.val,
            has_text=at.has_text,
            tokens=at.tokens,
            ended=at.ended,
            counts=at.counts,
            resumed_bytes=at.counts.input_bytes,
        )
        self._truncation = Truncation(job, at.ended, at.tokens, at.counts.input_bytes, has_text=at.has_text)
        self._most_rejects = job.max_rejects
        self._total_bytes = job.total_bytes
        self._finished = at.finished
        self._writer, self._files = writer, files
        self._checkpoints, self._upload = checkpoints, upload
        self._writes = job.writes
        self._torn = False

    @property
    def full(self) -> bool:
        """Whether as much is written as was asked for."""
        return self._truncation.full

    def write(self, milled: Milled) -> bool:
        """Returns whether more is wanted."""
        done, milled = self.done, self._truncation.take(milled)
        if self._upload is not None:
            self._upload.make_room(self._coming(milled), self.commit, self.halt)
        self._torn = True
        for run in milled.runs:
            done.val = done.val if run.val is None else run.val
            self._writer.append("val" if done.val else "train", run.tokens, run.ends, run.places)
            done.tokens += len(run.tokens)
            done.ended += len(run.ends)
        if milled.rejects:
            self._files.append(rejects.NAME, memoryview(b"".join(reject.to_json() for reject in milled.rejects)))
        done.counts += milled.counts
        done.has_text = self._truncation.has_text
        done.checked_bytes += milled.checked_bytes
        done.position, done.index = milled.after, milled.index + 1
        self._torn = False
        storage.reached("block-written")
        self._checkpoints.offer(done.counts.input_bytes, self._now)
        rejects.refuse_too_many(done.counts.rejected, done.counts.records, self._most_rejects)
        return not self._truncation.full

    def _coming(self, milled: Milled) -> int:
        """About what writing this takes, and what finishing the files will take for all that was written."""
        ends = sum(len(run.ends) for run in milled.runs)
        tokens = sum(len(run.tokens) for run in milled.runs)
        return self._writes.bytes_of(tokens, ends) + self._writes.bytes_to_finish(self.done.tokens, self.done.ended)

    def commit(self) -> None:
        """Make all that was written durable; not when a Block was left half-written, by an error that is on its way."""
        self._checkpoints.settle()
        if not self._torn and self.done.index:
            self._checkpoints.commit(self._now())

    def finish(self) -> None:
        """All is written: what the format adds at the end too. From here on only names are missing."""
        counts = self.done.counts
        rejects.refuse_too_many(counts.rejected, counts.records, self._most_rejects, at_end=True)
        if not self._finished:
            self._writer.finish()
            storage.reached("files-finished")
            self._finished = True
            self._checkpoints.commit(self._now())

    def progress(self, phase: Phase = "milling") -> Progress:
        staged = self._upload.staged if self._upload is not None else 0
        return _progress(phase, self._total_bytes, self.done, staged)

    def _now(self) -> Checkpoint:
        done = self.done
        return Checkpoint(
            index=done.index,
            position=done.position,
            val=done.val,
            has_text=done.has_text,
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
        dtype=job.writes.dtype.name,
        eot_id=job.eot_id,
        eot_side=job.eot_side,
        counts=done.counts,
        files=writer.shards(),
        sides=writer.sides(),
    )


def _progress(phase: Phase, total_bytes: int, done: Done, staged: int = 0) -> Progress:
    return Progress(
        phase=phase,
        input_bytes=done.counts.input_bytes,
        total_bytes=total_bytes,
        tokens=done.tokens,
        memory=machine.rss(),
        seconds=time.perf_counter() - done.started,
        resumed_bytes=done.resumed_bytes,
        staged_bytes=staged,
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
        "inputs_modified_ns": input_list.times(job.files),
        "workers": job.budget.workers,
        "block_bytes": job.rules.block_bytes,
        "max_memory": job.budget.max_memory,
        "peak_memory": machine.peak_rss(),
    }
