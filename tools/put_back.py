"""Puts faults that were mended back into a copy of the source, one by one, and shows that the matrix finds each."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Name, then (file, what is there now, what was there) for each place; and which cells meet it, if not all do.
FAULTS: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "resumed inside a long record, other tokens": (
        [
            (
                "documents/long_values.py",
                "drop = min(min(offset, self._done) - self._kept - _LOOK_BACK, len(self._text))",
                "drop = min(offset, self._done) - self._kept - _LOOK_BACK",
            )
        ],
        "",
    ),
    "a long document outside the sample takes its neighbours with it": (
        [
            (
                "documents/text.py",
                "counted[:1] = part.dropped and part.continues",
                "counted[:] = part.dropped and part.continues",
            )
        ],
        "",
    ),
    "skip: an input that was edited counts as a bad record": (
        [
            (
                "job/sources.py",
                'if rules.on_error == "skip" and isinstance(error, ContentError):',
                'if rules.on_error == "skip":',
            )
        ],
        "kill=edit split=none",
    ),
    "skip: an input that is denied counts as a bad record": (
        [
            (
                "job/sources.py",
                'if rules.on_error == "skip" and isinstance(error, ContentError):',
                'if rules.on_error == "skip":',
            )
        ],
        "kill=denied split=none",
    ),
    "skip: an input that the server forbids counts as a bad record": (
        [
            (
                "job/sources.py",
                'if rules.on_error == "skip" and isinstance(error, ContentError):',
                'if rules.on_error == "skip":',
            )
        ],
        "kill=forbidden",
    ),
    "an input that another takes the name of is not noticed, and the manifest tells of both": (
        [
            (
                "io/reading.py",
                "        yield opened.st_size, opened.st_mtime_ns\n",
                "        yield opened.st_size, opened.st_mtime_ns\n        return\n",
            ),
            ("record/input_list.py", 'if "inputs" not in files.noted:', "if True:"),
        ],
        "kill=swap",
    ),
    "the policy may change after passages were rejected": (
        [("job/destination.py", "not at.counts.rejected", "not at.counts.documents_rejected")],
        "errors=skip-then-replace",
    ),
    "the split found under stop is kept under skip": (
        [
            (
                "job/first_pass.py",
                'rules = dataclasses.replace(rules, on_error="skip", judging=True, block_bytes=larger)',
                "rules = dataclasses.replace(rules, block_bytes=larger)",
            ),
            (
                "job/first_pass.py",
                "        pieces = [part.pieces(files.base(part.file), rules, note) for part in block.parts]\n",
                "        try:\n            pieces = [part.pieces(files.base(part.file), rules, note) for part in block.parts]\n        except Exception:\n            pieces = []\n",
            ),
        ],
        "",
    ),
    "a limit does not cut the places": (
        [
            (
                "job/truncate.py",
                "runs=runs_of(laid, trace.places)",
                "runs=[dataclasses.replace(run, places=trace.places) for run in runs_of(laid, trace.places)]",
            )
        ],
        "",
    ),
    "an error behind the limit in the same Block stops the job": (
        [("documents/records.py", "    if not rules.limited:\n        raise error\n", "    raise error\n")],
        "errors=stop-behind",
    ),
    "an error behind the limit in the next Block stops the job": (
        [
            (
                "job/workers.py",
                "if self._placing or self._stopped:",
                "if self._placing or (self._stopped and not isinstance(self._ready.get(self._due, ('', ''))[1], ShardmillError)):",
            )
        ],
        "",
    ),
    "characters replaced behind the limit count": (
        [("job/truncate.py", "counts.replaced_characters - behind", "counts.replaced_characters")],
        "errors=replace-bad select=tokens",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=8000, help="give up after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", default="", help="only those whose name contains this")
    asked = parser.parse_args()
    missed = 0
    for name, (places, only) in FAULTS.items():
        if asked.fault not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
            for file, now, before in places:
                path = source / "shardmill" / file
                text = path.read_text()
                assert now in text, f"{file} has no {now!r} any more: say here how this fault would look today"
                path.write_text(text.replace(now, before))
            found = _find(source, asked.cells, asked.seed, only)
        missed += found is None
        print(f"{'NOT FOUND' if found is None else 'found'}  {name}\n    {found or ''}", flush=True)
    return missed


def _find(source: Path, cells: int, seed: int, only: str) -> str | None:
    """The first cell that differs with this source and not with ours, and how."""
    done = _matrix(source, "--cells", str(cells), "--seed", str(seed), "--only", only, "--most", "1")
    told = ""
    for line in done.splitlines():
        cell = line.partition("--cell ")[2].strip("'")
        if cell and "differs" not in _matrix(ROOT / "src", "--cell", cell).splitlines()[-1]:
            return f"{told[:300]}\n    {cell}"
        told = line if not cell else ""
    return None


def _matrix(source: Path, *options: str) -> str:
    command = [sys.executable, str(ROOT / "tools/matrix.py"), *options]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
