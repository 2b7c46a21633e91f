"""The mill itself: text files in, token files out.

    prepare      what is there already; decide everything (job.py); run; give the files their names, the manifest last
    _run         starts the workers, waits for them, and sees that what was written is durable
    _work        a worker: take a Block, mill it (block.py), hand it in
    _Line        between them: Blocks out in order, results written in order, checkpoints on the way (journal.py)

Workers are threads: reading, checking, encoding and writing all release the GIL.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardmill import budget, folder, machine, plan, rejects, storage
from shardmill.block import Milled, inspect, mill_block
from shardmill.documents.text import BEGINNING, Position
from shardmill.errors import MismatchError, ShardmillError
from shardmill.estimates import check_space, separator_hint
from shardmill.formats import registry
from shardmill.formats.files import OutputFiles
from shardmill.formats.writer import FormatWriter, Writer
from shardmill.job import Job, choose_splitter, describe, find, make_job, versions
from shardmill.journal import Checkpoint, Checkpoints, Journal, Left
from shardmill.lock import locked
from shardmill.manifest import Counts, Manifest
from shardmill.plan import Block
from shardmill.spec import Limits, Spec
from shardmill.split import Splitter
from shardmill.tokens.encoder import Encoder

Phase = Literal["loading", "splitting", "milling"]

# An encoder that has seen less than this is not worth renewing: the memory is elsewhere.
_RENEW_AFTER_BYTES = 512 << 10
_PROGRESS_SECONDS = 0.1
_PRESSURE_SECONDS = 1.0
# How long a stopped job waits for what is being encoded; what is not ready by then is encoded again later.
_LEAVE_SECONDS = 2.0


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
    files, tokenizer = find(spec)
    output = Path(spec.output)
    format = registry.check(spec)
    folder.refuse_to_replace_inputs(output, files, format)
    if not overwrite and (complete := folder.completed(output, describe(spec, files, tokenizer), files)) is not None:
        return Result(output=output, manifest=complete, run={}, notes=(), already_complete=True)
    report = on_progress or (lambda _: None)
    report(_progress("loading", sum(file.size for file in files), Done()))
    job = make_job(spec, files, tokenizer, limits)
    with locked(output):
        left = None if overwrite else folder.left_behind(job)
        warning = check_space(job, written=left.bytes if left else 0)
        if left is None:
            folder.make_room(output, format, overwrite=overwrite)
        made, done = _run(job, limits, left, report)
        run = _run_report(job, done, time.perf_counter() - started)
        folder.conclude(output, made, run)
    return Result(
        output=output, manifest=made, run=run, notes=tuple(note for note in (warning, *_notes(job, made)) if note)
    )


def _run(job: Job, limits: Limits, left: Left | None, report: Callable[[Progress], None]) -> tuple[Manifest, Done]:
    """Do what is left of the job. What is written when it fails stays, for the same command to go on with."""
    log = Journal(job.output, left)
    files: OutputFiles | None = None
    line: _Line | None = None
    try:
        if left is None or left.job != versions(job):
            log.begin(versions(job))
        at = left.checkpoint if left and left.checkpoint else Checkpoint()
        files = OutputFiles(job.output, at.files, drop_behind=job.big)
        writer = FormatWriter(job.writes, files, at.extra, finished=at.finished)
        files.verify()
        splitter = choose_splitter(job, left.split if left else None, log.split, _first_pass_reporter(job, report))
        checkpoints = Checkpoints(log, files, seconds=limits.checkpoint_seconds, input_bytes=limits.checkpoint_bytes)
        line = _Line(job, writer, files, checkpoints, at)
        _mill(job, splitter, line, report)
        line.finish()
        made = _manifest_of(job, line.done, writer)
        files.seal()
        files.publish()
    except BaseException as e:
        worth_keeping = line.done.tokens > 0 if line is not None else not isinstance(e, ShardmillError)
        if files is not None and (isinstance(e, MismatchError) or not worth_keeping):
            files.abandon()
            log.remove()
        elif files is not None:
            files.close()
        raise
    finally:
        log.close()
    return made, line.done


def _mill(job: Job, splitter: Splitter, line: "_Line", report: Callable[[Progress], None]) -> None:
    """Start the workers and wait for them, reporting; pass on the first error any of them met."""
    threads = [
        threading.Thread(target=_work, args=(job, splitter, line), name=f"shardmill-worker-{n}", daemon=True)
        for n in range(job.budget.workers)
    ]
    for thread in threads:
        thread.start()
    try:
        line.wait(lambda: report(_progress("milling", job.total_bytes, line.done)))
    finally:
        line.stop()
        until = time.monotonic() + _LEAVE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        line.commit()


def _work(job: Job, splitter: Splitter, line: "_Line") -> None:
    try:
        encoder = Encoder(job.engines)
        while (block := line.take()) is not None:
            if encoder.bytes_since_renewal > _RENEW_AFTER_BYTES and (line.pressed or budget.over(job.budget)):
                encoder.renew()
                machine.give_back_freed_memory()
            result: Milled | ShardmillError
            try:
                result = mill_block(job, splitter, encoder, inspect(job, block))
            except ShardmillError as e:
                result = e
            line.hand_in(block.index, result)  # what fails in the writing is no Block's error: it stops the line
    except BaseException as e:  # the thread's boundary: the job stops, and the caller hears of it
        line.stop(e)
    finally:
        line.leave()


class _Line:
    """Blocks go out in order; results are written in order, by whoever brings the one that is due.

    What is in flight is bounded, and is the least possible while the machine is short of memory. An error
    counts as the result of its Block: the first in the text is the one told.
    """

    def __init__(self, job: Job, writer: Writer, files: OutputFiles, checkpoints: Checkpoints, at: Checkpoint) -> None:
        self.done = Done(
            index=at.index,
            position=at.position,
            val=at.val,
            tokens=at.tokens,
            counts=at.counts,
            resumed_bytes=at.counts.input_bytes,
        )
        self.pressed = False
        self._finished = at.finished
        self._writer, self._files, self._checkpoints = writer, files, checkpoints
        self._blocks = plan.blocks(job.files, job.rules, at.position, at.index, drop_behind=job.big)
        self._reading = threading.Lock()
        self._room = threading.Semaphore(job.budget.in_flight)
        self._handing = threading.Lock()
        self._ready: dict[int, Milled | ShardmillError] = {}
        self._writing = False
        self._at_work = job.budget.workers
        self._over = threading.Event()
        self._stopped = False
        self._error: BaseException | None = None

    def take(self) -> Block | None:
        """The next Block, or None when there will be no more. Waits while too much is in flight."""
        self._room.acquire()
        with self._reading:
            block = None if self._stopped else next(self._blocks, None)
        while block is not None and self.pressed and not self._stopped and block.index != self.done.index:
            time.sleep(_PROGRESS_SECONDS)  # one Block at a time
        return block

    def hand_in(self, index: int, result: Milled | ShardmillError) -> None:
        with self._handing:
            self._ready[index] = result
            if self._writing:
                return
            self._writing = True
        while True:
            with self._handing:
                due = self._ready.pop(self.done.index, None)
                if due is None or self._stopped or isinstance(due, ShardmillError):
                    self._writing = False
                    break
            self._write(due)
            self._room.release()
        if isinstance(due, ShardmillError):
            raise due

    def _write(self, milled: Milled) -> None:
        done = self.done
        for run in milled.runs:
            done.val = done.val if run.val is None else run.val
            self._writer.append("val" if done.val else "train", run.tokens, run.ends, run.places)
            done.tokens += len(run.tokens)
        if milled.rejects:
            self._files.append(rejects.NAME, memoryview(b"".join(reject.to_json() for reject in milled.rejects)))
        done.counts += milled.counts
        done.checked_bytes += milled.checked_bytes
        done.position = milled.after
        done.index += 1
        storage.reached("block-written")
        self._checkpoints.offer(done.counts.input_bytes, self._now)

    def _now(self) -> Checkpoint:
        done = self.done
        return Checkpoint(
            index=done.index,
            position=done.position,
            val=done.val,
            tokens=done.tokens,
            counts=done.counts,
            files=self._files.states(),
            extra=self._writer.extra(),
            finished=self._finished,
        )

    def commit(self) -> None:
        """Make all that was written durable; not when a Block was left half-written, by an error that is on its way."""
        with self._handing:
            torn = self._writing
        if not torn and self.done.index:
            self._checkpoints.commit(self._now())

    def finish(self) -> None:
        """All is written: what the format adds at the end too. From here on only names are missing."""
        if not self._finished:
            self._writer.finish()
            storage.reached("files-finished")
            self._finished = True
            self._checkpoints.commit(self._now())

    def wait(self, idle: Callable[[], object]) -> None:
        """Until all is written; calls idle() a few times a second. Raises what stopped the line."""
        looked = 0.0
        while not self._over.wait(_PROGRESS_SECONDS):
            idle()
            if time.monotonic() - looked > _PRESSURE_SECONDS:
                self.pressed = machine.under_pressure()
                looked = time.monotonic()
        idle()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """A worker's last word."""
        self._room.release()
        with self._handing:
            self._at_work -= 1
            if not self._at_work:
                self._over.set()

    def stop(self, error: BaseException | None = None) -> None:
        with self._handing:
            self._stopped = True
            if error is not None:
                self._error = self._error or error
                self._over.set()
        for _ in range(self._at_work):
            self._room.release()


def _manifest_of(job: Job, done: Done, writer: Writer) -> Manifest:
    if done.counts.input_bytes != job.total_bytes:  # I6
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
    if job.rules.separator is not None and made.counts.documents <= len(job.files):
        notes.append(f"the separator {job.spec.separator!r} does not occur in the text; each file was one document")
    if made.counts.forced_cuts:
        notes.append(
            f"{made.counts.forced_cuts:,} cuts were forced in text without any safe place for {job.spec.max_run_bytes:,} bytes; the tokens there may differ from the reference's"
        )
    if made.counts.replaced_characters:
        notes.append(
            f"{made.counts.replaced_characters:,} replacement characters (U+FFFD) stand for bytes that are not UTF-8"
        )
    if job.val_fraction and not any(file.split == "val" for file in made.files):
        notes.append(
            "there is no validation set: too few different documents or passages for the split that was asked for"
        )
    if job.writes.first_shard_is_val and not any(file.split == "train" for file in made.files):
        notes.append(
            f"there is no train shard: all {made.tokens:,} tokens fit in the first shard, which is the validation set; pass a smaller --shard-tokens, or --split hash"
        )
    return tuple(notes)


def _run_report(job: Job, done: Done, seconds: float) -> dict[str, Any]:
    milling = time.perf_counter() - done.started
    here = job.total_bytes - done.resumed_bytes
    return {
        "seconds": round(seconds, 3),
        "milling_seconds": round(milling, 3),
        "bytes_per_second": round(here / milling),
        "resumed_bytes": done.resumed_bytes,
        "engine": job.engines.name,
        "reference": job.engines.reference.version,
        "checked_bytes": done.checked_bytes,
        "checked_share": round(done.checked_bytes / max(1, here), 6),
        "inputs_modified_ns": [file.modified_ns for file in job.files],
        "workers": job.budget.workers,
        "block_bytes": job.rules.block_bytes,
        "max_memory": job.budget.max_memory,
        "peak_memory": machine.peak_rss(),
    }
