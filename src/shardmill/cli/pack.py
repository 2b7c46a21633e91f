"""The command pack: a plan that fills rows with whole documents."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import shardmill
from shardmill.cli.console import plural, print_json, say
from shardmill.cli.options import COUNT, as_json, choice, options, taken
from shardmill.spec import Claims
from shardmill.system.names import show

if TYPE_CHECKING:
    from shardmill.feed.plan import Packing

_LONG = {"fragment": "cut into several rows", "crop": "only their beginning is kept", "drop": "left out"}


@click.command(
    epilog="""
\b
Examples:
  shardmill pack data/ --length 2048
      rows of 2,048 tokens, in data/train-2048.plan
  shardmill pack data/ --length 2048 --long crop -o crop.plan
      documents longer than a row lose their end
"""
)
@click.argument("source", metavar="FOLDER")
@click.option("--length", type=COUNT, required=True, help="Tokens per row, that is the context length.")
@choice("--strategy", ["best-fit"], "The longest documents first, each into the fullest row that has room for it.")
@choice(
    "--long",
    [*_LONG],
    "Documents longer than a row: cut them into several rows, keep only the first row of each, or leave them out.",
)
@choice("--split", ["train", "val"], "Which tokens.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the order of the rows.")
@click.option(
    "--window",
    type=COUNT,
    default=1 << 20,
    show_default=True,
    help="Documents that are packed together; memory grows with it.",
)
@click.option("-o", "--output", metavar="FILE", help="Where the plan goes. Default: FOLDER/SPLIT-LENGTH.plan.")
@options(Claims)
@as_json
def pack(source: str, strategy: str, split: Any, as_json: bool, **given: Any) -> None:  # noqa: ARG001
    """Pack whole documents into rows of one length, without moving a token.

    FOLDER is an output of shardmill, or a local folder with token files of another program. Only where documents end
    is read; the result is a plan that shardmill.Windows reads beside the tokens.
    """
    plan = Path(given.pop("output") or Path(source, f"{split}-{given['length']}.plan"))
    made = shardmill.pack(shardmill.Source(path=source, split=split, **taken(Claims, given)), output=plan, **given)
    if as_json:
        print_json({**dataclasses.asdict(made), "padded": made.padded, "plan": str(plan)})
    say("\n".join(_summary(made)))
    say(f'load it: Windows(Source(path="{show(source)}", plan="{show(plan)}"), length={made.length})')


def _summary(made: "Packing") -> list[str]:
    compared = "as few as packing all documents at once"
    if made.rows != made.rows_at_once:
        compared = f"{made.rows / made.rows_at_once - 1:.2%} more than packing all documents at once ({made.rows_at_once:,}); a larger --window takes fewer, and more memory"
    return [
        f"{plural(made.documents, 'document')}, {made.tokens:,} tokens → {plural(made.rows, 'row')} of {made.length:,}",
        f"lost    {made.lost:,} tokens ({made.lost / made.tokens:.2%} of all)",
        f"padded  {made.padded:,} places ({made.padded / (made.rows * made.length):.2%} of the rows)",
        f"cut     {plural(made.cut, 'document')} longer than a row: {_LONG[made.long]}",
        f"rows    {compared}",
    ]
