"""The commands for finished outputs: verify, merge, convert, inspect."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

import shardmill
from shardmill.cli.console import Reporter, bytes_per_token, load_line, plural, print_json, say, size
from shardmill.cli.failures import ResultError
from shardmill.cli.options import COUNT, as_json, choice, files, folders, limits_of, option, options, quiet, taken
from shardmill.errors import InputError, OutputError, UsageError
from shardmill.spec import Claims, Limits, ReferenceShare, Spec, Target
from shardmill.system.names import show

if TYPE_CHECKING:
    from shardmill.record.manifest import Manifest
    from shardmill.results.corpus import Corpus
    from shardmill.results.inspect import Statistics

_COLOURS = ("black on bright_cyan", "black on bright_yellow")
_SHOWN_TOKENS = 400
_tokenizer = option(
    Spec,
    "tokenizer",
    default=None,
    show_default=False,
    help="Path of the tokenizer.json that made the output, if it was not a bundled one.",
)


@click.command(
    epilog="""
\b
Examples:
  shardmill verify data/
      every byte is as it was written, every id is in the vocabulary
  shardmill verify data/ --source book.txt
      also: the tokens are those of the text, about 1 % of it by the reference tokenizer
  shardmill verify data/ --source corpus/ --reference all
      all of it by the reference tokenizer, which is slow
"""
)
@click.argument("output", metavar="OUTPUT", shell_complete=folders)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="INPUT",
    shell_complete=files,
    help="What the output was made from; repeatable.",
)
@choice(
    "--reference",
    get_args(ReferenceShare),
    "How much of the source to check with the reference tokenizer. All of it is tokenized and compared in any case.",
)
@_tokenizer
@options(Limits, "workers", "max_memory")
@as_json
@quiet
def verify(output: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Check a finished output: every byte against its checksum, every id against the vocabulary.

    With --source the text is tokenized again, without writing anything, and compared token by token.
    OUTPUT is a folder, or a URL that begins with s3://, gs://, hf://datasets/ or https://. The exit code is 0 only
    if no problem was found.
    """
    limits = limits_of(given)
    found = shardmill.verify(output, limits=limits, **given)
    content = {"ok": found.ok, **dataclasses.asdict(found), "output": str(found.output)}
    for problem in found.problems:
        say(f"{show(output.rstrip('/') + '/' + problem.file)}: {show(problem.what)}")
    if not found.ok:
        raise ResultError(OutputError(f"{show(output)}: {plural(len(found.problems), 'problem')} found"), content)
    if as_json:
        print_json(content)
    if not quiet:
        say(
            f"{show(found.output)}: {plural(found.files, 'file')}, {found.tokens:,} tokens, {size(found.bytes)}: every byte is as it was written"
        )
    if not quiet and found.source_bytes is not None:
        text = f"{size(found.source_bytes)} of input give" if found.source_bytes else "the text up to the limit gives"
        say(
            f"{text} the same tokens; {size(found.reference_bytes or 0)} of the text checked with the reference tokenizer"
        )


@click.command(epilog="\b\nExample:\n  shardmill merge data-2023/ data-2024/ -o data/")
@click.argument("sources", nargs=-1, required=True, metavar="OUTPUT...", shell_complete=folders)
@option(Target, "output", "-o")
@options(Target, "shard_tokens", "sample_tokens", "index", "overwrite", "sync")
@as_json
def merge(sources: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Join outputs of the same tokenizer and format.

    The train tokens of all outputs follow each other in the order given, and so do the val tokens. Nothing is
    tokenized again. An OUTPUT may be a URL such as s3://BUCKET/FOLDER; the result goes to a local disk.
    """
    with Reporter("auto") as reporter:
        made = shardmill.merge(sources, Target(**given), on_progress=reporter.copied)
    _summarize(made, given["output"], as_json=as_json)


@click.command(epilog="\b\nExample:\n  shardmill convert data/ --format megatron -o data-megatron/")
@click.argument("source", metavar="FOLDER", shell_complete=folders)
@option(Target, "output", "-o")
@option(Target, "format", "--to", required=True)
@options(Target, "eot", "shard_tokens", "sample_tokens", "dtype", "index", "overwrite", "sync")
@options(Claims)
@as_json
def convert(source: str, as_json: bool, **given: Any) -> None:
    """Write an output in another format, without tokenizing again.

    FOLDER is an output of shardmill, which may be at a URL such as s3://BUCKET/FOLDER, or a local folder with files
    of one of the formats that another program made.
    """
    claims = taken(Claims, given)
    with Reporter("auto") as reporter:
        made = shardmill.convert(source, Target(**given), **claims, on_progress=reporter.copied)
    _summarize(made, given["output"], as_json=as_json)


def _summarize(made: "Manifest", output: str, *, as_json: bool) -> None:
    from shardmill.job.notes import notes_on_files

    if as_json:
        print_json(json.loads(made.to_json()))
    say(
        f"{output}: {made.tokens:,} tokens in {plural(len(made.files), 'file')}, {size(sum(file.bytes for file in made.files))}, end-of-text {made.eot_side}"
    )
    for note in notes_on_files(made):
        say(f"note: {show(note)}")
    if made.files:
        say(f"load it: {load_line(Path(output), made)}")


@click.command(epilog="\b\nExample:\n  shardmill inspect data/ --documents 3")
@click.argument("output", metavar="OUTPUT", shell_complete=folders)
@click.option("--documents", type=COUNT, default=1, show_default=True, help="How many documents of each split to show.")
@_tokenizer
@as_json
def inspect(output: str, documents: int, tokenizer: str | None, as_json: bool) -> None:
    """Show what is in an output: tokens, documents, their lengths, the most frequent tokens, and some text.

    On a terminal the tokens of a document have alternating colours. OUTPUT is a folder, or a URL that begins with
    s3://, gs://, hf://datasets/ or https://.
    """
    from shardmill.results.inspect import statistics

    corpus = shardmill.open(output, tokenizer=tokenizer)
    unknown = _why_no_text(corpus)
    found = [statistics(split) for split in corpus.values()]
    if as_json:
        content = {
            "splits": [dataclasses.asdict(split) for split in found],
            "spelled": {token: _spelled(corpus, token) for split in found for token, _ in split.frequent},
            "bytes_per_token": bytes_per_token(corpus.manifest),
            "manifest": json.loads(corpus.manifest.to_json()),
        }
        print_json(content)
        return
    print("\n".join(_corpus_lines(corpus)))
    for each in found:
        print("\n".join(_split_lines(corpus, each)))
    if unknown:
        say(unknown)
    for name, split in corpus.items() if documents else ():
        shown = itertools.islice(split.documents(), documents) if split.knows_documents else [split[:_SHOWN_TOKENS]]
        for number, tokens in enumerate(shown):
            print(f"\n{name}, document {number}: {plural(len(tokens), 'token')}")
            _show(corpus, tokens[:_SHOWN_TOKENS].tolist())
            if len(tokens) > _SHOWN_TOKENS:
                print(f"and {len(tokens) - _SHOWN_TOKENS:,} more tokens")


COMMANDS = (verify, merge, convert, inspect)


def _corpus_lines(corpus: "Corpus") -> list[str]:
    counts, tokenizer = corpus.manifest.counts, corpus.manifest.job["choices"].get("tokenizer")
    eot = f" each document, id {corpus.eot_id}" if corpus.eot_id is not None else ""
    each = bytes_per_token(corpus.manifest)
    return [
        f"format     {corpus.format}, {corpus.dtype}; tokenizer {show(str(tokenizer))}",
        f"eot        {corpus.eot_side}{eot}",
        f"input      {size(counts.input_bytes)}, {plural(counts.documents, 'document')}",
        f"tokens     {corpus.tokens:,}" + (f", {each:.2f} bytes of text each" if each else ""),
    ]


def _split_lines(corpus: "Corpus", split: "Statistics") -> Iterator[str]:
    yield f"{split.split:<10} {split.tokens:,} tokens in {plural(split.files, 'file')}"
    if (lengths := split.lengths) is not None:
        yield f"           {plural(lengths.documents, 'document')} of {lengths.shortest:,} to {lengths.longest:,} tokens, {lengths.mean:,} on average"
        most = max((count for _, count in lengths.histogram), default=1)
        for least, count in lengths.histogram:
            yield f"           {least:>12,} tokens and more  {'█' * max(1, round(30 * count / most))} {count:,}"
    if split.frequent:
        shares = [(token, 100 * count / split.counted_tokens) for token, count in split.frequent]
        names = ", ".join(f"{_spelled(corpus, token)!r} {share:.1f} %" for token, share in shares)
        yield f"           most frequent: {names}"


def _why_no_text(corpus: "Corpus") -> str:
    """Why tokens are shown as numbers, if they are. A tokenizer that was named must be the right one."""
    try:
        _ = corpus.reference
    except UsageError as e:
        if corpus.tokenizer is not None:
            raise
        return str(e)
    return ""


def _pieces(corpus: "Corpus", tokens: list[int]) -> list[str]:
    """The text of each token, or their numbers if the tokenizer is unknown or does not know them."""
    from shardmill.results.inspect import spell

    try:
        return list(spell(corpus, tokens))
    except (UsageError, InputError):
        return [f"{token} " for token in tokens]


def _spelled(corpus: "Corpus", token: int) -> str:
    return "".join(_pieces(corpus, [token]))


def _show(corpus: "Corpus", tokens: list[int]) -> None:
    pieces = _pieces(corpus, tokens)
    if not sys.stdout.isatty():
        print("".join(pieces))
        return
    from rich.console import Console
    from rich.text import Text

    line = Text()
    for number, piece in enumerate(piece for piece in pieces if piece):
        line.append(piece, style=_COLOURS[number % 2])
    Console().print(line)
