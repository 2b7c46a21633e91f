"""The command that says what is known about a tokenizer."""

import dataclasses

import click

from shardmill.cli.console import plural, print_json
from shardmill.cli.options import as_json, limits_of, tokenizer_names
from shardmill.tokens.names import BUNDLED, ON_THE_HUB


@click.command(
    epilog="""
\b
Examples:
  shardmill tokenizers
      the names that --tokenizer knows, and what each stands for
  shardmill tokenizers qwen3
      which engine runs it on this machine, why, and how fast
  shardmill tokenizers models/mine/tokenizer.json
"""
)
@click.argument("name", required=False, metavar="[NAME|FILE]", shell_complete=tokenizer_names)
@as_json
def tokenizers(name: str | None, as_json: bool) -> None:
    """Show which engine runs a tokenizer, why, and how fast; without a name, the names that are known.

    NAME is what --tokenizer takes: a known name, the path of a tokenizer.json or its folder, or a Hugging Face model
    id. docs/tokenizers.md says what is supported.
    """
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


def _list(*, as_json: bool) -> None:
    if as_json:
        print_json({"bundled": BUNDLED, "hub": ON_THE_HUB})
        return
    width = max(map(len, [*BUNDLED, *ON_THE_HUB]))
    print("\n".join(f"{name:<{width}}  {found}, bundled" for name, found in BUNDLED.items()))
    print("\n".join(f"{name:<{width}}  {found}, from the hub" for name, found in ON_THE_HUB.items()))
