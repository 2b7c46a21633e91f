"""Which class each code point has (letter, number, space …) for the installed version of a reference."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from shardmill.tokens import tables

Reference = Literal["tiktoken", "huggingface"]
Classes = npt.NDArray[np.uint8]

PACKAGES: dict[Reference, str] = {"tiktoken": "tiktoken", "huggingface": "tokenizers"}
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
POINTS = 0x110000


def installed(reference: Reference) -> str:
    return tables.installed(PACKAGES[reference])


def find(reference: Reference, *, digits: bool = False) -> Classes | None:
    """The class of each code point; None if the installed version is none of those that were swept. digits: as numbers
    also those that only the pre-tokenizer Digits takes for one."""
    table = tables.find("classes", installed(reference))
    if table is None:
        return None
    runs = np.array(table["runs"], np.int64)
    classes = np.repeat(runs[:, 1].astype(np.uint8), np.diff(np.append(runs[:, 0], POINTS)))
    if digits:
        classes[table["digits"]] = NUMBER
    return classes
