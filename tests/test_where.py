"""--where: what a condition means, what is wrong with one that means nothing, and where its fields are in each format."""

import csv
import datetime
import decimal
import gzip
import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_files
from command import run
from shardmill import Limits, Spec, estimate, prepare, verify
from shardmill.documents.json_scan import is_wanted
from shardmill.documents.jsonl import _is_wanted
from shardmill.documents.long_values import BytesReader
from shardmill.documents.where import Untyped, parse
from shardmill.errors import ContentError, InputError, UsageError

TRUE = [
    *(("score >= 3", {"score": 3}), ("score >= 3", {"score": 3.0}), ("score == 1e3", {"score": 1000})),
    *(("score > -.5", {"score": 0}), ("score < +2.", {"score": 1.99}), ("score != 3", {"score": 4})),
    *(("a == 'x'", {"a": "x"}), ('a == "x"', {"a": "x"}), ("a > 'b'", {"a": "ba"}), ("a != 'x'", {"a": ""})),
    *(("a == 'it\\'s \\n'", {"a": "it's \n"}), ("a == '日本'", {"a": "日本"}), ("größe == 1", {"größe": 1})),
    *(("a == true", {"a": True}), ("a != false", {"a": True}), ("a in (1, 'x', true)", {"a": "x"})),
    *(("a in [2]", {"a": 2.0}), ("a not in (1, 2)", {"a": 3}), ("a NOT IN (1)", {"a": 3})),
    *(
        ("a.b.c == 1", {"a": {"b": {"c": 1}}}),
        ("`a.b` == 1", {"a.b": 1}),
        ("`my field`.x-y == 1", {"my field": {"x-y": 1}}),
    ),
    *(("a == 1 and b == 2", {"a": 1, "b": 2}), ("a == 1 or b == 2", {"b": 2}), ("A == 1 OR a == 1", {"a": 1})),
    *(("a == 0 and b == 0 or c == 1", {"c": 1}), ("c == 1 or a == 0 and b == 0", {"c": 1})),
    *(("(c == 1 or a == 0) and b == 0", {"c": 1, "b": 0}), ("((a == 1))", {"a": 1})),
    *(("a == 9007199254740993", {"a": 9007199254740993}), ("a > 1", {"a": float("inf")})),
]
FALSE = [
    *(("score >= 3", {}), ("score >= 3", {"score": None}), ("score >= 3", {"score": "5"}), ("score != 3", {})),
    *(
        ("score != 3", {"score": "x"}),
        ("score >= 1", {"score": True}),
        ("a == true", {"a": 1}),
        ("a == 'x'", {"a": ["x"]}),
    ),
    *(("a not in (1)", {}), ("a not in (1)", {"a": "x"}), ("a in ('x')", {"a": {"x": 1}}), ("a == 'x'", {"a": "X"})),
    *(("a.b == 1", {"a": 1}), ("a.b == 1", {"a.b": 1}), ("(c == 1 or a == 0) and b == 0", {"c": 1})),
    *(("a == 9007199254740993", {"a": 9007199254740992}), ("a < 1", {"a": float("nan")})),
]


def decide(condition, record):
    """By both parsers of JSON."""
    where, line = parse([condition]), json.dumps(record).encode()
    short = _is_wanted(line, where)
    assert is_wanted(BytesReader("x", line), (0, len(line)), where) == short
    return short


@pytest.mark.parametrize(("condition", "record"), TRUE)
def test_a_condition_is_met(condition, record):
    assert decide(condition, record)


@pytest.mark.parametrize(("condition", "record"), FALSE)
def test_what_is_missing_null_or_of_another_type_meets_no_condition(condition, record):
    assert not decide(condition, record)


def test_several_conditions_must_all_be_met():
    where = parse(["a == 1", "b == 2 or a == 5", "a < 3"])
    assert where.fields == (("a",), ("b",)) and where.test([1, 2]) and not where.test([1, 3])
    assert parse([]) is None


@pytest.mark.parametrize(
    ("text", "condition", "met"),
    [
        *(("3.5", "x > 3", True), (" 10 ", "x > 9", True), ("1e3", "x == 1000", True), ("-0", "x == 0", True)),
        *(("", "x < 9", False), ("ten", "x != 9", False), ("1_0", "x == 10", False), ("nan", "x != 1", False)),
        *(("10", "x == '10'", True), ("10", "x < '9'", True), ("True", "x == true", True), ("no", "x == false", False)),
        *(("9007199254740993", "x == 9007199254740993", True), ("5", "x in ('a', 5)", True), ("", "x == ''", True)),
    ],
)
def test_text_is_compared_as_a_number_with_numbers(text, condition, met):
    assert parse([condition]).test([Untyped(text)]) == met


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        *(
            ("score => 3", ["write ==", "character 7, '=> 3'"]),
            ("score = 3", ["write =="]),
            ("score", ["at the end", ">="]),
        ),
        *(("", ["the name of a field", "at the end"]), ("score >= high", ['in quotes: "high"', "character 10"])),
        *(("a == 'b", ["not closed", "character 6"]), ("3 < a", ["the name of a field", "character 1"])),
        *(
            ("a > 1 < 3", ["two comparisons", "'and'"]),
            ("a < true", ["== or !="]),
            ("a == null", ["null equals nothing"]),
        ),
        *(("a in 3", ["in parentheses", '("en", "de")']), ("a in (1,)", ["expected a number", "character 9, ')'"])),
        *(
            ("a in (1", ["expected )"]),
            ("(a == 1", ["expected )"]),
            ("a == 1)", ["the end"]),
            ("a == 1 b == 2", ["'and'"]),
        ),
        *(("a == 1 && b == 1", ["'and'"]), ("!a", ["!="]), ("not a == 1", ["'not' stands only before 'in'", "x != 3"])),
        *(
            ("a not b", ["expected 'in' after 'not'"]),
            ("a == 3x", ["not part of a condition"]),
            ("a ~ 3", ["not part"]),
        ),
        *(("a == __import__('os')", ["in quotes"]), ("a == '" + "x" * 5000 + "'", ["4,096 characters"])),
        *(("(" * 60 + "a == 1" + ")" * 60, ["50 deep"]), ("a == \x1b[0m", ["\\x1b"]), ("`` == 1", ["not closed"])),
    ],
)
def test_what_is_wrong_is_pointed_at(condition, words):
    with pytest.raises(UsageError, match="--where") as caught:
        parse([condition])
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\x1b" not in str(caught.value)


@given(st.text(st.sampled_from("abcinotd.`'\"\\ ()[],=<>!0123456789-+e"), max_size=30))
def test_any_text_is_a_condition_or_is_refused(text):
    try:
        where = parse([text])
    except UsageError:
        return
    where.test([1] * len(where.fields))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
CONDITIONS = [
    "a == 1",
    "a.b < 3",
    "a != 'x'",
    "b.a.c in (1, 'a', true)",
    "c > 'a' and a >= 0",
    "`a b` == 1 or b == true",
]


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "a b"]), json_values, max_size=4), st.sampled_from(CONDITIONS))
def test_a_line_parsed_at_once_and_by_windows_is_judged_alike(record, condition):
    decide(condition, record)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1}, "a": {"c": 1}}',
        b'{"a": {"b": 1}, "a": 5}',
        b'{"a": 5, "a": {"b": 1}}',
        b'{"a": "\\ud83d", "b": "\xff"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": -' + b"9" * 399 + b', "b": 1e999}',
        b'{"a": NaN, "b": -Infinity}',
        b'{"\\u0061": 2}',
        b'{"a": "' + b"x" * 200_000 + b'"}',
        b'{"a": "' + b"\\u00e9" * 50_000 + b'"}',
    ],
)
def test_odd_lines_are_judged_alike(line):
    for condition in ("a == 2", "a > 1", "a != 2", "a.b == 1", "a > 'w'", "a == 'x'", "b != 'x'", "b > 1", "b < 0"):
        where = parse([condition])
        assert _is_wanted(line, where) == is_wanted(BytesReader("x", line), (0, len(line)), where), condition


@pytest.mark.parametrize("line", [b"", b"[1]", b'{"a": 1', b"5", b'{"a": 1} x', b'{"a": 01}', b"\xff"])
def test_what_is_not_a_json_object_is_left_for_others_to_refuse(line):
    where = parse(["a == 2"])
    assert _is_wanted(line, where) and is_wanted(BytesReader("x", line), (0, len(line)), where)


LONG = "The mill turns. " * 60_000
ROWS = [
    {"text": f"Story {i}. " * (i % 7 + 1), "score": [1, 2.5, None, 4][i % 4], "language": ["en", "de", "zh"][i % 3]}
    for i in range(300)
]
ROWS[20] |= {"text": LONG + "20", "score": 4, "language": "en"}
ROWS[21] |= {"text": LONG + "21", "score": 1, "language": "en"}
WANTED = [row for row in ROWS if (row["score"] or 0) >= 2 and row["language"] in ("en", "zh")]
WHERE = ["score >= 2", 'language in ("en", "zh")']


def table(kind):
    types = pa.schema([("text", pa.string()), ("score", kind), ("language", pa.string())])
    return pa.Table.from_pylist(ROWS, schema=types)


def as_parquet(made, **options):
    out = io.BytesIO()
    pq.write_table(made, out, row_group_size=70, **options)
    return out.getvalue()


def as_arrow(made):
    out = io.BytesIO()
    with pa.ipc.new_stream(out, made.schema) as writer:
        writer.write_table(made, max_chunksize=90)
    return out.getvalue()


def as_csv():
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["score", "text", "language"])
    writer.writerows([row["score"], row["text"], row["language"]] for row in ROWS)
    return out.getvalue().encode()


def files():
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    yield "a.jsonl", lines
    yield "a.jsonl.gz", gzip.compress(lines)
    yield "a.csv", as_csv()
    yield "a.csv.gz", gzip.compress(as_csv())
    yield "double.parquet", as_parquet(table(pa.float64()))
    yield "plain.parquet", as_parquet(table(pa.float32()), use_dictionary=False, compression="zstd")
    yield (
        "delta.parquet",
        as_parquet(
            table(pa.float32()),
            use_dictionary=False,
            column_encoding={"language": "DELTA_BYTE_ARRAY", "text": "PLAIN", "score": "BYTE_STREAM_SPLIT"},
            data_page_version="2.0",
        ),
    )
    yield "a.arrow", as_arrow(table(pa.float64()))
    encoded = table(pa.float64())
    encoded = encoded.set_column(2, "language", encoded["language"].dictionary_encode())
    yield "dictionary.arrow", as_arrow(encoded)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in WANTED))
    prepare(Spec(inputs=[folder / "a.jsonl"], output=folder / "out", val_fraction=0.2))
    return folder / "out"


FILES = dict(files())


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_what_the_wanted_records_alone_would_give(tmp_path, expected, name):
    (tmp_path / name).write_bytes(FILES[name])
    spec = Spec(inputs=[tmp_path / name], output=tmp_path / "out", val_fraction=0.2, where=WHERE)
    counts = prepare(spec, limits=Limits(block_bytes=3000)).manifest.counts
    for split in ("train.bin", "val.bin"):
        assert (tmp_path / "out" / split).read_bytes() == (expected / split).read_bytes()
    assert (counts.documents, counts.documents_filtered) == (len(ROWS), len(ROWS) - len(WANTED))
    assert verify(tmp_path / "out", sources=[tmp_path / name]).ok
    assert estimate(spec).documents.middle == len(WANTED)


def test_limits_count_what_is_written_and_provenance_names_the_line(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    spec = Spec(inputs=[tmp_path / "a.jsonl"], output=tmp_path / "out", where=WHERE, limit_documents=5, index=True, provenance=True, val_fraction=0)  # fmt: skip
    made = prepare(spec).manifest
    lines = [i for i, row in enumerate(ROWS) if row in WANTED][:5]
    assert made.counts.documents - made.counts.documents_filtered == 5
    assert made.counts.documents == lines[-1] + 1
    places = (tmp_path / "out/train.places").read_bytes()
    assert [int.from_bytes(places[at + 8 : at + 16], "little") for at in range(0, len(places), 16)] == lines


@pytest.mark.parametrize("policy", ["stop", "skip", "replace"])
def test_only_what_is_wanted_must_be_good_but_all_must_be_json(tmp_path, policy):
    lines = [b'{"text": null, "n": 1}', b'{"text": "\xff", "n": 1}', b'{"n": 1}', b'{"text": "good", "n": 2}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    spec = {"inputs": [tmp_path / "a.jsonl"], "where": ["n == 2"], "on_error": policy, "val_fraction": 0}
    counts = prepare(Spec(**spec, output=tmp_path / "out")).manifest.counts
    assert (counts.documents, counts.documents_filtered, counts.documents_rejected) == (4, 3, 0)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines, b'{"n": 1', b"[1]"]))
    if policy == "skip":
        assert prepare(Spec(**spec, output=tmp_path / "bad")).manifest.counts.documents_rejected == 2
    else:
        with pytest.raises(InputError, match=r"line 5.*is not JSON"):
            prepare(Spec(**spec, output=tmp_path / "bad"))


def test_values_of_columns_compare_as_in_json(tmp_path):
    day = datetime.date(2024, 2, 29)
    made = pa.table(
        {
            "text": ["one", "two", "three"],
            "day": pa.array([day, day + datetime.timedelta(1), None]),
            "time": pa.array([datetime.datetime(2024, 1, i + 1, 12) for i in range(3)], pa.timestamp("us")),
            "price": pa.array([decimal.Decimal("1.10"), decimal.Decimal("2.50"), None]),
            "flag": [True, False, None],
            "small": pa.array([1, 2, 255], pa.uint8()),
            "half": pa.array([1, 2, 3], pa.float16()),
            "raw": [b"a", b"\xff", b"b"],
            "nothing": pa.nulls(3),
            "in": [{"n": 1}, None, {"n": 3}],
            "list": [[1], [2], [3]],
        }
    )
    (tmp_path / "a.parquet").write_bytes(as_parquet(made))
    (tmp_path / "a.arrow").write_bytes(as_arrow(made))
    conditions = {
        "day >= '2024-03-01'": 1, "day != 'x'": 2, "time < '2024-01-02'": 1, "price > 1.5": 1, "price == 2.5": 1,
        "flag == true": 1, "flag != true": 1, "small > 200": 1, "half >= 2": 2, "raw == 'a'": 1, "raw > 'a'": 2,
        "nothing == 1": 0, "`in`.n > 1": 1, "small in (1, 255) and flag == true": 1,
    }  # fmt: skip
    for suffix in ("parquet", "arrow"):
        for condition, count in conditions.items():
            found = estimate(Spec(inputs=[tmp_path / f"a.{suffix}"], output=tmp_path / "out", where=[condition]))
            assert found.documents.middle == count, (suffix, condition)
        for condition, words in {"list == 1": "has type list", "lsit == 1": "no column 'lsit'.*--where"}.items():
            with pytest.raises(ContentError, match=words):
                prepare(Spec(inputs=[tmp_path / f"a.{suffix}"], output=tmp_path / "out", where=[condition]))


def test_a_filter_column_that_is_damaged_costs_its_row_group(tmp_path):
    data = bytearray(as_parquet(table(pa.float64()), compression="zstd", use_dictionary=False))
    column = pq.read_metadata(io.BytesIO(data)).row_group(1).column(1)
    start, length = column.data_page_offset, column.total_compressed_size
    data[start + length // 2 : start + length] = bytes(length - length // 2)
    (tmp_path / "a.parquet").write_bytes(data)
    spec = {"inputs": [tmp_path / "a.parquet"], "where": WHERE, "val_fraction": 0}
    counts = prepare(Spec(**spec, output=tmp_path / "out", on_error="skip")).manifest.counts
    assert counts.documents == len(ROWS) and counts.documents_rejected == 70
    with pytest.raises(InputError, match=r"row 70.*70 rows, to the end of row group 1, cannot be read"):
        prepare(Spec(**spec, output=tmp_path / "stopped"))


def test_a_filter_column_with_pages_that_cannot_be_held_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("shardmill.documents.rules.LEAST_HELD", 4000)
    sizes = (9, 3000)
    with pq.ParquetWriter(
        tmp_path / "a.parquet", pa.schema([("text", pa.string()), ("n", pa.int64())]), use_dictionary=["text"]
    ) as writer:
        for size in sizes:
            writer.write_table(pa.table({"text": ["a"] * size, "n": range(size)}))
    spec = {"inputs": [tmp_path / "a.parquet"], "output": tmp_path / "out", "on_error": "skip", "val_fraction": 0}
    counts = prepare(Spec(**spec, where=["n >= 0"])).manifest.counts
    assert counts.documents_rejected == 3000 and counts.documents == 3009
    assert "in a column that --where asks for" in (tmp_path / "out/rejects.jsonl").read_text()
    assert prepare(Spec(**spec), overwrite=True).manifest.counts.documents_rejected == 0


def test_headers_of_warc_records_are_fields(tmp_path):
    texts = [f"Page {i}. " * 20 for i in range(40)]
    tags = [{"score": i % 5, "language": ["eng", "fra"][i % 2]} for i in range(40)]
    (tmp_path / "a.wet").write_bytes(made_files.warc(texts, random.Random(1), tags=tags).data)
    spec = Spec(inputs=[tmp_path / "a.wet"], output=tmp_path / "out", where=['meta_.LANGUAGE == "fra"', "score >= 3"])
    counts = prepare(spec).manifest.counts
    assert counts.documents == 40 and counts.documents - counts.documents_filtered == 8


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a", "more.md"])
def test_plain_text_is_refused_before_the_work(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"text") if name.endswith(".gz") else b"text")
    (tmp_path / "b.jsonl").write_text('{"text": "x", "n": 1}\n')
    spec = Spec(
        inputs=[tmp_path / "b.jsonl", tmp_path / name], output=tmp_path / "out", where=["n == 1"], on_error="skip"
    )
    with pytest.raises(InputError, match="plain text has none; leave it out with --exclude"):
        prepare(spec)
    assert not (tmp_path / "out").exists()


def test_a_csv_without_the_column_lists_those_that_it_has(tmp_path):
    (tmp_path / "a.csv").write_text("text,score\nx,1\ny,2\n")
    spec = {"inputs": [tmp_path / "a.csv"], "output": tmp_path / "out", "val_fraction": 0}
    with pytest.raises(InputError, match=r"no column 'stars'; the file has: text, score\. Choose one with --where"):
        prepare(Spec(**spec, where=["stars > 1"]))
    (tmp_path / "a.csv").write_text("score,text,more\n3,x\n1,y,z\n5\n,w,v\n4,v,u\n")
    counts = prepare(Spec(**spec, where=["score > 2", "more != 'q'"], on_error="skip")).manifest.counts
    assert (counts.documents, counts.documents_filtered, counts.documents_rejected) == (5, 3, 1), "too few come first"


def test_the_command_says_what_was_filtered_and_the_manifest_keeps_the_condition(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given = ["a.jsonl", "-o", "out", "--where", WHERE[0], "--where", WHERE[1]]
    done = run("prepare", *given, cwd=tmp_path)
    assert done.returncode == 0 and f"{len(ROWS) - len(WANTED)} filtered out by --where" in done.stderr
    assert json.loads((tmp_path / "out/manifest.json").read_text())["job"]["choices"]["where"] == WHERE
    done = run("verify", "out", "--source", "a.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("prepare", *given[:-2], cwd=tmp_path)
    assert done.returncode == 1 and "where: was" in done.stderr
    done = run("prepare", "a.jsonl", "-o", "none", "--where", "scroe > 1", cwd=tmp_path)
    assert "no record meets --where; check the names" in done.stderr
    done = run("prepare", "a.jsonl", "-o", "none", "--where", "scroe > 1", "--dry-run", cwd=tmp_path)
    assert "no record of the samples meets --where" in done.stdout
    done = run("prepare", "a.jsonl", "-o", "bad", "--where", "score => 1", cwd=tmp_path)
    assert done.returncode == 2 and "write ==" in done.stderr
