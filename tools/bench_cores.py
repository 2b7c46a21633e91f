"""`make bench-cores`: what a GB of text costs from each kind of input, and what keeps more cores from helping.

    python tools/bench_cores.py [TEXT] [--tokenizer tokenizer.json] [--only jsonl,parquet] [--repeat 5] [--quick] [--write]
    python tools/bench_cores.py [TEXT] --scale 1,2,4,8,16    on a machine with so many cores: the speed with each number
    python tools/bench_cores.py [TEXT] --against ../before   beside another checkout whose C is compiled, in turns

The same documents of about 3 KB from each kind of file, each figure in a process of its own (bench_cores_job.py), best
of N, all inputs taking turns. Seconds are for each GB of text; what a job of 20 documents takes is subtracted. With
sixteen workers on two cores, "held" counts only the time in which the holder had a core: with a core for each worker
the rest would not be there. Calls are those of functions written in Python, by any thread, for each GB; opens are all of
the job, those of its outputs and of modules among them.

One worker gets one core, two get two; those that are metered get all.

The GIL or a lock that is held for x of the c CPU seconds of a GB keeps the speed below c / x times that of one core.
Locks are those that Python's threading makes, and the turn to get a place in the output; locks inside C are not seen.
"""

import argparse
import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import choose_text, put_into, stamp
from bench_base import MB, MIB, Row

JOB = Path(__file__).with_name("bench_cores_job.py")
PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"
SEPARATOR = "<|endoftext|>"
DOCUMENT_CHARACTERS = 3000
FILES = 8
ROWS_IN_GROUP = 1000
LARGE_GROUP = 20 * MB
SHORT_CHARACTERS, SHORT_DOCUMENTS = 196, 1_000_000
QUICK_BYTES = 16 * MB
MANY = 16
BESIDE = (1, 2, MANY)
PROMISED = ("text", "jsonl", "zst", "parquet")
TINY, TINY_DOCUMENTS = "tiny", 20
# Enough of the documents are in the first tenth, so that no first pass reads everything.
VAL_FRACTION = 0.01
GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A kind of input: its files, the bytes of text in them, and what is promised for it."""

    name: str
    files: tuple[str, ...]
    text: int
    separator: str | None = None
    tokenizer: str = "gpt2"
    alone: Callable[[str], object] | None = None
    """Reads a file with its decompressor and parser, or with pyarrow, and nothing else."""
    serial: Callable[[str], object] | None = None
    """The part of that which one thread must do."""


# ---- the inputs


def documents_of(text: Path) -> list[str]:
    """Paragraphs of the text, put together to documents of some 3 KB."""
    documents, parts, length = [], [], 0
    for paragraph in re.split(r"\n\n+", text.read_text(encoding="utf-8")):
        parts.append(paragraph)
        length += len(paragraph)
        if length >= DOCUMENT_CHARACTERS:
            documents.append("\n\n".join(parts))
            parts, length = [], 0
    return documents


def make_inputs(text: Path, folder: Path) -> None:
    """In a process of its own: this takes much memory. Writes the sizes of the texts to sizes.json."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = documents_of(text)
    if len(documents) < FILES:
        sys.exit(f"bench_cores: {text} has only {len(documents)} documents of 3 KB; name a larger text")
    bytes_in_all = sum(len(document.encode()) for document in documents)
    (folder / "running.txt").write_text("\n\n".join(documents), encoding="utf-8")
    (folder / "separated.txt").write_text(SEPARATOR.join(documents), encoding="utf-8")
    large = max(1, LARGE_GROUP * len(documents) // bytes_in_all)
    each = -(-len(documents) // FILES)
    for number in range(FILES):
        some = documents[number * each : (number + 1) * each]
        lines = "".join(_line(number * each + i, document) for i, document in enumerate(some)).encode()
        (folder / f"part-{number}.jsonl").write_bytes(lines)
        _compress(lines, folder / f"part-{number}.jsonl.zst")
        table = pa.table({"id": [f"document-{i}" for i in range(len(some))], "text": some})
        pq.write_table(table, folder / f"part-{number}.parquet", compression="zstd", row_group_size=ROWS_IN_GROUP)
        pq.write_table(table, folder / f"large-{number}.parquet", compression="zstd", row_group_size=large)
        pq.write_table(table, folder / f"snappy-{number}.parquet")  # as pandas does: one row group
    _compress(b"".join((folder / f"part-{n}.jsonl").read_bytes() for n in range(FILES)), folder / "one.jsonl.zst")
    (folder / "tiny.jsonl").write_text("".join(_line(n, documents[n % FILES]) for n in range(TINY_DOCUMENTS)))
    short = 0
    with open(folder / "short.jsonl", "w", encoding="utf-8") as file:
        for number, piece in enumerate(_short_documents("\n\n".join(documents))):
            file.write(_line(number, piece))
            short += len(piece.encode())
    (folder / "sizes.json").write_text(json.dumps({"text": bytes_in_all, "short": short, "documents": number + 1}))


def _short_documents(text: str) -> Iterator[str]:
    for at in range(0, min(len(text), SHORT_DOCUMENTS * SHORT_CHARACTERS), SHORT_CHARACTERS):
        if (piece := text[at : at + SHORT_CHARACTERS]).strip():
            yield piece


def _line(number: int, document: str) -> str:
    record = {"id": f"document-{number}", "text": document, "url": f"https://example.org/{number}", "score": 0.5}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _compress(data: bytes, to: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(to), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as packed:  # level 3 is its default
        packed.write(data)


# ---- reading alone


def parse(lines: bytes) -> None:
    """Our parser of lines."""
    import numpy as np

    from shardmill.documents.native import texts_of_lines

    texts_of_lines(np.frombuffer(lines, np.uint8), lines.count(b"\n"), ("text",))


def parse_lines(path: str) -> None:
    """A megabyte at a time."""
    with open(path, "rb") as file:
        while block := file.read(MIB):
            parse(block + file.readline())


def decompress_and_parse(path: str) -> None:
    import pyarrow as pa

    with pa.input_stream(path) as file:
        rest = b""
        while block := file.read(MIB):
            whole, found, rest = (rest + block).rpartition(b"\n")
            parse(whole + found)


def decompress(path: str) -> None:
    import pyarrow as pa

    with pa.input_stream(path) as file:
        while file.read(MIB):
            pass


def read_column(path: str) -> None:
    """The text column, a row group at a time, in one thread."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        file.read_row_group(group, columns=["text"], use_threads=False)


def inputs_of(folder: Path, tokenizer: str | None) -> list[Input]:
    sizes = json.loads((folder / "sizes.json").read_text())
    text, short = sizes["text"], sizes["short"]

    def many(pattern: str) -> tuple[str, ...]:
        return tuple(str(folder / pattern.format(number)) for number in range(FILES))

    lines, packed, tables = many("part-{}.jsonl"), many("part-{}.jsonl.zst"), many("part-{}.parquet")
    tiny = Input(name=TINY, files=(str(folder / "tiny.jsonl"),), text=0)
    running = Input(name="text", files=(str(folder / "running.txt"),), text=text)
    found = [
        tiny,
        running,
        Input(name="separated", files=(str(folder / "separated.txt"),), text=text, separator=SEPARATOR),
        Input(name="jsonl", files=lines, text=text, alone=parse_lines),
        Input(name="zst", files=packed, text=text, alone=decompress_and_parse),
        Input(
            name="one-zst",
            files=(str(folder / "one.jsonl.zst"),),
            text=text,
            alone=decompress_and_parse,
            serial=decompress,
        ),
        Input(name="parquet", files=tables, text=text, alone=read_column),
        Input(name="parquet-20MB", files=many("large-{}.parquet"), text=text, alone=read_column),
        Input(name="parquet-snappy", files=many("snappy-{}.parquet"), text=text, alone=read_column),
        Input(name="short", files=(str(folder / "short.jsonl"),), text=short, alone=parse_lines),
    ]
    if tokenizer:
        same = (tiny, running, *(each for each in found if each.name in ("jsonl", "zst", "parquet")))
        found += [dataclasses.replace(each, name=f"{each.name}-hf", tokenizer=tokenizer, alone=None) for each in same]
    return found


LABELS = {
    "text": "running text",
    "separated": "text, separator",
    "jsonl": "8 JSONL",
    "zst": "8 .jsonl.zst",
    "one-zst": "one .jsonl.zst",
    "parquet": "8 Parquet, 1,000 rows a group",
    "parquet-20MB": "8 Parquet, groups of 20 MB",
    "parquet-snappy": "8 Parquet, Snappy, one row group",
    "short": "documents of 200 bytes",
}


def _place(name: str) -> tuple[bool, int]:
    """Where a row stands in the tables."""
    return name.endswith("-hf"), [TINY, *LABELS].index(name.removesuffix("-hf"))


def label(name: str) -> str:
    return LABELS[name.removesuffix("-hf")] + (", Hugging Face tokenizer" if name.endswith("-hf") else "")


# ---- measuring


class Bench:
    def __init__(self, folder: Path, inputs: list[Input], repeat: int) -> None:
        self.folder, self.inputs, self.repeat = folder, inputs, repeat
        self.found: dict[str, dict[str, Any]] = {each.name: {"gb": each.text / 1e9} for each in inputs}

    def job(
        self, given: Input, workers: int, meter: str | None = None, *, engine: bool = True, first_core: int = 0
    ) -> list[str]:
        asked = {
            "inputs": given.files,
            "output": str(self.folder / f"out-{first_core}"),
            "separator": given.separator,
            "tokenizer": given.tokenizer,
            "val_fraction": VAL_FRACTION,
            "workers": workers,
            "cores": workers if meter is None else None,
            "first_core": first_core,
            "meter": meter,
            "engine": engine,
            "text": given.text,
        }
        return [sys.executable, str(JOB), json.dumps(asked)]

    def measure(self) -> None:
        for _ in range(self.repeat):
            for each in self.inputs:
                for workers in (1, 2):
                    self._keep(each, f"{workers}", self._run(each, workers))
                if each.name.removesuffix("-hf") in (TINY, *PROMISED):
                    self._keep(each, "pair", self._pair(each))
                for what, read in (("alone", each.alone), ("serial", each.serial)):
                    if read:
                        self._keep(each, what, self._alone(each, read.__name__))
        for _ in range(max(1, self.repeat // 2)):
            for each in self.inputs:
                self._keep(each, "gil 1", self._run(each, 1, "gil"))
                self._keep(each, f"hops {MANY}", self._run(each, MANY, "hops"))
                for meter in ("gil", "locks"):
                    self._keep(each, f"{meter} {MANY}", self._run(each, MANY, meter))
                    if not each.name.endswith("-hf"):
                        self._keep(each, f"{meter} {MANY} stub", self._run(each, MANY, meter, engine=False))

    def scale(self, numbers: list[int]) -> None:
        """Each number of workers, on as many cores; and with the most of them, what is held."""
        for _ in range(self.repeat):
            for each in self.inputs:
                for workers in numbers:
                    self._keep(each, f"{workers}", self._run(each, workers))
                for meter in ("gil", "locks"):
                    self._keep(each, meter, self._run(each, numbers[-1], meter))
                    if not each.name.endswith("-hf"):
                        self._keep(each, f"{meter} stub", self._run(each, numbers[-1], meter, engine=False))

    def beside(self, other: Path) -> None:
        """The package here and that of another checkout, in turns: neither finds the machine as the other does not."""
        for _ in range(self.repeat):
            for each in self.inputs:
                for workers in BESIDE:
                    self._keep(each, f"{workers}", self._run(each, workers))
                    self._keep(each, f"{workers} other", self._run(each, workers, tree=other))

    def _run(self, given: Input, *asked: Any, tree: Path | None = None, **named: Any) -> dict[str, Any]:
        env = {**os.environ, "PYTHONPATH": str((tree or JOB.parent.parent) / "src")}
        done = subprocess.run(self.job(given, *asked, **named), stdout=subprocess.PIPE, text=True, env=env)
        shutil.rmtree(self.folder / "out-0", ignore_errors=True)
        if done.returncode:
            sys.exit(f"bench_cores: {given.name}: exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        found["locks"].sort(key=lambda each: -each["cpu"])
        return found

    def _pair(self, given: Input) -> dict[str, Any]:
        """Two jobs at once, each with a worker and a core of its own: what two cores of this machine are worth."""
        commands = [self.job(given, 1, first_core=core) for core in (0, 1)]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        found = [json.loads(each.communicate()[0])["wall"] for each in started]
        for core in (0, 1):
            shutil.rmtree(self.folder / f"out-{core}", ignore_errors=True)
        return {"wall": max(found)}

    def _alone(self, given: Input, read: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--alone", read, *given.files]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return found

    def _keep(self, given: Input, what: str, new: dict[str, Any]) -> None:
        """The best of each figure; of locks, those of the run whose worst was least; of peaks, the highest."""
        best = self.found[given.name].setdefault(what, new)
        best["peak"] = max(best.get("peak", 0), new.get("peak", 0))
        for name in {"wall", "cpu", "others"} & new.keys():
            best[name] = min(best[name], new[name])
        for name in ("gil", "hops"):
            for figure, value in new.get(name, {}).items():
                best[name][figure] = min(best[name][figure], value)
        if new.get("locks") and new["locks"][0]["cpu"] < best["locks"][0]["cpu"]:
            best["locks"] = new["locks"]


def per_gb(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All figures for a GB of text, without what every job takes however little text there is."""
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted(found, key=_place):
        start = found[TINY + ("-hf" if name.endswith("-hf") else "")]
        if name.startswith(TINY):
            continue
        rows[name] = {}
        for what, given in found[name].items():
            if what == "gb":
                continue
            new = rows[name][what] = json.loads(json.dumps(given))
            once = start.get(what, {})
            for each, less in ((new, once), *((new.get(name, {}), once.get(name, {})) for name in ("gil", "hops"))):
                for figure in {"wall", "cpu", "held", "running", "calls"} & each.keys():
                    each[figure] = max(0.0, each[figure] - less.get(figure, 0.0)) / found[name]["gb"]
            for lock in new.get("locks", []):
                lock["cpu"] /= found[name]["gb"]
                lock["wall"] /= found[name]["gb"]
    return rows


def alone(name: str, paths: list[str]) -> None:
    """The cost of reading files with one of the functions above, nothing else; imports are not counted."""
    read = {f.__name__: f for f in (parse_lines, decompress, decompress_and_parse, read_column)}[name]
    import pyarrow.parquet  # noqa: F401

    parse(b"{}\n")
    before, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for path in paths:
        read(path)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    print(json.dumps({"wall": time.perf_counter() - before, "cpu": used}))


# ---- what is said about it


def limit_of(found: dict[str, Any]) -> str:
    """What keeps more cores from helping, and how many can help at most."""
    lock, cpu = _worst(found, f"locks {MANY}"), found["1"]["cpu"]
    held = {"the GIL": found[f"gil {MANY}"]["gil"]["running"], lock["name"]: lock["cpu"]}
    if "serial" in found:
        held["the decompressor"] = found["serial"]["cpu"]
    worst = max(held, key=lambda name: held[name])
    most = cpu / max(held[worst], 1e-6)
    return f"{worst}, at {most:.1f} cores" if most < MANY else f"CPU, up to {most:.0f} cores"


def _worst(found: dict[str, Any], what: str) -> dict[str, Any]:
    locks = found[what]["locks"]
    return locks[0] if locks else {"name": "no lock", "cpu": 0.0, "wall": 0.0}


def tables(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| input | CPU, 1 worker | read alone, CPU | GIL held, 1 worker | wall, 1 core | wall, 2 cores | 2 over 1 | cores busy of 2 | peak MiB, 1 / 2 / 16 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, each in found.items():
        one, two, read = each["1"], each["2"], each.get("alone")
        peaks = " / ".join(f"{each[what]['peak'] / MIB:.0f}" for what in ("1", "2", f"gil {MANY}"))
        cells = [label(name), f"{one['cpu']:.2f}", f"{read['cpu']:.2f}" if read else "–"]
        cells += [f"{each['gil 1']['gil']['running']:.2f}", f"{one['wall']:.2f}"]
        cells += [f"{two['wall']:.2f}", f"{one['wall'] / two['wall']:.2f}×", f"{two['cpu'] / two['wall']:.2f}", peaks]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| input, 16 workers | calls of Python | opens | GIL held | without the engine | busiest lock held | without the engine | which | limited by |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for name, each in found.items():
        real, stub = f" {MANY}", f" {MANY} stub"
        held = [f"{each[f'gil{how}']['gil']['running']:.2f}" if f"gil{how}" in each else "–" for how in (real, stub)]
        locks = [f"{_worst(each, f'locks{how}')['cpu']:.2f}" if f"locks{how}" in each else "–" for how in (real, stub)]
        hops = each[f"hops{real}"]["hops"]
        cells = [label(name), f"{hops['calls']:,.0f}", f"{hops['opens']}", *held, *locks]
        cells += [_worst(each, f"locks{real}")["name"], limit_of(each)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def table_of_scale(found: dict[str, dict[str, Any]], numbers: list[int]) -> list[str]:
    """MB of text a second with each number of workers, and what the most of them hold, in seconds for each GB."""
    most = numbers[-1]
    head = ["input", *(f"{workers}" for workers in numbers), f"{most} over {numbers[0]}"]
    head += ["peak MiB", "GIL held", "without the engine", "busiest lock", "without the engine"]
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for name, each in found.items():
        cells = [label(name), *(f"{1e3 / each[f'{workers}']['wall']:,.0f}" for workers in numbers)]
        cells += [f"{each[f'{numbers[0]}']['wall'] / each[f'{most}']['wall']:.1f}×"]
        cells += [f"{max(each[what]['peak'] for what in (f'{most}', 'gil')) / MIB:,.0f}"]
        cells += [f"{each[what]['gil']['running']:.3f}" if what in each else "–" for what in ("gil", "gil stub")]
        cells += [f"{_worst(each, what)['cpu']:.3f}" if what in each else "–" for what in ("locks", "locks stub")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def table_beside(found: dict[str, dict[str, Any]], other: Path) -> list[str]:
    """Of this checkout and the other: how long, how much CPU time, and peaks."""
    lines = [
        f"| input | workers | wall | in {other.name} | this over that | CPU | in {other.name} | peak MiB | in {other.name} |",
        "|---" + "|--:" * 8 + "|",
    ]
    for name, each in found.items():
        for workers in BESIDE:
            pair = each[f"{workers}"], each[f"{workers} other"]
            wall, cpu, peak = (
                [f"{one[what] / unit:.{digits}f}" for one in pair]
                for what, unit, digits in (("wall", 1, 2), ("cpu", 1, 2), ("peak", MIB, 0))
            )
            times = f"{pair[0]['wall'] / pair[1]['wall']:.2f}"
            lines.append(f"| {' | '.join([label(name), f'{workers}', *wall, times, *cpu, *peak])} |")
    return lines


def promises(found: dict[str, dict[str, Any]]) -> list[Row]:
    """What is promised about those inputs that were measured."""
    rows = []
    cpu = {name: each["1"]["cpu"] for name, each in found.items()}
    for name, each in found.items():
        if name.removesuffix("-hf") in PROMISED:
            times, pair = (each["1"]["wall"] * n / each[what]["wall"] for n, what in ((1, "2"), (2, "pair")))
            figure = f"{times:.2f}×; two processes, each on its core: {pair:.2f}×"
            rows.append(Row(f"{label(name)}: 2 cores over 1", figure, "≥ 1.85×", times >= 1.85))
        if name in ("text", "jsonl", "parquet"):
            for how, said in (("", ""), (" stub", ", without the engine")):
                gil = each[f"gil {MANY}{how}"]["gil"]["running"]
                lock = _worst(each, f"locks {MANY}{how}")["cpu"]
                rows.append(Row(f"{label(name)}: GIL held by 16 workers{said}", f"{gil:.2f}", "≤ 0.15", gil <= 0.15))
                rows.append(Row(f"{label(name)}: any lock{said}", f"{lock:.2f}", "≤ 0.15", lock <= 0.15))
        if name in ("jsonl", "parquet") and "separated" in cpu:
            most = cpu["separated"] + 1.2 * each["alone"]["cpu"]
            figure = f"{cpu[name]:.2f}, at most {most:.2f}"
            rows.append(Row(f"{label(name)}: CPU", figure, "separated text + 1.2 × reading alone", cpu[name] <= most))
        most_peak = 1.5 * GIB if name.startswith("parquet") else GIB
        if (peak := each[f"gil {MANY}"]["peak"]) and not name.endswith("-hf"):
            figure, promised = f"{peak / MIB:.0f} MiB", f"≤ {most_peak / MIB:.0f} MiB"
            rows.append(Row(f"{label(name)}: peak memory of 16 workers", figure, promised, peak <= most_peak))
    if {"short", "text"} <= cpu.keys():
        share = cpu["text"] / cpu["short"]
        rows.append(Row("documents of 200 bytes / running text, by CPU", f"{share:.2f}", "≥ 0.5", share >= 0.5))
    if {"separated", "jsonl"} <= cpu.keys():
        share = cpu["jsonl"] / cpu["separated"]
        rows.append(Row("text with a separator / JSONL, by CPU", f"{share:.2f}", "≥ 1", share >= 1))
    if "one-zst" in found:
        busy = found["one-zst"]["2"]["cpu"] / found["one-zst"]["2"]["wall"]
        rows.append(Row("one .jsonl.zst: cores busy of 2", f"{busy:.2f}", "≥ 1.85", busy >= 1.85))
    return rows


def report(found: dict[str, dict[str, Any]], text: Path, size: int, scale: list[int], other: Path | None) -> str:
    lines = ["Seconds for each GB of text; each figure is the best of several runs.", ""]
    if other:
        lines += table_beside(found, other)
    elif scale:
        lines += table_of_scale(found, scale)
    else:
        lines += [*tables(found), "", "| what | figure | promised |", "|---|---|---|"]
        for row in promises(found):
            missed = " **(missed)**" if row.kept is False else ""
            lines.append(f"| {row.what} | {row.figure}{missed} | {row.promised} |")
    said = ", ".join(f"{name} {value}" for name, value in stamp().items())
    others = [figures["others"] for each in found.values() for figures in each.values() if "others" in figures]
    busy = f"Other processes used {sum(others) / len(others):.1f} cores meanwhile."
    return "\n".join(
        [*lines, "", f"Measured by `make bench-cores` on: {said}, text {text.name}, {size / MB:,.0f} MB. {busy}"]
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a UTF-8 text; default: $BENCH_TEXT, else the bundled sample")
    parser.add_argument("--tokenizer", help="a tokenizer.json to measure beside GPT-2")
    parser.add_argument("--only", help=f"some of: {', '.join(LABELS)}, and the same with -hf; separated by commas")
    parser.add_argument("--repeat", type=int, default=5, help="best of this many (default: 5)")
    parser.add_argument("--megabytes", type=int, help="use only the beginning of the text")
    parser.add_argument(
        "--scale", default="", help="numbers of workers, separated by commas: the speed with each of them"
    )
    parser.add_argument(
        "--against", type=Path, help="another checkout of this repository, to measure in turns with this"
    )
    parser.add_argument("--quick", action="store_true", help="16 MB, once: about a minute, and no measurement")
    parser.add_argument("--folder", type=Path, help="make the inputs there, or use those that are there; keep them")
    parser.add_argument("--json", type=Path, help="all figures; those that are there are kept where they are better")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args() if "--alone" not in sys.argv else argparse.Namespace(alone=sys.argv[2:])


def main() -> None:
    options = arguments()
    if options.alone:
        return alone(options.alone[0], options.alone[1:])
    text = choose_text(options.text)
    if options.make:
        return make_inputs(text, options.make)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="bench-cores-", dir=memory if memory.is_dir() else None) as name:
        folder = options.folder or Path(name)
        if not (folder / "sizes.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            part = _beginning(text, folder, QUICK_BYTES if options.quick else (options.megabytes or 0) * MB)
            subprocess.run([sys.executable, __file__, str(part), "--make", str(folder)], check=True)
        inputs = inputs_of(folder, options.tokenizer)
        if options.only:
            wanted = options.only.split(",")
            inputs = [each for each in inputs if each.name in wanted or each.name.startswith(TINY)]
        bench = Bench(folder, inputs, 1 if options.quick else options.repeat)
        if options.json and options.json.exists():
            bench.found |= json.loads(options.json.read_text())
        scale = [int(number) for number in options.scale.split(",") if number]
        if options.against:
            bench.beside(options.against)
        elif scale:
            bench.scale(scale)
        else:
            bench.measure()
        shown = report(per_gb(bench.found), text, max(each.text for each in inputs), scale, options.against)
    print(shown)
    if options.json:
        options.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    if options.write and not (scale or options.against):
        put_into(PAGE, "bench-cores", shown)


def _beginning(text: Path, folder: Path, size: int) -> Path:
    """The text, or a file with its first so many bytes, up to a line."""
    if not size or text.stat().st_size <= size:
        return text
    part = folder / text.name
    with open(text, "rb") as file:
        data = file.read(size)
    part.write_bytes(data[: data.rfind(b"\n") + 1])
    return part


if __name__ == "__main__":
    main()
