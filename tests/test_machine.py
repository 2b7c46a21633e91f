"""What the machine allows, read from made-up /proc and /sys trees, and what this process takes of it."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.system import machine
from shardmill.system.machine import MIB

GIB = 1 << 30
V1_NO_LIMIT = 9223372036854771712  # what cgroup v1 writes where there is none


def tree(root, files):
    """A made-up file system: path below root → content."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def memory_limit(root):
    return min(machine._memory_limits(root), default=None)


def cpu_quota(root):
    return min(machine._cpu_quotas(root), default=None)


# ---- cgroup v2: one tree


def test_v2_the_limit_of_the_own_group_is_found(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/mill",
            "sys/fs/cgroup/jobs/mill/memory.max": 2 * GIB,
            "sys/fs/cgroup/jobs/mill/cpu.max": "150000 100000",
        },
    )
    assert memory_limit(root) == 2 * GIB
    assert cpu_quota(root) == 1.5


@pytest.mark.parametrize(("outer", "inner"), [(1, 4), (4, 1)])
def test_v2_the_lowest_limit_on_the_way_up_binds(tmp_path, outer, inner):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/user/mill",
            "sys/fs/cgroup/jobs/memory.max": outer * GIB,
            "sys/fs/cgroup/jobs/cpu.max": f"{outer}00000 100000",
            "sys/fs/cgroup/jobs/user/memory.max": "max",
            "sys/fs/cgroup/jobs/user/cpu.max": "max 100000",
            "sys/fs/cgroup/jobs/user/mill/memory.max": inner * GIB,
            "sys/fs/cgroup/jobs/user/mill/cpu.max": f"{inner}00000 100000",
        },
    )
    assert memory_limit(root) == 1 * GIB
    assert cpu_quota(root) == 1


def test_v2_max_is_no_limit(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": "max",
            "sys/fs/cgroup/memory.high": "max",
            "sys/fs/cgroup/cpu.max": "max 100000",
        },
    )
    assert memory_limit(root) is None
    assert cpu_quota(root) is None


def test_v2_the_mark_above_which_the_kernel_slows_a_group_down_counts_as_its_limit(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/mill",
            "sys/fs/cgroup/mill/memory.max": 4 * GIB,
            "sys/fs/cgroup/mill/memory.high": 3 * GIB,
        },
    )
    assert memory_limit(root) == 3 * GIB


def test_v2_in_a_container_the_limit_at_the_mount_is_found(tmp_path):
    # The path is the host's, and is not there inside.
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod7/c0ffee",
            "sys/fs/cgroup/memory.max": 512 * MIB,
            "sys/fs/cgroup/cpu.max": "200000 100000",
        },
    )
    assert memory_limit(root) == 512 * MIB
    assert cpu_quota(root) == 2


def test_v2_a_group_outside_the_mount_is_bound_by_the_limit_at_the_mount(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../other",
            "sys/fs/cgroup/memory.max": 512 * MIB,
        },
    )
    assert memory_limit(root) == 512 * MIB


# ---- cgroup v1: a tree for each controller


def test_v1_the_limit_of_the_own_group_is_found(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/jobs/mill\n3:cpu,cpuacct:/jobs/mill\n1:name=systemd:/user",
            "sys/fs/cgroup/memory/jobs/mill/memory.limit_in_bytes": 3 * GIB,
            "sys/fs/cgroup/cpu/jobs/mill/cpu.cfs_quota_us": 250000,
            "sys/fs/cgroup/cpu/jobs/mill/cpu.cfs_period_us": 100000,
        },
    )
    assert memory_limit(root) == 3 * GIB
    assert cpu_quota(root) == 2.5


def test_v1_the_limit_of_a_slurm_job_binds_its_step(tmp_path):
    path = "slurm/uid_7/job_42"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:/{path}/step_0",
            f"sys/fs/cgroup/memory/{path}/memory.limit_in_bytes": 8 * GIB,
            f"sys/fs/cgroup/memory/{path}/step_0/memory.limit_in_bytes": V1_NO_LIMIT,
        },
    )
    assert memory_limit(root) == 8 * GIB


def test_v1_huge_limits_and_negative_quotas_are_no_limits(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NO_LIMIT,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
        },
    )
    assert memory_limit(root) is None
    assert cpu_quota(root) is None


def test_v1_in_a_container_the_limit_at_the_mount_is_found(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/c0ffee",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 512 * MIB,
        },
    )
    assert memory_limit(root) == 512 * MIB


def test_a_controller_is_not_taken_for_another_whose_name_it_begins(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpuset:/mill\n3:cpu,cpuacct:/",
            "sys/fs/cgroup/cpu/mill/cpu.cfs_quota_us": 100000,
            "sys/fs/cgroup/cpu/mill/cpu.cfs_period_us": 100000,
        },
    )
    assert cpu_quota(root) is None


# ---- neither


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert memory_limit(tmp_path) is None
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize("content", ["", "nonsense", "-1", "0"])
def test_a_limit_that_makes_no_sense_is_no_limit(tmp_path, content):
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": content})
    assert memory_limit(root) is None


@pytest.mark.parametrize(("quotas", "expected"), [([], 8), ([0.5], 1), ([2.5, 6.0], 2), ([64.0], 8)])
def test_cores_are_whole_at_least_one_and_no_more_than_are_there(monkeypatch, quotas, expected):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_cpu_quotas", lambda: iter(quotas))
    assert machine.cores() == expected


@pytest.mark.parametrize(("limits", "expected"), [([], 16), ([4 * GIB, 2 * GIB], 2), ([64 * GIB], 16)])
def test_memory_is_what_is_there_or_the_lowest_limit(monkeypatch, limits, expected):
    monkeypatch.setattr(machine, "_physical_memory", lambda: 16 * GIB)
    monkeypatch.setattr(machine, "_memory_limits", lambda: iter(limits))
    assert machine.memory() == expected * GIB


# ---- this process


def measured(code):
    """What a process of its own prints: in this one, the threads of other tests take and free memory too."""
    code = f"import os\nfrom shardmill.system import machine\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return list(map(int, done.stdout.split()))


def test_memory_that_is_used_shows_and_its_peak_stays():
    before, during, peak = measured("""
before = machine.rss()
used = bytearray(os.urandom(64) * machine.MIB)
during = machine.rss()
del used
print(before, during, machine.peak_rss())
""")
    assert 60 * MIB < during - before < 100 * MIB
    assert peak >= during - MIB  # the kernel's two counters differ by a few pages


def test_a_machine_knows_what_it_has():
    assert machine.cores() >= 1
    assert 0 < machine.available_memory() <= machine._physical_memory()
    assert 0 < machine.memory() <= machine._physical_memory()


def test_without_proc_the_peak_stands_for_what_is_used(monkeypatch):
    monkeypatch.setattr(machine, "_statm", lambda: None)
    assert machine.rss() == machine._peak_rss_by_rusage() > MIB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told to")
def test_freed_memory_goes_back_to_the_system():
    # Every other small block is kept, so that the allocator cannot give the rest back by itself.
    during, after = measured("""
blocks = [b"x" * (100 << 10) for _ in range(1000)]
kept = blocks[::2]
during = machine.rss()
del blocks
machine.give_back_freed_memory()
print(during, machine.rss())
""")
    assert during - after > 30 * MIB


def test_the_functions_look_at_the_real_system_by_default():
    assert set(machine._memory_limits()) == set(machine._memory_limits(Path("/")))


MEMINFO = "MemTotal:       {total} kB\nMemFree:          1000 kB\nMemAvailable:   {available} kB\n"
PRESSURE = "some avg10=40.00 avg60=0.00 avg300=0.00 total=1\nfull avg10={full} avg60=0.00 avg300=0.00 total=1\n"


@pytest.mark.parametrize(
    ("total", "available", "full", "pressed"),
    [
        (16 << 20, 8 << 20, "0.00", False),
        (16 << 20, 8 << 20, "9.99", False),
        (16 << 20, 8 << 20, "12.50", True),
        (16 << 20, 400 << 10, "0.00", True),
        (1 << 20, 400 << 10, "0.00", False),
        (1 << 20, 20 << 10, "0.00", True),
    ],
)
def test_pressure_from_other_programs_is_seen(tmp_path, total, available, full, pressed):
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO.format(total=total, available=available))
    (tmp_path / "proc/pressure/memory").write_text(PRESSURE.format(full=full))
    assert machine.under_pressure(tmp_path) is pressed


def test_a_system_that_tells_nothing_is_not_under_pressure(tmp_path):
    assert machine.under_pressure(tmp_path) is False


# Whether malloc gives a large block a mapping of its own, as it does unless mallopt told it otherwise: a bit of its header.
CALL = """
import ctypes, logging, signal, sys
from shardmill.cli.main import main
def state():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logging.getLogger("shardmill").handlers[:]
before = state()
if sys.argv.pop(1) == "library":
    import shardmill
    shardmill.prepare(shardmill.Spec(inputs=[sys.argv[2]], output=sys.argv[4], val_fraction=0))
else:
    try:
        main()
    except SystemExit as e:
        assert e.code == 0
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(31 << 20)
own_mapping = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2
print(bool(own_mapping), state() == before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
@pytest.mark.parametrize(("how", "expected"), [("library", "True True"), ("command", "False False")])
def test_only_the_command_line_changes_the_process_that_it_runs_in(tmp_path, how, expected):
    """As a library, shardmill leaves the caller's malloc, signal handlers and log handlers alone."""
    (tmp_path / "a.txt").write_text("some words\n" * 1000)
    args = [how, "prepare", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out"), "-q", "--val-fraction", "0"]
    done = subprocess.run([sys.executable, "-c", CALL, *args], capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr
