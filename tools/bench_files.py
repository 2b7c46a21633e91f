"""The part of the bench about files: the same documents from each kind of input, into each format, and between formats."""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bench_base import MB, MIB, SHARDMILL, Cost, Row, prepare, run

SEPARATOR = "<|endoftext|>"
DOCUMENT_CHARACTERS = 1900
NAMES = ("documents.txt", "documents.jsonl", "documents.parquet", "documents.jsonl.zst")
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


def make_inputs_beside(text: Path, folder: Path) -> dict[str, Path]:
    """In a process of its own: whatever this one has in memory would be counted as its children's."""
    here = str(Path(__file__).parent)
    program = f"import sys; sys.path.insert(0, {here!r}); import bench_files, pathlib; bench_files.make_inputs(*map(pathlib.Path, sys.argv[1:]))"
    python = str(Path(SHARDMILL).with_name("python"))
    subprocess.run([python, "-c", program, str(text), str(folder)], check=True)
    return {name: folder / name for name in NAMES}


def best_of(repeat: int, contenders: dict[str, Callable[[], Cost]]) -> dict[str, Cost]:
    """All contenders in turn, the best wall and CPU time of each, and the highest peak.

    In another order each time: what one leaves behind, on the disk or in memory, may slow the next.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for turn in range(repeat):
        for name in random.Random(turn).sample(sorted(contenders), len(contenders)):
            costs[name].append(contenders[name]())
    return {
        name: Cost(wall=min(c.wall for c in many), cpu=min(c.cpu for c in many), peak=max(c.peak for c in many))
        for name, many in costs.items()
    }


def input_rows(files: dict[str, Path], folder: Path, repeat: int) -> list[Row]:
    """Each kind of input against plain text of the same documents, 2 workers, start-up of the same kind subtracted."""
    small = folder / "small"
    small.mkdir()
    write_files(["A short document."] * 20, small)

    def mill(file: Path) -> Callable[[], Cost]:
        options = ("--separator", SEPARATOR) if file.suffix == ".txt" else ()
        return lambda: prepare(file, "--workers", "2", *options, watch=file.suffix == ".parquet")

    starts = {f"small {name}": mill(small / name) for name in files}
    best = best_of(repeat, {**starts, **{name: mill(file) for name, file in files.items()}})
    wall = {name: best[name].wall - best[f"small {name}"].wall for name in files}
    cpu = {name: best[name].cpu - best[f"small {name}"].cpu for name in files}
    rows = []
    for name, promised in (("documents.jsonl", 0.7), ("documents.parquet", 0.7), ("documents.jsonl.zst", 0.6)):
        share, by_cpu = wall["documents.txt"] / wall[name], cpu["documents.txt"] / cpu[name]
        kind = name.partition(".")[2].replace("parquet", "parquet (zstd)")
        figure = f"{share:.2f} (by CPU time {by_cpu:.2f})"
        rows.append(Row(f"{kind} / plain text of the same documents", figure, f"≥ {promised}", share >= promised))
    peak = best["documents.parquet"].peak / MIB
    rows.append(Row("peak memory: parquet", f"{peak:.0f} MiB", "≤ 512 MiB", peak <= 512))
    return rows


def format_rows(files: dict[str, Path], repeat: int) -> list[Row]:
    """Each format against raw train.bin, by CPU time, which is steadier; 10M tokens in a shard."""
    source = files["documents.txt"]
    common = ("--workers", "1", "--separator", SEPARATOR, "--val-fraction", "0.01")

    def mill(name: str) -> Callable[[], Cost]:
        shards = () if name in ("megatron", "datatrove", "nanogpt") else ("--shard-tokens", "10M")
        split = ("--split", "hash") if name in ("build-nanogpt", "llmc") else ()
        samples = ("--sample-tokens", "1000") if name in ("mds", "litdata") else ()
        return lambda: prepare(source, *common, "--format", name, *shards, *split, *samples)

    best = best_of(repeat, {name: mill(name) for name in ("nanogpt", *FORMATS)})
    rows = []
    for name in FORMATS:
        more = best[name].cpu / best["nanogpt"].cpu - 1
        rows.append(Row(f"CPU time of --format {name} over nanogpt's", f"{more:+.1%}", "≤ 5 %", more <= 0.05))
    return rows


def transfer_rows(files: dict[str, Path], folder: Path, repeat: int) -> list[Row]:
    """merge and convert against cp of the same cached files, and verify."""
    once_over, made = folder / "once", folder / "made"
    command = [SHARDMILL, "prepare", str(files["documents.txt"]), "-o", str(once_over), "--separator", SEPARATOR, "-q"]
    subprocess.run([*command, "--progress", "none"], check=True)
    # Starting Python takes longer than copying 100 MB, and varies by as much: four times the tokens.
    parts = [str(once_over)] * 4
    subprocess.run([SHARDMILL, "merge", *parts, "-o", str(made)], check=True, stderr=subprocess.DEVNULL)
    size = sum(file.stat().st_size for file in made.glob("*.bin"))
    tiny = folder / "tiny"
    (folder / "tiny.txt").write_text("A short document.##" * 50)
    command = [SHARDMILL, "prepare", str(folder / "tiny.txt"), "-o", str(tiny), "--separator", "##", "-q"]
    subprocess.run([*command, "--progress", "none"], check=True)

    def once(*command: str) -> Callable[[], Cost]:
        def measure() -> Cost:
            shutil.rmtree(folder / "new", ignore_errors=True)
            os.sync()  # what the run before left to write would be in the way
            return run(list(command), quiet=True)

        return measure

    new = str(folder / "new")
    best = best_of(
        repeat,
        {
            "merge start": once(SHARDMILL, "merge", str(tiny), str(tiny), "-o", new),
            "convert start": once(SHARDMILL, "convert", str(tiny), "--to", "megatron", "-o", new),
            "verify start": once(SHARDMILL, "verify", str(tiny)),
            "cp": once("cp", "-r", str(made), new),
            "cp, sync": once("sh", "-c", f"cp -r '{made}' '{new}' && sync '{new}'/*"),
            "merge": once(SHARDMILL, "merge", *parts, "-o", new),
            "merge, no sync": once(SHARDMILL, "merge", *parts, "-o", new, "--no-sync"),
            "convert": once(SHARDMILL, "convert", str(made), "--to", "megatron", "-o", new),
            "convert, no sync": once(SHARDMILL, "convert", str(made), "--to", "megatron", "-o", new, "--no-sync"),
            "verify": once(SHARDMILL, "verify", str(made)),
        },
    )
    shutil.rmtree(new, ignore_errors=True)
    rows = []
    for other, how in (("cp", ", no sync"), ("cp, sync", "")):
        cp = size / best[other].wall
        rows.append(Row(f"{other.replace(',', ' and')} of train.bin and val.bin", f"{cp / MB:,.0f} MB/s"))
        for name in ("merge", "convert"):
            speed = size / (best[name + how].wall - best[f"{name} start"].wall)
            what = {"merge": "merge", "convert": "convert to megatron"}[name] + (" --no-sync" if how else "")
            row = f"{what} / {other.replace(',', ' and')}, start-up not counted"
            rows.append(Row(row, f"{speed / cp:.2f}", "≥ 0.8", speed >= 0.8 * cp))
    verify = size / (best["verify"].wall - best["verify start"].wall)
    return [*rows, Row("verify, start-up not counted", f"{verify / MB:,.0f} MB/s")]


def checkpoint_rows(files: dict[str, Path], folder: Path, repeat: int) -> list[Row]:
    """What checkpoints every second cost against none at all, in one process each, milling alone, on 4 copies."""
    long = folder / "long.txt"
    with open(long, "wb") as copies:
        for _ in range(4):
            copies.write(files["documents.txt"].read_bytes())
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
    files = make_inputs_beside(text, folder)
    return [
        *input_rows(files, folder, repeat),
        *format_rows(files, max(6, repeat)),  # 5 % is little more than two runs of the same may differ by
        *transfer_rows(files, folder, max(6, repeat)),  # the disk stalls now and then
        *checkpoint_rows(files, folder, repeat),
    ]
