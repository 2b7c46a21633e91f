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
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shardmill.cli.console import (
    Count,
    Rejects,
    Reporter,
    Size,
    cache_folder,
    duration,
    plural,
    print_json,
    say,
    size,
    spread,
)
from shardmill.cli.results import COMMANDS
from shardmill.errors import ShardmillError, TemporaryError, UsageError
from shardmill.spec import NETWORK_SECONDS, OUTPUT_FORMATS, Limits, Spec
from shardmill.system import machine

if TYPE_CHECKING:
    from shardmill.job.estimate import Estimate
    from shardmill.job.mill import Result
    from shardmill.record.manifest import Counts

_SHOWN_FILES = 10
_EXAMPLES = """
\b
Examples:
  shardmill prepare book.txt -o data/
      GPT-2 tokens as data/train.bin and data/val.bin, ready for nanoGPT
  shardmill prepare corpus/ -o data/ --tokenizer cl100k_base
      every text, JSON lines, Parquet, Arrow, CSV and TSV file below corpus/, uint32
  shardmill prepare 'crawl/*.jsonl.zst' -o data/ --field content --on-error skip
      the field "content" of each line; bad lines are left out and counted
  shardmill prepare 'part-*.txt' -o data/ --separator '<|endoftext|>'
      documents end with <|endoftext|>; it is removed, and its token put there
  shardmill prepare tiny.txt -o data/ --val-fraction 0.1 --split tail
      the last tenth of the text is the validation set
  shardmill prepare s3://bucket/corpus/ -o data/
      every text file below that prefix, streamed; hf://, gs:// and https:// work too
  shardmill prepare corpus/ -o s3://bucket/tokens --format shards --shard-tokens 100M
      each shard goes to the store when it is whole, the manifest last
  zcat dump.gz | shardmill prepare - -o data/
      what comes through the pipe
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
            "--input-format",
            type=click.Choice(["auto", "text", "jsonl", "parquet", "arrow", "csv", "tsv", "warc"]),
            default="auto",
            show_default=True,
            help="auto: each file by its name and its first bytes; .gz, .zst, .bz2 and .xz are seen in any case.",
        ),
        click.option(
            "--field",
            "--column",
            "field",
            default="text",
            show_default=True,
            metavar="NAME",
            help="The JSON field or the column that holds the text; a.b is field b of field a.",
        ),
        click.option(
            "--format",
            type=click.Choice(OUTPUT_FORMATS),
            default="nanogpt",
            show_default=True,
            help="Whose files to write; docs/formats.md tells what each trainer is then given.",
        ),
        click.option(
            "--shard-tokens",
            type=Count(),
            help="Tokens in each shard, e.g. 500M, in formats that have shards. Default: what the trainer's own script writes.",
        ),
        click.option(
            "--sample-tokens",
            type=Count(),
            help="Tokens that the trainer takes at a time, in formats whose shards hold whole samples: mds (2048 by default) and litdata (2049).",
        ),
        click.option("--index", is_flag=True, help="Also write where each document ends: train.ends and val.ends."),
        click.option(
            "--provenance",
            is_flag=True,
            help="With --index: also write which file, and which byte or record of it, each document came from: train.places and val.places.",
        ),
        click.option(
            "--on-error",
            type=click.Choice(["stop", "skip", "replace"]),
            default="stop",
            show_default=True,
            help="Bad records and text that is not UTF-8: stop and say where; leave them out and list them in rejects.jsonl; or put U+FFFD in place of bad characters, and stop at other errors.",
        ),
        click.option(
            "--max-rejects",
            type=Rejects(),
            help="With --on-error skip: stop when more records than this are bad, e.g. 100, or 0.1% of those read so far.",
        ),
        click.option(
            "--sample",
            type=float,
            metavar="SHARE",
            help="Mill only this share of the documents, picked by a hash of their content.",
        ),
        click.option("--limit-documents", type=click.IntRange(1), metavar="N", help="Stop after exactly N documents."),
        click.option("--limit-tokens", type=click.IntRange(1), metavar="N", help="Stop after exactly N tokens."),
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
            type=click.Choice(["auto", "native", "gigatoken", "reference"]),
            default="auto",
            show_default=True,
            help="auto: the fastest that is exact. The result is the same with each.",
        ),
        click.option(
            "--staging",
            metavar="FOLDER",
            help="With -o in a store: where files grow until they are whole. Default: staging in the user's cache folder.",
        ),
        click.option(
            "--max-staging",
            type=Size(),
            help="With -o in a store: the most disk that may take; the work waits for what is being put. Default: half of what is free, and of shards at most 32 GiB.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command(epilog=_EXAMPLES)
@_job_options
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FOLDER",
    help="Where the token files and manifest.json go; may be s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.",
)
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

    INPUT is a file, a folder (every file of a known kind below it), a glob, a URL that begins with
    hf://datasets/, s3://, gs:// or https:// (hf, s3 and gs may name a folder or glob too), @FILE with one of
    these a line, or - for standard input. Read are text, JSON lines, Parquet, Arrow, CSV and TSV, each also
    compressed: docs/inputs.md and docs/storage.md.
    """
    spec, limits = _spec_and_limits(output, options)
    if dry_run:
        _show_estimate(spec, limits, as_json=as_json)
        return
    import shardmill

    if quiet:
        logging.getLogger("shardmill").setLevel(logging.ERROR)
    with Reporter("none" if quiet else progress) as reporter:
        result = shardmill.prepare(spec, limits=limits, on_progress=reporter.update, overwrite=overwrite)
    if as_json:
        print_json(
            {
                "output": str(result.output),
                "already_complete": result.already_complete,
                "manifest": json.loads(result.manifest.to_json()),
                "run": result.run,
                "notes": result.notes,
            }
        )
    if not quiet:
        say("\n".join(_summary(result)))


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
for _command in cli.commands.values():  # click would look at the group only once it is called through it
    _command.context_settings.setdefault("help_option_names", ["-h", "--help"])


def main() -> NoReturn:
    """Run the command and exit with the code of what happened."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _interrupt)
    logging.getLogger("shardmill").addHandler(_Told())
    machine.keep_freed_memory()
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


class _Told(logging.Handler):
    """What the library has to say while it works: that a server does not answer, and that it tries again."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"shardmill: {record.getMessage()}")


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    _let_the_next_signal_leave()
    raise TemporaryError("terminated; run the same command again to go on from here")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """The first Ctrl-C lets the job make its work durable; the second leaves at once, with what is durable already."""
    _let_the_next_signal_leave()
    raise KeyboardInterrupt


def _let_the_next_signal_leave() -> None:
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(130 if number == signal.SIGINT else TemporaryError.exit_code)


def _fail(message: str, code: int) -> NoReturn:
    say(f"shardmill: {message}")
    sys.exit(code)


def _spec_and_limits(output: str, options: dict[str, Any]) -> tuple[Spec, Limits]:
    patience = os.environ.get("SHARDMILL_NETWORK_SECONDS", "")
    if patience and not patience.isdecimal():
        raise UsageError(f"SHARDMILL_NETWORK_SECONDS={patience}: is not a number of seconds; 300 is the default")
    limits = Limits(
        workers=options.pop("workers"),
        max_memory=options.pop("max_memory"),
        engine=options.pop("engine"),
        cache=cache_folder(),
        network_seconds=float(patience) if patience else NETWORK_SECONDS,
        max_rejects=options.pop("max_rejects"),
        staging=options.pop("staging"),
        max_staging=options.pop("max_staging"),
    )
    return Spec(output=output, **options), limits


def _show_estimate(spec: Spec, limits: Limits, *, as_json: bool) -> None:
    import shardmill

    found = shardmill.estimate(spec, limits=limits)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print("\n".join(_estimate_lines(found)))
    from shardmill.job.estimate import refuse_without_space

    refuse_without_space(spec, found)


def _estimate_lines(found: "Estimate") -> list[str]:
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


def _summary(result: "Result") -> list[str]:
    made = result.manifest
    lines = []
    if result.already_complete:
        lines.append(f"{result.output} is already complete; pass --overwrite to make it again")
    for file in made.files[:_SHOWN_FILES]:
        lines.append(f"{_inside(result, file.name)}  {file.tokens:,} tokens, {size(file.bytes)}")
    if len(made.files) > _SHOWN_FILES:
        lines.append(f"and {len(made.files) - _SHOWN_FILES:,} files more, {made.tokens:,} tokens in all")
    counts, run = made.counts, result.run
    inputs = made.job["inputs"]  # of very many, only a summary
    plain = isinstance(inputs, list) and all(_is_plain(str(entry["path"])) for entry in inputs)
    share = f", {counts.input_bytes / made.tokens:.2f} bytes per token" if made.tokens and plain else ""
    lines.append(
        f"{plural(counts.documents, 'document')} ({_left_out(counts)}), {size(counts.input_bytes)} of input{share}"
    )
    if run:
        if run["resumed_bytes"]:
            lines.append(f"went on after {size(run['resumed_bytes'])} that an earlier run had done")
        lines.append(
            f"{duration(run['seconds'])}, {run['bytes_per_second'] / 1e6:.0f} MB/s, peak memory {size(run['peak_memory'])} of {size(run['max_memory'])}, {plural(run['workers'], 'worker')}, engine {run['engine']}"
        )
    lines += [f"note: {note}" for note in result.notes]
    if isinstance(result.output, str):
        lines.append(f'load it: shardmill.open("{result.output}")["train"][:1000]')
    elif made.files and not made.files[0].offset:
        lines.append(f'load it: np.memmap("{_inside(result, made.files[0].name)}", dtype=np.{made.dtype}, mode="r")')
    return lines


def _is_plain(path: str) -> bool:
    return path.lower().endswith((".txt", ".text", ".md"))


def _inside(result: "Result", name: str) -> str:
    return f"{result.output}/{name}" if isinstance(result.output, str) else str(result.output / name)


def _left_out(counts: "Counts") -> str:
    rejected = f", {counts.documents_rejected:,} rejected: see rejects.jsonl" if counts.documents_rejected else ""
    return f"{counts.documents_empty:,} empty{rejected}"
