"""Encoded pieces → the certainty, for a sample of them, that the reference gives the same ids."""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import xxhash

from shardmill.errors import MismatchError
from shardmill.tokens.encoder import Engines, reference_ids
from shardmill.tokens.reference import Ids, TokenCounts

# The share of the CPU time that comparing may take. How much text that is depends on the reference: with tiktoken
# beside our own engine 0.04 % of it, with tokenizers beside gigatoken about as much.
SHARE = 0.015
_SPAN_BYTES = 2 << 10
_SEARCH_BYTES = 16 << 10


class Checker:
    """Compares all of the first Block, then spans at hashed places, for a share of the CPU time of all workers.

    Another seed compares other places.
    """

    def __init__(self, engines: Engines, share: float, seed: int = 0) -> None:
        self._engines, self._share, self._seed = engines, share, seed & (1 << 64) - 1
        self._worked = self._spent = 0.0  # by all threads; a sum that is lost now and then does not matter

    def check(
        self,
        block: int,
        pieces: Sequence[bytes],
        ids: Ids,
        counts: TokenCounts,
        place: Callable[[int], str],
        worked: float,
    ) -> int:
        """Returns how many bytes were compared. place(i) says where piece i is; worked: CPU seconds that encoding took."""
        self._worked += worked
        if self._engines.guard is None or not len(ids):
            return 0
        if block == 0:
            return self._check_pieces(range(len(pieces)), pieces, ids, counts, place)
        if self._spent > self._share * self._worked:
            return 0
        began = time.thread_time()
        token = xxhash.xxh3_64_intdigest(block.to_bytes(8, "little"), seed=self._seed) % len(ids)
        first = int(np.searchsorted(np.cumsum(counts), token, side="right"))
        token -= int(counts[:first].sum())
        checked = self._check_pieces(_some(pieces, first), pieces, ids, counts, place, token)
        self._spent += time.thread_time() - began
        return checked

    def _check_pieces(
        self,
        numbers: Iterator[int] | range,
        pieces: Sequence[bytes],
        ids: Ids,
        counts: TokenCounts,
        place: Callable[[int], str],
        token: int | None = None,
    ) -> int:
        """Whole pieces; of a long one a span that begins behind a token, unless that is None."""
        checked, ends = 0, np.cumsum(counts)
        for number in numbers:
            piece, end = pieces[number], int(ends[number])
            written = ids[end - int(counts[number]) : end]
            try:
                if token is None or len(piece) <= 2 * _SPAN_BYTES:
                    checked += self._compare(piece, written)
                else:
                    checked += self._check_span(piece, written, token)
            except MismatchError as e:
                raise MismatchError(f"{place(number)}: {e}") from None
        return checked

    def _check_span(self, piece: bytes, written: Ids, token: int) -> int:
        """A span from exact cut to exact cut behind a token; nothing where there are none near.

        Where it lies among the ids follows from the bytes of those before it: an exact cut is an end of a token.
        """
        sizes = self._engines.tokenizer.token_bytes
        near_end = token > len(written) // 2
        passed = int(sizes.take(written[token:] if near_end else written[:token], mode="clip").sum(dtype=np.int64))
        if passed > len(piece):
            raise MismatchError(f"{self._engines.name} gave tokens for {passed:,} bytes of a text of {len(piece):,}")
        at = len(piece) - passed if near_end else passed
        start, end = self._cut(piece, at) if at else 0, None
        if start is not None:
            end = self._cut(piece, start + _SPAN_BYTES)
        if start is None or end is None:
            return 0
        steps = at + np.cumsum(sizes.take(written[token : token + start - at], mode="clip"), dtype=np.int64)
        first = token + (int(np.searchsorted(steps, start)) + 1 if start > at else 0)
        return self._compare(piece[start:end], written[first:], whole=end == len(piece))

    def _cut(self, piece: bytes, at: int) -> int | None:
        """An exact cut there or a little further on; the end of the piece is one."""
        if at >= len(piece):
            return len(piece)
        return self._engines.tokenizer.cuts.first(piece, at, min(at + _SEARCH_BYTES, len(piece)))

    def _compare(self, span: bytes, written: Ids, *, whole: bool = True) -> int:
        """written: the ids of the span, or, unless whole, they and those behind it."""
        expected = reference_ids(self._engines.reference, span)
        got = written if whole else written[: len(expected)]
        if not np.array_equal(got, expected):
            raise MismatchError(_difference(self._engines, span, got, expected))
        return len(span)


def _some(pieces: Sequence[bytes], first: int) -> Iterator[int]:
    """A long piece, or short ones that are as much text together."""
    size = 0
    while first < len(pieces) and size < _SPAN_BYTES and (not size or len(pieces[first]) <= 2 * _SPAN_BYTES):
        yield first
        size += len(pieces[first])
        first += 1


def _difference(engines: Engines, span: bytes, got: Ids, expected: Ids) -> str:
    same = min(len(got), len(expected))
    unequal = np.flatnonzero(got[:same] != expected[:same])
    first = int(unequal[0]) if len(unequal) else same
    text = span[:80].decode("utf-8", "replace")
    return (
        f"{engines.name} and {engines.reference.version} give different tokens for the text that begins {text!r}: "
        f"token {first} is {got[first : first + 3].tolist()} and should be {expected[first : first + 3].tolist()}. "
        "Nothing wrong was kept. Run again with --engine reference, and please report this text."
    )
