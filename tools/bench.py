"""Measures the real command against what shardmill promises: speed, memory, start-up → JSON and a table for the docs.

    python tools/bench.py [TEXT] [--tokenizer tokenizer.json] [--repeat 5] [--quick] [--out bench-results/]
                          [--page docs/benchmarks.md]

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


def child(name: str, file: Path, *options: str) -> Cost:
    """The cost that a contender, run in a process of its own, says its timed part had."""
    command = [sys.executable, __file__, "--child", name, str(file), *options]
    return Cost(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


# ---- the contenders, each in its own process


def raw_gigatoken(file: Path, tokenizer: str) -> Cost:
    """(a) One thread over bytes in memory, nothing kept; making the engine and its first call are not counted."""
    from bench_tokenizers import gigatoken_maker

    from shardmill.tokens.tokenizer import load

    data, make = file.read_bytes(), gigatoken_maker(load(tokenizer))
    if make is None:
        sys.exit(f"bench: gigatoken cannot load {tokenizer}")
    engine = make()
    engine(b"x")

    def encode() -> None:
        for at in range(0, len(data), SLICE_BYTES):
            engine(data[at : at + SLICE_BYTES])

    return _timed(encode)


def usual_script(file: Path, _tokenizer: str) -> Cost:
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


def measure_speed(text: Path, folder: Path, repeat: int, tokenizer: str | None) -> dict[str, list[Cost]]:
    """All contenders in turn, repeat times."""
    whole = folder / "whole.txt"
    whole.symlink_to(text.resolve())
    head = write_text(folder / "head.txt", pieces_of(text), SCRIPT_BYTES)
    small = write_text(folder / "small.txt", pieces_of(text), 1000)
    contenders: dict[str, Callable[[], Cost]] = {
        "raw": lambda: child("gigatoken", whole),
        "start": lambda: prepare(small, "--workers", "1"),
        "one": lambda: prepare(whole, "--workers", "1"),
        "core": lambda: prepare(whole, "--workers", "1", cores=1),
        "script": lambda: child("script", head),
        "start_two": lambda: prepare(small, "--workers", "2"),
        "two": lambda: prepare(whole, "--workers", "2"),
    }
    if tokenizer is not None:
        named = "--tokenizer", tokenizer
        contenders["hf_raw"] = lambda: child("gigatoken", whole, *named)
        contenders["hf_start"] = lambda: prepare(small, "--workers", "1", *named)
        contenders["hf_one"] = lambda: prepare(whole, "--workers", "1", *named)
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(repeat):
        for name, measure in contenders.items():
            costs[name].append(measure())
    return costs


def speed_rows(costs: dict[str, list[Cost]], text: Path, tokenizer: str | None) -> list[Row]:
    size = text.stat().st_size
    best = {name: Cost(wall=min(c.wall for c in many), cpu=min(c.cpu for c in many)) for name, many in costs.items()}
    one, two = _less(best["one"], best["start"]), _less(best["two"], best["start_two"])
    core = _less(best["core"], best["start"])
    rows = [
        Row("text", f"{text.name}, {size / MB:,.1f} MB"),
        Row("(a) raw gigatoken, in memory, one thread", _rate(size, best["raw"])),
        Row("(b) the usual streaming script", _rate(min(SCRIPT_BYTES, size), best["script"])),
        Row("shardmill's start-up, not counted below", f"{best['start'].wall:.2f} s"),
    ]
    if min(one.wall, two.wall) < SHORTEST_SECONDS:
        return [*rows, Row("shardmill, file to files", "the text is too small to tell; name a larger one")]
    of_raw, of_core = best["raw"].wall / one.wall, core.wall / two.wall
    of_script = size / min(SCRIPT_BYTES, size) * best["script"].wall / one.wall
    rows += [
        Row("shardmill, 1 worker, file to files; another core reads and writes", _rate(size, one)),
        Row("shardmill, 1 worker, all on 1 core", _rate(size, core)),
        Row("shardmill, 2 workers on 2 cores", _rate(size, two)),
        Row("1 worker / (a)", f"{of_raw:.2f}", "≥ 1.5", of_raw >= 1.5),
        Row(
            "1 worker on 1 core / (a)",
            f"{best['raw'].wall / core.wall:.2f} (by CPU time {best['raw'].cpu / core.cpu:.2f})",
        ),
        Row("1 worker / (b)", f"{of_script:.1f}×", "≥ 12×", of_script >= 12),
        Row("2 cores / 1 core", f"{of_core:.2f}×", "≥ 1.7×", of_core >= 1.7),
    ]
    if tokenizer is not None:
        hf = _less(best["hf_one"], best["hf_start"])
        name, of_raw = Path(tokenizer).stem, best["hf_raw"].wall / hf.wall
        rows += [
            Row(f"(a) with {name}", _rate(size, best["hf_raw"])),
            Row(f"1 worker with {name}", _rate(size, hf)),
            Row(f"1 worker / (a) with {name}", f"{of_raw:.2f}", "≥ 1.2", of_raw >= 1.2),
        ]
    return rows


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
        **{name: version for name in libraries if (version := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    """None: it is not installed, but may lie in a folder, as on a machine where nothing can be installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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
    parser.add_argument("--tokenizer", help="a tokenizer.json to measure beside GPT-2")
    parser.add_argument("--repeat", type=int, default=5, help="best of this many (default: 5)")
    parser.add_argument("--quick", action="store_true", help="shrink the inputs of the memory part by 10")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="for bench.json and temporary files")
    parser.add_argument("--page", type=Path, help="put the table between the bench markers of this page")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.child:
        cost = CHILDREN[options.child](Path(options.text), options.tokenizer or "gpt2")
        print(json.dumps(cost, default=dataclasses.asdict))
        return
    text = choose_text(options.text)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as name:  # not in /tmp, which may be memory
        folder = Path(name)
        speed = measure_speed(text, folder, options.repeat, options.tokenizer)
        memory = measure_memory(text, folder, 10 if options.quick else 1)
        rows = [
            *speed_rows(speed, text, options.tokenizer),
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
