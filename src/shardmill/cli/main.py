"""The command line: the only place that prints, reads the environment, or exits."""

import dataclasses
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import click

import shardmill
from shardmill.cli.config import config_options, job_of
from shardmill.cli.console import Reporter, estimate_lines, print_json, say, summary
from shardmill.cli.doctor import doctor
from shardmill.cli.failures import ResultError, fail
from shardmill.cli.options import as_json, choice, option, options, quiet
from shardmill.cli.pack import pack
from shardmill.cli.results import COMMANDS
from shardmill.cli.tokenizers import tokenizers
from shardmill.errors import ShardmillError, TemporaryError
from shardmill.spec import Limits, Spec
from shardmill.system import machine

_EXAMPLES = """
\b
Examples:
  shardmill prepare book.txt -o data/
      GPT-2 tokens in data/train.bin and data/val.bin, ready for nanoGPT
  shardmill prepare corpus/ -o data/ --tokenizer cl100k_base
      every text, JSON Lines, Parquet, Arrow, CSV and TSV file below corpus/, as uint32
  shardmill prepare 'crawl/*.jsonl.zst' -o data/ --field content --on-error skip
      the field "content" of each line; bad lines are skipped and counted
  shardmill prepare crawl/ -o data/ --where 'score >= 3' --where 'language in ("en", "de")'
      only records whose other fields meet these conditions
  shardmill prepare 'part-*.txt' -o data/ --separator '<|endoftext|>'
      documents are separated by <|endoftext|>, which becomes the end-of-text token
  shardmill prepare tiny.txt -o data/ --val-fraction 0.1 --split tail
      the last tenth of the text is the validation set
  shardmill prepare s3://bucket/corpus/ -o data/
      every text file below that prefix, streamed; hf://, gs:// and https:// work too
  shardmill prepare corpus/ -o s3://bucket/tokens --format shards --shard-tokens 100M
      each shard is uploaded as soon as it is complete, the manifest last
  zcat dump.gz | shardmill prepare - -o data/
      standard input
"""


def _show_version(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked:
        from shardmill.tokens import native

        print(f"shardmill {shardmill.__version__}, engine {native.version()} ({native.cpu_path()})")
        context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  shardmill prepare book.txt -o data/",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Turn any amount of text into training-ready token files, on the machine you have.

    Memory stays within --max-memory whatever the input, and the tokens are those that the reference
    tokenizer gives for each whole document.
    """


def _job_options(command: Callable[..., None]) -> Callable[..., None]:
    """What prepare and estimate have in common."""
    return config_options(options(Spec)(options(Limits)(as_json(command))))


@cli.command(epilog=_EXAMPLES)
@option(Spec, "output", "-o")
@_job_options
@click.option("--overwrite", is_flag=True, help="Replace the token files and manifest.json if they exist.")
@click.option("--dry-run", is_flag=True, help="Only show what the job would write and need, as estimate does.")
@choice(
    "--progress",
    ["auto", "json", "none"],
    "Progress on standard error. auto: a bar on a terminal, else a line after 3 s and then every 30 s; json: a JSON line every second.",
)
@quiet
def prepare(overwrite: bool, dry_run: bool, progress: str, quiet: bool, as_json: bool, **given: Any) -> None:
    """Tokenize text into the files that a trainer reads.

    INPUT is a file, a folder (every supported file below it), a glob, a URL that begins with hf://datasets/,
    s3://, gs:// or https:// (hf, s3 and gs may name a folder or a glob too), @FILE with one of these per line, or
    - for standard input. Supported: text, JSON Lines, Parquet, Arrow, CSV, TSV and WARC, each also compressed; see
    docs/inputs.md and docs/storage.md.
    """
    spec, limits = job_of(given)
    if dry_run:
        _show_estimate(spec, limits, as_json=as_json)
        return
    if quiet:
        logging.getLogger("shardmill").setLevel(logging.ERROR)
    loading = f"loading the tokenizer {spec.tokenizer}, looking at the inputs"
    with Reporter("none" if quiet else progress, loading) as reporter:
        result = shardmill.prepare(
            spec, limits=limits, on_start=reporter.start, on_progress=reporter.update, overwrite=overwrite
        )
    if as_json:
        content = {name: getattr(result, name) for name in ("already_complete", "run", "notes")}
        made = json.loads(result.manifest.to_json())
        print_json({**content, "output": str(result.output), "manifest": made})
    if not quiet:
        say("\n".join(summary(result, reporter.notes)))


@cli.command(epilog="\b\nExample:\n  shardmill estimate corpus/ -o /big/disk/data --tokenizer o200k_base")
@option(Spec, "output", "-o", required=False, default=".", help="Where the result would go, to check the free space.")
@_job_options
def estimate(as_json: bool, **given: Any) -> None:
    """Show what prepare would write and need: documents, tokens, disk, memory and time.

    The answer comes within seconds, from samples, however large the input is.
    """
    _show_estimate(*job_of(given), as_json=as_json)


for _command in (*COMMANDS, pack, tokenizers, doctor):
    cli.add_command(_command)
for _command in cli.commands.values():  # the group passes it on only when the command is called through it
    _command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    # The whole sentence: click would cut it at 45 characters.
    _command.short_help = _command.get_short_help_str(limit=1000)


def main() -> NoReturn:
    """Run the command and exit with its code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    logging.getLogger("shardmill").addHandler(_Messages())
    machine.keep_freed_memory()
    try:
        cli.main(standalone_mode=False)
        sys.exit(0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail("interrupted; run the same command again to resume", 130)
    except click.ClickException as e:
        if e.format_message().startswith("Usage:"):  # there are no arguments at all
            e.show()
            sys.exit(e.exit_code)
        fail(_usage(e), e.exit_code)
    except ShardmillError as e:
        fail(str(e), e.exit_code, e.content if isinstance(e, ResultError) else None)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        fail(
            "out of memory; close other programs, or pass a smaller --max-memory or fewer --workers, then run the same command again to resume",
            75,
        )
    except Exception as e:  # anything else is our fault, not the user's
        traceback.print_exc()
        fail(
            f"unexpected {type(e).__name__}: this is a bug in shardmill; please report the lines above. The work so far is kept: the same command resumes it",
            1,
        )


def _usage(e: click.ClickException) -> str:
    """What is wrong with the arguments, and if it does not say what would be right, an example."""
    context = getattr(e, "ctx", None) or click.Context(cli, info_name="shardmill")
    message = e.format_message().rstrip(".")
    message = message[0].lower() + message[1:]
    if "; " in message:
        return message
    lines = (context.command.epilog or "").splitlines()
    example = next(line.strip() for line in lines if line.startswith("  shardmill"))
    return f"{message}\nExample: {example} (more: {context.command_path} --help)"


class _Messages(logging.Handler):
    """What the library logs while it works, such as a server that does not answer and is retried."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"shardmill: {record.getMessage()}")


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """The first signal lets the job save its progress; the second exits at once, with what is saved already."""
    signal.signal(signal.SIGINT, _exit_now)
    signal.signal(signal.SIGTERM, _exit_now)
    if number == signal.SIGTERM:
        raise TemporaryError("terminated; run the same command again to resume")
    raise KeyboardInterrupt


def _exit_now(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(130 if number == signal.SIGINT else TemporaryError.exit_code)


def _show_estimate(spec: Spec, limits: Limits, *, as_json: bool) -> None:
    found = shardmill.estimate(spec, limits=limits)
    from shardmill.job.estimate import refuse_without_space

    if not as_json:
        print("\n".join(estimate_lines(found)))
    try:
        refuse_without_space(spec, found.output_bytes, found.disk_bytes, found.free_bytes)
    except ShardmillError as e:
        raise ResultError(e, dataclasses.asdict(found)) from e
    if as_json:
        print_json(dataclasses.asdict(found))
