"""A model's loss in nats → bits per byte of text, which no tokenizer can flatter."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.errors import UsageError
from shardmill.results.corpus import Corpus, open_corpus
from shardmill.system.names import show
from shardmill.tokens.token_bytes import NAME, Sizes, read_token_bytes


def token_bytes(output: str | Path | Corpus) -> Sizes:
    """How many bytes of text each id of an output stands for; 0 for special tokens.

    >>> shardmill.token_bytes("data")[:3].tolist()
    [1, 1, 1]
    """
    corpus = output if isinstance(output, Corpus) else open_corpus(output)
    file = corpus.sidecar("token-bytes")
    if file is None:
        raise UsageError(
            f"{show(corpus.folder)}: has no {NAME}: it was made by an earlier version, or with a tokenizer whose vocabulary does not spell text, such as WordPiece; prepare it again, or count the bytes yourself"
        )
    return read_token_bytes(file.read(0, file.size), file.path)


def bits_per_byte(nats: Any, ids: Any, sizes: npt.NDArray[Any]) -> float:
    """The loss of predicting these ids, per byte of the text that they stand for.

    nats is the loss of each id, in an array of the same shape: then ids without bytes (special tokens, and -100) do not
    count. Or it is the sum over all of them. sizes: shardmill.token_bytes("data").

    >>> round(shardmill.bits_per_byte([0.5, 2.0], [464, 3797], shardmill.token_bytes("data")), 3)
    0.515
    """
    losses, targets = np.asarray(nats, np.float64), np.asarray(ids)
    if losses.ndim and losses.shape != targets.shape:
        raise UsageError(f"{losses.shape} losses for {targets.shape} ids: pass the loss of each id, or one sum")
    known = targets >= 0
    if known.any() and int(targets.max()) >= len(sizes):
        raise UsageError(
            f"the id {int(targets.max()):,} is beyond the {len(sizes):,} of the table; it comes from another tokenizer"
        )
    counted = np.where(known, np.asarray(sizes)[np.where(known, targets, 0)], 0)
    total = int(counted.sum(dtype=np.int64))
    if not total:
        raise UsageError("none of the ids stands for text, so there are no bytes to divide by")
    spent = losses[counted > 0].sum() if losses.ndim else losses
    return float(spent) / math.log(2) / total
