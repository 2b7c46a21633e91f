"""Hostile web servers: whatever they answer, a job ends within time and memory, with a message in words."""

import gc
import gzip
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from servers import Fault, Server
from shardmill import Limits, Spec, prepare
from shardmill.errors import ContentError, InputError, TemporaryError
from shardmill.inputs.find import find_inputs
from shardmill.inputs.input_files import InputFiles
from shardmill.io import http, http_reader, retry
from shardmill.io.open_files import OpenFiles
from shardmill.io.reading import InputFile

TEXT = b"the mill turns text into tokens\n" * 4000
SIZE = len(TEXT)
SECONDS = 10
MOST_SENT = 256 << 20  # most of it lies in the buffers of sockets


class Raw:
    """Answers each request with what a function of its number makes: bytes, and pauses in seconds, for ever if need be."""

    def __init__(self, answer):
        self.sent, self.requests, self._answer = 0, 0, answer
        self._over = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/a.txt"

    def _accept(self):
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                request = connection.recv(1 << 16).decode()
                self.requests += 1
                for part in self._answer(self.requests, request):
                    if isinstance(part, float):
                        self._over.wait(part)
                    else:
                        connection.sendall(part)
                        self.sent += len(part)
                    if self._over.is_set():
                        return
            except OSError:
                pass  # it hung up: that is what is tested

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # or the thread would wait for ever
        self._socket.close()


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch):
    monkeypatch.setattr(retry, "_LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(http, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(http, "HEADER_SECONDS", 1.0)


def head(status="206 Partial Content", **headers):
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def started(request):
    found = re.search(r"Range: bytes=(\d+)-", request)
    return int(found[1]) if found else 0


def good(request, *, end=SIZE, etag='"v1"', total=SIZE):
    """The honest answer to a request."""
    start = started(request)
    length = end - start
    return head(Content_Range=f"bytes {start}-{end - 1}/{total}", Content_Length=length, ETag=etag, Connection="close")


def read_all(url):
    file = find_inputs([url], network_seconds=0.8)[0]
    with OpenFiles().reader(file) as reader:
        return b"".join(reader.read(at, 10_000) for at in range(0, file.size, 10_000))


def repeated(answer):
    return lambda _number, _request: [head(**answer) if isinstance(answer, dict) else answer]


def after_the_first(wrong):
    """A server that tells how long the file is, and is hostile when it is read."""

    def answer(number, request):
        return [good(request, end=1), TEXT[:1]] if number == 1 else wrong(request)

    return answer


def drip(data, pause=0.05):
    for byte in data:
        yield bytes([byte])
        yield pause


BOMB = gzip.compress(bytes(1 << 20))
HOSTILE = {
    "a length of 26 digits": (
        repeated({"Content_Range": f"bytes 0-0/{10**26 - 1}"}),
        InputError,
        "impossible",
    ),
    "a length of 5,000 digits": (
        repeated({"Content_Range": "bytes 0-0/" + "9" * 5000}),
        InputError,
        "impossible",
    ),
    "a length that is a word": (repeated({"Content_Range": "bytes 0-0/much"}), InputError, "impossible"),
    "a negative length": (repeated({"status": "200 OK", "Content_Length": -5}), InputError, "impossible|network"),
    "another long length": (
        repeated({"status": "200 OK", "Content_Length": "9" * 30}),
        InputError,
        "impossible",
    ),
    "escapes in the status line": (repeated({"status": "404 \x1b[2Jgone\x07"}), InputError, r"404 \\x1b\[2Jgone\\x07"),
    "escapes in a refusal": (repeated({"status": "403 \x1b]0;mine\x07"}), InputError, r"access denied \(403 \\x1b"),
    "escapes in trouble": (repeated({"status": "503 \x9b31m"}), TemporaryError, r"503 \\x9b31m"),
    "escapes in an encoding": (
        repeated({"Content_Encoding": "\x1b[2Jx"}),
        InputError,
        r"compresses the response \(\\x1b",
    ),
    "a status line of 60 kB": (repeated({"status": "404 " + "x" * 60_000}), InputError, r"\(404 x{200}\)"),
    "a gzip bomb": (lambda *_: [head("200 OK", Content_Encoding="gzip"), *[BOMB] * 9999], InputError, "compresses"),
    "a redirect to itself": (repeated({"status": "302 Found", "Location": "/a.txt"}), InputError, "too many redirects"),
    "redirects without end": (
        lambda number, _: [head("302 Found", Location=f"/{number}", Content_Length=0, Connection="close")],
        InputError,
        "too many redirects",
    ),
    "a redirect that carries everything": (
        lambda *_: itertools.chain([head("302 Found", Location="/a.txt")], itertools.repeat(b"x" * 65536)),
        (InputError, TemporaryError),
        "too many redirects|no complete response",
    ),
    "a redirect that carries a bomb": (
        lambda *_: [head("302 Found", Location="/a.txt", Content_Encoding="gzip", Connection="close"), BOMB],
        InputError,
        "too many redirects",
    ),
    "a redirect to this machine's files": (
        repeated({"status": "302 Found", "Location": "file:///etc/passwd"}),
        InputError,
        "not a valid URL",
    ),
    "a redirect to no address": (
        repeated({"status": "302 Found", "Location": "http://[::1"}),
        InputError,
        "not a valid URL",
    ),
    "a redirect to an empty name": (
        repeated({"status": "302 Found", "Location": "http://a..b/"}),
        InputError,
        "not a valid URL",
    ),
    "a redirect to no port": (
        repeated({"status": "302 Found", "Location": "http://a:99999/"}),
        InputError,
        "not a valid URL",
    ),
    "no answer": (lambda *_: [30.0], TemporaryError, "no response|no complete response"),
    "no words": (repeated(b"\x00\xff" * 1000), TemporaryError, "broke"),
    "a status that is none": (repeated({"status": "999999999999 x"}), TemporaryError, "broke"),
    "a header that drips": (
        lambda *_: drip(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 9999),
        TemporaryError,
        "no complete response",
    ),
    "100 Continue without end": (
        lambda *_: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
        TemporaryError,
        "no complete response",
    ),
    "ten thousand headers": (
        lambda *_: [b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 10_000, b"\r\n"],
        TemporaryError,
        "broke",
    ),
    "a wait until the end of time": (
        repeated({"status": "429 Slow", "Retry_After": "9" * 400}),
        TemporaryError,
        "asks to wait",
    ),
    "a wait until an impossible date": (
        repeated({"status": "429 Slow", "Retry_After": "Fri, 31 Dec 99999 23:59:59 GMT"}),
        TemporaryError,
        "429 Slow",
    ),
    "other bytes than asked for": (
        after_the_first(lambda _: [head(Content_Range=f"bytes 7-9/{SIZE}\x1b[2J"), b"xyz"]),
        TemporaryError,
        r"other bytes.*\\x1b\[2J",
    ),
    "a range without its place": (after_the_first(lambda _: [head(), TEXT]), TemporaryError, "other bytes"),
    "another length in the middle": (
        after_the_first(lambda request: [good(request, total=99_999_999), TEXT]),
        InputError,
        "changed while it was read",
    ),
    "another version with escapes": (
        after_the_first(lambda request: [good(request, etag='"\x1b[2J"'), TEXT]),
        InputError,
        r"changed while it was read.*\\x1b",
    ),
    "a byte at a time": (
        after_the_first(lambda request: itertools.chain([good(request)], drip(TEXT))),
        TemporaryError,
        "only [0-9]+ bytes in",
    ),
    "a byte for each connection": (
        after_the_first(lambda request: [good(request), TEXT[started(request) :][:1]]),
        TemporaryError,
        "connection (ended early|broke)",
    ),
    "less than was said": (
        after_the_first(lambda request: [good(request), TEXT[started(request) : 100]]),
        TemporaryError,
        "connection (ended early|broke)",
    ),
    "chunks that drip": (
        after_the_first(
            lambda _: itertools.chain([head("200 OK", Transfer_Encoding="chunked", ETag='"v1"')], drip(b"0" * 9999))
        ),
        TemporaryError,
        "no data for",
    ),
}


@pytest.mark.thin
@pytest.mark.parametrize(("answer", "error", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_ends_within_time_and_in_words(answer, error, words, monkeypatch):
    if words == "too many redirects":
        monkeypatch.setattr(http, "HEADER_SECONDS", SECONDS)  # for thirty of them, on a busy machine
    with Raw(answer) as server:
        began = time.monotonic()
        with pytest.raises(error, match=words) as caught:
            read_all(server.url)
        assert time.monotonic() - began < SECONDS
        assert server.sent < MOST_SENT
    assert not isinstance(caught.value, ContentError)  # which --on-error skip would leave out
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
    del caught
    gc.collect()  # a socket that nobody closed is an error here, and not in some later test


def test_more_than_was_asked_for_is_not_read():
    def answer(_number, request):
        return itertools.chain([good(request), TEXT[started(request) :]], itertools.repeat(b"more" * 9999))

    with Raw(answer) as server:
        assert read_all(server.url) == TEXT
        assert server.sent < MOST_SENT


def test_a_slow_but_honest_server_is_waited_for(monkeypatch):
    monkeypatch.setattr(http_reader, "_MIN_PROGRESS", 4 << 10)

    def answer(_number, request):
        start = started(request)
        yield good(request)
        for at in range(start, len(TEXT), 8 << 10):
            yield TEXT[at : at + (8 << 10)]
            yield 0.1

    with Raw(answer) as server:
        assert read_all(server.url) == TEXT


@pytest.mark.parametrize("on_error", ["stop", "skip", "replace"])
def test_a_server_that_begins_to_refuse_stops_the_job(tmp_path, on_error):
    """Story: with skip, four of six files were missing, and their bytes counted as read."""
    with Server() as server:
        for number in range(6):
            server.files[f"/{number}.txt"] = TEXT
        (tmp_path / "list").write_text("".join(f"{server.url}/{number}.txt\n" for number in range(6)))
        spec = Spec(inputs=[f"@{tmp_path / 'list'}"], output=tmp_path / "out", on_error=on_error)

        class Denied(dict):
            def get(self, path, default=None):
                refuse = len(server.requests) > 8 and path >= "/2.txt"
                return [Fault("status", status=403)] if refuse else default

        server.faults = Denied()
        with pytest.raises(InputError, match=r"[2-5]\.txt: access denied \(403"):
            prepare(spec, limits=Limits(workers=1, network_seconds=2))
    assert not (tmp_path / "out/manifest.json").exists()


def test_files_that_claim_more_than_there_can_be_are_refused():
    files = InputFiles()
    with pytest.raises(InputError, match="more than 8 EiB"):
        for number in range(10):
            files.add(InputFile(path=f"{number}", size=1 << 60))


def test_no_escape_of_a_server_reaches_the_terminal(tmp_path):
    with Raw(repeated({"status": "404 \x1b[2Jgone\x07"})) as server:
        done = subprocess.run(
            [sys.executable, "-m", "shardmill", "prepare", server.url, "-o", "out"],
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            env={**os.environ, "NO_COLOR": "1"},
        )
    assert done.returncode == 1 and b"gone" in done.stderr
    assert not re.search(rb"[\x07\x1b]\[2J|\x07", done.stderr)
