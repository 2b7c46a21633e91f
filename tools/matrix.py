"""`make matrix`: cells of the matrix of all options, each compared with its oracle; CELLS=20000 SEED=1 for more and others."""

import argparse
import contextlib
import faulthandler
import itertools
import os
import sys
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/matrix")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads, and some cells fork

import cells  # type: ignore[import-not-found]  # noqa: E402
import running  # type: ignore[import-not-found]  # noqa: E402

_AT_ONCE = 20
_HANGS_SECONDS = 300


_kept = contextlib.ExitStack()


def _begin() -> None:
    """In each process: engines are loaded once, and a cell that hangs tells where."""
    _kept.enter_context(running.engines_kept())


def _some(job: tuple[list[dict[str, Any]], bool]) -> list[tuple[str, str]]:
    """What became of some cells: ok, refused or differs, and why."""
    some, forked = job
    done = []
    for cell in some:
        faulthandler.dump_traceback_later(_HANGS_SECONDS)
        try:
            why = running.run(cell, runner=running.forked if forked else running.in_process)
            done.append(("refused" if why else "ok", ""))
        except running.Difference as e:
            done.append(("differs", str(e)))
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many")
    parser.add_argument("--only", default="", help="those with these values: 'kill=edit errors=skip'")
    parser.add_argument("--cell", help="this one, as a failure prints it")
    parser.add_argument("--forked", action="store_true", help="in processes that are really killed; on disk only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, default=20, help="end after so many differences")
    asked = parser.parse_args()
    wanted = (
        [cells.parse(asked.cell)]
        if asked.cell
        else list(itertools.islice(cells.cells(asked.seed, asked.cells), asked.skip, None))
    )
    only = cells.parse(asked.only)
    wanted = [cell for cell in wanted if only.items() <= cell.items()]
    if asked.forked:
        wanted = [{**cell, "place": "disk"} for cell in wanted]
    started, counts, told = time.monotonic(), Counter[str](), 0
    jobs = [(wanted[at : at + _AT_ONCE], asked.forked) for at in range(0, len(wanted), _AT_ONCE)]
    context = get_context("spawn")
    with context.Pool(min(asked.processes, len(jobs)), _begin) as pool:
        for done in pool.imap_unordered(_some, jobs):
            for what, message in done:
                counts[what] += 1
                if message:
                    print(message, flush=True)
            if sum(counts.values()) // 1000 > told:
                told = sum(counts.values()) // 1000
                print(f"{sum(counts.values()):,} cells, {dict(counts)}, {time.monotonic() - started:.0f} s", flush=True)
            if counts["differs"] >= asked.most:
                break
    print(f"{sum(counts.values()):,} cells of seed {asked.seed}: {dict(counts)}, {time.monotonic() - started:.0f} s")
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
