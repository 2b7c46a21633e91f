"""Compiles the native engine where there is a C compiler; without one shardmill works too, on gigatoken.

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

FOLDER = Path("src/shardmill/tokens/native")
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread"]


def compile_engine(root: Path) -> Path | None:
    """The library, made anew if a source is newer; None where it cannot be made."""
    library = root / FOLDER / "engine.so"
    sources = [*sorted((root / FOLDER).glob("*.[ch]")), root / "hatch_build.py"]
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


class NativeEngine(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        library = compile_engine(Path(self.root))
        if library is not None:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(str(FOLDER / library.name))


if __name__ == "__main__":
    made = compile_engine(Path(__file__).resolve().parent)
    print(f"native engine: {made.name}" if made else "native engine: none, since there is no C compiler that works")  # noqa: T201
