"""`make docker-steps`: the steps of the Dockerfile, where there is no Docker: in empty folders, with a clean environment.

Each stage gets a folder as its root and a virtual environment as its Python. What needs a system of its own (apt-get,
useradd) is left out. At the end the entry point checks itself and tokenizes the bundled sample.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
SYSTEM = ("apt-get", "rm -rf /var/lib/apt", "useradd")
OWN_PATHS = re.compile(r"(?<![\w.$/-])/(source|wheels|data|cache)\b")


@dataclass(kw_only=True, slots=True)
class Stage:
    """One FROM, and the instructions after it."""

    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, word: str) -> str | None:
        return next((rest for found, rest in reversed(self.steps) if found == word), None)


def stages(dockerfile: str) -> list[Stage]:
    """The stages of a Dockerfile."""
    found: list[Stage] = []
    text = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image=image, name=name))
        else:
            found[-1].steps.append((word, rest.strip()))
    return found


def context(root: Path = ROOT) -> list[Path]:
    """The files that .dockerignore leaves for COPY, relative to the root. The last rule that matches a path decides."""
    rules = [line for line in (root / ".dockerignore").read_text().split("\n") if line and not line.startswith("#")]
    kept = []
    for path in sorted(root.rglob("*")):
        relative, ignored = path.relative_to(root), False
        for rule in rules:
            if any(_matches(each, rule.removeprefix("!")) for each in (relative, *relative.parents)):
                ignored = not rule.startswith("!")
        if not ignored and path.is_file():
            kept.append(relative)
    return kept


def _matches(path: Path, rule: str) -> bool:
    if rule.startswith("**/"):
        return fnmatch.fnmatch(path.name, rule[3:])
    return len(path.parts) == 1 and fnmatch.fnmatch(str(path), rule)


def copy(arguments: str, source: Path, files: list[Path], root: Path, work: Path) -> None:
    """One COPY: of these files in the source, to the stage with this root and working directory."""
    *names, target = shlex.split(arguments)
    to = root / target.lstrip("/") if target.startswith("/") else work / target
    for name in names:
        wanted = Path(name.lstrip("/"))
        matching = [file for file in files if file == wanted or wanted in file.parents]
        if not matching:
            raise SystemExit(f"COPY {arguments}: there is no {name}; is it in .dockerignore?")
        for file in matching:
            inside = file.relative_to(wanted) if file != wanted else Path(file.name)
            (to / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / file, to / inside)


def run(command: str, root: Path, work: Path, env: dict[str, str]) -> None:
    """One RUN: without what needs a system of its own, and with this root."""
    parts = [part.strip() for part in command.split("&&")]
    left = [part for part in parts if not part.startswith(SYSTEM)]
    here = OWN_PATHS.sub(lambda found: f"{root}/{found[1]}", " && ".join(left))
    print(f"RUN {here or '(nothing)'}", flush=True)
    if here:
        subprocess.run(["/bin/sh", "-c", here], cwd=work, env=env, check=True)


def build(folder: Path) -> tuple[list[str], Path, dict[str, str]]:
    """All stages below a folder: the entry point, the last working directory, and the environment."""
    found = stages((ROOT / "Dockerfile").read_text())
    for number, stage in enumerate(found):
        root = work = folder / (stage.name or f"stage{number}")
        subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
        # How to reach the package index is not part of the image.
        env = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
        env |= {"PATH": f"{root}/venv/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(root), "PIP_QUIET": "1"}
        for word, rest in stage.steps:
            if word == "RUN":
                run(rest, root, work, env)
            elif word == "COPY" and rest.startswith("--from="):
                name, _, rest = rest.removeprefix("--from=").partition(" ")
                files = [path.relative_to(folder / name) for path in (folder / name).rglob("*") if path.is_file()]
                copy(rest, folder / name, files, root, work)
            elif word == "COPY":
                copy(rest, ROOT, context(), root, work)
            elif word == "WORKDIR":
                work = root / rest.lstrip("/")
                work.mkdir(parents=True, exist_ok=True)
            elif word == "ENV":
                env |= {name: OWN_PATHS.sub(rf"{root}/\1", value) for name, value in re.findall(r"(\w+)=(\S+)", rest)}
    entry: list[str] = json.loads(found[-1].last("ENTRYPOINT") or "[]")
    return entry, work, env


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        entry, work, env = build(Path(name))
        shutil.copy(ROOT / "samples/tinyshakespeare.txt", work / "book.txt")
        for arguments in ("--version", "doctor", "prepare book.txt -o tokens", "verify tokens --source book.txt"):
            print(f"{' '.join(entry)} {arguments}", flush=True)
            subprocess.run([*entry, *arguments.split()], cwd=work, env=env, check=True)


if __name__ == "__main__":
    main()
