"""One job in this process, and what it took: CPU, the GIL, every lock. Started by bench_cores.py, once for each figure.

    python tools/bench_cores_job.py '{"inputs": ["a.txt"], "output": "new", "workers": 16, "meter": "locks"}'

The clock runs from on_start, when everything is loaded and decided, to the return of prepare. The comparison with the
reference is off: loading that takes half a second, however little text there is.

Only the public API is called; three hooks below know names inside shardmill, and fail when those are gone.
"""

import contextlib
import ctypes
import gc
import hashlib
import importlib
import itertools
import json
import linecache
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does: numpy's threads would spin for a while
METER = Path(__file__).with_name("gilmeter.c")
# Functions that only one thread runs at a time, though no lock says so.
TURNS = ("shardmill.job.mill._Output.place",)
NO_COMPARISON = "shardmill.tokens.check.Checker.check"
_STDLIB = re.compile(rf"{re.escape(os.path.dirname(threading.__file__))}(?!.*site-packages)|<frozen")


class Held:
    """Seconds that something was held by one thread at a time: on the wall, and on a core."""

    at_once: ClassVar[dict[str, tuple[int, int]]] = {}
    """By name: how many of that name are held now, and were at most."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.zero()

    def count(self, more: int) -> None:
        now, most = self.at_once.get(self.name, (0, 0))
        self.at_once[self.name] = now + more, max(most, now + more)

    def zero(self) -> None:
        self.wall = self.cpu = self.waited = 0.0
        self.times = 0

    def add(self, since: tuple[float, float]) -> None:
        self.wall += time.perf_counter() - since[0]
        self.cpu += max(0.0, time.thread_time() - since[1])  # another thread may have released it
        self.times += 1


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


class TimedLock:
    """A Lock or RLock that knows how long it was held."""

    def __init__(self, made: Any, held: Held) -> None:
        self._lock, self._held = made, held
        self._depth, self._since = 0, (0.0, 0.0)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        asked = time.perf_counter()
        got: bool = self._lock.acquire(blocking, timeout)
        if got:
            self._begin(asked)
        return got

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._held.add(self._since)
            self._held.count(-1)
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)  # locked, _is_owned, what forks need

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _begin(self, asked: float) -> None:
        self._depth += 1
        if self._depth == 1:
            self._since = _now()
            self._held.count(1)
            self._held.waited += self._since[0] - asked


class TimedRLock(TimedLock):
    """With what a Condition needs of a lock that one thread can take twice."""

    def _release_save(self) -> tuple[Any, int]:
        depth, self._depth = self._depth, 0
        self._held.add(self._since)
        self._held.count(-1)
        return self._lock._release_save(), depth

    def _acquire_restore(self, state: tuple[Any, int]) -> None:
        self._lock._acquire_restore(state[0])
        self._depth, self._since = state[1], _now()
        self._held.count(1)


def time_locks() -> list[Held]:
    """From now on, locks made by threading are timed; Conditions, Events, Semaphores and Queues are made of them."""
    found: list[Held] = []

    def timed(kind: type[TimedLock], make: Callable[[], Any]) -> Callable[[], TimedLock]:
        def new() -> TimedLock:
            found.append(Held(_maker()))
            return kind(make(), found[-1])

        return new

    threading.Lock = timed(TimedLock, threading.Lock)  # type: ignore[assignment]
    threading.RLock = timed(TimedRLock, threading.RLock)  # type: ignore[assignment]
    return found


def _maker() -> str:
    """Who asked for a lock: the first place outside the standard library, and the name that it is kept under."""
    frame = sys._getframe(2)
    while frame.f_back and _STDLIB.match(frame.f_code.co_filename):
        frame = frame.f_back
    path, number = frame.f_code.co_filename, frame.f_lineno
    name = re.match(r"\s*(?:self\.)?(\w+)[^=(]*=", linecache.getline(path, number))
    return f"{'/'.join(Path(path).parts[-2:])}:{number}" + (f" {name[1]}" if name else "")


def time_turns() -> list[Held]:
    found = []
    for path in TURNS:
        owner, name = _owner(path)
        if owner is None:
            continue
        found.append(held := Held(f"{path.removeprefix('shardmill.')}, one at a time"))
        setattr(owner, name, _timed(getattr(owner, name), held))
    return found


def _timed(function: Callable[..., Any], held: Held) -> Callable[..., Any]:
    def timed(*given: Any, **named: Any) -> Any:
        since = _now()
        try:
            return function(*given, **named)
        finally:
            held.add(since)

    return timed


def _owner(path: str) -> tuple[Any, str]:
    """The class of a dotted path to a method, and the method's name; None if there is no such module or class."""
    module, kind, name = path.rsplit(".", 2)
    with contextlib.suppress(ImportError, AttributeError):
        owner = getattr(importlib.import_module(module), kind)
        return (owner, name) if hasattr(owner, name) else (None, name)
    return None, name


class Hops:
    """How often a function of Python is called, by any thread, and how often a file is opened, while it counts."""

    def __init__(self) -> None:
        self._calls, self._opens, self._began = itertools.count(), itertools.count(), (0, 0)
        sys.addaudithook(lambda event, _: next(self._opens) if event == "open" else None)
        threading.setprofile(self._count)
        sys.setprofile(self._count)

    def _count(self, _frame: object, event: str, _given: object) -> None:
        if event == "call":
            next(self._calls)

    def start(self) -> None:
        self._began = next(self._calls) + 1, next(self._opens) + 1

    def stop(self) -> dict[str, int]:
        ended = next(self._calls), next(self._opens)
        return {
            name: after - before for name, before, after in zip(("calls", "opens"), self._began, ended, strict=True)
        }


def library() -> ctypes.PyDLL:
    """gilmeter.c, compiled for this Python."""
    include = sysconfig.get_paths()["include"]
    digest = hashlib.sha256(METER.read_bytes() + sys.version.encode()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"gilmeter-{digest}.so"
    if not made.exists():
        partial = made.with_suffix(f".{os.getpid()}")
        folders = [f"-I{include}{below}" for below in ("", "/internal", "/internal/mimalloc")]
        command = ["cc", "-O2", "-fPIC", "-shared", "-pthread", *folders, "-o", str(partial), str(METER)]
        subprocess.run(command, check=True)
        partial.rename(made)
    loaded = ctypes.PyDLL(str(made))
    loaded.meter_stop.argtypes = [ctypes.c_void_p]
    loaded.bytes_not_encoded.restype = ctypes.c_int64
    return loaded


def without_engine(meter: ctypes.PyDLL) -> Any:
    """The native engine's C replaced by functions that return at once, with a token for every four bytes."""
    from shardmill.tokens import native

    engine, stub = native._library(), ctypes.CDLL(meter._name)
    ctypes.c_void_p.in_dll(stub, "layout_block").value = ctypes.cast(engine.layout_block, ctypes.c_void_p).value
    block, encode = stub.block_of_nothing, stub.encode_nothing
    block.restype, block.argtypes = engine.engine_block.restype, engine.engine_block.argtypes
    encode.restype, encode.argtypes = engine.engine_encode.restype, engine.engine_encode.argtypes
    return patch.multiple(engine, engine_block=block, engine_encode=encode)


def without_comparison() -> Any:
    owner, name = _owner(NO_COMPARISON)
    if owner is None:
        sys.exit(f"bench_cores: there is no {NO_COMPARISON} any more; name what compares with the reference there")
    return patch.object(owner, name, lambda *_, **__: 0)


class Clock:
    """Runs from start to stop, with the GIL's meter if one is given."""

    def __init__(self, meter: ctypes.PyDLL | None, held: list[Held], hops: Hops | None = None) -> None:
        self._meter, self._held, self._hops = meter, held, hops
        self.hops: dict[str, int] = {}
        self.wall = self.cpu = self.others = 0.0
        """Others: how many cores other processes used meanwhile."""
        self.gil: dict[str, float] = {}

    def start(self, *_: object) -> None:
        gc.freeze()  # as the command does
        for each in self._held:
            each.zero()
        if self._meter:
            self._meter.meter_start()
        if self._hops:
            self._hops.start()
        self._began = time.perf_counter(), _cpu(), _cpu_of_all()

    def stop(self) -> None:
        began, cpu, all_cpu = self._began
        self.hops = self._hops.stop() if self._hops else {}
        self.wall, self.cpu = time.perf_counter() - began, _cpu() - cpu
        self.others = max(0.0, (_cpu_of_all() - all_cpu - self.cpu) / self.wall)
        if self._meter:
            out = (ctypes.c_double * 3)()
            self._meter.meter_stop(out)
            self.cpu -= out[2]
            self.gil = {"held": out[0] * self.wall, "running": out[1] * self.cpu}


def _cpu() -> float:
    """Of this process, and of those that it started and that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _cpu_of_all() -> float:
    """CPU seconds of the whole machine since it started; what a hypervisor took is among them."""
    user, nice, system, _idle, _wait, *more = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")


def _peak() -> int:
    """The most bytes that this process had resident, and the largest of those that it started."""
    status = Path("/proc/self/status").read_text()
    own = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]
    return (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


@contextlib.contextmanager
def hooks(asked: dict[str, Any], meter: ctypes.PyDLL) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_comparison())
        if not asked.get("engine", True):
            stack.enter_context(without_engine(meter))
        yield


def summed(locks: list[Held]) -> list[dict[str, Any]]:
    """Those of one name together if never two were held at once; else the one that was held longest stands for them."""
    by_name: dict[str, list[Held]] = {}
    for each in locks:
        by_name.setdefault(each.name, []).append(each)
    found = []
    for name, some in by_name.items():
        apart = Held.at_once.get(name, (0, 0))[1] > 1
        some = [max(some, key=lambda each: each.cpu)] if apart else some
        figures = {what: sum(getattr(each, what) for each in some) for what in ("wall", "cpu", "waited", "times")}
        found.append({"name": f"{name}, one of several" if apart else name, **figures})
    return found


def main() -> None:
    asked = json.loads(sys.argv[1])
    if asked.get("cores") and hasattr(os, "sched_setaffinity"):
        first = asked.get("first_core", 0)
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[first : first + asked["cores"]])
    locks = time_locks() if asked.get("meter") == "locks" else []
    import shardmill
    from shardmill import Limits, Spec

    held = time_turns() if asked.get("meter") == "locks" else []
    meter = library()
    hops = Hops() if asked.get("meter") == "hops" else None
    clock = Clock(meter if asked.get("meter") == "gil" else None, locks, hops)
    choices = {name: asked[name] for name in ("inputs", "output", "separator", "tokenizer", "val_fraction")}
    with hooks(asked, meter):
        limits = Limits(workers=asked["workers"])
        result = shardmill.prepare(Spec(**choices), limits=limits, on_start=clock.start)
        clock.stop()
    if not asked.get("engine", True) and meter.bytes_not_encoded() < asked["text"] * 0.9:
        sys.exit("bench_cores: the engine still encodes; without_engine must replace what the workers call now")
    print(
        json.dumps(
            {
                "wall": clock.wall,
                "cpu": clock.cpu,
                "others": clock.others,
                "gil": clock.gil,
                "hops": clock.hops,
                "workers": result.run["workers"],
                "peak": _peak(),
                "locks": summed(locks + held),
            }
        )
    )


if __name__ == "__main__":
    main()
