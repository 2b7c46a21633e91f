"""What an engine needs to know of a tokenizer, and nothing of the file that it came from."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.errors import ShardmillError

# Of the native engine: goes up with every change that could change a token; the compiled library has one too.
VERSION = 4

Ids = npt.NDArray[np.unsignedinteger[Any]]
TokenCounts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """How C encodes whole documents, or text inside one: functions, what they take first, and how much room ids need. They
    return less than 0 where they cannot."""

    function: int
    inside: int
    engine: int
    dtype: "np.dtype[Any]"
    ids_per_byte: int = 1
    ids_per_text: int = 0
    owner: object = None
    """Holds what the engine refers to."""


class NotSupported(ShardmillError):
    """Why our own engine cannot run a tokenizer: the reference does."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Many byte strings as C takes them: one after the other, a zero byte behind the last, and where each begins and ends."""

    joined: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint32]

    @staticmethod
    def of(parts: Iterable[bytes]) -> "Texts":
        parts = list(parts)
        offsets = np.zeros(len(parts) + 1, np.uint32)
        np.cumsum(np.fromiter(map(len, parts), np.uint32, len(parts)), out=offsets[1:])
        return Texts(np.frombuffer(b"".join(parts) + b"\0", np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, numbers: npt.NDArray[np.uint32]) -> "Texts":
        """The strings of these numbers."""
        begins = self.offsets[:-1][numbers].astype(np.int64)
        sizes = np.diff(self.offsets)[numbers]
        offsets = np.zeros(len(numbers) + 1, np.uint32)
        np.cumsum(sizes, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)
        return Texts(np.append(self.joined[places], np.uint8(0)), offsets)

    def parts(self) -> list[bytes]:
        joined, offsets = self.joined.tobytes(), self.offsets.tolist()
        return [joined[start:end] for start, end in pairwise(offsets)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A byte-level pre-tokenizer as a row of parameters of the scanner."""

    contractions: Literal["none", "exact", "any case", "suffix any case"] = "none"  # suffix: o200k, behind the letters
    prefix: Literal["blank", "any"] = "any"  # what letters take before them; any: any but newlines and numbers
    digits: int = 1  # at most so many numbers are a word; 0: a run of any length, with a blank before
    newlines: bool = True  # others take newlines behind them, and \s*[\r\n]+ is a word
    tail: Literal["", "newlines", "newlines and slashes"] = "newlines"  # what others take behind them
    whole_end: bool = False  # \s++$: whitespace at the end of the text is one word
    marks: bool = False  # marks join letters (Qwen 3.5)
    case: bool = False  # o200k: words of letters are split by case
    first: Literal["", "digits", "deepseek"] = ""  # splits before all else: each number by itself; DeepSeek's three


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedToken:
    """A token that is found in the text before any other, unless it is special."""

    content: str
    id: int
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Model:
    """A tokenizer, compiled. Every id is below 2²⁰."""

    scheme: Literal["bytes", "sentencepiece"]
    tokens: Texts
    """In the order of their ids. bytes: the raw bytes of each; sentencepiece: its UTF-8 as spelled, with ▁ and <0x0A>."""
    ids: npt.NDArray[np.uint32]
    merges: npt.NDArray[np.uint32] | None
    """In order, the numbers (not ids) of two tokens each; None: any two parts that make a token, ranked by its id, as
    tiktoken does it."""
    live: npt.NDArray[np.uint32] | None = None
    """What native.with_live finds: for each token the rank of the one merge that gives it, and its parts."""
    shape: Shape | None = None
    """For bytes only."""
    whole_words: bool = False
    """A word that is a token is that token, whatever the merges say (ignore_merges, tiktoken)."""
    added: tuple[AddedToken, ...] = ()
    """Special ones too: they are ordinary text, but hide added tokens inside them."""
    nfc: bool = False
    prepend: bool = False
    """For sentencepiece: ▁ before the text, and behind each added token."""
    metaspace: bool = False
    """With prepend: only before the text, and only if it does not begin with a blank or ▁."""
    classes: Literal["tiktoken", "huggingface"] = "huggingface"
    """Whose Unicode tables."""

    @classmethod
    def of(cls, vocabulary: dict[bytes, int], merges: Iterable[tuple[bytes, bytes]] | None, **rest: Any) -> "Model":
        """A Model from Python's own types, which is slower.

        >>> Model.of({b"a": 0, b"b": 1, b"ab": 2}, [(b"a", b"b")], scheme="bytes").ids
        array([0, 1, 2], dtype=uint32)
        """
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        return cls(
            tokens=Texts.of(tokens),
            ids=np.array([vocabulary[token] for token in tokens], np.uint32),
            merges=None if merges is None else merge_numbers(tokens, list(chain.from_iterable(merges))),
            **rest,
        )

    @property
    def vocabulary(self) -> dict[bytes, int]:
        return dict(zip(self.tokens.parts(), self.ids.tolist(), strict=True))

    def facts(self) -> dict[str, Any]:
        """All but the arrays, as JSON takes it."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("tokens", "ids", "merges", "live"):
            del found[name]
        found["shape"] = self.shape and dataclasses.asdict(self.shape)
        added = attrgetter(
            *(field.name for field in dataclasses.fields(AddedToken))
        )  # astuple copies deeply, and slowly
        return {**found, "added": list(map(added, self.added))}

    @classmethod
    def restored(cls, facts: dict[str, Any], **arrays: Any) -> "Model":
        """The Model that had these facts and arrays."""
        shape = facts["shape"] and Shape(**facts["shape"])
        names = [field.name for field in dataclasses.fields(AddedToken)]
        added = tuple(AddedToken(**dict(zip(names, token, strict=True))) for token in facts["added"])
        return cls(**arrays, **{**facts, "shape": shape, "added": added})


def merge_numbers(tokens: Sequence[Any], parts: Sequence[Any]) -> npt.NDArray[np.uint32]:
    """The parts of merges, two each, as numbers of tokens; KeyError if one is not a token."""
    number = dict(zip(tokens, range(len(tokens)), strict=True))
    return np.fromiter(map(number.__getitem__, parts), np.uint32, len(parts)).reshape(-1, 2)
