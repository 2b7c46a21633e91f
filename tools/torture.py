"""`make torture`: kill jobs a thousand times, at named steps and at any moment, and compare every byte of what comes out.

Each job is killed several times in a row, then run to its end, then compared with the job that nobody disturbed.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/crash")]

import driver  # type: ignore[import-not-found]  # noqa: E402
import jobs  # type: ignore[import-not-found]  # noqa: E402

from commit_steps import STEPS  # type: ignore[import-not-found]  # noqa: E402

_KILLED = -9
# Checkpoints as they come, or one after each Block, before the next is written.
_LIMITS = (
    {"checkpoint_seconds": 0.0, "checkpoint_bytes": 20_000, "block_bytes": 6000},
    {"checkpoint_seconds": 0.01, "checkpoint_bytes": 100_000, "block_bytes": 1500},
    {"checkpoint_seconds": 0.0, "checkpoint_bytes": 50_000, "block_bytes": 777},
    {"checkpoint_seconds": 0.1, "checkpoint_bytes": 1 << 20, "block_bytes": 65_537},
    jobs.ORDERLY,
)
# Each run goes on with as many as it likes, most of them more than there are cores.
_WORKERS = ("1", "2", "3", "7", "16")
_OLDER = ["--seed", "7", "--overwrite"]


class Torture:
    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = jobs.write_inputs(folder)
        self.kills: Counter[str] = Counter()
        self.jobs_done = 0
        self.differences: list[str] = []
        self.whole: dict[str, tuple[dict[str, bytes | None], Counter[str], float]] = {}

    def go(self, job: str, output: str, *options: str, **what: Any) -> dict[str, Any]:
        args = jobs.command(job, *options, output=output, engine=what.pop("engine", "reference"))
        end: dict[str, Any] = driver.run({"cwd": str(self.folder), "args": args, "limits": jobs.ORDERLY, **what})
        return end

    def prepare(self) -> None:
        for job in jobs.JOBS:
            end = self.go(job, job)
            assert end["code"] == 0, end["stderr"]
            self.whole[job] = jobs.result(self.folder, job), Counter(end["steps"]), end["seconds"]

    def torture_one(self, most: int) -> None:
        """One job, killed up to so many times."""
        job = self.chance.choice(list(jobs.JOBS))
        expected, steps, seconds = self.whole[job]
        engine = "native" if self.chance.random() < 0.1 else "reference"
        overwrite = self.chance.random() < 0.25
        options = ["--overwrite"] if overwrite else []
        if overwrite:
            assert self.go(job, "out", *_OLDER)["code"] == 0
        history = []
        for _ in range(self.chance.randint(1, most)):
            what, name = self._choose(steps, seconds, overwrite=overwrite)
            workers = self.chance.choice(_WORKERS)
            limits = self.chance.choice(_LIMITS)
            end = self.go(job, "out", *options, "--workers", workers, engine=engine, limits=limits, **what)
            history.append(f"{name}, {workers} workers: {end['code']}")
            if end["code"] == _KILLED:
                self.kills[name] += 1
            elif end["code"] != 0:
                self.differences.append(f"{job} {options} {history}: {end['stderr']}")
        end = self.go(job, "out", *options, engine=engine)
        if end["code"] != 0 or jobs.result(self.folder, "out") != expected:
            self.differences.append(f"{job} {options} {history}: {end['code']} {end['stderr']}")
        shutil.rmtree(self.folder / "out")
        self.jobs_done += 1

    def _choose(self, steps: Counter[str], seconds: float, *, overwrite: bool) -> tuple[dict[str, Any], str]:
        if self.chance.random() < 0.4:
            return {"after": self.chance.uniform(0.0, seconds)}, "any moment"
        possible = [step for step in STEPS if overwrite or step != "old-result-removed"]
        step = min(self.chance.sample(possible, 3), key=lambda step: self.kills[step])  # the rarer ones more often
        return {"kill": [step, self.chance.randint(1, min(4, max(1, steps[step])))]}, step

    def report(self, started: float) -> None:
        for name in (*STEPS, "any moment"):
            print(f"{self.kills[name]:8,}  {name}")
        print(
            f"{self.kills.total():8,}  kills in {self.jobs_done:,} jobs, {time.monotonic() - started:.0f} s; differences: {len(self.differences)}"
        )
        for difference in self.differences[:20]:
            print(difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="how many kills in all")
    parser.add_argument("--seed", type=int, default=0, help="another seed kills at other places")
    asked = parser.parse_args()
    memory = Path("/dev/shm")  # a kill needs no real disk, and an fsync here costs nothing
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardmill-torture-", dir=memory if memory.is_dir() else None) as folder:
        driver.keep_engines("reference", "native")
        torture = Torture(Path(folder), asked.seed)
        torture.prepare()
        while torture.kills.total() < asked.kills:
            torture.torture_one(most=6)
    torture.report(started)
    missed = [step for step in STEPS if not torture.kills[step]]
    if missed:
        print(f"never killed at {', '.join(missed)}")
    sys.exit(1 if torture.differences or missed else 0)


if __name__ == "__main__":
    main()
