"""The parts of a tokenizer.json → the cut rules that hold for it: known by its pattern, or found by trial.

Every model encodes each pretoken separately. So a cut that no pretoken crosses changes no token, and whether one does
depends on the normalizer and the pre-tokenizer alone, not on the vocabulary.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from shardmill.errors import UsageError
from shardmill.tokens.compile import canonical, flat, pretokenizer_shape
from shardmill.tokens.cuts import Family

Step = dict[str, Any]

_CONTRACTIONS = r"'s\|'t\|'re\|'ve\|'m\|'ll\|'d"
# Spellings that make no difference to the cut rules: contractions, which no rule cuts near; an alternative for
# whitespace at the end of the text; the last whitespace one by one.
_SPELLINGS = (
    (re.compile(rf"\(\?i?:{_CONTRACTIONS}\)\?"), ""),
    (re.compile(rf"^(?:\(\?i?:{_CONTRACTIONS}\)|{_CONTRACTIONS}|'\(\?i?:\[sdmt\]\|ll\|ve\|re\))\|"), ""),
    (re.compile(r"\\s\+\$\|"), ""),
    (re.compile(r"\|\\s$"), r"|\\s+"),
)

# The space and line rules hold for a pattern of this shape: each alternative is either whitespace, or characters that
# are not, with an optional space before and newlines after. So a match has a space only at its start, and nothing after
# a newline. None looks around, except that whitespace looks at what follows it.
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

# These change each character separately, or with the marks that follow it, which a space or newline never joins.
_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer")

# Every class of characters that a pattern can name, in several scripts, and what normalizers change.
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
# CPU time. The trial takes a tenth of a second; Oniguruma gives up on a match after ten million backtracks.
_TRIAL_SECONDS = 5.0


def family_of(config: dict[str, Any], path: str) -> Family:
    """Which cut rules hold for the normalizer and the pre-tokenizer of a tokenizer.json."""
    steps = flat(config.get("pre_tokenizer"), "pretokenizers")
    normalizers = flat(config.get("normalizer"), "normalizers")
    shape = pretokenizer_shape(steps)
    if shape is not None and not shape.first and not shape.marks and all(step["type"] == "NFC" for step in normalizers):
        if normalizers:  # letters next to a cut might be composed into one; a space or newline never is
            return "spaces"
        return "o200k" if shape.case else "gpt2" if shape.prefix == "blank" else "cl100k"
    splits = [_locality(step) for step in steps]
    local = all(alike for alike, _ in splits) and any(parts for _, parts in splits)
    local &= all(step["type"] in _NORMALIZERS for step in normalizers)
    written = "".join(_strings([*steps, *normalizers]))
    # An unknown pattern is tried even where that cannot help: it may fail on every text.
    return "spaces" if (local or written) and _holds(config, written, path) and local else "unknown"


def _locality(step: Step) -> tuple[bool, bool]:
    """Whether a step splits text that was cut at a space or line as it splits the whole, except for pieces across the
    cut; and whether it has no such pieces, so that no later step has any."""
    match step:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated" | "Removed"} if (
            len(pattern) <= _MOST_WRITTEN
        ):
            written = canonical(pattern, possessive=True)
            for spelling, instead in _SPELLINGS:
                written = spelling.sub(instead, written)
            return not _ALTERNATIVE.sub("", written), written.endswith(r"|\s+")
        case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
            return True, True
        case {"type": "ByteLevel" | "Digits" | "Punctuation" as kind}:
            return True, kind == "ByteLevel" and bool(step.get("use_regex", True))
    return False, False


def _strings(steps: list[Step]) -> Iterator[str]:
    """The text of the patterns."""
    for step in steps:
        if isinstance(pattern := step.get("pattern"), dict):
            yield from map(str, pattern.values())


def _holds(config: dict[str, Any], written: str, path: str) -> bool:
    """Whether the space and line rules hold in every trial."""
    try:
        pretokens = _pretokenizer(config)
        begun = time.thread_time()
        for pieces in _trials(written):
            if pretokens("".join(pieces)) != [token for piece in pieces for token in pretokens(piece)]:
                return False
            if time.thread_time() - begun > _TRIAL_SECONDS:
                raise TimeoutError("its pattern is too slow")
    except BaseException as e:
        if not (isinstance(e, Exception) or is_panic(e)):
            raise
        raise UsageError(
            f"{path}: the tokenizers library cannot split text with it ({e}); fix its pre_tokenizer or normalizer"
        ) from e
    return True


def is_panic(e: BaseException) -> bool:
    """Whether the library's Rust code panicked, which is no Exception; a pattern that backtracks too far does it."""
    return type(e).__name__ == "PanicException"


def _pretokenizer(config: dict[str, Any]) -> Callable[[str], list[str]]:
    """A function that splits text as this tokenizer.json does, without its vocabulary, which may take seconds to load."""
    import tokenizers

    nothing = {"type": "WordLevel", "vocab": {}, "unk_token": "?"}
    parts = {name: config.get(name) for name in ("normalizer", "pre_tokenizer")}
    made = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", **parts, "model": nothing}))
    normalize = made.normalizer.normalize_str if made.normalizer else str
    split = made.pre_tokenizer.pre_tokenize_str if made.pre_tokenizer else lambda text: [(text, None)]
    return lambda text: [token for token, _ in split(normalize(text))]


def _trials(written: str) -> Iterator[list[str]]:
    """Texts, each as the pieces into which the space and line rules would cut it. Those that are hard on patterns first."""
    for character in sorted({*"a1! \n", *written[:_MOST_WRITTEN]}):
        yield [character * _RUN]
    pieces = _pieces()
    for start in range(0, len(pieces), _PIECES_AT_ONCE):
        yield pieces[start : start + _PIECES_AT_ONCE]


@lru_cache(maxsize=1)
def _pieces() -> list[str]:
    """Two-character words, so that every character precedes every other across a space and a newline; then random words."""
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
