"""A compressed file of many parts is begun anew at the part that is needed, not at its beginning."""

import bz2
import gzip
import lzma
import random
import shutil
import subprocess
import sys
import zlib

import pytest

from shardmill.documents.long_values import BytesReader
from shardmill.io import compression
from shardmill.io.compression import Decompressed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PARTS = [random.Random(i).randbytes(50_000).hex().encode() for i in range(12)]
KINDS = {"gzip": gzip.compress, "zstd": zstd.compress, "bzip2": bz2.compress, "xz": lzma.compress}


class Watched(BytesReader):
    """Remembers how much was read."""

    taken = 0

    def read(self, offset, length):
        data = super().read(offset, length)
        self.taken += len(data)
        return data


def assert_begun_in_the_middle(packed, kind):
    text = b"".join(PARTS)
    whole = Decompressed(BytesReader("a", packed), kind)
    for offset in (0, 10, 100_000, 250_003, 999_999, 1_150_000):
        whole.done_until(offset)
        assert whole.read(offset, 1000) == text[offset : offset + 1000]
        frame, before = whole.frame(offset)
        assert before <= offset < before + 200_000
        source = Watched("a", packed)
        again = Decompressed(source, kind)
        again.read(0, 4096)  # every format looks at the beginning first
        again.begin(frame, before)
        again.done_until(offset)
        assert again.read(offset, 1000) == text[offset : offset + 1000]
        assert again.spent(offset) == whole.spent(offset)
        assert again.frame(offset) == (frame, before)
        assert again.read(offset, len(text) + 1) == text[offset:] and again.size == len(text)
        assert source.taken <= len(packed) - frame + (192 << 10)
        assert again.read(5, 10) == text[5:15]  # going back still means starting over


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_many_parts_is_begun_at_the_part_that_is_needed(kind):
    assert_begun_in_the_middle(b"".join(map(KINDS[kind], PARTS)), kind)


def test_gzip_without_the_fast_library(monkeypatch):
    monkeypatch.setattr(compression, "deflate", zlib)
    assert_begun_in_the_middle(b"".join(map(gzip.compress, PARTS)), "gzip")


@pytest.mark.parametrize("library", ["fast", "slow"])
def test_a_damaged_gzip_file_is_seen_as_such_by_either_library(monkeypatch, library):
    if library == "slow":
        monkeypatch.setattr(compression, "deflate", zlib)
    packed = gzip.compress(b"".join(PARTS))
    kept = {packed[:-3]: 1_200_000, packed[:300_000]: 525_830, packed[:-8] + b"\0" * 8: 1_149_811}
    for damaged, least in kept.items():
        reader = Decompressed(BytesReader("a", damaged), "gzip")
        text = reader.read(0, 2_000_000)
        assert b"".join(PARTS).startswith(text) and reader.damage is not None
        assert least <= len(text) < least + 10  # the last bytes before the break may be had or not


def test_frames_with_a_table_between_them_that_is_to_be_skipped():
    skip = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    assert_begun_in_the_middle(skip + b"".join(skip + zstd.compress(part) for part in PARTS) + skip, "zstd")


@pytest.mark.skipif(not shutil.which("pzstd"), reason="pzstd is not installed")
def test_what_pzstd_writes_is_begun_at_the_frame_that_is_needed(tmp_path):
    (tmp_path / "a").write_bytes(b"".join(PARTS) * 40)
    subprocess.run(["pzstd", "-q", "-1", "-p", "2", "a"], cwd=tmp_path, check=True)
    reader = Decompressed(BytesReader("a", (tmp_path / "a.zst").read_bytes()), "zstd")
    reader.done_until(40_000_000)
    assert reader.read(40_000_000, 100) == (b"".join(PARTS) * 40)[40_000_000:][:100]
    assert reader.frame(40_000_000)[1] > 1_000_000
