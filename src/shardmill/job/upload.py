"""Finished files → their final names in the folder, or the object store while the job runs.

An upload is recorded in the journal, then the file is removed here. Staged files stay within a limit: whoever writes
waits for room. A kill costs at most the uploads in progress, which are repeated.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable

from shardmill.errors import OutputError
from shardmill.formats.output_files import OutputFiles
from shardmill.io import storage
from shardmill.io.object_store import ObjectStore
from shardmill.io.retry import Stopped
from shardmill.record.journal import Checkpoint, Journal

# Each uploads one file, in parts; a single stream does not saturate a fast connection.
_THREADS = 2
_POLL_SECONDS = 0.02


class Renaming:
    """Files that grow where they will be: at the end they get their final names."""

    staged = 0

    def __init__(self, files: OutputFiles) -> None:
        self._files = files

    def durable(self, reached: Checkpoint) -> None:
        """A checkpoint is on disk."""

    def make_room(self, coming: Callable[[], int], commit: Callable[[], None], halt: threading.Event) -> None:
        """Wait until so many more bytes may be written."""

    def finish(self, _: Callable[[], None]) -> None:
        """All files are sealed."""
        self._files.publish()

    def close(self) -> None:
        """The job has failed."""


class Upload:
    """Files that go to an object store. Owns the threads that upload; the next call raises the error of a failed one."""

    def __init__(self, store: ObjectStore, files: OutputFiles, journal: Journal, limit: int) -> None:
        self._store, self._files, self._journal, self._limit = store, files, journal, limit
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._queued: set[str] = set()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._recording = threading.Lock()
        for number in range(_THREADS):  # daemons: Ctrl-C does not wait for a server
            threading.Thread(target=self._work, name=f"shardmill-upload-{number}", daemon=True).start()

    @property
    def staged(self) -> int:
        return self._files.staged

    def durable(self, reached: Checkpoint) -> None:
        """A checkpoint is on disk: final files that it covers in full may be uploaded."""
        with self._recording:  # none is removed meanwhile
            sizes = {name: self._files.size(name) for name in self._files.settled()}
        self._offer(name for name, size in sizes.items() if name in reached.files and reached.files[name].bytes == size)

    def make_room(self, coming: Callable[[], int], commit: Callable[[], None], halt: threading.Event) -> None:
        """Wait until so many more bytes may be written."""
        more = coming()
        if self.staged + more <= self._limit:
            return
        self._is_busy()
        commit()
        while True:
            busy = self._is_busy()  # before staged: uploads that have ended have made their room
            if self.staged + more <= self._limit:
                return
            if halt.is_set():
                raise Stopped("stopped")
            if not busy:
                raise OutputError(
                    f"{self._store.shown}: incomplete files in the staging folder {self._files.folder} have reached the limit of {self._limit:,} bytes, and none can be uploaded yet. "
                    "Run the same command with a larger --max-staging to resume, or start over with shorter files: a smaller --shard-tokens, or --format shards"
                )
            time.sleep(_POLL_SECONDS)

    def finish(self, idle: Callable[[], None]) -> None:
        """All files are sealed: upload the rest, and wait."""
        self._files.remove_dropped()
        self._offer(self._files.remaining())
        while self._is_busy():
            time.sleep(_POLL_SECONDS)
            idle()
        self.close()

    def close(self) -> None:
        """Nothing more is recorded or removed; an upload in progress ends as if the process had been killed."""
        with self._recording:
            self._stop.set()
        for _ in range(_THREADS):
            self._queue.put(None)

    def _offer(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._queued:
                self._queued.add(name)
                self._queue.put(name)

    def _is_busy(self) -> bool:
        """Whether an upload is waiting or in progress. Raises the error of one that failed."""
        busy = self._queue.unfinished_tasks > 0
        if self._error is not None:
            raise self._error
        return busy

    def _work(self) -> None:
        while (name := self._queue.get()) is not None and not self._stop.is_set():
            try:
                self._upload(name)
            except BaseException as e:  # the thread's boundary: raised by the next call
                self._error = self._error or e
            finally:
                self._queue.task_done()

    def _upload(self, name: str) -> None:
        storage.reached("file-putting")
        self._store.put(name, self._files.path(name), self._stop)
        storage.reached("file-put")
        with self._recording:  # or the journal might be closed meanwhile
            if self._stop.is_set():
                return
            self._journal.uploaded(name)
            self._files.release(name)
        storage.reached("staged-removed")
