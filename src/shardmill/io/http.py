"""A request for the bytes of an object on the network → its answer, or in words what is wrong with it.

The only door to HTTP. What is asked for is an Address, made anew for each request: signatures expire.
"""

import contextlib
import email.utils
import hashlib
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardmill.errors import InputError, ShardmillError
from shardmill.io.retry import Missing, Retry, Trouble
from shardmill.system.names import show

CONNECT_SECONDS, SILENT_SECONDS = 10.0, 30.0
ANSWER_SECONDS = 90.0  # for all redirects and headers, which may come a byte at a time
_AGENT = "shardmill"
_MOST_WORDS = 200  # of a server, in a message
_MOST_DROPPED = 256 << 10


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


def probe(path: str, address: Callable[[], Address], advice: str, patience: float) -> tuple[int, str]:
    """The size and version of an object of which only the URL is known. Asks for one byte: not all servers know HEAD."""
    asked = Remote(path=path, identity="", size=-1, version="", address=address, advice=advice, patience=patience)
    trying = Retry(path, patience)
    with new_session() as session:
        while True:
            try:
                answer, _ = connect(session, asked, 0, 1)
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
            answer.raw.read(
                _MOST_DROPPED, decode_content=False
            )  # most is read to its end, and the connection used again
        answer._content = b""


def connect(session: Any, remote: Remote, start: int, end: int | None) -> tuple[Any, int]:
    """Ask for the bytes [start, end); returns the answer, and how many bytes of it come before them."""
    import requests
    import urllib3

    where = remote.address()
    headers = {"Accept-Encoding": "identity", "User-Agent": _AGENT, **where.headers}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-" + ("" if end is None else str(end - 1))
    # A header of our own must not give way to what ~/.netrc has for the host.
    auth = (lambda request: request) if "Authorization" in headers else None
    timeouts = (CONNECT_SECONDS, SILENT_SECONDS)
    try:
        answer = _within(
            ANSWER_SECONDS,
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


def body(answer: Any, length: int) -> bytes:
    """The next bytes of an answer, at least one; Trouble if the connection breaks or ends early."""
    import urllib3

    try:
        # What is there already, so that nothing is lost when the connection breaks; urllib3 1 can only wait for all.
        data: bytes = getattr(answer.raw, "read1", answer.raw.read)(length)
    except urllib3.exceptions.ReadTimeoutError:
        raise Trouble(f"nothing came for {SILENT_SECONDS:.0f} s") from None
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
