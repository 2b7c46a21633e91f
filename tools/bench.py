"""Measures the real command against what shardmill promises: speed, memory, start-up → JSON and a table for the docs.

    python tools/bench.py [TEXT] [--repeat 5] [--quick] [--out bench-results/] [--page docs/benchmarks.md]

Speed is best of N, all contenders taking turns, so that a noisy neighbour disturbs all alike. The two contenders,
(a) raw gigatoken and (b) the usual streaming script, run in a fresh process each: this file with --child.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import os
import platform
import re
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import bench_files
import numpy as np
import psutil  # type: ignore[import-untyped]
from bench_base import MB, MIB, SHARDMILL, Cost, Row, prepare, run

SAMPLE = Path(__file__).resolve().parent.parent / "samples/tinyshakespeare.txt"
SLICE_BYTES = 4 * MIB
SCRIPT_BYTES = 16 * MB  # the usual script is slow, and no faster on more
SHORTEST_SECONDS = 0.3  # a run that takes less than this beyond start-up measures only the noise of start-up
DOCUMENT_BYTES = 58
HAN = "".join(map(chr, range(0x4E00, 0x9FA6)))


def child(name: str, file: Path) -> Cost:
    """The cost that a contender, run in a process of its own, says its timed part had."""
    command = [sys.executable, __file__, "--child", name, str(file)]
    return Cost(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


# ---- the contenders, each in its own process


def raw_gigatoken(file: Path) -> Cost:
    """(a) One thread over bytes in memory, nothing kept; making the engine and its first call are not counted."""
    import gigatoken

    from shardmill.tokens.tokenizer import vocabulary_file

    data = file.read_bytes()
    engine = gigatoken.Tokenizer.from_tiktoken(vocabulary_file("r50k_base"), pretokenizer="gpt2")
    engine.encode_batch([b"x"], parallel=False)

    def encode() -> None:
        for at in range(0, len(data), SLICE_BYTES):
            engine.encode_batch([data[at : at + SLICE_BYTES]], parallel=False)

    return _timed(encode)


def usual_script(file: Path) -> Cost:
    """(b) tiktoken over chunks of 1,000,000 characters, appended to a file of uint16."""
    import tiktoken

    from shardmill.tokens.tokenizer import ENCODINGS, read_ranks

    known = ENCODINGS["r50k_base"]
    ranks = read_ranks("r50k_base")
    encoding = tiktoken.Encoding("gpt2", pat_str=known.pattern, mergeable_ranks=ranks, special_tokens=known.specials)
    encoding.encode_ordinary("x")

    def encode() -> None:
        with open(file, encoding="utf-8") as text, open(file.with_suffix(".bin"), "wb") as tokens:
            while chunk := text.read(1_000_000):
                np.array(encoding.encode_ordinary(chunk), np.uint16).tofile(tokens)

    return _timed(encode)


def _timed(work: Callable[[], None]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


CHILDREN = {"gigatoken": raw_gigatoken, "script": usual_script}


# ---- texts that are hard on memory, written piece by piece


def pieces_of(text: Path) -> Iterator[bytes]:
    with open(text, "rb") as f:
        while piece := f.read(MIB):
            yield piece


def english(text: Path) -> Iterator[bytes]:
    """The text again and again, a counter before each copy."""
    for copy in itertools.count():
        yield b"\n\ncopy %d\n\n" % copy
        yield from pieces_of(text)


def unseen_words() -> Iterator[bytes]:
    """Words of 5 to 12 letters, none of them twice: counters, scrambled by a factor that is prime to 26."""
    for start in itertools.count(step=4096):
        counter = np.arange(start, start + 4096, dtype=np.int64)
        for length in range(5, 13):
            code = counter * 1_000_000_007 % 26**length
            letters = np.full((len(counter), length + 1), ord(" "), np.uint8)
            for place in range(length):
                letters[:, place] = ord("a") + code // 26**place % 26
            yield letters.tobytes()


def one_line_of(alphabet: str) -> Iterator[bytes]:
    """Characters in any order, never a space."""
    rng = np.random.default_rng(0)
    letters = np.array(list(alphabet))
    while True:
        yield "".join(letters[rng.integers(0, len(letters), MIB // 4)]).encode()


def one_line_documents() -> Iterator[bytes]:
    """Each DOCUMENT_BYTES long."""
    for number in itertools.count():
        yield b"%08d is the number of this document, and this is all.\n" % number


def write_text(file: Path, pieces: Iterator[bytes], size: int) -> Path:
    """The first size bytes of pieces, or all of them; ends with a whole character."""
    with open(file, "wb+") as f:
        while f.tell() < size and (piece := next(pieces, b"")):
            f.write(piece)
        end = min(size, f.tell())
        f.seek(end)
        while b"\x80" <= f.read(1) < b"\xc0":  # inside a character
            end -= 1
            f.seek(end)
        f.truncate(end)
    return file


# ---- what is measured


def measure_speed(text: Path, folder: Path, repeat: int) -> dict[str, list[Cost]]:
    """All contenders in turn, repeat times."""
    whole = folder / "whole.txt"
    whole.symlink_to(text.resolve())
    head = write_text(folder / "head.txt", pieces_of(text), SCRIPT_BYTES)
    small = write_text(folder / "small.txt", pieces_of(text), 1000)
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
    best = {name: Cost(wall=min(c.wall for c in many), cpu=min(c.cpu for c in many)) for name, many in costs.items()}
    one, two = _less(best["one"], best["start"]), _less(best["two"], best["start_two"])
    rows = [
        Row("text", f"{text.name}, {size / MB:,.1f} MB"),
        Row("(a) raw gigatoken, in memory, one thread", _rate(size, best["raw"])),
        Row("(b) the usual streaming script", _rate(min(SCRIPT_BYTES, size), best["script"])),
        Row("shardmill's start-up, not counted below", f"{best['start'].wall:.2f} s"),
    ]
    if min(one.wall, two.wall) < SHORTEST_SECONDS:
        return [*rows, Row("shardmill, file to files", "the text is too small to tell; name a larger one")]
    return [*rows, *_our_rows(one, two, best["raw"], size / min(SCRIPT_BYTES, size) * best["script"].wall, size)]


def _our_rows(one: Cost, two: Cost, raw: Cost, script_wall: float, size: int) -> list[Row]:
    of_raw, of_script, of_one = raw.wall / one.wall, script_wall / one.wall, one.wall / two.wall
    return [
        Row("shardmill, 1 worker, file to files", _rate(size, one)),
        Row("shardmill, 2 workers", _rate(size, two)),
        Row("1 worker / (a)", f"{of_raw:.2f} (by CPU time {raw.cpu / one.cpu:.2f})", "≥ 0.80", of_raw >= 0.8),
        Row("1 worker / (b)", f"{of_script:.1f}×", "≥ 12×", of_script >= 12),
        Row("2 workers / 1 worker", f"{of_one:.2f}×", "≥ 1.7×", of_one >= 1.7),
    ]


def _less(cost: Cost, start: Cost) -> Cost:
    return Cost(wall=cost.wall - start.wall, cpu=cost.cpu - start.cpu)


def _rate(size: int, cost: Cost) -> str:
    return f"{size / MB / cost.wall:,.1f} MB/s, {cost.cpu * 1000 * MB / size:.2f} CPU s per GB"


def measure_memory(text: Path, folder: Path, scale: int) -> dict[str, Cost]:
    """The cost of each hard text with 2 workers; scale shrinks them."""
    texts: dict[str, tuple[Callable[[], Iterator[bytes]], int]] = {
        "English, 250 MB": (lambda: english(text), 250 * MB),
        "English, 1 GB": (lambda: english(text), 1000 * MB),
        "words never seen twice, 100 MB": (unseen_words, 100 * MB),
        "words never seen twice, 400 MB": (unseen_words, 400 * MB),
        "one 300 MB line of letters and digits": (lambda: one_line_of(string.ascii_letters + string.digits), 300 * MB),
        "one 300 MB line of Chinese characters": (lambda: one_line_of(HAN), 300 * MB),
        "2,000,000 one-line documents": (one_line_documents, 2_000_000 * DOCUMENT_BYTES),
    }
    costs = {}
    for name, (pieces, size) in texts.items():
        file = write_text(folder / "memory.txt", pieces(), size // scale)
        options = ("--separator", r"\n") if pieces is one_line_documents else ()
        costs[name] = prepare(file, "--workers", "2", *options, watch=True)
    return costs


def memory_rows(costs: dict[str, Cost], *, quick: bool) -> list[Row]:
    peaks = {name: cost.peak / MIB for name, cost in costs.items()}
    rows = [Row(f"peak memory: {name}", f"{peak:.0f} MiB", "≤ 512 MiB", peak <= 512) for name, peak in peaks.items()]
    for what, less, more in (("English", "250 MB", "1 GB"), ("words never seen twice", "100 MB", "400 MB")):
        growth = peaks[f"{what}, {more}"] / peaks[f"{what}, {less}"]
        # A tenth of the text does not fill the caches: the peak still grows with it.
        kept = None if quick else growth <= 1.05
        rows.append(Row(f"peak memory of 4 times the input: {what}", f"{growth:.2f}×", "≤ 1.05×", kept))
    return rows


def startup_rows(text: Path, folder: Path) -> list[Row]:
    usage = min(run([SHARDMILL, "--help"]).wall for _ in range(5))
    file = write_text(folder / "one-mb.txt", english(text), MB)
    whole = min(prepare(file).wall for _ in range(3))
    return [
        Row("shardmill --help", f"{usage:.2f} s", "< 0.5 s", usage < 0.5),
        Row("1 MB of text, the whole command", f"{whole:.2f} s", "< 2 s", whole < 2),
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
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found.group(1) if found else platform.processor()


def table(machine: dict[str, str], rows: list[Row], *, quick: bool) -> str:
    said = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = ["| what | figure | promised |", "|---|---|---|"]
    for row in rows:
        lines.append(f"| {row.what} | {row.figure}{' **(missed)**' if row.kept is False else ''} | {row.promised} |")
    note = ["", "Memory inputs shrunk by 10: a smoke test, no measurement."] if quick else []
    return "\n".join([*lines, "", f"Measured by `make bench` on: {said}.", *note])


def put_into(page: Path, name: str, text: str) -> None:
    """Replace what is between the two markers of that name."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        sys.exit(f"{page} has no {start} … {end} to put the table between")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def choose_text(given: str | None) -> Path:
    """The text asked for, else the bundled sample: once, since a text repeated would flatter every cache."""
    text = Path(given or os.environ.get("BENCH_TEXT") or SAMPLE)
    if not text.is_file():
        sys.exit(f"bench: no file {text}; name a UTF-8 text file: python tools/bench.py TEXT")
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what shardmill promises.")
    parser.add_argument("text", nargs="?", help="a UTF-8 text; default: $BENCH_TEXT, else the bundled sample")
    parser.add_argument("--repeat", type=int, default=5, help="best of this many (default: 5)")
    parser.add_argument("--quick", action="store_true", help="shrink the inputs of the memory part by 10")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="for bench.json and temporary files")
    parser.add_argument("--page", type=Path, help="put the table between the bench markers of this page")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(CHILDREN[options.child](Path(options.text)), default=dataclasses.asdict))
        return
    text = choose_text(options.text)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as name:  # not in /tmp, which may be memory
        folder = Path(name)
        speed = measure_speed(text, folder, options.repeat)
        memory = measure_memory(text, folder, 10 if options.quick else 1)
        rows = [
            *speed_rows(speed, text),
            *memory_rows(memory, quick=options.quick),
            *startup_rows(text, folder),
            *bench_files.rows(text, folder, options.repeat),
        ]
    result = {"format": 1, "quick": options.quick, "machine": stamp(), "rows": rows, "speed": speed, "memory": memory}
    content = json.dumps(result, indent=1, ensure_ascii=False, default=dataclasses.asdict)
    (options.out / "bench.json").write_text(content + "\n", encoding="utf-8")
    shown = table(stamp(), rows, quick=options.quick)
    print(shown)
    if options.page:
        put_into(options.page, "bench", shown)


if __name__ == "__main__":
    main()
