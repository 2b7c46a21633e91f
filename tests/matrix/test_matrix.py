"""Options are promises about each other: every two of them meet in some cell, and each cell is compared with its oracle."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import cells
import pytest
import running

TOOL = Path(__file__).parents[2] / "tools" / "matrix.py"
# A covering of all pairs; `make slow` has 20,000 cells, `make matrix` as many as you like.
CELLS, GROUP = 160, 20
REAL = 24


@pytest.fixture(scope="module", autouse=True)
def engines_once():
    with running.engines_kept():
        yield


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a run that is cut off leaves what the system would close
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("first", range(0, CELLS, GROUP))
def test_any_two_options_hold_together(first):
    """I1 to I7; what differs comes with the line that shows it again."""
    differ, refused = [], 0
    for cell in itertools.islice(cells.cells(0, CELLS), first, first + GROUP):
        try:
            refused += running.run(cell) is not None
        except running.Difference as e:
            differ.append(str(e))
    assert not differ, "\n\n".join(differ)
    assert refused < GROUP


def test_any_two_options_hold_together_when_the_process_is_killed():
    """The same with processes that get SIGKILL at that step."""
    command = [sys.executable, str(TOOL), "--forked", "--cells", str(REAL), "--seed", "7", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_any_two_options_hold_together_in_twenty_thousand_cells():
    done = subprocess.run(
        [
            sys.executable,
            str(TOOL),
            "--cells",
            os.environ.get("MATRIX_CELLS", "20000"),
            "--seed",
            os.environ.get("MATRIX_SEED", "1"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_less_than_a_fifth_of_the_cells_is_refused():
    some = list(cells.cells(0, CELLS))
    assert sum(cells.refusal(cell) is not None for cell in some) < len(some) / 5


def test_all_pairs_meet():
    """But for those that cost time, and those that mean nothing."""
    met = {pair for cell in cells.cells(0, CELLS) for pair in itertools.combinations(list(cell.items())[1:], 2)}
    wanted = {pair for pair in cells.pairs() if cells.refusal(dict(pair)) is None and not cells.is_costly(pair)}
    assert wanted <= met


def test_the_constants_that_the_matrix_shrinks_are_there():
    assert running.missing_constants() == [] and running.forgotten_constants() == []
