"""A budget → workers; numbers in, numbers out."""

import dataclasses
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import UsageError
from shardmill.job import budget
from shardmill.job.budget import Footprint, fit
from shardmill.system.machine import MIB

GPT2 = Footprint(base=133 * MIB, loading=20 * MIB, reference=36 * MIB, max_run=512 << 10)
BLOCK = 1 * MIB
PLENTY = 64 << 30

footprints = st.builds(
    Footprint,
    base=st.integers(10 * MIB, 400 * MIB),
    loading=st.integers(0, 200 * MIB),
    reference=st.integers(0, 300 * MIB),
    by_reference=st.booleans(),
    replaces=st.booleans(),
    running=st.booleans(),
    cores=st.integers(1, 32),
    max_run=st.integers(1, 2 * MIB),
)


def smallest(footprint):
    """The bytes that the refusal of a hopeless budget names."""
    with pytest.raises(UsageError) as refusal:
        fit(1, 4, BLOCK, footprint)
    return int(re.search(r"the smallest that works is (\d+)MiB", str(refusal.value)).group(1)) * MIB


def test_plenty_of_memory_gives_what_was_asked_for():
    found = fit(PLENTY, 4, BLOCK, GPT2)
    assert (found.workers, found.max_memory, found.readers, found.block_bytes) == (4, PLENTY, 4, BLOCK)
    assert found.takers == found.encoders == 4


def test_an_idle_core_reads_and_writes_if_there_is_memory_for_it():
    running = dataclasses.replace(GPT2, running=True, cores=4)
    found = fit(PLENTY, 3, BLOCK, running)
    assert (found.workers, found.takers, found.encoders, found.readers) == (3, 4, 3, 4)
    assert fit(PLENTY, 4, BLOCK, running).takers == fit(PLENTY, 4, BLOCK, running).encoders == 4
    assert smallest(running) == smallest(GPT2)
    assert fit(smallest(running), 1, BLOCK, running).takers == 1
    assert found.is_all and not fit(smallest(running), 1, BLOCK, running).is_all


def test_blocks_are_smaller_before_workers_are_fewer():
    least = next(size for size in range(300, 500) if fit(size * MIB, 2, BLOCK, GPT2).workers == 2)
    assert fit(least * MIB, 2, BLOCK, GPT2).block_bytes == GPT2.max_run
    assert fit((least + 40) * MIB, 2, BLOCK, GPT2).block_bytes == BLOCK
    assert fit(least * MIB, 2, 1000, GPT2).block_bytes == 1000  # smaller than a run, as it was asked for


@given(footprints)
def test_the_smallest_budget_that_the_refusal_names_works_with_one_worker(footprint):
    assert fit(smallest(footprint), 8, BLOCK, footprint).workers >= 1
    with pytest.raises(UsageError):
        fit(smallest(footprint) - 6 * MIB, 8, BLOCK, footprint)


@given(st.integers(100 * MIB, 4 << 30), st.integers(1, 32), footprints)
def test_what_is_promised_fits_into_the_budget(max_memory, workers, footprint):
    try:
        found = fit(max_memory, workers, BLOCK, footprint)
    except UsageError:
        return
    assert 1 <= found.workers <= workers
    # The reference, loaded and on its longest span, and every worker with its text, ids and tokens, of 4 bytes each.
    blocks = 10 * max(found.block_bytes, footprint.max_run) * (3 if footprint.replaces else 1)
    assert footprint.base + footprint.loading + footprint.reference + found.takers * blocks <= max_memory


@given(st.integers(1, 32), footprints)
def test_less_memory_means_fewer_workers_never_more(workers, footprint):
    sizes = [smallest(footprint) + step * 50 * MIB for step in range(10)]
    counts = [fit(size, workers, BLOCK, footprint).workers for size in sizes]
    assert counts == sorted(counts)


def test_replacing_bad_bytes_reserves_for_what_they_become():
    assert len("\ufffd".encode()) == budget._REPLACED_FACTOR


def test_text_is_milled_without_what_only_parquet_needs(tmp_path):
    """It takes 26 MiB and a twentieth of a second."""
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    program = "import sys, shardmill; shardmill.prepare(shardmill.Spec(inputs=['a.txt'], output='out')); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
