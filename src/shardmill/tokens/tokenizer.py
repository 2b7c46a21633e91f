"""A tokenizer's name → what it is: its vocabulary, pattern and special tokens, whichever engine runs it."""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.cuts import Cuts, Family
from shardmill.errors import UsageError
from shardmill.names import show

ALIASES = {"gpt2": "r50k_base", "r50k": "r50k_base", "cl100k": "cl100k_base", "o200k": "o200k_base"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """One of OpenAI's published encodings; the vocabulary ships with this package."""

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

# Names that end-of-text tokens have in the wild. Two of them in one tokenizer are ambiguous: then the user decides.
_EOT_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<|endofdocument|>",
)

# Split patterns of tokenizer.json files for which the cut rules hold. The first five are what Llama 3, Qwen 2
# and their kin, and o200k ship; GPT-2's is built into the ByteLevel pre-tokenizer.
_GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
_LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_FAMILY_OF_PATTERN: dict[str, Family] = {
    _GPT2: "gpt2",
    _LLAMA3: "cl100k",
    _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"): "cl100k",
    **{encoding.pattern: encoding.family for encoding in ENCODINGS.values()},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """What a tokenizer is. Two with the same digest give the same tokens for every text."""

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
    """Byte-level BPE with a known pattern and nothing else: the fast engine may run it."""
    token_bytes: npt.NDArray[np.uint16] = field(repr=False, compare=False)
    """How many bytes of text each id of a plain one stands for; 0 for special tokens."""


def load(name: str) -> Tokenizer:
    """The tokenizer that a name, a path to a tokenizer.json (or its folder) or a hub id means."""
    encoding = ALIASES.get(name, name)
    if encoding in ENCODINGS:
        return _load_encoding(encoding)
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.is_file():
        return _load_json(name, path)
    if path.suffix == ".json" or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise UsageError(
            f"tokenizer {show(name)}: neither a known name ({', '.join(['gpt2', *ENCODINGS])}) nor an existing tokenizer.json nor a hub id like openai-community/gpt2"
        )
    return _load_json(name, _download(name))


@lru_cache(maxsize=1)
def read_ranks(encoding: str) -> dict[bytes, int]:
    """The vocabulary of one of OpenAI's encodings: each token's bytes and id. Kept until choose_engines is done with it."""
    return {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in vocabulary_file(encoding).read_bytes().splitlines())
    }


def vocabulary_file(encoding: str) -> Path:
    return Path(str(resources.files("shardmill") / "vocab" / f"{encoding}.tiktoken"))


def end_of_text(tokenizer: Tokenizer, eot_token: str | None) -> int:
    """The id of the end-of-text token, or an error that says how to name one."""
    if eot_token is not None:
        if eot_token not in tokenizer.specials:
            raise UsageError(
                f"--eot-token {eot_token!r}: tokenizer {show(tokenizer.name)} has no such special token; it has {_named(tokenizer.specials)}"
            )
        return tokenizer.specials[eot_token]
    known = [name for name in _EOT_NAMES if name in tokenizer.specials]
    if len(known) == 1:
        return tokenizer.specials[known[0]]
    why = (
        f"has several tokens that could end a text: {_named(known)}"
        if known
        else f"has no token that is known to end a text; its special tokens are {_named(tokenizer.specials)}"
    )
    raise UsageError(f"tokenizer {show(tokenizer.name)} {why}. Say which one with --eot-token, or pass --eot none")


def _named(names: Any) -> str:
    shown = ", ".join(show(name) for name in list(names)[:20])
    return (shown + (" …" if len(names) > 20 else "")) or "none"


def _load_encoding(encoding: str) -> Tokenizer:
    known = ENCODINGS[encoding]
    file = vocabulary_file(encoding)
    if hashlib.sha256(file.read_bytes()).hexdigest() != known.sha256:
        raise UsageError(
            f"{show(file)}: the vocabulary is damaged (its SHA-256 is not the published one); install shardmill again"
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


def _load_json(name: str, path: Path) -> Tokenizer:
    raw = path.read_bytes()
    try:
        config = json.loads(raw)
        model, added = config["model"], config.get("added_tokens") or []
        vocabulary: dict[str, int] = (
            model["vocab"]
            if isinstance(model["vocab"], dict)
            else {token: i for i, (token, _) in enumerate(model["vocab"])}
        )
        ids = [*vocabulary.values(), *(token["id"] for token in added)]
        specials = {token["content"]: int(token["id"]) for token in added if token.get("special")}
    except (ValueError, KeyError, TypeError) as e:
        raise UsageError(
            f"{show(path)}: not a tokenizer.json as the tokenizers library writes it ({type(e).__name__}: {e})"
        ) from e
    family = _family_of(config)
    byte_tokens = _byte_tokens(vocabulary) if family not in ("unknown", "spaces") else None
    if byte_tokens is None and family != "spaces":
        family = "unknown"
    ordinary = [token for token in added if not token.get("special")]
    if ordinary and family != "unknown":
        apart = all(
            not any(c.isspace() for c in token["content"]) and not token.get("lstrip") and not token.get("rstrip")
            for token in ordinary
        )
        family = "spaces" if apart else "unknown"
    return Tokenizer(
        name=name,
        kind="huggingface",
        source=path,
        digest=hashlib.sha256(raw).hexdigest(),
        size=max(ids) + 1,
        specials=specials,
        family=family,
        cuts=Cuts(family, byte_tokens or ()),
        plain=family not in ("unknown", "spaces"),
        token_bytes=_token_bytes(vocabulary),  # each letter of a byte-level vocabulary is a byte
    )


def _token_bytes(vocabulary: dict[bytes, int] | dict[str, int]) -> npt.NDArray[np.uint16]:
    sizes = np.zeros(max(vocabulary.values(), default=-1) + 1, np.uint16)
    sizes[list(vocabulary.values())] = [len(token) for token in vocabulary]
    return sizes


def _family_of(config: dict[str, Any]) -> Family:
    """Which cut rules hold for a tokenizer.json; unknown unless every part of it is understood."""
    model = config["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else None)  # old files leave it out
    odd_keys = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    if kind != "BPE" or any(model.get(key) for key in odd_keys) or config.get("truncation") or config.get("padding"):
        return "unknown"
    match config.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, **rest} if rest.get("use_regex", True):
            family: Family = "gpt2"
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            family = _FAMILY_OF_PATTERN.get(pattern, "unknown")
        case _:
            return "unknown"
    match config.get("normalizer"):
        case None:
            return family
        case {"type": "NFC"} if family != "unknown":
            # Letters beside a cut might have been composed into one; a space or newline never is.
            return "spaces"
        case _:
            return "unknown"


def _byte_tokens(vocabulary: dict[str, int]) -> list[bytes] | None:
    """The tokens of a byte-level vocabulary as bytes; None if it is not one."""
    alphabet = byte_alphabet()
    tokens = []
    for token in vocabulary:
        try:
            tokens.append(bytes(alphabet[c] for c in token))
        except KeyError:
            # A special token that stands in the vocabulary too is text, not bytes; anything else is not byte-level.
            if not (token.startswith("<") and token.endswith(">")):
                return None
    return tokens


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: visible Latin-1 as itself, the other 68 as U+0100 and on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _download(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, "tokenizer.json"))
    except RepositoryNotFoundError as e:
        raise UsageError(
            f"tokenizer {show(name)}: the hub has no such model, or it is private; check the name, or log in with `hf auth login`"
        ) from e
    except LocalEntryNotFoundError as e:  # a kind of EntryNotFoundError, but it says that the hub did not answer
        raise UsageError(
            f"tokenizer {show(name)}: the hub cannot be reached; give the path of a tokenizer.json instead"
        ) from e
    except EntryNotFoundError as e:
        raise UsageError(
            f"tokenizer {show(name)}: this model has no tokenizer.json; convert its tokenizer with the tokenizers library and give the path of the file"
        ) from e
    except OSError as e:
        raise UsageError(
            f"tokenizer {show(name)}: the hub cannot be reached ({e}); give the path of a tokenizer.json instead"
        ) from e
