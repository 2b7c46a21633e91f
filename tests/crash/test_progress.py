"""A machine that is killed every few seconds still gets there: what a kill costs is bounded."""

import shutil
import threading
import time

import pytest
from jobs import command, drive, result

from shardmill.record import journal
from shardmill.record.journal import Checkpoint, Checkpoints

_MB = 1_000_000
_LOST_SECONDS = 2.0
_LOST_BYTES = 256 * _MB


@pytest.mark.slow  # it goes by the clock
def test_every_run_between_kills_makes_progress_and_little_is_done_twice(inputs):
    """With the checkpoints that a user has: each second, or 128 MiB."""
    usual = {"checkpoint_seconds": 1.0, "checkpoint_bytes": 128 << 20, "block_bytes": 128 << 10}
    text = (inputs / "long.txt").read_bytes()
    (inputs / "hour.txt").write_bytes(text * 24)
    args = [argument.replace("long.txt", "hour.txt") for argument in command("long", output="hour")]
    before, kills = Checkpoint(), 0
    for _ in range(20):
        (end,) = drive(inputs, [{"args": args, "after": 2.2, "limits": usual}])
        if end["code"] == 0:
            break
        kills += 1
        left = journal.read(inputs / "hour")
        at = left.checkpoint if left and left.checkpoint else Checkpoint()
        lost = since_the_last_that_counts(end, at.index - before.index)
        assert at.counts.input_bytes > before.counts.input_bytes or "block-written" not in end["steps"]
        assert lost <= _LOST_SECONDS + 1.0, f"{lost:.1f} s of work are lost"  # a second more for a busy machine
        before = at
    assert end["code"] == 0 and kills >= 1
    (whole,) = drive(inputs, [{"args": [*args, "-o", "hour-whole", "--engine", "auto"], "limits": usual}])
    assert whole["code"] == 0 and result(inputs, "hour") == result(inputs, "hour-whole")
    for name in ("hour", "hour-whole"):
        shutil.rmtree(inputs / name)


def since_the_last_that_counts(end, durable_blocks):
    """Seconds from the last Block of this run that is durable (its first if none is) to the kill."""
    written = [at for step, at in zip(end["steps"], end["times"], strict=False) if step == "block-written"]
    return end["seconds"] - written[max(0, durable_blocks - 1)] if written else 0.0


class SlowDisk:
    """Stands for the journal and the files; a sync takes until it is let go."""

    def __init__(self):
        self.go, self.synced = threading.Event(), []

    def sync(self):
        self.go.wait(10)

    def checkpoint(self, reached):
        self.synced.append(reached.index)


def test_a_slow_disk_stops_the_work_before_too_much_could_be_lost():
    disk = SlowDisk()
    checkpoints = Checkpoints(disk, disk, seconds=1000.0, input_bytes=128 << 20)
    offered = []

    def work():
        for number in range(1, 100):
            if checkpoints.due(number * 10 * _MB):
                checkpoints.begin(number * 10 * _MB, lambda number=number: Checkpoint(index=number))
            offered.append(number * 10 * _MB)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    time.sleep(0.3)
    begun = 14 * 10 * _MB  # the first checkpoint is due after 128 MiB
    assert offered[-1] - begun <= _LOST_BYTES + 20 * _MB, "and there it waits for the disk"
    assert worker.is_alive() and not disk.synced
    disk.go.set()
    worker.join(10)
    checkpoints.wait()
    assert not worker.is_alive() and len(disk.synced) >= 4
