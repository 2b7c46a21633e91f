"""The number of a row → its place in a seeded permutation, by formula: nothing is built, nothing is kept in memory."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_HALF = np.uint64(32)
_ROUND_KEYS = [np.uint64((2 * number + 1) * int(_SECOND) & (1 << 64) - 1) for number in range(5)]


def scrambled(values: npt.NDArray[Any], key: Hashes | np.uint64) -> Hashes:
    """64 bits that look random, of each value under a key (the finalizer of SplitMix64)."""
    mixed: Hashes = (values.astype(np.uint64) + key) * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def key_of(*parts: int) -> np.uint64:
    """One key for some numbers, such as a seed and the number of a corpus."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = scrambled(np.array([part & (1 << 64) - 1], np.uint64), scrambled(key, _SECOND))
    return np.uint64(key[0])


def permuted(numbers: Numbers, size: int, keys: Hashes | np.uint64) -> Numbers:
    """Where a permutation of 0 … size - 1 takes each number; each may have a key, and so a permutation, of its own.

    A Feistel network over pairs (left, right) with left < a, right < b, where a · b is hardly more than size: a pair
    beyond size is sent through again until it is not, which keeps it a permutation.
    """
    a = math.isqrt(max(0, size - 1)) + 1
    b = -(-size // a)
    keys = np.broadcast_to(keys, numbers.shape)
    found = _network(numbers.astype(np.uint64), np.uint64(a), np.uint64(b), keys)
    while (beyond := found >= size).any():
        found[beyond] = _network(found[beyond], np.uint64(a), np.uint64(b), keys[beyond])
    return found.astype(np.int64)


def runs(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Of items in runs of these lengths: the run of each, and its number in that run."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - (np.cumsum(counts) - counts)[of]


def _network(numbers: Hashes, a: np.uint64, b: np.uint64, keys: Hashes) -> Hashes:
    left, right = np.divmod(numbers, b)
    for number, round_key in enumerate(_ROUND_KEYS):
        if number % 2:
            right = (right + _round(left, keys + round_key)) % b
        else:
            left = (left + _round(right, keys + round_key)) % a
    return left * b + right


def _round(values: Hashes, keys: Hashes) -> Hashes:
    mixed = (values + keys) * _GOLDEN
    mixed = (mixed ^ (mixed >> _HALF)) * _FIRST
    return mixed >> _HALF
