"""The only door to what is read: an input → a Reader of it. Local files used last stay open, for all who read them."""

import contextlib
import threading

from shardmill.io.http_reader import RemoteReader
from shardmill.io.reading import InputFile, InputReader, OpenFile, PipeReader, open_file
from shardmill.system import machine

# More than workers have stretches in, and few among the 256 descriptors that macOS gives a process; if it has fewer, a
# quarter of them.
_MOST_OPEN = 64
_SHARE = 4


class OpenFiles(contextlib.AbstractContextManager["OpenFiles"]):
    """A file is opened again once others have taken its place here, or if it is not the one it was: a reader gets what it
    would get from opening the path."""

    def __init__(self) -> None:
        self._files: dict[str, OpenFile] = {}
        """By path; the one used last is the last."""
        self._most = machine.descriptors() // _SHARE
        self._lock = threading.Lock()

    def reader(
        self,
        file: InputFile,
        *,
        drop_behind: bool = False,
        stop: threading.Event | None = None,
        spool: str | None = None,
    ) -> InputReader | PipeReader | RemoteReader:
        """A read that waits for bytes raises Stopped once stop is set. spool is a folder for the replay buffer of a pipe,
        should it outgrow memory."""
        if file.once:
            return PipeReader(file.path, stop, spool)
        if file.remote is not None:
            return RemoteReader(file.remote, stop)
        return InputReader(file.path, drop_behind=drop_behind, file=self._find(file.path))

    def _find(self, path: str) -> OpenFile:
        with self._lock:
            found = self._files.get(path)
        if found is None or not found.is_still(path):
            found = open_file(path)  # without the lock: a network disk may take a while
        with self._lock:
            self._files.pop(path, None)
            self._files[path] = found
            while len(self._files) > min(_MOST_OPEN, self._most):
                del self._files[next(iter(self._files))]
        return found

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._files.clear()
