"""`make pythons`: the fast tests on every supported Python that is installed, each in an environment of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
FOLDER = Path(".pythons")
PYENV = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"


def find(version: str) -> str | None:
    """The interpreter of a version, on PATH or as pyenv keeps it."""
    kept = sorted(PYENV.glob(f"{version}.*/bin/python{version}"))
    for candidate in [shutil.which(f"python{version}"), *map(str, kept)]:
        # pyenv puts a shim on PATH that fails for versions that are not selected
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


def run(version: str, python: str, tests: list[str]) -> bool:
    """Whether the tests pass on an interpreter."""
    folder = FOLDER / version
    print(f"== Python {version}: {python}", flush=True)
    if subprocess.run(["make", "setup", f"VENV={folder}", f"PYTHON={python}"]).returncode:
        return False
    command = [str(folder / "bin/python"), "-m", "pytest", "-n", "2", "--dist", "worksteal", "-rs", *tests]
    return subprocess.run(command).returncode == 0


def main() -> None:
    found = {version: find(version) for version in SUPPORTED}
    passed = {version: run(version, python, sys.argv[1:]) for version, python in found.items() if python}
    for version in SUPPORTED:
        result = {True: "passed", False: "FAILED", None: "not installed"}[passed.get(version)]
        print(f"Python {version}: {result}")
    sys.exit(not passed or not all(passed.values()))


if __name__ == "__main__":
    main()
