"""A memory budget → how many workers it allows, and when an encoder must forget its words.

The budget is for the resident memory of the whole process (I5). It is kept by accounting: everything that
can grow has a reserve, and the one thing that grows without bound, gigatoken's cache of words, is
dropped in time: not when the budget is used up, but when the next growth of the cache might use it up.
"""

from dataclasses import dataclass

from shardmill.errors import UsageError
from shardmill.system import machine
from shardmill.system.machine import MIB

# For each byte of a block: the text and a copy of it, the fast engine's ids twice (4 bytes a token, at worst
# a token a byte), and the written ids. Measured on 1 MiB without a place to cut: 29. Our own engine takes less:
# two bytes for an id, and 17 for each byte of a word without end.
_BYTES_PER_BLOCK_BYTE = 30
# A block that waits is text, or ids as they will be written.
_BYTES_PER_WAITING_BYTE = 6
# Each byte that is not UTF-8 may become the three bytes of U+FFFD.
_REPLACED_FACTOR = 3
# The reference on one span of max_run bytes without any place to cut; measured: 68 and 211 times its size.
_REFERENCE_FACTOR = {"tiktoken": 72, "huggingface": 215}
# The cache is a table that doubles: within one block it may grow by 1.4 times its size (measured with
# gigatoken 0.10.0: at 49 MiB by 65, at 93 by 129, at 184 by 256), so it may take 0.4 of what is free.
_CACHE_SHARE = 0.4
# Less than this for each cache, and it would be dropped every few blocks. Without a cache it is for the Python objects
# of documents of one letter: measured, 22 to 30 MiB more than the other reserves leave to them.
_LEAST_FREE = 40 * MIB
# A page of Parquet is there compressed, decompressed and as an array; the look-ahead in a compressed stream is
# there once, and a batch twice.
_COPIES_HELD = 3
_SLACK = 12 * MIB  # the allocator, thread stacks, the progress bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How a job keeps within max_memory."""

    max_memory: int
    workers: int
    block_bytes: int
    """How much text a worker takes at a time."""
    in_flight: int
    """Blocks that may be read but not yet written."""
    high_water: int
    """Above this many resident bytes a worker gives memory back before it takes another block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What was measured on this machine before the work begins, and what the Spec implies."""

    base: int
    """Resident bytes with the libraries, the reference and no fast engine."""
    engine: int
    """Resident bytes of one fast engine that has seen no text; 0 for the reference, and for ours, which is in base."""
    reference: int
    """The reserve for the reference on one span without a place to cut."""
    reading: int = 0
    """The reserve for what reading records and compressed files holds at once."""
    files: int = 0
    """The list of the inputs, which is there from the beginning to the end."""
    block_byte: int
    """The reserve for each byte of the blocks of one worker: one in work, and one that waits."""
    max_run: int
    """A block can be as long as a run: where there is no place to cut, it grows until it is forced."""


def reference_reserve(kind: str, max_run_bytes: int) -> int:
    return _REFERENCE_FACTOR[kind] * max_run_bytes


def reading_reserve(window: int, held: int) -> int:
    """For what reading holds at once; one thread reads at a time."""
    return window + _COPIES_HELD * held


def block_byte_reserve(*, replaces: bool) -> int:
    return (_BYTES_PER_BLOCK_BYTE + _BYTES_PER_WAITING_BYTE) * (_REPLACED_FACTOR if replaces else 1)


def fit(max_memory: int, workers: int, block_bytes: int, footprint: Footprint) -> Budget:
    """As many of the workers as fit, and blocks of this size if they fit too: else no longer than a run."""
    for count in range(workers, 0, -1):
        for block in (block_bytes, min(block_bytes, footprint.max_run)):
            free = max_memory - _needed(count, block, footprint)
            if free >= count * _LEAST_FREE:
                fixed = footprint.base + footprint.files + count * footprint.engine
                return Budget(
                    max_memory=max_memory,
                    workers=count,
                    block_bytes=block,
                    in_flight=2 * count,
                    high_water=fixed + int(free * _CACHE_SHARE),
                )
    least = _needed(1, 0, footprint) + _LEAST_FREE + 4 * MIB  # measured anew the next time, a little more or less
    listed = f" and a list of inputs that takes {footprint.files // MIB}MiB" if footprint.files > _SLACK else ""
    raise UsageError(
        f"--max-memory {max_memory // MIB}MiB is too little for this tokenizer{listed} on this machine; the smallest that works is {-(-least // MIB)}MiB, with one worker"
    )


def _needed(workers: int, block_bytes: int, footprint: Footprint) -> int:
    for_each = footprint.engine + footprint.block_byte * max(block_bytes, footprint.max_run)
    return footprint.base + footprint.files + footprint.reference + footprint.reading + _SLACK + workers * for_each


def over(budget: Budget) -> bool:
    """Whether memory must be given back now, even after the allocator returned what it did not use."""
    if machine.rss() <= budget.high_water:
        return False
    machine.give_back_freed_memory()
    return machine.rss() > budget.high_water
