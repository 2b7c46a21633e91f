"""What measures locks and the GIL tells the truth about programs whose truth is known."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "tools"
HAS_HEADERS = (Path(sysconfig.get_paths()["include"]) / "internal/pycore_runtime.h").exists()


def told(path, program):
    """What a program prints that has the tool at hand; it is a process of its own, whose locks are replaced."""
    begin = f"import sys, json, time, threading; sys.path.insert(0, {str(TOOLS)!r}); import bench_cores_job as job\n"
    path.write_text(begin + program)
    return json.loads(subprocess.run([sys.executable, path], check=True, stdout=-1, text=True).stdout)


def test_locks_are_named_and_timed_and_still_work(tmp_path):
    program = """
locks = job.time_locks()
import queue
own = threading.Lock()
again = threading.RLock()
turn = threading.Condition()
line = queue.Queue()
def hold():
    with turn:
        turn.wait_for(lambda: own.locked(), 5)
    with again, again:
        time.sleep(0.05)
    line.put(1)
thread = threading.Thread(target=hold)
thread.start()
time.sleep(0.05)
with own:
    time.sleep(0.1)
    with turn:
        turn.notify_all()
    thread.join()
assert line.get() == 1 and not own.locked()
print(json.dumps({each.name.split()[-1]: [each.wall, each.cpu, each.times] for each in locks}))
"""
    found = told(tmp_path / "program.py", program)
    assert 0.14 < found["own"][0] < 0.5 and found["own"][2] == 1
    assert 0.04 < found["again"][0] < 0.3 and found["again"][2] == 1
    assert found["turn"][0] < 0.05, "a lock is not held while its condition is waited for"
    assert "line" in found and all(cpu <= wall + 0.01 for wall, cpu, _ in found.values())


def test_calls_of_python_and_opens_are_counted_in_every_thread(tmp_path):
    program = """
def called(): pass
def work():
    for _ in range(1000): called()
hops = job.Hops()
threads = [threading.Thread(target=work) for _ in range(2)]
work()
hops.start()
for thread in threads: thread.start()
for thread in threads: thread.join()
import os; os.close(os.open(__file__, os.O_RDONLY))
print(json.dumps(hops.stop()))
"""
    found = told(tmp_path / "program.py", program)
    assert 2000 < found["calls"] < 2300 and found["opens"] == 1


@pytest.mark.skipif(not HAS_HEADERS, reason="the headers of this Python are not installed")
def test_the_meter_of_the_gil_tells_who_holds_it(tmp_path):
    program = """
meter, shares = job.library(), {}
def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
threads = [threading.Thread(target=busy, args=(0.3,)) for _ in range(8)]
for name, work in {
    "busy": lambda: busy(0.3),
    "asleep": lambda: time.sleep(0.3),
    "many": lambda: [each(thread) for each in (threading.Thread.start, threading.Thread.join) for thread in threads],
}.items():
    clock = job.Clock(meter, [])
    clock.start()
    work()
    clock.stop()
    shares[name] = [clock.gil["held"] / clock.wall, clock.gil["running"] / clock.wall, clock.cpu / clock.wall]
print(json.dumps(shares))
"""
    for _ in range(5):  # on a busy machine the meter itself may get no core
        shares = told(tmp_path / "program.py", program)
        held = shares["busy"][0] > 0.95 and shares["asleep"][0] < 0.05 and shares["many"][0] > 0.95
        # A thread that waits for a core does not run.
        runs = sys.version_info < (3, 11) or all(abs(running - cpu) < 0.2 for _, running, cpu in shares.values())
        if held and runs:
            return
    pytest.fail(f"{shares}")
