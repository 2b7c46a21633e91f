"""What all parts of the bench use: a command, what it took, and a line of the table."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

MB = 1_000_000
MIB = 1 << 20
SHARDMILL = str(Path(sys.executable).with_name("shardmill"))
LIMITS = ("--max-memory", "512MiB", "--progress", "none", "-q")
SAMPLE_SECONDS = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a process took: seconds on the wall and on all cores, and the most bytes its tree had resident."""

    wall: float
    cpu: float
    peak: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; kept is None where nothing was promised."""

    what: str
    figure: str
    promised: str = ""
    kept: bool | None = None


def run(command: list[str], *, watch: bool = False, quiet: bool = False, cores: int | None = None) -> Cost:
    """The cost of one command, perhaps on so many cores; watch also sums the memory of the whole process tree, which takes
    some time of its own."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else None,
        preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores]),
    )
    seen: list[int] = [0]
    if watch:
        threading.Thread(target=_watch, args=(process.pid, seen), daemon=True).start()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench: exit code {process.returncode} from: {' '.join(command)}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall=wall, cpu=usage.ru_utime + usage.ru_stime, peak=max(seen[0], usage.ru_maxrss * unit))


def _watch(pid: int, seen: list[int]) -> None:
    root = psutil.Process(pid)
    while root.is_running():
        with contextlib.suppress(psutil.NoSuchProcess):  # one of them just ended
            seen[0] = max(seen[0], sum(each.memory_info().rss for each in [root, *root.children(recursive=True)]))
        time.sleep(SAMPLE_SECONDS)


def prepare(file: Path, *options: str, watch: bool = False, cores: int | None = None) -> Cost:
    """`shardmill prepare` of one file into a folder that is removed again."""
    output = file.with_name("output")
    try:
        return run([SHARDMILL, "prepare", str(file), "-o", str(output), *LIMITS, *options], watch=watch, cores=cores)
    finally:
        shutil.rmtree(output, ignore_errors=True)
