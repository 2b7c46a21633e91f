"""What the terminal shows: the progress of a job, its estimate and its result, and numbers for people."""

import dataclasses
import gc
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardmill.job.estimate import Estimate
    from shardmill.job.intervals import Range
    from shardmill.job.mill import Progress, Result, Start
    from shardmill.record.manifest import Manifest

_FIRST_LINE_SECONDS = 3.0
_LINE_SECONDS = 30.0
_REDRAW_SECONDS = 0.1
_WIDEST_BAR = 30
_LEAST_BAR = 8
_LEAST_WITH_BAR = 40
_SHOWN_FILES = 10
_live: "Reporter | None" = None
"""Whose line is on the terminal now."""


def say(text: str) -> None:
    if _live is not None:
        _live.clear()
    print(text, file=sys.stderr, flush=True)


class Reporter:
    """Shows progress: a line that is redrawn on a terminal, else a line now and then, or JSON lines."""

    def __init__(self, mode: str, loading: str = "") -> None:
        redraws = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._mode = "bar" if mode == "auto" and redraws else mode
        self._started = time.monotonic()
        self._last = self._started + _FIRST_LINE_SECONDS - _LINE_SECONDS
        self._loading = loading
        self.notes: tuple[str, ...] = ()
        """Those shown before the work."""

    def __enter__(self) -> "Reporter":
        global _live
        if self._mode == "bar":
            _live = self
        if self._loading and self._mode == "bar":
            self._draw(fitting(self._loading.split(", "), None, _columns() - 1))
        elif self._loading and self._mode == "auto":
            say(self._loading)
        return self

    def __exit__(self, *_: object) -> None:
        global _live
        self.clear()
        _live = None

    def start(self, job: "Start") -> None:
        """What will be done, and what the user may want to change: before the work."""
        self._started = time.monotonic()
        gc.freeze()  # what is loaded by now stays: looking for garbage in it, again and again, would hold up all workers
        if self._mode in ("none", "json"):
            return
        self.notes = job.notes
        total = f", {size(job.total_bytes)}" if job.total_bytes else ""
        say(
            f"{job.inputs}{total} → {job.output}: tokenizer {job.tokenizer}, engine {job.engine}, {plural(job.workers, 'worker')}, at most {size(job.max_memory)} of memory"
        )
        if job.resumed_bytes:
            say(f"resuming at {size(job.resumed_bytes)}")
        for note in job.notes:
            say(f"note: {note}")

    def update(self, now: "Progress") -> None:
        if now.phase == "loading":
            return
        if self._mode == "json":
            if now.input_bytes == now.total_bytes or self._due(1.0):
                say(json.dumps(dataclasses.asdict(now)))
        else:
            self.show(progress_parts(now), now.input_bytes if now.phase != "uploading" else 0, now.total_bytes)

    def copied(self, done: int, total: int) -> None:
        """Shows the progress of merge, convert or verify."""
        rate = max(done, 1) / (time.monotonic() - self._started)
        self.show([f"{left((total - done) / rate)} left", f"{size(done)} of {size(total)}", speed(rate)], done, total)

    def show(self, parts: list[str], done: int, total: int) -> None:
        """The most important parts first: those that do not fit on the terminal are left out."""
        share = [f"{done / total:4.0%}"] if done and total else []
        if self._mode == "bar" and self._due(_REDRAW_SECONDS):
            self._draw(fitting([*share, *parts], done / total if share else None, _columns() - 1))
        elif self._mode == "auto" and self._due(_LINE_SECONDS):
            say(", ".join([*share, *parts]).strip())

    def clear(self) -> None:
        if self._mode == "bar":
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self, line: str) -> None:
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def _due(self, seconds: float) -> bool:
        if time.monotonic() - self._last < seconds:
            return False
        self._last = time.monotonic()
        return True


def _columns() -> int:
    """The width of the terminal that progress is shown on, whatever the environment says."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def fitting(parts: list[str], share: float | None, width: int) -> str:
    """As many of the parts as fit in this width, in their order, with a bar after the first if a share is given."""
    first, *rest = parts
    share = share if width >= _LEAST_WITH_BAR else None
    width -= _LEAST_BAR if share is not None else 0
    shown = first
    for part in rest:
        if len(f"{shown}, {part}") > width:
            break
        shown += f", {part}"
    if share is None:
        return shown[:width]
    room = min(_WIDEST_BAR, _LEAST_BAR + width - len(shown))
    full, empty = "█░" if (sys.stderr.encoding or "").lower().startswith("utf") else "#."
    return f"{first} {(full * round(share * room)).ljust(room, empty)}{shown.removeprefix(first).replace(',', '', 1)}"


def progress_parts(now: "Progress") -> list[str]:
    """What the terminal shows of it, the most important first."""
    if now.phase == "splitting":
        return ["choosing the validation set", f"{size(now.input_bytes)} of {size(now.total_bytes)}"]
    if now.phase == "uploading":
        return [f"{size(now.staged_bytes)} left to upload", "everything is tokenized"]
    rate = (now.input_bytes - now.resumed_bytes) / max(now.seconds, 1e-3)
    more = [speed(rate), f"{now.tokens:,} tokens", f"{size(now.memory)} memory"]
    more += [f"{size(now.staged_bytes)} staged"] if now.staged_bytes else []
    if not now.total_bytes:  # a pipe
        return [size(now.input_bytes), *more]
    time_left = [f"{left((now.total_bytes - now.input_bytes) / rate)} left"] if rate else []
    return [*time_left, f"{size(now.input_bytes)} of {size(now.total_bytes)}", *more]


def estimate_lines(found: "Estimate") -> list[str]:
    exact = found.tokens.low == found.tokens.high
    return [
        f"input      {size(found.input_bytes)} in {plural(found.files, 'file')}",
        f"documents  {spread(found.documents)}",
        f"tokens     {spread(found.tokens)}"
        + ("" if exact else f"  (95 % interval, from {size(found.sampled_bytes)} of samples)"),
        f"output     {size(found.output_bytes.middle)} as {found.dtype}"
        + ("" if exact else f", at most {size(found.output_bytes.high)}")
        + f"; {size(found.free_bytes)} free",
        f"memory     at most {size(found.memory)} with {plural(found.workers, 'worker')}",
        f"time       about {duration(found.seconds)} with the engine {found.engine}",
        *(f"note       {note}" for note in found.notes),
    ]


def summary(result: "Result", told: tuple[str, ...]) -> "Iterator[str]":
    """told: the notes that were shown before the work."""
    from shardmill.record.input_list import total_bytes

    made, counts, run = result.manifest, result.manifest.counts, result.run
    if result.already_complete:
        yield f"{result.output} is already complete; pass --overwrite to prepare it again"
    for file in made.files[:_SHOWN_FILES]:
        yield f"{result.output}/{file.name}  {file.tokens:,} tokens, {size(file.bytes)}"
    if len(made.files) > _SHOWN_FILES:
        yield f"and {len(made.files) - _SHOWN_FILES:,} more files, {made.tokens:,} tokens in all"
    limited = counts.input_bytes < (total_bytes(made.job["inputs"]) or 0)
    each = bytes_per_token(made)
    read = "up to the limit" if limited else f"{size(counts.input_bytes)} of input"
    read += f", {each:.2f} bytes per token" if each else ""
    rejected = f", {counts.documents_rejected:,} rejected: see rejects.jsonl" if counts.documents_rejected else ""
    filtered = f", {counts.documents_filtered:,} filtered out by --where" if counts.documents_filtered else ""
    unsampled = f", {counts.documents_unsampled:,} not in the sample" if counts.documents_unsampled else ""
    yield f"{plural(counts.documents, 'document')} ({counts.documents_empty:,} empty{rejected}{filtered}{unsampled}), {read}"
    if run:
        if run["resumed_bytes"]:
            yield f"resumed at {size(run['resumed_bytes'])}"
        yield f"{duration(run['seconds'])}{'' if limited else ', ' + speed(run['bytes_per_second'])}, peak memory {size(run['peak_memory'])} of {size(run['max_memory'])}, {plural(run['workers'], 'worker')}, engine {run['engine']}"
    yield from (f"note: {note}" for note in result.notes if note not in told)
    if made.files:
        yield f"load it: {load_line(result.output, made)}"


def load_line(output: "Path | str", made: "Manifest") -> str:
    """How the trainer of its format loads a result."""
    from shardmill.formats import registry

    choices, itemsize = made.job["choices"], 2 if made.dtype == "uint16" else 4
    found = registry.get(choices["format"])
    if isinstance(output, str):  # a URL, which trainers do not read
        return f'shardmill.open("{output}")["train"][:1000]'
    sample = choices.get("sample_tokens") or found.sample_tokens
    return found.load.format(folder=output, dtype=made.dtype, itemsize=itemsize, sample=sample)


def bytes_per_token(made: "Manifest") -> float | None:
    """Of the text that was written; None: unknown."""
    return (made.text.train.bytes + made.text.val.bytes) / made.tokens if made.text and made.tokens else None


def speed(rate: float) -> str:
    """Bytes per second, as MB/s."""
    return f"{rate / 1e6:.1f} MB/s" if rate < 10e6 else f"{rate / 1e6:.0f} MB/s"


def left(seconds: float) -> str:
    """A duration that changes no more often than it must."""
    return f"{seconds:.0f} s" if seconds < 60 else duration(seconds)


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count:,} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def spread(found: "Range") -> str:
    return f"{found.middle:,}" + (f", between {found.low:,} and {found.high:,}" if found.low != found.high else "")


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=1, sort_keys=True))
