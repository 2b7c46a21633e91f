"""Where the crash tests work: in memory if there is room, since a kill needs no real disk and an fsync there waits."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from jobs import JOBS, command, drive, result, write_inputs

_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def fast_folder(tmp_path_factory):
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 1 << 30:
        with tempfile.TemporaryDirectory(prefix="shardmill-crash-", dir=_MEMORY) as folder:
            yield Path(folder)
    else:
        yield tmp_path_factory.mktemp("crash")


@pytest.fixture(scope="session")
def inputs(fast_folder):
    return write_inputs(fast_folder)


@pytest.fixture(scope="session")
def whole(inputs):
    """What each job gives when nobody disturbs it, and the steps it takes."""
    runs = drive(inputs, [{"args": command(job, output=job)} for job in JOBS])
    assert [run["code"] for run in runs] == [0] * len(JOBS), [run["stderr"] for run in runs]
    return {job: (result(inputs, job), run["steps"]) for job, run in zip(JOBS, runs, strict=True)}
