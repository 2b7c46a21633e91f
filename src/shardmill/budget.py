"""A memory budget → how many workers and how large blocks it allows, and when an encoder must forget its words.

The budget is for the resident memory of the whole process (I5). It is kept by accounting: everything that
can grow has a reserve, and the one thing that grows without bound, the fast engine's cache of words, is
dropped when what is left of the budget is smaller than the reserves of the workers.
"""

from dataclasses import dataclass

from shardmill import machine
from shardmill.errors import UsageError
from shardmill.machine import MIB

# For each byte of a block: the text and a copy of it, the fast engine's ids twice (4 bytes a token, at worst
# a token a byte), the written ids, and what its cache can grow by in one block of words never seen (9 bytes
# a byte, measured with gigatoken 0.10.0).
_BYTES_PER_BLOCK_BYTE = 24
# A block that waits is text, or ids as they will be written.
_BYTES_PER_WAITING_BYTE = 6
# The reference on one span of max_run bytes without any place to cut: 48 times its size in tiktoken, 100 in tokenizers.
_REFERENCE_FACTOR = {"tiktoken": 48, "huggingface": 100}
# What an encoder's cache may take before it is dropped; less, and it would be dropped at every block.
_LEAST_CACHE = 16 * MIB
_SMALLEST_BLOCK = 256 << 10
_SLACK = 8 * MIB  # the allocator, thread stacks, the progress bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How a job keeps within max_memory."""

    max_memory: int
    workers: int
    block_bytes: int
    in_flight: int
    """Blocks that may be read but not yet written."""
    high_water: int
    """Above this many resident bytes a worker gives memory back before it takes another block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What was measured on this machine before the work begins."""

    base: int
    """Resident bytes with the libraries, the reference and no fast engine."""
    engine: int
    """Resident bytes of one fast engine that has seen no text; 0 for the reference."""
    reference: int
    """The reserve for the reference on one span without a place to cut."""


def reference_reserve(kind: str, max_run_bytes: int) -> int:
    return _REFERENCE_FACTOR[kind] * max_run_bytes


def fit(max_memory: int, workers: int, block_bytes: int, footprint: Footprint) -> Budget:
    """The most workers and the largest blocks that fit; smaller blocks are tried before fewer workers."""
    for count in range(workers, 0, -1):
        for size in _halved(block_bytes):
            reserve = _reserve(count, size, footprint)
            if footprint.base + reserve + count * (footprint.engine + _LEAST_CACHE) <= max_memory:
                return Budget(
                    max_memory=max_memory,
                    workers=count,
                    block_bytes=size,
                    in_flight=2 * count,
                    high_water=max_memory - reserve,
                )
    smallest = footprint.base + _reserve(1, _halved(block_bytes)[-1], footprint) + footprint.engine + _LEAST_CACHE
    least = -(-smallest // MIB) + 4  # measured anew the next time, a little more or less
    raise UsageError(
        f"--max-memory {max_memory // MIB}MiB is too little for this tokenizer on this machine; the smallest that works is {least}MiB, with one worker"
    )


def _reserve(workers: int, block_bytes: int, footprint: Footprint) -> int:
    """What may come on top of what is resident when a worker looks: a block for each worker, and one waiting for each."""
    blocks = workers * (_BYTES_PER_BLOCK_BYTE + _BYTES_PER_WAITING_BYTE) * block_bytes
    return footprint.reference + _SLACK + blocks


def _halved(block_bytes: int) -> list[int]:
    sizes = [block_bytes]
    while sizes[-1] > _SMALLEST_BLOCK:
        sizes.append(max(sizes[-1] // 2, _SMALLEST_BLOCK))
    return sizes


def over(budget: Budget) -> bool:
    """Whether memory must be given back now, even after the allocator returned what it did not use."""
    if machine.rss() <= budget.high_water:
        return False
    machine.give_back_freed_memory()
    return machine.rss() > budget.high_water
