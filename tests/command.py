"""The real command, each time in a process of its own that is forked from one with everything loaded: it starts at once.

What is about starting, signals or terminals takes `SHARDMILL`, the installed script.
"""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

SHARDMILL = Path(sys.executable).with_name("shardmill")


def run(*args, cwd, env=None, input=None, text=True, timeout=120):
    """As subprocess.run would do it; what it is given as input comes through a pipe."""
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "args": [str(arg) for arg in args],
            "cwd": str(cwd),
            "env": {**os.environ, **(env or {})},
            "folder": folder,
            "timeout": timeout,
        }
        if input is not None:
            os.mkfifo(f"{folder}/stdin")
            threading.Thread(target=_feed, args=(f"{folder}/stdin", input), daemon=True).start()
        server = _server()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = json.loads(server.stdout.readline())
        outputs = [Path(folder, name).read_bytes() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(args, code, *([out.decode() for out in outputs] if text else outputs))


def _feed(pipe, data):
    try:
        with open(pipe, "wb", buffering=0) as file:
            file.write(data.encode() if isinstance(data, str) else data)
    except BrokenPipeError:
        return  # it has read enough


@functools.cache
def _server():
    server = subprocess.Popen([sys.executable, __file__], stdin=-1, stdout=-1, text=True)
    atexit.register(server.communicate)
    return server


def _serve():
    from shardmill.cli import main as cli_main
    from shardmill.cli import results  # noqa: F401
    from shardmill.job import estimate, job, mill  # noqa: F401
    from shardmill.results import convert, inspect, verify  # noqa: F401
    from shardmill.tokens import tokenizer

    load = functools.cache(tokenizer._load_encoding)
    tokenizer._load_encoding = lambda encoding, _cache: load(encoding)
    choose, gpt2 = job.choose_engines, tokenizer.load("gpt2")
    kept = {engine: choose(gpt2, engine) for engine in ("auto", "reference")}
    kept["auto"].reference.encode(b"loaded before the fork")
    job.choose_engines = lambda found, engine: (
        kept[engine] if found.name == gpt2.name and engine in kept else choose(found, engine)
    )
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _be_the_command(cli_main, request)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _be_the_command(cli_main, request):
    code = 1
    try:
        signal.alarm(request["timeout"])
        folder = Path(request["folder"])
        pipe = folder / "stdin"
        os.dup2(os.open(pipe if pipe.exists() else os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  it ends with the process
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = ["shardmill", *request["args"]]
        cli_main.main()
        code = 0
    except SystemExit as e:
        code = e.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads, and this process forks
    _serve()
