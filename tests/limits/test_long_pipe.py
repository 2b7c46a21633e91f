"""A compressed stream of any length through a pipe, within the budget."""

import json
import shutil
import subprocess
import sys

import pytest
from peaks import LAUNCHER, MIB, SHARDMILL

pytestmark = pytest.mark.slow

# Each block of lines is new; of a long stream, many times, or Python could not write it fast enough.
WRITER = """
import sys, json, random
from backports import zstd
packer = zstd.ZstdCompressor(level=1)
rng = random.Random(1)
words = [''.join(rng.choices('abcdefghijklmnopqrstuvwxyz', k=rng.randint(2, 9))) for _ in range(50_000)]
written, number, size = 0, 0, int(sys.argv[1])
while written < size:
    lines = []
    for _ in range(64):
        text = ' '.join(rng.choices(words, k=300))
        lines.append(json.dumps({'id': number, 'text': text + f' {number}.'}) + '\\n')
        number += 1
    block = ''.join(lines).encode()
    copies = max(1, (16 << 20) // len(block)) if size > 1 << 30 else 1
    for _ in range(copies):
        written += len(block)
        sys.stdout.buffer.write(packer.compress(block))
sys.stdout.buffer.write(packer.flush())
"""


@pytest.mark.parametrize("size", [50_000_000, 20_000_000_000])
def test_json_lines_in_zstd_through_a_pipe_stay_within_512_mib(tmp_path, size):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(size)], stdout=subprocess.PIPE)
    options = ["--input-format", "jsonl", "--max-memory", "512MiB", "--workers", "2", "-q", "--progress", "none"]
    command = [sys.executable, "-c", LAUNCHER, SHARDMILL, "prepare", "-", "-o", str(tmp_path / "out"), *options]
    done = subprocess.run(command, stdin=writer.stdout, capture_output=True, text=True)
    writer.stdout.close()
    assert done.returncode == 0 and writer.wait() == 0, done.stderr
    peak = int(done.stdout) << 10
    assert peak <= 512 * MIB, f"{peak / MIB:.0f} MiB"
    counts = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
    assert counts["documents"] > 1000 and counts["documents_rejected"] == counts["documents_empty"] == 0
    shutil.rmtree(tmp_path / "out")
