"""--on-error skip leaves out bad records, and nothing else: an input that is denied, changed or gone stops the job."""

import errno
import json
import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest

import samples
from command import SHARDMILL, run
from servers import Fault, Server
from shardmill import Limits, Spec, prepare, verify
from shardmill.errors import InputError, ShardmillError, TemporaryError
from shardmill.io import open_files, reading, spool, storage

TEXT = samples.ENGLISH * 20
SMALL = Limits(
    engine="reference", workers=1, block_bytes=2000, checkpoint_seconds=0, max_memory=1 << 34, network_seconds=2
)


def spec(folder, *inputs, **choices):
    return Spec(inputs=[str(path) for path in inputs], output=str(folder / "out"), **{"on_error": "skip", **choices})


def lines(count, start=0):
    return "".join(json.dumps({"text": f"{number} sacks of flour"}) + "\n" for number in range(start, start + count))


def at_step(monkeypatch, step, act):
    """Do something when the job reaches a step for the first time."""
    done = []

    def watch(reached):
        if reached == step and not done:
            done.append(act())

    monkeypatch.setattr(storage, "watch", watch)


def edited(path):
    with open(path, "r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"other")


def replaced(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().upper())
    os.replace(other, path)


# Every error of an input was a bad record: its rest was counted as read, and the result called complete.
@pytest.mark.parametrize("change", [edited, replaced])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("policy", ["skip", "stop", "replace"])
def test_an_input_that_changes_while_it_is_read_stops_the_job(tmp_path, monkeypatch, change, name, policy):
    (tmp_path / name).write_text(TEXT * 20 if name == "a.txt" else lines(2000))
    at_step(monkeypatch, "block-written", lambda: change(tmp_path / name))
    with pytest.raises(InputError, match=r"was (modified|replaced)"):
        prepare(spec(tmp_path, tmp_path / name, on_error=policy), limits=SMALL)
    assert not (tmp_path / "out/manifest.json").exists()


# The end of a file told whether it had changed, and a limit ends the reading before it.
@pytest.mark.parametrize("change", [edited, replaced])
@pytest.mark.parametrize("limit", [{"limit_documents": 900}, {"limit_documents": 2000}, {"limit_tokens": 4000}])
def test_an_input_that_changes_before_a_limit_is_reached_stops_the_job(tmp_path, monkeypatch, change, limit):
    (tmp_path / "a.jsonl").write_text(lines(2000))
    at_step(monkeypatch, "block-written", lambda: change(tmp_path / "a.jsonl"))
    with pytest.raises(InputError, match=r"was (modified|replaced)"):
        prepare(spec(tmp_path, tmp_path / "a.jsonl", val_fraction=0, **limit), limits=SMALL)
    assert not (tmp_path / "out/manifest.json").exists()


def test_the_manifest_describes_the_input_that_was_milled(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(TEXT + name)
    job = spec(tmp_path, tmp_path / "a.txt", tmp_path / "b.txt", val_fraction=0)
    with reading.InputReader(str(tmp_path / "a.txt")) as reader:
        before = reading.sample(reader)
    at_step(monkeypatch, "files-sealed", lambda: replaced(tmp_path / "a.txt"))
    made = prepare(job, limits=SMALL).manifest
    assert made.job["inputs"][0]["sample"] == before
    assert not verify(tmp_path / "out", sources=[str(tmp_path)]).ok


def test_a_server_that_begins_to_refuse_stops_the_job(tmp_path):
    with Server() as server:
        paths = [f"/{number}.jsonl" for number in range(6)]
        server.files |= {path: lines(300, 1000 * number).encode() for number, path in enumerate(paths)}
        urls = [server.url + path for path in paths]
        job = Spec(inputs=urls, output=str(tmp_path / "out"), on_error="skip", val_fraction=0)
        for path in paths[2:]:
            server.faults[path] = [None, *[Fault("status", status=403)] * 50]
        with pytest.raises(InputError, match="403"):
            prepare(job, limits=SMALL)
        assert not (tmp_path / "out/manifest.json").exists()
        server.faults.clear()
        made = prepare(job, limits=SMALL).manifest
    assert made.counts.documents == 1800 and not made.counts.documents_rejected


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_an_input_that_cannot_be_opened_once_stops_the_job_wherever_that_is(tmp_path, monkeypatch, name, number):
    """In the first pass too, whose outcome would otherwise be another."""
    (tmp_path / name).write_text(TEXT if name == "a.txt" else lines(500))
    whole = prepare(Spec(inputs=[str(tmp_path / name)], output=str(tmp_path / "whole"), val_fraction=0.1), limits=SMALL)
    monkeypatch.setattr(open_files, "_MOST_OPEN", 0)  # as if others had taken its place each time
    real, opened = os.open, []
    nth = 0

    def fail_once(path, *rest, **options):
        if str(path).endswith(name):
            opened.append(path)
            if len(opened) == nth:
                raise OSError(number, os.strerror(number))
        return real(path, *rest, **options)

    for nth in range(1, 20):  # noqa: B007
        opened.clear()
        with monkeypatch.context() as faulty:
            faulty.setattr(os, "open", fail_once)
            try:
                prepare(spec(tmp_path, tmp_path / name, val_fraction=0.1), limits=SMALL)
            except ShardmillError as e:
                assert isinstance(e, InputError if number == errno.EACCES else TemporaryError)
            else:
                break
        assert not (tmp_path / "out/manifest.json").exists()
        prepare(spec(tmp_path, tmp_path / name, val_fraction=0.1), limits=SMALL)
        for file in whole.manifest.files:
            assert (tmp_path / "out" / file.name).read_bytes() == (tmp_path / "whole" / file.name).read_bytes()
        subprocess.run(["rm", "-r", tmp_path / "out"], check=True)
    assert nth > 2, "it is opened at least twice"


# One read of the file in which a long record waits may give less than was asked for: the record was called bad.
def test_short_reads_of_what_lies_on_disk_are_completed(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "IN_MEMORY", 1 << 16)
    kept = spool.Spool("-", str(tmp_path))
    data = os.urandom(1 << 20)
    for at in range(0, len(data), 5000):
        kept.append(data[at : at + 5000])

    class Short:
        def __init__(self, file):
            self._file = file
            self.seek, self.close = file.seek, file.close

        def read(self, length):
            return self._file.read(min(length, 777))

    kept._file = Short(kept._file)
    assert kept.read(10, 900_000) == data[10:900_000]


def test_too_many_bad_records_stop_the_job_and_more_may_be_allowed_later(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(3000) + "no JSON\n" * 30 + lines(3000))
    job = spec(tmp_path, tmp_path / "a.jsonl")
    for most, allowed in ((29, "29"), (0.004, "0.4%")):
        with pytest.raises(InputError, match=rf"--max-rejects {allowed} .*larger --max-rejects"):
            prepare(job, limits=Limits(block_bytes=2000, max_rejects=most))
    result = prepare(job, limits=Limits(block_bytes=2000, max_rejects=0.01))
    assert result.run["resumed_bytes"] and result.manifest.counts.documents_rejected == 30
    with pytest.raises(ShardmillError, match="--on-error skip"):
        prepare(spec(tmp_path, tmp_path / "a.jsonl", on_error="stop"), limits=Limits(max_rejects=1), overwrite=True)


def test_a_share_of_few_records_is_judged_at_the_end(tmp_path):
    (tmp_path / "a.jsonl").write_text("no JSON\n" + lines(999))
    prepare(spec(tmp_path, tmp_path / "a.jsonl"), limits=Limits(block_bytes=100, max_rejects=0.001))
    with pytest.raises(InputError, match="1 of 1,000"):
        prepare(spec(tmp_path, tmp_path / "a.jsonl"), limits=Limits(max_rejects=0.0009), overwrite=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x", "neither a number"), ("-1", "neither a number"), ("120%", "neither a number of records nor a share")],
)
def test_a_number_of_rejects_that_is_none_is_refused(text, said):
    done = run("prepare", "a", "-o", "b", "--on-error", "skip", f"--max-rejects={text}", cwd=".")
    assert done.returncode == 2 and said in done.stderr


# The split was found among other documents when bad ones were errors: a job that was begun with stop and finished with
# skip had another validation set than one that had skipped from the beginning.
@pytest.mark.parametrize("begun", ["stop", "replace"])
@pytest.mark.parametrize("kind", ["jsonl", "separated", "running"])
def test_the_split_does_not_depend_on_the_error_policy(tmp_path, begun, kind):
    name = "a.jsonl" if kind == "jsonl" else "a.txt"
    choices = {"val_fraction": 0.2, **({"separator": "\\n"} if kind == "separated" else {"passage_bytes": 64})}
    for seed in range(3):
        good = [f"{seed} {number} sacks of flour and a line about them\n" for number in range(40)]
        bad = [f"{seed} bad".encode() + b"\xff byte\n"] * 3
        good = [json.dumps({"text": text}).encode() + b"\n" if kind == "jsonl" else text.encode() for text in good]
        (tmp_path / name).write_bytes(b"".join([*good[:30], *bad, *good[30:]]))
        whole = prepare(spec(tmp_path / f"whole{seed}", tmp_path / name, seed=seed, **choices), limits=SMALL).manifest
        limits = Limits(engine="reference", workers=1, block_bytes=100, checkpoint_seconds=0, max_memory=1 << 34)
        job = spec(tmp_path / f"{seed}", tmp_path / name, seed=seed, **choices)
        if begun == "stop" or kind == "jsonl":
            with pytest.raises(InputError):
                prepare(replace(job, on_error="stop"), limits=limits)
            made = prepare(job, limits=limits).manifest
            assert [file.checksums for file in made.files] == [file.checksums for file in whole.files]


def test_passages_that_were_rejected_keep_the_error_policy(tmp_path, monkeypatch):
    text = "".join(f"Line {number} of the book, as long as others.\n" for number in range(200)).encode()
    (tmp_path / "a.txt").write_bytes(text.replace(b"Line 3 ", b"L\xffne 3 ") + text)
    job = spec(tmp_path, tmp_path / "a.txt", passage_bytes=256, val_fraction=0.1)

    class Stop(Exception):
        pass

    def stop():
        raise Stop

    at_step(monkeypatch, "files-finished", stop)
    with pytest.raises(Stop):
        prepare(job, limits=SMALL)
    with pytest.raises(ShardmillError, match="--on-error: was 'skip', is now 'replace'"):
        prepare(replace(job, on_error="replace"), limits=SMALL)


# Where a bad line stands was found by looking at all lines before it, again for each: a Block of bad lines took a
# minute, and a signal waited for it.
def test_millions_of_bad_lines_do_not_hold_up_a_signal(tmp_path):
    from shardmill.io.zstd import zstd

    (tmp_path / "a.jsonl.zst").write_bytes(zstd.compress(b"x\n" * 500_000) * 8)
    args = [SHARDMILL, "prepare", tmp_path / "a.jsonl.zst", "-o", tmp_path / "out", "--on-error", "skip", "-q"]
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True) as job:
        time.sleep(4)
        assert job.poll() is None
        began = time.monotonic()
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 75 and time.monotonic() - began < 10


# The beginning of a long document was written before its bad byte was met; skipped from there on, half of it stayed.
@pytest.mark.parametrize("separator", [None, "##"])
def test_a_document_that_is_half_written_cannot_be_skipped_any_more(tmp_path, separator):
    bad = samples.ENGLISH.encode() * 20 + b" a \xff byte " + samples.ENGLISH.encode()
    (tmp_path / "a.txt").write_bytes(b"##".join([b"one", bad, b"two"]))
    job = spec(tmp_path, tmp_path / "a.txt", separator=separator, val_fraction=0)
    with pytest.raises(InputError, match="not UTF-8"):
        prepare(replace(job, on_error="stop"), limits=SMALL)
    for _ in range(2):
        with pytest.raises(InputError, match=r"already been written.*--on-error replace"):
            prepare(job, limits=SMALL)
    made = prepare(replace(job, on_error="replace"), limits=SMALL).manifest
    assert made.counts.replaced_characters == 1 and verify(tmp_path / "out", sources=[str(tmp_path / "a.txt")]).ok


# The text of a long record is checked before any of it is written; what was edited after that was an error in shardmill.
def test_a_long_record_that_is_damaged_after_it_was_checked_stops_the_job(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "the mill turns " * 600_000}) + "\n")

    def damage():
        with open(path, "r+b") as file:
            file.seek(8_000_000)
            file.write(b"\xff")

    at_step(monkeypatch, "block-written", damage)
    with pytest.raises(InputError, match=r"while it was read|was modified"):
        prepare(spec(tmp_path, path, val_fraction=0), limits=SMALL)
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_long_text_that_is_damaged_while_it_is_read_stops_the_job_in_words(tmp_path, monkeypatch):
    """It was all UTF-8 when its beginning was read, so that the rest was taken on trust, and the reference failed."""
    path = tmp_path / "a.txt"
    path.write_text("Größe and überall\n" * 3000)

    def damage():
        with open(path, "r+b") as file:
            file.seek(path.read_bytes().index("ß".encode(), 40_000))
            file.write(b"Q")

    at_step(monkeypatch, "block-written", damage)
    with pytest.raises(InputError, match="was modified since the job began"):
        prepare(spec(tmp_path, path, val_fraction=0), limits=SMALL)
    assert not (tmp_path / "out/manifest.json").exists()
