"""Blocks → their tokens, encoded in parallel and written in order.

    mill_blocks  starts the workers and waits for them
    _work        a worker: take a Block, encode it (block.py), hand in the result
    _Pipeline    between them: Blocks are taken in order, results are written in order

Workers are threads: reading, checking, encoding and writing all release the GIL.
"""

import threading
import time
from collections.abc import Callable, Iterator

from shardmill.documents.pieces import Position
from shardmill.errors import ShardmillError
from shardmill.job import plan
from shardmill.job.block import Milled, mill_block
from shardmill.job.job import Job
from shardmill.job.plan import Block
from shardmill.job.split import Splitter
from shardmill.system import machine
from shardmill.tokens.encoder import Encoder

_IDLE_SECONDS = 0.1
_PRESSURE_SECONDS = 1.0
# How long a stopped job waits for its workers; what is not done by then is encoded again on resume.
_LEAVE_SECONDS = 2.0


def mill_blocks(
    job: Job,
    splitter: Splitter,
    start: Position,
    index: int,
    write: Callable[[Milled], bool],
    idle: Callable[[], object],
    halt: threading.Event | None = None,
) -> None:
    """Encode the Blocks from start on and pass each to write, in order, one at a time, until it returns False.

    Calls idle a few times a second. Sets halt when nothing more will be written, even if write is still running.

    Raises the first error of any worker. An error in a Block counts as its result, so the first in reading order is
    the one raised.
    """
    halt = halt or threading.Event()
    blocks = plan.blocks(job.files, job.rules, start, index, drop_behind=job.big, stop=halt)
    pipeline = _Pipeline(job, blocks, index, write, halt)
    threads = [
        threading.Thread(target=_work, args=(job, splitter, pipeline), name=f"shardmill-worker-{n}", daemon=True)
        for n in range(job.budget.workers)
    ]
    try:
        for thread in threads:
            thread.start()
        pipeline.wait(idle)
    finally:
        pipeline.stop()
        until = time.monotonic() + _LEAVE_SECONDS
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(max(0.0, until - time.monotonic()))
        pipeline.wait_for_writer()


def _work(job: Job, splitter: Splitter, pipeline: "_Pipeline") -> None:
    try:
        encoder = Encoder(job.engines)
        while (block := pipeline.take()) is not None:
            try:
                result: Milled | ShardmillError = mill_block(job, splitter, encoder, block)
            except ShardmillError as e:
                result = e
            pipeline.hand_in(block.index, result)  # what this raises stops the pipeline, whichever Block it is about
    except BaseException as e:  # the thread's boundary: the job stops, and the caller raises it
        pipeline.stop(e)
    finally:
        pipeline.leave()


class _Pipeline:
    """Blocks are taken in order; results are written in order, by whichever worker brings the one that is due.

    The number of Blocks in flight is bounded, and minimal while the machine is short of memory.
    """

    def __init__(
        self, job: Job, blocks: Iterator[Block], index: int, write: Callable[[Milled], bool], halt: threading.Event
    ) -> None:
        self.pressed = False
        self._blocks = blocks
        self._next = self._due = index
        self._write = write
        self._halt = halt
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
        """The next Block, or None if there are no more. Waits while too many are in flight."""
        self._room.acquire()
        with self._reading:
            try:
                block = None if self._stopped else next(self._blocks, None)
            except ShardmillError as e:
                self.hand_in(self._next, e)
                return None
            self._next += 1
        while block is not None and self.pressed and not self._stopped and block.index != self._due:
            time.sleep(_IDLE_SECONDS)  # one Block at a time
        return block

    def hand_in(self, index: int, result: Milled | ShardmillError) -> None:
        with self._handing:
            self._ready[index] = result
            if self._writing:
                return
            self._writing = True
        while True:
            with self._handing:
                due = self._ready.pop(self._due, None)
                if due is None or self._stopped or isinstance(due, ShardmillError):
                    self._writing = False
                    break
            try:
                more = self._write(due)
            except BaseException:
                self._stopped, self._writing = True, False
                raise
            self._due += 1
            self._room.release()
            if not more:
                self.stop()
        if isinstance(due, ShardmillError) and not self._stopped:  # an error after a limit does not matter
            raise due

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

    def wait_for_writer(self) -> None:
        """Let the worker that is writing finish its Block, since the files will be closed."""
        while self._writing:
            time.sleep(0.001)

    def leave(self) -> None:
        """The last call of a worker."""
        self._room.release()
        with self._handing:
            self._at_work -= 1
            if not self._at_work:
                self._over.set()

    def stop(self, error: BaseException | None = None) -> None:
        with self._handing:
            self._stopped = True
            self._halt.set()  # a worker may be waiting for the network or a pipe
            if error is not None:
                self._error = self._error or error
                self._over.set()
        for _ in range(self._at_work):
            self._room.release()
