"""A budget → workers, block size and the mark at which memory is given back; numbers in, numbers out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill import budget
from shardmill.budget import Budget, Footprint, fit
from shardmill.errors import UsageError
from shardmill.machine import MIB

GPT2 = Footprint(base=90 * MIB, engine=40 * MIB, reference=48 * MIB)
BLOCK = 1 * MIB
PLENTY = 64 << 30

footprints = st.builds(
    Footprint,
    base=st.integers(10 * MIB, 400 * MIB),
    engine=st.integers(0, 200 * MIB),
    reference=st.integers(0, 300 * MIB),
)
jobs = st.tuples(st.integers(1, 32), st.integers(1, 8 * MIB), footprints)


def smallest(workers, block_bytes, footprint):
    """The bytes that the refusal of a hopeless budget names."""
    with pytest.raises(UsageError) as refusal:
        fit(1, workers, block_bytes, footprint)
    return int(re.search(r"the smallest that works is (\d+)MiB", str(refusal.value)).group(1)) * MIB


def test_plenty_of_memory_gives_what_was_asked_for():
    found = fit(PLENTY, 8, BLOCK, GPT2)
    assert (found.workers, found.block_bytes, found.max_memory) == (8, BLOCK, PLENTY)


def test_smaller_blocks_are_tried_before_fewer_workers():
    enough = next(size for size in range(MIB, PLENTY, MIB) if _workers(size, 2) == 2)
    assert fit(enough, 2, BLOCK, GPT2).block_bytes < BLOCK
    assert fit(enough - MIB, 2, BLOCK, GPT2).workers == 1


def _workers(max_memory, asked):
    try:
        return fit(max_memory, asked, BLOCK, GPT2).workers
    except UsageError:
        return 0


def test_a_refusal_says_what_was_asked_what_would_do_and_exits_with_2():
    with pytest.raises(
        UsageError, match=r"--max-memory 100MiB is too little .* the smallest that works is \d+MiB, with one worker"
    ) as refusal:
        fit(100 * MIB, 4, BLOCK, GPT2)
    assert refusal.value.exit_code == 2


@given(jobs)
def test_the_smallest_budget_named_works(job):
    assert fit(smallest(*job), *job).workers >= 1


@given(jobs)
def test_the_smallest_budget_named_is_hardly_more_than_needed(job):
    # A few MiB above, since the same measurement gives a little more or less the next time.
    with pytest.raises(UsageError):
        fit(smallest(*job) - 6 * MIB, *job)


@given(jobs)
def test_the_smallest_budget_does_not_depend_on_the_workers_asked_for(job):
    workers, block_bytes, footprint = job
    assert smallest(workers, block_bytes, footprint) == smallest(1, block_bytes, footprint)


@given(jobs, st.integers(0, 4 << 30))
def test_never_more_workers_or_larger_blocks_than_asked_for(job, more):
    workers, block_bytes, _ = job
    found = fit(smallest(*job) + more, *job)
    assert 1 <= found.workers <= workers
    assert 1 <= found.block_bytes <= block_bytes
    assert found.in_flight >= found.workers


@given(jobs, st.integers(0, 4 << 30), st.integers(0, 1 << 30))
def test_more_memory_never_gives_less_work_at_a_time(job, memory, more):
    less, greater = (fit(smallest(*job) + size, *job) for size in (memory, memory + more))
    assert (less.workers, less.block_bytes) <= (greater.workers, greater.block_bytes)


@given(jobs, st.integers(0, 4 << 30))
def test_a_fresh_encoder_for_each_worker_is_below_the_mark(job, more):
    # Or encoders would be renewed before every block, for ever.
    _, _, footprint = job
    found = fit(smallest(*job) + more, *job)
    assert footprint.base + found.workers * footprint.engine < found.high_water < found.max_memory


@given(jobs, st.integers(0, 4 << 30))
def test_above_the_mark_there_is_room_for_the_reference_and_all_blocks_in_flight(job, more):
    _, _, footprint = job
    found = fit(smallest(*job) + more, *job)
    assert found.max_memory - found.high_water >= footprint.reference + found.in_flight * found.block_bytes


@given(st.integers(1, 64 * MIB))
def test_the_reserve_for_the_reference_grows_with_the_longest_run(max_run_bytes):
    for kind in ("tiktoken", "huggingface"):
        assert budget.reference_reserve(kind, max_run_bytes) >= 48 * max_run_bytes


class FakeMemory:
    """Resident bytes before and after the allocator gives back what it does not use."""

    def __init__(self, monkeypatch, before, after):
        self.resident, self.trimmed = before, 0
        monkeypatch.setattr(budget.machine, "rss", lambda: self.resident)
        monkeypatch.setattr(budget.machine, "give_back_freed_memory", lambda: self._trim(after))

    def _trim(self, after):
        self.resident, self.trimmed = after, self.trimmed + 1


@pytest.mark.parametrize(
    ("before", "after", "over", "trimmed"),
    [(99, 99, False, 0), (100, 100, False, 0), (150, 90, False, 1), (150, 101, True, 1)],
    ids=["below", "at the mark", "above only by what is unused", "above by what is used"],
)
def test_memory_must_be_given_back_only_above_the_mark(monkeypatch, before, after, over, trimmed):
    memory = FakeMemory(monkeypatch, before, after)
    marked = Budget(max_memory=200, workers=1, block_bytes=1, in_flight=2, high_water=100)
    assert budget.over(marked) is over
    assert memory.trimmed == trimmed
