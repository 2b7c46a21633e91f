"""Our own libraries in C, as hatch_build.py compiled them; where there was no compiler there are none."""

import ctypes
from importlib import resources
from pathlib import Path

_HERE = Path(str(resources.files("shardmill")))


def load(path: str, version: int) -> ctypes.CDLL | None:
    """The library at a path inside the package, if it is there and of this version: `make native` makes it anew."""
    try:
        library = ctypes.CDLL(str(_HERE / path))
    except OSError:
        return None
    told = getattr(library, f"{Path(path).stem}_version")()
    return library if told == version else None


def declare(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> None:
    """Say what a function of a library takes and gives; a pointer to an array is given as the array's ctypes."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
