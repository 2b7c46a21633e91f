"""The families of patterns that the native engine knows: as its parameters and as the tokenizers library runs them; and
texts that are hard on them."""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from shardmill.tokens.model import Shape

_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + r"+%s|[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*%s|"
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _END,
)
PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt2": (_GPT2,),
    "digits": (_GPT2,),
    # Oniguruma's $ is the end of a line, and {1,3}+ a run of any length there.
    "cl100k": (_ANY_CASE + "|" + _LETTERS + r"\p{N}{1,3}|" + _OTHERS + r"\s+\z|\s*[\r\n]|\s+(?!\S)|\s",),
    "llama3": (_ANY_CASE + "|" + _LETTERS + r"\p{N}{1,3}|" + _OTHERS + _END,),
    "qwen2": (_ANY_CASE + "|" + _LETTERS + r"\p{N}|" + _OTHERS + _END,),
    "qwen3.5": (
        _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _END,
    ),
    "nanochat": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "o200k": (
        _CASED % (_ANY_CASE + "?", _ANY_CASE + "?") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END,
    ),
    "tekken": (_CASED % ("", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END,),
    "deepseek": _DEEPSEEK,
}  # fmt: skip
_GPT2_SHAPE = {"contractions": "exact", "prefix": "blank", "digits": 0, "newlines": False, "tail": ""}
SHAPES = {
    "gpt2": Shape(**_GPT2_SHAPE),
    "digits": Shape(**_GPT2_SHAPE, first="digits"),
    "cl100k": Shape(contractions="any case", digits=3, whole_end=True),
    "llama3": Shape(contractions="any case", digits=3),
    "qwen2": Shape(contractions="any case", digits=1),
    "qwen3.5": Shape(contractions="any case", digits=1, marks=True),
    "nanochat": Shape(contractions="any case", digits=2),
    "o200k": Shape(contractions="suffix any case", digits=3, case=True, tail="newlines and slashes"),
    "tekken": Shape(digits=1, case=True, tail="newlines and slashes"),
    "deepseek": Shape(digits=3, marks=True, first="deepseek"),
}
FAMILIES = tuple(SHAPES)


@lru_cache
def pretokenizer(family: str) -> Any:
    """What splits text into words as the family's tokenizer.json files do."""
    from tokenizers import Regex, pre_tokenizers  # not at home under the sanitizers

    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[family]]
    first = [pre_tokenizers.Digits(individual_digits=True)] if family == "digits" else []
    return pre_tokenizers.Sequence([*first, *splits])


def words(family: str, text: str) -> list[str]:
    return [word for word, _ in pretokenizer(family).pre_tokenize_str(text)]


def _each(line: str) -> list[str]:
    return line.split(" ")


# Every class of characters, and what the patterns tell apart.
BITS = [
    *_each("' '' 's 'S 'ſ 'll 'Ll 'l 've 'VE 're 'r 'd 'M 'T 'K ’s 0 1 12 123 1234 12345678 ٣ २ ² ½ Ⅷ ０ 𝟘"),
    *_each("一 〇 龥 龦 㐀 ゟ ゠ ヿ ・ あ カ 中 文 中文 한 ก ำ क का \u0301 \u093e \u3099 \ufe0f \u20dd ʰ ª ǅ ß"),
    *_each("a b abc Word wORD ABC A É é я Я привет ПРИВЕТ Σ 𝐀 𝐚"),
    *_each("😀 ❤\ufe0f 👍🏽 👩\u200d❤\ufe0f\u200d👨 “ ” « — … ! !! ( \" . .\" _ / // \n/ /\n \\ - -- + $ € 。"),
    *_each("\u200d \ufeff \u00ad \ue000 \u0378 \U00011de0 \U00016ff4 \x00 \x1c \x7f \U0010ffff"),
    *[" ", " ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\n \n", "\u3000", "\u00a0", "\u0085", "\u2028", "\u1680", "\x0b"],
]  # fmt: skip
BLOCK, WINDOW = 64, 16384


def random_text(rng: random.Random) -> str:
    """Some bits in a row, often with a border of the engine's blocks or windows somewhere among them."""
    some = rng.sample(BITS, rng.randint(2, 12)) if rng.random() < 0.7 else BITS
    lead = rng.choice(["x", "X", " ", "1", "\n", "中", "!", "word "])
    size = rng.choice([0, 0, rng.randrange(70)]) if rng.random() < 0.97 else WINDOW - rng.randrange(200)
    text = lead * (size // len(lead.encode())) + "".join(rng.choices(some, k=int(2 ** rng.uniform(0, 8))))
    if rng.random() < 0.3:
        text += rng.choice([" ", "\n", "\t", "\n ", "A", "中A", "!\ufe0f", "\u200d"]) * rng.randint(
            1, 150
        ) + rng.choice(BITS)
    return text


def contexts(characters: list[str]) -> str:
    """Each character where its class shows."""
    shapes: list[Callable[[str], str]] = [
        lambda c: f"a{c}b",
        lambda c: f" {c}A{c}'s",
        lambda c: f"  {c}",
        lambda c: f"\n{c} 1{c}{c}1",
        lambda c: f"!{c}a !!{c}\n/{c}",
        lambda c: f"'{c}'ll{c}",
        lambda c: f"中{c}AB b{c}A",
        lambda c: f"{c}{c}x",
        lambda c: f"\t{c}\t\n",
    ]
    return "".join(shape(character) for character in characters for shape in shapes)
