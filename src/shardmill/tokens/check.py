"""Encoded pieces → the certainty, for a sample of them, that the reference gives the same ids."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shardmill.errors import MismatchError
from shardmill.tokens.encoder import Engines, reference_ids
from shardmill.tokens.reference import Counts, Ids

# All of the first block, then 0.1 % of the rest: at 1/20 of the fast engine's speed that is 2 % of the time.
SHARE = 0.001
# One block in four gives the sample for all four: fewer, longer spans cost less.
_EVERY = 4
_LEAST_BYTES = 512
_SEARCH_BYTES = 16 << 10


def sample_bytes(block: int, size: int, share: float = SHARE) -> int:
    if block == 0:
        return size
    return max(_LEAST_BYTES, int(size * share * _EVERY)) if block % _EVERY == 0 else 0


def check_sample(
    engines: Engines,
    block: int,
    share: float,
    pieces: Sequence[bytes],
    ids: Ids,
    counts: Counts,
    place: Callable[[int], str],
) -> int:
    """Compare a few spans of one block, turn about at the beginning and the end of its pieces; place(i) says where piece i is.

    Returns how many bytes were compared.
    """
    if engines.guard is None or not pieces:
        return 0
    wanted = sample_bytes(block, sum(map(len, pieces)), share)
    if not wanted:
        return 0
    ends = np.cumsum(counts)
    checked = 0
    for number in _order(block, len(pieces)):
        piece, end = pieces[number], int(ends[number])
        written = ids[end - int(counts[number]) : end]
        try:
            checked += _check_piece(engines, piece, written, wanted - checked, from_end=bool(block // _EVERY % 2))
        except MismatchError as e:
            raise MismatchError(f"{place(number)}: {e}") from None
        if checked >= wanted:
            break
    return checked


def _order(block: int, count: int) -> Iterator[int]:
    first = 0 if block == 0 else block * 7919 % count
    yield from range(first, count)
    yield from range(first)


def _check_piece(engines: Engines, piece: bytes, written: Ids, wanted: int, *, from_end: bool) -> int:
    if len(piece) <= wanted + _SEARCH_BYTES:
        start, end = 0, len(piece)
    else:
        start, end = _span(engines, piece, wanted, from_end=from_end)
    if start == end:
        return 0
    expected = reference_ids(engines.reference, piece[start:end])
    if end < len(piece):
        got = written[: len(expected)]
    else:
        got = written if start == 0 else written[max(0, len(written) - len(expected)) :]
    if not np.array_equal(got, expected):
        raise MismatchError(_difference(engines, piece[start:end], got, expected))
    return end - start


def _span(engines: Engines, piece: bytes, wanted: int, *, from_end: bool) -> tuple[int, int]:
    """The first or last `wanted` bytes of a long piece, up to an exact cut; nothing where none is near."""
    if from_end:
        high = len(piece) - wanted
        start = engines.tokenizer.cuts.last(piece, max(0, high - _SEARCH_BYTES), high)
        return (len(piece) if start is None else start), len(piece)
    return 0, engines.tokenizer.cuts.first(piece, wanted, wanted + _SEARCH_BYTES) or 0


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
