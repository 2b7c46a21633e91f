"""What happens to an input while it is read: each is a context in which a run meets it, sooner or later."""

import contextlib
import errno
import os
import threading
from pathlib import Path
from unittest.mock import patch

import stores

from servers import Fault
from shardmill.io import open_files, storage


def _at_step(rng, happen):
    """Do it once, at one of the first steps of the commit protocol."""
    left, lock = rng.choice([1, 2, 3, 6, 12]), threading.Lock()

    def watch(_step):
        nonlocal left
        with lock:
            left -= 1
            due = left == 0
        if due:
            happen()

    return patch.object(storage, "watch", watch)


def edit(rng, inputs):
    path = Path(rng.choice(inputs))
    place = rng.random()

    def happen():
        with open(path, "r+b") as f:
            at = int(place * path.stat().st_size)
            f.seek(at)
            old = f.read(1)
            f.seek(at)
            f.write(b"Q" if old != b"Q" else b"R")

    return _at_step(rng, happen)


def swap(rng, inputs):
    """Another file of the same size takes its name."""
    path = Path(rng.choice(inputs))
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    return _at_step(rng, lambda: os.replace(other, path))


def _fails(rng, inputs, module, name, code):
    """The n-th such call on one of the inputs fails, and perhaps every later one."""
    real, target, left = getattr(module, name), rng.choice(inputs), rng.choice([2, 3, 4, 6, 9])
    for_good = rng.random() < 0.5
    lock = threading.Lock()

    def failing(what, *args, **options):
        nonlocal left
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        if path == target:
            with lock:
                left -= 1
            if left == 0 or (left < 0 and for_good):
                raise OSError(code, os.strerror(code), path)
        return real(what, *args, **options)

    return patch.object(module, name, failing)


@contextlib.contextmanager
def denied(rng, inputs):
    """A file that stays open cannot be denied, so it does not."""
    with patch.object(open_files, "_MOST_OPEN", 0), _fails(rng, inputs, os, "open", errno.EACCES):
        yield


def unreadable(rng, inputs):
    return _fails(rng, inputs, os, "pread", errno.EIO)


@contextlib.contextmanager
def forbidden(rng, inputs):
    """The server says 403 from some request for one of the files on."""
    server, path = stores.files(), "/" + rng.choice(inputs).split("/", 3)[3]
    server.faults[path] = [None] * rng.choice([1, 2, 3, 5, 8]) + [Fault("status", status=403)] * 10_000
    try:
        yield
    finally:
        server.faults.clear()


MISHAPS = {"edit": edit, "swap": swap, "denied": denied, "unreadable": unreadable, "forbidden": forbidden}
