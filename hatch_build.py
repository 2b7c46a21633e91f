"""Compiles shardmill's C, and makes the README fit for PyPI.

The compiler is $CC, else cc, else zig's, which comes as a wheel. Run by pip and build when they build shardmill, and by
`make native`. `SHARDMILL_WHEEL=manylinux_2_17_aarch64 python -m build --wheel` builds for another machine with zig.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
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
NAMES = ("io/native/unzstd.so", "tokens/native/engine.so", "documents/native/lines.so", "feed/native/spans.so")
LIBRARIES = [Path("src/shardmill") / name for name in NAMES]
NO_COMPILER = """
shardmill's C cannot be compiled here, and no wheel has it for this machine: there is no working C compiler.
Install one, then try again:
  apt-get install gcc libc6-dev     Debian, Ubuntu
  dnf install gcc                   Fedora, RHEL
  apk add gcc musl-dev              Alpine
  xcode-select --install            macOS
  pip install ziglang               any machine, and `make native` in a checkout
The compiler's own message is above, if there is one. $CC names another compiler."""
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-pthread"]
# Tags of the wheels that `make wheels` builds → what zig calls that machine.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
}


def compiler() -> list[str] | None:
    """The command of the C compiler; None if there is none."""
    named = os.environ.get("CC", "cc").split()
    if shutil.which(named[0]):
        return named
    return _zig() if importlib.util.find_spec("ziglang") and "CC" not in os.environ else None


def _zig() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc"]


def compiled(library: Path, root: Path) -> Path | None:
    """The library, rebuilt if a source is newer; None if it cannot be compiled."""
    library = root / library
    sources = _sources(library, root)
    if library.exists() and all(source.stat().st_mtime <= library.stat().st_mtime for source in sources):
        return library
    library.unlink(missing_ok=True)
    command = compiler()
    return library if command is not None and _compile(command, sources, library) else None


def compiled_for(target: str, library: Path, root: Path) -> Path:
    """The library for another machine, in build/."""
    made = root / "build" / target / library.relative_to("src")
    made.parent.mkdir(parents=True, exist_ok=True)
    # -s: without the names of debugging, which zig adds
    if not _compile([*_zig(), "-target", TARGETS[target], "-s"], _sources(root / library, root), made):
        raise RuntimeError(f"{library}: cannot be compiled for {target}")
    return made


def _sources(library: Path, root: Path) -> list[Path]:
    return [*sorted(library.parent.glob("*.[ch]")), root / "hatch_build.py"]


def _compile(command: list[str], sources: list[Path], library: Path) -> bool:
    partial = library.with_suffix(f".{os.getpid()}.partial")
    command = [*command, *FLAGS, "-o", str(partial), *(str(source) for source in sources if source.suffix == ".c")]
    try:
        subprocess.run(command, check=True, timeout=600)
        partial.rename(library)
    except (OSError, subprocess.SubprocessError):
        partial.unlink(missing_ok=True)
        return False
    return True


def with_absolute_links(readme: str) -> str:
    """The README with absolute links: PyPI shows it without the files that its relative links point to."""
    relative = r"(?!https?://|mailto:|#)"
    readme = re.sub(rf'(!\[[^\]]*\]\(|\bsrc(?:set)?="){relative}', rf"\1{REPOSITORY}/raw/main/", readme)
    return re.sub(
        rf'(\]\(|^\[[^\]]+\]: |\bhref="){relative}', rf"\1{REPOSITORY}/blob/main/", readme, flags=re.MULTILINE
    )


class NativeLibraries(BuildHookInterface):  # type: ignore[misc]
    def dependencies(self) -> list[str]:
        """zig where there is no other compiler, and to build for other machines."""
        return ["ziglang"] if compiler() is None or os.environ.get("SHARDMILL_WHEEL") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        root, target = Path(self.root), os.environ.get("SHARDMILL_WHEEL")
        tag = target or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        if target:
            made = {str(compiled_for(target, library, root)): str(library.relative_to("src")) for library in LIBRARIES}
            build_data["force_include"].update(made)
        elif not all(compiled(library, root) for library in LIBRARIES):
            self.app.abort(NO_COMPILER)
        else:
            build_data["artifacts"] += map(str, LIBRARIES)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"


class PageOnPyPI(MetadataHookInterface):  # type: ignore[misc]
    def update(self, metadata: dict[str, Any]) -> None:
        text = with_absolute_links((Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {"Source": REPOSITORY, "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md"}


if __name__ == "__main__":
    for library in LIBRARIES:
        if not compiled(library, Path(__file__).resolve().parent):
            sys.exit(NO_COMPILER)
        print(f"{library}: compiled")  # noqa: T201
