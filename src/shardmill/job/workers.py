"""Stretches of the inputs → their tokens, milled in parallel and written in order.

    mill_blocks  starts the workers and waits for them
    _work        a worker: take a Block, encode it (block.py), hand in the result
    _Pipeline    between them: which Block is next, and whose turn it is to get its place in the output

A worker takes the next Block of the earliest stretch that nobody else is reading at that moment, and opens another
stretch only if there is none. So workers stay close together in the text, whether reading is slow or fast, and little
has to wait for its turn (ahead.py). Workers are threads: reading, encoding and writing release the GIL.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Generator

from shardmill.documents.pieces import Position
from shardmill.documents.ranges import Recipe
from shardmill.documents.rules import TextRules
from shardmill.errors import ShardmillError, TemporaryError
from shardmill.job import plan
from shardmill.job.ahead import Ahead, Stored
from shardmill.job.block import Milled, mill_block
from shardmill.job.job import Job
from shardmill.job.join import Join
from shardmill.job.plan import Block, Stretch
from shardmill.job.ranges import RangeMiller, range_bytes, recipe_of
from shardmill.job.split import Splitter
from shardmill.system import buffers, machine
from shardmill.tokens.encoder import Encoder
from shardmill.tokens.layout import Turn

_IDLE_SECONDS = 0.1
_PRESSURE_SECONDS = 1.0
# How long reading a Block takes at most where waiting for it is better than reading ahead.
_PATIENT_SECONDS = 0.02
# A stretch that has been due for less than this is likely to be written soon: results wait for room in memory. After it,
# they go to disk, so that the others need not wait for a whole .zst.
_SOON_SECONDS = 0.3
# How long a stopped job waits for its workers; what is not done by then is encoded again on resume.
_LEAVE_SECONDS = 2.0

Place = Callable[[Milled], tuple[bool, Callable[[], None]]]
"""Decides where the tokens of a Block belong. Returns whether more is wanted, and what writes them there."""


def mill_blocks(
    job: Job,
    splitter: Splitter,
    join: Join,
    place: Place,
    idle: Callable[[], object],
    halt: threading.Event | None = None,
) -> None:
    """Encode the Blocks from where join is, and pass each to place, in order, one at a time, until it wants no more; what
    is placed is written by several workers at once.

    Calls idle a few times a second. Sets halt when nothing more will be placed, even if something is still being written.

    Raises the first error of any worker. An error in a Block counts as its result, so the first in reading order is
    the one raised.
    """
    turn = Turn(job.budget.encoders) if job.budget.encoders < job.budget.takers else None
    recipe = recipe_of(job, splitter, turn)
    rules = job.rules if recipe is None else dataclasses.replace(job.rules, range_bytes=range_bytes(job))
    pipeline = _Pipeline(job, rules, join, place, halt or threading.Event())
    given = job, splitter, Encoder(job.engines, turn), recipe, pipeline
    threads = [
        threading.Thread(target=_work, args=given, name=f"shardmill-worker-{n}", daemon=True)
        for n in range(job.budget.takers)
    ]
    try:
        for number, thread in enumerate(threads):
            _start(thread, number, len(threads))
        pipeline.wait(idle)
    finally:
        pipeline.stop()
        until = time.monotonic() + _LEAVE_SECONDS
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(max(0.0, until - time.monotonic()))
        pipeline.close()


def _start(thread: threading.Thread, before: int, threads: int) -> None:
    try:
        thread.start()
    except RuntimeError as e:
        raise TemporaryError(
            f"only {before} of {threads} threads can be started ({e}): there is a limit to the processes of this user (ulimit -u), of the container (pids), or to memory (ulimit -v); raise it, or pass fewer --workers, then run the same command again to resume"
        ) from e


def _work(job: Job, splitter: Splitter, encoder: Encoder, recipe: Recipe | None, pipeline: "_Pipeline") -> None:
    miller = None if recipe is None else RangeMiller(job, splitter, encoder, recipe)
    try:
        with buffers.used_again():
            while (taken := pipeline.take()) is not None:
                try:
                    result: Milled | ShardmillError
                    if miller is None:
                        result = mill_block(job, splitter, encoder, taken.block)
                    else:
                        result = miller.mill(taken.block)
                except ShardmillError as e:
                    result = e
                pipeline.hand_in(taken, result)  # what this raises stops the pipeline, whichever Block it is about
                del taken, result
    except BaseException as e:  # the thread's boundary: the job stops, and the caller raises it
        pipeline.stop(e)
    finally:
        pipeline.leave()


class _Open:
    """A stretch that is being read, a Block at a time, by whichever worker holds the lock."""

    def __init__(self, number: int, blocks: Generator[Block, None, None]) -> None:
        self.number, self.blocks = number, blocks
        self.lock = threading.Lock()
        self.since = 0.0
        """When the lock was taken."""
        self.taken = 0
        self.ended = False
        """All of it is read: it has as many Blocks as were taken."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    """A Block, and its place: which stretch, and which Block of that."""

    stretch: int
    index: int
    block: Block


class _Pipeline:
    """Blocks are taken from a few stretches at a time; results get their places in order, by whichever worker brings the
    one that is due."""

    def __init__(
        self,
        job: Job,
        rules: TextRules,
        join: Join,
        place: Place,
        halt: threading.Event,
    ) -> None:
        self.pressed = False
        self._job, self._rules, self._join, self._place, self._halt = job, rules, join, place, halt
        self._stretches = plan.stretches(job.files, rules, join.after, alone=job.budget.encoders == 1)
        self._planned = self._planning = False
        """All stretches were opened; one is being planned."""
        self._open: list[_Open] = []
        self._busy = 0
        """How many workers have a Block."""
        self._sizes: dict[int, int] = {}
        """Of stretches that are read but not written, how many Blocks each has."""
        self._due, self._due_since = (0, 0), time.monotonic()
        """The place of the Block that is to be written next, and since when its stretch is due."""
        self._ready: dict[tuple[int, int], tuple[Position | None, Stored | ShardmillError]] = {}
        """By place: where the Block said that it begins, if it could not know, and its result."""
        self._ahead = Ahead(job.rules.spool, job.budget.ahead, job.budget.on_disk)
        self._lock = threading.RLock()
        self._change, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        """There is something to read; there is room in memory for what waits for its turn."""
        self._waits_for_due = False
        """A worker waits for the stretch that is due."""
        self._placing, self._writing = False, 0
        """Whether a worker has the turn; how many write what has its place."""
        self._at_work = job.budget.takers
        self._over = threading.Event()
        self._stopped = False
        self._error: BaseException | None = None

    def take(self) -> _Taken | None:
        """The next Block, or None if there are no more. Waits while too many wait for their turn."""
        while (stretch := self._next_stretch()) is not None:
            block = None
            try:
                block = next(stretch.blocks, None)
                taken = stretch.taken
                stretch.taken += block is not None
                stretch.ended = block is None
            except ShardmillError as e:
                stretch.ended, taken = True, stretch.taken
                with self._lock:
                    self._ready[stretch.number, taken] = None, e
                stretch.taken += 1
            finally:
                stretch.lock.release()
                with self._lock:
                    self._busy -= block is None
                    self._change.notify()
            if block is None:
                self._is_read(stretch)
                continue
            return _Taken(stretch.number, taken, block)
        return None

    def _next_stretch(self) -> _Open | None:
        """A stretch to read from, with its lock held; None: all are read, or the job is over."""
        with self._lock:
            while not self._stopped:
                self._wait_for_due()
                if not (self.pressed and self._busy):
                    if (stretch := self._free_stretch() or self._new_stretch()) is not None:
                        self._busy += 1
                        return stretch
                    if not self._open and self._planned:
                        return None
                self._change.wait(_IDLE_SECONDS)
        return None

    def _wait_for_due(self) -> None:
        """Wait a moment for the stretch that is due, rather than read ahead of it, if much waits for its turn already.
        Where more workers want it than its reader can serve, or where that is slow, they read ahead."""
        first = self._open[0] if self._open else None
        if first is None or first.number != self._due[0] or not self._ahead.half_full or self._waits_for_due:
            return
        self._waits_for_due = True
        while first.lock.locked() and not self._stopped and time.monotonic() - first.since < _PATIENT_SECONDS:
            self._change.wait(_PATIENT_SECONDS)
        self._waits_for_due = False

    def _free_stretch(self) -> _Open | None:
        """The earliest that nobody is reading; while too much waits for its turn, only the one that is due."""
        for stretch in self._open:
            if (stretch.number == self._due[0] or not self._ahead.full) and stretch.lock.acquire(blocking=False):
                if not stretch.ended:
                    stretch.since = time.monotonic()
                    return stretch
                stretch.lock.release()
        return None

    def _new_stretch(self) -> _Open | None:
        if (
            self._planning
            or self._planned
            or len(self._open) == self._job.budget.readers
            or (self._open and (self.pressed or self._ahead.full))
        ):
            return None
        self._planning = True
        self._change.release()  # planning may read a little of a file
        try:
            coming = next(self._stretches, None)
        finally:
            self._change.acquire()
            self._planning = False
            self._change.notify()
        self._planned = coming is None
        return None if coming is None else self._opened(coming)

    def _opened(self, coming: Stretch) -> _Open:
        job = self._job
        blocks = plan.blocks(job.files, self._rules, coming, drop_behind=job.big, stop=self._halt)
        stretch = _Open(coming.number, blocks)
        stretch.lock.acquire()
        stretch.since = time.monotonic()
        self._open.append(stretch)
        return stretch

    def _is_read(self, stretch: _Open) -> None:
        with self._lock:
            if stretch in self._open:
                self._open.remove(stretch)
                self._sizes[stretch.number] = stretch.taken
                self._change.notify_all()
        self._write_what_is_due()

    def hand_in(self, taken: _Taken, result: Milled | ShardmillError) -> None:
        stored: Stored | ShardmillError = result
        if isinstance(result, Milled):
            if not self._ahead.has_room(result):
                self._wait_for_room(taken.stretch, result)
            stored = self._ahead.put(taken.stretch, result)
        with self._lock:
            self._ready[taken.stretch, taken.index] = taken.block.before, stored
            self._busy -= 1
        self._write_what_is_due()

    def _wait_for_room(self, stretch: int, milled: Milled) -> None:
        """Before a result goes to disk, wait for room in memory: where writing is what takes longest, disk would only add
        to it, and what is due is mostly only a moment behind."""
        with self._lock:
            while (
                (self._is_behind or time.monotonic() - self._due_since < _SOON_SECONDS)
                and stretch != self._due[0]
                and not self._stopped
                and not self._ahead.has_room(milled)
            ):
                self._room.wait(_IDLE_SECONDS)

    @property
    def _is_behind(self) -> bool:
        """Whether a result waits although it could get its place next."""
        return (self._due[0], self._due[1] + self._placing) in self._ready

    def _write_what_is_due(self) -> None:
        due = self._next_due()
        while due is not None:
            try:
                more, write = self._place_one(*due)
            except BaseException:
                self._stopped, self._placing = True, False
                raise
            with self._lock:
                self._due = self._due[0], self._due[1] + 1
                self._writing += 1
                if not more:
                    self.stop()
                self._placing = False
            try:
                write()
            except BaseException:
                with self._lock:
                    self._writing -= 1
                raise
            del due, write  # which hold the tokens
            due = self._next_due(written=1)

    def _next_due(self, written: int = 0) -> tuple[Position | None, Stored | ShardmillError] | None:
        """The result whose turn it is, and with it the turn; None: it is not there, or another worker has the turn.
        written: how many were written just now."""
        with self._lock:
            self._writing -= written
            if self._placing or self._stopped:
                return None
            self._skip_written()
            due = self._ready.pop(self._due, None)
            if due is not None:
                self._placing = True
                # Not all: each wakes the next when it has taken a Block, and too many would keep the GIL from this one.
                self._room.notify()
                self._change.notify()
            return due

    def _place_one(self, before: Position | None, result: Stored | ShardmillError) -> tuple[bool, Callable[[], None]]:
        milled = self._join.take(before, result if isinstance(result, ShardmillError) else self._ahead.take(result))
        return (True, _nothing) if milled is None else self._place(milled)

    def wait(self, idle: Callable[[], object]) -> None:
        """Wait until everything is written; raises what stopped the pipeline before that."""
        checked = 0.0
        while not self._over.wait(_IDLE_SECONDS):
            idle()
            if time.monotonic() - checked > _PRESSURE_SECONDS:
                self.pressed = machine.under_pressure()
                checked = time.monotonic()
        idle()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let the workers that are writing finish their Blocks, since the files will be closed. Inputs are closed too."""
        while self._placing or self._writing:
            time.sleep(0.001)
        for stretch in self._open:
            if stretch.lock.acquire(blocking=False):  # otherwise a worker that did not leave is reading
                stretch.blocks.close()
        self._ahead.close()

    def leave(self) -> None:
        """The last call of a worker."""
        with self._lock:
            self._at_work -= 1
            if not self._at_work:
                self._over.set()

    def stop(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._stopped = True
            self._halt.set()  # a worker may be waiting for the network or a pipe
            if error is not None:
                self._error = self._error or error
                self._over.set()
            self._change.notify_all()
            self._room.notify_all()

    def _skip_written(self) -> None:
        """If all of the stretch that is due is written, the next one is due."""
        while self._sizes.get(self._due[0]) == self._due[1]:
            del self._sizes[self._due[0]]
            self._ahead.done(self._due[0])
            self._due, self._due_since = (self._due[0] + 1, 0), time.monotonic()


def _nothing() -> None:
    pass
