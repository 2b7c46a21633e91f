"""The C holds out under AddressSanitizer, UBSan and ThreadSanitizer; `make sanitize` runs the same for minutes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import sanitize

sys.path.pop(0)


def sanitized(kind, folder, *options):
    if not sanitize.runtime(kind):
        pytest.skip(f"{sanitize.compiler()} comes without {sanitize.KINDS[kind][1]}")
    sanitize.build(kind, folder)
    return sanitize.run(kind, folder, *options)


@pytest.mark.slow
def test_hostile_input_makes_the_c_read_and_write_nothing_out_of_bounds(tmp_path):
    """After the rounds it is made to read one byte too many: this is the one report that there must be."""
    done = sanitized("address", tmp_path, "--seconds", "1.5", "--overrun")
    assert "rounds" in done.stdout, done.stderr[-4000:]
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr, done.stderr[-4000:]


@pytest.mark.slow
def test_threads_that_share_an_engine_do_not_race(tmp_path):
    done = sanitized("thread", tmp_path, "--seconds", "20")
    assert done.returncode == 0 and "rounds" in done.stdout, done.stderr[-4000:]
