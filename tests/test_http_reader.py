"""Bytes over a network that fails: they arrive whole and in order, or there is a clear word."""

import hashlib
import random
import threading
import time

import pytest

from servers import Fault, Server
from shardmill.errors import InputError, TemporaryError
from shardmill.inputs.find import find_inputs
from shardmill.io import http, http_reader, retry
from shardmill.io.http_reader import RemoteReader
from shardmill.io.open_files import OpenFiles
from shardmill.io.retry import Stopped

DATA = random.Random(5).randbytes(3_000_000)


@pytest.fixture
def server():
    with Server() as server:
        server.files["/a.txt"] = DATA
        yield server


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch):
    monkeypatch.setattr(retry, "_LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(http, "SILENT_SECONDS", 0.5)


def find(server, path="/a.txt", **options):
    return find_inputs([server.url + path], **options)[0]


def read_in_order(file, step=100_000):
    with OpenFiles().reader(file) as reader:
        assert reader.size == file.size
        parts = [reader.read(at, step) for at in range(0, file.size, step)]
        assert reader.read(file.size, 10) == b""
    return b"".join(parts)


def test_a_file_read_in_order_costs_few_requests(server):
    file = find(server)
    assert (file.size, file.once, file.local) == (len(DATA), False, False)
    assert file.version == hashlib.md5(DATA).hexdigest()
    assert read_in_order(file) == DATA
    assert len(server.requests) == 2  # one to ask how long it is, one for all of it


def test_reads_that_overlap_as_text_is_read_stay_one_request(server):
    with OpenFiles().reader(find(server)) as reader:
        at = 0
        while at < len(DATA):
            assert reader.read(max(0, at - 8), 140_000) == DATA[max(0, at - 8) : max(0, at - 8) + 140_000]
            assert reader.read(at, 600_000) == DATA[at : at + 600_000]
            at += 90_000
            reader.done_until(at)
    assert len(server.requests) == 2


def test_random_reads_are_exact_and_fetch_only_what_is_asked_for(server):
    server.files["/big.txt"] = big = DATA * 4
    chance = random.Random(1)
    with OpenFiles().reader(find(server, "/big.txt")) as reader:
        assert reader.read(len(big) - 8, 8) == big[-8:]  # as a Parquet footer is read
        for _ in range(20):
            at, length = chance.randrange(len(big)), chance.randrange(1, 50_000)
            assert reader.read(at, length) == big[at : at + length]
        assert reader.read(1, len(big)) == big[1:]
    asked = [headers["Range"] for _, headers in server.requests[2:-1]]
    assert len(asked) <= 21 and not any(part.endswith("-") for part in asked)


def test_a_small_file_is_one_request_wherever_it_is_read(server):
    server.files["/small.txt"] = b"0123456789"
    with OpenFiles().reader(find(server, "/small.txt")) as reader:
        assert [reader.read(8, 5), reader.read(0, 3), reader.read(4, 2)] == [b"89", b"012", b"45"]
    assert len(server.requests) == 2


FAULTS = {
    "cut": [Fault("cut", 1_000_000), Fault("cut", 500_000)],
    "cut often": [Fault("cut", 100_000)] * 8,
    "cut at once": [Fault("cut", 0)] * 3,
    "reset": [Fault("reset", 700_000), Fault("reset", 1)],
    "silent": [Fault("stall", 300_000, seconds=1.0)],
    "500": [Fault("status", status=500)] * 2,
    "503": [Fault("status", status=503)],
    "429": [Fault("status", status=429, headers={"Retry-After": "0"})] * 2,
    "408": [Fault("status", status=408)],
    "another range": [Fault("cut", 1_000_000), Fault("wrong-range")],
    "all of it": [
        Fault("status", status=502),
        Fault("cut", 1_000_000),
        Fault("reset", 9),
        Fault("status", status=429),
        Fault("cut", 9),
    ],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_what_breaks_is_gone_on_with_at_the_byte_where_it_stopped(server, faults):
    file = find(server)
    server.faults["/a.txt"] = list(faults)
    assert read_in_order(file) == DATA
    assert not server.faults["/a.txt"]


def test_after_a_break_only_the_rest_is_asked_for(server):
    file = find(server)
    server.faults["/a.txt"] = [Fault("cut", 1_234_567)]
    assert read_in_order(file) == DATA
    assert server.requests[-1][1]["Range"] == "bytes=1234567-"


@pytest.mark.parametrize("after", ["1", "date"])
def test_the_server_says_how_long_to_wait(server, after):
    file = find(server)
    if after == "date":
        after = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))
    server.faults["/a.txt"] = [Fault("status", status=429, headers={"Retry-After": after})]
    started = time.monotonic()
    assert read_in_order(file) == DATA
    assert time.monotonic() - started > 0.9


def test_the_hub_says_so_in_another_header():
    assert http._retry_after({"RateLimit": '"api";r=0;t=55'}) == 55


@pytest.mark.parametrize("fault", [Fault("status", status=503), Fault("cut", 0)])
def test_after_too_long_it_gives_up_and_says_how_to_go_on(server, fault):
    file = find(server, network_seconds=1.0)
    server.faults["/a.txt"] = [Fault("cut", 1_000_000)] + [fault] * 1000
    with pytest.raises(TemporaryError, match=r"a\.txt.*at byte 1,000,000 of 3,000,000.*same command again") as caught:
        read_in_order(file)
    assert caught.value.exit_code == 75


def test_a_long_wait_that_is_asked_for_is_not_begun(server):
    file = find(server)
    server.faults["/a.txt"] = [Fault("status", status=429, headers={"Retry-After": "7200"})]
    with pytest.raises(TemporaryError, match="asks to wait 7200 s"):
        read_in_order(file)


def test_a_server_that_is_not_there_is_told_soon(monkeypatch):
    monkeypatch.setattr(retry, "_UNREACHABLE_SECONDS", 0.5)
    with pytest.raises(TemporaryError, match="connection refused"):
        find_inputs(["http://127.0.0.1:9/a.txt"])
    with pytest.raises(TemporaryError, match=r"nowhere\.invalid.*(unknown host|broke)"):
        find_inputs(["http://nowhere.invalid/a.txt"])


def test_a_file_that_changes_while_it_is_read_is_an_error(server):
    file = find(server)
    server.faults["/a.txt"] = [Fault("cut", 1_000_000)]
    server.etags["/a.txt"] = "another"
    with pytest.raises(InputError, match="changed while it was read"):
        read_in_order(file)


@pytest.mark.parametrize("now", [DATA[:500_000], DATA + b"more"])
def test_a_file_of_another_length_is_an_error_even_without_an_etag(server, now):
    server.etags["/a.txt"] = "same"
    file = find(server)
    server.faults["/a.txt"] = [Fault("cut", 1_000_000)]
    with OpenFiles().reader(file) as reader:
        assert reader.read(0, 10) == DATA[:10]
        server.files["/a.txt"] = now
        with pytest.raises(InputError, match="changed while it was read"):
            reader.read(0, 1_000_000) and reader.read(1_000_000, 2_000_000)


def test_a_server_without_ranges_is_read_forward(server):
    server.ranges = False
    file = find(server)
    server.faults["/a.txt"] = [Fault("cut", 1_000_000), Fault("reset", 2_000_000)]
    assert read_in_order(file) == DATA


def test_a_server_without_ranges_is_refused_where_that_would_be_absurd(server, monkeypatch):
    monkeypatch.setattr(http_reader, "_MOST_SKIPPED", 1_000_000)
    server.ranges = False
    with OpenFiles().reader(find(server)) as reader, pytest.raises(InputError, match=r"whole files.*download the file"):
        reader.read(2_500_000, 10)


@pytest.mark.parametrize(
    ("status", "word"),
    [(401, "access denied"), (403, "netrc"), (404, "no such file"), (410, "no such file"), (400, "400")],
)
def test_a_refusal_is_final_and_says_what_to_do(server, status, word):
    server.faults["/a.txt"] = [Fault("status", status=status)]
    with pytest.raises(InputError, match=word):
        find(server)
    assert len(server.requests) == 1


def test_what_is_no_file_is_refused(server):
    server.types["/a.txt"] = "text/html; charset=utf-8"
    with pytest.raises(InputError, match="web page"):
        find(server)
    server.types.clear()
    server.ranges = server.lengths = False
    with pytest.raises(InputError, match=r"curl.*prepare -"):
        find(server)


def test_an_empty_file_is_known_as_such(server):
    server.files["/empty.txt"] = b""
    with pytest.raises(InputError, match="empty"):
        find(server, "/empty.txt")


def test_what_is_held_ahead_is_bounded(server):
    server.files["/big.txt"] = big = bytes(64 << 20)
    with OpenFiles().reader(find(server, "/big.txt")) as reader:
        for at in range(0, 20 << 20, 1 << 20):
            reader.read(at, 1 << 20)
        time.sleep(0.5)
        held = sum(map(len, reader._download._buffer._chunks))
        assert http_reader.READ_AHEAD <= held <= http_reader.READ_AHEAD + http_reader.LOOK_BACK + 2 * http_reader._CHUNK
        assert reader.read(20 << 20, len(big)) == big[20 << 20 :]


def test_a_reader_that_waits_hears_that_the_job_is_over(server):
    file, stop = find(server), threading.Event()
    server.faults["/a.txt"] = [Fault("status", status=503)] * 1000
    threading.Timer(0.3, stop.set).start()
    started = time.monotonic()
    with RemoteReader(file.remote, stop) as reader, pytest.raises(Stopped):
        reader.read(0, 10)
    assert time.monotonic() - started < 10


def test_no_message_holds_a_secret(server, monkeypatch):
    monkeypatch.setattr(retry, "_UNREACHABLE_SECONDS", 0.3)
    signed = "/none.txt?X-Amz-Signature=abcdef&X-Amz-Date=1"
    for url in (
        f"http://user:password1@127.0.0.1:{server.url.rpartition(':')[2]}{signed}",
        f"http://user:password1@127.0.0.1:9{signed}",
    ):
        with pytest.raises((InputError, TemporaryError)) as caught:
            find_inputs([url])
        assert "none.txt" in str(caught.value)
        assert not any(secret in str(caught.value) for secret in ("password1", "abcdef", "user"))
        assert caught.value.__cause__ is None


def test_credentials_in_a_url_are_used_and_not_kept(server):
    file = find_inputs([server.url.replace("://", "://me:sesame@") + "/a.txt?token=hush"])[0]
    assert read_in_order(file) == DATA
    assert file.path == server.url + "/a.txt" and "sesame" not in repr(file) and "hush" not in repr(file)
    path, headers = server.requests[-1]
    assert path.endswith("?token=hush") and headers["Authorization"].startswith("Basic ")


def test_names_that_differ_only_in_their_query_are_two_files(server):
    files = find_inputs([server.url + "/a.txt?part=1&token=x", server.url + "/a.txt?part=2&token=x"])
    assert len(files) == 2
