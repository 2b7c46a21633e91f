"""`make wheels`: a wheel for every machine, built here with zig's C compiler, and checked.

Each is checked for its tag, its libraries and the oldest glibc that it runs on; the one for this machine is installed in
a bare environment without a compiler, and tokenizes a text there. The others are built, not run.
"""

import os
import platform
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hatch_build import NAMES, TARGETS  # noqa: E402

HOME, DIST = ROOT / ".wheels", ROOT / "dist"
PYTHON = HOME / "bin/python"
NEEDS = ("auditwheel", "build", "hatchling", "pyelftools", "twine", "ziglang")
# The machine of each library by the first bytes of its file.
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
MACH_MACHINES = {0x0100000C: "arm64", 0x01000007: "x86_64"}


def run(*command: object, **env: str) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def built(target: str) -> Path:
    before = set(DIST.glob("*.whl"))
    run(PYTHON, "-m", "build", "--wheel", "--no-isolation", "--outdir", DIST, SHARDMILL_WHEEL=target)
    (wheel,) = set(DIST.glob(f"*-{target}.whl")) - before or set(DIST.glob(f"*-{target}.whl"))
    return wheel


def machine_of(library: bytes) -> str:
    if library[:4] == b"\x7fELF":
        return "linux " + ELF_MACHINES[int.from_bytes(library[18:20], "little")]
    assert library[:4] == b"\xcf\xfa\xed\xfe", "neither ELF nor Mach-O"
    return "macos " + MACH_MACHINES[int.from_bytes(library[4:8], "little")]


def check(wheel: Path, target: str) -> str:
    """The machine of its libraries; raises if it is not the one that the tag names."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        assert sorted(names) == sorted(f"shardmill/{name}" for name in NAMES), names
        (machine,) = {machine_of(archive.read(name)) for name in names}
    system, _, processor = machine.partition(" ")
    assert target.endswith(processor) and ("linux" in target) == (system == "linux"), (target, machine)
    if target.startswith("manylinux"):
        found = re.search(r'tag: "(\S+)"', run(PYTHON, "-m", "auditwheel", "show", wheel).replace("\n", " "))
        consistent = found[1] if found else "unknown"
        least = re.match(r"manylinux_2_(\d+)_", consistent)
        assert least and int(least[1]) <= 17, f"{wheel.name}: auditwheel finds {consistent}"
    return machine


def runs_here(target: str) -> bool:
    return target == f"manylinux_2_17_{platform.machine()}" and platform.libc_ver()[0] == "glibc"


def install_and_run(wheel: Path) -> None:
    """In an environment with nothing but what the wheel asks for, and no compiler on PATH."""
    folder = HOME / "bare"
    venv.create(folder, with_pip=True, clear=True)
    python, path = folder / "bin/python", str(folder / "bin")
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, PATH=path, CC="/bin/false")
    text, out = ROOT / "samples/tinyshakespeare.txt", folder / "out"
    run(python, "-m", "shardmill", "prepare", text, "-o", out, "--engine", "native", "--overwrite", "-q", PATH=path)
    run(python, "-m", "shardmill", "verify", out, "--source", text, PATH=path)


def main() -> None:
    if not PYTHON.exists():
        venv.create(HOME, with_pip=True)
    run(PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDS)
    DIST.mkdir(exist_ok=True)
    print("| wheel | bytes | libraries for | |\n|---|--:|---|---|")
    for target in TARGETS:
        wheel = built(target)
        machine, how = check(wheel, target), "built, not yet run"
        run(PYTHON, "-m", "twine", "check", "--strict", wheel)
        if runs_here(target):
            install_and_run(wheel)
            how = "installed without a compiler and run"
        print(f"| {wheel.name} | {wheel.stat().st_size:,} | {machine} | {how} |", flush=True)


if __name__ == "__main__":
    main()
