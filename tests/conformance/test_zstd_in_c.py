"""zstd read by C gives what zstd read through Python gives, and what decompressing the whole file at once gives: text,
frames, how much of the file was read for it, and what is said of damage, however it is read."""

import random
import subprocess
import sys
import weakref

import pytest

from shardmill.errors import InputError
from shardmill.io import compression, zstd
from shardmill.io.compression import UNCOUNTED, Decompressed
from shardmill.io.reading import InputReader

if sys.version_info >= (3, 14):
    from compression import zstd as oracle
else:
    from backports import zstd as oracle

OPTIONS = oracle.CompressionParameter
SKIPPABLE = b"\x51\x2a\x4d\x18\x05\x00\x00\x00hello"
LARGE_SKIPPABLE = b"\x50\x2a\x4d\x18" + (200_000).to_bytes(4, "little") + bytes(200_000)
WORDS = [b"mill", b"stone", b"grain", b"\n", b" ", b"water", b"wheel"]
# Blocks of input and steps of text: as they are, and so small that every border is met.
SIZES = [(64 << 10, 256 << 10), (97, 301), (4096, 700)]


def text_of(seed, size):
    chance = random.Random(seed)
    return b" ".join(chance.choices([*WORDS, chance.randbytes(9)], k=size // 5 + 1))[:size]


def packed(text, level=1, *, checksum=False, size=True, window=20):
    flags = {OPTIONS.checksum_flag: checksum, OPTIONS.content_size_flag: size}
    return oracle.compress(text, options={OPTIONS.compression_level: level, OPTIONS.window_log: window, **flags})


def many(seed, count, most):
    """Frames of all kinds."""
    chance, found = random.Random(seed), []
    for number in range(count):
        text = text_of(seed + number, chance.randrange(most))
        found.append(packed(text, checksum=number & 1, size=number >> 1 & 1, window=10 + number % 10))
        found += [SKIPPABLE] * (number % 5 == 3)
    return b"".join(found)


FILES = {
    "nothing": b"",
    "one frame": packed(text_of(1, 3_000_000)),
    "one frame of unknown length": packed(text_of(1, 700_000), size=False, checksum=True),
    "what cannot be compressed": packed(random.Random(1).randbytes(900_000), checksum=True),
    "what is compressed a thousandfold": packed(b"mill " * 400_000, 3),
    "an empty frame": packed(b""),
    "empty frames": packed(b"") * 40,
    "many frames": many(1, 30, 200_000),
    "tiny frames": many(2, 900, 40),
    "frames of one byte": packed(b"a") * 700,
    "only what is skipped": SKIPPABLE * 3,
    "much that is skipped": packed(b"a") + LARGE_SKIPPABLE * 2 + packed(b"b" * 9000) + LARGE_SKIPPABLE,
    "a large window": packed(b"a" * 5000) + packed(text_of(1, 9000), size=False, window=25),
    "something else behind": packed(text_of(4, 70_000)) + b"something else",
    "zeros behind": packed(text_of(4, 70_000)) + bytes(100),
    "a short rest": packed(text_of(4, 70_000)) + b"\x28\xb5",
}


@pytest.fixture(params=SIZES, ids=str)
def sizes(request, monkeypatch):
    monkeypatch.setattr(compression, "_INPUT_BYTES", request.param[0])
    monkeypatch.setattr(compression, "_OUTPUT_BYTES", request.param[1])
    return request.param


def state(reader, offset):
    return reader.damage, reader.size, reader.reached, reader.spent(offset), reader.frame(offset)


def read_through(path, *, in_c, by, begin=None, until=None):
    """All text, read in pieces of about this size, and what is told after each of them."""
    with pytest.MonkeyPatch.context() as patch, InputReader(str(path)) as source:
        if not in_c:
            patch.setattr(zstd, "library", lambda: None)
        reader = Decompressed(source, "zstd", spool=str(path.parent))
        assert isinstance(reader._members, zstd.Frames) == in_c
        chance, at, found, told = random.Random(by), 0, [], []
        if begin is not None:
            reader.begin(*begin)
            reader.until, at = until, begin[1]
            reader.done_until(at)
        while data := reader.read(at, chance.randrange(by) + 1):
            found.append(data)
            at += len(data)
            told.append(state(reader, at))
            if chance.random() < 0.8:
                reader.done_until(at)
        return b"".join(found), told, state(reader, at)


def assert_same(path, **how):
    """By either way; returns the text and what is told at its end."""
    ways = [read_through(path, in_c=in_c, **how) for in_c in (True, False)]
    assert ways[0] == ways[1]
    return ways[0][0], ways[0][2]


def whole(data):
    """What a file that is sound decompresses to."""
    return oracle.decompress(data) if data else b""


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("name", FILES)
def test_c_and_python_tell_the_same_of_a_file(tmp_path, name):
    path = tmp_path / "a.zst"
    path.write_bytes(FILES[name])
    texts = set()
    for by in (500_000, 70_001, 6_000_000, len(FILES[name]) // 8 + 1):
        text, (damage, *_) = assert_same(path, by=by)
        texts.add((text, damage))
    assert len(texts) == 1  # however it is read
    if damage is None:
        assert text == whole(FILES[name])
    else:
        assert name in ("a large window", "something else behind", "zeros behind", "a short rest")


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("name", ["many frames", "tiny frames", "much that is skipped", "frames of one byte"])
def test_reading_begins_at_any_frame_and_ends_in_any(tmp_path, name):
    path, chance = tmp_path / "a.zst", random.Random(3)
    path.write_bytes(FILES[name])
    text = whole(FILES[name])
    with InputReader(str(path)) as source:
        reader = Decompressed(source, "zstd")
        reader.read(0, len(text) + 1)
        frames = sorted(reader._frames)
    for _ in range(12):
        first, last = sorted(chance.choices(frames, k=2))
        more = chance.randrange(1, 500)
        for start in (first[1], UNCOUNTED):
            if first[0] == 0:
                continue
            how = {"begin": (first[0], start), "by": chance.choice([400, 9000, 5_000_000])}
            assert assert_same(path, **how)[0] == text[first[1] :]
            found, (damage, size, reached, *_) = assert_same(path, **how, until=(last[0], more))
            assert found == text[first[1] : last[1] + more] and damage is None
            assert size == start + len(found) and reached == (last[1] + more <= len(text))


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("name", ["one frame", "many frames", "tiny frames", "much that is skipped"])
def test_a_truncated_file_ends_where_it_is_cut(tmp_path, name):
    data, chance, path = FILES[name], random.Random(4), tmp_path / "a.zst"
    text = whole(data)
    for cut in {0, 1, 3, 4, 5, 9, 17, 18, 33, len(data) - 1, len(data) - 4, *chance.choices(range(len(data)), k=12)}:
        path.write_bytes(data[:cut])
        found = {assert_same(path, by=by)[0] for by in (1000, 4_000_000)}
        assert len(found) == 1 and text.startswith(found.pop())


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("name", ["one frame", "one frame of unknown length", "many frames", "tiny frames"])
def test_of_a_damaged_file_both_read_and_say_the_same(tmp_path, name):
    chance, path = random.Random(5), tmp_path / "a.zst"
    damages = set()
    for number in range(25):
        data = bytearray(FILES[name])
        data[number if number < 12 else chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        ends = {(text, end[0]) for text, end in (assert_same(path, by=by) for by in (3000, 4_000_000))}
        assert len(ends) == 1  # however it is read
        damages.add(ends.pop()[1])
    assert len(damages) > 3


def test_going_back_begins_anew(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(FILES["many frames"])
    text = whole(FILES["many frames"])
    with InputReader(str(path)) as source:
        reader = Decompressed(source, "zstd")
        for offset in (0, 2_000_000, 700_000, 5, 1_500_000, 3):
            reader.done_until(offset)
            assert reader.read(offset, 300_000) == text[offset : offset + 300_000]


def test_a_long_record_is_replayed_from_the_disk(tmp_path):
    text = text_of(6, 30_000_000)
    path = tmp_path / "a.zst"
    path.write_bytes(packed(text))
    with InputReader(str(path)) as source:
        reader = Decompressed(source, "zstd", spool=str(tmp_path))
        for size in (4 << 20, 1 << 16, 20 << 20):
            assert reader.read(len(text) - 9_000_000, size) == text[-9_000_000:][:size]
            assert reader.read(100, 50) == text[100:150]
        assert reader._buffer._file is not None
        assert sum(map(len, reader._buffer._chunks)) < 11 << 20


def test_what_a_reader_gave_does_not_change_when_it_reads_on(tmp_path):
    """Text stays in the buffer that it was decompressed to, and what follows is written behind it."""
    path = tmp_path / "a.zst"
    path.write_bytes(FILES["many frames"])
    text, at, given = whole(FILES["many frames"]), 0, []
    with InputReader(str(path)) as source:
        reader = Decompressed(source, "zstd")
        while pieces := reader.pieces(at, 150_000):
            given.append((at, pieces))
            at += sum(map(len, pieces))
            reader.done_until(at)
    assert all(b"".join(pieces) == text[at:][: sum(map(len, pieces))] for at, pieces in given)
    assert sum(len(pieces) == 1 for _, pieces in given) == len(given)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(FILES["what cannot be compressed"])
    with InputReader(str(path)) as source:
        reader = Decompressed(source, "zstd")
        assert reader.read(0, 1000)
        path.write_bytes(FILES["what cannot be compressed"][:300_000])
        with pytest.raises(InputError, match=r"had 900,0\d\d bytes when the job began"):
            reader.read(0, 900_000)


def test_the_decompressor_is_freed_with_its_reader(tmp_path, monkeypatch):
    freed, library = [], zstd.library()
    free = library.ZSTD_freeDCtx
    monkeypatch.setattr(library, "ZSTD_freeDCtx", lambda context: freed.append(context) or free(context))
    path = tmp_path / "a.zst"
    path.write_bytes(FILES["one frame"])
    with InputReader(str(path)) as source:
        reader = Decompressed(source, "zstd")
        reader.read(0, 10)
        gone, context = weakref.ref(reader._members), reader._members._given.context
        assert not freed
        del reader
    assert gone() is None and freed == [context]


def test_python_may_end_while_a_thread_decompresses(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(packed(b"mill " * 20_000_000))
    program = f"""
import threading, time
from shardmill.io.compression import Decompressed
from shardmill.io.reading import InputReader

def read():
    while True:
        reader, at = Decompressed(InputReader({str(path)!r}), "zstd"), 0
        while reader.pieces(at, 4 << 20):
            at += 4 << 20
            reader.done_until(at)

for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
