"""Compiles the C of shardmill where there is a C compiler; without one it works too, on libraries that are slower.

Run by pip when it installs shardmill, and by `make native`.
"""

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `make native` does not need it
    BuildHookInterface = object

# Each folder's sources make one library.
NAMES = ("tokens/native/engine.so", "documents/native/lines.so", "formats/native/rows.so")
LIBRARIES = [Path("src/shardmill") / name for name in NAMES]
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread"]


def compiled(library: Path, root: Path) -> Path | None:
    """The library, made anew if a source is newer; None where it cannot be made."""
    library = root / library
    sources = [*sorted(library.parent.glob("*.[ch]")), root / "hatch_build.py"]
    if library.exists() and all(source.stat().st_mtime <= library.stat().st_mtime for source in sources):
        return library
    partial = library.with_suffix(f".{os.getpid()}.partial")
    command = [os.environ.get("CC", "cc"), *FLAGS, "-o", str(partial), *(str(s) for s in sources if s.suffix == ".c")]
    library.unlink(missing_ok=True)
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        partial.rename(library)
    except (OSError, subprocess.SubprocessError):
        partial.unlink(missing_ok=True)
        return None
    return library


class NativeLibraries(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        made = [library for library in LIBRARIES if compiled(library, Path(self.root))]
        if made:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"] += map(str, made)


if __name__ == "__main__":
    for library in LIBRARIES:
        made = compiled(library, Path(__file__).resolve().parent)
        print(f"{library}: {'compiled' if made else 'none, since there is no C compiler that works'}")  # noqa: T201
