"""A job that is killed, at any step and at any moment, is finished by the same command with the same bytes (I1, I2, I3, I4)."""

import random
import shutil

import pytest
from jobs import RESULT, command, drive, occurrences, result

from commit_steps import STEPS

KILLED = -9
# The matrix kills jobs of every kind at random steps; these are killed at each.
SLOW = pytest.mark.slow
TORN = ["block-written", 4]  # a Block is written, and no checkpoint knows of it


def kills_at(step, taken):
    """Ways to be killed at this step, each a list of kills in consecutive runs: twice at the same, three times in all."""
    if step == "tail-dropped":
        return [[TORN, [step, 1]], [TORN, [step, 1], TORN, [step, 1]], [TORN, [step, 1], ["manifest-written", 1]]]
    first, *others = occurrences(taken)[step]
    elsewhere = STEPS[(STEPS.index(step) + 5) % len(STEPS)]
    return [
        *([[step, number], [step, 1]] for number in others),
        [[step, first], [elsewhere, 1], ["file-named", 2]],
        [["checkpoint-synced", 2], [step, 1], [step, 1]],
    ]


def surely(numbers):
    """A late time that comes in each run: a checkpoint more or less depends on how fast the disk is."""
    return numbers[len(numbers) // 2]


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize("job", ["documents", pytest.param("running", marks=SLOW)])
def test_a_kill_at_any_step_costs_no_byte(inputs, whole, job, half):
    """Half of the steps at a time: each group takes a process that has all imported."""
    expected, taken = whole[job]
    steps = [step for step in STEPS if step != "old-result-removed"][half::2]
    ways = {step: kills_at(step, taken) for step in steps}
    hits = iter(go_these_ways(inputs, job, [way for each in ways.values() for way in each], expected))
    for step, each in ways.items():
        hit = [kill for _ in each for kill in next(hits)]
        assert hit.count(step) >= len(each) - 1, f"{step} was not reached often enough: {hit}"


@pytest.mark.parametrize(
    "job",
    [
        "skipped",
        *(pytest.param(job, marks=SLOW) for job in ("files", "replaced", "samples", "blocks", "enough", "fewer")),
    ],
)
def test_other_jobs_survive_a_kill_at_every_step_too(inputs, whole, job):
    expected, taken = whole[job]
    ways = [[[step, surely(numbers)]] for step, numbers in occurrences(taken).items()] + [[TORN, ["tail-dropped", 1]]]
    hits = {kill for way in go_these_ways(inputs, job, ways, expected) for kill in way}
    assert hits >= set(STEPS) - {"old-result-removed"}


def go_these_ways(inputs, job, ways, expected):
    """Each way in a folder of its own: a run for each kill, and one to the end. Returns the kills that hit."""
    runs = [
        {"args": command(job, output=f"{job}-{number}"), **({"kill": kill} if kill else {})}
        for number, way in enumerate(ways)
        for kill in [*way, None]
    ]
    done = iter(drive(inputs, runs))
    hits = []
    for number, way in enumerate(ways):
        ends = [next(done) for _ in [*way, None]]
        assert ends[-1]["code"] == 0 and all(end["code"] in (0, KILLED) for end in ends), ends
        hits.append([kill[0] for kill, end in zip(way, ends, strict=False) if end["code"] == KILLED])
        assert result(inputs, f"{job}-{number}") == expected, f"{job} after kills at {way}"
        shutil.rmtree(inputs / f"{job}-{number}")
    return hits


@pytest.mark.parametrize("job", ["documents", pytest.param("running", marks=SLOW)])
def test_overwriting_an_older_result_survives_kills_at_every_step(inputs, whole, job):
    expected, taken = whole[job]
    older = command(job, "--seed", "7", output="older")
    newer = command(job, "--overwrite", output="older")
    taken = ["old-result-removed", *taken]
    runs, killed = [], []
    for step, numbers in occurrences(taken).items():
        kill = [step, surely(numbers)]
        runs += [{"args": [*older, "--overwrite"]}, {"args": newer, "kill": kill}, {"args": newer}]
        killed.append(step)
    done = drive(inputs, runs)
    assert [end["code"] for end in done] == [0, KILLED, 0] * len(killed), [end["stderr"] for end in done]
    for step, end in zip(killed, done[2::3], strict=True):
        begun_again = "old-result-removed" in end["steps"]
        assert begun_again == (step in ("old-result-removed", "journal-removed")), f"after {step}: {end['steps']}"
    assert result(inputs, "older") == expected


def test_a_killed_job_has_nothing_under_a_final_name_and_no_manifest(inputs, whole):
    """I2 and I3: until files-sealed no file is named, and until the manifest is written none is there."""
    expected, taken = whole["running"]
    steps = ("journal-begun", "data-synced", "checkpoint-synced", "files-sealed", "names-synced", "run-written")
    runs = [
        {"args": command("running", output=step), "kill": [step, surely(occurrences(taken)[step])]} for step in steps
    ]
    assert [end["code"] for end in drive(inputs, runs)] == [KILLED] * len(steps)
    for step in steps:
        found = result(inputs, step)
        assert "manifest.json" not in found
        if step in ("names-synced", "run-written"):
            assert found["train.bin"] == expected["train.bin"] and found["val.bin"] == expected["val.bin"]
        else:
            assert not {"train.bin", "val.bin"} & set(found)
        shutil.rmtree(inputs / step)


@pytest.mark.parametrize(("engine", "longest"), [("reference", 0.15), pytest.param("auto", 0.15, marks=SLOW)])
def test_kills_at_random_moments_cost_no_byte(inputs, whole, engine, longest):
    """The whole process group, over and over in one job of many checkpoints, until it is done."""
    chance = random.Random(0)
    loose = {"checkpoint_seconds": 0.0, "checkpoint_bytes": 20_000, "block_bytes": 6000}
    kills = 0
    for number in range(2):
        args = command("long", output=f"moments-{number}", engine=engine)
        runs = [{"args": args, "after": chance.uniform(0.02, longest), "limits": loose} for _ in range(10)]
        done = drive(inputs, [*runs, {"args": args, "limits": loose}])
        assert done[-1]["code"] == 0 and all(end["code"] in (0, KILLED) for end in done), done
        assert sum(end["steps"].count("checkpoint-synced") for end in done) >= 20
        kills += sum(end["code"] == KILLED for end in done)
        assert result(inputs, f"moments-{number}") == whole["long"][0]
        shutil.rmtree(inputs / f"moments-{number}")
    assert kills >= 4


def test_what_is_kept_is_what_a_reader_of_the_folder_expects(whole):
    for found, _ in whole.values():
        assert {*RESULT, "run.json"} <= set(found) or {"manifest.json", "run.json", "train", "val"} <= set(found)
        assert not any(name.endswith((".partial", ".journal", ".lock")) for name in found)
