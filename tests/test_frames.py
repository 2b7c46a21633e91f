"""Frames are found by their headers, where a decompressor finds them."""

import random
import shutil
import subprocess
import sys

import pytest

from shardmill.documents.long_values import BytesReader
from shardmill.io import frames
from shardmill.io.frames import next_frame
from shardmill.io.reading import InputReader

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


def packed(seed, count):
    """Frames of texts of many kinds, and where each begins."""
    chance, data, starts = random.Random(seed), b"", []
    options = zstd.CompressionParameter
    for number in range(count):
        text = chance.choice(
            [b"", b"a", b"x" * 400_000, chance.randbytes(300_000), b"mill " * chance.randrange(60_000)]
        )
        flags = {options.checksum_flag: number & 1, options.content_size_flag: number >> 1 & 1}
        starts.append(len(data))
        data += (
            SKIPPABLE
            if number % 7 == 3
            else zstd.compress(text, options={**flags, options.window_log: 10 + number % 12})
        )
    return data, starts


@pytest.fixture(params=["in Python", "in C"])
def source_of(request, tmp_path):
    """A Reader of some bytes; the headers in a local file are read in C."""

    def source_of(data):
        (tmp_path / "a").write_bytes(data)
        return BytesReader("a", data) if request.param == "in Python" else InputReader(str(tmp_path / "a"))

    return source_of


def test_every_frame_is_found_from_any_before_it(source_of):
    for seed in range(6):
        data, starts = packed(seed, 40)
        source = source_of(data)
        for first in (0, starts[9]):
            found, at = [], next_frame(source, first, first + 1)
            while at is not None:
                found.append(at)
                at = next_frame(source, at, at + 1)
            assert found == [start for start in starts if start > first]
        for offset in random.Random(seed).choices(range(len(data)), k=50):
            assert next_frame(source, 0, offset) == min((s for s in starts if s >= offset), default=None)


def test_what_makes_no_sense_or_is_cut_off_has_no_more_frames(source_of):
    data, starts = packed(1, 30)
    for at in range(0, len(data), 4001):
        found = next_frame(source_of(data[:at]), 0, at // 2)
        assert found is None or found in starts
    assert next_frame(source_of(data), 1, 50) is None
    assert next_frame(source_of(b"\x28\xb5\x2f\xfd"), 0, 4) is None
    assert next_frame(source_of(b"\x28\xb5\x2f\xfd\x04\x00" + b"\xff" * 90), 0, 50) is None


def test_a_frame_is_looked_for_nearby_only(monkeypatch, source_of):
    data = zstd.compress(random.Random(0).randbytes(2_000_000)) + zstd.compress(b"a")
    assert next_frame(source_of(data), 0, 10) > 2_000_000
    monkeypatch.setattr(frames, "_FAR", 500_000)
    assert next_frame(source_of(data), 0, 10) is None


@pytest.mark.skipif(not shutil.which("pzstd"), reason="pzstd is not installed")
def test_what_pzstd_writes_has_frames(tmp_path):
    (tmp_path / "a").write_bytes(random.Random(0).randbytes(5_000_000).hex().encode())
    subprocess.run(["pzstd", "-q", "-1", "-p", "2", "a"], cwd=tmp_path, check=True)
    source = BytesReader("a", (tmp_path / "a.zst").read_bytes())
    at = next_frame(source, 0, 1_000_000)
    while source.read(at, 4)[1:] == SKIPPABLE[1:4]:  # pzstd tells the length of each frame in one of these
        at = next_frame(source, at, at + 1)
    assert zstd.ZstdDecompressor().decompress(source.read(at, 1 << 20))
