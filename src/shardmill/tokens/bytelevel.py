"""Byte-level BPE with all that surrounds it: added tokens, normal form C, then the engine for the text between them."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shardmill.tokens.added import TEXT, Added
from shardmill.tokens.layout import Laid, Layout, lay_out
from shardmill.tokens.model import AddedToken, Ids, Model, TokenCounts, Whole
from shardmill.tokens.native import Native
from shardmill.tokens.normalize import check_of_form, normalize
from shardmill.tokens.strings import Flags, Strings

Rows = npt.NDArray[np.int64]
"""For each stretch of a piece: the number of the piece, and the id of the added token that it is, or TEXT."""


class ByteLevel:
    """One engine for any number of threads. Its memory is fixed."""

    def __init__(self, model: Model) -> None:
        self._native = Native(model)
        self._nfc = model.nfc
        self._raw = _finder([token for token in model.added if not token.normalized])
        contents = [token.content.encode() for token in model.added if token.normalized]
        contents = list(normalize(contents)) if model.nfc else contents
        normalized = zip([token for token in model.added if token.normalized], contents, strict=True)
        self._normalized = _finder([replace(token, content=content.decode()) for token, content in normalized])
        self._dtype = np.uint32 if any(token.id > 0xFFFF for token in model.added) else np.uint16

    def encode(self, pieces: Strings | Sequence[bytes], _begins: object = None) -> tuple[Ids, TokenCounts]:
        """The ids of all pieces in sequence, and how many each has."""
        rows, texts = _split(self._raw, None, Strings.of(pieces))
        if self._nfc:
            texts = normalize(texts)
        rows, texts = _split(self._normalized, rows, texts)
        ids, counts = self._native.encode(texts)
        if rows is None:
            return ids, counts
        is_text = rows[:, 1] == TEXT
        sizes = np.ones(len(rows), np.int64)
        sizes[is_text] = counts
        joined = np.empty(len(ids) + len(rows) - len(counts), np.promote_types(ids.dtype, self._dtype))
        added = (np.cumsum(sizes) - 1)[~is_text]
        from_text = np.ones(len(joined), np.bool_)
        from_text[added] = False
        joined[added] = rows[~is_text, 1]
        joined[from_text] = ids
        return joined, np.bincount(rows[:, 0], sizes, len(pieces)).astype(np.int64)

    def encode_and_lay_out(
        self, pieces: Strings, begins: Flags, layout: Layout
    ) -> tuple[Laid, tuple[Ids, TokenCounts]]:
        """The same, and the tokens as they are written."""
        rows, texts = _split(self._raw, None, pieces)
        if rows is None and self._nfc:
            texts = normalize(texts)
        if rows is None and _split(self._normalized, rows, texts)[0] is None:
            return self._native.encode_and_lay_out(texts, layout)
        with layout.turn or nullcontext():
            encoded = self.encode(pieces, begins)
        return lay_out(encoded, layout), encoded

    @property
    def whole(self) -> Whole:
        check = check_of_form() if self._nfc else None
        raw, normalized = (each.pointer if each else None for each in (self._raw, self._normalized))
        made = self._native.whole(raw, normalized, None if check is None else check.pointer, self.encode)
        return replace(made, owner=(self, made.owner, check))

    @property
    def memory(self) -> int:
        return self._native.memory + sum(each.memory for each in (self._raw, self._normalized) if each)


def _finder(tokens: list[AddedToken]) -> Added | None:
    """Special tokens are ordinary text; where there are no others, there is nothing to find."""
    return Added(tokens) if any(not token.special for token in tokens) else None


def _split(finder: Added | None, rows: Rows | None, texts: Strings) -> tuple[Rows | None, Strings]:
    """The rows, with those that are TEXT taken apart further, and the texts that remain. Rows: None: each text is one."""
    found = finder.split(texts) if finder else None
    if found is None:
        return rows, texts
    numbers, starts, ends, _ = found[found[:, 3] == TEXT].T
    parts = Strings(texts.pointers[numbers] + starts, ends - starts, texts.owners)
    if rows is None:
        return found[:, [0, 3]], parts
    whole = np.flatnonzero(rows[:, 1] == TEXT)
    new = np.column_stack([rows[whole[found[:, 0]], 0], found[:, 3]])
    kept = np.flatnonzero(rows[:, 1] != TEXT)
    order = np.argsort(np.concatenate([kept, whole[found[:, 0]]]), kind="stable")
    return np.concatenate([rows[kept], new])[order], parts
