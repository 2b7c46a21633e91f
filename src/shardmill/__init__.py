"""shardmill turns any amount of text into training-ready token files, on the machine you have.

>>> import shardmill
>>> result = shardmill.prepare(shardmill.Spec(inputs=["corpus/"], output="data"))
>>> train = shardmill.open("data")["train"]
"""

from typing import TYPE_CHECKING, Any

from shardmill.errors import (
    ContentError,
    InputError,
    MismatchError,
    OutputError,
    ShardmillError,
    TemporaryError,
    UsageError,
)
from shardmill.spec import Limits, Spec, Target

if TYPE_CHECKING:
    from shardmill.feed.bits import bits_per_byte, token_bytes
    from shardmill.feed.documents import Documents
    from shardmill.feed.pack import pack
    from shardmill.feed.plan import Packing
    from shardmill.feed.source import Source
    from shardmill.feed.windows import Origin, Windows, samples_of
    from shardmill.formats.shards import Shard, SidecarFile, SplitText
    from shardmill.job.estimate import Estimate, estimate
    from shardmill.job.intervals import Range
    from shardmill.job.mill import Progress, Result, Start, prepare
    from shardmill.record.manifest import Counts, Manifest, Text
    from shardmill.results.convert import convert, merge
    from shardmill.results.corpus import Corpus, Split
    from shardmill.results.corpus import open_corpus as open
    from shardmill.results.inspect import Lengths, Statistics, inspect
    from shardmill.results.verify import Problem, Verified, verify

__version__ = "0.1.0"
__all__ = [
    "ContentError", "Corpus", "Counts", "Documents", "Estimate", "InputError", "Lengths", "Limits", "Manifest",
    "MismatchError", "Origin", "OutputError", "Packing", "Problem", "Progress", "Range", "Result", "Shard",
    "ShardmillError", "SidecarFile", "Source", "Spec", "Split", "SplitText", "Start", "Statistics", "Target", "TemporaryError",
    "Text", "UsageError", "Verified", "Windows", "__version__", "bits_per_byte", "convert", "estimate", "inspect",
    "merge", "open", "pack", "prepare", "samples_of", "token_bytes", "verify",
]  # fmt: skip

# Imported when first used: `shardmill --help` should not wait for numpy and the tokenizers.
_LAZY = {
    "feed.bits": ("bits_per_byte", "token_bytes"),
    "feed.documents": ("Documents",),
    "feed.pack": ("pack",),
    "feed.plan": ("Packing",),
    "feed.source": ("Source",),
    "feed.windows": ("Origin", "Windows", "samples_of"),
    "formats.shards": ("Shard", "SidecarFile", "SplitText"),
    "job.estimate": ("Estimate", "estimate"),
    "job.intervals": ("Range",),
    "job.mill": ("Progress", "Result", "Start", "prepare"),
    "record.manifest": ("Counts", "Manifest", "Text"),
    "results.convert": ("convert", "merge"),
    "results.corpus": ("Corpus", "Split", "open"),
    "results.inspect": ("Lengths", "Statistics", "inspect"),
    "results.verify": ("Problem", "Verified", "verify"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _LAZY.items():
        if name in names:
            value = getattr(import_module(f"shardmill.{module}"), "open_corpus" if name == "open" else name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'shardmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
