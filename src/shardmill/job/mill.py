"""The mill itself: text files in, token files out.

prepare      checks what is there; decides everything (job.py); runs; gives the files their names, the manifest last
_run         resumes where an earlier run stopped, and leaves what a later one needs
_Output      takes the milled Blocks in order from the workers (workers.py), with checkpoints (journal.py)
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardmill.documents import rejects
from shardmill.errors import MismatchError, ShardmillError, TemporaryError
from shardmill.formats import registry
from shardmill.formats.output_files import OutputFiles, Placed
from shardmill.formats.writer import FormatWriter
from shardmill.inputs import choose
from shardmill.io import storage
from shardmill.io.lock import locked
from shardmill.job import destination as destinations
from shardmill.job.block import Milled
from shardmill.job.destination import Destination
from shardmill.job.estimate import check_space, expecting, with_staging_limit
from shardmill.job.job import Job, choose_splitter, describe, find, make_job, versions
from shardmill.job.join import Join
from shardmill.job.notes import notes_before, notes_on, refuse_nothing
from shardmill.job.plan import refuse_changed_in_part
from shardmill.job.split import Splitter
from shardmill.job.truncate import Truncation
from shardmill.job.workers import mill_blocks
from shardmill.record import input_list
from shardmill.record.journal import Checkpoint, Checkpoints, Journal, Unfinished
from shardmill.record.manifest import Counts, Manifest, Text
from shardmill.spec import Limits, Spec
from shardmill.system import machine
from shardmill.tokens.token_bytes import TokenBytes, token_bytes_of

Phase = Literal["loading", "splitting", "milling", "uploading"]

_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job is; passed to on_progress several times a second.

    "loading" the tokenizer takes half a minute when engines must be compared for one not seen before; "splitting"
    reads a small input once to choose the validation set; "milling" is the work; "uploading" is what remains to be
    sent to an object store at the end.
    """

    phase: Phase
    total_bytes: int
    input_bytes: int = 0
    tokens: int = 0
    memory: int = field(default_factory=machine.rss)
    seconds: float = 0.0
    resumed_bytes: int = 0
    """How much of input_bytes an earlier run did."""
    staged_bytes: int = 0
    """Local files that have not been uploaded yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a job will do; passed to on_start when everything is decided, before the work."""

    inputs: str
    """What there is to read, such as 1,204 .jsonl.zst, 3 .parquet."""
    files: int
    total_bytes: int
    """0 if a pipe is among them."""
    tokenizer: str
    engine: str
    workers: int
    max_memory: int
    output: Path | str
    resumed_bytes: int
    """How much of the input an earlier run did."""
    notes: tuple[str, ...]
    """What may make the user change the command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What prepare did. run holds what may differ from run to run; it is also in run.json."""

    output: Path | str
    """The folder, or the URL in an object store."""
    manifest: Manifest
    run: dict[str, Any]
    notes: tuple[str, ...]
    already_complete: bool = False


def prepare(
    spec: Spec,
    *,
    limits: Limits | None = None,
    on_start: Callable[[Start], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    overwrite: bool = False,
) -> Result:
    """Tokenize the inputs of spec into its output, or resume where an earlier run of the same job stopped.

    Never prints; raises ShardmillError with a message for the user.

    >>> result = shardmill.prepare(shardmill.Spec(inputs=["corpus/"], output="data"))
    >>> result.manifest.dtype
    'uint16'
    """
    started = time.perf_counter()
    limits = limits or Limits()
    files, tokenizer = find(spec, limits)
    with files.opened:
        format, destination = registry.check(spec), destinations.destination_of(spec.output, limits)
        destinations.refuse_inputs(destination, files, format)
        asked = describe(spec, files, tokenizer)

        def completed() -> Result | None:
            made = None if overwrite else destinations.completed(destination, asked, files)
            if made is None:
                return None
            return Result(output=destination.target.shown, manifest=made, run={}, notes=(), already_complete=True)

        leftovers = destinations.has_leftovers(destination)
        if (complete := completed()) is not None and not leftovers:
            return complete
        report = on_progress or (lambda _: None)
        report(Progress(phase="loading", total_bytes=files.total_bytes))
        job = make_job(spec, files, tokenizer, limits, begins=not leftovers)
        with locked(destination.folder, temporary=destination.staged):
            if (complete := completed()) is not None:
                destinations.tidy(destination, format)
                return complete
            unfinished = destinations.left_by_earlier_run(destination, job, overwrite=overwrite)
            written = unfinished.bytes if unfinished else 0
            limits = with_staging_limit(job, limits, written)
            expect = expecting(job, limits, written)
            notes = notes_before(job, expect)
            job, limits, warning = check_space(job, limits, expect, written)
            notes = (*notes, warning) if warning else notes
            if on_start is not None:
                on_start(_start_of(job, destination, unfinished, notes))
            if unfinished is None:
                destinations.make_room(destination, format, overwrite=overwrite)
                unfinished = Unfinished(overwrites=overwrite)
            made, output = _run(job, limits, destination, unfinished, report)
            run = output.run_report(time.perf_counter() - started)
            table = token_bytes_of(job.tokenizer)
            destinations.conclude(destination, made, run, table.file() if table is not None else None)
        return Result(output=destination.target.shown, manifest=made, run=run, notes=notes + notes_on(job, made, notes))


def _start_of(job: Job, destination: Destination, unfinished: Unfinished | None, notes: tuple[str, ...]) -> Start:
    return Start(
        inputs=choose.found(job.files),
        files=len(job.files),
        total_bytes=job.total_bytes,
        tokenizer=job.spec.tokenizer,
        engine=job.engines.name,
        workers=job.budget.workers,
        max_memory=job.budget.max_memory,
        output=destination.target.shown,
        resumed_bytes=unfinished.checkpoint.counts.input_bytes if unfinished else 0,
        notes=notes,
    )


def _run(
    job: Job,
    limits: Limits,
    destination: Destination,
    unfinished: Unfinished,
    report: Callable[[Progress], None],
) -> tuple[Manifest, "_Output"]:
    """Do what remains of the job. If it fails, what was written stays for the same command to resume."""
    with contextlib.closing(Journal(destination.folder, unfinished)) as log:
        if unfinished.job != versions(job):
            log.begin(versions(job))
        output = _Output(job, limits, destination, log, unfinished)
        try:
            output.resume()
            machine.give_back_freed_memory()  # samples of the inputs, mostly
            splitter = choose_splitter(job, unfinished.split, log.split, _first_pass_reporter(job, report))
            output.mill(splitter, report)
            return output.finish(report), output
        except BaseException as e:
            output.leave(e)
            raise


class _Output:
    """Takes the milled Blocks in order, and makes what was written of them durable soon."""

    def __init__(
        self, job: Job, limits: Limits, destination: Destination, log: Journal, unfinished: Unfinished
    ) -> None:
        self.at = dataclasses.replace(unfinished.checkpoint)
        """How far the job is; of its files, only a checkpoint knows."""
        self._job, self._destination, self._log = job, destination, log
        self._halt = threading.Event()
        """Set when the job ends: whoever waits for room need not."""
        self._resumed_bytes, self._checked_bytes = self.at.counts.input_bytes, 0
        self._started = time.perf_counter()
        self._torn = False
        folder, format, limit = destination.folder, job.writes.format, limits.max_staging or 0
        self._files = OutputFiles(folder, self.at.files, drop_behind=job.big, uploaded=unfinished.uploaded)
        self._writer = FormatWriter(job.writes, self._files, self.at.extra, finished=self.at.finished)
        self._publisher = destinations.publisher_of(destination, self._files, log, format, limit)
        seconds, input_bytes = limits.checkpoint_seconds, limits.checkpoint_bytes
        durable = self._publisher.durable
        self._checkpoints = Checkpoints(log, self._files, seconds=seconds, input_bytes=input_bytes, durable=durable)
        self._truncation = Truncation(job, self.at.ended, self.at.tokens, self.at.counts.input_bytes)

    def resume(self) -> None:
        """Check what an earlier run wrote, and remove what it began after its last checkpoint."""
        files = self._job.files
        self._files.verify()
        destinations.drop_unknown(self._files.folder, self._job.writes.format, self.at.files)
        input_list.write_list(self._files, input_list.lines_of(files), len(files))
        self._publisher.durable(self.at)

    def mill(self, splitter: Splitter, report: Callable[[Progress], None]) -> None:
        """Mill and write the remaining Blocks."""
        self._started = time.perf_counter()
        try:
            if not self._truncation.full:
                join = Join(self.at.position, has_text=self.at.has_text)
                mill_blocks(self._job, splitter, join, self.place, lambda: self._tell(report), self._halt)
                if self._truncation.full:
                    refuse_changed_in_part(self._job.files, self.at.position.file)
        finally:
            self._commit()

    def place(self, milled: Milled) -> tuple[bool, Callable[[], None]]:
        """Decide where the tokens of a Block belong. Returns whether more is wanted, and what writes them there, which
        nobody has to wait for."""
        milled = self._truncation.take(milled)
        self._publisher.make_room(lambda: self._coming(milled), self._commit, self._halt)
        self._torn = True
        with self._files.placing() as placed:
            self._place(milled)
        self._torn = False
        due = self._checkpoints.due(self.at.counts.input_bytes)
        if not due and not milled.rejects:
            return not self._truncation.full, lambda: _write(placed)
        _write(placed)
        if due:
            self._checkpoints.begin(self.at.counts.input_bytes, self._checkpoint)
        self._refuse_too_many_rejects()
        return not self._truncation.full, lambda: None

    def _place(self, milled: Milled) -> None:
        at = self.at
        for run in milled.runs:
            at.val = at.val if run.val is None else run.val
            self._writer.append("val" if at.val else "train", run.tokens, run.ends, run.places, run.text_bytes)
            at.tokens += len(run.tokens)
            at.ended += len(run.ends)
        if milled.rejects:
            self._files.append(rejects.NAME, memoryview(b"".join(reject.to_json() for reject in milled.rejects)))
        at.index += 1
        at.position, at.has_text = milled.after, bool(milled.has_text)
        at.counts += milled.counts
        self._checked_bytes += milled.checked_bytes

    def finish(self, report: Callable[[Progress], None]) -> Manifest:
        """Everything is written: add what the format writes at the end, then only final names are missing."""
        self._refuse_too_many_rejects(at_end=True)
        if not self.at.tokens:
            refuse_nothing(self._job, self.at.counts)
        if not self.at.finished:
            self._writer.finish()
            storage.reached("files-finished")
            self.at.finished = True
            self._checkpoints.commit(self._checkpoint())
        made = _manifest_of(self._job, self.at.counts, self._writer)
        self._files.seal()
        self._publisher.finish(lambda: self._tell(report, "uploading"))
        return made

    def leave(self, error: BaseException) -> None:
        """Keep what was written for the next run, or, if it is not worth resuming, remove it."""
        self._publisher.close()
        permanent = isinstance(error, ShardmillError) and not isinstance(error, TemporaryError)
        if not isinstance(error, MismatchError) and (self.at.tokens or not permanent):
            self._files.close()
            return
        with contextlib.suppress(ShardmillError):  # the first error is the one to report
            for name in self._files.uploaded():
                self._destination.target.remove(name)
        self._log.remove()  # first: it must not list files that are gone
        self._files.abandon()

    def run_report(self, seconds: float) -> dict[str, Any]:
        """What may differ from run to run."""
        job, milling = self._job, time.perf_counter() - self._started
        here = self.at.counts.input_bytes - self._resumed_bytes
        return {
            "seconds": round(seconds, 3),
            "milling_seconds": round(milling, 3),
            "bytes_per_second": round(here / milling),
            "resumed_bytes": self._resumed_bytes,
            "engine": job.engines.name,
            "reference": job.engines.reference.version,
            "checked_bytes": self._checked_bytes,
            "checked_share": round(self._checked_bytes / max(1, here), 6),
            "inputs_modified_ns": input_list.times(job.files),
            "workers": job.budget.workers,
            "block_bytes": job.rules.block_bytes,
            "max_memory": job.budget.max_memory,
            "peak_memory": machine.peak_rss(),
        }

    def _coming(self, milled: Milled) -> int:
        """About what writing this takes, and finishing the files after everything that was written."""
        ends = sum(len(run.ends) for run in milled.runs)
        tokens = sum(len(run.tokens) for run in milled.runs)
        writes = self._job.writes
        return writes.bytes_of(tokens, ends) + writes.bytes_to_finish(self.at.tokens, self.at.ended)

    def _commit(self) -> None:
        """Make everything durable that has its place; not if an error left a Block half-written."""
        self._checkpoints.settle()
        if not self._torn and not self._files.failed and self.at.index:
            self._checkpoints.commit(self._checkpoint())

    def _checkpoint(self) -> Checkpoint:
        return dataclasses.replace(self.at, files=self._files.states(), extra=self._writer.extra())

    def _refuse_too_many_rejects(self, *, at_end: bool = False) -> None:
        counts = self.at.counts
        rejects.refuse_too_many(counts.rejected, counts.records, self._job.max_rejects, at_end=at_end)

    def _tell(self, report: Callable[[Progress], None], phase: Phase = "milling") -> None:
        report(
            Progress(
                phase=phase,
                total_bytes=self._job.total_bytes,
                input_bytes=self.at.counts.input_bytes,
                tokens=self.at.tokens,
                seconds=time.perf_counter() - self._started,
                resumed_bytes=self._resumed_bytes,
                staged_bytes=self._publisher.staged,
            )
        )


def _write(placed: Placed) -> None:
    placed.write()
    storage.reached("block-written")


def _manifest_of(job: Job, counts: Counts, writer: FormatWriter) -> Manifest:
    limited = job.spec.limit_documents is not None or job.spec.limit_tokens is not None
    if counts.input_bytes != job.total_bytes and job.files.known and not limited:  # I6
        raise ShardmillError(
            f"only {counts.input_bytes:,} of {job.total_bytes:,} input bytes were read; this is a bug in shardmill, please report it"
        )
    table = token_bytes_of(job.tokenizer)
    made = Manifest(
        job=describe(job.spec, job.files, job.tokenizer),
        dtype=job.writes.dtype.name,
        eot_id=job.eot_id,
        eot_side=job.eot_side,
        counts=counts,
        files=writer.shards(),
        sidecars=writer.sidecars(),
        text=_text_of(job, writer, table),
    )
    return made.with_table(table.file() if table is not None else None)


def _text_of(job: Job, writer: FormatWriter, table: TokenBytes | None) -> Text | None:
    """How much text each split holds; None: a cut between two tokens may have divided bytes that nobody counted."""
    rule = table.rule if table is not None else "unknown"
    cut = job.writes.val_tokens > 0 or job.spec.limit_tokens is not None
    return None if cut and rule != "exact" else Text(**writer.text(), rule=rule)


def _first_pass_reporter(job: Job, report: Callable[[Progress], None]) -> Callable[[int], None]:
    """Adds up the bytes that the first pass has read, and reports a few times a second."""
    seen, last, started = 0, time.monotonic(), time.perf_counter()

    def read(size: int) -> None:
        nonlocal seen, last
        seen += size
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last, seconds = time.monotonic(), time.perf_counter() - started
            report(Progress(phase="splitting", total_bytes=job.total_bytes, input_bytes=seen, seconds=seconds))

    return read
