"""A tokenizer's name → what it is: its vocabulary, pattern and special tokens, whichever engine runs it."""

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.errors import TemporaryError, UsageError
from shardmill.system.names import show
from shardmill.tokens.cuts import Cuts, Family
from shardmill.tokens.families import BUILT_IN, family_of, pattern_of

ALIASES = {"gpt2": "r50k_base", "r50k": "r50k_base", "cl100k": "cl100k_base", "o200k": "o200k_base"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """One of OpenAI's published encodings, whose vocabulary ships with this package."""

    family: Family
    pattern: str
    specials: dict[str, int]
    sha256: str


# The patterns as tiktoken 0.14 writes them; a test compares them with the installed tiktoken.
ENCODINGS = {
    "r50k_base": Encoding(
        family="gpt2",
        pattern=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
        specials={"<|endoftext|>": 50256},
        sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    ),
    "cl100k_base": Encoding(
        family="cl100k",
        pattern=r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
        specials={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": Encoding(
        family="o200k",
        pattern="|".join(
            [
                r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
                r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
                r"""\p{N}{1,3}""",
                r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
                r"""\s*[\r\n]+""",
                r"""\s+(?!\S)""",
                r"""\s+""",
            ]
        ),
        specials={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}

# Names of end-of-text tokens in the wild. Two of them in one tokenizer are ambiguous: then the user decides.
_EOT_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<|endofdocument|>",
)

# Patterns that gigatoken recognizes by their spelling, as Llama 3, Qwen 2 and their kin, and o200k ship them.
_LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_FAST = (BUILT_IN, _LLAMA3, _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"), ENCODINGS["o200k_base"].pattern)
# If the model sets one of these, its tokens are not the bytes that the vocabulary spells.
_ODD_KEYS = ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
_MOST_ID = 1 << 24
# The largest in use, with 262,144 tokens, has 33 MB.
_MOST_FILE_BYTES = 256 << 20
# The memory that loading takes, here and in the tokenizers library: the text, at up to four bytes a character, and
# for each comma, which stands for a token or half a merge, 140 to 250 bytes; with gigatoken up to 560.
_BYTES_PER_BYTE, _BYTES_PER_ENTRY, _FAST_BYTES_PER_ENTRY = 4, 256, 600
_BEFORE_LOADING = 64 << 20
_TRY_AGAIN = (408, 429)  # HTTP status of a timeout, and of too many requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer, whichever engine runs it. Two with the same digest give the same tokens for every text."""

    name: str
    kind: Literal["tiktoken", "huggingface"]
    source: Path
    digest: str
    size: int
    """One more than the largest id, special tokens included."""
    specials: dict[str, int]
    family: Family
    cuts: Cuts
    plain: bool
    """Byte-level BPE with a known pattern and nothing else, which the fast engine may run."""
    token_bytes: npt.NDArray[np.uint16] = field(repr=False, compare=False)
    """How many bytes of text each id stands for, if plain; 0 for special tokens."""


def load(name: str, most_bytes: float = math.inf) -> Tokenizer:
    """The tokenizer of this name, from a tokenizer.json (or its folder) at this path, or with this hub id.

    One whose loading would take more than most_bytes of memory is refused first.
    """
    encoding = ALIASES.get(name, name)
    if encoding in ENCODINGS:
        return _load_encoding(encoding)
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.is_file():
        return _load_json(name, path, most_bytes)
    if path.suffix == ".json" or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise UsageError(
            f"tokenizer {show(name)}: not a known name ({', '.join(['gpt2', *ENCODINGS])}), an existing tokenizer.json or a hub id like openai-community/gpt2"
        )
    return _load_json(name, _download(name), most_bytes)


@lru_cache(maxsize=1)
def read_ranks(encoding: str) -> dict[bytes, int]:
    """The vocabulary of one of OpenAI's encodings: the bytes and id of each token. Cached until choose_engines is done."""
    return {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in vocabulary_file(encoding).read_bytes().splitlines())
    }


def vocabulary_file(encoding: str) -> Path:
    return Path(str(resources.files("shardmill") / "vocab" / f"{encoding}.tiktoken"))


def end_of_text(tokenizer: Tokenizer, eot_token: str | None) -> int:
    """The id of the end-of-text token; otherwise an error that says how to name one."""
    if eot_token is not None:
        if eot_token not in tokenizer.specials:
            raise UsageError(
                f"--eot-token {eot_token!r}: tokenizer {show(tokenizer.name)} has no such special token; it has {_listed(tokenizer.specials)}"
            )
        return tokenizer.specials[eot_token]
    known = [name for name in _EOT_NAMES if name in tokenizer.specials]
    if len(known) == 1:
        return tokenizer.specials[known[0]]
    why = (
        f"has several tokens that could be its end-of-text token: {_listed(known)}"
        if known
        else f"has no end-of-text token of a known name; its special tokens are {_listed(tokenizer.specials)}"
    )
    raise UsageError(f"tokenizer {show(tokenizer.name)} {why}. Choose one with --eot-token, or pass --eot none")


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(show(name) for name in list(names)[:20])
    return (shown + (" …" if len(names) > 20 else "")) or "none"


def _load_encoding(encoding: str) -> Tokenizer:
    known = ENCODINGS[encoding]
    file = vocabulary_file(encoding)
    if hashlib.sha256(file.read_bytes()).hexdigest() != known.sha256:
        raise UsageError(
            f"{show(file)}: the vocabulary is damaged (its SHA-256 is not the published one); reinstall shardmill"
        )
    ranks = read_ranks(encoding)
    return Tokenizer(
        name=encoding,
        kind="tiktoken",
        source=file,
        digest=known.sha256,
        size=max(*ranks.values(), *known.specials.values()) + 1,
        specials=dict(known.specials),
        family=known.family,
        cuts=Cuts(known.family, ranks),
        plain=True,
        token_bytes=_token_bytes(ranks),
    )


def _load_json(name: str, path: Path, most_bytes: float) -> Tokenizer:
    try:
        size = path.stat().st_size
        if size > _MOST_FILE_BYTES:
            raise UsageError(f"{show(path)}: has {size:,} bytes, more than any tokenizer.json; check the path")
        _refuse_beyond(most_bytes, path, size, _memory_to_load(size, 0))
        raw = path.read_bytes()
        _refuse_beyond(most_bytes, path, size, _memory_to_load(size, raw.count(b",")))
        found = _parse(json.loads(raw), name=name, source=path, digest=hashlib.sha256(raw).hexdigest())
        fits = _memory_to_load(size, raw.count(b","), _FAST_BYTES_PER_ENTRY) <= most_bytes
        return dataclasses.replace(found, plain=found.plain and fits)
    except OSError as e:
        raise UsageError(f"{show(path)}: cannot be read: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise UsageError(
            f"{show(path)}: not a tokenizer.json of the tokenizers library ({type(e).__name__}: {show(str(e))})"
        ) from e


def _refuse_beyond(most_bytes: float, path: Path, size: int, needed: int) -> None:
    if needed > most_bytes:
        raise UsageError(
            f"{show(path)}: a tokenizer of {size:,} bytes takes up to {needed >> 20}MiB to load, and --max-memory allows {int(most_bytes) >> 20}MiB; pass --max-memory {(needed >> 20) + 1}MiB or more"
        )


def _memory_to_load(size: int, entries: int, for_each: int = _BYTES_PER_ENTRY) -> int:
    return _BEFORE_LOADING + _BYTES_PER_BYTE * size + for_each * entries


def _parse(config: dict[str, Any], *, name: str, source: Path, digest: str) -> Tokenizer:
    model, added = config["model"], [token for token in config.get("added_tokens") or [] if token["content"] != ""]
    vocabulary = _vocabulary(model)
    ids = [*vocabulary.values(), *(token["id"] for token in added)]
    if not all(type(number) is int and 0 <= number < _MOST_ID for number in ids):
        raise ValueError("an id is not an integer from 0 to 2^24")
    if not all(isinstance(token["content"], str) for token in added):
        raise ValueError("an added token is not a string")
    if model.get("dropout"):
        raise UsageError(
            f'{show(source)}: its model has dropout, so it gives different tokens each time; set "dropout" to null in the file'
        )
    family = family_of(config, show(source))
    ordinary = [token for token in added if not token.get("special")]
    if ordinary and family != "unknown":
        family = "spaces" if all(map(_stands_alone, ordinary)) else "unknown"
    is_bytes = (model.get("type") or "BPE") == "BPE" and not any(map(model.get, _ODD_KEYS))  # old files have no type
    tokens = _byte_tokens(vocabulary) if is_bytes and family not in ("unknown", "spaces") else None
    plain = tokens is not None and _is_plain(config)
    return Tokenizer(
        name=name,
        kind="huggingface",
        source=source,
        digest=digest,
        size=max(ids) + 1,
        specials={token["content"]: token["id"] for token in added if token.get("special")},
        family=family,
        # Half a word may be a token that no merge makes: ignore_merges finds it where the word is cut, and only there.
        cuts=Cuts(family, None if model.get("ignore_merges") else tokens),
        plain=plain,
        token_bytes=_token_bytes(vocabulary if plain else {}),  # each character of a byte-level vocabulary is a byte
    )


def _token_bytes(vocabulary: dict[bytes, int] | dict[str, int]) -> npt.NDArray[np.uint16]:
    sizes = np.zeros(max(vocabulary.values(), default=-1) + 1, np.uint16)
    sizes[list(vocabulary.values())] = [len(token) for token in vocabulary]
    return sizes


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram's, with scores
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    if not vocabulary or not all(isinstance(token, str) for token in vocabulary):
        raise ValueError("the vocabulary is empty, or a token is not a string")
    found: dict[str, int] = vocabulary
    return found


def _stands_alone(token: dict[str, Any]) -> bool:
    """Whether an added token, which is found in the text before all else, extends over no space or newline."""
    return not any(map(str.isspace, token["content"])) and not token.get("lstrip") and not token.get("rstrip")


def _is_plain(config: dict[str, Any]) -> bool:
    """Whether a byte-level BPE of a known family has nothing that gigatoken might treat differently."""
    merges = [pair if isinstance(pair, str) else tuple(pair) for pair in config["model"]["merges"]]
    once = len(set(merges)) == len(merges)  # of two equal ones, tokenizers takes the last, gigatoken the first
    return once and pattern_of(config) in _FAST and not config.get("truncation") and not config.get("padding")


def _byte_tokens(vocabulary: dict[str, int]) -> list[bytes] | None:
    """The tokens of a byte-level vocabulary as bytes; None if it is not one, or lacks a byte.

    What has no token is dropped or fused with its neighbours, so bytes meet that were not adjacent in the text.
    """
    alphabet = byte_alphabet()
    tokens = []
    for token in vocabulary:
        try:
            tokens.append(bytes(alphabet[c] for c in token))
        except KeyError:
            # A special token in the vocabulary is text, not bytes; anything else is not byte-level.
            if not (token.startswith("<") and token.endswith(">")):
                return None
    return tokens if vocabulary.keys() >= alphabet.keys() else None


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: visible Latin-1 as itself, the other 68 as U+0100 and on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _download(name: str) -> Path:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, "tokenizer.json"))
    except RepositoryNotFoundError as e:
        why = "no such model on the hub, or it is private; check the name, or log in with `hf auth login`"
        raise UsageError(f"tokenizer {show(name)}: {why}") from e
    except ValueError as e:
        why = f"the hub does not accept this name ({_cause(e)}); check the spelling"
        raise UsageError(f"tokenizer {show(name)}: {why}, or give the path of a tokenizer.json instead") from e
    except Exception as e:  # no answer, or a broken connection: of what kind, depends on the library's version
        if isinstance(e, EntryNotFoundError) and not isinstance(e, LocalEntryNotFoundError):
            raise UsageError(
                f"tokenizer {show(name)}: this model has no tokenizer.json; convert its tokenizer with the tokenizers library and give the path of the file"
            ) from e
        status = getattr(getattr(e.__cause__ or e, "response", None), "status_code", 0)
        if constants.HF_HUB_OFFLINE or (400 <= status < 500 and status not in _TRY_AGAIN):
            why = (
                "HF_HUB_OFFLINE forbids to download it; unset that"
                if not status
                else f"the hub refuses it (HTTP status {status}); log in with `hf auth login`"
            )
            raise UsageError(f"tokenizer {show(name)}: {why}, or give the path of a tokenizer.json instead") from e
        raise TemporaryError(
            f"tokenizer {show(name)}: the hub cannot be reached ({_cause(e)}); run the same command again later, or give the path of a tokenizer.json instead"
        ) from e


def _cause(e: BaseException) -> str:
    """What went wrong in the first place, on one line."""
    while e.__cause__ is not None:
        e = e.__cause__
    return show(" ".join(str(e).split())[:200] or type(e).__name__)
