"""The part of the bench about files: the same documents from each kind of input, into each format, and between formats.

What is compared takes turns in one process, made for it, in another order each time: starting Python takes as long as
what is measured, and varies by more.
"""

import dataclasses
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from bench_base import MB, MIB, SHARDMILL, Cost, Row, prepare

import shardmill
from shardmill import Limits, Spec, Target
from shardmill.job import job
from shardmill.tokens.encoder import choose_engines
from shardmill.tokens.tokenizer import load

SEPARATOR = "<|endoftext|>"
DOCUMENT_CHARACTERS = 1900
NAMES = ("documents.txt", "documents.jsonl", "documents.parquet", "documents.jsonl.zst")
PART = "part.txt"
FORMATS = ("shards", "build-nanogpt", "llmc", "megatron", "datatrove", "olmo", "mds", "litdata")


def make_inputs(text: Path, folder: Path) -> None:
    """Paragraphs of the text, put together to documents of a web page's length, in each kind of file."""
    documents, parts, length = [], [], 0
    for paragraph in re.split(r"\n\n+", text.read_text(encoding="utf-8")):
        parts.append(paragraph)
        length += len(paragraph)
        if length > DOCUMENT_CHARACTERS:
            documents.append("\n\n".join(parts))
            parts, length = [], 0
    write_files(documents, folder)
    (folder / PART).write_text(SEPARATOR.join(documents[: len(documents) // 4]), encoding="utf-8")
    (folder / "small").mkdir()
    write_files(["A short document."] * 20, folder / "small")


def make_outputs(folder: Path) -> None:
    mill(folder / NAMES[0], 2)(folder / "once")
    mill(folder / "small" / NAMES[0], 1)(folder / "tiny")
    # What is copied should take longer than what is done once.
    shardmill.merge([folder / "once"] * 4, Target(output=folder / "made"))


def write_files(documents: list[str], folder: Path) -> None:
    files = {name: folder / name for name in NAMES}
    files["documents.txt"].write_text(SEPARATOR.join(documents), encoding="utf-8")
    with open(files["documents.jsonl"], "w", encoding="utf-8") as lines:
        for number, document in enumerate(documents):
            record = {
                "id": f"document-{number}",
                "text": document,
                "url": f"https://example.org/{number}",
                "score": 0.5,
            }
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    table = pa.table({"id": [str(n) for n in range(len(documents))], "text": documents})
    pq.write_table(table, files["documents.parquet"], compression="zstd", row_group_size=10_000)
    with (
        open(files["documents.jsonl"], "rb") as unpacked,
        pa.OSFile(str(files["documents.jsonl.zst"]), "wb") as raw,
        pa.CompressedOutputStream(raw, "zstd") as packed,
    ):
        shutil.copyfileobj(unpacked, packed)


def best_of(repeat: int, folder: Path, contenders: dict[str, Callable[[Path], object]]) -> dict[str, Cost]:
    """All contenders in turn, each into a new folder: the mean of the best three wall and CPU times of each."""
    new = folder / "new"
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for turn in range(repeat):
        for name in random.Random(turn).sample(sorted(contenders), len(contenders)):
            os.sync()  # what the one before left to write would be in the way
            wall, cpu = time.perf_counter(), time.process_time()
            contenders[name](new)
            costs[name].append(Cost(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu))
            shutil.rmtree(new)
    return {
        name: Cost(wall=_best_three([c.wall for c in many]), cpu=_best_three([c.cpu for c in many]))
        for name, many in costs.items()
    }


def _best_three(seconds: list[float]) -> float:
    return statistics.mean(sorted(seconds)[:3])


def mill(file: Path, workers: int, **choices: Any) -> Callable[[Path], object]:
    separator = SEPARATOR if file.suffix == ".txt" else None
    limits = Limits(workers=workers, max_memory=512 * MIB)
    return lambda new: shardmill.prepare(
        Spec(inputs=(str(file),), output=str(new), separator=separator, **choices), limits=limits
    )


def engine_loaded_once() -> Any:
    """What every job does first takes as long as the smallest of them, and varies by more than formats differ."""
    engines = choose_engines(load("gpt2"), "auto")
    return patch.object(job, "choose_engines", lambda *_: engines)


def inputs(folder: Path, repeat: int) -> dict[str, Cost]:
    """Each kind of input, and little of each, with 2 workers."""
    return best_of(
        repeat,
        folder,
        {
            **{name: mill(folder / name, 2) for name in NAMES},
            **{f"small {name}": mill(folder / "small" / name, 2) for name in NAMES},
        },
    )


def formats(folder: Path, repeat: int) -> dict[str, Cost]:
    """Each format with 1 worker, 10M tokens in a shard; and what is done once."""
    contenders = {"start": mill(folder / "small" / NAMES[0], 1)}
    for name in ("nanogpt", *FORMATS):
        choices: dict[str, Any] = {"format": name, "split": "hash"}
        if name not in ("megatron", "datatrove", "nanogpt"):
            choices["shard_tokens"] = 10_000_000
        if name in ("mds", "litdata"):
            choices["sample_tokens"] = 1000
        contenders[name] = mill(folder / PART, 1, **choices)
    return best_of(repeat, folder, contenders)


def transfers(folder: Path, repeat: int) -> dict[str, Cost]:
    """merge and convert, with and without waiting for the disk, cp of the same files, and verify."""
    made, tiny, once = (folder / name for name in ("made", "tiny", "once"))

    def convert(source: Path, *, sync: bool) -> Callable[[Path], object]:
        return lambda new: shardmill.convert(source, Target(output=new, format="megatron", sync=sync))

    def merge(sources: list[str | Path], *, sync: bool) -> Callable[[Path], object]:
        return lambda new: shardmill.merge(sources, Target(output=new, sync=sync))

    def verify(new: Path) -> None:
        new.mkdir()
        assert shardmill.verify(made).ok

    return best_of(
        repeat,
        folder,
        {
            "merge start": merge([tiny, tiny], sync=True),
            "convert start": convert(tiny, sync=True),
            "cp": lambda new: subprocess.run(["cp", "-r", made, new], check=True),
            "cp, sync": lambda new: subprocess.run(
                ["sh", "-c", f"cp -r '{made}' '{new}' && sync '{new}'/*"], check=True
            ),
            "merge": merge([once] * 4, sync=True),
            "merge, no sync": merge([once] * 4, sync=False),
            "convert": convert(made, sync=True),
            "convert, no sync": convert(made, sync=False),
            "verify": verify,
        },
    )


def beside(task: str, *given: Path | int) -> dict[str, Cost]:
    """One of the above in a process of its own."""
    command = [sys.executable, __file__, task, *map(str, given)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {name: Cost(**cost) for name, cost in json.loads(found or "{}").items()}


def input_rows(folder: Path, repeat: int) -> list[Row]:
    """Each kind of input against plain text of the same documents."""
    best = beside("inputs", folder, repeat)
    wall = {name: best[name].wall - best[f"small {name}"].wall for name in NAMES}
    cpu = {name: best[name].cpu - best[f"small {name}"].cpu for name in NAMES}
    rows = []
    for name, promised in (("documents.jsonl", 0.7), ("documents.parquet", 0.7), ("documents.jsonl.zst", 0.6)):
        share, by_cpu = wall["documents.txt"] / wall[name], cpu["documents.txt"] / cpu[name]
        kind = name.partition(".")[2].replace("parquet", "parquet (zstd)")
        figure = f"{share:.2f} (by CPU time {by_cpu:.2f})"
        rows.append(Row(f"{kind} / plain text of the same documents", figure, f"≥ {promised}", share >= promised))
    peak = prepare(folder / "documents.parquet", "--workers", "2", watch=True).peak / MIB
    rows.append(Row("peak memory: parquet", f"{peak:.0f} MiB", "≤ 512 MiB", peak <= 512))
    return rows


def format_rows(folder: Path, repeat: int) -> list[Row]:
    """Each format against raw train.bin, by CPU time, which is steadier."""
    best = beside("formats", folder, repeat)
    rows = []
    for name in FORMATS:
        more = (best[name].cpu - best["start"].cpu) / (best["nanogpt"].cpu - best["start"].cpu) - 1
        rows.append(Row(f"CPU time of --format {name} over nanogpt's", f"{more:+.1%}", "≤ 5 %", more <= 0.05))
    return rows


def transfer_rows(folder: Path, repeat: int) -> list[Row]:
    """merge and convert against cp of the same cached files, and verify."""
    size = sum(file.stat().st_size for file in (folder / "made").glob("*.bin"))
    best = beside("transfers", folder, repeat)
    rows = []
    for other, how in (("cp", ", no sync"), ("cp, sync", "")):
        cp = size / best[other].wall
        rows.append(Row(f"{other.replace(',', ' and')} of train.bin and val.bin", f"{cp / MB:,.0f} MB/s"))
        for name in ("merge", "convert"):
            speed = size / (best[name + how].wall - best[f"{name} start"].wall)
            what = {"merge": "merge", "convert": "convert to megatron"}[name] + (" --no-sync" if how else "")
            row = f"{what} / {other.replace(',', ' and')}, start-up not counted"
            rows.append(Row(row, f"{speed / cp:.2f}", "≥ 0.8", speed >= 0.8 * cp))
    return [*rows, Row("verify, start-up not counted", f"{size / best['verify'].wall / MB:,.0f} MB/s")]


def checkpoint_rows(folder: Path, repeat: int) -> list[Row]:
    """What checkpoints every second cost against none at all, in one process each, milling alone, on 4 copies."""
    long = folder / "long.txt"
    with open(long, "wb") as copies:
        for _ in range(4):
            copies.write((folder / "documents.txt").read_bytes())
    program = (
        "import sys, shardmill; from shardmill import Limits, Spec\n"
        "often = dict(checkpoint_seconds=1e9, checkpoint_bytes=1 << 60) if sys.argv[3] == 'never' else {}\n"
        "made = shardmill.prepare(Spec(inputs=[sys.argv[1]], output=sys.argv[2], separator='<|endoftext|>'),\n"
        "    limits=Limits(max_memory=512 << 20, **often), overwrite=True)\n"
        "print(made.run['milling_seconds'])\n"
    )
    python = str(Path(SHARDMILL).with_name("python"))
    best: dict[str, float] = {}
    for how in ("never", "second") * repeat:
        command = [python, "-c", program, str(long), str(folder / "checkpoints"), how]
        seconds = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        best[how] = min(seconds, best.get(how, seconds))
    more = best["second"] / best["never"] - 1
    return [Row("wall time of checkpoints every second over none", f"{more:+.1%}", "≤ 3 %", more <= 0.03)]


def rows(text: Path, folder: Path, repeat: int) -> list[Row]:
    beside("make_inputs", text, folder)
    beside("make_outputs", folder)
    return [
        *input_rows(folder, 2 * repeat),
        *format_rows(folder, 3 * repeat),  # 5 % is no more than two runs of the same may differ by
        *transfer_rows(folder, 2 * repeat),
        *checkpoint_rows(folder, repeat),
    ]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make_inputs", text, folder]:
            make_inputs(Path(text), Path(folder))
        case ["make_outputs", folder]:
            make_outputs(Path(folder))
        case [task, folder, repeat]:
            with engine_loaded_once():
                found = {"inputs": inputs, "formats": formats, "transfers": transfers}[task](Path(folder), int(repeat))
            sys.stdout.write(json.dumps({name: dataclasses.asdict(cost) for name, cost in found.items()}))
