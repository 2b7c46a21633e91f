"""One object on the network → its bytes by position: read ahead, tried again, and the same object throughout.

    RemoteReader   what the rest of the program sees
    _Stretch       a thread that reads from one byte on, a few MiB ahead of its reader
    _connect       one request, and everything that can be wrong with its answer

The only door to HTTP. What is asked for is an Address, made anew for each request: signatures expire.
"""

import contextlib
import email.utils
import hashlib
import io
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from shardmill.errors import InputError, ShardmillError, TemporaryError
from shardmill.names import show
from shardmill.patience import Missing, Patience, Stopped, Trouble

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
_CONNECT_SECONDS, _SILENT_SECONDS = 10.0, 30.0
_ANSWER_SECONDS = 90.0  # for all redirects and headers, which may come a byte at a time
_WORTHWHILE = 64 << 10  # a server that sends less than this in _SILENT_SECONDS might as well be silent
_POLL_SECONDS = 0.2
_AGENT = "shardmill"
_MOST_WORDS = 200  # of a server, in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """What to ask for, with the credentials it takes. Never shown, never stored."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """An object on the network, as it was when the job began."""

    path: str
    """As it may be shown and stored: without credentials."""
    identity: str = field(repr=False)
    """What tells it from others; may hold secrets."""
    size: int
    version: str
    """An ETag, generation or hash: another version is another object. Empty if the server tells none."""
    etag: str = ""
    """What every answer must carry; empty when the address itself names the version."""
    address: Callable[[], Address] = field(repr=False)
    advice: str = field(repr=False)
    """What to do when the server refuses."""
    patience: float
    """Seconds of failing after which to give up."""


class RemoteReader:
    """An object read by position. In order it comes from one long request; elsewhere, one request for each read."""

    def __init__(self, remote: Remote, stop: threading.Event | None = None, session: Any = None) -> None:
        self.path = remote.path
        self.size: int | None = remote.size
        self._remote = remote
        self._length = remote.size
        self._stop = stop or threading.Event()
        self._session, self._own_session = session or new_session(), session is None
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
        if waited > self._remote.patience + _ANSWER_SECONDS:
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
        patience = Patience(self._remote.path, self._remote.patience, self._stop)
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

    def _fetch_once(self, patience: Patience) -> None:
        whole = self._end == self._remote.size
        answer, skip = _connect(self._session, self._remote, self._arrived, None if whole else self._end)
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
                if self._slow > _SILENT_SECONDS:
                    raise Trouble(f"only {self._got:,} bytes came in {self._slow:.0f} s")

    def _next(self, answer: Any, length: int, patience: Patience) -> bytes:
        """The next bytes. Only as many as are worth a connection end the time of failing."""
        began = time.monotonic()
        chunk = _body(answer, length)
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


def probe(path: str, address: Callable[[], Address], advice: str, patience: float) -> tuple[int, str]:
    """The size and version of an object of which only the URL is known. Asks for one byte: not all servers know HEAD."""
    asked = Remote(path=path, identity="", size=-1, version="", address=address, advice=advice, patience=patience)
    trying = Patience(path, patience)
    with new_session() as session:
        while True:
            try:
                answer, _ = _connect(session, asked, 0, 1)
            except Trouble as e:
                trying.pause(e)
                continue
            with contextlib.closing(answer):
                return _described(path, answer)


def _described(path: str, answer: Any) -> tuple[int, str]:
    if answer.headers.get("Content-Type", "").startswith("text/html") and not path.endswith((".html", ".htm")):
        raise InputError(
            f"{show(path)}: this is a web page, not a file; copy the address of the download itself (on the hub: write hf://datasets/…)"
        )
    _, total = _content_range(answer)
    if answer.status_code == 200:
        total = _length(answer.headers.get("Content-Length", ""))
    if total is None:
        raise InputError(
            f"{show(path)}: the server does not say how long this is, or says what cannot be; pipe it instead: curl -L URL | shardmill prepare - …"
        )
    return total, version_of(answer.headers)


def version_of(headers: Mapping[str, str]) -> str:
    """The ETag without its dress, else the time of the last change."""
    etag = headers.get("ETag", "").removeprefix("W/").strip('"')
    version = etag or headers.get("Last-Modified", "")
    return version if len(version) <= _MOST_WORDS else hashlib.sha256(version.encode("utf-8", "replace")).hexdigest()


def new_session() -> Any:
    """Connections that are kept for the next request; may be shared by many readers."""
    import requests  # when first used: it takes a moment to load

    session = requests.Session()
    session.hooks["response"].append(_drop_redirect)
    return session


def _drop_redirect(answer: Any, **_: Any) -> None:
    """What a redirect carries would be read whole, however long, and decompressed."""
    if answer.is_redirect:
        with contextlib.suppress(Exception):
            answer.raw.read(_CHUNK, decode_content=False)  # most is read to its end, and the connection used again
        answer._content = b""


def _connect(session: Any, remote: Remote, start: int, end: int | None) -> tuple[Any, int]:
    """Ask for the bytes [start, end); returns the answer, and how many bytes of it come before them."""
    import requests
    import urllib3

    where = remote.address()
    headers = {"Accept-Encoding": "identity", "User-Agent": _AGENT, **where.headers}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-" + ("" if end is None else str(end - 1))
    # A header of our own must not give way to what ~/.netrc has for the host.
    auth = (lambda request: request) if "Authorization" in headers else None
    timeouts = (_CONNECT_SECONDS, _SILENT_SECONDS)
    try:
        answer = _within(
            _ANSWER_SECONDS,
            lambda: session.get(where.url, headers=headers, auth=auth, stream=True, timeout=timeouts),
        )
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as e:
        raise _no_answer(remote, e) from None  # the exception quotes the URL, with its signature
    try:
        _check_status(answer, remote)
        return answer, _check_same(answer, remote, start)
    except BaseException:
        answer.close()
        raise


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """What ask gives, or raises, in that time. One that takes longer is left alone: nothing else ends it."""
    box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            box.put((ask(), None))
        except BaseException as e:  # the thread's boundary
            box.put((None, e))

    threading.Thread(target=run, name="shardmill-ask", daemon=True).start()
    try:
        answer, error = box.get(timeout=seconds)
    except queue.Empty:
        raise Trouble(f"no whole answer within {seconds:.0f} s") from None
    if error is not None:
        raise error
    return answer


def _check_status(answer: Any, remote: Remote) -> None:
    status, path = answer.status_code, show(remote.path)
    said = f"{status} {_shown(answer.reason)}".strip()
    if status in (408, 425, 429) or (status >= 500 and status not in (501, 505)):
        raise Trouble(f"the server answers {said}", wait=_asked_to_wait(answer.headers))
    if status in (401, 403):
        raise InputError(f"{path}: access denied ({said}); {remote.advice}")
    if status in (404, 410):
        raise Missing(f"{path}: there is no such file ({said}); check the spelling")
    if status in (412, 416) and remote.size > 0:
        raise _changed(remote, "is shorter now" if status == 416 else "is another one now")
    if status not in (200, 206, 416):
        raise InputError(f"{path}: the server answers {said}, which is no file; check the address")
    coding = answer.headers.get("Content-Encoding", "identity")
    if coding not in ("identity", ""):
        raise InputError(
            f"{path}: the server sends this compressed ({_shown(coding)}) although it was asked not to; download it first, then mill the copy"
        )


def _check_same(answer: Any, remote: Remote, start: int) -> int:
    """See that this is still the object the job began with; returns how many bytes come before the first asked for."""
    if remote.size < 0:
        return 0
    version = version_of(answer.headers)
    if remote.etag and version and version != remote.etag:
        raise _changed(remote, f"had the version {show(remote.etag)}, and has {show(version)} now")
    if answer.status_code == 206:
        first, total = _content_range(answer)
        if total is not None and total != remote.size:
            raise _changed(remote, f"had {remote.size:,} bytes when the job began, and has {total:,} now")
        if first != start:
            sent = _shown(answer.headers.get("Content-Range", "without Content-Range"))
            raise Trouble(f"the server sent other bytes than it was asked for ({sent})")
        return 0
    length = _length(answer.headers.get("Content-Length", ""))
    if length is not None and length != remote.size:
        raise _changed(remote, f"had {remote.size:,} bytes when the job began, and has {length:,} now")
    return start


def _changed(remote: Remote, how: str) -> InputError:
    return InputError(
        f"{show(remote.path)}: changed while it was read: it {how}; let whatever writes it finish, then begin again with --overwrite"
    )


def _content_range(answer: Any) -> tuple[int | None, int | None]:
    """The first byte of an answer, and how many bytes the whole object has."""
    found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    return (None, None) if found is None else (_length(found[1] or ""), _length(found[2]))


def _length(digits: str) -> int | None:
    """A number of bytes that a server names; None if it names none, or more than any file has."""
    return int(digits) if re.fullmatch(r"[0-9]{1,15}", digits) else None


def _shown(words: str | None) -> str:
    """What a server says, as it may be printed."""
    return show((words or "")[:_MOST_WORDS])


def _body(answer: Any, length: int) -> bytes:
    """The next bytes of an answer, at least one; Trouble if the connection breaks or ends early."""
    import urllib3

    try:
        # What is there already, so that nothing is lost when the connection breaks; urllib3 1 can only wait for all.
        data: bytes = getattr(answer.raw, "read1", answer.raw.read)(length)
    except urllib3.exceptions.ReadTimeoutError:
        raise Trouble(f"nothing came for {_SILENT_SECONDS:.0f} s") from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        raise Trouble("the connection broke") from None
    if not data:
        raise Trouble("the connection ended early")
    return data


def _no_answer(remote: Remote, e: Exception) -> ShardmillError | Trouble:
    """What a failed request means, without the words of the exception: they quote the URL."""
    import requests

    words = repr(e)
    if "CERTIFICATE_VERIFY_FAILED" in words:
        return InputError(
            f"{show(remote.path)}: the server's certificate is not trusted here; install the certificates of your system, or set REQUESTS_CA_BUNDLE"
        )
    if isinstance(e, ValueError):  # of this address, or of one that the server sends on to
        return InputError(f"{show(remote.path)}: this is not an address that can be read; check the spelling")
    if isinstance(e, requests.exceptions.TooManyRedirects):
        return InputError(f"{show(remote.path)}: the server sends in circles (too many redirects); {remote.advice}")
    if isinstance(e, requests.exceptions.Timeout):
        return Trouble("no answer", unreachable=isinstance(e, requests.exceptions.ConnectTimeout))
    if "NameResolutionError" in words or "getaddrinfo" in words:
        return Trouble("the name of the server is not known", unreachable=True)
    if "refused" in words:
        return Trouble("the server takes no connection", unreachable=True)
    return Trouble("the connection broke")


def _asked_to_wait(headers: Mapping[str, str]) -> float:
    """Seconds from Retry-After (a number or a date), or from the hub's RateLimit; 0 if neither is there."""
    after = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", after):
        return float(after)
    if after:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    limit = re.search(r";\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(limit[1]) if limit else 0.0
