"""Files that are as they will be → the store: put beside the work, noted in the journal, then removed here.

What waits in the folder stays within a limit: whoever writes waits for room. A kill at any moment costs at most
the put that was under way, which is done again.
"""

import threading
from collections import deque
from collections.abc import Callable

from shardmill.errors import OutputError
from shardmill.formats.output_files import OutputFiles
from shardmill.io import storage
from shardmill.io.object_store import ObjectStore
from shardmill.io.retry import Stopped
from shardmill.record.journal import Checkpoint, Journal

# Each puts one file, in parts; one stream alone does not fill a fast line.
PUTS_AT_ONCE = 2
_POLL_SECONDS = 0.1


class Upload:
    """Owns the threads that put. What one of them met is raised by whoever comes next."""

    def __init__(self, store: ObjectStore, files: OutputFiles, journal: Journal, limit: int) -> None:
        self._store, self._files, self._journal, self._limit = store, files, journal, limit
        self._waiting: deque[str] = deque()
        self._taken: set[str] = set()
        self._under_way = 0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._noting = threading.Lock()
        for number in range(PUTS_AT_ONCE):
            threading.Thread(target=self._work, name=f"shardmill-put-{number}", daemon=True).start()

    @property
    def staged(self) -> int:
        return self._files.staged

    def durable(self, reached: Checkpoint) -> None:
        """A checkpoint is on disk: what it knows all of, and will not change, may go."""
        with self._noting:  # none is removed meanwhile
            settled = {name: self._files.size(name) for name in self._files.settled()}
        self._offer(
            [name for name, size in settled.items() if name in reached.files and reached.files[name].bytes == size]
        )

    def make_room(self, coming: int, commit: Callable[[], None], halt: threading.Event) -> None:
        """Wait until so many more bytes may be written."""
        if self.staged + coming <= self._limit:
            return
        self._raise()
        commit()
        with self._news:
            while self.staged + coming > self._limit:
                self._raise()
                if halt.is_set():
                    raise Stopped("stopped")
                if not self._waiting and not self._under_way:
                    raise OutputError(
                        f"{self._store.shown}: what must wait on this disk until it is whole has reached the limit of {self._limit:,} bytes, at {self._files.folder}. "
                        "Run the same command with a larger --max-staging to go on, or begin again with shorter files: a smaller --shard-tokens, or --format shards"
                    )
                self._news.wait(_POLL_SECONDS)

    def finish(self, idle: Callable[[], None]) -> None:
        """All files are sealed: put what is left of them, and wait."""
        self._files.remove_dropped()
        self._offer(self._files.remaining())
        with self._news:
            while self._waiting or self._under_way:
                self._raise()
                self._news.wait(_POLL_SECONDS)
                idle()
            self._raise()
        self.close()

    def close(self) -> None:
        """Nothing more is noted or removed; a put that is under way ends as if the process had been killed."""
        with self._noting:
            self._stop.set()
        with self._news:
            self._news.notify_all()

    def _offer(self, names: list[str]) -> None:
        with self._news:
            new = [name for name in names if name not in self._taken]
            self._taken.update(new)
            self._waiting.extend(new)
            self._news.notify_all()

    def _work(self) -> None:
        while (name := self._next()) is not None:
            try:
                self._put(name)
            except BaseException as e:  # the thread's boundary: whoever writes hears of it
                with self._news:
                    self._error = self._error or e
            finally:
                with self._news:
                    self._under_way -= 1
                    self._news.notify_all()

    def _next(self) -> str | None:
        with self._news:
            while not self._waiting and not self._stop.is_set():
                self._news.wait()
            if self._stop.is_set():
                return None
            self._under_way += 1
            return self._waiting.popleft()

    def _put(self, name: str) -> None:
        storage.reached("file-putting")
        self._store.put(name, self._files.path(name), self._stop)
        storage.reached("file-put")
        with self._noting:  # or the journal might be closed meanwhile
            if self._stop.is_set():
                return
            self._journal.away(name)
            self._files.release(name)
        storage.reached("staged-removed")

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
