"""Run by test_formats.py: mills into one format, ends the process at a step, goes on, and compares all bytes."""

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

from shardmill import Limits, Spec
from shardmill.io import lock, storage
from shardmill.job import job
from shardmill.job.mill import prepare

DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(60)]
LIMITS = Limits(engine="reference", workers=1, block_bytes=1000, checkpoint_seconds=0, max_memory=1 << 34)
LATE = {
    "files-finished",
    "files-sealed",
    "file-named",
    "names-synced",
    "run-written",
    "manifest-written",
    "journal-removed",
}


def contents(folder):
    """The lock of a process that was ended stays; it locks nothing."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in ("run.json", lock.NAME)}


def run(spec, die):
    """In a process of its own: whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        seen = {"steps": 0, "late": 0}

        def watch(step):
            seen["steps"] += 1
            seen["late"] += step in LATE or seen["late"] > 0
            if die(seen):
                os._exit(9)

        storage.watch = watch
        try:
            prepare(spec, limits=LIMITS)
            os._exit(0)
        except BaseException as e:
            sys.stderr.write(f"{type(e)} {e}\n")
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 9):
        raise SystemExit(f"ended with {code}")
    return code == 0


def chain(spec, stride):
    """Kill after so many steps, each time further on, until the job is done; how many kills it took."""
    for kills in itertools.count():
        if run(spec, lambda seen, steps=stride + kills // 4: seen["steps"] >= steps):
            return kills


def main():
    name, root, choices = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    gpt2 = job.load("gpt2")
    engines = job.choose_engines(gpt2, LIMITS.engine)
    engines.reference.encode(b"loaded")
    job.load, job.choose_engines = lambda *_: gpt2, lambda *_: engines  # once, before the forks
    os.fsync = os.fdatasync = os.fstat  # a process that ends loses nothing of what it wrote
    (root / "a.txt").write_text("##".join(DOCUMENTS))

    def spec(folder):
        return Spec(
            inputs=[root / "a.txt"],
            output=root / folder,
            separator="##",
            format=name,
            index=True,
            provenance=True,
            **choices,
        )

    assert run(spec("whole"), lambda _: False)
    expected = contents(root / "whole")
    kills = 0
    kills += chain(spec("out"), 12)
    assert contents(root / "out") == expected, "after kills again and again"
    for late in itertools.count(1):  # each step of the end, from renaming to the journal's removal
        shutil.rmtree(root / "out", ignore_errors=True)
        if run(spec("out"), lambda seen, late=late: seen["late"] == late):
            break
        kills += 1
        assert run(spec("out"), lambda _: False)
        assert contents(root / "out") == expected, f"killed at late step {late}"
    sys.stdout.write(f"{kills}\n")


main()
