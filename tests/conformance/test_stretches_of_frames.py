"""Many workers read the frames of a compressed file, and find what one finds who reads it from its beginning."""

import gzip
import json
import random
import struct
import sys
import zlib
from unittest.mock import patch

import pytest
from milling import job_of
from test_stretches import beginning, texts, together

from shardmill.documents import jsonl
from shardmill.io import compression
from shardmill.job import plan

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SKIPPABLE = b"\x57\x2a\x4d\x18\x05\x00\x00\x00table"
CHOICES = {"index": True, "provenance": True}


def zst(pieces):
    """A frame for each piece: with and without a checksum and the length of the text."""
    options = zstd.CompressionParameter
    kinds = [{options.checksum_flag: n & 1, options.content_size_flag: n >> 1 & 1} for n in range(4)]
    return [zstd.compress(piece, options=kinds[number % 4]) for number, piece in enumerate(pieces)]


def bgzf(pieces):
    """Members that tell their length, and the empty one at the end."""
    found = []
    for piece in (*pieces, b""):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        data = packer.compress(piece) + packer.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(data) + 25)
        found.append(head + data + struct.pack("<II", zlib.crc32(piece), len(piece)))
    return found


PACKED = {"zst": zst, "gz": bgzf}
# One of each in `make test`, all pairs in `make slow`.
GZ_IS_SLOW = ["zst", pytest.param("gz", marks=pytest.mark.slow)]
SKIP_IS_FAST = [*(pytest.param(policy, marks=pytest.mark.slow) for policy in ("stop", "replace")), "skip"]


def cut(data, chance, most):
    """Pieces of any length, none of them excluded: in characters, in escapes, at newlines, empty ones."""
    pieces = []
    while data:
        newline = data.find(b"\n")
        size = chance.choice(
            [0, 1, 2, chance.randrange(most), chance.randrange(most), newline, newline + 1, newline + 2]
        )
        pieces.append(data[: max(0, size)])
        data = data[max(0, size) :]
    return pieces


def lines(seed, *, bad=0, long=0, newline="\n"):
    chance = random.Random(seed)
    found = [json.dumps({"text": text, "n": n}, ensure_ascii=bool(n % 2)) for n, text in enumerate(texts(seed, 30))]
    for _ in range(bad):
        found[chance.randrange(len(found))] = chance.choice(
            ["{", '{"text": 5}', "", '{"text": ""}', "[]", '{"text": "\udcff"}']
        )
    for _ in range(long):
        found[chance.randrange(len(found))] = json.dumps({"text": " ".join(texts(seed, 15))})
    return newline.join(found).encode("utf-8", "surrogateescape")


@pytest.fixture(autouse=True)
def short_heads():
    """Else all of these small files would be a head, which each stretch reads."""
    with patch.object(jsonl, "_HEAD_BYTES", 300), patch.object(compression, "HEAD_BYTES", 4096):
        yield


def same(files, block_bytes, **choices):
    """Checks that workers find what one reader finds, and returns that."""
    with job_of(files, block_bytes=block_bytes, max_run_bytes=2000, passage_bytes=500, **CHOICES, **choices) as made:
        with patch.object(plan, "stretches", lambda *_, **__: iter([plan.EVERYTHING])):
            whole = together(*made, 1)
        for blocks, count in ((1, 7), (3, 2)):
            with patch.object(plan, "_BLOCKS", blocks):
                found = together(*made, count)
            if whole[2] is None:
                assert found == whole
            else:
                assert found[2] == whole[2] and beginning(found, whole)
        return whole


def read(files, **choices):
    """What one reader finds."""
    with job_of(files, max_run_bytes=2000, passage_bytes=500, **CHOICES, **choices) as made:
        return together(*made, 1)


def stretches_of(data, name, block_bytes=150, **choices):
    with job_of({name: data}, block_bytes=block_bytes, **choices) as (job, _), patch.object(plan, "_BLOCKS", 1):
        return list(plan.stretches(job.files, job.rules, plan.BEGINNING))


KINDS = {
    "lines": lambda seed: lines(seed) + b"\n",
    "bad lines": lambda seed: lines(seed, bad=12),
    "long lines": lambda seed: lines(seed, bad=3, long=2),
    "lines that end in CR": lambda seed: lines(seed, newline="\r", bad=1),
    "a BOM and blank lines": lambda seed: b"\xef\xbb\xbf" + lines(seed) + b"\n" * 300 + lines(seed + 1),
}


def told(found):
    """What does not depend on how a file is packed."""
    tokens, rest, error = found
    rejects = [(each.location.line, each.location.byte, each.reason, each.records) for each in rest["rejects"]]
    return tokens, rest["places"], rejects, error


@pytest.mark.parametrize("packing", GZ_IS_SLOW)
@pytest.mark.parametrize("on_error", SKIP_IS_FAST)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * ("CR" in kind)) for kind in KINDS])
def test_workers_find_in_frames_what_one_reader_finds(kind, on_error, packing):
    for seed, (block_bytes, most) in enumerate([(120, 60), (700, 400)]):
        chance = random.Random(seed)
        data, name = KINDS[kind](seed), f"a.jsonl.{packing}"
        pieces = PACKED[packing](cut(data, chance, most))
        if packing == "zst":
            pieces.insert(chance.randrange(len(pieces)), SKIPPABLE)
        packed = b"".join(pieces)
        assert len(stretches_of(packed, name, block_bytes)) > 2
        choices = {"on_error": on_error, "val_fraction": 0.2 * (seed % 2)}
        found = same({name: packed, "b.jsonl": lines(9), f"c.jsonl.{packing}": packed}, block_bytes, **choices)
        plain = read({"a.jsonl": data, "b.jsonl": lines(9), "c.jsonl": data}, **choices)
        if found[2] is None:
            assert told(found) == told(plain)
        else:
            assert found[2].partition(name)[2] == plain[2].partition("a.jsonl")[2]


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("separator", ["\\n\\n", "\\n", "aa", "<|endoftext|>"])
def test_separators_may_cross_frames_and_overlap(separator, on_error, packing):
    mark = separator.replace("\\n", "\n").encode()
    for seed, (block_bytes, most) in enumerate([(150, 40), (150, 900), (2000, 400)]):
        chance = random.Random(seed)
        between = [mark, mark * 2, mark + mark[:1], mark[:1] + mark, b" "]
        words = [*(text.encode() + chance.choice(between) for text in texts(seed, 40)), mark * 40, b"a" * 33]
        chance.shuffle(words)
        data = b"".join(words)
        if on_error == "skip":
            data = data.replace(b"mill", b"mi\xffl", 5)
        name, packed = f"a.txt.{packing}", b"".join(PACKED[packing](cut(data, chance, most)))
        choices = {"separator": separator, "on_error": on_error, "val_fraction": 0.1}
        found = same({name: packed, "b.txt": data}, block_bytes, **choices)
        assert told(found) == told(read({"a.txt": data, "b.txt": data}, **choices))


@pytest.mark.parametrize("packing", GZ_IS_SLOW)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("name", ["a.jsonl", pytest.param("a.txt", marks=pytest.mark.slow)])
def test_a_damaged_frame_ends_the_file_for_all_workers(name, on_error, packing):
    """Whatever follows in the file is read in vain, and the same is told as when it is read from the beginning."""
    damaged = 0
    choices = {"on_error": on_error, "val_fraction": 0, "separator": "\\n" if name == "a.txt" else None}
    for seed in range(18):
        chance = random.Random(seed)
        packed = bytearray(b"".join(PACKED[packing](cut(lines(seed), chance, 400))))
        at = chance.randrange(len(packed))
        match seed % 3:
            case 0:
                packed[at] ^= 1 << chance.randrange(8)
            case 1:
                del packed[at:]
            case _:
                packed[at : at + chance.choice([0, 9])] = chance.randbytes(9)
        found = same({f"{name}.{packing}": bytes(packed), "b.jsonl": lines(seed)}, 150, **choices)
        damaged += "data is damaged after" in (found[2] or "".join(each.reason for each in found[1]["rejects"]))
    assert damaged > 6


def test_a_member_that_tells_a_wrong_length_is_read_to_its_end():
    """A second member that seems to begin inside the first: it does for nobody."""
    inner = bgzf([lines(3)])[0]
    stored = zlib.compressobj(0, zlib.DEFLATED, -15)
    text = lines(1) + b"\n" + inner
    data = stored.compress(text) + stored.flush()
    size = data.index(inner) + 18
    head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", size - 1)
    packed = head + data + struct.pack("<II", zlib.crc32(text), len(text)) + bgzf([lines(2)])[0]
    assert gzip.decompress(packed) == text + lines(2)
    assert len(stretches_of(packed, "a.jsonl.gz")) > 1
    found = same({"a.jsonl.gz": packed, "b.jsonl": lines(4)}, 150, on_error="skip", val_fraction=0)
    plain = read({"a.jsonl": text + lines(2), "b.jsonl": lines(4)}, on_error="skip", val_fraction=0)
    assert told(found) == told(plain)
