"""shardmill turns any amount of text into training-ready token files, on the machine you have.

import shardmill
result = shardmill.prepare(shardmill.Spec(inputs=["book.txt"], output="data"))
"""

from typing import TYPE_CHECKING, Any

from shardmill.errors import ShardmillError
from shardmill.spec import Limits, Spec

if TYPE_CHECKING:
    from shardmill.corpus import Corpus
    from shardmill.corpus import open_corpus as open
    from shardmill.estimates import Estimate, estimate
    from shardmill.mill import Progress, Result, prepare
    from shardmill.transfer import Target, convert, merge
    from shardmill.verification import Problem, Verified, verify

__version__ = "0.1.0"
__all__ = [
    "Corpus",
    "Estimate",
    "Limits",
    "Problem",
    "Progress",
    "Result",
    "ShardmillError",
    "Spec",
    "Target",
    "Verified",
    "__version__",
    "convert",
    "estimate",
    "merge",
    "open",
    "prepare",
    "verify",
]

# Loaded when first used: `shardmill --help` should not wait for the tokenizers.
_HOMES = {
    "Corpus": ("corpus", "Corpus"),
    "Estimate": ("estimates", "Estimate"),
    "Problem": ("verification", "Problem"),
    "Progress": ("mill", "Progress"),
    "Result": ("mill", "Result"),
    "Target": ("transfer", "Target"),
    "Verified": ("verification", "Verified"),
    "convert": ("transfer", "convert"),
    "estimate": ("estimates", "estimate"),
    "merge": ("transfer", "merge"),
    "open": ("corpus", "open_corpus"),
    "prepare": ("mill", "prepare"),
    "verify": ("verification", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
    from importlib import import_module

    module, inside = _HOMES[name]
    value = getattr(import_module(f"shardmill.{module}"), inside)
    globals()[name] = value
    return value
