"""Parquet files that claim or repeat more than they hold: read or refused within the memory and the time they are due (I5)."""

import itertools
import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import parquets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquets import Long, dictionary, page, pages_of, plain, varint

from given_texts import load_once
from shardmill import Spec, prepare
from shardmill.documents.columnar import arrow, parquet
from shardmill.documents.long_values import BytesReader
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted
from shardmill.documents.rules import TextRules
from shardmill.errors import ContentError, InputError, TemporaryError

MIB = 1 << 20
LAUNCHER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime, used.ru_maxrss >> 10)
sys.exit(code)
"""


def run(file, max_memory, *options):
    """The command on a file: its exit code, what it said, the seconds it took, and the MiB it had at most."""
    output = file.parent / "out"
    command = [sys.executable, "-m", "shardmill", "prepare", file, "-o", output, "--overwrite", "-q", "--workers", "1"]
    command += ["--val-fraction", "0", "--max-memory", f"{max_memory}MiB", *options]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(file.parent / "cache")},
        timeout=200,
    )
    seconds, peak = done.stdout.split()[-2:]
    return done.returncode, done.stderr, float(seconds), int(peak)


def run_within_the_smallest_budget(file, *options, most=15):
    code, message, _, _ = run(file, 1, *options)
    assert code == 2, message
    budget = int(re.search(r"smallest that works is (\d+)MiB", message).group(1))
    code, message, seconds, peak = run(file, budget, *options)
    assert peak <= budget
    assert seconds < most
    return code, message


def rules(**changed):
    told = {"separator": None, "passage_bytes": None, "border": None, "max_run_bytes": MIB, "block_bytes": MIB}
    return TextRules(cuts=load_once("r50k_base").cuts, seed=None, **{**told, "max_held": 16 * MIB, **changed})


def rejects_of(data, **changed):
    parts = parquet.read_parts(Position(), BytesReader("a.parquet", data), 0, rules(on_error="skip", **changed))
    return [part.complaint for part in parts if isinstance(part, Counted)]


def tokens(folder):
    return np.fromfile(folder / "out" / "train.bin", np.uint16)


# ---- memory


def categorical(values, rows):
    numbers = np.random.default_rng(0).integers(0, len(values), rows).astype(np.int32)
    return pa.table({"text": pa.DictionaryArray.from_arrays(pa.array(numbers), values)})


@pytest.mark.parametrize(
    ("count", "repeat", "rows"), [pytest.param(200_000, 1, 500_000, marks=pytest.mark.slow), (1000, 1000, 1200)]
)
def test_a_column_of_categories_stays_within_the_smallest_budget(tmp_path, count, repeat, rows):
    # The library makes the dictionary anew for each batch of rows: that took minutes, and the Parts held one each.
    file = tmp_path / "a.parquet"
    pq.write_table(categorical([f"{i:07d} is a category, " * repeat for i in range(count)], rows), file)
    assert run_within_the_smallest_budget(file)[0] == 0


def test_one_long_value_that_many_rows_refer_to_stays_within_the_smallest_budget(tmp_path):
    file = tmp_path / "a.parquet"
    words = dictionary(plain(*(b"%d" % i for i in range(1000)), b"so long a word " * 60_000), 1001)
    coded = bytes([10]) + varint(160 << 1) + struct.pack("<H", 1000)
    file.write_bytes(parquets.file(words, page(coded, 160, encoding=8), rows=160))
    assert run_within_the_smallest_budget(file)[0] == 0


@pytest.mark.parametrize("after", [b"", b"\xff" * 100, page(bytes([10]), 3, encoding=8)])
def test_a_value_that_is_repeated_is_not_repeated_in_memory_whatever_follows(after):
    words = dictionary(plain(*(b"%d" % i for i in range(1000)), b"so long a word " * 60_000), 1001)
    coded = page(bytes([10]) + varint(1000 << 1) + struct.pack("<H", 1000), 1000, encoding=8)
    data = parquets.file(words, coded + after, rows=1003)
    parts = parquet.read_parts(Position(), BytesReader("a.parquet", data), 0, rules())
    tracemalloc.start()
    for part in itertools.islice(parts, 20):
        assert part.size <= MIB
    assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    tracemalloc.stop()


@pytest.mark.slow
def test_a_page_of_very_many_values_stays_within_the_smallest_budget(tmp_path):
    file, count = tmp_path / "a.parquet", 30_000_000
    table = pa.table({"text": pa.array(["a"]).take(pa.array(np.zeros(count, np.int8)))})
    whole = {"row_group_size": count, "max_rows_per_page": count, "data_page_size": 1 << 30, "write_batch_size": count}
    pq.write_table(table, file, use_dictionary=False, compression="zstd", **whole)
    assert run_within_the_smallest_budget(file, "--limit-documents", "20000")[0] == 0
    assert len(tokens(tmp_path)) == 40_000


@pytest.mark.slow
def test_a_dictionary_of_very_many_values_stays_within_the_smallest_budget(tmp_path):
    file, count = tmp_path / "a.parquet", 4_000_000
    table = pa.table({"text": pa.array(np.arange(count, 2 * count)).cast(pa.string())})
    pq.write_table(table, file, row_group_size=count, dictionary_pagesize_limit=1 << 30, compression="zstd")
    assert run_within_the_smallest_budget(file, "--limit-documents", "20000")[0] == 0
    assert np.count_nonzero(tokens(tmp_path) == 50256) == 20_000


@pytest.mark.parametrize("size", [1000, pytest.param(3_000_000, marks=pytest.mark.slow)])
def test_a_page_that_claims_more_values_than_it_has_stays_within_the_smallest_budget(tmp_path, size):
    file, count = tmp_path / "a.parquet", 200_000_000
    file.write_bytes(parquets.file(page(plain(*[b"so it is " * (size // 9)] * 12), count), rows=count))
    code, message = run_within_the_smallest_budget(file)
    assert code == 1 and "row 12: 199,999,988 rows" in message


@pytest.mark.slow
def test_a_large_footer_is_reserved_for(tmp_path):
    file = tmp_path / "a.parquet"
    table = pa.table({"text": ["a"], **{f"column {i}": [i] for i in range(300)}})
    with pq.ParquetWriter(file, table.schema) as writer:
        for _ in range(400):
            writer.write_table(table)
    assert run_within_the_smallest_budget(file)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
def test_a_page_of_books_stays_within_the_smallest_budget(tmp_path, codec):
    # Common writers put 1,024 values in a page, however long they are.
    file = tmp_path / "a.parquet"
    books = [f"{i} " + "It was the best of times, it was the worst of times. " * 7500 for i in range(1024)]
    pq.write_table(pa.table({"text": books}), file, compression=codec, use_dictionary=False)
    assert run_within_the_smallest_budget(file, most=120)[0] == 0
    assert np.count_nonzero(tokens(tmp_path) == 50256) == 1024


@pytest.mark.slow
def test_all_of_a_page_and_a_dictionary_of_very_many_values_is_read(tmp_path):
    file, count = tmp_path / "a.parquet", 4_000_000
    table = pa.table({"text": pa.array(np.arange(count, 2 * count)).cast(pa.string())})
    pq.write_table(table, file, row_group_size=count, dictionary_pagesize_limit=1 << 30, compression="zstd")
    assert run_within_the_smallest_budget(file, most=120)[0] == 0
    assert np.count_nonzero(tokens(tmp_path) == 50256) == count


def test_a_page_of_deltas_cannot_claim_more_lengths_than_it_has_values():
    deltas = b"".join(map(varint, (128, 4, 1 << 30, 0))) + bytes([0, 0, 0, 0, 0]) * 8
    for encoding in (6, 7):
        (reason,) = rejects_of(parquets.file(page(deltas, 1000, encoding=encoding), rows=1000))
        assert "1,000 values has 1,073,741,824 lengths" in reason


def test_pages_of_deltas_that_are_as_they_should_be_are_read(tmp_path):
    texts = [f"{'the same beginning ' * (i % 5)}{i}" for i in range(5000)]
    for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
        for version in ("1.0", "2.0"):
            file = tmp_path / "a.parquet"
            options = {"column_encoding": {"text": encoding}, "data_page_version": version, "compression": "zstd"}
            pq.write_table(pa.table({"text": [*texts, None, "z"]}), file, use_dictionary=False, **options)
            got = prepare(Spec(inputs=[file], output=tmp_path / encoding / version, val_fraction=0, on_error="skip"))
            assert got.manifest.counts.documents == 5002 and got.manifest.counts.documents_rejected == 1


# ---- time


def list_of(count, kind):
    return bytes([0x19, 0xF0 | kind]) + varint(count)


@pytest.mark.parametrize(
    "field",
    [
        list_of(1 << 62, 1),
        list_of(1 << 62, 2),
        list_of(1 << 62, 3),
        list_of(1 << 62, 12) + b"\0" * 60_000,
        bytes([0x1A, 0xF1]) + varint(1 << 62),
        bytes([0x19]) + bytes([0x19]) * 60_000,
        bytes([0x1C]) * 60_000,
        bytes([0x18]) + varint(1 << 62),
        bytes([0x15]) + b"\xff" * 60_000,
        bytes([0x1B]) + varint(1 << 62),
        b"\x11" * 60_000,
    ],
)
def test_a_page_header_takes_no_longer_to_read_than_its_bytes(field):
    data = b"\x15\x00" + field
    started = time.process_time()
    with pytest.raises(ValueError, match="header"):
        pages_of(data)
    assert time.process_time() - started < 1


def test_a_list_of_booleans_in_a_page_header_is_read_over():
    extra = bytes([0x39, 0x31, 1, 2, 1])  # three of them, a byte each
    data = page(plain(b"one", b"two"), 2, extra=extra)
    (found,) = pages_of(data)
    assert (found.values, found.size, found.at) == (2, 14, len(data) - 14)


def test_rows_before_a_damaged_page_of_a_large_row_group_are_found_quickly(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [f"row {i}" for i in range(150_000)]}), file, use_dictionary=False, compression="zstd"
    )
    data = bytearray(file.read_bytes())
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    *_, last = pages_of(bytes(data), chunk.data_page_offset, chunk.total_compressed_size)
    data[last.at : last.at + last.compressed] = bytes(last.compressed)
    file.write_bytes(data)
    started = time.process_time()
    got = prepare(Spec(inputs=[file], output=tmp_path / "out", val_fraction=0, on_error="skip")).manifest.counts
    assert time.process_time() - started < 8
    assert (got.documents, got.documents_rejected) == (150_000, last.values)


# ---- what contradicts itself


def test_a_page_with_more_values_than_its_row_group_has_rows_is_told():
    (reason,) = rejects_of(parquets.file(page(plain(b"a", b"b", b"c"), 3), rows=2))
    assert "its pages hold more values than the 2 rows of the row group" in reason


def test_a_footer_that_contradicts_itself_is_content_at_fault():
    data = parquets.file(page(plain(b"a"), 1), rows=1, in_group=2)
    with pytest.raises(ContentError, match="1 rows in all, 2 in its row groups"):
        rejects_of(data)


CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4_raw", 6: "zstd", 7: "lz4_raw"}


@pytest.mark.parametrize("codec", CODECS)
def test_a_page_that_holds_less_or_more_than_its_header_says_is_refused(codec):
    # The library fills the rest of a page with whatever was in memory.
    text = plain(*[b"so it is "] * 1000)
    packed = pa.Codec(CODECS[codec]).compress(text, asbytes=True)
    for change in (-1000, -1, 1, 1000):
        data = parquets.file(page(packed, 1000, size=len(text) + change), rows=1000, codec=codec)
        (reason,) = rejects_of(data)
        assert reason.startswith("1,000 rows")
    assert not rejects_of(parquets.file(page(packed, 1000, size=len(text)), rows=1000, codec=codec))


def test_blocks_of_hadoops_lz4_are_read():
    text = plain(*[b"%d and so on" % i for i in range(1000)])
    halves = [text[:5000], text[5000:]]
    packed = [pa.Codec("lz4_raw").compress(half, asbytes=True) for half in halves]
    blocks = b"".join(
        struct.pack(">II", len(half), len(data)) + data for half, data in zip(halves, packed, strict=True)
    )
    (part,) = parquet.read_parts(
        Position(), BytesReader("a", parquets.file(page(blocks, 1000, size=len(text)), rows=1000, codec=5)), 0, rules()
    )
    assert list(part.values.texts) == [b"%d and so on" % i for i in range(1000)]


@pytest.mark.parametrize("held", [1000, 16 * MIB])
def test_a_dictionary_whose_values_cannot_fit_in_it_is_told(held):
    words = dictionary(plain(b"a" * MIB), 1 << 30)
    (reason,) = rejects_of(parquets.file(words, page(b"\0\4", 2, encoding=8), rows=2), max_held=held)
    assert "a dictionary of 1,073,741,824 values in 1,048,580 bytes" in reason


@pytest.mark.parametrize("held", [1 << 20, 16 * MIB])
def test_a_value_that_is_not_in_the_dictionary_is_told(held):
    words = dictionary(plain(*[b"a" * 20_000] * 100), 100)
    coded = bytes([32]) + varint(100 << 1) + struct.pack("<I", (1 << 32) - 1)
    (reason,) = rejects_of(parquets.file(words, page(coded, 100, encoding=8), rows=100), max_held=held)
    assert "100 rows" in reason and "dictionary" in reason


@pytest.mark.parametrize(
    "changes", [{9: Long(0)}, {9: Long(1 << 40)}, {7: Long(0)}, {7: Long(3)}, {5: Long(0)}, {4: 3}]
)
def test_a_column_chunk_whose_metadata_is_wrong_is_told(changes):
    data = parquets.file(page(plain(b"a"), 1), rows=1, changes=changes)
    (reason,) = rejects_of(data)
    assert reason.startswith("1 rows")
    assert parquet.largest_page(BytesReader("a.parquet", data), "text") < 1000 * 5


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 4, b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1"])
def test_a_file_without_a_footer_is_content_at_fault(data):
    with pytest.raises(ContentError, match="footer"):
        rejects_of(data)


# ---- the input itself


class Failing(BytesReader):
    """Fails at one of its reads."""

    def __init__(self, data, at, error):
        super().__init__("a", data)
        self.left, self.error = at, error

    def read(self, offset, length):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().read(offset, length)


def files():
    texts = [f"{i} and some more" * (i % 300) for i in range(3000)]
    table = pa.table({"text": texts})
    sinks = {name: pa.BufferOutputStream() for name in ("parquet", "coded", "arrow")}
    pq.write_table(table, sinks["parquet"], use_dictionary=False, row_group_size=1000)
    pq.write_table(categorical(texts, 3000), sinks["coded"], row_group_size=1000, compression="zstd")
    with pa.ipc.new_stream(sinks["arrow"], table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return [(arrow if name == "arrow" else parquet, sink.getvalue().to_pybytes()) for name, sink in sinks.items()]


@pytest.mark.parametrize("error", [InputError("denied (403)"), TemporaryError("no answer"), ContentError("not gzip")])
@pytest.mark.parametrize("held", [16 * MIB, 20_000])
def test_an_input_that_fails_is_never_taken_for_damage(error, held):
    for module, data in files():
        if module is arrow and held < MIB:
            continue
        for at in range(10_000):
            reader = Failing(data, at, error)
            try:
                complaints = [
                    p for p in module.read_parts(Position(), reader, 0, rules(max_held=held)) if isinstance(p, Counted)
                ]
            except type(error) as e:
                assert e is error
            else:
                assert reader.left >= 0 and not any(p.complaint for p in complaints)
                break
        assert at > 3
