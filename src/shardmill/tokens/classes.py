"""Which class each code point has (letter, number, space …) for the installed version of a reference.

The references ship different versions of Unicode, and none says which. So their own patterns are asked about every code
point: `make classes` does it for the versions at hand and writes classes.json, which ships with the package.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata, resources
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Reference = Literal["tiktoken", "huggingface"]
Classes = npt.NDArray[np.uint8]

FORMAT = 2
SHIPPED = "classes.json"
# Numbered as in native/engine.h; 0 is every other character.
PATTERNS = {
    1: r"[\p{Lm}\p{Lo}]",
    2: r"\p{Ll}",
    3: r"[\p{Lu}\p{Lt}]",
    4: r"\p{N}",
    5: r"\s",
    6: r"\p{M}",
    7: r"[\p{P}\p{S}]",
}
NUMBER = 4
_POINTS = 0x110000
_PACKAGES = {"tiktoken": "tiktoken", "huggingface": "tokenizers"}


def installed(reference: Reference) -> str:
    package = _PACKAGES[reference]
    return f"{package} {metadata.version(package)}"


def find(reference: Reference, *, digits: bool = False) -> Classes | None:
    """The class of each code point; None if the installed version is none of those that were swept. digits: as numbers
    also those that only the pre-tokenizer Digits takes for one."""
    for table in _shipped()["tables"]:
        if installed(reference) in table["made_with"]:
            runs = np.array(table["runs"], np.int64)
            classes = np.repeat(runs[:, 1].astype(np.uint8), np.diff(np.append(runs[:, 0], _POINTS)))
            if digits:
                classes[table["digits"]] = NUMBER
            return classes
    return None


def sweep(reference: Reference) -> dict[str, Any]:
    """A table for the installed version, in seconds."""
    characters = _by_tiktoken if reference == "tiktoken" else _by_tokenizers
    classes = np.zeros(_POINTS, np.uint8)
    for number, pattern in PATTERNS.items():
        found = [ord(c) for c in characters(pattern)]
        assert not classes[found].any(), "each has one class"
        classes[found] = number
    begins = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist()]
    more = [] if reference == "tiktoken" else [point for point in _digits() if classes[point] != NUMBER]
    return {
        "made_with": [installed(reference)],
        "runs": [[begin, int(classes[begin])] for begin in begins],
        "digits": more,
    }


def _every() -> str:
    return "".join(chr(point) for point in range(_POINTS) if not 0xD800 <= point < 0xE000)


def _by_tiktoken(pattern: str) -> Iterable[str]:
    """An encoding leaves out what its pattern does not match, and gives bytes here."""
    import tiktoken

    encoding = tiktoken.Encoding(
        "bytes", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
    )
    return bytes(encoding.encode_ordinary(_every())).decode()


def _by_tokenizers(pattern: str) -> Iterable[str]:
    import tokenizers

    rest = tokenizers.normalizers.Replace(tokenizers.Regex(pattern), "").normalize_str(_every())
    return sorted(set(_every()) - set(rest))


def _digits() -> list[int]:
    """What the pre-tokenizer Digits takes for one: Rust has tables of its own."""
    import tokenizers

    split = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    pieces = split.pre_tokenize_str("x".join(_every()))
    digits = {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "x"}
    missing = {ord(c) for c in _by_tokenizers(r"\p{N}")} - digits
    assert not missing, "a number that is no digit would be a part of a word"
    return sorted(digits)


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources.files("shardmill.tokens") / SHIPPED).read_text())
    assert content["format"] == FORMAT
    return content
