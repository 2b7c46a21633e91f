"""The reference engines, which define the tokens: tiktoken for its encodings, tokenizers for a tokenizer.json."""

import threading
from importlib import metadata
from typing import Protocol

import numpy as np

from shardmill.errors import UsageError
from shardmill.system.names import show
from shardmill.tokens.families import is_panic
from shardmill.tokens.model import Ids
from shardmill.tokens.tokenizer import ENCODINGS, Tokenizer, read_ranks


class Reference(Protocol):
    version: str

    def encode(self, text: bytes, *, begins: bool = True) -> Ids:
        """The ids of one document or span of valid UTF-8; special tokens written in it are ordinary text.

        begins: the document begins here. Some tokenizers put a space before it.
        """

    def decode(self, ids: list[int]) -> bytes:
        """The text of some tokens, special ones by their names; it may start or end within a character."""


def load_reference(tokenizer: Tokenizer) -> Reference:
    return TiktokenReference(tokenizer) if tokenizer.kind == "tiktoken" else TokenizersReference(tokenizer)


def version_of(tokenizer: Tokenizer) -> str:
    library = "tiktoken" if tokenizer.kind == "tiktoken" else "tokenizers"
    return f"{library} {metadata.version(library)}"


class Later:
    """A reference that is loaded when it is first needed: that takes half a second, all of it with the GIL."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.version = version_of(tokenizer)
        self._tokenizer = tokenizer
        self._loading = threading.Lock()
        self._found: Reference | None = None

    def load(self) -> Reference:
        with self._loading:
            if self._found is None:
                self._found = load_reference(self._tokenizer)
            return self._found

    @property
    def loaded(self) -> bool:
        return self._found is not None

    def encode(self, text: bytes, *, begins: bool = True) -> Ids:
        return self.load().encode(text, begins=begins)

    def decode(self, ids: list[int]) -> bytes:
        return self.load().decode(ids)


class TiktokenReference:
    def __init__(self, tokenizer: Tokenizer) -> None:
        import tiktoken

        self.version = version_of(tokenizer)
        encoding = ENCODINGS[tokenizer.name]
        self._encoding = tiktoken.Encoding(
            tokenizer.name,
            pat_str=encoding.pattern,
            mergeable_ranks=read_ranks(tokenizer.name),
            special_tokens=encoding.specials,
        )
        read_ranks.cache_clear()  # 8 MiB for GPT-2, four times that for o200k

    def encode(self, text: bytes, *, begins: bool = True) -> Ids:  # noqa: ARG002
        # Like encode_ordinary, without a Python int of 28 bytes for each token.
        return np.asarray(self._encoding.encode_to_numpy(text.decode(), disallowed_special=()), np.uint32)

    def decode(self, ids: list[int]) -> bytes:
        return self._encoding.decode_bytes(ids)


class TokenizersReference:
    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        self.version = version_of(tokenizer)
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
        self._prepends = not isinstance(tokenizer.model, str) and tokenizer.model.prepend
        self._alone = self._loner() if self._prepends else b""

    def encode(self, text: bytes, *, begins: bool = True) -> Ids:
        if begins or not self._prepends:
            return self._encode(text)
        # SentencePiece's ▁ is put before the other character.
        return self._encode(self._alone + text)[len(self._encode(self._alone)) :]

    def decode(self, ids: list[int]) -> bytes:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)).encode()

    def _encode(self, text: bytes) -> Ids:
        # encode() would hold the GIL; the batch call does not, and one item keeps it on one thread.
        try:
            encoded = self._tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)[0]
        except BaseException as e:
            if not is_panic(e):
                raise
            begin = text[:40].decode(errors="replace")
            raise UsageError(f"{show(self._source)}: fails on the text that begins {begin!r}: {show(str(e))}") from e
        return np.array(encoded.ids, np.uint32)

    def _loner(self) -> bytes:
        """A character without a token: it becomes bytes, and joins nothing that follows it."""
        added = "".join(token.content for token in self._tokenizer.get_added_tokens_decoder().values())
        private = map(chr, range(0x10FFFD, 0xF0000, -1))
        return next(
            char for char in private if self._tokenizer.token_to_id(char) is None and char not in added
        ).encode()

    def _check_ids(self, tokenizer: Tokenizer) -> None:
        """The library assigns its own ids to added tokens if those in the file do not follow the vocabulary."""
        theirs = {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        for name, number in theirs.items():
            if number >= tokenizer.size or number != tokenizer.specials.get(name, number):
                raise UsageError(
                    f"{show(tokenizer.source)}: the tokenizers library gives the token {show(name)} the id {number:,}, not the one in the file; load and save it with that library"
                )
