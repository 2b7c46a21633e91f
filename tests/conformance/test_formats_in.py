"""The same documents through every format and compression give the same bytes as plain text with a separator."""

import json
from functools import lru_cache

import formats
import pyarrow as pa
import pytest
from formats import SEPARATOR
from hypothesis import given, settings
from hypothesis import strategies as st
from milling import holding, job_of, mill_blocks, mill_files, some_of

import reference
import samples
from given_texts import texts
from shardmill.job import plan

DOCUMENTS = [text[:1500] for text in samples.SAMPLES.values() if "\r" not in text and SEPARATOR not in text]
DOCUMENTS = [*DOCUMENTS[:5], "", *DOCUMENTS[5:], DOCUMENTS[0], "the last one"]
VAL = {"val_fraction": 0.2}
KINDS = ("large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary")
EOT = 50256


def expected(documents, **choices):
    return _expected(tuple(documents), tuple({**VAL, **choices}.items()))


@lru_cache(maxsize=64)
def _expected(documents, choices):
    return mill_files({"a.txt": formats.text(documents)}, separator=SEPARATOR, **dict(choices))


def assert_same(got, want, size):
    assert (got.train, got.val) == (want.train, want.val)
    assert got.counts == {**want.counts, "input_bytes": size}


def kind_of(name):
    return name if name == "dictionary" else getattr(pa, name)()


@pytest.mark.parametrize("compression", formats.COMPRESSIONS)
@pytest.mark.parametrize("name", formats.STREAMS)
def test_every_format_and_compression_gives_the_same_bytes(name, compression):
    data = formats.COMPRESSIONS[compression](formats.STREAMS[name](DOCUMENTS))
    for block_bytes in (300,) if compression else (5, 300, 1 << 20):
        got = mill_files({f"a.{name}{compression}": data}, block_bytes=block_bytes, **VAL)
        assert_same(got, expected(DOCUMENTS), len(data))


@pytest.mark.parametrize("name", formats.WHOLE)
def test_every_format_that_is_read_by_place_gives_the_same_bytes(name):
    data = formats.WHOLE[name](DOCUMENTS)
    for block_bytes in (5, 300, 1 << 20):
        assert_same(mill_files({f"a.{name}": data}, block_bytes=block_bytes, **VAL), expected(DOCUMENTS), len(data))


@pytest.mark.parametrize("compression", formats.COMPRESSIONS)
def test_compressed_text_gives_the_bytes_of_the_text(compression):
    data = formats.COMPRESSIONS[compression](formats.text(DOCUMENTS))
    got = mill_files({f"a.txt{compression}": data}, separator=SEPARATOR, block_bytes=100, **VAL)
    assert_same(got, expected(DOCUMENTS), len(data))
    text = "\n".join(f"{number} {samples.ENGLISH}" for number in range(60)).encode()
    running = {"val_fraction": 0.2, "passage_bytes": 2048, "max_run_bytes": 1 << 16}
    plain = mill_files([text], **running)
    for block_bytes in (5, 5000, 1 << 20):
        data = formats.COMPRESSIONS[compression](text)
        got = mill_files({f"a.txt{compression}": data}, block_bytes=block_bytes, **running)
        assert (got.train, got.val) == (plain.train, plain.val)
        assert got.val


def test_the_bytes_are_those_of_the_reference():
    got = mill_files({"a.jsonl": formats.jsonl(DOCUMENTS)}, val_fraction=0)
    assert got.train == reference.tokens("r50k_base", [d for d in DOCUMENTS if d], eot=EOT, side="after")


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_parquet_of_every_codec(codec):
    data = formats.parquet(DOCUMENTS, compression=codec)
    assert_same(mill_files({"a.parquet": data}, **VAL), expected(DOCUMENTS), len(data))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [formats.parquet, formats.arrow_stream, formats.arrow_file])
def test_every_type_of_text_column(kind, write):
    data = write(DOCUMENTS, kind_of(kind))
    name = "a.parquet" if write is formats.parquet else "a.arrow"
    assert_same(mill_files({name: data}, **VAL), expected(DOCUMENTS), len(data))


@pytest.mark.parametrize("writer", ["polars", "duckdb", "fastparquet"])
def test_parquet_of_other_writers(tmp_path, writer):
    library = pytest.importorskip(writer)
    path = tmp_path / "a.parquet"
    rows = formats.columns(DOCUMENTS)
    if writer == "polars":
        library.from_arrow(rows).write_parquet(path, row_group_size=7)
    elif writer == "duckdb":
        library.sql("select * from rows").write_parquet(str(path))
    else:
        library.write(str(path), rows.to_pandas(), compression="GZIP")
    data = path.read_bytes()
    assert_same(mill_files({"a.parquet": data}, **VAL), expected(DOCUMENTS), len(data))


def test_a_folder_of_all_of_them_is_milled_file_by_file():
    named = {f"{i}.{name}": write(DOCUMENTS) for i, (name, write) in enumerate(formats.STREAMS.items())}
    named["9.parquet"] = formats.parquet(DOCUMENTS)
    got = mill_files(named, val_fraction=0)
    assert got.train == expected(DOCUMENTS, val_fraction=0).train * len(named)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", formats.COMPRESSIONS[".gz"](formats.jsonl(DOCUMENTS))),
        ("a.jsonl", formats.COMPRESSIONS[".zst"](formats.jsonl(DOCUMENTS))),
        ("a.jsonl.gz", formats.jsonl(DOCUMENTS)),
        ("a.jsonl.gz", formats.COMPRESSIONS[".xz"](formats.jsonl(DOCUMENTS))),
        ("a.txt", formats.parquet(DOCUMENTS)),
        ("a.data", formats.arrow_stream(DOCUMENTS)),
        ("a.json", b"\xef\xbb\xbf" + formats.jsonl(DOCUMENTS)),
        ("a.json", formats.jsonl(DOCUMENTS, newline="\r")),
        ("a.json", formats.jsonl(DOCUMENTS, newline="\n\n \n\t\r\n")),
        ("a.json", formats.jsonl(DOCUMENTS)[:-1]),
    ],
)
def test_content_decides_where_the_name_is_wrong_or_says_little(name, data):
    for block_bytes in (5, 1 << 20):
        got = mill_files({name: data}, block_bytes=block_bytes, **VAL)
        want = expected(DOCUMENTS)
        assert (got.train, got.val) == (want.train, want.val)
        assert got.counts["input_bytes"] == len(data)
        assert got.counts["byte_order_marks"] == data.startswith(b"\xef\xbb\xbf")


def test_the_format_that_was_asked_for_is_taken():
    got = mill_files({"a.log": formats.jsonl(DOCUMENTS)}, input_format="jsonl", **VAL)
    assert got.train == expected(DOCUMENTS).train
    lines = mill_files({"a.jsonl": b"just text\nof two lines"}, input_format="text", separator="\n", val_fraction=0)
    assert lines.train == reference.tokens("r50k_base", ["just text", "of two lines"], eot=EOT, side="after")


@pytest.mark.parametrize("field", ["meta.body.text", "text", r"a\.b", "Ω"])
def test_the_field_may_be_nested_or_have_any_name(field):
    names = [name.replace("\\.", ".") for name in (field.split(".") if "\\" not in field else [field])]

    def nest(document):
        for name in reversed(names):
            document = {"text": 1, "x": [{"text": "no"}], name: document}
        return document

    for ascii_only in (True, False):
        data = "\n".join(json.dumps(nest(d), ensure_ascii=ascii_only) for d in DOCUMENTS).encode()
        assert mill_files({"a.jsonl": data}, field=field, **VAL).train == expected(DOCUMENTS).train


def test_a_nested_column():
    table = pa.table({"meta": pa.array([{"text": d, "n": 1} for d in DOCUMENTS])})
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink)
    got = mill_files({"a.parquet": sink.getvalue().to_pybytes()}, field="meta.text", **VAL)
    assert got.train == expected(DOCUMENTS).train


LONG = ["short", samples.ENGLISH[:900], "中文" * 150, '\\"\n\t😀é' * 40, "7" * 500, "", "end"]
SMALL = {"max_run_bytes": 128, "passage_bytes": 16}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.jsonl", formats.jsonl),
        ("a.jsonl", lambda documents: formats.jsonl(documents, ensure_ascii=False, before="x" * 300)),
        ("a.jsonl.zst", lambda documents: formats.COMPRESSIONS[".zst"](formats.jsonl(documents))),
        ("a.csv", formats.table),
        ("a.parquet", formats.parquet),
        ("a.arrow", formats.arrow_stream),
    ],
)
def test_values_longer_than_a_run_are_cut_where_text_is(name, write):
    want = expected(LONG, **SMALL)
    assert want.counts["forced_cuts"]
    for block_bytes in (5, 100, 1 << 20):
        data = write(LONG)
        for held in (0, 400, 4 << 20):
            with holding(held):
                assert_same(mill_files({name: data}, block_bytes=block_bytes, **SMALL, **VAL), want, len(data))


@pytest.mark.thin
@pytest.mark.parametrize("name", ["jsonl", "jsonl.zst", "csv", "csv.gz", "parquet", "arrow", "txt", "txt.xz"])
@pytest.mark.parametrize("held", [0, 4 << 20])
@pytest.mark.parametrize("choices", [{}, {**SMALL, "sample": 0.5}])
def test_reading_on_from_after_any_block_gives_the_rest(name, choices, held):
    documents = [*LONG, *(d[:200] for d in DOCUMENTS)]
    stem, _, packed = name.partition(".")
    write = {"parquet": formats.parquet, "txt": formats.text, **formats.STREAMS}[stem]
    data = formats.COMPRESSIONS[f".{packed}" if packed else ""](write(documents))
    separator = SEPARATOR if stem == "txt" else None
    made = job_of({f"a.{name}": data}, block_bytes=100, separator=separator, **choices, **VAL)
    with holding(held), made as (job, splitter):
        whole = mill_blocks(job, splitter)
        assert len(whole.after) > 10
        for after, val, train_done, val_done, counts, _ in some_of(whole.after):
            position = plan.Position(**json.loads(json.dumps({f: getattr(after, f) for f in after.__slots__})))
            rest = mill_blocks(job, splitter, position, val)
            assert rest.train == whole.train[train_done:]
            assert rest.val == whole.val[val_done:]
            assert {k: v + getattr(counts, k) for k, v in rest.counts.items()} == whole.counts


@settings(max_examples=40)
@given(
    documents=st.lists(texts(max_pieces=4).filter(lambda t: SEPARATOR not in t), min_size=1, max_size=12),
    block_bytes=st.sampled_from((3, 50, 1 << 20)),
    ascii_only=st.booleans(),
)
def test_any_documents_through_json_and_parquet(documents, block_bytes, ascii_only):
    if not any(documents):
        return
    want = reference.tokens("r50k_base", [d for d in documents if d], eot=EOT, side="after")
    lines = formats.jsonl(documents, ensure_ascii=ascii_only)
    choices = {"val_fraction": 0, "block_bytes": block_bytes}
    assert mill_files({"a.jsonl": lines}, **choices).train == want
    assert mill_files({"a.jsonl": lines}, **choices, **SMALL, engine="reference").counts["documents"] == len(documents)
    assert mill_files({"a.parquet": formats.parquet(documents)}, **choices).train == want
