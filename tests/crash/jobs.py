"""Jobs to be killed: their inputs, their options, and what must come out of them."""

import atexit
import functools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import samples

DRIVER = Path(__file__).with_name("driver.py")
RESULT = ("train.bin", "val.bin", "manifest.json")
BOM = b"\xef\xbb\xbf"
# Every Block waits for the checkpoint of the one before, so that the same steps come in the same order each time.
ORDERLY = {"checkpoint_seconds": 0.0, "checkpoint_bytes": 1, "block_bytes": 3000}
_HUNG_SECONDS = 100

# Name → options. The rejects of --on-error skip belong to the result of a job that has any.
_SAMPLED = ["many", "--separator", "\\n\\n", "--val-fraction", "0.1", "--sample-tokens", "16", "--shard-tokens", "800"]
JOBS = {
    "documents": ["many", "--separator", "\\n\\n", "--val-fraction", "0.1"],
    "files": ["many", "--val-fraction", "0.3", "--eot", "before"],
    "long": ["long.txt", "--val-fraction", "0.1"],
    "running": ["book.txt", "--val-fraction", "0.1"],
    "replaced": ["bad.txt", "--separator", "\\n", "--val-fraction", "0.1", "--on-error", "replace"],
    "samples": [*_SAMPLED, "--format", "mds"],
    "blocks": [*_SAMPLED, "--format", "litdata"],
    "enough": ["alike.jsonl", "--val-fraction", "0.2"],
    "fewer": ["unlike.jsonl", "--val-fraction", "0.2"],
    "skipped": ["bad.txt", "--separator", "\\n", "--val-fraction", "0.1", "--on-error", "skip"],
}


def write_inputs(folder):
    """Small texts in many scripts: with empty files and byte order marks among them, a long one, and a damaged one."""
    text = samples.ALL.encode()
    (folder / "many").mkdir()
    contents = [b"", BOM + text * 2, BOM, text * 3, b"", b"\n\n\n", text[:700], BOM + text, text * 3, b""]
    for number, content in enumerate(contents):
        (folder / f"many/part-{number}.txt").write_bytes(content)
    # The beginning of both promises more records than the 200 that a split by threshold needs; one of them has those.
    short = [json.dumps({"text": f"{number} bags of wheat."}) + "\n" for number in range(300)]
    (folder / "alike.jsonl").write_text("".join(short))
    (folder / "unlike.jsonl").write_text("".join(short[:150]) + (json.dumps({"text": samples.ALL}) + "\n") * 9)
    (folder / "book.txt").write_bytes(text * 25)
    (folder / "long.txt").write_bytes(text * 150)
    (folder / "bad.txt").write_bytes(b"\n".join([text, b"a bad \xff byte", text, b"\xfe", text * 9, b"\xc3", text]))
    return folder


def command(job, *options, output="out", engine="reference"):
    return ["prepare", *JOBS[job], "-o", output, "--engine", engine, "--workers", "2", "-q", *options]


def drive(folder, runs):
    """Let the driver do these runs, one after the other; see its docstring for what they may be."""
    driver, common = _driver(), {"cwd": str(folder), "limits": ORDERLY, "env": dict(os.environ)}
    impatience = threading.Timer(_HUNG_SECONDS, driver.kill)
    impatience.start()
    driver.stdin.write(json.dumps([{**common, **run} for run in runs]) + "\n")
    driver.stdin.flush()
    answer = driver.stdout.readline()
    impatience.cancel()
    if not answer:
        _driver.cache_clear()
        raise AssertionError(f"the driver ended or hung; its code is {driver.wait()}")
    return json.loads(answer)


@functools.cache
def _driver():
    """One for all tests of this process: it takes a second to load what it forks."""
    driver = subprocess.Popen([sys.executable, DRIVER], stdin=-1, stdout=-1, text=True)
    atexit.register(driver.communicate)
    return driver


def result(folder, output="out"):
    """The bytes that must not differ, and the names of all files. A lock that a killed process left holds nobody up."""
    found = {path.relative_to(folder / output).as_posix(): path for path in (folder / output).rglob("*")}
    found.pop(".shardmill.lock", None)
    return {name: None if name == "run.json" or path.is_dir() else path.read_bytes() for name, path in found.items()}


def occurrences(steps):
    """Step → its first, middle and last time among these."""
    return {step: sorted({1, (count + 1) // 2, count}) for step, count in Counter(steps).items()}
