"""The command that says what is known about a tokenizer."""

import dataclasses

import click

from shardmill.cli.console import plural, print_json
from shardmill.cli.options import as_json, limits_of, tokenizer_names
from shardmill.system.names import show
from shardmill.tokens.names import BUNDLED, ON_THE_HUB

_SWEPT = {"classes": "character classes", "nfc": "normal form C"}


@click.command(
    epilog="""
\b
Examples:
  shardmill tokenizers
      the names that --tokenizer knows, and what each stands for
  shardmill tokenizers qwen3
      which engine runs it on this machine, why, and how fast
  shardmill tokenizers models/mine/tokenizer.json
  shardmill tokenizers --sweep
      once after an upgrade of tiktoken or tokenizers, if a note says so
"""
)
@click.argument("name", required=False, metavar="[NAME|FILE]", shell_complete=tokenizer_names)
@click.option(
    "--sweep",
    is_flag=True,
    help="Ask the installed tiktoken and tokenizers about every character, if they are newer than this release: until then they do all the work themselves, slowly. Takes a minute; the answers are kept in the cache folder.",
)
@as_json
def tokenizers(name: str | None, sweep: bool, as_json: bool) -> None:
    """Show which engine runs a tokenizer, why, and how fast; without a name, the names that are known.

    NAME is what --tokenizer takes: a known name, the path of a tokenizer.json or its folder, or a Hugging Face model
    id. docs/tokenizers.md says what is supported.
    """
    if sweep:
        if name is not None:
            raise click.UsageError("--sweep is about the installed libraries, and takes no NAME")
        _sweep(as_json=as_json)
        return
    if name is None:
        _list(as_json=as_json)
        return
    from shardmill.tokens.describe import describe
    from shardmill.tokens.tokenizer import load

    limits = limits_of({})
    found = describe(load(name, limits.most_memory(), limits.cache_folder()))
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    added = "" if found.added_tokens is None else f", {plural(found.added_tokens, 'added token')}"
    lines = [
        f"tokenizer  {found.name}",
        f"file       {found.file}, SHA-256 {found.sha256}",
        f"ids        {found.vocabulary_size:,}, {plural(found.special_tokens, 'special token')}{added}",
        f"model      {found.model or 'not one that our own engine knows'}"
        + (f", after {found.normal_form}" if found.normal_form else ""),
        f"engine     {found.engine}",
        f"speed      {found.megabytes_per_second:.3g} MB/s on one core, with nothing learned before",
        f"cuts       {found.cuts}",
    ]
    print("\n".join([*lines, *([f"note       {found.note}"] if found.note else [])]))


def _sweep(*, as_json: bool) -> None:
    from shardmill.tokens import sweep, tables

    folder = limits_of({}).cache_folder()
    tables.look_in(folder)
    asked = [(kind, table["made_with"][0], tables.keep(folder, kind, table)) for kind, table in sweep.unknown()]
    if as_json:
        tables_asked = [{"table": kind, "version": version} for kind, version, _ in asked]
        print_json({"asked": tables_asked, "folder": str(folder)})
        return
    for kind, version, path in asked:
        print(f"{_SWEPT[kind]} of {version}: kept in {show(path)}")
    if not asked:
        versions = " and ".join(map(tables.installed, ("tiktoken", "tokenizers")))
        print(f"nothing to do: {versions} are known")


def _list(*, as_json: bool) -> None:
    if as_json:
        print_json({"bundled": BUNDLED, "hub": ON_THE_HUB})
        return
    width = max(map(len, [*BUNDLED, *ON_THE_HUB]))
    print("\n".join(f"{name:<{width}}  {found}, bundled" for name, found in BUNDLED.items()))
    print("\n".join(f"{name:<{width}}  {found}, from the hub" for name, found in ON_THE_HUB.items()))
