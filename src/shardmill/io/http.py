"""One HTTP request for bytes of a remote file → its response, or an error that explains what is wrong with it.

The only door to HTTP. Each request gets a new Address, since signatures expire.
"""

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from shardmill.errors import InputError, ShardmillError
from shardmill.io.retry import NotFound, Retry, TransientError
from shardmill.system.names import show

CONNECT_SECONDS, SILENT_SECONDS = 10.0, 30.0
HEADER_SECONDS = 90.0  # for all redirects and headers together, which a bad server may send a byte at a time
_AGENT = "shardmill"
_LONGEST_QUOTE = 200  # of what a server says, in a message
_LARGEST_REDIRECT_BODY = 256 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A URL and headers, credentials included. Never shown, never stored."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file or object on the network, as it was when the job began."""

    path: str
    """The URL as it may be shown and stored: without credentials."""
    identity: str = field(repr=False)
    """Equal for the same file only; may hold secrets."""
    size: int = -1
    """-1: not known yet."""
    version: str = ""
    """ETag, generation or hash: changes with the content. Empty if the server sends none."""
    etag: str = ""
    """What every response must carry; empty when the address itself names the version."""
    address: Callable[[], Address] = field(repr=False)
    advice: str = field(repr=False)
    """What to do when access is denied."""
    network_seconds: float
    """Give up after this many seconds of failures."""


def probe(file: RemoteFile) -> RemoteFile:
    """Fill in size and version. Requests one byte: not every server supports HEAD."""
    with new_session() as session:
        response, _ = Retry(file.path, file.network_seconds).call(lambda: connect(session, file, 0, 1))
        with contextlib.closing(response):
            is_page = response.headers.get("Content-Type", "").startswith("text/html")
            if is_page and not file.path.endswith((".html", ".htm")):
                raise InputError(
                    f"{show(file.path)}: this is a web page, not a file; copy the URL of the download itself (on the hub: write hf://datasets/…)"
                )
            _, size = _extent(response)
            if size is None:
                raise InputError(
                    f"{show(file.path)}: the server sends no file size, or an impossible one; pipe the file instead: curl -L URL | shardmill prepare - …"
                )
            return replace(file, size=size, version=_version(response), etag=_version(response))


def new_session() -> Any:
    """A pool of connections that are kept alive between requests; many readers may share it."""
    import requests  # on first use: it is slow to import

    session = requests.Session()
    session.hooks["response"].append(_drop_redirect_body)
    return session


def _drop_redirect_body(response: Any, **_: Any) -> None:
    """Otherwise requests reads the body of a redirect whole, however long, and decompresses it."""
    if response.is_redirect:
        with contextlib.suppress(Exception):  # a body read to its end lets the connection be reused
            response.raw.read(_LARGEST_REDIRECT_BODY, decode_content=False)
        response.raw.close()  # requests takes a body for read, and would leave the socket to the garbage collector
        response._content = b""


def connect(session: Any, file: RemoteFile, start: int, end: int | None) -> tuple[Any, int]:
    """Request the bytes [start, end); returns the response, and how many bytes of its body come before them."""
    import requests
    import urllib3

    address = file.address()
    headers = {"Accept-Encoding": "identity", "User-Agent": _AGENT, **address.headers}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-" + ("" if end is None else str(end - 1))
    # ~/.netrc must not override an Authorization header of ours.
    auth = (lambda request: request) if "Authorization" in headers else None
    timeouts = (CONNECT_SECONDS, SILENT_SECONDS)
    try:
        response = _within(
            HEADER_SECONDS, lambda: session.get(address.url, headers=headers, auth=auth, stream=True, timeout=timeouts)
        )
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as e:
        raise _no_response(file, e) from None  # the exception quotes the URL, with its signature
    try:
        _check_status(response, file)
        return response, _check_unchanged(response, file, start)
    except BaseException:
        response.close()
        raise


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """The response of a call if it comes in time. A call that takes longer is abandoned: nothing can end it."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as e:  # the thread's boundary
            future.set_exception(e)

    threading.Thread(target=run, name="shardmill-connect", daemon=True).start()
    if not wait([future], seconds).done:
        future.add_done_callback(lambda late: late.exception() or late.result().close())
        raise TransientError(f"no complete response within {seconds:.0f} s")
    return future.result()


def _check_status(response: Any, file: RemoteFile) -> None:
    status, path = response.status_code, show(file.path)
    answer = f"{status} {_quoted(response.reason)}".strip()
    if status in (408, 425, 429) or (status >= 500 and status not in (501, 505)):
        raise TransientError(f"the server answers {answer}", wait=_retry_after(response.headers))
    if status in (401, 403):
        raise InputError(f"{path}: access denied ({answer}); {file.advice}")
    if status in (404, 410):
        raise NotFound(f"{path}: no such file ({answer}); check the spelling")
    if status in (412, 416) and file.size > 0:
        raise _changed(file, "is shorter now" if status == 416 else "was replaced")
    if status not in (200, 206, 416):
        raise InputError(f"{path}: the server answers {answer} instead of the file; check the URL")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding not in ("identity", ""):
        raise InputError(
            f"{path}: the server compresses the response ({_quoted(encoding)}) although asked not to; download the file, then use the copy"
        )


def _check_unchanged(response: Any, file: RemoteFile, start: int) -> int:
    """Check that this is still the file the job began with; returns how many bytes come before the first requested."""
    if file.size < 0:
        return 0
    version = _version(response)
    if file.etag and version and version != file.etag:
        raise _changed(file, f"had version {show(file.etag)}, and has {show(version)} now")
    first, size = _extent(response)
    if size is not None and size != file.size:
        raise _changed(file, f"had {file.size:,} bytes when the job began, and has {size:,} now")
    if response.status_code == 200:  # the server ignores Range
        return start
    if first != start:
        sent = _quoted(response.headers.get("Content-Range", "no Content-Range"))
        raise TransientError(f"the server sent other bytes than requested ({sent})")
    return 0


def _changed(file: RemoteFile, how: str) -> InputError:
    return InputError(
        f"{show(file.path)}: changed while it was read: it {how}; wait until nothing writes to it, then start again with --overwrite"
    )


def _version(response: Any) -> str:
    """The ETag without quotes and weak prefix, else the time of the last change."""
    etag = response.headers.get("ETag", "").removeprefix("W/").strip('"')
    version: str = etag or response.headers.get("Last-Modified", "")
    return version if len(version) <= _LONGEST_QUOTE else hashlib.sha256(version.encode("utf-8", "replace")).hexdigest()


def _extent(response: Any) -> tuple[int | None, int | None]:
    """The position of a response's first byte in the file, and the size of the whole file."""
    if response.status_code == 200:
        return 0, _length(response.headers.get("Content-Length", ""))
    found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    return (None, None) if found is None else (_length(found[1] or ""), _length(found[2]))


def _length(digits: str) -> int | None:
    """A number of bytes from a header; None if it is missing, or more than any file has."""
    return int(digits) if re.fullmatch(r"[0-9]{1,15}", digits) else None


def _quoted(words: str | None) -> str:
    """What a server says, safe to print."""
    return show((words or "")[:_LONGEST_QUOTE])


def read_body(response: Any, length: int) -> bytes:
    """The next bytes of a response, at least one; TransientError if the connection breaks or ends early."""
    import urllib3

    try:
        # read1 returns what has arrived, so nothing is lost when the connection breaks; urllib3 1 has only read.
        data: bytes = getattr(response.raw, "read1", response.raw.read)(length)
    except urllib3.exceptions.ReadTimeoutError:
        raise TransientError(f"no data for {SILENT_SECONDS:.0f} s") from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        raise TransientError("the connection broke") from None
    if not data:
        raise TransientError("the connection ended early")
    return data


def _no_response(file: RemoteFile, e: Exception) -> ShardmillError | TransientError:
    """What a failed request means, without quoting the exception: it holds the URL."""
    import requests

    words = repr(e)
    if "CERTIFICATE_VERIFY_FAILED" in words:
        return InputError(
            f"{show(file.path)}: the server's certificate is not trusted; install your system's CA certificates, or set REQUESTS_CA_BUNDLE"
        )
    if isinstance(e, ValueError):  # in this URL, or in one that the server redirects to
        return InputError(f"{show(file.path)}: not a valid URL; check the spelling")
    if isinstance(e, requests.exceptions.TooManyRedirects):
        return InputError(f"{show(file.path)}: too many redirects; {file.advice}")
    if isinstance(e, requests.exceptions.Timeout):
        return TransientError("no response", unreachable=isinstance(e, requests.exceptions.ConnectTimeout))
    if "NameResolutionError" in words or "getaddrinfo" in words:
        return TransientError("unknown host", unreachable=True)
    if "refused" in words:
        return TransientError("connection refused", unreachable=True)
    return TransientError("the connection broke")


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds from Retry-After (a number or a date), or from the hub's RateLimit; 0 if neither is there."""
    after = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", after):
        return float(after)
    if after:
        import email.utils  # slow to import, and rarely needed

        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    limit = re.search(r";\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(limit[1]) if limit else 0.0
