"""A tokenizer.json or a tiktoken encoding → a Model for our engine, or words that say why there is none.

No regular expression is analysed here: a pattern is read alternative by alternative, and each must be one of a few
known spellings, which set the parameters of the scanner. What is not known is left to the reference.
"""

import re
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.system.names import show
from shardmill.tokens import native, neighbours
from shardmill.tokens.model import AddedToken, Model, Shape, Texts

Config = dict[str, Any]

_QUOTED = "'s|'t|'re|'ve|'m|'ll|'d"
_GROUPED = "[sdmt]|ll|ve|re"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_CASED = r"{0}{1}*{2}+{3}|{0}{1}+{2}*{3}"
_ANY: dict[str, Any] = {"prefix": "any", "marks": False, "case": False}
_NEWLINES: dict[str, Any] = {"newlines": True}

# What may follow what in a pattern: for each place the known spellings and the parameters that each stands for.
_SPELLINGS: tuple[dict[str, dict[str, Any]], ...] = (
    {
        f"(?i:{_QUOTED})": {"contractions": "any case"},
        f"'(?i:{_GROUPED})": {"contractions": "any case"},
        f"(?:{_QUOTED})": {"contractions": "exact"},
        f"'(?:{_GROUPED})": {"contractions": "exact"},
        _QUOTED: {"contractions": "exact"},
        "": {},
    },
    {
        r" ?\p{L}+": {**_ANY, "prefix": "blank"},
        rf"{_PREFIX}\p{{L}}+": _ANY,
        rf"{_PREFIX}[\p{{L}}\p{{M}}]+": {**_ANY, "marks": True},
        _CASED.format(_PREFIX, _UPPER, _LOWER, ""): {**_ANY, "case": True, "contractions": "none"},
        _CASED.format(_PREFIX, _UPPER, _LOWER, f"(?i:{_QUOTED})?"): {
            **_ANY,
            "case": True,
            "contractions": "suffix any case",
        },
    },
    {r" ?\p{N}+": {"digits": 0}, r"\p{N}": {"digits": 1}, r"\p{N}{1,2}": {"digits": 2}, r"\p{N}{1,3}": {"digits": 3}},
    {
        r" ?[^\s\p{L}\p{N}]+": {"tail": "", "marks": False},
        r" ?[^\s\p{L}\p{N}]+[\r\n]*": {"tail": "newlines", "marks": False},
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*": {"tail": "newlines", "marks": True},
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*": {"tail": "newlines and slashes", "marks": False},
    },
    {r"\s+$": {"whole_end": True}, "": {"whole_end": False}},
    # One newline or all are the same: \s* takes all but one already.
    {r"\s*[\r\n]+": _NEWLINES, r"\s*[\r\n]": _NEWLINES, "": {"newlines": False}},
    {r"\s+(?!\S)": {}},
    {r"\s+": {}, r"\s": {}},
)
GPT2 = Shape(contractions="exact", prefix="blank", digits=0, newlines=False, tail="")
_DEEPSEEK = Shape(digits=3, marks=True, first="deepseek")
_DEEPSEEK_PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)

_SPACE, _UNDERLINE = " ", "▁"
_MOST_ID = 1 << 20
# Of added tokens, which are looked for at every place of the text: the longest, and all together.
_LONGEST_ADDED, _MOST_ADDED = 256, 1 << 20
_ALPHABET_END, _NO_BYTE = 0x144, 256
# Bytes that occur in UTF-8.
_IN_TEXT = [*range(0xC0), *range(0xC2, 0xF5)]


class _NotKnown(Exception):
    """Why a tokenizer runs on the reference, as the end of a sentence that begins with it."""


def compile_encoding(ranks: dict[bytes, int], pattern: str) -> Model:
    """One of tiktoken's own encodings."""
    shape = shape_of(pattern, possessive=True)
    assert shape is not None
    return Model.of(ranks, None, scheme="bytes", shape=shape, whole_words=True, classes="tiktoken")


def compile_json(config: Config, vocabulary: dict[str, int]) -> Model | str:
    """A tokenizer.json whose vocabulary and ids have been checked.

    >>> compile_json({"model": {"type": "Unigram"}}, {})
    'its model is Unigram'
    """
    try:
        return _compile(config, vocabulary)
    except _NotKnown as e:
        return str(e)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:  # the reference will say what is wrong
        return f"its file is unusual ({type(e).__name__}: {show(str(e))})"


def shape_of(pattern: str, *, possessive: bool) -> Shape | None:
    """The parameters of a pattern whose every alternative is known.

    possessive: whether {1,3}+ takes three and never gives back, as in tiktoken; Oniguruma reads a run of any length. Its
    $ also matches before each newline, so there \\s+$ is not understood.
    """
    left, fields = canonical(pattern, possessive=possessive) + "|", dict[str, Any]()
    for spellings in _SPELLINGS:
        spelling = next((each for each in spellings if left.startswith(each and each + "|")), None)
        if spelling is None:
            return None
        left = left.removeprefix(spelling and spelling + "|")
        if any(fields.get(name, value) != value for name, value in spellings[spelling].items()):
            return None  # marks join letters in one alternative, and not in the other
        fields |= spellings[spelling]
    shape = Shape(**fields)
    return shape if not left and _is_known(shape, possessive=possessive) else None


def _is_known(shape: Shape, *, possessive: bool) -> bool:
    """Whether the scanner knows this mix of rules: that of GPT-2, that of cl100k or that of o200k."""
    if shape.whole_end and not possessive:
        return False
    if shape.prefix == "blank":
        return replace(shape, whole_end=False, contractions="exact") == GPT2
    tail = "newlines and slashes" if shape.case else "newlines"
    return shape.digits > 0 and shape.newlines and shape.tail == tail


def canonical(pattern: str, *, possessive: bool = False) -> str:
    """Newlines as escapes, and nothing possessive: no part of a known spelling could give back what the next one takes."""
    pattern = pattern.replace("\r", r"\r").replace("\n", r"\n")
    return re.sub(r"([+*?]|\d\})\+" if possessive else r"([+*?])\+", r"\1", pattern)


def _compile(config: Config, vocabulary: dict[str, int]) -> Model:
    model = config["model"]
    kind = model.get("type") or "BPE"  # old files have no type
    if kind != "BPE":
        raise _NotKnown(f"its model is {show(str(kind))}")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise _NotKnown(f"its model has a {key}")
    if max(vocabulary.values()) >= _MOST_ID:
        raise _NotKnown(f"it has ids beyond {_MOST_ID:,}")
    if len(set(vocabulary.values())) < len(vocabulary):  # the library merges ids, and would take one for the other
        raise _NotKnown("two of its tokens have the same id")
    normalizers = flat(config.get("normalizer"), "normalizers")
    steps = flat(config.get("pre_tokenizer"), "pretokenizers")
    added = _added(config.get("added_tokens") or [], vocabulary)
    if any(step.get("type") == "ByteLevel" for step in steps):
        return _bytes_model(model, vocabulary, normalizers, steps, added)
    return _sentencepiece_model(model, vocabulary, normalizers, steps, added)


def flat(step: Any, inner: str) -> list[Config]:
    """The steps of a Sequence and of those nested in it, in order."""
    if step is None:
        return []
    return [last for each in step[inner] for last in flat(each, inner)] if step["type"] == "Sequence" else [step]


def _added(tokens: list[Config], vocabulary: dict[str, int]) -> tuple[AddedToken, ...]:
    """The added tokens. The library counts on from the vocabulary for those that are not in it, whatever the file says."""
    found: dict[str, AddedToken] = {}
    following = len(vocabulary)
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    for token in tokens:
        content, number = token["content"], token["id"]
        if content == "":
            continue
        if content in found or vocabulary.get(content, following) != number:
            raise _NotKnown(f"its added token {show(content)} is there twice, or has an id that the library changes")
        following = max(following, number + 1)
        found[content] = AddedToken(content=content, id=number, **{flag: bool(token.get(flag)) for flag in flags})
    if following > _MOST_ID:
        raise _NotKnown(f"it has ids beyond {_MOST_ID:,}")
    sizes = [len(content.encode()) for content in found]
    if max(sizes, default=0) > _LONGEST_ADDED or sum(sizes) > _MOST_ADDED:
        raise _NotKnown(f"an added token is longer than {_LONGEST_ADDED} bytes, or all together than {_MOST_ADDED:,}")
    return tuple(found.values())


def _bytes_model(
    model: Config,
    vocabulary: dict[str, int],
    normalizers: list[Config],
    steps: list[Config],
    added: tuple[AddedToken, ...],
) -> Model:
    if [step for step in normalizers if step != {"type": "NFC"}]:
        raise _NotKnown(f"its normalizer is {_names(normalizers)}")
    tokens, ids = _by_id(vocabulary)
    found, kept = spelled(tokens)
    number = np.full(len(tokens), len(tokens), np.uint32)
    number[kept] = np.arange(len(kept))
    merges = number[_merges(_utf8(tokens), model["merges"])]
    single = found.joined[found.offsets[:-1][np.diff(found.offsets) == 1]]
    if not set(_IN_TEXT) <= set(single.tolist()) and (model.get("unk_token") is not None or model.get("byte_fallback")):
        raise _NotKnown("its vocabulary lacks bytes, and has another token for them")
    return Model(
        scheme="bytes",
        tokens=found,
        ids=ids[kept],
        merges=merges[(merges < len(tokens)).all(axis=1)],
        shape=_pretokenizer(steps),
        whole_words=bool(model.get("ignore_merges")),
        added=added,
        nfc=bool(normalizers),
    )


def pretokenizer_shape(steps: list[Config]) -> Shape | None:
    """The shape of a chain of pre-tokenizers, if it is known."""
    try:
        return _pretokenizer(steps)
    except (_NotKnown, ValueError, KeyError):
        return None


def _pretokenizer(steps: list[Config]) -> Shape:
    """The shape of a chain of pre-tokenizers that ends with ByteLevel."""
    *before, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        raise _NotKnown(f"its pre-tokenizer is {_names(steps)}, or adds a space")
    if last.get("use_regex", True):
        if not before:
            return GPT2
        if before == [{"type": "Digits", "individual_digits": True}]:
            return replace(GPT2, first="digits")
        raise _NotKnown(f"its pre-tokenizer is {_names(steps)}")
    patterns = [_split_pattern(step) for step in before]
    if len(patterns) == 1 and (shape := shape_of(patterns[0], possessive=False)):
        return shape
    isolated = all(step["behavior"] == "Isolated" for step in before)  # its patterns do not match every character
    if isolated and tuple(map(canonical, patterns)) == tuple(map(canonical, _DEEPSEEK_PATTERNS)):
        return _DEEPSEEK
    raise _NotKnown(f"its pre-tokenizer splits by a pattern that is not known: {show(' then '.join(patterns))}")


def _split_pattern(step: Config) -> str:
    """The pattern of a Split. Removing what does not match isolates what does, if nothing is left in between."""
    match step:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
            return pattern
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Removed", "invert": True}:
            return pattern
    raise _NotKnown(f"its pre-tokenizer has a step that is not known: {_names([step])}")


def _sentencepiece_model(
    model: Config,
    vocabulary: dict[str, int],
    normalizers: list[Config],
    steps: list[Config],
    added: tuple[AddedToken, ...],
) -> Model:
    """SentencePiece's BPE: spaces become ▁, nothing splits the text, and what has no token becomes bytes."""
    if model.get("ignore_merges") or not model.get("byte_fallback"):
        raise _NotKnown(f"its model has no byte_fallback or ignores merges, and its pre-tokenizer is {_names(steps)}")
    tokens, ids = _by_id(vocabulary)
    prepend, metaspace = _prepends(normalizers, steps)
    if metaspace == "always" and any(not token.special for token in added):
        raise _NotKnown("its pre-tokenizer puts ▁ behind each added token")
    texts = _utf8(tokens)
    made = Model(
        scheme="sentencepiece",
        tokens=texts,
        ids=ids,
        merges=_merges(texts, model["merges"]),
        added=added,
        prepend=prepend,
        metaspace=bool(metaspace),
    )
    if (why := neighbours.why_not(made)) is not None:
        raise _NotKnown(why)
    return made


def _prepends(normalizers: list[Config], steps: list[Config]) -> tuple[bool, str]:
    """Whether ▁ is put before the text; and if Metaspace does it, where."""
    replaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": _UNDERLINE}
    match normalizers, steps:
        # By the time that Gemma splits at spaces, there are none.
        case [[*before, last], [] | [{"type": "Split", "pattern": {"String": " "}}]] if last == replaces:
            if before in ([], [{"type": "Prepend", "prepend": _UNDERLINE}]):
                return bool(before), ""
        case [[], [{"type": "Metaspace", "replacement": "▁", "split": False, **rest}]]:
            if (scheme := rest.get("prepend_scheme", "always")) in ("never", "first", "always"):
                return scheme != "never", scheme
    raise _NotKnown(f"its normalizer is {_names(normalizers)}, and its pre-tokenizer {_names(steps)}")


def _by_id(vocabulary: dict[str, int]) -> tuple[list[str], npt.NDArray[np.uint32]]:
    ids = np.fromiter(vocabulary.values(), np.uint32, len(vocabulary))
    order = np.argsort(ids, kind="stable")
    tokens = list(vocabulary)
    return [tokens[i] for i in order.tolist()], ids[order]


def _merges(tokens: Texts, merges: list[Any]) -> npt.NDArray[np.uint32]:
    """The numbers of the two tokens of each merge; of two equal merges the library keeps the last."""
    written = set(map(type, merges)) == {str}
    parts = " ".join(merges).split(" ") if written else list(chain.from_iterable(merges))
    if len(parts) != 2 * len(merges) or not (written or set(map(len, merges)) <= {2}):
        raise ValueError("a merge is not of two parts")
    found = native.token_numbers(tokens, parts).reshape(-1, 2)
    _, last = np.unique(np.ascontiguousarray(found[::-1]).view(np.uint64), return_index=True)
    return found if len(last) == len(found) else found[np.sort(len(found) - 1 - last)]


def spelled(tokens: list[str]) -> tuple[Texts, npt.NDArray[np.int64]]:
    """The bytes that tokens of a byte-level vocabulary spell, and which of them do: others are never found in a text."""
    points, ends = _points(tokens)
    table = np.full(_ALPHABET_END + 1, _NO_BYTE, np.uint16)
    for char, byte in byte_alphabet().items():
        table[ord(char)] = byte
    found = table[np.minimum(points, _ALPHABET_END)]
    sizes = np.diff(ends, prepend=0)
    spells = sizes > 0
    spells[np.searchsorted(ends, np.flatnonzero(found == _NO_BYTE), side="right")] = False
    found = found[np.repeat(spells, sizes)]
    offsets = np.cumsum(np.append(0, sizes[spells])).astype(np.uint32)
    return Texts(np.append(found, 0).astype(np.uint8), offsets), np.flatnonzero(spells)


def _utf8(tokens: list[str]) -> Texts:
    points, ends = _points(tokens)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    offsets = np.cumsum(np.append(0, sizes))[np.append(0, ends)].astype(np.uint32)
    return Texts(np.frombuffer("".join(tokens).encode() + b"\0", np.uint8), offsets)


def _points(tokens: list[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The code points of all tokens, one after the other, and where each token ends."""
    points = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
    return points, np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: visible Latin-1 as itself, the other 68 as U+0100 and on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _names(steps: list[Config]) -> str:
    return show(" then ".join(str(step.get("type")) for step in steps) or "none")
