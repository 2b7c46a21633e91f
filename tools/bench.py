"""Measures the real command against what shardmill promises: speed, memory, start-up → JSON and a table for the README.

    python tools/bench.py [TEXT] [--repeat 3] [--quick] [--out bench-results/] [--readme README.md]

Speed is best of N, all contenders taking turns, so that a noisy neighbour disturbs all alike. The two contenders,
(a) raw gigatoken and (b) the usual streaming script, run in a fresh process each: this file with --child.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped]

MB = 1_000_000
MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
SHARDMILL = str(Path(sys.executable).with_name("shardmill"))
LIMITS = ("--max-memory", "512MiB", "--progress", "none", "-q")
SAMPLES = (ROOT / "samples/tinyshakespeare.txt", ROOT / "src/shardmill/sample/tinyshakespeare.txt")
SLICE_BYTES = 4 * MIB
SCRIPT_BYTES = 16 * MB  # the usual script is slow, and no faster on more
SMALL_TEXT = 64 * MB  # below this the clock measures little more than its own noise
SAMPLE_SECONDS = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a process took: seconds on the wall and on all cores, and the most bytes its tree had resident."""

    wall: float
    cpu: float
    peak: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of the table; kept is None where nothing was promised."""

    what: str
    figure: str
    promised: str = ""
    kept: bool | None = None


# ---- running things


def run(command: list[str], *, watch: bool = False) -> Cost:
    """The cost of one command; watch also sums the memory of the whole process tree, which takes some time of its own."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
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
    try:
        root = psutil.Process(pid)
        while root.status() != psutil.STATUS_ZOMBIE:
            seen[0] = max(seen[0], sum(process.memory_info().rss for process in [root, *root.children(recursive=True)]))
            time.sleep(SAMPLE_SECONDS)
    except psutil.NoSuchProcess:
        pass


def prepare(file: Path, *options: str, watch: bool = False) -> Cost:
    """`shardmill prepare` of one file into a folder that is removed again."""
    output = file.with_name("output")
    try:
        return run([SHARDMILL, "prepare", str(file), "-o", str(output), *LIMITS, *options], watch=watch)
    finally:
        shutil.rmtree(output, ignore_errors=True)


def child(name: str, file: Path) -> Cost:
    """The cost that a contender, run in a process of its own, says its timed part had."""
    command = [sys.executable, __file__, "--child", name, str(file)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return Cost(wall=answer["wall"], cpu=answer["cpu"])


# ---- the contenders, each in its own process


def raw_gigatoken(file: Path) -> Cost:
    """(a) One thread over bytes in memory, nothing kept; making the engine and its first call are not counted."""
    import gigatoken

    from shardmill.tokens.tokenizer import vocabulary_file

    data = file.read_bytes()
    engine = gigatoken.Tokenizer.from_tiktoken(vocabulary_file("r50k_base"), pretokenizer="gpt2")
    engine.encode_batch([b"x"], parallel=False)
    with _clock() as cost:
        for at in range(0, len(data), SLICE_BYTES):
            engine.encode_batch([data[at : at + SLICE_BYTES]], parallel=False)
    return cost()


def usual_script(file: Path) -> Cost:
    """(b) tiktoken over chunks of 1,000,000 characters, appended to a file of uint16."""
    import tiktoken

    from shardmill.tokens.tokenizer import ENCODINGS, read_ranks

    known = ENCODINGS["r50k_base"]
    ranks = read_ranks("r50k_base")
    encoding = tiktoken.Encoding("gpt2", pat_str=known.pattern, mergeable_ranks=ranks, special_tokens=known.specials)
    encoding.encode_ordinary("x")
    output = file.with_suffix(".bin")
    with _clock() as cost, open(file, encoding="utf-8") as text, open(output, "wb") as tokens:
        while chunk := text.read(1_000_000):
            np.array(encoding.encode_ordinary(chunk), np.uint16).tofile(tokens)
    output.unlink()
    return cost()


class _clock:
    """Times the block it is around; called, it says the cost."""

    def __enter__(self) -> Callable[[], Cost]:
        self._start = time.perf_counter(), time.process_time()
        return lambda: Cost(wall=self._wall, cpu=self._cpu)

    def __exit__(self, *_: object) -> None:
        self._wall, self._cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]


CHILDREN = {"gigatoken": raw_gigatoken, "script": usual_script}


# ---- texts that are hard on memory, written piece by piece


def english(text: Path) -> Iterator[bytes]:
    """The text again and again, a counter before each copy."""
    copy = 0
    while True:
        yield b"\n\ncopy %d\n\n" % copy
        with open(text, "rb") as f:
            while chunk := f.read(MIB):
                yield chunk
        copy += 1


def unseen_words() -> Iterator[bytes]:
    """Words of 5 to 12 letters, none of them twice: counters, scrambled by a factor that is prime to 26."""
    start = 0
    while True:
        counter = np.arange(start, start + 4096, dtype=np.int64)
        for length in range(5, 13):
            code = counter * 1_000_000_007 % 26**length
            letters = np.full((len(counter), length + 1), ord(" "), np.uint8)
            for place in range(length):
                letters[:, place] = ord("a") + code // 26**place % 26
            yield letters.tobytes()
        start += len(counter)


def letters_and_digits() -> Iterator[bytes]:
    """One line without a single space."""
    rng = np.random.default_rng(0)
    alphabet = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", np.uint8)
    while True:
        yield alphabet[rng.integers(0, len(alphabet), MIB)].tobytes()


def han() -> Iterator[bytes]:
    """One line of Chinese characters without punctuation."""
    rng = np.random.default_rng(0)
    while True:
        yield _utf8(rng.integers(0x4E00, 0x9FA6, MIB // 3))


def _utf8(points: npt.NDArray[np.int64]) -> bytes:
    return (
        np.stack([0xE0 | points >> 12, 0x80 | points >> 6 & 63, 0x80 | points & 63], axis=1).astype(np.uint8).tobytes()
    )


def one_line_documents() -> Iterator[bytes]:
    number = 0
    while True:
        yield b"document %d says only this, and that %d is its number in another order\n" % (
            number,
            number * 7919 % 1_000_003,
        )
        number += 1


def write_text(file: Path, pieces: Iterator[bytes], size: int) -> Path:
    """The first size bytes of pieces, to the last whole character."""
    with open(file, "wb") as f:
        while f.tell() < size:
            f.write(next(pieces))
        f.truncate(size)
    with open(file, "rb+") as f:
        f.seek(max(0, size - 4))
        f.truncate(max(0, size - 4) + len(f.read().decode("utf-8", "ignore").encode()))
    return file


def write_documents(file: Path, count: int) -> Path:
    with open(file, "wb") as f:
        for _, line in zip(range(count), one_line_documents(), strict=False):
            f.write(line)
    return file


# ---- what is measured


def measure_speed(text: Path, folder: Path, repeat: int) -> dict[str, list[Cost]]:
    """All contenders in turn, repeat times."""
    with open(text, "rb") as f:
        head = write_text(folder / "head.txt", iter(lambda: f.read(MIB), None), min(SCRIPT_BYTES, text.stat().st_size))
    small = write_text(folder / "small.txt", iter([head.read_bytes()[:1000]]), min(1000, text.stat().st_size))
    whole = folder / "whole.txt"
    whole.symlink_to(text.resolve())
    contenders: dict[str, Callable[[], Cost]] = {
        "raw": lambda: child("gigatoken", whole),
        "start": lambda: prepare(small, "--workers", "1"),
        "one": lambda: prepare(whole, "--workers", "1"),
        "script": lambda: child("script", head),
        "start_two": lambda: prepare(small, "--workers", "2"),
        "two": lambda: prepare(whole, "--workers", "2"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(repeat):
        for name, measure in contenders.items():
            costs[name].append(measure())
    return costs


def speed_rows(costs: dict[str, list[Cost]], text: Path) -> list[Row]:
    size = text.stat().st_size
    best = {name: Cost(wall=min(c.wall for c in all_), cpu=min(c.cpu for c in all_)) for name, all_ in costs.items()}
    raw, script = best["raw"], best["script"]
    one, two = _less(best["one"], best["start"]), _less(best["two"], best["start_two"])
    of_raw, of_script = raw.wall / one.wall, (size / one.wall) / (min(SCRIPT_BYTES, size) / script.wall)
    small = "; small, so these are rough" if size < SMALL_TEXT else ""
    return [
        Row(what="text", figure=f"{text.name}, {size / MB:,.1f} MB{small}"),
        Row(what="(a) raw gigatoken, in memory, one thread", figure=_rate(size, raw)),
        Row(what="(b) the usual streaming script", figure=_rate(min(SCRIPT_BYTES, size), script)),
        Row(what="shardmill, 1 worker, file to files", figure=_rate(size, one)),
        Row(what="shardmill, 2 workers", figure=_rate(size, two)),
        Row(what="its start-up, not counted above", figure=f"{best['start'].wall:.2f} s"),
        Row(
            what="1 worker / (a)",
            figure=f"{of_raw:.2f} (CPU time: {raw.cpu / one.cpu:.2f})",
            promised="≥ 0.80",
            kept=of_raw >= 0.8,
        ),
        Row(what="1 worker / (b)", figure=f"{of_script:.1f}×", promised="≥ 12×", kept=of_script >= 12),
        Row(
            what="2 workers / 1 worker",
            figure=f"{one.wall / two.wall:.2f}×",
            promised="≥ 1.7×",
            kept=one.wall / two.wall >= 1.7,
        ),
    ]


def _less(cost: Cost, start: Cost) -> Cost:
    return Cost(wall=max(1e-3, cost.wall - start.wall), cpu=max(1e-3, cost.cpu - start.cpu))


def _rate(size: int, cost: Cost) -> str:
    return f"{size / MB / cost.wall:,.1f} MB/s, {cost.cpu * 1000 * MB / size:.2f} CPU s per GB"


def measure_memory(text: Path, folder: Path, scale: int) -> dict[str, Cost]:
    """Peaks with 2 workers and 512 MiB; scale shrinks the inputs."""
    inputs: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
        "English, 250 MB": (lambda f: write_text(f, english(text), 250 * MB // scale), ()),
        "English, 1 GB": (lambda f: write_text(f, english(text), 1000 * MB // scale), ()),
        "words never seen twice, 100 MB": (lambda f: write_text(f, unseen_words(), 100 * MB // scale), ()),
        "words never seen twice, 400 MB": (lambda f: write_text(f, unseen_words(), 400 * MB // scale), ()),
        "one 300 MB line of letters and digits": (lambda f: write_text(f, letters_and_digits(), 300 * MB // scale), ()),
        "one 300 MB line of Chinese characters": (lambda f: write_text(f, han(), 300 * MB // scale), ()),
        "2,000,000 one-line documents": (lambda f: write_documents(f, 2_000_000 // scale), ("--separator", r"\n")),
    }
    costs = {}
    for name, (write, options) in inputs.items():
        file = write(folder / "memory.txt")
        costs[name] = prepare(file, "--workers", "2", *options, watch=True)
        file.unlink()
    return costs


def memory_rows(costs: dict[str, Cost], *, quick: bool) -> list[Row]:
    rows = [
        Row(
            what=f"peak memory: {name}",
            figure=f"{cost.peak / MIB:.0f} MiB",
            promised="≤ 512 MiB",
            kept=cost.peak <= 512 * MIB,
        )
        for name, cost in costs.items()
    ]
    for less, more in (
        ("English, 250 MB", "English, 1 GB"),
        ("words never seen twice, 100 MB", "words never seen twice, 400 MB"),
    ):
        growth = costs[more].peak / costs[less].peak
        what = f"its growth, 4 times the input: {less.split(',')[0]}"
        # A tenth of the input does not fill the caches, so that the peak still depends on it.
        rows.append(Row(what=what, figure=f"{growth:.2f}×", promised="≤ 1.05×", kept=None if quick else growth <= 1.05))
    return rows


def startup_rows(text: Path, folder: Path) -> list[Row]:
    hint = min(run([SHARDMILL, "--help"]).wall for _ in range(5))
    file = write_text(folder / "mb.txt", english(text), MB)
    whole = min(prepare(file).wall for _ in range(3))
    return [
        Row(what="shardmill --help", figure=f"{hint:.2f} s", promised="< 0.5 s", kept=hint < 0.5),
        Row(what="1 MB of text, the whole command", figure=f"{whole:.2f} s", promised="< 2 s", kept=whole < 2),
    ]


# ---- what is said about it


def stamp() -> dict[str, str]:
    libraries = ("shardmill", "gigatoken", "tiktoken", "numpy", "pyarrow")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in libraries},
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1) if found else platform.processor()


def table(machine: dict[str, str], rows: list[Row], *, quick: bool) -> str:
    said = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = ["| what | figure | promised |", "|---|---|---|"]
    lines += [
        f"| {row.what} | {row.figure}{' **(missed)**' if row.kept is False else ''} | {row.promised} |" for row in rows
    ]
    note = ["", "Memory inputs shrunk by 10: a smoke test, no measurement."] if quick else []
    return "\n".join([*lines, "", f"Measured by `make bench` on: {said}.", *note])


def put_into(readme: Path, text: str) -> None:
    """Replace what stands between the two bench marks."""
    start, end = "<!-- bench:start -->", "<!-- bench:end -->"
    before, found, rest = readme.read_text().partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        sys.exit(f"bench: {readme} has no {start} … {end} to put the table between")
    readme.write_text(f"{before}{start}\n{text}\n{end}{after}")


def choose_text(given: str | None) -> Path:
    candidates = [given or os.environ.get("BENCH_TEXT"), *SAMPLES]
    text = next((Path(path) for path in candidates if path and (path == given or Path(path).is_file())), None)
    if text is None or not text.is_file():
        sys.exit(f"bench: no text at {text or 'BENCH_TEXT'}; name a UTF-8 text file: python tools/bench.py TEXT")
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what shardmill promises.")
    parser.add_argument("text", nargs="?", help="a UTF-8 text; default: $BENCH_TEXT, else the bundled sample")
    parser.add_argument("--repeat", type=int, default=3, help="best of this many (default: 3)")
    parser.add_argument("--quick", action="store_true", help="shrink the inputs of the memory part by 10")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-results"), help="where bench.json and temporary files go"
    )
    parser.add_argument("--readme", type=Path, help="put the table between the bench marks of this file")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(dataclasses.asdict(CHILDREN[options.child](Path(options.text)))))
        return
    text = choose_text(options.text)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        folder = Path(name)
        speed = measure_speed(text, folder, options.repeat)
        memory = measure_memory(text, folder, 10 if options.quick else 1)
        rows = [*speed_rows(speed, text), *memory_rows(memory, quick=options.quick), *startup_rows(text, folder)]
    machine = stamp()
    costs = {
        **{name: [dataclasses.asdict(c) for c in all_] for name, all_ in speed.items()},
        **{name: dataclasses.asdict(c) for name, c in memory.items()},
    }
    result = {
        "format": 1,
        "quick": options.quick,
        "machine": machine,
        "rows": [dataclasses.asdict(row) for row in rows],
        "costs": costs,
    }
    (options.out / "bench.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    shown = table(machine, rows, quick=options.quick)
    print(shown)
    if options.readme:
        put_into(options.readme, shown)


if __name__ == "__main__":
    main()
