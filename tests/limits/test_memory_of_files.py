"""I5 for the list of inputs: it is inside the budget too, few files are open at a time, and the answer comes in seconds."""

import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from peaks import MIB, SHARDMILL, mill, mill_within, smallest

pytestmark = pytest.mark.slow

MILLION = 1_000_000


def write_files(folder, count):
    for number in range(count):
        if number % 1000 == 0:
            (folder / f"{number // 1000:04}").mkdir(parents=True)
        with open(folder / f"{number // 1000:04}/document-{number:07}.txt", "w") as f:
            f.write(f"{number} is the number of this file, and there is nothing else in it to read.\n")
    return folder


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("some"), 20_000)


def test_many_files_stay_within_the_smallest_budget(some, tmp_path):
    budget = smallest(some, tmp_path / "out")
    tight = mill_within(some, tmp_path / "out", budget)
    assert tight.files == mill_within(some, tmp_path / "out", 2000, "--workers", "3").files
    assert "manifest.inputs.jsonl" in tight.files


def test_many_files_are_not_open_at_the_same_time(some, tmp_path):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))

    command = [SHARDMILL, "prepare", str(some), "-o", str(tmp_path / "out"), "-q", "--workers", "2"]
    assert subprocess.run(command, preexec_fn=few).returncode == 0


def in_memory():
    """A folder in memory, where there is room: on a disk it takes minutes to make a million files and to remove them."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 8 << 30 else None
    return tempfile.TemporaryDirectory(dir=place)


def test_sixteen_workers_on_a_hundred_thousand_files_stay_within_a_gibibyte_and_two_minutes(tmp_path):
    with in_memory() as folder:
        files = write_files(Path(folder), 100_000)
        one = mill_within(files, tmp_path / "out", 1024, "--workers", "1")
        started = time.monotonic()
        many = mill_within(files, tmp_path / "out", 1024, "--workers", "16")
        assert time.monotonic() - started < 120 and many.files == one.files


@pytest.fixture(scope="module")
def million():
    with in_memory() as folder:
        yield write_files(Path(folder), MILLION)


@pytest.mark.parametrize("max_memory", [300, 512])
def test_a_million_files_stay_within_the_budget(million, tmp_path, max_memory):
    mill_within(million, tmp_path / "out", max_memory)


def test_what_a_million_files_take_is_known_in_seconds(million, tmp_path):
    started = time.monotonic()
    told = subprocess.run([SHARDMILL, "estimate", str(million), "-o", str(tmp_path)], capture_output=True, text=True)
    assert told.returncode == 0 and "1,000,000 files" in told.stdout and time.monotonic() - started < 60


def test_a_million_files_are_too_many_for_a_budget_that_was_enough_for_a_few(million, some, tmp_path):
    few, many = (smallest(folder, tmp_path / "out") for folder in (some, million))
    assert 35 <= many - few <= 60
    refused = mill(million, tmp_path / "out", few)
    assert refused.code == 2 and "a list of inputs of" in refused.message and refused.peak < (few + 60) * MIB
