"""What an Arrow file will need is told by its headers, not by reading it; and no row takes more than its text."""

import io
import itertools
import os
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from given_texts import load_once
from shardmill.documents.columnar import arrow
from shardmill.documents.long_values import BytesReader
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted
from shardmill.documents.rules import TextRules
from shardmill.errors import InputError
from shardmill.io.reading import InputReader


class Watched(BytesReader):
    """Remembers the largest read."""

    most = 0

    def read(self, offset, length):
        self.most = max(self.most, length)
        return super().read(offset, length)


@pytest.mark.parametrize("make", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("old", [False, True])
def test_the_largest_batch_is_found_without_reading_it(make, old):
    tables = [pa.table({"text": ["a" * size, "b"], "n": [1, 2]}) for size in (10, 5_000_000, 300)]
    out = io.BytesIO()
    with make(out, tables[0].schema, options=pa.ipc.IpcWriteOptions(use_legacy_format=old)) as writer:
        for table in tables:
            writer.write_table(table)
    reader = Watched("a.arrow", out.getvalue())
    assert 5_000_000 < arrow.largest_batch(reader) < 5_001_000
    assert reader.most < 10_000


@pytest.mark.parametrize("data", [b"", b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0", b"\xff" * 100, b"\x40\0\0\0" * 20])
def test_a_file_that_is_no_arrow_says_nothing(data):
    assert arrow.largest_batch(BytesReader("a.arrow", data)) <= 100


def rules(**changed):
    told = {"separator": None, "passage_bytes": None, "border": None, "max_run_bytes": 1000, "block_bytes": 1 << 20}
    return TextRules(cuts=load_once("r50k_base").cuts, seed=None, **{**told, **changed})


def stream(array, rows=None, **options):
    out = io.BytesIO()
    table = pa.table({"text": array})
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


def parts(data, **changed):
    return arrow.read_parts(Position(), BytesReader("a.arrow", data), 0, rules(**changed))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_what_a_batch_decompresses_to_is_what_it_takes(codec, dictionary):
    array = pa.array(["a" * 5_000_000, "b"])
    data = stream(array.dictionary_encode() if dictionary else array, compression=codec)
    assert len(data) < 100_000
    assert 5_000_000 < arrow.largest_batch(BytesReader("a.arrow", data)) < 5_001_000
    (lost,) = parts(data, max_held=4_000_000, max_run_bytes=6_000_000)
    assert isinstance(lost, Counted) and "5,000,0" in lost.complaint and "held at once" in lost.complaint
    assert not any(isinstance(part, Counted) for part in parts(data, max_held=6_000_000, max_run_bytes=6_000_000))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_an_empty_batch_takes_nothing(codec):
    """What it does not have is not read from what follows it."""
    schema, out = pa.schema({"text": pa.string()}), io.BytesIO()
    with pa.ipc.new_stream(out, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for texts in ([], ["a" * 5000], []):
            writer.write_batch(pa.record_batch([texts], schema=schema))
    assert 5000 < arrow.largest_batch(BytesReader("a.arrow", out.getvalue())) < 5100
    (part,) = parts(out.getvalue(), max_run_bytes=6000)
    assert part.size == 5000


def test_a_size_that_no_machine_has_is_told_when_it_is_read():
    data = bytearray(stream(pa.array(["a" * 5000] * 3), rows=1, compression="zstd"))
    at = data.rindex((5000).to_bytes(8, "little"))
    data[at + 6] = 1
    assert arrow.largest_batch(BytesReader("a.arrow", bytes(data))) < 10_000
    *kept, lost = parts(bytes(data), max_run_bytes=6000, on_error="skip")
    assert len(kept) == 2 and isinstance(lost, Counted) and "held at once" in lost.complaint


def hidden(kind):
    """A null in whose place there are 5,000 bytes."""
    text = pa.py_buffer(b"x" * 5000 + b"good")
    wide = np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32
    offsets = pa.py_buffer(np.array([0, 5000, 5004], wide))
    return pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x02"), offsets, text])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), "dictionary", "null in a dictionary"])
def test_a_null_in_whose_place_there_is_a_long_value_is_refused_as_any_other(kind):
    if kind == "dictionary":
        array = pa.DictionaryArray.from_arrays(pa.array([None, 1]), ["x" * 5000, "good"])
    elif kind == "null in a dictionary":
        array = pa.DictionaryArray.from_arrays(pa.array([0, 1]), hidden(pa.string()))
    else:
        array = hidden(kind)
    with pytest.raises(InputError, match=r"row 0: column 'text' is null"):
        [part.pieces(0, rules(), lambda keys: keys < 0) for part in parts(stream(array))]
    (part,) = parts(stream(array), on_error="skip")
    found = part.pieces(0, rules(on_error="skip"), lambda keys: keys < 0)
    assert (list(found.texts), [reject.location.row for _, reject in found.rejects]) == ([b"good"], [0])


def test_rows_that_share_their_text_take_no_more_than_a_block_at_once():
    text = b"so it is " * 100
    view = np.array([len(text), int.from_bytes(text[:4], "little"), 0, 0], np.int32)
    buffers = [None, pa.py_buffer(np.tile(view, 200_000)), pa.py_buffer(text)]
    shared = pa.Array.from_buffers(pa.string_view(), 200_000, buffers)
    coded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200_000, np.int32)), [text.decode()])
    for array in (shared, coded):
        data, before = stream(array), pa.total_allocated_bytes()
        for part in itertools.islice(parts(data), 5):
            assert part.size <= 1 << 20 and set(part.pieces(0, rules(), lambda keys: keys < 0).texts) == {text}
            assert pa.total_allocated_bytes() - before < 32 << 20


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("known", [1 << 16, 5])
def test_reading_goes_on_at_any_row_without_reading_what_precedes_it(tmp_path, monkeypatch, codec, dictionary, known):
    """However many batches it is known of where they begin; a dictionary is read with the first batch."""
    monkeypatch.setattr(arrow, "_MOST_KNOWN", known)
    texts = pa.array([random.Random(number).randbytes(1500).hex() for number in range(40)])
    texts = pa.DictionaryArray.from_arrays(np.arange(40, dtype=np.int32), texts) if dictionary else texts
    path, read = tmp_path / "a.arrow", [0]
    path.write_bytes(stream(texts, rows=2, compression=codec))

    def count(reader, offset, length):
        read[0] += length
        return InputReader.read(reader, offset, length)

    def read_from(start):
        """How much is read, the texts, and where each Part ends."""
        own, read[0] = rules(max_run_bytes=9000, block_bytes=4000), 0
        with type("Counting", (InputReader,), {"read": count})(str(path)) as reader:
            found = list(arrow.read_parts(start, reader, 0, own))
            return (
                read[0],
                [part.pieces(0, own, lambda keys: keys < 0).texts for part in found],
                [p.after for p in found],
            )

    most, whole, after = read_from(Position())
    assert len(whole) == 40
    for row in (1, 2, 37, 39):
        size, texts, _ = read_from(after[row - 1])
        assert [[*each] for each in texts] == [[*each] for each in whole[row:]]
    assert dictionary or size < most * (0.4 if known == 5 else 0.2)


SETTINGS = """
import sys
import pyarrow as pa
import shardmill

def settings():
    pool = pa.default_memory_pool()
    return pool.backend_name, type(pool).__name__, pa.cpu_count(), pa.io_thread_count()

pa.set_cpu_count(3)
pa.set_io_thread_count(5)
before = settings()
for number, file in enumerate(sys.argv[2:]):
    shardmill.prepare(shardmill.Spec(inputs=[file], output=f"{sys.argv[1]}/{number}", val_fraction=0))
assert settings() == before, settings()
"""


def test_a_program_that_uses_the_library_keeps_its_arrow_settings(tmp_path):
    table = pa.table({"text": [f"{i} and so on" for i in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet")
    pa.feather.write_feather(table, tmp_path / "a.feather", compression="zstd")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 100)
    files = sorted(tmp_path.iterdir())
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", SETTINGS, tmp_path, *files], check=True, env={**os.environ, **cache})
