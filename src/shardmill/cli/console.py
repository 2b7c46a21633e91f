"""What the terminal shows: the progress of a job, and numbers for people."""

import dataclasses
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.job.estimate import Range
    from shardmill.job.mill import Progress

_LINE_SECONDS = 30.0
_SLOW_SECONDS = 3.0
_SLOW_LOADING = (
    "loading the tokenizer: a new one is first compared on both engines, which takes up to a minute, once per machine"
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Reporter:
    """Shows progress: a bar on a terminal, else a line every 30 s, or JSON lines."""

    def __init__(self, mode: str) -> None:
        self._mode = "bar" if mode == "auto" and sys.stderr.isatty() else mode
        self._started = self._last = time.monotonic()
        self._bar: Any = None
        self._slow: threading.Timer | None = None

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._slow is not None:
            self._slow.cancel()
        if self._bar is not None:
            self._bar.stop()

    def update(self, now: "Progress") -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        if now.phase == "loading" and self._mode in ("bar", "auto"):
            self._slow = threading.Timer(_SLOW_SECONDS, say, [_SLOW_LOADING])
            self._slow.start()
            return
        if self._mode != "json":
            self.show(progress_line(now), now.input_bytes, now.total_bytes)
        elif now.input_bytes == now.total_bytes or self._due(1.0):
            say(json.dumps(dataclasses.asdict(now)))

    def copied(self, done: int, total: int) -> None:
        """Shows the progress of merge or convert."""
        speed = max(done, 1) / (time.monotonic() - self._started)
        line = f"{size(done)} of {size(total)}, {speed / 1e6:.0f} MB/s, {duration((total - done) / speed)} left"
        self.show(line, done, total)

    def show(self, line: str, done: int, total: int) -> None:
        """The bar with this line, or the line alone when it is due."""
        if self._mode == "bar":
            self._show_bar(line, done, total)
        elif self._mode == "auto" and self._due(_LINE_SECONDS):
            say(line)

    def _due(self, seconds: float) -> bool:
        if time.monotonic() - self._last < seconds:
            return False
        self._last = time.monotonic()
        return True

    def _show_bar(self, line: str, done: int, total: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=total or None)  # None: an indeterminate bar
            self._bar.start()
        self._bar.update(self._task, completed=done, description=line)


def progress_line(now: "Progress") -> str:
    if now.phase == "splitting":
        return f"first pass to choose the validation set: {size(now.input_bytes)} of {size(now.total_bytes)}"
    if now.phase == "uploading":
        return f"everything is tokenized; {size(now.staged_bytes)} left to upload"
    speed = (now.input_bytes - now.resumed_bytes) / max(now.seconds, 1e-3)
    waiting = f", {size(now.staged_bytes)} staged" if now.staged_bytes else ""
    if not now.total_bytes:  # a pipe
        return f"{size(now.input_bytes)}, {speed / 1e6:.0f} MB/s, {now.tokens:,} tokens, {size(now.memory)} memory{waiting}"
    left = (now.total_bytes - now.input_bytes) / speed if speed else 0.0
    return f"{size(now.input_bytes)} of {size(now.total_bytes)}, {speed / 1e6:.0f} MB/s, {now.tokens:,} tokens, {duration(left)} left, {size(now.memory)} memory{waiting}"


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
    return (
        f"{found.middle:,}"
        if found.low == found.high
        else f"{found.middle:,}, between {found.low:,} and {found.high:,}"
    )


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=1, sort_keys=True))
