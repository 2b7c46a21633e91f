"""The commands for what is made already: verify, merge, convert, inspect."""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardmill.cli.console import Count, Reporter, Size, cache_folder, duration, plural, print_json, say, size
from shardmill.errors import InputError, OutputError, UsageError
from shardmill.spec import OUTPUT_FORMATS, Limits

if TYPE_CHECKING:
    from shardmill.record.manifest import Manifest
    from shardmill.results.corpus import Corpus
    from shardmill.results.inspect import SplitStatistics
    from shardmill.results.verify import Verified

_COLOURS = ("black on bright_cyan", "black on bright_yellow")
_SHOWN_TOKENS = 400
_PROGRESS_SECONDS = 0.1


@click.command(
    epilog="\b\nExamples:\n  shardmill verify data/\n      every byte is as it was written, every id is in the vocabulary\n  shardmill verify data/ --source book.txt\n      also: the tokens are those of the text, a hundredth of it by the reference tokenizer\n  shardmill verify data/ --source corpus/ --reference all\n      all of it by the reference tokenizer, which takes its time"
)
@click.argument("output", metavar="FOLDER")
@click.option(
    "--source", "sources", multiple=True, metavar="INPUT", help="What the result was made of; may be given many times."
)
@click.option(
    "--reference",
    type=click.Choice(["sample", "all"]),
    default="sample",
    show_default=True,
    help="How much of the source goes through the reference tokenizer; all of it goes through the mill again.",
)
@click.option("--tokenizer", metavar="NAME", help="Where the tokenizer.json is, if the result was made with one.")
@click.option("--workers", type=click.IntRange(1), help="Threads that encode the source.")
@click.option("--max-memory", type=Size(), help="The most memory that comparing the source may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but what is wrong.")
def verify(
    output: str,
    sources: tuple[str, ...],
    reference: Any,
    tokenizer: str | None,
    workers: int | None,
    max_memory: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check a finished result: every byte against its checksum, every id against the vocabulary.

    With --source the text is milled again, without writing anything, and compared token by token.
    FOLDER may be an address: s3://, gs://, hf://datasets/ or https://. Exits with 0 only if all is well.
    """
    import shardmill

    limits = Limits(workers=workers, max_memory=max_memory, cache=cache_folder())
    found = shardmill.verify(output, sources=sources, how=reference, tokenizer=tokenizer, limits=limits)
    if as_json:
        print_json({"ok": found.ok, **dataclasses.asdict(found), "output": str(found.output)})
    for problem in found.problems:
        say(f"{_shown(output.rstrip('/') + '/' + problem.file)}: {_shown(problem.what)}")
    if found.problems:
        raise OutputError(f"{_shown(output)}: {plural(len(found.problems), 'problem')} found")
    if not quiet:
        say("\n".join(_verified_lines(found)))


def _verified_lines(found: "Verified") -> list[str]:
    lines = [
        f"{_shown(found.output)}: {plural(found.files, 'file')}, {found.tokens:,} tokens, {size(found.bytes)}: every byte is as it was written"
    ]
    if found.source_bytes is not None:
        lines.append(
            f"{size(found.source_bytes)} of input give the same tokens; {size(found.reference_bytes or 0)} of the text went through the reference tokenizer"
        )
    return lines


def _shown(text: str | Path) -> str:
    """As it may be printed: names and messages can hold what strangers wrote."""
    from shardmill.system.names import show

    return show(str(text))


def _target_options(command: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.option("-o", "--output", required=True, metavar="FOLDER", help="Where the new files go."),
        click.option(
            "--shard-tokens", type=Count(), help="Tokens in each shard, e.g. 500M, in formats that have shards."
        ),
        click.option(
            "--sample-tokens",
            type=Count(),
            help="Tokens that the trainer takes at a time, in formats whose shards hold whole samples: mds (2048 by default) and litdata (2049).",
        ),
        click.option("--index", is_flag=True, help="Also write where each document ends: train.ends and val.ends."),
        click.option("--overwrite", is_flag=True, help="Replace what is in the output folder."),
        click.option(
            "--sync/--no-sync",
            default=True,
            show_default=True,
            help="Wait until all is on disk, so that a power cut loses nothing; without it, as with cp, the system writes it when it likes.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the new manifest as JSON on standard output."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _folder(output: str) -> Path:
    from shardmill.system.names import is_url

    if is_url(output):
        raise UsageError(
            f"-o {_shown(output)}: merge and convert write to a disk; choose a folder there, and copy it to the store then, manifest.json last"
        )
    return Path(output)


@click.command(epilog="\b\nExample:\n  shardmill merge data-2023/ data-2024/ -o data/")
@click.argument("sources", nargs=-1, required=True, metavar="OUTPUT...")
@_target_options
def merge(sources: tuple[str, ...], output: str, as_json: bool, **options: Any) -> None:
    """Join outputs of the same tokenizer and format into one.

    Train tokens follow each other in the order given, val tokens likewise. Nothing is encoded again.
    An OUTPUT may be an address, such as s3://BUCKET/FOLDER; the result goes to a disk.
    """
    import shardmill

    target = shardmill.Target(output=_folder(output), **options)
    with Reporter("auto") as reporter:
        made = shardmill.merge(list(sources), target, _copying(reporter))
    _tell(made, output, as_json=as_json)


@click.command(epilog="\b\nExample:\n  shardmill convert data/ --to megatron -o data-megatron/")
@click.argument("source", metavar="FOLDER")
@click.option("--to", "format", type=click.Choice(OUTPUT_FORMATS), required=True, help="The format to write.")
@click.option(
    "--from",
    "from_format",
    type=click.Choice(OUTPUT_FORMATS),
    help="For files that another program made: their format, where it cannot be told from them.",
)
@click.option(
    "--from-dtype",
    type=click.Choice(["auto", "uint16", "uint32"]),
    default="auto",
    show_default=True,
    help="For raw files that another program made: their integers, which the files do not tell.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "uint16", "uint32"]),
    default="auto",
    show_default=True,
    help="Integers of the new files; auto takes those of the source, or what the vocabulary needs. With uint16 every id must be below 65,536, or nothing is written.",
)
@click.option(
    "--eot-id",
    type=click.IntRange(0),
    help="For files that another program made: the token that ends (or begins) each document and stands nowhere else. For an output without end-of-text tokens: the one to put.",
)
@click.option(
    "--eot",
    type=click.Choice(["after", "before", "none"]),
    help="Where the new files have their end-of-text tokens. Default: where the format has them, if there are any.",
)
@_target_options
def convert(
    source: str,
    from_format: str | None,
    from_dtype: Any,
    eot_id: int | None,
    output: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Write an output in another format, without encoding anything again.

    FOLDER is an output of shardmill, also at an address such as s3://BUCKET/FOLDER, or holds files of one of
    the formats that another program made.
    """
    import shardmill
    from shardmill.results.foreign import Claims

    target = shardmill.Target(output=_folder(output), **options)
    claims = Claims(format=from_format, dtype=from_dtype, eot_id=eot_id)
    with Reporter("auto") as reporter:
        made = shardmill.convert(source, target, claims, _copying(reporter))
    _tell(made, output, as_json=as_json)


@click.command(epilog="\b\nExample:\n  shardmill inspect data/ --documents 3")
@click.argument("source", metavar="OUTPUT")
@click.option(
    "--documents", type=click.IntRange(0), default=1, show_default=True, help="Documents to show of each split."
)
@click.option("--tokenizer", metavar="NAME", help="Where the tokenizer is, if it is not one that comes with shardmill.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on standard output.")
def inspect(source: str, documents: int, tokenizer: str | None, as_json: bool) -> None:
    """Say what is in an output: tokens, documents, their lengths, the most frequent tokens; and show some.

    On a terminal the tokens of a document have colours in turn. OUTPUT may be an address: s3://, gs://,
    hf://datasets/ or https://.
    """
    import shardmill
    from shardmill.results.inspect import printable, statistics

    corpus = shardmill.open(source, tokenizer=tokenizer)
    unknown = _why_no_text(corpus)
    found = [statistics(split) for split in corpus.splits.values()]
    assert corpus.manifest is not None
    counts = corpus.manifest.counts
    if as_json:
        names = {token: _spelled(corpus, token) for split in found for token, _ in split.frequent}
        content = {
            "splits": [dataclasses.asdict(split) for split in found],
            "spelled": names,
            "bytes_per_token": counts.input_bytes / corpus.tokens if corpus.tokens else None,
            "manifest": json.loads(corpus.manifest.to_json()),
        }
        print_json(content)
        return
    choices = corpus.manifest.job.get("choices", {})
    print(f"format     {corpus.format.name}, {corpus.dtype}; tokenizer {printable(str(choices.get('tokenizer')))}")
    print(
        f"eot        {corpus.eot_side}" + (f" each document, id {corpus.eot_id}" if corpus.eot_id is not None else "")
    )
    print(f"input      {size(counts.input_bytes)}, {plural(counts.documents, 'document')}")
    if corpus.tokens:
        print(f"tokens     {corpus.tokens:,}, {counts.input_bytes / corpus.tokens:.2f} bytes of input each")
    for each in found:
        print("\n".join(_split_lines(corpus, each)))
    if unknown:
        say(unknown)
    for name, split in corpus.splits.items() if documents else ():
        shown = itertools.islice(split.documents(), documents) if split.knows_documents else [split[:_SHOWN_TOKENS]]
        for number, tokens in enumerate(shown):
            print(f"\n{name}, document {number}: {plural(len(tokens), 'token')}")
            _show(corpus, tokens[:_SHOWN_TOKENS])
            if len(tokens) > _SHOWN_TOKENS:
                print(f"and {len(tokens) - _SHOWN_TOKENS:,} tokens more")


COMMANDS = (verify, merge, convert, inspect)


def _split_lines(corpus: "Corpus", split: "SplitStatistics") -> list[str]:

    lines = [f"{split.split:<10} {split.tokens:,} tokens in {plural(split.files, 'file')}"]
    lengths = split.lengths
    if lengths is not None:
        lines.append(
            f"           {plural(lengths.documents, 'document')} of {lengths.shortest:,} to {lengths.longest:,} tokens, {lengths.mean:,} on average"
        )
        most = max((count for _, count in lengths.histogram), default=1)
        lines += [
            f"           {least:>12,} tokens and more  {'█' * max(1, round(30 * count / most))} {count:,}"
            for least, count in lengths.histogram
        ]
    if split.frequent:
        names = (
            f"{_spelled(corpus, token)!r} {100 * count / split.counted_tokens:.1f} %" for token, count in split.frequent
        )
        lines.append(f"           most frequent: {', '.join(names)}")
    return lines


def _why_no_text(corpus: "Corpus") -> str:
    """Why tokens are shown as numbers, if they are; a tokenizer that was asked for must be the right one."""
    try:
        _ = corpus.reference
    except UsageError as e:
        if corpus.tokenizer is not None:
            raise
        return str(e)
    return ""


def _spelled(corpus: "Corpus", token: int) -> str:
    """The text of a token; its number where it is not known."""
    from shardmill.results.inspect import printable

    try:
        return printable(corpus.decode([token]))
    except (UsageError, InputError):
        return str(token)


def _show(corpus: "Corpus", tokens: Any) -> None:
    from shardmill.results.inspect import spell

    try:
        pieces = list(spell(corpus, tokens))
    except (UsageError, InputError):
        pieces = [f"{token} " for token in tokens.tolist()]
    if not sys.stdout.isatty():
        print("".join(pieces))
        return
    from rich.console import Console
    from rich.text import Text

    line = Text()
    for number, piece in enumerate(piece for piece in pieces if piece):
        line.append(piece, style=_COLOURS[number % 2])
    Console().print(line)


def _copying(reporter: Reporter) -> Callable[[int, int], None]:
    """How far merge or convert is, a few times a second."""
    started = last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS:
            last = now
            speed = done / (now - started)
            line = f"{size(done)} of {size(total)}, {speed / 1e6:.0f} MB/s, {duration((total - done) / speed)} left"
            reporter.show(line, done, total)

    return report


def _tell(made: "Manifest", output: str, *, as_json: bool) -> None:
    from shardmill.job.notes import notes_on_files

    if as_json:
        print_json(json.loads(made.to_json()))
    say(
        f"{output}: {made.tokens:,} tokens in {plural(len(made.files), 'file')}, {size(sum(file.bytes for file in made.files))}, end-of-text {made.eot_side}"
    )
    for note in notes_on_files(made):
        say(f"note: {_shown(note)}")
