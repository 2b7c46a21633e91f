"""Loads the C libraries that hatch_build.py compiled: a wheel has them, `make native` makes them in a checkout."""

import ctypes
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.errors import ShardmillError
from shardmill.system.names import show

if TYPE_CHECKING:
    import numpy.typing as npt

_LIBRARIES = ("tokens/native/engine.so", "documents/native/lines.so", "feed/native/spans.so", "io/native/unzstd.so")
_PACKAGE = Path(str(resources.files("shardmill")))


def load(path: str, version: int) -> ctypes.CDLL:
    """The library at a path inside the package; an error if it is missing or of another version than its caller."""
    file = _PACKAGE / path
    try:
        library = ctypes.CDLL(str(file))
    except OSError as e:
        raise _broken(file, f"cannot be loaded ({e})" if file.exists() else "is missing") from None
    found = getattr(library, f"{file.stem}_version")()
    if found != version:
        raise _broken(file, f"is version {found}, and the Python around it needs version {version}")
    return library


def quick(library: ctypes.CDLL) -> ctypes.PyDLL:
    """The same library for calls so short that they keep the GIL: taking it back from other threads would cost more."""
    return ctypes.PyDLL(library._name)


def declare(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> None:
    """Declare the result and argument types of a C function; arrays are passed as pointers (address)."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


def function(library: ctypes.CDLL, name: str) -> int:
    """Where a function of a library is, for other C to call it."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def address(array: "npt.NDArray[Any]") -> int:
    """Where an array begins, for C. As array.ctypes.data, in a fifth of the time for most of them."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # it is read-only, empty or has gaps
        return int(array.ctypes.data)


def problems() -> list[str]:
    """A message for each library that is missing."""
    return [str(_broken(_PACKAGE / path, "is missing")) for path in _LIBRARIES if not (_PACKAGE / path).exists()]


def _broken(file: Path, why: str) -> ShardmillError:
    is_checkout = (_PACKAGE.parents[1] / "hatch_build.py").is_file()
    remedy = "run `make native`" if is_checkout else "reinstall: pip install --force-reinstall --no-cache-dir shardmill"
    return ShardmillError(f"{show(file)}: {why}; {remedy}")
