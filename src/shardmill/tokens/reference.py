"""The reference engines, which define the tokens: tiktoken for its encodings, tokenizers for a tokenizer.json."""

from importlib import metadata
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardmill.errors import UsageError
from shardmill.system.names import show
from shardmill.tokens.families import is_panic
from shardmill.tokens.tokenizer import ENCODINGS, Tokenizer, read_ranks

Ids = npt.NDArray[np.unsignedinteger[Any]]
TokenCounts = npt.NDArray[np.int64]


class Fast(Protocol):
    """A fast engine: the same ids as the reference, except for guarded characters."""

    def encode(self, pieces: list[bytes]) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has."""


class Reference(Protocol):
    version: str

    def encode(self, text: bytes) -> Ids:
        """The ids of one document or span of valid UTF-8; special tokens written in it are ordinary text."""

    def decode(self, ids: list[int]) -> bytes:
        """The text of some tokens, special ones by their names; it may start or end within a character."""


def load_reference(tokenizer: Tokenizer) -> Reference:
    return TiktokenReference(tokenizer) if tokenizer.kind == "tiktoken" else TokenizersReference(tokenizer)


class TiktokenReference:
    def __init__(self, tokenizer: Tokenizer) -> None:
        import tiktoken

        self.version = f"tiktoken {metadata.version('tiktoken')}"
        encoding = ENCODINGS[tokenizer.name]
        self._encoding = tiktoken.Encoding(
            tokenizer.name,
            pat_str=encoding.pattern,
            mergeable_ranks=read_ranks(tokenizer.name),
            special_tokens=encoding.specials,
        )

    def encode(self, text: bytes) -> Ids:
        # Like encode_ordinary, without a Python int of 28 bytes for each token.
        return np.asarray(self._encoding.encode_to_numpy(text.decode(), disallowed_special=()), np.uint32)

    def decode(self, ids: list[int]) -> bytes:
        return self._encoding.decode_bytes(ids)


class TokenizersReference:
    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        self.version = f"tokenizers {metadata.version('tokenizers')}"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer.source))
        except BaseException as e:
            if not (isinstance(e, Exception) or is_panic(e)):
                raise
            raise UsageError(f"{show(tokenizer.source)}: the tokenizers library cannot load it: {show(str(e))}") from e
        self._source = tokenizer.source
        self._check_ids(tokenizer)
        # Without this a literal "<|endoftext|>" in the text would become the special id.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: bytes) -> Ids:
        # encode() would hold the GIL; the batch call does not, and one item keeps it on one thread.
        try:
            encoded = self._tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)[0]
        except BaseException as e:
            if not is_panic(e):
                raise
            begin = text[:40].decode(errors="replace")
            raise UsageError(f"{show(self._source)}: fails on the text that begins {begin!r}: {show(str(e))}") from e
        return np.array(encoded.ids, np.uint32)

    def decode(self, ids: list[int]) -> bytes:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)).encode()

    def _check_ids(self, tokenizer: Tokenizer) -> None:
        """The library assigns its own ids to added tokens if those in the file do not follow the vocabulary."""
        theirs = {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        for name, number in theirs.items():
            if number >= tokenizer.size or number != tokenizer.specials.get(name, number):
                raise UsageError(
                    f"{show(tokenizer.source)}: the tokenizers library gives the token {show(name)} the id {number:,}, not the one in the file; load and save it with that library"
                )
