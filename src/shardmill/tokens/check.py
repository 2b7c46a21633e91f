"""Encoded pieces → proof, for a sample of them, that the reference gives the same ids."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import xxhash

from shardmill.errors import MismatchError
from shardmill.tokens.encoder import Engines, reference_ids
from shardmill.tokens.model import Ids, TokenCounts
from shardmill.tokens.strings import Flags, Strings

# The share of CPU time that comparing may take. How much text that is depends on the reference.
SHARE = 0.015
# A small job may spend so much more, so that each has a few samples.
AT_LEAST_SECONDS = 0.01
_SPAN_BYTES = 2 << 10
_SEARCH_BYTES = 16 << 10


class Checker:
    """Compares all of the first Block, then spans picked by a seeded hash, for a share of the CPU time of all workers."""

    def __init__(self, engines: Engines, share: float, seed: int = 0) -> None:
        self._engines, self._share, self._seed = engines, share, seed & (1 << 64) - 1
        self._worked = self._spent = 0.0  # by all threads; a lost update now and then does not matter

    def wants(self, block: int, worked: float) -> bool:
        """Whether some of a Block should be compared, after so many CPU seconds of encoding."""
        self._worked += worked
        enough = block and self._spent > self._share * self._worked + AT_LEAST_SECONDS
        return self._engines.ours is not None and not enough

    def check(
        self,
        block: int,
        pieces: Strings | Sequence[bytes],
        begins: Flags | Sequence[bool],
        encoded: tuple[Ids, TokenCounts],
        place: Callable[[int], str],
        worked: float,
    ) -> int:
        """Returns how many bytes were compared. place(i) is the location of piece i; worked: CPU seconds of encoding."""
        ids, counts = encoded
        if not len(ids) or not self.wants(block, worked):
            return 0
        pieces = Strings.of(pieces)
        ends, began = np.cumsum(counts), time.thread_time()
        numbers: Iterable[int] = range(len(pieces))
        chosen = None
        if block:
            chosen = xxhash.xxh3_64_intdigest(block.to_bytes(8, "little"), seed=self._seed)
            numbers = _some(pieces, int(np.searchsorted(ends, chosen % len(ids), side="right")))
        checked = 0
        for number in numbers:
            piece, end = pieces[number], int(ends[number])
            written = ids[end - int(counts[number]) : end]
            try:
                if chosen is None or len(piece) <= 2 * _SPAN_BYTES:
                    expected = reference_ids(self._engines.reference, piece, begins=bool(begins[number]))
                    checked += self._compare(piece, written, expected)
                else:
                    checked += self._check_span(piece, written, chosen % len(piece), begins=bool(begins[number]))
            except MismatchError as e:
                raise MismatchError(f"{place(number)}: {e}") from None
        if block:
            self._spent += time.thread_time() - began
        return checked

    def _check_span(self, piece: bytes, written: Ids, at: int, *, begins: bool) -> int:
        """A span from exact cut to exact cut after byte `at`; nothing if there is no cut nearby.

        Its ids are found by encoding again what is before or behind it: a token ends at every exact cut.
        """
        start, end = self._cut(piece, at), None
        if start is not None:
            end = self._cut(piece, start + _SPAN_BYTES)
        if start is None or end is None:
            return 0
        expected = reference_ids(self._engines.reference, piece[start:end], begins=begins and not start)
        if end > len(piece) // 2:
            until = len(written) - self._count(piece[end:], begins=False)
            got = written[max(0, until - len(expected)) : max(0, until)]
        else:
            since = self._count(piece[:start], begins=begins)
            got = written[since : since + len(expected)]
        return self._compare(piece[start:end], got, expected)

    def _count(self, text: bytes, *, begins: bool) -> int:
        assert self._engines.ours is not None
        return len(self._engines.ours.encode(Strings.of([text]), np.array([begins]))[0])

    def _cut(self, piece: bytes, at: int) -> int | None:
        """An exact cut at or shortly after `at`; the end of the piece is one."""
        if at >= len(piece):
            return len(piece)
        return self._engines.tokenizer.cuts.first(piece, at, min(at + _SEARCH_BYTES, len(piece)))

    def _compare(self, span: bytes, got: Ids, expected: Ids) -> int:
        if not np.array_equal(got, expected):
            raise MismatchError(_difference(self._engines, span, got, expected))
        return len(span)


def _some(pieces: Strings, first: int) -> Iterator[int]:
    """One long piece, or short ones that together have as much text."""
    done = 0
    for number, size in enumerate(pieces.sizes[first : first + _SPAN_BYTES].tolist(), first):
        if done >= _SPAN_BYTES or (done and size > 2 * _SPAN_BYTES):
            return
        yield number
        done += size


def _difference(engines: Engines, span: bytes, got: Ids, expected: Ids) -> str:
    same = min(len(got), len(expected))
    unequal = np.flatnonzero(got[:same] != expected[:same])
    first = int(unequal[0]) if len(unequal) else same
    text = span[:80].decode("utf-8", "replace")
    return (
        f"{engines.name} and {engines.reference.version} give different tokens for the text that begins {text!r}: "
        f"token {first} is {got[first : first + 3].tolist()} and should be {expected[first : first + 3].tolist()}. "
        "No wrong output was kept. Run again with --engine reference, and please report this text."
    )
