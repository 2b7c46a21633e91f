"""A job of many workers that is killed or stopped at any moment is finished by any other number of them (I1, I4)."""

import json
import random
import shutil
import signal

import pytest
from jobs import command, drive, occurrences, result

import made_files
import samples
from commit_steps import STEPS

KILLED, STOPPED = -9, 75
SLOW = pytest.mark.slow
LIMITS = [
    {"checkpoint_seconds": 0.0, "checkpoint_bytes": 1, "block_bytes": 3001},
    {"checkpoint_seconds": 0.0, "checkpoint_bytes": 20_000, "block_bytes": 777},
    {"checkpoint_seconds": 0.01, "checkpoint_bytes": 100_000, "block_bytes": 6007},
]
ARGS = ["prepare", "kinds", "--val-fraction", "0.1", "--engine", "reference", "--index", "-q"]


@pytest.fixture(scope="module")
def kinds(inputs):
    """A folder with files of several kinds, long and short by turns; and what a job on it gives, step by step."""
    (inputs / "kinds").mkdir()
    for number in range(14):
        rng = random.Random(number)
        documents = [samples.ALL[at : at + 40 * (1 + at % 90)] for at in range(0, 2500 if number % 3 else 15_000, 150)]
        match number % 4:
            case 0:
                name, data = "jsonl", made_files.jsonl(documents, rng).data
            case 1:
                name, data = "parquet", made_files.parquet(documents, rng).data
            case 2:
                lines = made_files.jsonl(documents, rng).data
                name, data = "jsonl.zst", made_files.COMPRESSIONS[".zst"](lines, (1, 40, 300)[number % 3])
            case _:
                name, data = "txt", "\n".join(documents).encode()
        (inputs / f"kinds/{number:02}.{name}").write_bytes(data)
    (done,) = drive(inputs, [{"args": [*ARGS, "--workers", "1", "-o", "kinds-whole"]}])
    assert done["code"] == 0, done["stderr"]
    yield result(inputs, "kinds-whole"), done
    shutil.rmtree(inputs / "kinds-whole")


def workers(number, output):
    return [*ARGS, "--workers", str(number), "-o", output]


@pytest.mark.parametrize("round", [0, *(pytest.param(number, marks=SLOW) for number in range(1, 12))])
def test_kills_at_random_moments_with_seven_workers_then_two_cost_no_byte(inputs, kinds, round):
    expected, whole = kinds
    chance, latest, killed = random.Random(round), whole["seconds"], False
    while not killed:  # the whole may have been made while the machine was busy: then jobs end before they are killed
        assert latest > 0.02, "no job was killed"
        runs, ends = [], []
        for number in range(2):
            output = f"moments-{number}"
            for count in (7, 16, 7):
                after = chance.uniform(0.02, latest)
                runs.append({"args": workers(count, output), "after": after, "limits": chance.choice(LIMITS)})
            runs.append({"args": workers(2, output), "limits": chance.choice(LIMITS)})
            ends.append(output)
        done = drive(inputs, runs)
        assert all(end["code"] in (0, KILLED) for end in done), done
        for output, end in zip(ends, done[3::4], strict=True):
            assert end["code"] == 0 and result(inputs, output) == expected
            shutil.rmtree(inputs / output)
        killed, latest = any(end["code"] == KILLED for end in done), latest / 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_at_any_step_of_seven_workers_then_two_costs_no_byte(inputs, kinds, number):
    expected, whole = kinds
    chance = random.Random(number)
    steps = [step for step in STEPS if step in occurrences(whole["steps"])][number == signal.SIGTERM :: 3]
    runs = []
    for step in steps:
        when = [step, chance.choice(occurrences(whole["steps"])[step])]
        what = {"kill": when} if number == signal.SIGKILL else {"signals": [*when, [number], 0.2]}
        limits = chance.choice(LIMITS)
        runs.append({"args": workers(7, step), "limits": limits, **what})
        runs.append({"args": workers(2, step), "limits": chance.choice(LIMITS)})
    done = drive(inputs, runs)
    stopped = {KILLED, 0} if number == signal.SIGKILL else {STOPPED, 0}
    assert {end["code"] for end in done[::2]} <= stopped, [end["stderr"] for end in done]
    assert sum(end["code"] != 0 for end in done[::2]) > len(steps) // 2
    for step, end in zip(steps, done[1::2], strict=True):
        assert end["code"] == 0, end["stderr"]
        assert result(inputs, step) == expected, step
        shutil.rmtree(inputs / step)


@pytest.mark.parametrize("job", ["documents", "running", "skipped"])
def test_jobs_of_two_workers_are_those_of_sixteen(inputs, whole, job):
    runs = [{"args": command(job, "--workers", "16", output="sixteen"), "limits": limits} for limits in LIMITS]
    for run in runs:
        (done,) = drive(inputs, [run])
        assert done["code"] == 0, done["stderr"]
        assert result(inputs, "sixteen") == whole[job][0], json.dumps(run["limits"])
        shutil.rmtree(inputs / "sixteen")
