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

__version__ = "0.1.0"
__all__ = ["Estimate", "Limits", "Progress", "Result", "ShardmillError", "Spec", "__version__", "estimate", "prepare"]

# Loaded when first used: `shardmill --help` should not wait for the tokenizers.
_HOMES = {"Estimate": "estimates", "estimate": "estimates", "Progress": "mill", "Result": "mill", "prepare": "mill"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"shardmill.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
