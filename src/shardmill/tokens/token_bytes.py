"""A tokenizer → how many bytes of text each id stands for, from the bytes of the vocabulary, never through decode."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError
from shardmill.system.names import show
from shardmill.tokens import stored
from shardmill.tokens.compile import byte_alphabet
from shardmill.tokens.tokenizer import Tokenizer

NAME = "token_bytes.npy"
Sizes = npt.NDArray[np.uint16]
ByteRule = Literal["exact", "prefixed", "unknown"]
_BLANK = "▁"
_LONGEST = (1 << 16) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBytes:
    """The bytes of each id, 0 for special and unknown tokens, and whether those of a document add up to its text.

    exact: they do. prefixed: SentencePiece puts a ▁ before a document, which counts as the blank that it stands for
    elsewhere, so there may be one more for each; and a ▁ of the text itself counts 1. unknown: a normalizer or
    pre-tokenizer may change or drop text.
    """

    sizes: Sizes
    rule: ByteRule

    def file(self) -> bytes:
        """As a .npy file."""
        stream = io.BytesIO()
        np.lib.format.write_array(stream, self.sizes.astype("<u2"), version=(1, 0))
        return stream.getvalue()


def token_bytes_of(tokenizer: Tokenizer) -> TokenBytes | None:
    """None: the vocabulary does not spell text, as in WordPiece."""
    if tokenizer.kind == "tiktoken" and not isinstance(tokenizer.model, str):
        sizes = np.zeros(tokenizer.size, np.uint16)
        sizes[tokenizer.model.ids] = np.diff(tokenizer.model.tokens.offsets)
        return TokenBytes(sizes=sizes, rule="exact")
    return _kept(tokenizer.cache, tokenizer.source, tokenizer.size, tokenizer.digest)


def read_token_bytes(data: bytes, path: str) -> Sizes:
    """The table in such a file, which may be a stranger's."""
    try:
        sizes = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as e:
        raise InputError(f"{show(path)}: is not a .npy file ({show(str(e))}); it is damaged") from e
    if not isinstance(sizes, np.ndarray) or sizes.dtype != np.uint16 or sizes.ndim != 1:
        raise InputError(f"{show(path)}: is not a list of uint16, one for each id; it is damaged")
    return sizes


@lru_cache(maxsize=2)
def _kept(cache: Path | None, source: Path, size: int, digest: str) -> TokenBytes | None:
    """The table from the cache folder; otherwise it is made, which takes up to a second, and stored there."""
    found = stored.read(cache, digest, "token-bytes") if cache else None
    if found is not None:
        return TokenBytes(sizes=found[1]["sizes"], rule=found[0]["rule"])
    made = _of_json(source, size)
    if cache and made is not None:
        stored.write(cache, digest, {"rule": made.rule}, {"sizes": made.sizes}, "token-bytes")
    return made


def _of_json(source: Path, size: int) -> TokenBytes | None:
    config = json.loads(source.read_bytes())
    model, added = config["model"], config.get("added_tokens") or []
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram's, with scores
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    steps = [*_steps(config.get("pre_tokenizer")), *_steps(config.get("decoder"))]
    if any(step["type"] == "ByteLevel" for step in steps):
        count, rule = _spelled_bytes, _byte_level_rule(config, vocabulary)
    elif any(_makes_blanks(step) for step in (*steps, *_steps(config.get("normalizer")))):
        count, rule = _sentencepiece_bytes, _sentencepiece_rule(config, vocabulary)
    else:
        return None
    sizes = np.zeros(size, np.uint16)
    for token, number in vocabulary.items():
        sizes[number] = min(count(token), _LONGEST)
    for token in added:  # Gemma's runs of ▁ are also what runs of blanks become
        text = token["content"].replace(_BLANK, " ") if count is _sentencepiece_bytes else token["content"]
        sizes[token["id"]] = 0 if token.get("special") else min(len(text.encode()), _LONGEST)
    if (unknown := _unknown(model, vocabulary)) is not None:
        sizes[unknown] = 0
    strips = any(not token.get("special") and (token.get("lstrip") or token.get("rstrip")) for token in added)
    return TokenBytes(sizes=sizes, rule="unknown" if strips else rule)


def _unknown(model: dict[str, Any], vocabulary: dict[str, int]) -> int | None:
    if isinstance(number := model.get("unk_id"), int):  # Unigram's
        return number
    return vocabulary.get(model.get("unk_token") or "")


def _spelled_bytes(token: str) -> int:
    """Each character of a byte-level vocabulary is a byte; what is not spelled so is text."""
    return len(token) if all(character in byte_alphabet() for character in token) else len(token.encode())


def _sentencepiece_bytes(token: str) -> int:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    return len(token.replace(_BLANK, " ").encode())


def _byte_level_rule(config: dict[str, Any], vocabulary: dict[str, int]) -> ByteRule:
    steps = list(_steps(config.get("pre_tokenizer")))
    drops = any(step.get("behavior") == "Removed" for step in steps)
    known = all(step["type"] in ("ByteLevel", "Split", "Digits", "Punctuation") for step in steps)
    if config.get("normalizer") or drops or not known or not vocabulary.keys() >= byte_alphabet().keys():
        return "unknown"
    prefixed = any(step["type"] == "ByteLevel" and step.get("add_prefix_space") for step in steps)
    return "prefixed" if prefixed else "exact"


def _sentencepiece_rule(config: dict[str, Any], vocabulary: dict[str, int]) -> ByteRule:
    normalizers, steps = list(_steps(config.get("normalizer"))), list(_steps(config.get("pre_tokenizer")))
    harmless = all(step["type"] == "Prepend" or _makes_blanks(step) for step in normalizers)
    keeps = all(
        step["type"] == "Metaspace" or (step["type"] == "Split" and step.get("behavior") != "Removed") for step in steps
    )
    whole = config["model"].get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return "prefixed" if harmless and keeps and whole else "unknown"


def _makes_blanks(step: dict[str, Any]) -> bool:
    """Whether a step of the tokenizer spells blanks as ▁, or turns them back."""
    if step["type"] != "Replace":
        return bool(step["type"] == "Metaspace")
    return bool({step.get("content"), *(step.get("pattern") or {}).values()} == {_BLANK, " "})


def _steps(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a sequence, however nested."""
    if step is not None:
        inner = [each for name in ("normalizers", "pretokenizers", "decoders") for each in step.get(name) or ()]
        if not inner:
            yield step
        for each in inner:
            yield from _steps(each)
