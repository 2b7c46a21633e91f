"""More inputs than the manifest lists: their list is a file of the result, and survives what the tokens survive (I1, I2, I4)."""

import os
import shutil

import pytest
from jobs import drive, result

from shardmill.record import input_list

FILES = input_list.MOST + 100
ARGS = ["prepare", "tiny", "--val-fraction", "0.1", "--engine", "reference", "--workers", "2", "-q", "-o"]

KILLS = [
    ["journal-begun", 1],
    ["file-created", 1],  # the list is not written yet
    ["checkpoint-synced", 1],
    ["files-sealed", 1],
    ["file-named", 1],  # the list has its name, and the tokens have not
    ["manifest-written", 1],
]


@pytest.fixture(scope="module")
def tiny(inputs):
    (inputs / "tiny").mkdir()
    for number in range(FILES):
        (inputs / f"tiny/{number}.txt").write_text(f"{number} says little")
        os.utime(inputs / f"tiny/{number}.txt", (1, 1))
    (done,) = drive(inputs, [{"args": [*ARGS, "tiny-whole"]}])
    assert done["code"] == 0, done["stderr"]
    return result(inputs, "tiny-whole"), done["steps"]


def test_a_kill_at_any_step_costs_no_byte_of_the_list(inputs, tiny):
    expected, taken = tiny
    assert input_list.NAME in expected and len(expected["manifest.json"]) < 4000
    assert all(taken.count(step) >= number for step, number in KILLS)
    runs = [
        [{"args": [*ARGS, f"tiny-{n}"], "kill": kill}, {"args": [*ARGS, f"tiny-{n}"]}] for n, kill in enumerate(KILLS)
    ]
    done = drive(inputs, [run for pair in runs for run in pair])
    assert [end["code"] for end in done] == [-9, 0] * len(KILLS), [end["stderr"] for end in done]
    for number, kill in enumerate(KILLS):
        assert result(inputs, f"tiny-{number}") == expected, kill
        shutil.rmtree(inputs / f"tiny-{number}")


def test_inputs_that_changed_meanwhile_are_named(inputs, tiny):
    args = [*ARGS, "tiny-changed"]
    (killed,) = drive(inputs, [{"args": args, "kill": ["checkpoint-synced", 3]}])
    assert killed["code"] == -9
    file = inputs / "tiny/4000.txt"
    text = file.read_text()
    os.utime(file)
    (touched,) = drive(inputs, [{"args": args}])
    assert touched["code"] == 1 and "tiny/4000.txt: was modified" in touched["stderr"]
    file.write_text(text + " more")
    (longer,) = drive(inputs, [{"args": args}])
    assert longer["code"] == 1 and "inputs[4000].bytes: was 16, is now 21" in longer["stderr"]
    file.write_text(text)
    os.utime(file, (1, 1))
    (done,) = drive(inputs, [{"args": args}])
    assert done["code"] == 0 and result(inputs, "tiny-changed") == tiny[0]
