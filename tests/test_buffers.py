"""Buffers are reused only when nobody has them, and memory is given back."""

import random
import subprocess
import sys
import threading

import numpy as np

from shardmill.system import buffers

MIB = 1 << 20


def test_no_buffer_is_ever_in_two_hands():
    """Threads write their number to all of a buffer, and find it there later. The pool once handed a buffer out between
    two bytecodes of the thread that had just got it."""
    wrong, before = [], sys.getswitchinterval()

    def use(number):
        rng, held = random.Random(number), []
        with buffers.used_again():
            for step in range(1500):
                some = buffers.take(rng.choice([MIB // 4, MIB // 4 + 100, MIB // 3]))
                some[:: MIB // 16] = number
                held.append(some)
                if len(held) > rng.randrange(4):
                    wrong.extend(step for kept in held if not (kept[:: MIB // 16] == number).all())
                    held.clear()

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong and not buffers._free


def test_no_more_is_kept_than_was_in_use_at_once():
    """In the end, nothing is kept but what someone has."""
    with buffers.used_again():
        last = []
        for n in (*range(1, 30), *range(30, 1, -1)):
            last = [*last[-2:], buffers.take(n * MIB)]
            assert buffers._mapped <= 4 * 30 * MIB + buffers._SLACK
        last[-1][:] = 7
    assert not buffers._free
    assert (last[-1] == 7).all()


def test_memory_is_mapped_once_and_unmapped_at_the_end():
    """Measured in a process of its own; huge pages or not."""
    code = """
import re
from shardmill.system import buffers
def resident(what):
    return int(re.search(rf"{what}:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) >> 10
before = resident("VmRSS")
with buffers.used_again():
    for _ in range(200):
        some = buffers.take(8 << 20)
        some[:] = 1
        del some
print(resident("VmHWM") - before, resident("VmRSS") - before)
"""
    peak, end = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    assert peak <= 12 and end <= 3


def test_a_thread_outside_and_small_buffers_come_from_numpy():
    assert buffers.take(2 * MIB).base is None
    with buffers.used_again():
        assert buffers.take(1000).base is None
        assert isinstance(buffers.take(2 * MIB), np.ndarray) and buffers._mapped


def test_what_is_not_used_of_a_buffer_takes_no_memory():
    """In huge pages, the rest of each would be there, too: sixteen workers took 150 MiB more."""
    code = """
import re
from shardmill.system import buffers
def resident():
    return int(re.search("VmRSS:[^0-9]+([0-9]+) kB", open("/proc/self/status").read())[1]) >> 10
before, held = resident(), []
with buffers.used_again():
    for _ in range(10):
        held.append(buffers.take(64 << 20, used=6 << 20))
        held[-1][: 7 << 20] = 1
        held[-1][32 << 20 : 33 << 20] = 1
    print(resident() - before)
"""
    assert 75 <= int(subprocess.check_output([sys.executable, "-c", code])) <= 85
