"""The command line: the only place that prints, reads the environment, or exits."""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shardmill.cli_outputs import COMMANDS
from shardmill.console import Count, Size
from shardmill.console import duration as _duration
from shardmill.console import plural as _plural
from shardmill.console import print_json as _print_json
from shardmill.console import say as _say
from shardmill.console import size as _size
from shardmill.errors import ShardmillError, TemporaryError
from shardmill.spec import Limits, Spec

if TYPE_CHECKING:
    from shardmill.estimates import Estimate, Range
    from shardmill.manifest import Counts
    from shardmill.mill import Progress, Result

_FORMATS = ["nanogpt", "shards", "build-nanogpt", "llmc", "modded-nanogpt", "megatron", "datatrove", "olmo"]
_LINE_SECONDS = 30.0
_SLOW_SECONDS = 3.0
_SHOWN_FILES = 10
_SLOW_LOADING = (
    "loading the tokenizer: one that is new here is compared on both engines first, which takes up to a minute, once"
)
_EXAMPLES = """
\b
Examples:
  shardmill prepare book.txt -o data/
      GPT-2 tokens as data/train.bin and data/val.bin, ready for nanoGPT
  shardmill prepare corpus/ -o data/ --tokenizer cl100k_base
      every .txt and .md file below corpus/, each a document, uint32
  shardmill prepare 'part-*.txt' -o data/ --separator '<|endoftext|>'
      documents end with <|endoftext|>; it is removed, and its token put there
  shardmill prepare tiny.txt -o data/ --val-fraction 0.1 --split tail
      the last tenth of the text is the validation set
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shardmill")
def cli() -> None:
    """Turn any amount of text into training-ready token files, on the machine you have.

    Memory stays within --max-memory whatever the input, and the tokens are those that the reference
    tokenizer gives for each whole document.
    """


def _job_options(command: Callable[..., None]) -> Callable[..., None]:
    """What prepare and estimate have in common."""
    options = [
        click.argument("inputs", nargs=-1, required=True, metavar="INPUT..."),
        click.option(
            "--tokenizer",
            default="gpt2",
            show_default=True,
            help="gpt2, r50k_base, cl100k_base, o200k_base, a path to a tokenizer.json, or a hub id such as openai-community/gpt2.",
        ),
        click.option(
            "--separator",
            metavar="TEXT",
            help=r"Text that ends a document; \n and \t are understood, so '\n' makes each line a document. Default: a file is one document.",
        ),
        click.option(
            "--eot",
            type=click.Choice(["auto", "after", "before", "none"]),
            default="auto",
            show_default=True,
            help="Where each document gets its end-of-text token. auto: none for a single file without --separator, else where the format has it.",
        ),
        click.option("--eot-token", metavar="TOKEN", help="The special token to use, if the tokenizer leaves a doubt."),
        click.option(
            "--val-fraction",
            type=float,
            default=0.0005,
            show_default=True,
            help="Share of the documents (or of passages of running text) that goes to the validation set; 0 writes none.",
        ),
        click.option(
            "--split",
            type=click.Choice(["auto", "hash", "tail", "head", "first-shard"]),
            default="auto",
            show_default=True,
            help="What goes to val: what a hash of the content picks, the end of the input, its beginning, or the first shard. auto: the first shard where the format's trainer has it so, else hash.",
        ),
        click.option(
            "--seed", type=int, default=0, show_default=True, help="Another seed picks another validation set."
        ),
        click.option(
            "--dtype",
            type=click.Choice(["auto", "uint16", "uint32"]),
            default="auto",
            show_default=True,
            help="auto: uint16 if every token id fits.",
        ),
        click.option(
            "--format",
            type=click.Choice(_FORMATS),
            default="nanogpt",
            show_default=True,
            help="Whose files to write; docs/formats.md tells what each trainer is then given.",
        ),
        click.option(
            "--shard-tokens",
            type=Count(),
            help="Tokens in each shard, e.g. 500M, in formats that have shards. Default: what the trainer's own script writes.",
        ),
        click.option("--index", is_flag=True, help="Also write where each document ends: train.ends and val.ends."),
        click.option(
            "--provenance",
            is_flag=True,
            help="With --index: also write which file and byte each document came from: train.places and val.places.",
        ),
        click.option(
            "--on-error",
            type=click.Choice(["stop", "skip", "replace"]),
            default="stop",
            show_default=True,
            help="A document that is not UTF-8: stop and say where; skip it and list it in rejects.jsonl; or put U+FFFD in place of the bad bytes and count them.",
        ),
        click.option(
            "--workers", type=click.IntRange(1), help="Threads that encode. Default: the cores this process may use."
        ),
        click.option(
            "--max-memory",
            type=Size(),
            help="The most memory the whole command may take, e.g. 512MiB. Default: 256 MiB and 96 MiB for each worker, at most a quarter of the machine's.",
        ),
        click.option(
            "--engine",
            type=click.Choice(["auto", "gigatoken", "reference"]),
            default="auto",
            show_default=True,
            help="auto: the fastest that is exact. The result is the same with each.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command(epilog=_EXAMPLES)
@_job_options
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Where the token files and manifest.json go.")
@click.option("--overwrite", is_flag=True, help="Replace the token files and manifest.json if they exist.")
@click.option("--dry-run", is_flag=True, help="Only say what would be made, and what it would take.")
@click.option(
    "--progress",
    type=click.Choice(["auto", "json", "none"]),
    default="auto",
    show_default=True,
    help="auto: a bar on a terminal, else a line every 30 s; json: a JSON line every second. On standard error.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def prepare(
    output: str, overwrite: bool, dry_run: bool, progress: str, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Mill text files into token files.

    INPUT is a text file, a folder (every .txt, .text and .md file below it), or a glob.
    """
    spec, limits = _spec_and_limits(output, options)
    if dry_run:
        _show_estimate(spec, limits, as_json=as_json)
        return
    import shardmill

    with _Reporter("none" if quiet else progress) as reporter:
        result = shardmill.prepare(spec, limits=limits, on_progress=reporter.update, overwrite=overwrite)
    if as_json:
        _print_json(
            {
                "output": str(result.output),
                "already_complete": result.already_complete,
                "manifest": json.loads(result.manifest.to_json()),
                "run": result.run,
                "notes": result.notes,
            }
        )
    if not quiet:
        _say("\n".join(_summary(result)))


@cli.command(epilog="\b\nExample:\n  shardmill estimate corpus/ -o /big/disk/data --tokenizer o200k_base")
@_job_options
@click.option("-o", "--output", default=".", metavar="FOLDER", help="Where the result would go; its disk is looked at.")
def estimate(output: str, as_json: bool, **options: Any) -> None:
    """Say what prepare would make and take: documents, tokens, disk, memory and time.

    The answer comes in seconds, from samples, however large the input is.
    """
    spec, limits = _spec_and_limits(output, options)
    _show_estimate(spec, limits, as_json=as_json)


for _command in COMMANDS:
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command and exit with the code of what happened."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        cli.main(standalone_mode=False)
        sys.exit(0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted; run the same command again to go on from here", 130)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except ShardmillError as e:
        _fail(str(e), e.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _fail(
            "the system gave no more memory; close other programs, or pass a smaller --max-memory or fewer --workers, and run the same command again",
            75,
        )
    except Exception as e:  # the door: whatever else it is, say that it is not the user's fault
        traceback.print_exc()
        _fail(
            f"unexpected {type(e).__name__}: this is a bug in shardmill; please report the lines above. What was made so far is kept: the same command goes on from there",
            1,
        )


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TemporaryError("terminated; run the same command again to go on from here")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """The first Ctrl-C lets the job make its work durable; the second leaves at once, with what is durable already."""
    signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(130)


def _fail(message: str, code: int) -> NoReturn:
    _say(f"shardmill: {message}")
    sys.exit(code)


def _spec_and_limits(output: str, options: dict[str, Any]) -> tuple[Spec, Limits]:
    cache = os.environ.get("XDG_CACHE_HOME")
    limits = Limits(
        workers=options.pop("workers"),
        max_memory=options.pop("max_memory"),
        engine=options.pop("engine"),
        cache=str(Path(cache) / "shardmill") if cache else None,
    )
    return Spec(output=output, **options), limits


def _show_estimate(spec: Spec, limits: Limits, *, as_json: bool) -> None:
    import shardmill

    found = shardmill.estimate(spec, limits=limits)
    if as_json:
        _print_json(dataclasses.asdict(found))
    else:
        print("\n".join(_estimate_lines(found)))
    if found.output_bytes.low > found.free_bytes:
        raise TemporaryError(
            f"the result does not fit on the disk of {spec.output}: at least {_size(found.output_bytes.low)} are needed, and {_size(found.free_bytes)} are free"
        )


def _estimate_lines(found: "Estimate") -> list[str]:
    exact = found.tokens.low == found.tokens.high
    return [
        f"input      {_size(found.input_bytes)} in {_plural(found.files, 'file')}",
        f"documents  {_range(found.documents)}",
        f"tokens     {_range(found.tokens)}"
        + ("" if exact else f"  (95 % interval, from {_size(found.sampled_bytes)} of samples)"),
        f"output     {_size(found.output_bytes.middle)} as {found.dtype}"
        + ("" if exact else f", at most {_size(found.output_bytes.high)}")
        + f"; {_size(found.free_bytes)} free",
        f"memory     at most {_size(found.memory)} with {_plural(found.workers, 'worker')}",
        f"time       about {_duration(found.seconds)} on {found.engine}",
        *(f"note       {note}" for note in found.notes),
    ]


def _summary(result: "Result") -> list[str]:
    made = result.manifest
    lines = []
    if result.already_complete:
        lines.append(f"{result.output} is already complete; pass --overwrite to make it again")
    for file in made.files[:_SHOWN_FILES]:
        lines.append(f"{Path(result.output) / file.name}  {file.tokens:,} tokens, {_size(file.bytes)}")
    if len(made.files) > _SHOWN_FILES:
        lines.append(f"and {len(made.files) - _SHOWN_FILES:,} files more, {made.tokens:,} tokens in all")
    counts, run = made.counts, result.run
    share = f", {counts.input_bytes / made.tokens:.2f} bytes per token" if made.tokens else ""
    lines.append(
        f"{_plural(counts.documents, 'document')} ({_left_out(counts)}), {_size(counts.input_bytes)} of text{share}"
    )
    if run:
        if run["resumed_bytes"]:
            lines.append(f"went on after {_size(run['resumed_bytes'])} that an earlier run had done")
        lines.append(
            f"{_duration(run['seconds'])}, {run['bytes_per_second'] / 1e6:.0f} MB/s, peak memory {_size(run['peak_memory'])} of {_size(run['max_memory'])}, {_plural(run['workers'], 'worker')}, {run['engine']}"
        )
    lines += [f"note: {note}" for note in result.notes]
    if made.files and not made.files[0].offset:
        lines.append(
            f'load it: np.memmap("{Path(result.output) / made.files[0].name}", dtype=np.{made.dtype}, mode="r")'
        )
    return lines


def _left_out(counts: "Counts") -> str:
    rejected = f", {counts.documents_rejected:,} rejected: see rejects.jsonl" if counts.documents_rejected else ""
    return f"{counts.documents_empty:,} empty{rejected}"


class _Reporter:
    """Shows how far the job is: one bar on a terminal, else a line every 30 s, or JSON lines."""

    def __init__(self, mode: str) -> None:
        self._mode = "bar" if mode == "auto" and sys.stderr.isatty() else mode
        self._last = time.monotonic()
        self._bar: Any = None
        self._slow: threading.Timer | None = None

    def __enter__(self) -> "_Reporter":
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
            self._slow = threading.Timer(_SLOW_SECONDS, _say, [_SLOW_LOADING])
            self._slow.start()
            return
        if self._mode == "bar":
            self._show_bar(now)
        elif self._mode == "json" and self._due(1.0, now):
            _say(json.dumps(dataclasses.asdict(now)))
        elif self._mode == "auto" and self._due(_LINE_SECONDS, now):
            _say(_progress_line(now))

    def _due(self, seconds: float, now: "Progress") -> bool:
        if time.monotonic() - self._last < seconds and not (
            self._mode == "json" and now.input_bytes == now.total_bytes
        ):
            return False
        self._last = time.monotonic()
        return True

    def _show_bar(self, now: "Progress") -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=now.total_bytes)
            self._bar.start()
        self._bar.update(self._task, completed=now.input_bytes, description=_progress_line(now))


def _progress_line(now: "Progress") -> str:
    if now.phase == "splitting":
        return f"first pass for the validation set: {_size(now.input_bytes)} of {_size(now.total_bytes)}"
    speed = (now.input_bytes - now.resumed_bytes) / max(now.seconds, 1e-3)
    left = (now.total_bytes - now.input_bytes) / speed if speed else 0.0
    return f"{_size(now.input_bytes)} of {_size(now.total_bytes)}, {speed / 1e6:.0f} MB/s, {now.tokens:,} tokens, {_duration(left)} left, {_size(now.memory)} memory"


def _range(found: "Range") -> str:
    return (
        f"{found.middle:,}"
        if found.low == found.high
        else f"{found.middle:,}, between {found.low:,} and {found.high:,}"
    )
