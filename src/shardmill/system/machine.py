"""What this machine, container or Slurm job allows: cores and memory, and how much of it is in use."""

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
# A limit at or above this is how cgroup v1 writes "none".
_NO_LIMIT = 1 << 60
# The mill makes itself small when less than this is available, or other programs wait so much for memory.
_SCARCE = 512 * MIB
_PRESSURE_PERCENT = 10.0


def cores() -> int:
    """The cores this process may keep busy: affinity and cgroup truncation respected, at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        allowed = os.cpu_count() or 1
    truncation = min(_cpu_quotas(), default=float(allowed))
    return max(1, min(allowed, int(truncation)))


def memory() -> int:
    """The bytes of memory this process may ever hope for: physical, or the cgroup's limit if lower."""
    return min([_physical_memory(), *_memory_limits()])


def rss() -> int:
    """Resident bytes of this process now; its peak where the system tells no more."""
    statm = _statm()
    if statm is None:
        return _peak_rss_by_rusage()
    return int(os.pread(statm, 64, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_rss() -> int:
    """The most bytes of memory that were ever resident in this process."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as f:
        for line in f:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) << 10
    return _peak_rss_by_rusage()


def available_memory() -> int:
    """Bytes that the system could give out now without swapping."""
    with contextlib.suppress(OSError), open("/proc/meminfo", "rb") as f:
        for line in f:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    return _physical_memory()


def keep_freed_memory() -> None:
    """Have the C allocator reuse freed blocks instead of giving each back and faulting it in again: 5 % of the time.

    give_back_freed_memory() still does what it says.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
            mallopt(_M_TRIM_THRESHOLD, 32 * MIB)


def under_pressure(root: Path = Path("/")) -> bool:
    """Whether other programs need memory badly: almost none is available, or they wait for it a tenth of the time."""
    with contextlib.suppress(OSError, ValueError):
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE))
        if int(found.get("MemAvailable", _NO_LIMIT)) << 10 < min(_SCARCE, int(found.get("MemTotal", 0)) << 10 >> 5):
            return True
    with contextlib.suppress(OSError, ValueError):
        waits = re.search(r"^full avg10=([0-9.]+)", (root / "proc/pressure/memory").read_text(), re.MULTILINE)
        return waits is not None and float(waits[1]) > _PRESSURE_PERCENT
    return False


def give_back_freed_memory() -> None:
    """Ask the C allocator to return what it holds but does not use; a no-op where it cannot."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> "ctypes._NamedFuncPointer | None":
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # musl has none
        return None


@lru_cache(maxsize=1)
def _statm() -> int | None:
    """An open descriptor: this is read before every block."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not Linux
        return None


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 << 30  # Windows does not tell without extra packages; a common size


def _peak_rss_by_rusage() -> int:
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and all its ancestors: a limit on any of them binds."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        folder = base / path.lstrip("/")
        # In a container the path is that of the host and is not there; the limit sits at the mount.
        yield from (p for p in [folder, *folder.parents] if p == base or base in p.parents)


def _memory_limits(root: Path = Path("/")) -> Iterator[int]:
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / name).read_text())
                if 0 < limit < _NO_LIMIT:
                    yield limit


def _cpu_quotas(root: Path = Path("/")) -> Iterator[float]:
    for folder in _cgroup_folders(root, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            truncation, period = (folder / "cpu.max").read_text().split()
            yield int(truncation) / int(period)  # "max" raises ValueError: no limit
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                yield quota_us / int((folder / "cpu.cfs_period_us").read_text())
