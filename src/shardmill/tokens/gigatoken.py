"""The fast engine for most tokenizers: gigatoken, used only in ways that are exact and release the GIL."""

import json
from importlib import metadata

import numpy as np

from shardmill.tokens.reference import Ids, TokenCounts
from shardmill.tokens.tokenizer import Tokenizer

_PRETOKENIZERS = {"r50k_base": "gpt2", "cl100k_base": "cl100k", "o200k_base": "o200k"}

# Up to here, each piece gets its own call, which returns a numpy array; the call for many returns an awkward array,
# which costs 150 µs and, the first time, the import of awkward: 0.2 s and 15 MiB.
FEW_PIECES = 8


def version() -> str:
    return f"gigatoken {metadata.version('gigatoken')}"


def why_not(tokenizer: Tokenizer) -> str | None:
    """Why it cannot run a tokenizer, as far as can be told without trying; None if it can."""
    return None if tokenizer.plain else "it is not a plain byte-level BPE with a known pattern"


class Gigatoken:
    """One engine for one thread. Its cache grows with every new word; make a new engine to drop it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import gigatoken

        # Without special tokens: a literal "<|endoftext|>" in the text must not become the special id.
        if tokenizer.kind == "tiktoken":
            self._tokenizer = gigatoken.Tokenizer.from_tiktoken(
                tokenizer.source, pretokenizer=_PRETOKENIZERS[tokenizer.name]
            )
        else:
            config = json.loads(tokenizer.source.read_bytes())
            config["added_tokens"] = []
            config["post_processor"] = None
            text = json.dumps(config)
            del config  # as large as the engine
            self._tokenizer = gigatoken.Tokenizer.from_json(text)

    def encode(self, pieces: list[bytes]) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has."""
        # encode() would hold the GIL; parallel=True would start threads of its own.
        if len(pieces) <= FEW_PIECES:
            rows = [self._tokenizer.encode_batch_padded([piece], 0, parallel=False)[0][0] for piece in pieces]
            ids = rows[0] if len(rows) == 1 else np.concatenate(rows) if rows else np.empty(0, np.uint32)
            return ids, np.array([len(row) for row in rows], np.int64)
        layout = self._tokenizer.encode_batch(pieces, parallel=False).layout
        offsets = np.asarray(layout.offsets)
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets)
