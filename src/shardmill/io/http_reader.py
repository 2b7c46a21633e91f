"""One remote file → a Reader of its bytes by position: read ahead, retried, and one version throughout.

RemoteReader   what the rest of the program sees
_Download      a thread that fetches from one byte on, a few MiB ahead of the reader
"""

import contextlib
import threading
import time
from typing import Any

from shardmill.errors import InputError, TemporaryError
from shardmill.io import http
from shardmill.io.http import RemoteFile
from shardmill.io.retry import Retry, Stopped, TransientError
from shardmill.io.spool import Spool
from shardmill.system.names import show

# One request for all of a sequential read, not one for each block: the hub counts requests, and a round trip of
# 50 ms for every 512 KiB would allow 10 MB/s.
READ_AHEAD = 8 << 20
# Text is read again from the last cut on, which is at most one block back.
LOOK_BACK = 1 << 20
_CHUNK = 256 << 10
_FIRST_AHEAD = 512 << 10  # reading a head and then the tail should not cost 8 MiB
_NEAR = 1 << 20  # skipping this much is cheaper than another request
_SMALL = 1 << 20  # a file of this size is fetched whole, wherever the first read is
_MOST_SKIPPED = 16 << 20  # to reach a byte on a server that always sends the whole file
_MIN_PROGRESS = 64 << 10  # less than this in http.SILENT_SECONDS counts as a stalled connection
_POLL_SECONDS = 0.2


class RemoteReader(contextlib.AbstractContextManager["RemoteReader"]):
    """A remote file read by position: sequential reads share one long request, other reads take one request each."""

    def __init__(self, file: RemoteFile, stop: threading.Event | None = None, session: Any = None) -> None:
        self.path = file.path
        self.size: int | None = file.size
        self._file = file
        self._stop = stop or threading.Event()
        self._session, self._own_session = session or http.new_session(), session is None
        self._reading = threading.Lock()
        self._download: _Download | None = None
        self._last = (0, 0)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end."""
        size = self._file.size
        length = min(length, size - offset)
        if length <= 0:
            return b""
        with self._reading:
            if self._download is None or not self._download.holds(offset, length):
                sequential = self._last[0] <= offset <= self._last[1]  # also the very first read, from byte 0
                span = (0, size) if size <= _SMALL else (offset, size if sequential else offset + length)
                self._close_download()
                self._download = _Download(self._file, self._session, span, self._stop)
            self._last = (offset, offset + length)
            return self._download.read(offset, length)

    def near(self, offset: int) -> bool:
        """Whether a read there would continue the last one."""
        with self._reading:
            held = self._download is not None and self._download.holds(offset, 0)
            return held or self._last[0] <= offset <= self._last[1]

    def done_until(self, offset: int) -> None:
        """Nothing to do: what was read is dropped as reading goes on."""

    def close(self) -> None:
        self._close_download()
        if self._own_session:
            self._session.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_download(self) -> None:
        if self._download is not None:
            self._download.close()
            self._download = None


class _Download:
    """The bytes [start, end) of a remote file, fetched by a thread at most READ_AHEAD ahead of its reader."""

    def __init__(self, file: RemoteFile, session: Any, span: tuple[int, int], stop: threading.Event) -> None:
        self._file, self._session, self._stop = file, session, stop
        self._start, self._end = span
        self._buffer = Spool(file.path, None, self._start, in_memory=file.size)
        self._wanted = self._start
        """How far the reader is."""
        self._ahead = _FIRST_AHEAD
        self._received, self._waited = 0, 0.0
        """Bytes since progress was last worth mentioning, and seconds of waiting for them."""
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._fetch, name="shardmill-ahead", daemon=True).start()

    def holds(self, offset: int, length: int) -> bool:
        """Whether these bytes are here, or soon will be."""
        with self._changed:
            return self._buffer.start <= offset <= self._buffer.end + _NEAR and offset + length <= self._end

    def read(self, offset: int, length: int) -> bytes:
        parts, at, end = [], offset, offset + length
        with self._changed:
            self._ahead = min(READ_AHEAD, max(2 * self._ahead, 2 * length))
            while at < end:
                self._wanted = at
                self._changed.notify_all()
                self._wait_for(at)
                parts.append(self._buffer.read(at, end))
                at += len(parts[-1])
                self._buffer.drop(at - LOOK_BACK)
            self._wanted = at
            self._changed.notify_all()
        return b"".join(parts)

    def close(self) -> None:
        """The thread notices, at the latest when the server has been silent too long."""
        with self._changed:
            self._closed = True
            self._buffer.drop(self._buffer.end)
            self._changed.notify_all()

    def _wait_for(self, at: int) -> None:
        """Wait until the byte there has arrived; raises what ended the thread."""
        since = time.monotonic()
        while self._buffer.end <= at:
            if self._error is not None:
                raise self._error
            self._changed.wait(_POLL_SECONDS)
            if self._stop.is_set():
                raise Stopped("stopped")
            waited = time.monotonic() - since
            # The thread gives up long before, unless the server keeps it busy without sending a byte of the file.
            if waited > self._file.network_seconds + http.HEADER_SECONDS:
                raise TemporaryError(
                    f"{show(self._file.path)}: no data for {waited:.0f} s at byte {at:,} of {self._file.size:,}; run the same command again to resume"
                )

    def _fetch(self) -> None:
        """The thread: connect and read; after each failure continue at the byte where it stopped."""
        retry = Retry(self._file.path, self._file.network_seconds, self._stop)
        try:
            while self._buffer.end < self._end and not self._over:
                try:
                    self._fetch_once(retry)
                except TransientError as e:
                    retry.pause(e, f" at byte {self._buffer.end:,} of {self._file.size:,}")
        except BaseException as e:  # the thread's boundary: the reader raises it
            with self._changed:
                self._error = e
                self._changed.notify_all()

    def _fetch_once(self, retry: Retry) -> None:
        to_the_end = self._end == self._file.size
        response, skip = http.connect(self._session, self._file, self._buffer.end, None if to_the_end else self._end)
        self._waited = 0.0
        with contextlib.closing(response):
            if skip > _MOST_SKIPPED and self._buffer.end == self._start:
                raise InputError(
                    f"{show(self._file.path)}: the server sends only whole files (it ignores Range), and this one is not read from the start; "
                    "download the file, then use the copy"
                )
            while (missing := self._end - self._buffer.end) and not self._over:
                chunk = self._receive(response, min(_CHUNK, skip or missing), retry)
                if skip:
                    skip -= len(chunk)
                else:
                    self._append(chunk)
                if self._waited > http.SILENT_SECONDS:
                    raise TransientError(f"only {self._received:,} bytes in {self._waited:.0f} s")

    def _receive(self, response: Any, length: int, retry: Retry) -> bytes:
        """The next bytes. Only real progress resets the clock of the retries."""
        began = time.monotonic()
        chunk = http.read_body(response, length)
        self._waited += time.monotonic() - began
        self._received += len(chunk)
        if self._received >= _MIN_PROGRESS:
            retry.succeeded()
            self._received, self._waited = 0, 0.0
        return chunk

    def _append(self, chunk: bytes) -> None:
        with self._changed:
            self._buffer.append(chunk)
            self._changed.notify_all()
            while self._buffer.end - self._wanted >= self._ahead and not self._over:
                self._changed.wait(_POLL_SECONDS)

    @property
    def _over(self) -> bool:
        return self._closed or self._stop.is_set()
