"""Compiles shardmill's C where there is a C compiler (without one it runs on slower libraries), and makes the README fit for PyPI.

Run by pip and build when they build shardmill, and by `make native`.
"""

import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # `make native` does not need them
    BuildHookInterface = MetadataHookInterface = object

# The one place that names the repository; links in the README are relative to it.
REPOSITORY = "https://github.com/shardmill/shardmill"

# Each folder's sources make one library.
NAMES = ("tokens/native/engine.so", "documents/native/lines.so")
LIBRARIES = [Path("src/shardmill") / name for name in NAMES]
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread"]


def compiled(library: Path, root: Path) -> Path | None:
    """The library, rebuilt if a source is newer; None if it cannot be compiled."""
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


def with_absolute_links(readme: str) -> str:
    """The README with absolute links: PyPI shows it without the files that its relative links point to."""
    relative = r"(?!https?://|mailto:|#)"
    readme = re.sub(rf'(!\[[^\]]*\]\(|\bsrc(?:set)?="){relative}', rf"\1{REPOSITORY}/raw/main/", readme)
    return re.sub(
        rf'(\]\(|^\[[^\]]+\]: |\bhref="){relative}', rf"\1{REPOSITORY}/blob/main/", readme, flags=re.MULTILINE
    )


class NativeLibraries(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        made = [library for library in LIBRARIES if compiled(library, Path(self.root))]
        if made:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"] += map(str, made)


class PageOnPyPI(MetadataHookInterface):  # type: ignore[misc]
    def update(self, metadata: dict[str, Any]) -> None:
        text = with_absolute_links((Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {"Source": REPOSITORY, "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md"}


if __name__ == "__main__":
    for library in LIBRARIES:
        made = compiled(library, Path(__file__).resolve().parent)
        print(f"{library}: {'compiled' if made else 'not compiled: no working C compiler'}")  # noqa: T201
