"""shardmill turns any amount of text into training-ready token files, on the machine you have.

import shardmill
result = shardmill.prepare(shardmill.Spec(inputs=["book.txt"], output="data"))
"""

from typing import TYPE_CHECKING, Any

from shardmill.errors import ShardmillError
from shardmill.spec import Limits, Spec

if TYPE_CHECKING:
    from shardmill.job.estimate import Estimate, estimate
    from shardmill.job.mill import Progress, Result, prepare
    from shardmill.results.convert import Target, convert, merge
    from shardmill.results.corpus import Corpus
    from shardmill.results.corpus import open_corpus as open
    from shardmill.results.verify import Problem, Verified, verify

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
    "Corpus": ("results.corpus", "Corpus"),
    "Estimate": ("job.estimate", "Estimate"),
    "Problem": ("results.verify", "Problem"),
    "Progress": ("job.mill", "Progress"),
    "Result": ("job.mill", "Result"),
    "Target": ("results.convert", "Target"),
    "Verified": ("results.verify", "Verified"),
    "convert": ("results.convert", "convert"),
    "estimate": ("job.estimate", "estimate"),
    "merge": ("results.convert", "merge"),
    "open": ("results.corpus", "open_corpus"),
    "prepare": ("job.mill", "prepare"),
    "verify": ("results.verify", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
    from importlib import import_module

    module, inside = _HOMES[name]
    value = getattr(import_module(f"shardmill.{module}"), inside)
    globals()[name] = value
    return value
