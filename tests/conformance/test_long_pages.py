"""Pages of Parquet that are too large to hold are read a little at a time, and give what the library gives (I5, I7)."""

import random

import formats
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import SEPARATOR
from milling import job_of, mill_blocks, mill_files, some_of

import samples
from shardmill.documents.columnar import columns, parquet
from shardmill.documents.columnar.pages import pages_of
from shardmill.documents.long_values import BytesReader
from shardmill.errors import InputError
from shardmill.io.compression import Decompressed

SMALL = {"max_run_bytes": 128, "passage_bytes": 16, "val_fraction": 0.3}
LONG = ["short", samples.ENGLISH[:900], "中文" * 150, '\\"\n\t😀é' * 40, "7" * 500, "", "end", "short", "short"]
DOCUMENTS = [f"{i} {samples.ENGLISH[i : 2 * i]}" for i in range(40)]


@pytest.fixture
def narrow(monkeypatch):
    """No page is small enough for the library."""
    monkeypatch.setattr(parquet, "_rows_at_once", lambda *_: 0)

    def refuse(*_args, **_options):
        raise AssertionError("a page was given to the library")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse)


def wanted(documents):
    return mill_files({"a.txt": formats.text(documents)}, separator=SEPARATOR, **SMALL)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_every_codec_version_and_encoding(codec, version, dictionary):
    documents = [*LONG, *DOCUMENTS, *LONG]
    data = formats.parquet(documents, compression=codec, data_page_version=version, use_dictionary=dictionary)
    want = wanted(documents)
    for block_bytes in (100, 1 << 20):
        got = mill_files({"a.parquet": data}, block_bytes=block_bytes, **SMALL)
        assert (got.train, got.val) == (want.train, want.val)
        assert got.counts["input_bytes"] == len(data)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_nulls_and_columns_inside_others(version, dictionary):
    values = [None, "one", None, *LONG, *[None] * 20, "two", *[f"{i}" for i in range(300)]]
    out = pa.BufferOutputStream()
    rows = [None if i % 7 == 3 and value is None else {"text": value} for i, value in enumerate(values)]
    table = pa.table({"text": values, "in": pa.array(rows, pa.struct([("text", pa.string())]))})
    pq.write_table(table, out, data_page_version=version, use_dictionary=dictionary, row_group_size=50)
    want = wanted([value for value in values if value is not None])
    for field in ("text", "in.text"):
        got = mill_files({"a.parquet": out.getvalue().to_pybytes()}, field=field, on_error="skip", **SMALL)
        assert (got.train, got.val) == (want.train, want.val)
        assert [reject.location.row for reject in got.rejects] == [i for i, value in enumerate(values) if value is None]


def damaged(data):
    """The same with a page in the middle of its second row group that cannot be decompressed."""
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(1).column(1)
    pages = list(pages_of(BytesReader("", data), chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values))
    page = pages[len(pages) // 2]
    return data[: page.at] + bytes(page.compressed) + data[page.at + page.compressed :]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("change", [bytes, damaged])
def test_reading_on_from_after_any_block_gives_the_rest(change):
    assert_the_rest_is_had_from_after_any_block(change)


@pytest.mark.parametrize("change", [bytes, damaged])
def test_reading_on_where_the_library_reads_gives_the_rest(change):
    assert_the_rest_is_had_from_after_any_block(change)


def assert_the_rest_is_had_from_after_any_block(change):
    options = {"compression": "zstd", "use_dictionary": False, "write_batch_size": 2, "row_group_size": 20}
    data = change(formats.parquet([*LONG, *LONG, *DOCUMENTS], **options))
    with job_of({"a.parquet": data}, block_bytes=100, on_error="skip", **SMALL) as (job, splitter):
        whole = mill_blocks(job, splitter)
        assert any(after.begin for after, *_ in whole.after)
        assert len(whole.rejects) == (change is damaged)
        for index, (after, val, train_done, val_done, counts, _) in some_of(list(enumerate(whole.after))):
            rest = mill_blocks(job, splitter, after, index + 1, val)
            assert (rest.train, rest.val) == (whole.train[train_done:], whole.val[val_done:])
            assert {k: v + getattr(counts, k) for k, v in rest.counts.items()} == whole.counts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compression": "brotli"}, "BROTLI is decompressed only as a whole"),
        ({"compression": "lz4"}, "LZ4 is decompressed only as a whole"),
        ({"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}, "encoding 7"),
    ],
)
def test_what_can_only_be_decoded_as_a_whole_is_told_with_what_to_do(monkeypatch, options, reason):
    monkeypatch.setattr(columns, "LEAST_HELD", 0)
    monkeypatch.setattr(parquet, "largest_page", lambda *_: 0)
    data = formats.parquet(LONG, **options)
    with pytest.raises(InputError, match=rf"row 0: .*held at once.*{reason}.*write it with"):
        mill_files({"a.parquet": data}, val_fraction=0)
    got = mill_files({"a.parquet": data, "b.txt": b"x"}, val_fraction=0, on_error="skip")
    assert got.counts["documents_rejected"] == len(LONG)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_damage_is_told_and_loses_nothing_silently(codec):
    rng = random.Random(4)
    whole = formats.parquet([*LONG, *DOCUMENTS], compression=codec)
    for _ in range(25):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) * 3 // 4)
            data[at] = rng.randrange(256)
        try:
            got = mill_files({"a.parquet": bytes(data), "z.txt": b"x"}, on_error="skip", **SMALL)
        except InputError:
            continue
        counts = got.counts
        assert counts["documents"] == len(LONG) + len(DOCUMENTS) + 1 or got.rejects


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_snappy_a_little_at_a_time_is_what_the_library_gives(step):
    text = samples.ENGLISH.encode() * 300 + bytes(range(256)) * 300 + b"a" * 70_000 + samples.ENGLISH.encode()
    packed = pa.Codec("snappy").compress(text).to_pybytes()
    reader = Decompressed(BytesReader("page", packed), "snappy")
    got = b"".join(reader.read(at, step) for at in range(0, len(text), step)) if step > 1 else reader.read(0, 1 << 30)
    assert got == text and reader.damage is None and reader.read(len(text), 1) == b""
    reader = Decompressed(BytesReader("page", packed[:-3]), "snappy")
    assert text.startswith(reader.read(0, 1 << 30)) and "truncated" in reader.damage
