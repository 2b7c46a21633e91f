"""Texts that are hard on memory, and the real command on them, with the most memory it ever had."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MB = 1_000_000
MIB = 1 << 20
SHARDMILL = str(Path(sys.executable).with_name("shardmill"))
# The kernel counts what a process had before exec, too, and pytest is large: a small process starts the command.
LAUNCHER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
_HUNG_SECONDS = 240
RESULT = ("train.bin", "val.bin", "token_bytes.npy", "manifest.json", "manifest.inputs.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one run of the command did; peak is in bytes."""

    code: int
    message: str
    peak: int
    files: dict[str, str]


def mill(text, output, max_memory, *options):
    """`shardmill prepare` within max_memory MiB; the output is digested and removed."""
    command = [SHARDMILL, "prepare", str(text), "-o", str(output), "--max-memory", f"{max_memory}MiB", "-q", *options]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, *command],
        capture_output=True,
        env={**os.environ, "XDG_CACHE_HOME": str(output.parent / "cache")},
        timeout=_HUNG_SECONDS,
    )
    peak = int(done.stdout.split()[-1]) * 1024
    return Outcome(code=done.returncode, message=done.stderr.decode(), peak=peak, files=_digests(output))


def mill_within(text, output, max_memory, *options):
    """As mill; the run must succeed and keep within max_memory."""
    outcome = mill(text, output, max_memory, *options)
    assert outcome.code == 0, outcome.message
    assert outcome.peak <= max_memory * MIB, f"{outcome.peak / MIB:.0f} MiB, of {max_memory} allowed"
    return outcome


def smallest(text, output, *options):
    """The MiB that a run with far too little memory says would be enough."""
    refused = mill(text, output, 1, *options)
    assert refused.code == 2, refused.message
    while to_load := re.search(r"to load, .*pass --max-memory (\d+)MiB or more", refused.message):
        refused = mill(text, output, int(to_load[1]), *options)
    return int(re.search(r"smallest that works is (\d+)MiB", refused.message).group(1))


def _digests(output):
    """What must not depend on limits: the tokens and the manifest. They are removed, so that the folder can be used again."""
    digests = {}
    for file in filter(Path.exists, (output / name for name in RESULT)):
        digests[file.name] = hashlib.blake2b(file.read_bytes()).hexdigest()
        file.unlink()
    return digests


def unseen_words():
    """Words of 5 to 12 letters, none of them twice: counters, scrambled by a factor that is prime to 26."""
    for start in itertools.count(step=4096):
        counter = np.arange(start, start + 4096, dtype=np.int64)
        for length in range(5, 13):
            code = counter * 1_000_000_007 % 26**length
            letters = np.full((len(counter), length + 1), ord(" "), np.uint8)
            for place in range(length):
                letters[:, place] = ord("a") + code // 26**place % 26
            yield letters.tobytes()


def documents():
    """One-line documents, no two alike."""
    for number in itertools.count():
        yield b"%08d is the number of this document\n" % number


def random_of(alphabet):
    """Characters of an alphabet in any order, all on one line."""
    rng = np.random.default_rng(0)
    table = np.array(list(alphabet))
    while True:
        yield "".join(table[rng.integers(0, len(table), MIB // 4)]).encode()


def again(text):
    """The same few characters, or bytes, for ever."""
    data = text if isinstance(text, bytes) else text.encode()
    yield from itertools.repeat(data * (MIB // len(data)))


def write(file, pieces, size):
    """About size bytes of pieces, the last one whole."""
    with open(file, "wb") as f:
        while f.tell() < size:
            f.write(next(pieces))
    return file
