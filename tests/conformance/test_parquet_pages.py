"""Pages of Parquet, held as a whole or streamed, give the values that pyarrow reads (I5, I7)."""

import random

import formats
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import SEPARATOR
from milling import job_of, mill_blocks, mill_files, some_of

import samples
from given_texts import load_once
from shardmill.documents import rules
from shardmill.documents.columnar import columns, pages, parquet, values
from shardmill.documents.long_values import BytesReader
from shardmill.documents.pieces import Position
from shardmill.documents.rules import TextRules
from shardmill.errors import InputError
from shardmill.io.compression import Decompressed

SMALL = {"max_run_bytes": 128, "passage_bytes": 16, "val_fraction": 0.3}
LONG = ["short", samples.ENGLISH[:900], "中文" * 150, '\\"\n\t😀é' * 40, "7" * 500, "", "end", "short", "short"]
DOCUMENTS = [f"{i} {samples.ENGLISH[i : 2 * i]}" for i in range(40)]


CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]
ENCODINGS = ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]


def values_of(data, field="text", skip_to=0, **changed):
    """All values of a column from the page on that has a row, as our own reader gives them."""
    told = {"separator": None, "passage_bytes": None, "border": None, "max_run_bytes": 300, "block_bytes": 2000}
    rules = TextRules(cuts=load_once("r50k_base").cuts, seed=None, **{**told, **changed})
    reader = BytesReader("a.parquet", data)
    file, found = parquet._open(reader, 1 << 20), {}
    column = file.column(field, reader.path)
    for group in range(len(file.ends)):
        chunk, rows = file.chunk(reader, column, group), file.rows(group)
        for row, value in values.values_of(chunk, 0, rows, skip_to, rules):
            if isinstance(value, columns.ShortValues):
                some = [None if null else text for text, null in zip(value.texts, value.null, strict=True)]
                assert all(len(text or b"") <= 300 for text in some)
            else:
                some = [value.read(0, 1 << 30)]
            found.update(enumerate(some, row))
    return found


def column_of(rng, count, nulls):
    """Texts with shared beginnings, some empty, some long, some over and over, and nulls."""
    words = [
        "",
        "a",
        "the same beginning",
        "the same beginning and more",
        "é" * 90,
        "long " * 200,
        *map(str, range(50)),
    ]
    texts = [rng.choice(words) + rng.choice(words[:3]) * rng.choice((0, 0, 0, 1, 40)) for _ in range(count)]
    return [None if rng.random() < nulls else text for text in texts]


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("codec", CODECS)
def test_values_are_those_that_pyarrow_reads(monkeypatch, codec, encoding, most):
    monkeypatch.setattr(pages, "MOST_HELD", most)
    rng = random.Random(f"{codec} {encoding}")
    for nulls in (0, 0.01, 0.5, 1):
        texts = column_of(rng, 700, nulls)
        kind = rng.choice([pa.string(), pa.binary(), pa.large_string()])
        required = pa.schema([pa.field("text", kind, nullable=False)])
        table = pa.table({"text": pa.array(texts, kind)}, schema=None if nulls else required)
        encoded = {"use_dictionary": encoding == "dictionary"}
        if encoding != "dictionary":
            encoded["column_encoding"] = {"text": encoding}
        else:
            encoded["dictionary_pagesize_limit"] = rng.choice((500, 1 << 20))  # with a small one, later pages are PLAIN
        out = pa.BufferOutputStream()
        pq.write_table(
            table,
            out,
            compression=codec,
            data_page_version=rng.choice(("1.0", "2.0")),
            data_page_size=rng.choice((100, 3000, 1 << 20)),
            write_batch_size=rng.choice((7, 64, 1024)),
            row_group_size=rng.choice((100, 10_000)),
            write_statistics=rng.random() < 0.5,
            **encoded,
        )
        data = out.getvalue().to_pybytes()
        want = [text if text is None else text.encode() for text in texts]
        assert values_of(data) == dict(enumerate(want))
        skip_to = rng.randrange(700)
        got = values_of(data, skip_to=skip_to)
        assert all(got[row] == want[row] for row in range(skip_to, 700))


class Counting(BytesReader):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, offset, length):
        data = super().read(offset, length)
        self.taken += len(data)
        return data


@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"dictionary_pagesize_limit": 1 << 30}])
def test_a_file_is_read_once_and_forward_and_of_skipped_pages_the_headers(options):
    documents = [f"{i} {samples.ENGLISH}" for i in range(300)]
    sizes = {"row_group_size": 1000, "write_batch_size": 10, "data_page_size": 50_000, "write_statistics": False}
    data = formats.parquet(documents, compression="none", **sizes, **options)
    choices = {
        "separator": None,
        "passage_bytes": None,
        "border": None,
        "max_run_bytes": 1 << 20,
        "block_bytes": 1 << 20,
    }
    rules = TextRules(cuts=load_once("r50k_base").cuts, seed=None, **choices)
    for start, most in ((0, 1.2), (299, 0.4 if "use_dictionary" in options else 1.2)):
        reader = Counting("a.parquet", data)
        parts = list(parquet.read_parts(Position(record=start), reader, 0, rules))
        assert sum(len(part.values) for part in parts) == 300 - start
        assert reader.taken < most * len(data)


def test_a_footer_is_parsed_once_while_anyone_reads_the_file(monkeypatch):
    parsed, parse = [], parquet.pq.read_metadata
    monkeypatch.setattr(parquet.pq, "read_metadata", lambda *given: parsed.append(1) or parse(*given))
    data = formats.parquet(DOCUMENTS, row_group_size=10)
    told = {"separator": None, "passage_bytes": None, "border": None, "max_run_bytes": 300, "block_bytes": 2000}
    rules = TextRules(cuts=load_once("r50k_base").cuts, seed=None, **told)
    first, second = BytesReader("a.parquet", data), BytesReader("a.parquet", data)
    rows = [parquet.entry(first, 0, at, rules).record for at in (0, 1, len(data) // 2)]
    assert rows == [10, 10, 20] and parquet.entry(first, 0, len(data), rules) is None
    for reader, until in ((first, 20), (second, None)):
        found = list(parquet.read_parts(Position(record=5), reader, 0, rules, until))
        assert sum(len(part.values) for part in found) == (until or 40) - 5
    assert len(parsed) == 1
    other = BytesReader("a.parquet", formats.parquet(DOCUMENTS[:7]))
    assert parquet.rows(other, "text") == 7 and len(parsed) == 2, "it has another content by now"
    del first, second, reader, found
    assert parquet.rows(BytesReader("a.parquet", data), "text") == 40 and len(parsed) == 3, "nobody has it open"


@pytest.fixture
def narrow(monkeypatch):
    """No page is small enough to be held, unless its encoding leaves no choice."""
    monkeypatch.setattr(pages, "MOST_HELD", 0)
    whole = pages.Chunk._whole

    def refuse_plain(chunk, page):
        assert page.encoding != pages.PLAIN
        return whole(chunk, page)

    monkeypatch.setattr(pages.Chunk, "_whole", refuse_plain)


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
    where = {"start": chunk.data_page_offset, "length": chunk.total_compressed_size, "values": chunk.num_values}
    found = list(pages.Chunk(reader=BytesReader("", data), codec="", max_level=0, size=0, **where).pages())
    page = found[len(found) // 2]
    return data[: page.at] + bytes(page.compressed) + data[page.at + page.compressed :]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("change", [bytes, damaged])
def test_reading_on_from_after_any_block_gives_the_rest(change):
    assert_the_rest_is_had_from_after_any_block(change)


@pytest.mark.parametrize("change", [bytes, damaged])
def test_reading_on_where_pages_are_held_gives_the_rest(change):
    assert_the_rest_is_had_from_after_any_block(change)


def assert_the_rest_is_had_from_after_any_block(change):
    options = {"compression": "zstd", "use_dictionary": False, "write_batch_size": 2, "row_group_size": 20}
    data = change(formats.parquet([*LONG, *LONG, *DOCUMENTS], **options))
    with job_of({"a.parquet": data}, block_bytes=100, on_error="skip", **SMALL) as (job, splitter):
        whole = mill_blocks(job, splitter)
        assert any(after.begin for after, *_ in whole.after)
        assert len(whole.rejects) == (change is damaged)
        for after, val, train_done, val_done, counts, _ in some_of(whole.after):
            rest = mill_blocks(job, splitter, after, val)
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
    monkeypatch.setattr(rules, "LEAST_HELD", 0)
    monkeypatch.setattr(parquet, "largest_page", lambda *_: 0)
    data = formats.parquet(LONG, **options)
    with pytest.raises(InputError, match=rf"row 0: .*held at once.*{reason}.*write it with"):
        mill_files({"a.parquet": data}, val_fraction=0)
    got = mill_files({"a.parquet": data, "b.txt": b"x"}, val_fraction=0, on_error="skip")
    assert got.counts["documents_rejected"] == len(LONG)


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_damage_is_told_and_loses_nothing_silently(monkeypatch, codec, most):
    monkeypatch.setattr(pages, "MOST_HELD", most)
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
