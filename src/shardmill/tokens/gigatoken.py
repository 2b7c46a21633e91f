"""The fast engine: gigatoken, used only in the ways that keep it exact and let other threads run."""

import json
from importlib import metadata

import gigatoken
import numpy as np
import numpy.typing as npt

from shardmill.tokens.reference import Ids
from shardmill.tokens.tokenizer import Tokenizer

_PRETOKENIZERS = {"r50k_base": "gpt2", "cl100k_base": "cl100k", "o200k_base": "o200k"}


def version() -> str:
    return f"gigatoken {metadata.version('gigatoken')}"


class Gigatoken:
    """One engine for one thread. Its cache of words grows with every new word: drop it and make another."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Special tokens are left out, or a literal "<|endoftext|>" in the text would become the special id.
        if tokenizer.kind == "tiktoken":
            self._tokenizer = gigatoken.Tokenizer.from_tiktoken(
                tokenizer.source, pretokenizer=_PRETOKENIZERS[tokenizer.name]
            )
        else:
            config = json.loads(tokenizer.source.read_bytes())
            config["added_tokens"] = []
            config["post_processor"] = None
            self._tokenizer = gigatoken.Tokenizer.from_json(json.dumps(config))

    def encode(self, pieces: list[bytes]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """The ids of all pieces in a row, and how many each has."""
        if not pieces:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        # encode() would hold the GIL; parallel=True would start threads of its own.
        layout = self._tokenizer.encode_batch(pieces, parallel=False).layout
        offsets = np.asarray(layout.offsets)
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets)
