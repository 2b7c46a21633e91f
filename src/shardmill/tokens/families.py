"""The parts of a tokenizer.json → the cut rules that hold for it: known by its pattern, or found by trial.

The model encodes each pretoken by itself, whatever its kind. So a cut that no pretoken crosses changes no
token, and whether one does is told by the normalizer and the pre-tokenizer alone, without the vocabulary.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from shardmill.errors import UsageError
from shardmill.tokens.cuts import Family

Step = dict[str, Any]
BUILT_IN = "the pattern of GPT-2, which ByteLevel has built in"

_GPT2 = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Patterns as _canonical leaves them. cl100k: also Llama 3, Qwen 2, OLMo 2, nanochat; o200k: also Mistral's Tekken.
_FAMILIES: dict[str, Family] = {BUILT_IN: "gpt2", _GPT2: "gpt2", _CL100K: "cl100k", _O200K: "o200k"}

_CONTRACTIONS = r"'s\|'t\|'re\|'ve\|'m\|'ll\|'d"
# What the rules for cuts do not depend on, and how it is written: contractions, which no rule cuts near; possessive
# quantifiers (of which Oniguruma reads {1,3}+ as a run); how many digits go together, since none are parted; an
# alternative for whitespace at the end of the text; one newline or all, since \s* takes all but one already.
_SPELLINGS = (
    (re.compile(rf"\(\?i?:{_CONTRACTIONS}\)\?"), ""),
    (re.compile(rf"^(?:\(\?i?:{_CONTRACTIONS}\)|{_CONTRACTIONS}|'\(\?i?:\[sdmt\]\|ll\|ve\|re\))\|"), ""),
    (re.compile(r"(?<=[+*?])\+|(?<=\d\})\+"), ""),
    (re.compile(r"\\p\{N\}(?:\+|\{1,\d\})(?=\|)"), r"\\p{N}"),
    (re.compile(r"\\s\+\$\|"), ""),
    (re.compile(r"\\s\*\[\\r\\n\]\|"), r"\\s*[\\r\\n]+|"),
    (re.compile(r"\|\\s$"), r"|\\s+"),
)

# The rules for spaces and lines hold for a pattern of this shape. Each alternative is either whitespace, or characters
# that are not, with one that may be a space before them and newlines after them: so what matches holds a space at its
# beginning only, and nothing behind a newline. None looks to the side, but for whitespace at what follows it.
_PROPERTY = r"\\p\{(?:[LMNPS][a-z]?|Han|Hiragana|Katakana|Hangul)\}"
_ITEM = rf"(?:{_PROPERTY}|\\[dw]|\\[^\w\s]|[^\[\]\\\s\x00-\x1f])"
_NOT_SPACE = "|".join(
    (
        rf"\[(?!\^){_ITEM}+(?:&&\[\^?{_ITEM}+\])?\]",
        rf"\[\^(?:{_ITEM}|\\[rn])*\\s(?:{_ITEM}|\\[srn])*\]",
        rf"{_PROPERTY}|\\[Sdw]|\\[^\w\s]",
        r"[!\"#%&',:;<=>@_`~/-]",
    )
)
_COUNT = r"(?:[?*+]|\{\d,\d?\})?"
_WORD = rf"(?:\ \?|\[\^\\r\\n(?:{_ITEM}|\\s)*\]\??)?(?:(?:{_NOT_SPACE}){_COUNT})+(?:\[(?:\\r|\\n|/)+\]{_COUNT})?"
_WHITE = rf"(?:(?:\\s|\[(?:\\r|\\n)+\]){_COUNT})+(?:\(\?!\\S\))?"
_ALTERNATIVE = re.compile(rf"(?:{_WORD}|{_WHITE})(?:\||$)")

# These change each character by itself, or with the marks after it, which a space or newline never joins.
_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer")

# Every class of characters that a pattern can name, in several scripts, and what normalizers turn into something else.
_CHARACTERS = (
    *"aZßΣя中あ한اกक",
    *"ʰǅªﬁÅ…ﷺ\ufc5e\u00a8",
    *"07٣Ⅷ½",
    *".,!?'’\"(-_/@#*。",
    *"+<|^`$😀",
    *"\u0301\u093e\u20dd\ufe0f\U0001f3fd",
    *"\x00\x7f\u00ad\u200d\ue000\u0378",
)
_RUN = 64
_PIECES_AT_ONCE = 48
_RANDOM_WORDS = 1500
_MOST_WRITTEN = 2 << 10
# Of this thread. The trial takes a tenth of a second; Oniguruma gives up each match after ten million steps back.
_TRIAL_SECONDS = 5.0


def family_of(config: dict[str, Any], path: str) -> Family:
    """Which cut rules hold for the normalizer and the pre-tokenizer of a tokenizer.json."""
    steps = _flat(config.get("pre_tokenizer"), "pretokenizers")
    normalizers = _flat(config.get("normalizer"), "normalizers")
    pattern = pattern_of(config)
    family = _FAMILIES.get(_canonical(pattern)) if pattern else None
    if family is not None and all(step["type"] == "NFC" for step in normalizers):
        # Letters beside a cut might have been composed into one; a space or newline never is.
        return "spaces" if normalizers else family
    local = all(map(_is_local, steps)) and any(map(_parts_at_whitespace, steps))
    local &= all(step["type"] in _NORMALIZERS for step in normalizers)
    written = "".join(_strings([*steps, *normalizers]))
    # A pattern that is not known is tried even where that cannot help: it may be one that fails on every text.
    return "spaces" if (local or written) and _holds(config, written, path) and local else "unknown"


def pattern_of(config: dict[str, Any]) -> str | None:
    """The pattern of a byte-level pre-tokenizer that has one and nothing else; None for any other."""
    match _flat(config.get("pre_tokenizer"), "pretokenizers"):
        case [{"type": "ByteLevel", "add_prefix_space": False, **rest}] if rest.get("use_regex", True):
            return BUILT_IN
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": behavior, "invert": invert},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if (behavior, invert) in (("Isolated", False), ("Removed", True)):
            # To remove what does not match is to isolate what does, where, as here, nothing is left between.
            return pattern
        case _:
            return None


def _canonical(pattern: str) -> str:
    pattern = pattern.replace("\r", r"\r").replace("\n", r"\n")
    for spelling, instead in _SPELLINGS:
        pattern = spelling.sub(instead, pattern)
    return pattern


def _flat(step: Any, inner: str) -> list[Step]:
    """The steps of a Sequence, and of those in it, in order."""
    if step is None:
        return []
    return [last for each in step[inner] for last in _flat(each, inner)] if step["type"] == "Sequence" else [step]


def _is_local(step: Step) -> bool:
    """Whether a step splits text that was cut at a space or line as it does the whole, but for what reaches over the cut."""
    match step:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated" | "Removed"}:
            return len(pattern) <= _MOST_WRITTEN and not _ALTERNATIVE.sub("", _canonical(pattern))
        case {"type": kind}:
            return kind in ("ByteLevel", "BertPreTokenizer", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")
    return False


def _parts_at_whitespace(step: Step) -> bool:
    """Whether no piece of a local step reaches over a space or line: after one that does so, none does."""
    match step:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            return _canonical(pattern).endswith(r"|\s+")
        case {"type": kind}:
            built_in = kind == "ByteLevel" and step.get("use_regex", True)
            return built_in or kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
    return False


def _strings(steps: list[Step]) -> Iterator[str]:
    """What is written in the patterns."""
    for step in steps:
        if isinstance(pattern := step.get("pattern"), dict):
            yield from map(str, pattern.values())


def _holds(config: dict[str, Any], written: str, path: str) -> bool:
    """Whether the rules for spaces and lines hold in every trial."""
    try:
        pretokens = _pretokenizer(config)
        begun = time.thread_time()
        for pieces in _trials(written):
            if pretokens("".join(pieces)) != [token for piece in pieces for token in pretokens(piece)]:
                return False
            if time.thread_time() - begun > _TRIAL_SECONDS:
                raise TimeoutError("its pattern takes longer than any text would be worth")
    except BaseException as e:
        if not (isinstance(e, Exception) or is_panic(e)):
            raise
        raise UsageError(
            f"{path}: the tokenizers library cannot split text with it ({e}); mend its pre_tokenizer or normalizer"
        ) from e
    return True


def is_panic(e: BaseException) -> bool:
    """Whether the library's Rust panicked, which is no Exception; a pattern that tracks back too far does it."""
    return type(e).__name__ == "PanicException"


def _pretokenizer(config: dict[str, Any]) -> Callable[[str], list[str]]:
    """What splits text as this tokenizer.json does, without its vocabulary, which may take seconds to load."""
    import tokenizers

    nothing = {"type": "WordLevel", "vocab": {}, "unk_token": "?"}
    parts = {name: config.get(name) for name in ("normalizer", "pre_tokenizer")}
    made = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", **parts, "model": nothing}))
    normalize = made.normalizer.normalize_str if made.normalizer else str
    split = made.pre_tokenizer.pre_tokenize_str if made.pre_tokenizer else lambda text: [(text, None)]
    return lambda text: [token for token, _ in split(normalize(text))]


def _trials(written: str) -> Iterator[list[str]]:
    """Texts, each as the pieces that the rules for spaces and lines would cut it to. Those that are hard on patterns first."""
    for character in sorted({*"a1! \n", *written[:_MOST_WRITTEN]}):
        yield [character * _RUN]
    pieces = _pieces()
    for start in range(0, len(pieces), _PIECES_AT_ONCE):
        yield pieces[start : start + _PIECES_AT_ONCE]


@lru_cache(maxsize=1)
def _pieces() -> list[str]:
    """Words of two characters, so that each stands before and after each across a space and a newline; then any words."""
    pairs = [(x, separator, y) for separator in " \n" for x in _CHARACTERS for y in _CHARACTERS]
    chance = random.Random(0)
    for _ in range(_RANDOM_WORDS):
        word = "".join(chance.choices(_CHARACTERS, k=chance.randrange(1, 9)))
        pairs.append((word, chance.choice(" \n"), chance.choice(_CHARACTERS)))
    pieces, piece = [], ""
    for x, separator, y in pairs:
        if separator + y == "\n/":  # no cut, by the rule for lines
            continue
        pieces.append(piece + x + separator.strip(" "))
        piece = separator.strip("\n") + y
    return [*pieces, piece]
