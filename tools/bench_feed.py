"""`make bench-feed`: the loader against one numpy gather and nanoGPT's get_batch, its start, its memory, and the packer.

Batches of 64 × 1,025 tokens in random order from 1 GB in the page cache; the median of many. Run it with torch installed
(`.faces/bin/python tools/bench_feed.py`) to measure nanoGPT's get_batch too.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardmill
from shardmill import Source, Windows
from shardmill.system import machine

ROWS, LENGTH = 64, 1024


def median_us(action: Callable[[int], object], times: int) -> float:
    """By CPU time: all is in memory, so that is what it takes on a quiet machine."""
    found = []
    for number in range(times):
        began = time.thread_time()
        action(number)
        found.append(time.thread_time() - began)
    return statistics.median(found) * 1e6


def anonymous_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def batches(folder: Path, tokens: int, many: int) -> dict[str, Any]:
    np.random.default_rng(1).integers(0, 50257, tokens, dtype=np.uint16).tofile(folder / "train.bin")
    mapped = np.memmap(folder / "train.bin", np.uint16, "r")
    assert mapped[::2048].sum()  # now it is in the page cache
    rows = Windows(Source(path=folder, from_format="nanogpt", from_dtype="uint16"), length=LENGTH, seed=1)
    rng, columns = np.random.default_rng(2), np.arange(LENGTH + 1)

    def gather(_: int) -> Any:
        return mapped[rng.integers(0, tokens - LENGTH - 1, ROWS)[:, None] + columns].astype(np.int64)

    found: dict[str, Any] = {
        "batch_us": median_us(lambda i: rows.batch(range(i * ROWS, (i + 1) * ROWS)), 2000),
        "numpy_gather_us": median_us(gather, 2000),
    }
    if (theirs := nanogpt(folder / "train.bin")) is not None:
        found["nanogpt_get_batch_us"] = median_us(theirs, 300)
    before = anonymous_kib()
    for number in range(many):
        rows.batch(range(number * ROWS, (number + 1) * ROWS))
    return {**found, "batches_for_memory": many, "anonymous_memory_grew_kib": anonymous_kib() - before}


def nanogpt(path: Path) -> Callable[[int], object] | None:
    """A batch as nanoGPT's train.py makes it: the file mapped anew, a slice for each row, stacked, twice."""
    try:
        import torch
    except ImportError:
        return None

    torch.set_num_threads(1)

    def batch(_: int) -> object:
        data = np.memmap(path, np.uint16, "r")
        starts = torch.randint(len(data) - LENGTH, (ROWS,))  # tensors, as there
        return [
            torch.stack(
                [torch.from_numpy(data[start + shift : start + shift + LENGTH].astype(np.int64)) for start in starts]
            )
            for shift in (0, 1)
        ]

    return batch


def first_row(folder: Path) -> dict[str, Any]:
    for number in range(1000):
        with open(folder / f"train-{number:05}.bin", "wb") as file:
            file.truncate(2 * 10**9)  # sparse
    began = time.perf_counter()
    rows = Windows(Source(path=folder, from_format="shards", from_dtype="uint16"), length=LENGTH, seed=1)
    assert rows[0]["input_ids"].shape == (LENGTH,)
    return {"first_row_of_1e12_tokens_s": time.perf_counter() - began}


def packing(folder: Path, documents: int) -> dict[str, Any]:
    """Lengths as of web text: half below 400 tokens, a few very long."""
    rng, at = np.random.default_rng(1), 0
    with open(folder / "train.ds.index", "wb") as file:
        for first in range(0, documents, 1 << 20):
            sizes = np.clip(rng.lognormal(6.0, 1.1, min(1 << 20, documents - first)), 1, 1e6).astype(np.int64)
            ends = at + np.cumsum(sizes)
            ends.astype("<u8").tofile(file)
            at = int(ends[-1])
    with open(folder / "train.ds", "wb") as file:
        file.truncate(2 * at)
    source = Source(path=folder, from_format="datatrove", from_dtype="uint16")
    began, cpu = time.perf_counter(), time.process_time()
    made = shardmill.pack(source, length=2048, output=folder / "train.plan")
    return {
        "packed_documents": documents,
        "pack_s": time.perf_counter() - began,
        "pack_cpu_s": time.process_time() - cpu,
        "peak_memory_mib": machine.peak_rss() >> 20,
        "padded": made.padded / (made.rows * made.length),
        "more_rows_than_at_once": made.rows / made.rows_at_once - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=500_000_000)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    steps: list[Callable[[Path], dict[str, Any]]] = [
        lambda folder: packing(folder, options.documents),  # first: its peak of memory is that of the process
        first_row,
        lambda folder: batches(folder, options.tokens, options.batches),
    ]
    for step in steps:
        with tempfile.TemporaryDirectory() as folder:
            found |= step(Path(folder))
    print("\n".join(table(found)))


def table(found: dict[str, Any]) -> list[str]:
    """The figures as docs/benchmarks.md shows them."""
    ours, theirs = found["batch_us"], found.get("nanogpt_get_batch_us")
    compared = f"{theirs:,.0f} µs, {theirs / ours:.1f}×" if theirs else "not measured: there is no torch"
    rows = [
        (f"a batch of {ROWS} × {LENGTH + 1:,} tokens", f"{ours:,.0f} µs", ""),
        ("nanoGPT's get_batch", compared, "≥ 12×"),
        (
            "one numpy gather over a mapped file",
            f"{found['numpy_gather_us']:,.0f} µs; a batch takes {ours / found['numpy_gather_us']:.2f}× that",
            "≤ 2×",
        ),
        (
            f"anonymous memory after {found['batches_for_memory']:,} batches",
            f"{found['anonymous_memory_grew_kib']:+,} KiB",
            "flat",
        ),
        ("first row of 10¹² tokens in 1,000 files", f"{found['first_row_of_1e12_tokens_s']:.3f} s", "≤ 0.2 s"),
        (
            f"packing {found['packed_documents']:,} documents",
            f"{found['pack_s']:.1f} s, {found['pack_cpu_s']:.1f} s of CPU time",
            "≤ 60 s",
        ),
        ("its peak memory", f"{found['peak_memory_mib']:,} MiB", "≤ 512 MiB"),
        (
            "its padding; rows more than all at once",
            f"{found['padded']:.3%}; {found['more_rows_than_at_once']:.3%}",
            "",
        ),
    ]
    return ["| what | figure | promised |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


if __name__ == "__main__":
    main()
