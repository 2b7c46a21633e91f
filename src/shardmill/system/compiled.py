"""Loads the C libraries that hatch_build.py compiled; on a machine without a compiler there are none."""

import ctypes
from importlib import resources
from pathlib import Path

_PACKAGE = Path(str(resources.files("shardmill")))


def load(path: str, version: int) -> ctypes.CDLL | None:
    """The library at a path inside the package; None if it is missing or of another version (`make native` rebuilds)."""
    try:
        library = ctypes.CDLL(str(_PACKAGE / path))
    except OSError:
        return None
    found = getattr(library, f"{Path(path).stem}_version")()
    return library if found == version else None


def declare(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> None:
    """Declare the result and argument types of a C function; arrays are passed as pointers (`array.ctypes`)."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


def everything() -> bool:
    """Whether all libraries were compiled: each has a folder, with its sources."""
    return all(any(folder.glob("*.so")) for folder in _PACKAGE.glob("*/native"))
