"""What this machine, container or Slurm job allows: cores and memory, and how much memory is in use."""

import contextlib
import ctypes
import os
import re
import resource
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MIB = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_SYNC_FILE_RANGE_WRITE = 2  # from Linux's fs.h
# cgroup v1 writes "no limit" as a number at or above this.
_NO_LIMIT = 1 << 60
_MANY_DESCRIPTORS = 1 << 16
# Memory pressure: less than this is available, or other programs stall on memory for this share of the time.
_SCARCE = 512 * MIB
_PRESSURE_PERCENT = 10.0


def cores() -> int:
    """The cores this process may keep busy, at least 1: CPU affinity and cgroup quotas are respected."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        allowed = os.cpu_count() or 1
    return max(1, int(min([allowed, *_cpu_quotas()])))


def memory() -> int:
    """The most memory this process could use, in bytes: the physical memory, or the cgroup's limit if lower."""
    return min([_physical_memory(), *_memory_limits()])


def rss() -> int:
    """Resident memory of this process in bytes; its peak on systems that report only that."""
    statm = _statm()
    if statm is None:
        return _peak_rss_by_rusage()
    return int(os.pread(statm, 64, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_rss() -> int:
    """Peak resident memory of this process in bytes."""
    return _proc_bytes("/proc/self/status", "VmHWM") or _peak_rss_by_rusage()


def available_memory() -> int:
    """Memory that the system could hand out now without swapping, in bytes."""
    return _proc_bytes("/proc/meminfo", "MemAvailable") or _physical_memory()


def descriptors() -> int:
    """How many files this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else _MANY_DESCRIPTORS


def begin_to_write(fd: int, offset: int, length: int) -> None:
    """Ask the system to write these bytes of a file to the disk soon, without waiting for it; Linux only."""
    if (begin := _sync_file_range()) is not None:
        begin(fd, offset, length, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> "ctypes._CFunctionType | None":
    found = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
    if found is not None:
        found.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
    return found


def under_pressure(root: Path = Path("/")) -> bool:
    """Whether the whole machine is short of memory: hardly any available, or programs stall on it a tenth of the time."""
    available, total = (_proc_bytes(root / "proc/meminfo", name) for name in ("MemAvailable", "MemTotal"))
    if available is not None and available < min(_SCARCE, (total or 0) >> 5):
        return True
    with contextlib.suppress(OSError, ValueError):
        stalled = re.search(r"^full avg10=([0-9.]+)", (root / "proc/pressure/memory").read_text(), re.MULTILINE)
        return stalled is not None and float(stalled[1]) > _PRESSURE_PERCENT
    return False


def keep_freed_memory() -> None:
    """Have malloc reuse freed blocks instead of unmapping each and faulting it in again: saves 5 % of the run time.

    This changes malloc for the whole process and cannot be undone, so only the command line calls it.
    """
    if (libc := _libc()) is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
        libc.mallopt(_M_TRIM_THRESHOLD, 32 * MIB)


def give_back_freed_memory() -> None:
    """Have malloc return its unused memory to the system; does nothing where malloc cannot (musl, macOS)."""
    if (libc := _libc()) is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform.startswith("linux") else None


@cache
def _statm() -> int | None:
    """A descriptor that stays open: rss() is called before every block."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not Linux
        return None


def _proc_bytes(path: str | Path, name: str) -> int | None:
    """A figure that a file in /proc gives in kB, in bytes; None where there is no such file or figure."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(errors="replace"), re.MULTILINE)
        return int(found[1]) << 10 if found else None
    return None


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _peak_rss_by_rusage() -> int:
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
        # In a container this is the host's path, which does not exist there; the limit is at the mount point.
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
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)  # "max" raises ValueError: no limit
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                yield quota_us / int((folder / "cpu.cfs_period_us").read_text())
