"""A disk that fails, an input that changes, a worker that breaks: a message, the right code, and the same bytes later."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import RESULT, command, drive, result

SHARDMILL = Path(sys.executable).with_name("shardmill")
CALM = {"checkpoint_seconds": 0.0, "checkpoint_bytes": 3000, "block_bytes": 3000}
TEMPORARY = 75
FULL = ("no space left", "same command")


def nothing_wrong_is_named(folder, expected, output):
    """I2: what has its final name is whole; I3: no manifest before the end."""
    for name in RESULT:
        path = folder / output / name
        if path.exists():
            assert path.read_bytes() == expected[name]


def told(end, code, *parts):
    assert end["code"] == code, end["stderr"]
    assert "Traceback" not in end["stderr"] and end["stderr"].count("\n") <= 2, end["stderr"]
    for part in parts:
        assert part in end["stderr"]


@pytest.mark.parametrize(
    ("call", "number", "code", "parts"),
    [
        ("pwrite", errno.ENOSPC, TEMPORARY, FULL),
        ("pwrite", errno.EDQUOT, TEMPORARY, FULL),
        ("pwrite", errno.EIO, TEMPORARY, ("Input/output error", "same command")),
        ("pwrite", errno.EROFS, 1, ("read-only", "-o")),
        ("fdatasync", errno.EIO, TEMPORARY, ("Input/output error", "same command")),
        ("fsync", errno.ENOSPC, TEMPORARY, FULL),
        ("fsync", errno.EIO, TEMPORARY, ("Input/output error", "same command")),
        ("replace", errno.EIO, TEMPORARY, ("Input/output error", "same command")),
        ("ftruncate", errno.EIO, TEMPORARY, ("Input/output error", "same command")),
        ("open", errno.EMFILE, TEMPORARY, ("Too many open files", "same command")),
    ],
)
def test_a_disk_that_fails_is_told_and_the_same_command_goes_on(inputs, whole, call, number, code, parts):
    expected = whole["documents"][0]
    under = str(inputs / "faulty")
    runs = []
    places = [1, 3, 9]
    for nth in places:
        args = command("documents", output=f"faulty-{nth}")
        runs += [{"args": args, "fault": {"call": call, "nth": nth, "errno": number, "under": under}, "limits": CALM}]
    failed = drive(inputs, runs)
    assert failed[0]["code"] == code
    for nth, end in zip(places, failed, strict=True):
        if end["code"]:  # else there were fewer such calls
            told(end, code, *parts)
        if (inputs / f"faulty-{nth}").exists():
            nothing_wrong_is_named(inputs, expected, f"faulty-{nth}")
    done = drive(inputs, [{"args": run["args"]} for run in runs])
    assert [end["code"] for end in done] == [0] * len(places), [end["stderr"] for end in done]
    for nth in places:
        assert result(inputs, f"faulty-{nth}") == expected
        shutil.rmtree(inputs / f"faulty-{nth}")


def test_an_input_disk_that_fails_is_told_and_the_same_command_goes_on(inputs, whole):
    args = command("documents", output="unread")
    fault = {"call": "pread", "errno": errno.EIO, "under": str(inputs / "many")}
    runs = [{"args": args, "fault": {**fault, "nth": nth}, "limits": CALM} for nth in (1, 3, 10, 30, 40)]
    done = drive(inputs, [*runs, {"args": args}])
    assert all(end["code"] in (0, TEMPORARY) for end in done) and done[0]["code"] == TEMPORARY and done[-1]["code"] == 0
    for end in done:
        if end["code"]:
            told(end, TEMPORARY, "many/part-", "Input/output error", "same command")
    assert result(inputs, "unread") == whole["documents"][0]
    shutil.rmtree(inputs / "unread")


@pytest.mark.parametrize("call", ["pwrite", "pread"])
def test_short_reads_and_writes_change_nothing(inputs, whole, call):
    fault = {"call": call, "nth": 1, "short": True, "under": str(inputs)}
    args = command("documents", output="short")
    runs = [
        {"args": args, "fault": fault, "limits": CALM, "kill": ["checkpoint-synced", 3]},
        {"args": args, "fault": fault},
    ]
    assert [end["code"] for end in drive(inputs, runs)] == [-9, 0]
    assert result(inputs, "short") == whole["documents"][0]
    shutil.rmtree(inputs / "short")


@pytest.mark.parametrize(("error", "code"), [("MemoryError", TEMPORARY), ("ValueError", 1), ("OSError", 1)])
def test_a_worker_that_breaks_stops_the_job_and_it_goes_on_later(inputs, whole, error, code):
    args = command("documents", output="broken")
    runs = [{"args": args, "block": [nth, error], "limits": CALM} for nth in (1, 2, 5)]
    *failed, done = drive(inputs, [*runs, {"args": args}])
    for end in failed:
        assert end["code"] == code and ("same command" in end["stderr"])
    assert done["code"] == 0 and result(inputs, "broken") == whole["documents"][0]
    shutil.rmtree(inputs / "broken")


@pytest.mark.parametrize("mode", ["truncate", "grow", "edit", "touch"])
@pytest.mark.parametrize("step", ["block-written", "file-created"])
def test_an_input_that_changes_while_it_is_read_is_refused(tmp_path, inputs, mode, step):
    """Never a mixture of two versions, not in this run and not in the next."""
    shutil.copy(inputs / "long.txt", tmp_path / "book.txt")
    args = command("running", output="mixed")
    edit = [step, 1, str(tmp_path / "book.txt"), mode]
    limits = {**CALM, "block_bytes": 6000}
    first, again = drive(tmp_path, [{"args": args, "edit": edit, "limits": limits}, {"args": args}])
    told(first, 1, "book.txt", "--overwrite" if mode != "truncate" else "bytes")
    assert not any((tmp_path / "mixed" / name).exists() for name in RESULT)
    assert again["code"] == 1 and "book.txt" in again["stderr"] + "book.txt" and "modified" in again["stderr"]


def signalled(inputs, numbers, steps, *, stall=0.1):
    """The ends of a job that gets these signals at a step, and of the same command after; for each of the steps."""
    limits = {"checkpoint_seconds": 0.0, "checkpoint_bytes": 20_000, "block_bytes": 6000}
    runs = []
    for step, number in steps:
        args = command("long", output=f"signalled-{step}")
        runs += [{"args": args, "signals": [step, number, numbers, stall], "limits": limits}, {"args": args}]
    ends = drive(inputs, runs)
    return zip(ends[::2], ends[1::2], strict=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, TEMPORARY)])
def test_a_signal_at_any_step_leaves_with_one_line_and_keeps_what_is_durable(inputs, whole, number, code):
    steps = ("journal-begun", "block-written", "checkpoint-synced", "files-sealed", "run-written")
    for step, (end, done) in zip(steps, signalled(inputs, [number], [(step, 1) for step in steps]), strict=True):
        assert end["code"] == code and end["seconds"] < 5 and "Traceback" not in end["stderr"]
        assert end["stderr"].strip().endswith("run the same command again to resume")
        assert done["code"] == 0 and result(inputs, f"signalled-{step}") == whole["long"][0]
        assert "journal-begun" not in done["steps"], "it went on, and did not begin again"
        shutil.rmtree(inputs / f"signalled-{step}")


@pytest.mark.parametrize("numbers", [[2, 2], [15, 15], [2, 15]])
def test_a_second_signal_leaves_at_once_and_loses_nothing_durable(inputs, whole, numbers):
    """A checkpoint hangs on the disk for 20 s: who asks twice is not made to wait for it."""
    ((end, done),) = signalled(inputs, numbers, [("data-synced", 3)], stall=20)
    assert end["code"] == (130 if numbers[-1] == 2 else TEMPORARY) and end["seconds"] < 5
    assert "checkpoint-synced" in end["steps"] and "Traceback" not in end["stderr"]
    assert done["code"] == 0 and "journal-begun" not in done["steps"]
    assert result(inputs, "signalled-data-synced") == whole["long"][0]
    shutil.rmtree(inputs / "signalled-data-synced")


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """faults.c as a library, where there is a compiler and LD_PRELOAD."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no compiler here; the same faults come from the driver above")
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-O1", "-fPIC", "-shared", "-o", library, source, "-ldl"], check=True)
    return library


def run_with(shim, folder, job, **fault):
    env = {**os.environ, **{f"FAULT_{name.upper()}": str(value) for name, value in fault.items()}}
    started = time.monotonic()
    done = subprocess.run(
        [SHARDMILL, *command(job, output="shimmed")],
        cwd=folder,
        env={**env, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return {"code": done.returncode, "stderr": done.stderr, "seconds": time.monotonic() - started}


@pytest.mark.parametrize(
    ("call", "number", "places"),
    [
        ("write", errno.ENOSPC, (1, 5)),
        ("fsync", errno.EIO, (2, 6)),
        ("fsync", errno.EDQUOT, (5,)),
        ("rename", errno.EIO, (1, 2)),
    ],
)
def test_the_real_command_on_a_failing_disk(inputs, whole, shim, call, number, places):
    for nth in places:
        end = run_with(shim, inputs, "documents", call=call, nth=nth, errno=number, under=inputs / "shimmed")
        told(end, TEMPORARY, "same command")
        nothing_wrong_is_named(inputs, whole["documents"][0], "shimmed")
    assert run_with(shim, inputs, "documents", call="none")["code"] == 0
    assert result(inputs, "shimmed") == whole["documents"][0]
    shutil.rmtree(inputs / "shimmed")


def test_the_real_command_on_a_failing_input_and_with_short_calls(inputs, whole, shim):
    end = run_with(shim, inputs, "documents", call="read", nth=12, errno=errno.EIO, under=inputs / "many")
    told(end, TEMPORARY, "many/part-", "same command")
    for call in ("write", "read"):
        assert run_with(shim, inputs, "documents", call=call, nth=1, short=1, under=inputs)["code"] == 0
        assert result(inputs, "shimmed") == whole["documents"][0]
        shutil.rmtree(inputs / "shimmed")


def test_the_real_command_without_memory_stops_or_gets_along(inputs, whole, shim):
    for nth in (1, 4):
        end = run_with(shim, inputs, "running", call="mmap", nth=nth, errno=errno.ENOMEM)
        assert end["code"] != 0 or result(inputs, "shimmed") == whole["running"][0]
        assert end["code"] in (0, 1, TEMPORARY, -signal.SIGABRT, -signal.SIGSEGV), end["stderr"]
    assert run_with(shim, inputs, "running", call="none")["code"] == 0
    assert result(inputs, "shimmed") == whole["running"][0]
    shutil.rmtree(inputs / "shimmed")


def test_a_disk_that_fills_up_while_the_job_runs(inputs, whole, tmp_path):
    """A small tmpfs stands for the full disk; where mounting is not allowed there is nothing to test with."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        filler, output = disk / "filler", str(disk / "out")
        args = command("running", output=output)
        (first,) = drive(inputs, [{"args": args, "limits": CALM, "kill": ["checkpoint-synced", 2]}])
        filler.write_bytes(b"\0" * (shutil.disk_usage(disk).free - (100 << 10)))
        (end,) = drive(inputs, [{"args": args, "limits": CALM}])
        told(end, TEMPORARY, "same command")
        assert first["code"] == -9 and not list(disk.rglob("*.bin"))
        filler.unlink()
        (done,) = drive(inputs, [{"args": args, "limits": CALM}])
        assert done["code"] == 0 and result(disk) == whole["running"][0]
    finally:
        subprocess.run(["umount", disk], check=True)
