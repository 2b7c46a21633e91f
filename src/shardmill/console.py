"""What the commands have in common: numbers as people write them, and lines on the terminal."""

import json
import re
import sys
from typing import Any

import click


class Size(click.ParamType[int]):
    """A number of bytes, such as 512MiB, 2G or 1.5GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b)?\s*", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size; write it like 512MiB or 2GiB", param, ctx)
        number, unit, suffix = (group or "" for group in match.groups())
        step = 1000 if unit and suffix.lower() == "b" else 1024  # 1 kB is 1,000 bytes; 1 K and 1 KiB are 1,024
        return int(float(number) * step ** (" kmgt".index(unit.lower()) if unit else 0))


class Count(click.ParamType[int]):
    """A number of tokens, such as 100M or 1.5G."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmgbt]?)\s*", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a number of tokens; write it like 100M or 100000000", param, ctx)
        number, unit = match.groups()
        step = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}[unit.lower()]
        return round(float(re.sub("[_,]", "", number)) * step)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=1, sort_keys=True))


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
