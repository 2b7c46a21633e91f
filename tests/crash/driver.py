"""The real command in processes that end where they are told to. Reads a list of runs as JSON from each line of stdin.

A run is a dict: args, the arguments of `shardmill`; cwd; env; and what is to happen to it:

    kill     [step, n]   SIGKILL when the commit protocol reaches this step for the n-th time
    signals  [step, n, [number, …], stall]   these signals, 0.3 s apart; whoever took the step hangs for stall seconds
    after    seconds     SIGKILL to the whole process group after so long
    fault    {call, nth, errno | short, under}   the n-th such call of the os module on a file under this folder
    block    [n, error]  the n-th Block that a worker mills meets this error: MemoryError, ValueError …
    edit     [step, n, path, mode]   the input is changed there: truncate, grow, edit, touch
    limits   Limits that the command has no option for

Each run is forked from a process that has everything imported and no threads of its own, so it costs little.
Answers with a line of outcomes as JSON: code (negative: killed by that signal), stderr, steps (in order), times (of the
steps, since the start), seconds.
"""

import dataclasses
import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads, and this process forks

from shardmill.cli import config, options
from shardmill.cli import main as cli_main
from shardmill.io import storage
from shardmill.job import job, workers
from shardmill.record import journal
from shardmill.tokens import tokenizer

_OFTEN = {"checkpoint_seconds": 0.0, "block_bytes": 3000}


def run(wanted):
    """Fork, do it there, wait for the end, and tell what happened."""
    log = Path(wanted["cwd"]) / f".driver-{os.getpid()}"
    log.mkdir(exist_ok=True)
    for name in ("steps", "stderr", "stdout"):
        (log / name).write_bytes(b"")
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_command(wanted, log)
    if "after" in wanted:
        _kill_group_later(child, wanted["after"])
    status = os.waitpid(child, 0)[1]
    return {
        "code": os.waitstatus_to_exitcode(status),
        "stderr": (log / "stderr").read_text(errors="replace"),
        "steps": [line.split()[0] for line in (log / "steps").read_text().splitlines()],
        "times": [float(line.split()[1]) - started for line in (log / "steps").read_text().splitlines()],
        "seconds": time.monotonic() - started,
    }


def keep_engines(*engines):
    """Load what takes long once, before the forks."""
    once = functools.lru_cache(maxsize=None)(tokenizer.load)

    def load(name, *_, **__):
        return once(name)

    choose, kept = job.choose_engines, {}

    def choose_once(wanted, engine, *rest):
        key = wanted.name, engine
        if key not in kept:
            kept[key] = choose(wanted, engine, *rest)
        return kept[key]

    job.load, job.choose_engines = load, choose_once
    load_engines(*engines)


def load_engines(*engines):
    for engine in engines:
        job.choose_engines(job.load("gpt2"), engine).reference.encode(b"loaded before the fork")


def _kill_group_later(child, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(min(0.002, max(0.0, until - time.monotonic())))
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # has not made its group yet
        os.kill(child, signal.SIGKILL)


def _be_the_command(wanted, log):
    code = 1
    try:
        os.setsid()
        os.environ.update(wanted.get("env", {}))
        os.chdir(wanted["cwd"])
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        _arrange(wanted, os.open(log / "steps", os.O_WRONLY | os.O_APPEND))
        sys.argv = ["shardmill", *wanted["args"]]
        cli_main.main()()
    except SystemExit as e:
        code = e.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _arrange(wanted, steps):
    """Let happen to this process what is wanted."""
    journal._MOST_BYTES = 5000  # nor do they take long enough for a journal of a mebibyte
    limits = {**_OFTEN, **wanted.get("limits", {})}
    config.limits_of = lambda given: dataclasses.replace(options.limits_of(given), **limits)
    write, counts, lock = os.write, Counter(), threading.Lock()
    events = {}
    if "kill" in wanted:
        step, number = wanted["kill"]
        events[step, number] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    if "signals" in wanted:
        step, number, numbers, stall = wanted["signals"]
        events[step, number] = lambda: (threading.Thread(target=_send, args=(numbers,)).start(), time.sleep(stall))
    if "edit" in wanted:
        step, number, path, mode = wanted["edit"]
        events[step, number] = lambda: edit(Path(path), mode)

    def watch(step):
        with lock:
            counts[step] += 1
            number = counts[step]
        write(steps, b"%s %.4f\n" % (step.encode(), time.monotonic()))
        events.get((step, number), lambda: None)()

    storage.watch = watch
    if "fault" in wanted:
        _inject(**wanted["fault"])
    if "block" in wanted:
        _fail_block(*wanted["block"])


def _send(numbers):
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(0.3)


def edit(path, mode):
    """Change an input in one of the ways that happen to inputs."""
    size = path.stat().st_size
    match mode:
        case "truncate":
            os.truncate(path, size // 2)
        case "grow":
            with open(path, "ab") as f:
                f.write(b" and more")
        case "edit":
            with open(path, "r+b") as f:
                f.seek(size // 2)
                f.write(b"X" * 100)
        case "touch":
            os.utime(path)


def _inject(call, nth, under, errno=None, short=False):
    """Make a function of the os module fail, for a file below this folder. The shim faults.c does it for all of libc."""
    real, seen, lock = getattr(os, call), 0, threading.Lock()

    def faulty(target, *args, **kwargs):
        nonlocal seen
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.path.abspath(target)
        if not path.startswith(under):
            return real(target, *args, **kwargs)
        with lock:
            seen += 1
            due = seen >= nth if short else seen == nth
        if due and errno is not None:
            raise OSError(errno, os.strerror(errno))
        if due and short:
            less = args[0][: max(1, len(args[0]) // 2)] if call == "pwrite" else max(1, args[0] // 2)
            args = less, *args[1:]
        return real(target, *args, **kwargs)

    setattr(os, call, faulty)


def _fail_block(nth, error):
    real, seen, lock = workers.mill_block, 0, threading.Lock()
    kind = {"MemoryError": MemoryError, "ValueError": ValueError, "OSError": OSError}[error]

    def faulty(*args):
        nonlocal seen
        with lock:
            seen += 1
            due = seen == nth
        if due:
            raise kind("injected")
        return real(*args)

    workers.mill_block = faulty


def main():
    keep_engines()
    for line in sys.stdin:
        runs = json.loads(line)
        if any(arg.startswith("s3://") for run in runs for arg in run["args"]):
            import aiobotocore.session  # noqa: F401  what a store needs takes a second to load
            import requests  # noqa: F401
            import s3fs  # noqa: F401
        load_engines(*{engine for engine in ("native", "reference") if any(engine in run["args"] for run in runs)})
        sys.stdout.write(json.dumps([run(wanted) for wanted in runs]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
