"""One object on the network → its bytes by position: read ahead, tried again, and the same object throughout.

RemoteReader   what the rest of the program sees
_Stretch       a thread that reads from one byte on, a few MiB ahead of its reader
"""

import contextlib
import io
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any

from shardmill.errors import InputError, TemporaryError
from shardmill.io import http
from shardmill.io.http import Remote
from shardmill.io.retry import Retry, Stopped, Trouble
from shardmill.system.names import show

# One request for each stretch of a file that is read in order, not one for each block: the hub counts requests,
# and a round trip of 50 ms for every 512 KiB would allow 10 MB/s.
READ_AHEAD = 8 << 20
# Text is looked at again from the last cut on, which is at most one block back.
LOOK_BACK = 1 << 20
_CHUNK = 256 << 10
_FIRST_AHEAD = 512 << 10  # who reads a head, and then the tail, should not pay for 8 MiB
_NEAR = 1 << 20  # skipping this much is cheaper than another request
_SMALL = 1 << 20  # a file of this size is fetched at once, wherever the first read is
_MOST_SKIPPED = 16 << 20  # to reach a byte on a server that always sends the whole file
_WORTHWHILE = 64 << 10  # a server that sends less than this in http.SILENT_SECONDS might as well be silent
_POLL_SECONDS = 0.2


class RemoteReader:
    """An object read by position. In order it comes from one long request; elsewhere, one request for each read."""

    def __init__(self, remote: Remote, stop: threading.Event | None = None, session: Any = None) -> None:
        self.path = remote.path
        self.size: int | None = remote.size
        self._remote = remote
        self._length = remote.size
        self._stop = stop or threading.Event()
        self._session, self._own_session = session or http.new_session(), session is None
        self._reading = threading.Lock()
        self._stretch: _Stretch | None = None
        self._last = (0, 0)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes [offset, offset + length), fewer only at the end."""
        length = min(length, self._length - offset)
        if length <= 0:
            return b""
        with self._reading:
            if self._stretch is None or not self._stretch.holds(offset, length):
                in_order = self._last[0] <= offset <= self._last[1]  # also the very first read, from byte 0
                start, end = (offset, self._length) if in_order else (offset, offset + length)
                if self._length <= _SMALL:
                    start, end = 0, self._length
                self._close_stretch()
                self._stretch = _Stretch(self._remote, self._session, (start, end), self._stop)
            self._last = (offset, offset + length)
            return self._stretch.read(offset, length)

    def near(self, offset: int) -> bool:
        """Whether a read there goes on with what was read before."""
        with self._reading:
            held = self._stretch is not None and self._stretch.holds(offset, 0)
            return held or self._last[0] <= offset <= self._last[1]

    def done_until(self, offset: int) -> None:
        """Nothing to do: what is behind is dropped as reading goes on."""

    def close(self) -> None:
        self._close_stretch()
        if self._own_session:
            self._session.close()

    def __enter__(self) -> "RemoteReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _close_stretch(self) -> None:
        if self._stretch is not None:
            self._stretch.close()
            self._stretch = None


class _Stretch:
    """The bytes [start, end) of an object, fetched by a thread beside the reader, at most READ_AHEAD ahead of it."""

    def __init__(self, remote: Remote, session: Any, span: tuple[int, int], stop: threading.Event) -> None:
        self._remote, self._session, self._stop = remote, session, stop
        self._first, self._end = span
        self._chunks: deque[bytes] = deque()
        self._kept = self._arrived = self._wanted = self._first
        """Where the kept bytes begin and end, and how far the reader is."""
        self._ahead = _FIRST_AHEAD
        self._got, self._slow = 0, 0.0
        """Bytes that came since there were last enough of them, and the seconds of waiting for them."""
        self._error: BaseException | None = None
        self._closed = False
        self._news = threading.Condition()
        threading.Thread(target=self._fetch, name="shardmill-ahead", daemon=True).start()

    def holds(self, offset: int, length: int) -> bool:
        """Whether these bytes are here, or will soon be."""
        with self._news:
            return self._kept <= offset <= self._arrived + _NEAR and offset + length <= self._end

    def read(self, offset: int, length: int) -> bytes:
        taken = io.BytesIO()
        at, end = offset, offset + length
        with self._news:
            self._ahead = min(READ_AHEAD, max(2 * self._ahead, 2 * length))
            while at < end:
                self._wanted = at
                self._news.notify_all()
                since = time.monotonic()
                while self._arrived <= at and self._error is None:
                    self._news.wait(_POLL_SECONDS)
                    if self._stop.is_set():
                        raise Stopped("stopped")
                    self._give_up(time.monotonic() - since)
                if self._arrived <= at and self._error is not None:
                    raise self._error
                at = self._take(taken, at, end)
            self._wanted = at
            self._forget(at - LOOK_BACK)
            self._news.notify_all()
        return taken.getvalue()

    def _give_up(self, waited: float) -> None:
        """The thread gives up long before, unless the server keeps it busy without sending a byte of the file."""
        if waited > self._remote.patience + http.ANSWER_SECONDS:
            raise TemporaryError(
                f"{show(self._remote.path)}: nothing came for {waited:.0f} s at byte {self._arrived:,} of {self._remote.size:,}; run the same command again to go on"
            )

    def close(self) -> None:
        """The thread notices, at the latest when the server has been silent too long."""
        with self._news:
            self._closed = True
            self._chunks.clear()
            self._news.notify_all()

    def _take(self, taken: io.BytesIO, at: int, end: int) -> int:
        """Copy what has arrived from `at` on, up to end; returns how far that is."""
        begin = self._kept
        for chunk in self._chunks:
            if begin + len(chunk) > at:
                part = memoryview(chunk)[at - begin : end - begin]
                taken.write(part)
                at += len(part)
                if at == end:
                    break
            begin += len(chunk)
        self._forget(at - LOOK_BACK)
        return at

    def _forget(self, until: int) -> None:
        while self._chunks and self._kept + len(self._chunks[0]) <= until:
            self._kept += len(self._chunks.popleft())

    def _fetch(self) -> None:
        """The thread: connect, read, and after every trouble go on at the byte where it stopped."""
        patience = Retry(self._remote.path, self._remote.patience, self._stop)
        try:
            while self._arrived < self._end and not self._over:
                try:
                    self._fetch_once(patience)
                except Trouble as e:
                    patience.pause(e, f" at byte {self._arrived:,} of {self._remote.size:,}")
        except BaseException as e:  # the thread's boundary: the reader hears of it
            with self._news:
                self._error = e
                self._news.notify_all()

    def _fetch_once(self, patience: Retry) -> None:
        whole = self._end == self._remote.size
        answer, skip = http.connect(self._session, self._remote, self._arrived, None if whole else self._end)
        self._slow = 0.0
        with contextlib.closing(answer):
            if skip > _MOST_SKIPPED and self._arrived == self._first:
                raise InputError(
                    f"{show(self._remote.path)}: this server sends only whole files (it ignores Range), and the file is not read from its beginning; "
                    "download it first, then mill the copy"
                )
            while self._arrived < self._end and not self._over:
                chunk = self._next(answer, min(_CHUNK, skip or self._end - self._arrived), patience)
                if skip:
                    skip -= len(chunk)
                else:
                    self._put(chunk)
                if self._slow > http.SILENT_SECONDS:
                    raise Trouble(f"only {self._got:,} bytes came in {self._slow:.0f} s")

    def _next(self, answer: Any, length: int, patience: Retry) -> bytes:
        """The next bytes. Only as many as are worth a connection end the time of failing."""
        began = time.monotonic()
        chunk = http.body(answer, length)
        self._slow += time.monotonic() - began
        self._got += len(chunk)
        if self._got >= _WORTHWHILE:
            patience.arrived()
            self._got, self._slow = 0, 0.0
        return chunk

    def _put(self, chunk: bytes) -> None:
        with self._news:
            self._chunks.append(chunk)
            self._arrived += len(chunk)
            self._news.notify_all()
            while self._arrived - self._wanted >= self._ahead and not self._over:
                self._news.wait(_POLL_SECONDS)

    @property
    def _over(self) -> bool:
        return self._closed or self._stop.is_set()
