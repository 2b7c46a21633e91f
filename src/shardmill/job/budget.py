"""A memory budget → how many workers it allows.

The budget covers the resident memory of the whole process (I5). Nothing grows without bound, and everything that can
grow has a reserve.
"""

import dataclasses
import itertools
from dataclasses import dataclass

from shardmill.documents.rules import with_rest
from shardmill.errors import UsageError
from shardmill.system.machine import MIB

# For each byte of the block that a worker encodes: what was read, the text in it, its normal form, ids and tokens of 4
# bytes each, at worst one for each byte. And 3 for what waits for its turn to be written.
_PER_BLOCK_BYTE = 14 + 3
_AHEAD_FACTOR = 3
# Two workers that take turns decompressing one file need this much, however small the Blocks.
_LEAST_AHEAD, _MOST_AHEAD = 12 * MIB, 256 * MIB
# For each byte of a run without a cut, besides; the native engine takes 17 of them.
_PER_RUN_BYTE = 30
# For each byte of a block that the reference encodes; measured on 1 MiB without a cut: 29.
_PER_BYTE_OF_REFERENCE = 30 + _AHEAD_FACTOR
# With --on-error replace, each byte that is not UTF-8 may become the three bytes of U+FFFD.
_REPLACED_FACTOR = 3
# The reference on one span of max_run bytes without a cut; measured: 68 and 211 times its size.
REFERENCE_FACTOR = {"tiktoken": 72, "huggingface": 215}
# A page of Parquet is in memory compressed, decompressed and as an array; a batch twice; look-ahead in a compressed
# stream once.
COPIES_HELD = 3
# For the Python objects of one-letter documents: measured, 22 to 30 MiB more than the other reserves leave for them.
_LEAST_FREE = 40 * MIB
# What each worker has free for that by default.
_USUAL_FREE = 80 * MIB
# One worker may take this share of the machine's memory by default, if it needs more than half.
_MOST_SHARE = 0.8
_SLACK = 12 * MIB  # the allocator, thread stacks, the progress bar

# Of tokens that wait for their turn to be written, beyond those in memory.
MOST_ON_DISK = 4 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How a job keeps within max_memory."""

    max_memory: int
    workers: int
    """How many cores have something to do."""
    takers: int
    """How many threads take Blocks: one more than may encode at once, if a core is free to read and write meanwhile."""
    encoders: int
    """How many of them may encode at once."""
    block_bytes: int
    """How much text is taken at a time."""
    readers: int
    """How many stretches of the input may be read at once."""
    ahead: int
    """How many bytes of tokens may wait in memory for their turn to be written."""
    on_disk: int = MOST_ON_DISK
    """How many more may wait on the disk of the output."""
    is_all: bool = True
    """With more memory it would be no other."""
    note: str | None = None
    """Why there are fewer workers than asked for, and what to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What was measured on this machine before the work starts, and what the Spec implies."""

    base: int
    """Resident bytes with the libraries, the tokenizer and the engine."""
    loading: int = 0
    """The most that is still to come: the reference, if it is not loaded yet."""
    reference: int
    """Reserve for the reference on one span without a cut."""
    reading: int = 0
    """Reserve for what one thread reads: pages, batches and records, and the window of the decompressor."""
    files: int = 0
    """The list of the inputs."""
    by_reference: bool = False
    """The reference encodes everything."""
    replaces: bool = False
    """What is not UTF-8 is replaced."""
    running: bool = False
    """The input is running text."""
    cores: int = 0
    """How many the machine has; where one is idle, it reads and writes running text for the workers."""
    max_run: int
    """A block without a cut grows to this length, where it is cut by force."""


def default(workers: int, block_bytes: int, footprint: Footprint, machine_memory: int) -> int:
    """What all workers need, at most half of the machine's memory; or what one needs, if that is more than half."""
    wanted = _needed(workers, block_bytes, footprint) + workers * _USUAL_FREE + (workers - 1) * footprint.reading
    if wanted <= machine_memory // 2:
        return wanted
    return max(machine_memory // 2, min(_least(1, footprint), int(machine_memory * _MOST_SHARE)))


def fit(max_memory: int, workers: int, block_bytes: int, footprint: Footprint) -> Budget:
    """As many of the workers as fit, with blocks of this size if those fit too, otherwise smaller ones."""
    smallest = min(block_bytes, footprint.max_run)
    sizes = block_bytes, max(block_bytes // 4, smallest), smallest
    for count in range(workers, 0, -1):
        for block, given in itertools.product(sizes, (footprint, _busy(footprint))):
            if max_memory >= _needed(count, block, given) + count * _LEAST_FREE:
                takers, encoders = _takers(count, given), count
                return Budget(
                    max_memory=max_memory,
                    workers=count,
                    takers=takers,
                    encoders=encoders,
                    block_bytes=block,
                    readers=_readers(count, block, max_memory, given),
                    ahead=min(_MOST_AHEAD, _ahead(takers, max(block, footprint.max_run))),
                    is_all=(count, block, given) == (workers, block_bytes, footprint),
                    note=_fewer(count, workers, max_memory, footprint) if count < workers else None,
                )
    listed = f" and a list of inputs of {footprint.files // MIB}MiB" if footprint.files > _SLACK else ""
    raise UsageError(
        f"--max-memory {max_memory // MIB}MiB is too little for this tokenizer{listed} on this machine; the smallest that works is {_mib(_least(1, footprint))}, with one worker"
    )


def _readers(workers: int, block_bytes: int, max_memory: int, footprint: Footprint) -> int:
    """As many as there is room for: each holds what the budget reserves for one."""
    takers = _takers(workers, footprint)
    if not footprint.reading:
        return takers
    free = max_memory - _needed(workers, block_bytes, footprint) - workers * _LEAST_FREE
    return min(takers, 1 + free // footprint.reading)


def _takers(workers: int, footprint: Footprint) -> int:
    """How many threads take Blocks: one more than may encode, where a core is idle; the reference has no use for it."""
    return workers + (footprint.running and not footprint.by_reference and footprint.cores > workers)


def _fewer(count: int, workers: int, max_memory: int, footprint: Footprint) -> str:
    return f"only {count} of {workers} workers fit in {max_memory // MIB}MiB of memory with this tokenizer and input; for all of them pass --max-memory {_mib(_least(workers, footprint))}"


def _busy(footprint: Footprint) -> Footprint:
    """The same without an idle core."""
    return dataclasses.replace(footprint, cores=0)


def _least(workers: int, footprint: Footprint) -> int:
    return (
        _needed(workers, 0, _busy(footprint)) + workers * _LEAST_FREE + 4 * MIB
    )  # the next run may measure a little more


def _mib(size: int) -> str:
    return f"{-(-size // MIB)}MiB"


def _needed(workers: int, block_bytes: int, footprint: Footprint) -> int:
    run = footprint.max_run
    block = max(with_rest(block_bytes, run), run)
    takers = _takers(workers, footprint)
    own = _PER_BLOCK_BYTE * block + _PER_RUN_BYTE * run
    for_each = _PER_BYTE_OF_REFERENCE * block if footprint.by_reference else own
    for_each *= _REPLACED_FACTOR if footprint.replaces else 1
    fixed = footprint.base + footprint.loading + footprint.files + footprint.reference + footprint.reading
    more_ahead = _ahead(takers, block) - takers * _AHEAD_FACTOR * block
    return fixed + _SLACK + takers * for_each + more_ahead


def _ahead(takers: int, block_bytes: int) -> int:
    return max(takers * _AHEAD_FACTOR * block_bytes, _LEAST_AHEAD if takers > 1 else 0)
