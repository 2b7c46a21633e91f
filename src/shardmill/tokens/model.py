"""What an engine needs to know of a tokenizer, and nothing of the file that it came from."""

from dataclasses import dataclass
from typing import Literal


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
    vocabulary: dict[bytes, int]
    """bytes: the raw bytes of each token; sentencepiece: the UTF-8 of the token as spelled, with ▁ and <0x0A>."""
    merges: list[tuple[bytes, bytes]] | None
    """In order; None: any two parts that make a token, ranked by its id (tiktoken)."""
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
