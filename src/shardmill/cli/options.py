"""Fields of Spec, Target and Limits → options of the same names, types and defaults, each described once."""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, get_origin

import click
from click.shell_completion import CompletionItem

from shardmill.errors import UsageError
from shardmill.spec import NETWORK_SECONDS, Limits, choices_of, hints_of, option_of
from shardmill.tokens.names import BUNDLED, ON_THE_HUB

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class Quantity(click.ParamType[int]):
    """A whole number that may have a unit: 1.5M is exactly 1,500,000."""

    def __init__(self, name: str, units: dict[str, int], examples: str) -> None:
        self.name, self._units, self._examples = name, units, examples

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-z]*)\s*", str(value).lower())
        if match is None or match[2] not in self._units:
            self.fail(f"{value!r} is not a {self.name}; write it like {self._examples}", param, ctx)
        number = Fraction(re.sub("[_,]", "", match[1])) * self._units[match[2]]
        if number.denominator != 1 and self._units[match[2]] == 1:
            self.fail(f"{value!r} is not a whole number; write it like {self._examples}", param, ctx)
        return round(number)


class Share(click.ParamType[float]):
    """A part of something, such as 0.1 or 10%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            return float(Fraction(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1))
        except (ValueError, ZeroDivisionError, OverflowError):
            self.fail(f"{value!r} is not a share; write it like 0.1 or 10%", param, ctx)


class Rejects(click.ParamType[int | float]):
    """A number of records, such as 100 or 10k, or a share of them, such as 0.1% or 0.001."""

    name = "count|share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        text = str(value).strip()
        kind = Share() if re.fullmatch(r".*%|0?\.[0-9]+(?:e-[0-9]+)?|.*e-[0-9]+", text) else COUNT
        try:
            return kind.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is neither a number of records nor a share; write it like 100, 10k or 0.1%", param, ctx
            )


SIZE = Quantity(
    "size",
    # 1 kB is 1,000 bytes; 1 K and 1 KiB are 1,024.
    {"": 1, "b": 1}
    | {f"{unit}{i}": 1024**power for power, unit in enumerate("kmgt", 1) for i in ("", "ib")}
    | {f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
    "512MiB or 2GiB",
)
COUNT = Quantity(
    "count", {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}, "35M, 1.5G or 100000000"
)

_TYPES: dict[str, Any] = {
    **dict.fromkeys(
        ("workers", "shard_tokens", "sample_tokens", "val_tokens", "limit_documents", "limit_tokens"), COUNT
    ),
    **dict.fromkeys(("max_memory", "max_staging"), SIZE),
    **dict.fromkeys(("val_fraction", "sample"), Share()),
    "eot_id": int,
    "max_rejects": Rejects(),
}
_ALIASES = {"field": ["--column"], "from_format": ["--from"]}
_METAVARS = {
    **dict.fromkeys(("output", "staging"), "FOLDER"),
    **dict.fromkeys(("tokenizer", "field"), "NAME"),
    **dict.fromkeys(("include", "exclude"), "GLOB"),
    "eot_id": "ID",
    "eot_token": "TOKEN",
    "where": "CONDITION",
}
_HELP = {
    "output": "Where the token files and manifest.json go: a folder, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER.",
    "tokenizer": "A name such as gpt2, gpt-4o, llama3 or qwen3 (`shardmill tokenizers` lists them), the path of a tokenizer.json, or a Hugging Face model id such as openai-community/gpt2.",
    "separator": r"Text that separates documents; the escapes \n and \t are understood, so '\n' makes each line a document. Default: each file is one document.",
    "eot": "Put the end-of-text token after or before each document, or nowhere. auto: nowhere for a single file without --separator, else where the format expects it.",
    "eot_token": "The special token to use as end-of-text token, if the tokenizer has several candidates.",
    "format": "The trainer whose files to write. docs/formats.md describes each.",
    "shard_tokens": "Tokens per shard, e.g. 500M, in formats with shards. Default: what the trainer's own script writes.",
    "sample_tokens": "Tokens per sample, that is the context length, in formats whose shards hold whole samples: mds (default 2048) and litdata (2049).",
    "Target.sample_tokens": "Tokens per sample, that is the context length: in mds (default 2048) and litdata (2049), and in parquet, where otherwise each document is a row.",
    "dtype": "Width of the token ids. auto: uint16 if every id fits.",
    "index": "Also write the positions where documents end: train.ends and val.ends, and where a split is one file also train.document_offsets.npy.",
    "provenance": "With --index: also write the input file, and the byte or record in it, that each document came from: train.places and val.places.",
    "val_fraction": "Share of the documents (or of the passages of running text) that goes to the validation set, e.g. 0.01 or 1%; at least one of them, if there are two or more; 0 writes none.",
    "val_tokens": "Tokens in the validation set, in formats whose first shard it is (build-nanogpt, llmc, modded-nanogpt), e.g. 1M. Default: as many as in every shard.",
    "split": "How to choose the validation set: by a hash of the content, the tail or the head of the input, or the first shard; nanogpt: the last tenth of the characters, exactly as nanoGPT's prepare.py splits Shakespeare. auto: the first shard if the trainer expects that, else hash.",
    "seed": "Another seed chooses another validation set.",
    "include": "Of folders and globs, take only files whose name or path matches, e.g. '*.jsonl.zst' or 'train/*'; repeatable. Also takes what is left out by default: README, LICENSE and the like, and unknown suffixes. INPUTs that name a file are always taken.",
    "exclude": "Of folders and globs, leave out files whose name or path matches, e.g. '*.md' or 'drafts/*'; repeatable.",
    "where": "Take only records whose fields meet this condition, e.g. 'score >= 3' or 'language in (\"en\", \"de\") and meta.length > 500'; repeatable, and all must be met. A record without the field is filtered out.",
    "input_format": "Format of the inputs. auto: detected for each file by its name and first bytes. Compressed files (.gz, .zst, .bz2, .xz) are always recognized.",
    "field": "The JSON field or column that holds the text; a.b is field b of field a.",
    "on_error": "Bad records and invalid UTF-8: stop and say where; skip them and list them in rejects.jsonl; or replace bad characters by U+FFFD, and stop at other errors.",
    "sample": "Prepare only this share of the documents, e.g. 0.1 or 10%, chosen by a hash of their content.",
    "limit_documents": "Stop after exactly this many documents.",
    "limit_tokens": "Stop after exactly this many tokens.",
    "workers": "How many cores encode. Default: those that this process may use; if one is left, it reads and writes.",
    "max_memory": "Memory limit for the whole command, e.g. 512MiB. Default: what the tokenizer, the inputs and all workers need, at most half of the memory of the machine or container.",
    "engine": "What encodes; the result is the same. native: our own engine; reference: tiktoken or tokenizers, which is slow. auto: our own if it knows the tokenizer.",
    "max_rejects": "With --on-error skip: stop when more records than this are bad, e.g. 100, or 0.1% of those read so far.",
    "staging": "With -o in an object store: local folder for files that are not yet complete. Default: staging in the user's cache folder.",
    "max_staging": "With -o in an object store: disk space limit for --staging; the job waits for uploads when it is reached. Default: half of the free space, at most 32 GiB of shards.",
    "overwrite": "Replace what is in the output folder.",
    "sync": "Wait until everything is on disk, so that a power failure loses nothing. Otherwise the operating system decides when to write, as with cp.",
    "from_format": "For files of another program: their format, if it cannot be detected.",
    "from_dtype": "For raw files of another program: the width of their integers.",
    "eot_id": "For files of another program: the token that ends (or begins) each document and occurs nowhere else. For an output without end-of-text tokens: the one to insert.",
    "Target.output": "The folder for the new files.",
    "Target.format": "The format to write.",
    "Target.shard_tokens": "Tokens per shard, e.g. 500M, in formats with shards. Default: as in the source if the format stays the same, else what the trainer's own script writes.",
    "Target.eot": "Put the end-of-text token after or before each document, or nowhere. Default: where the format expects it, if the source has any.",
    "Target.dtype": "Width of the new token ids. auto: as in the source, or as the vocabulary needs. uint16 requires every id to be below 65,536; otherwise nothing is written.",
}  # fmt: skip


def files(_context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Has the shell complete the name of a file."""
    return [CompletionItem(begun, type="file")]


def folders(_context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Has the shell complete the name of a folder."""
    return [CompletionItem(begun, type="dir")]


def tokenizer_names(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names that stand for tokenizers; where none begins like that, files."""
    known = sorted({*BUNDLED, *BUNDLED.values(), *ON_THE_HUB})
    return [CompletionItem(name) for name in known if name.startswith(begun)] or files(context, param, begun)


_COMPLETIONS = {"output": folders, "staging": folders, "tokenizer": tokenizer_names}
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Print only errors.")


def choice(flag: str, words: Sequence[str], help: str) -> Decorator:
    """An option that takes one of these words, by default the first."""
    return click.option(flag, type=click.Choice(words), default=words[0], show_default=True, help=help)


def option(kind: type, name: str, *aliases: str, **settings: Any) -> Decorator:
    """The option for a field. settings override what follows from it."""
    field = {field.name: field for field in dataclasses.fields(kind)}[name]
    flag = option_of(name)
    default = None if field.default is dataclasses.MISSING else field.default
    if default is True:
        flag += f"/--no-{flag[2:]}"
    words, hint = choices_of(kind).get(name), hints_of(kind)[name]
    following: dict[str, Any] = {
        "type": click.Choice(words) if words else _TYPES.get(name),
        "default": default,
        "show_default": default not in (None, False, ()),
        "multiple": get_origin(hint) is Sequence,
        "required": field.default is dataclasses.MISSING,
        "metavar": _METAVARS.get(name),
        "shell_complete": _COMPLETIONS.get(name),
        "help": _HELP.get(f"{kind.__name__}.{name}") or _HELP[name],
    }
    if default is None:  # to newer versions of click, None is a value like any other
        del following["default"]
    if hint is bool:  # and an option that is said to be no flag may stand without its value
        following["is_flag"] = True
    return click.option(flag, *aliases, *_ALIASES.get(name, ()), name, **{**following, **settings})


def options(kind: type, *names: str) -> Decorator:
    """Options for these fields, or for all that have a help text."""
    wanted = names or [name for name in hints_of(kind) if name in _HELP and name != "output"]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for name in reversed(wanted):
            command = option(kind, name)(command)
        return command

    return decorate


def limits_of(given: dict[str, Any]) -> Limits:
    """Limits from the options and from the environment."""
    seconds = os.environ.get("SHARDMILL_NETWORK_SECONDS", "")
    if seconds and not seconds.isdecimal():
        raise UsageError(f"SHARDMILL_NETWORK_SECONDS={seconds}: is not a number of seconds; the default is 300")
    cache = os.environ.get("XDG_CACHE_HOME")
    return Limits(
        cache=os.path.join(cache, "shardmill") if cache else None,
        network_seconds=float(seconds) if seconds else NETWORK_SECONDS,
        **taken(Limits, given),
    )


def taken(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """The options for fields of this kind, which are taken out."""
    return {field.name: given.pop(field.name) for field in dataclasses.fields(kind) if field.name in given}
