"""Standard input and named pipes: any size, unknown length, read once and forward."""

import functools
import gzip
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

import command
from command import SHARDMILL
from shardmill.errors import InputError, TemporaryError
from shardmill.io.reading import PipeReader
from shardmill.io.retry import Stopped
from shardmill.io.spool import Spool

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "samples/tinyshakespeare.txt").read_bytes()


run = functools.partial(command.run, text=False)


def start(*args, cwd):
    return subprocess.Popen(
        [SHARDMILL, *map(str, args)], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def made(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


@pytest.fixture
def pipe(tmp_path):
    """A named pipe, and what is to be written into it by a thread."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def feed(*chunks, pause=0.0):
        def write():
            with open(path, "wb", buffering=0) as file:
                for chunk in chunks:
                    file.write(chunk)
                    time.sleep(pause)

        threading.Thread(target=write, daemon=True).start()
        return PipeReader(str(path))

    return feed


@pytest.mark.parametrize(
    "options",
    [
        ("--val-fraction", "0"),
        ("--val-fraction", "0.05", "--separator", "\\n\\n"),  # enough documents for a threshold either way
        ("--val-fraction", "0", "--eot", "after"),
    ],
)
def test_a_pipe_gives_what_the_file_gives(tmp_path, options):
    (tmp_path / "a.txt").write_bytes(TEXT)
    assert run("prepare", "a.txt", "-o", "file", *options, cwd=tmp_path).returncode == 0
    done = run("prepare", "-", "-o", "piped", *options, cwd=tmp_path, input=TEXT)
    assert done.returncode == 0, done.stderr
    assert made(tmp_path / "piped") == made(tmp_path / "file")
    manifest = json.loads((tmp_path / "piped/manifest.json").read_text())
    assert manifest["job"]["inputs"] == [{"path": "-", "bytes": None}]
    assert manifest["counts"]["input_bytes"] == len(TEXT)


def test_running_text_of_a_pipe_is_split_by_passages(tmp_path):
    done = run("prepare", "-", "-o", "piped", "--val-fraction", "0.3", "--json", "-q", cwd=tmp_path, input=TEXT)
    result = json.loads(done.stdout)
    assert result["manifest"]["counts"]["passages"] > 10
    assert 0 < result["manifest"]["counts"]["passages_val"] < result["manifest"]["counts"]["passages"]
    assert result["run"]["bytes_per_second"] > 0 and result["run"]["checked_share"] <= 1


def test_a_redirected_file_and_a_process_substitution_work_too(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT)
    line = f"{SHARDMILL} prepare - -o one --val-fraction 0 < a.txt && {SHARDMILL} prepare <(cat a.txt) -o two --val-fraction 0"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert made(tmp_path / "one") == made(tmp_path / "two")


def test_a_slow_writer_is_waited_for(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT[:30_000])
    run("prepare", "a.txt", "-o", "file", "--val-fraction", "0", cwd=tmp_path)
    process = start("prepare", "-", "-o", "piped", "--val-fraction", "0", cwd=tmp_path)
    for at in range(0, 30_000, 3_001):
        process.stdin.write(TEXT[at : min(30_000, at + 3_001)])
        process.stdin.flush()
        time.sleep(0.15)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert made(tmp_path / "piped") == made(tmp_path / "file")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_job_that_waits_for_a_silent_pipe_can_be_stopped(tmp_path, number, code):
    process = start("prepare", "-", "-o", "out", cwd=tmp_path)
    process.stdin.write(TEXT[:100_000])
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while not (tmp_path / "out").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    started = time.monotonic()
    told = process.stderr.read()
    assert process.wait(timeout=30) == code, told
    assert time.monotonic() - started < 20 and b"Traceback" not in told
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.parametrize(
    ("given", "word"), [(b"", b"empty"), (None, b"closed"), ("Köln".encode()[:2], b"not UTF-8")]
)  # the last: a writer that died in the middle of a character
def test_what_is_wrong_with_standard_input_is_said(tmp_path, given, word):
    if given is None:
        line = f"{SHARDMILL} prepare - -o out <&-"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True)
    else:
        done = run("prepare", "-", "-o", "out", cwd=tmp_path, input=given)
    assert done.returncode == 1 and word in done.stderr and b"Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_needs_a_look_ahead_is_refused_with_the_reason(tmp_path):
    for options, word in (
        (("prepare", "-", "-o", "out", "--split", "tail"), b"known only at its end"),
        (("prepare", "-", "-o", "out", "--split", "head"), b"known only at its end"),
        (("prepare", "-", "-o", "out", "--dry-run"), b"cannot be estimated"),
        (("estimate", "-"), b"cannot be estimated"),
    ):
        done = run(*options, cwd=tmp_path, input=TEXT)
        assert done.returncode == 2 and word in done.stderr, done.stderr


def test_a_finished_job_of_a_pipe_is_not_taken_for_another(tmp_path):
    assert run("prepare", "-", "-o", "out", cwd=tmp_path, input=TEXT[:9000]).returncode == 0
    again = run("prepare", "-", "-o", "out", cwd=tmp_path, input=TEXT[:9000])
    assert again.returncode == 1 and b"may hold something else" in again.stderr and b"--overwrite" in again.stderr


def test_a_pipe_and_files_together_keep_their_order(tmp_path):
    (tmp_path / "a.txt").write_text("first words")
    (tmp_path / "b.txt").write_text("last words")
    (tmp_path / "piped.txt").write_text("words between")
    options = ("--val-fraction", "0")
    done = run("prepare", "a.txt", "-", "b.txt", "-o", "one", *options, cwd=tmp_path, input=b"words between")
    assert done.returncode == 0, done.stderr
    run("prepare", "a.txt", "piped.txt", "b.txt", "-o", "two", *options, cwd=tmp_path)
    assert made(tmp_path / "one") == made(tmp_path / "two")


@pytest.mark.slow
def test_200_mb_through_a_pipe_stay_within_the_budget(tmp_path):
    (tmp_path / "mb.txt").write_bytes(TEXT)
    line = f"for i in $(seq 180); do cat mb.txt; done | {SHARDMILL} prepare - -o out --max-memory 400MiB --json -q"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["manifest"]["counts"]["input_bytes"] == 180 * len(TEXT)
    assert result["run"]["peak_memory"] <= 400 << 20


def test_a_pipe_reads_exactly_whatever_the_chunks(pipe):
    chunks = [bytes([i]) * size for i, size in enumerate([1, 70_000, 3, 200_000, 1])]
    whole = b"".join(chunks)
    with pipe(*chunks, pause=0.01) as reader:
        assert reader.read(0, 5) == whole[:5] and reader.size == len(whole)  # its end is in sight
        assert reader.read(2, 100_000) == whole[2:100_002]
        assert reader.read(200_000, 500_000) == whole[200_000:]
        assert reader.read(len(whole), 1) == b""


def in_memory(reader):
    return reader._buffer.end - reader._buffer._memory


def test_a_pipe_keeps_what_may_be_needed_again_and_no_more(pipe):
    with pipe(*[bytes(1 << 20)] * 12) as reader:
        for at in range(0, 10 << 20, 1 << 20):
            assert reader.size is None or at > 8 << 20
            assert len(reader.read(at, 1 << 20)) == 1 << 20
            assert len(reader.read(max(0, at - (1 << 20)), 5)) == 5
            reader.done_until(at)
        assert in_memory(reader) <= 6 << 20
        with pytest.raises(InputError, match="cannot go back that far"):
            reader.read(0, 1)
        assert reader.read(11 << 20, 5 << 20) == bytes(1 << 20)


def test_what_is_not_done_with_can_be_read_again_however_long(pipe):
    chunks = [bytes([i]) * (1 << 20) for i in range(40)]
    whole = b"".join(chunks)
    with pipe(*chunks) as reader:
        reader.done_until(5)
        assert reader.read(30 << 20, 10) == whole[30 << 20 :][:10]
        assert in_memory(reader) <= 7 << 20
        for at, length in ((5, 100), (7 << 20, 2 << 20), (33 << 20, 1 << 20), ((3 << 20) - 1, 30 << 20)):
            assert reader.read(at, length) == whole[at : at + length]
        reader.done_until(37 << 20)
        assert reader.read(37 << 20, 9 << 20) == whole[37 << 20 :]
        assert reader._buffer._file is None


def test_a_pipe_can_be_skipped_forward_without_holding_it(pipe):
    with pipe(*[bytes(1 << 20)] * 64, b"end") as reader:
        reader.done_until(64 << 20)
        assert reader.read(64 << 20, 10) == b"end"
        assert in_memory(reader) < 8 << 20 and reader._buffer._file is None


def test_a_full_disk_under_a_long_record_is_said_and_can_be_tried_again(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    kept = Spool("pipe", None)
    with pytest.raises(TemporaryError, match=r"pipe: .* buffered on disk.* No space"):
        for _ in range(8):
            kept.append(bytes(1 << 20))


@pytest.mark.parametrize("name", ["-", "dump", "dump.gz"])
def test_json_lines_without_a_name_are_not_taken_for_text(tmp_path, name):
    """Their braces and quotes became tokens, without a word."""
    lines = b'{"url": "a", "text": "one two"}\n' * 50
    (tmp_path / "dump").write_bytes(lines)
    (tmp_path / "dump.gz").write_bytes(gzip.compress(lines))
    done = command.run("prepare", name, "-o", "out", cwd=tmp_path, input=lines)
    assert done.returncode == 1 and "looks like JSON lines" in done.stderr and "--input-format jsonl" in done.stderr
    for kind, documents in (("jsonl", "50 documents"), ("text", "1 document")):
        done = command.run("prepare", name, "-o", kind, "--input-format", kind, cwd=tmp_path, input=lines)
        assert done.returncode == 0 and documents in done.stderr


def test_a_long_line_of_json_through_a_pipe(tmp_path):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("one", "two\n" * (2 << 20), "three")).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    options = ("--val-fraction", "0", "-q")
    assert run("prepare", "a.jsonl", "-o", "file", *options, cwd=tmp_path).returncode == 0
    options = ("--input-format", "jsonl", *options)
    done = run("prepare", "-", "-o", "piped", *options, cwd=tmp_path, input=lines)
    assert done.returncode == 0, done.stderr
    assert made(tmp_path / "piped") == made(tmp_path / "file")


def test_a_reader_that_waits_for_a_pipe_hears_that_the_job_is_over():
    receiving, sending = os.pipe()
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with PipeReader(f"/dev/fd/{receiving}", stop) as reader, pytest.raises(Stopped):
        reader.read(0, 10)
    os.close(receiving)
    os.close(sending)
