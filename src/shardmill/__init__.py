"""shardmill turns any amount of text into training-ready token files, on the machine you have.

import shardmill
result = shardmill.prepare(shardmill.Spec(inputs=["book.txt"], output="data"))
"""

from typing import TYPE_CHECKING, Any

from shardmill.errors import ShardmillError
from shardmill.spec import Limits, Spec

if TYPE_CHECKING:
    from shardmill.estimates import Estimate, estimate
    from shardmill.mill import Progress, Result, prepare
    from shardmill.verification import Problem, Verified, verify

__version__ = "0.1.0"
__all__ = [
    "Estimate",
    "Limits",
    "Problem",
    "Progress",
    "Result",
    "ShardmillError",
    "Spec",
    "Verified",
    "__version__",
    "estimate",
    "prepare",
    "verify",
]

# Loaded when first used: `shardmill --help` should not wait for the tokenizers.
_HOMES = {
    "Estimate": "estimates",
    "estimate": "estimates",
    "Problem": "verification",
    "Progress": "mill",
    "Result": "mill",
    "Verified": "verification",
    "prepare": "mill",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"shardmill.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
