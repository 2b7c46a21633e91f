"""The mill itself: text files in, token files out.

    prepare      have everything decided (job.py), run the line, name the files, write the manifest last
    _run         starts the threads and writes what they bring
    _read        one thread: files → Blocks, checked to be UTF-8
    _work        the others: take a Block, mill it, hand it in
    _Line        between them: Blocks out in order, results back in order

What a worker does to a Block is in block.py.

Workers are threads: reading, checking, encoding and writing all release the GIL.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardmill import budget, machine, manifest, plan, storage
from shardmill.block import Milled, inspect, mill_block
from shardmill.errors import OutputError, ShardmillError, UsageError
from shardmill.estimates import check_space, separator_hint
from shardmill.formats import raw
from shardmill.formats.raw import RawWriter
from shardmill.job import Job, choose_splitter, describe, find, make_job
from shardmill.manifest import Counts, Manifest
from shardmill.plan import Block
from shardmill.sources import InputFile
from shardmill.spec import Limits, Spec
from shardmill.split import Splitter
from shardmill.storage import show
from shardmill.tokens.encoder import Encoder

Phase = Literal["loading", "splitting", "milling"]

# An encoder that has seen less than this is not worth renewing: the memory is elsewhere.
_RENEW_AFTER_BYTES = 512 << 10
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

    counts: Counts = field(default_factory=Counts)
    tokens: int = 0
    checked_bytes: int = 0
    started: float = field(default_factory=time.perf_counter)


def prepare(
    spec: Spec,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    overwrite: bool = False,
) -> Result:
    """Mill the inputs of spec into its output folder. Never prints; raises ShardmillError with a message for the user."""
    started = time.perf_counter()
    files, tokenizer = find(spec, limits)
    complete = _check_output(Path(spec.output), describe(spec, files, tokenizer), files, overwrite=overwrite)
    if complete is not None:
        return Result(output=Path(spec.output), manifest=complete, run={}, notes=(), already_complete=True)
    report = on_progress or (lambda _: None)
    report(_progress("loading", sum(file.size or 0 for file in files), Done()))
    job = make_job(spec, files, tokenizer, limits or Limits())
    warning = check_space(job)
    new_folder = _make_room(job, overwrite=overwrite)

    writer = RawWriter(job.output, job.dtype, drop_behind=job.big)
    try:
        done = _run(job, writer, report)
        made = Manifest(
            job=job.describe(),
            dtype=job.dtype.name,
            eot_id=job.eot_id,
            eot_side=job.eot_side,
            counts=done.counts,
            files=tuple(writer.finish()),
        )
        run = _run_report(job, done, time.perf_counter() - started)
        storage.write_whole(job.output / manifest.RUN_NAME, manifest.dump(run))
        manifest.write(job.output, made)
    except BaseException:
        writer.abandon()
        if new_folder:
            storage.remove_if_empty(job.output)
        raise
    return Result(
        output=job.output, manifest=made, run=run, notes=tuple(note for note in (warning, *_notes(job, made)) if note)
    )


def _run(job: Job, writer: RawWriter, report: Callable[[Progress], None]) -> Done:
    """Start the workers and wait for them, reporting; pass on the first error any of them met."""
    splitter = choose_splitter(job, _first_pass_reporter(job, report))
    line = _Line(job, writer)
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
        for thread in threads:
            thread.join()
    return line.done


def _work(job: Job, splitter: Splitter, line: "_Line") -> None:
    try:
        encoder = Encoder(job.engines)
        while (block := line.take()) is not None:
            if encoder.bytes_since_renewal > _RENEW_AFTER_BYTES and budget.over(job.budget):
                encoder.renew()
                machine.give_back_freed_memory()
            try:
                line.hand_in(block.index, mill_block(job, splitter, encoder, inspect(job, block)))
            except ShardmillError as e:
                line.hand_in(block.index, e)
    except BaseException as e:  # the thread's boundary: the job stops, and the caller hears of it
        line.stop(e)
    finally:
        line.leave()


class _Line:
    """Blocks go out in order; results come in as they are ready and are written in order, by whoever brings the next one.

    What is in flight is bounded. An error counts as the result of its Block: the first in the text is the one told.
    """

    def __init__(self, job: Job, writer: RawWriter) -> None:
        self.done = Done()
        self._writer = writer
        self._val = False
        self._halt = threading.Event()
        self._blocks = plan.blocks(job.files, job.rules, drop_behind=job.big, stop=self._halt)
        self._reading = threading.Lock()
        self._room = threading.Semaphore(job.budget.in_flight)
        self._handing = threading.Lock()
        self._ready: dict[int, Milled | ShardmillError] = {}
        self._due = 0
        self._writing = False
        self._at_work = job.budget.workers
        self._over = threading.Event()
        self._stopped = False
        self._error: BaseException | None = None

    def take(self) -> Block | None:
        """The next Block, or None when there will be no more. Waits while too much is in flight."""
        self._room.acquire()
        with self._reading:
            return None if self._stopped else next(self._blocks, None)

    def hand_in(self, index: int, result: Milled | ShardmillError) -> None:
        with self._handing:
            self._ready[index] = result
            if self._writing:
                return
            self._writing = True
        while True:
            with self._handing:
                due = self._ready.pop(self._due, None)
                if due is None or self._stopped:
                    self._writing = False
                    return
                self._due += 1
            if isinstance(due, ShardmillError):
                raise due
            self._write(due)
            self._room.release()

    def _write(self, milled: Milled) -> None:
        for side, tokens in milled.runs:
            self._val = self._val if side is None else side
            self._writer.append("val" if self._val else "train", tokens)
            self.done.tokens += len(tokens)
        self.done.counts += milled.counts
        self.done.checked_bytes += milled.checked_bytes

    def wait(self, idle: Callable[[], object]) -> None:
        """Until all is written; calls idle() a few times a second. Raises what stopped the line."""
        while not self._over.wait(_PROGRESS_SECONDS):
            idle()
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
        self._stopped = True
        self._halt.set()  # a worker may be waiting for the network or a pipe
        with self._handing:
            self._error = self._error or error
            self._over.set() if error is not None else None
        for _ in range(self._at_work):
            self._room.release()


def _progress(phase: Phase, total_bytes: int, done: Done) -> Progress:
    return Progress(
        phase=phase,
        input_bytes=done.counts.input_bytes,
        total_bytes=total_bytes,
        tokens=done.tokens,
        memory=machine.rss(),
        seconds=time.perf_counter() - done.started,
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


def _check_output(
    output: Path, asked: dict[str, Any], files: tuple[InputFile, ...], *, overwrite: bool
) -> Manifest | None:
    """The manifest if this very job is complete already; an error if something in the folder is in the way."""
    names = [output / name for name in raw.FILES.values()]
    for file in files:
        if file.local and any(path.exists() and path.samefile(file.path) for path in (*names, output / manifest.NAME)):
            raise UsageError(
                f"{show(file.path)}: is an input and would be overwritten; choose another output folder with -o"
            )
    if overwrite:
        return None
    old = manifest.read(output) if output.is_dir() else None
    if old is not None:
        changed = manifest.differences(old.job, asked)
        changed += [
            f"inputs: {show(file.path)} is a pipe, and may hold something else now" for file in files if file.once
        ]
        if not changed:
            return old
        raise OutputError(
            f"{show(output)} holds the result of another job:\n  "
            + "\n  ".join(changed)
            + "\nPass --overwrite to replace it, or choose another folder with -o."
        )
    for path in names:
        if path.exists():
            raise OutputError(
                f"{show(path)}: exists, and shardmill did not make it; pass --overwrite to replace it, or choose another folder with -o"
            )
    return None


def _make_room(job: Job, *, overwrite: bool) -> bool:
    """Make the folder, see that it takes files, and remove what is to be replaced: the manifest first (I3).

    Returns whether the folder is new.
    """
    new = not job.output.exists()
    storage.make_folder(job.output)
    storage.check_writable(job.output)
    if overwrite:
        for name in (manifest.NAME, manifest.RUN_NAME, *raw.FILES.values()):
            storage.remove(job.output / name)
    return new


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
    if job.spec.val_fraction and not any(file.split == "val" for file in made.files):
        notes.append("there is no val.bin: too few different documents or passages for the split that was asked for")
    return tuple(notes)


def _run_report(job: Job, done: Done, seconds: float) -> dict[str, Any]:
    milling = time.perf_counter() - done.started
    return {
        "seconds": round(seconds, 3),
        "milling_seconds": round(milling, 3),
        "bytes_per_second": round(done.counts.input_bytes / milling),
        "engine": job.engines.name,
        "reference": job.engines.reference.version,
        "checked_bytes": done.checked_bytes,
        "checked_share": round(done.checked_bytes / max(1, done.counts.input_bytes), 6),
        "workers": job.budget.workers,
        "block_bytes": job.rules.block_bytes,
        "max_memory": job.budget.max_memory,
        "peak_memory": machine.peak_rss(),
    }
