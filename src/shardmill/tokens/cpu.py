"""Which of its code paths the native engine takes on this CPU."""

import platform
from pathlib import Path

# What native/engine.c asks the compiler for, in the words of /proc/cpuinfo.
_AVX512 = {"avx512_vbmi2", "avx512vbmi", "avx512bw", "avx512dq", "avx512vl", "bmi2"}


def cpu_path(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """AVX-512 or portable.

    >>> cpu_path()
    'AVX-512'
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return "portable"
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return "portable"
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return "AVX-512" if set(flags) >= _AVX512 else "portable"
