"""Nothing silent: a bad record is an error that names it, or is left out and counted, and the very next one is read (I6)."""

import csv
import dataclasses
import random

import formats
import pyarrow as pa
import pytest
from formats import SEPARATOR
from milling import engines, holding, mill_files

import reference
import samples
from shardmill.documents.jsonl import exact
from shardmill.documents.records import Broken
from shardmill.errors import InputError, ShardmillError

EOT = 50256
GOOD = [b'{"text": "one"}', b'{"text": "two"}', b'{"id": 3, "text": "three"}']
SMALL = {"max_run_bytes": 64, "passage_bytes": 16}
TINY = {"max_run_bytes": 16, "passage_bytes": 8}
BAD = {
    b'{"text": null}': "null",
    b'{"text": 5}': "a number",
    b'{"text": 1e999}': "a number",
    b'{"text": true}': "true",
    b'{"text": ["a"]}': "a list",
    b'{"text": {"a": "b"}}': "an object",
    b'{"body": "x", "id": 2}': "missing; the record has: body, id",
    b"{}": "missing",
    b'["text"]': "not an object",
    b'"text"': "not an object",
    b"7": "not an object",
    b'{"text": "a", "text": "b"}': "twice",
    b'{"text": "a", "te\\u0078t": "b"}': "twice",
    b'{"text": "\\ud800"}': "surrogate",
    b'{"text": "a\\udc00b"}': "surrogate",
    b'{"text": "a\xffb"}': "not UTF-8",
    b'{"text": "a", "x": "\xff"}': "not UTF-8",
    b'{"text": "a"': "not JSON",
    b'{"text": "a': "not JSON",
    b'{"text": "a"} x': "not JSON",
    b'{"text": "a"} {"text": "b"}': "not JSON",
    b'{"text": "a",}': "not JSON",
    b'{"text": "\t"}': "not JSON",
    b'{"text": "\\q"}': "not JSON",
    b'{"text": "\\u12"}': "not JSON",
    b"{'text': 'a'}": "not JSON",
    b'{"text" "a"}': "not JSON",
    b'{text: "a"}': "not JSON",
    b'{"text": "a", "n": 01}': "not JSON",
    b'{"text": "a", "n": .5}': "not JSON",
    b'{"text": "a", "n": 1.}': "not JSON",
    b'{"text": "a", "n": +1}': "not JSON",
    b'{"text": "a", "n": [1,]}': "not JSON",
    b'{"text": "a", "n": nul}': "not JSON",
    b'\xef\xbb\xbf{"text": "a"}': "not JSON",
    b'{"text": "a", "n": ' + b"[" * 5000 + b"]" * 5000 + b"}": "nested",
}
FINE = [
    b' {"text": "a"} ',
    b'{"text": "a", "n": NaN}',
    b'{"text": "a", "n": [-0.5e+10, -Infinity, 0, null, {}, [], [[]], {"text": 1}]}',
    b'{"text": "a", "n": ' + b"9" * 5000 + b"}",
    b'{"te\\u0078t": "a"}',
    b'{"text": "a", "b": "\\ud800"}',
    b'{"text": "\\u0061", "": "\\"text\\":"}',
    b'{"a\\"text":1,"text"\t:\r"a"}',
    b'{"text": "a", "x": {"text": "b", "text": "c"}}',
]


def tokens(documents):
    return reference.tokens("r50k_base", documents, eot=EOT, side="after")


def lines(*given):
    return b"\n".join(given) + b"\n"


def accounted(counts, written):
    others = counts["documents_empty"] + counts["documents_rejected"] + counts["documents_unsampled"]
    return counts["documents"] == written + others


@pytest.fixture(params=["whole", "long", "too long to hold"])
def choices(request):
    with holding(0 if request.param == "too long to hold" else 4 << 20):
        yield {} if request.param == "whole" else SMALL


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad[:30].decode("latin-1"))
def test_a_bad_line_stops_the_job_or_is_left_out(bad, choices):
    bad_line = bad if not choices else bad.replace(b'"a"', b'"' + b"a" * 80 + b'"', 1) + b" " * 80
    data = lines(GOOD[0], b"", bad_line, GOOD[1], GOOD[2])
    with pytest.raises(InputError, match=r"a\.jsonl line 3 \(byte 17\): .*--on-error skip") as told:
        mill_files({"a.jsonl": data}, val_fraction=0, **choices)
    assert BAD[bad] in str(told.value)
    for block_bytes in (5, 1 << 20):
        got = mill_files({"a.jsonl": data}, val_fraction=0, on_error="skip", block_bytes=block_bytes, **choices)
        assert got.train == tokens(["one", "two", "three"])
        assert (got.counts["documents"], got.counts["documents_rejected"]) == (4, 1)
        (reject,) = got.rejects
        assert (reject.location.line, reject.location.byte) == (3, 17) and BAD[bad] in reject.reason


# The json of each Python says it in its own words, and rejects.jsonl is among the bytes that may not differ (I1).
WORDS = {
    b'{"text": "a"': "a comma or } expected, at byte 12 of the line",
    b'{"text": "a': "the line ends inside a string, at byte 11 of the line",
    b'{"text": "a"} x': "the end of the line expected, at byte 14 of the line",
    b'{"text": "a",}': "a field name expected, at byte 13 of the line",
    b'{"text": "\xc3\xa9\t"}': "control character or invalid escape in a string, at byte 12 of the line",
    b"{'text': 'a'}": "a field name or } expected, at byte 1 of the line",
    b'{"text" "a"}': "a colon expected, at byte 8 of the line",
    b'{"text": "a", "n": 01}': "a value expected, at byte 19 of the line",
    b'{"text": "a", "n": [1,]}': "a value expected, at byte 22 of the line",
    b"text": "an object expected, at byte 0 of the line",
    b'{"n": ' * 300 + b"[" * 300 + b'"a", }': "a value expected, at byte 2,105 of the line",
}


@pytest.mark.parametrize("bad", WORDS, ids=lambda bad: bad[:30].decode())
def test_what_is_wrong_with_a_line_is_told_in_the_same_words_on_every_python(bad):
    got = mill_files({"a.jsonl": lines(GOOD[0], bad, GOOD[1])}, val_fraction=0, on_error="skip")
    assert [reject.reason for reject in got.rejects] == [f"is not JSON: {WORDS[bad]}"]
    assert got.train == tokens(["one", "two"])


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"n":', b"}"), (b'[{"text": "]", "n":', b"}]")])
@pytest.mark.parametrize("where", [(), ("id == 7",)])
def test_lines_may_be_nested_900_deep_on_every_python_however_long_they_are(opening, closing, where, choices):
    """Python's json goes as deep as its version, and the calls in progress, allow."""
    text = "deep" + " " * (100 if choices else 0)

    def line(levels):
        times, more = divmod(levels - 1, len(closing))  # the record itself is a level
        inside = opening * times + (b"[]" if more else b"0") + closing * times
        return b'{"text": "' + text.encode() + b'", "id": 7, "n": ' + inside + b"}"

    data = lines(*map(line, (65, 500, 501, 502, 899, 900, 901, 1000, 1001, 20_000)))
    got = mill_files({"a.jsonl": data}, val_fraction=0, on_error="skip", where=where, **choices)
    assert got.train == tokens([text] * 6)
    assert [reject.location.line for reject in got.rejects] == [7, 8, 9, 10]
    assert {reject.reason for reject in got.rejects} == {"is nested more than 900 deep"}
    if where:
        unwanted = mill_files({"a.jsonl": data}, val_fraction=0, on_error="skip", where=("id != 7",), **choices)
        assert (unwanted.counts["documents_filtered"], len(unwanted.rejects)) == (6, 4)


@pytest.mark.parametrize("fine", FINE, ids=lambda fine: fine[:30].decode("latin-1"))
def test_what_pythons_json_reads_is_read(fine, choices):
    data = lines(GOOD[0], fine + b" " * (100 if choices else 0), GOOD[1])
    assert mill_files({"a.jsonl": data}, val_fraction=0, **choices).train == tokens(["one", "a", "two"])


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_whatever_the_fast_way_accepts_is_what_pythons_json_gives(count):
    rng = random.Random(1)
    seeds = [*GOOD, *BAD, *FINE]
    alphabet = b'{}[]",:\\ \ttextu0019eE.-\xff\xc3\xa9nulltrue'
    checked = 0
    for _ in range(count):
        line = bytearray(rng.choice(seeds)[:60])
        for _ in range(rng.randint(1, 3)):
            line[rng.randrange(len(line)) : rng.randrange(len(line) + 1)] = bytes(
                rng.choices(alphabet, k=rng.randint(0, 3))
            )
            line = line or bytearray(b"{}")
        try:
            want = exact(line.decode(), ("text",)).encode().decode()
        except (Broken, UnicodeError):
            want = None
        for held, block_choices in ((0, {}), (0, TINY), (1 << 20, TINY)):
            if b"\n" in line or b"\r" in line or (block_choices and checked % 4):
                continue
            with holding(held):
                data = {"a.jsonl": lines(GOOD[0], bytes(line))}
                got = mill_files(data, val_fraction=0, on_error="skip", **block_choices)
            expected = ["one", want] if want else ["one"]
            assert got.train == tokens(expected), bytes(line)
        checked += want is not None
    assert checked > count / 60


def test_replace_repairs_characters_and_stops_at_the_rest():
    data = lines(b'{"text": "a\xffb \\ud800 \xef\xbf\xbd"}', GOOD[1])
    for choices in ({}, TINY):
        got = mill_files({"a.jsonl": data}, val_fraction=0, on_error="replace", **choices)
        assert got.train == tokens(["a\ufffdb \ufffd \ufffd", "two"])
        assert got.counts["replaced_characters"] == 2
        with pytest.raises(InputError, match="line 2"):
            mill_files({"a.jsonl": lines(GOOD[0], b'{"text": 5}')}, val_fraction=0, on_error="replace", **choices)


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "dictionary", "string_view"])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_nulls_in_a_column(kind, name):
    write = formats.parquet if name == "a.parquet" else formats.arrow_stream
    data = write(["one", None, "two", "", None], kind if kind == "dictionary" else getattr(pa, kind)())
    with pytest.raises(InputError, match=r"row 1: column 'text' is null; .*--on-error skip"):
        mill_files({name: data}, val_fraction=0)
    got = mill_files({name: data}, val_fraction=0, on_error="skip")
    assert got.train == tokens(["one", "two"])
    assert (got.counts["documents"], got.counts["documents_rejected"], got.counts["documents_empty"]) == (5, 2, 1)
    assert [reject.location.row for reject in got.rejects] == [1, 4]


def test_a_column_of_bytes_that_are_not_utf8(choices):
    values = [b"one", b"\xff" * 80, b"two"]
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"text": pa.array(values, pa.binary())}), sink)
    data = sink.getvalue().to_pybytes()
    with pytest.raises(InputError, match=r"row 1: .*not UTF-8"):
        mill_files({"a.parquet": data}, val_fraction=0, **choices)
    skipped = mill_files({"a.parquet": data}, val_fraction=0, on_error="skip", **choices)
    assert skipped.train == tokens(["one", "two"]) and skipped.counts["documents_rejected"] == 1
    replaced = mill_files({"a.parquet": data}, val_fraction=0, on_error="replace", **choices)
    assert replaced.counts["replaced_characters"] == 80


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", lines(b'{"body": "x", "id": 1}')),
        ("a.csv", b"body,id\nx,1\n"),
        ("a.parquet", None),
    ],
)
def test_a_field_that_is_not_there_is_told_with_those_that_are(name, data):
    if data is None:
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(pa.table({"body": ["x"], "id": [1]}), sink)
        data = sink.getvalue().to_pybytes()
    with pytest.raises(InputError, match=r"'text'.*(there are|has): body, id"):
        mill_files({name: data}, val_fraction=0)
    assert mill_files({name: data, "b.txt": b"x"}, val_fraction=0, on_error="skip").counts["documents_rejected"] == 1


def test_rows_of_a_table_that_are_bad():
    data = b'id,text\n1,one\n2\n3,"a"b\n4,"two\nlines"\n\n5,\xff\n6,\n7,"never closed\n8,three\n'
    with pytest.raises(InputError, match=r"line 3 .*1 columns"):
        mill_files({"a.csv": data}, val_fraction=0)
    for block_bytes in (5, 1 << 20):
        got = mill_files({"a.csv": data}, val_fraction=0, on_error="skip", block_bytes=block_bytes)
        assert got.train == tokens(["one", "two\nlines", "three"])
        assert [reject.location.line for reject in got.rejects] == [3, 4, 8, 10]
        assert got.counts["documents_empty"] == 1 and accounted(got.counts, 3)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_rows_longer_than_a_run_are_taken_apart_as_pythons_csv_does(count):
    """With a run of 16 bytes most rows are walked through by our own code; otherwise Python's csv takes them."""
    rng = random.Random(3)
    marks = [
        b"a",
        b"b" * 9,
        b",",
        b'"',
        b'""',
        b'","',
        b"\n",
        b"\r\n",
        b"\r",
        "é".encode(),
        b"\xff",
        b'"c d e f g h i j\n"',
    ]
    good = broken = 0
    decode = engines("r50k_base", "reference").reference.decode
    for _ in range(count):
        data = b"id,text\n" + b"".join(rng.choices(marks, k=rng.randint(1, 25)))
        for policy in ("skip", "replace"):
            results = []
            for choices in ({}, TINY):
                try:
                    got = mill_files({"a.csv": data}, val_fraction=0, on_error=policy, engine="reference", **choices)
                    places = [(reject.location.line, reject.location.byte) for reject in got.rejects]
                    got.counts.pop("forced_cuts")
                    results.append((got.counts, places, decode(got.train)))
                except InputError as e:
                    results.append(str(e).partition("a.csv ")[2].partition(": ")[0])
            assert results[0] == results[1], (data, policy)
            good += not isinstance(results[0], str)
            broken += isinstance(results[0], str)
    assert good > count / 4 and broken > count / 20


def test_a_nul_is_a_character_like_others_in_a_table(choices):
    """The csv module of Python 3.10 refuses it."""
    rows = ["a\0b", "\0", '\0,"\0"\n\0', "\ud7ff\ue000", "long \0 row " * 20, "é\0\udcff"]
    quoted = ['"' + row.replace('"', '""') + '"' for row in rows]
    data = "i\0d,text\0\n" + "".join(f"7\0,{row}\n" for row in quoted) + "8\0,no\n\0\n"
    data = data.encode("utf-8", "surrogateescape")
    asked = {"val_fraction": 0, "field": "text\0", "where": ("`i\0d` == '7\0'",)}
    got = mill_files({"a.csv": data}, on_error="skip", **asked, **choices)
    assert got.train == tokens(rows[:-1])
    assert [reject.location.line for reject in got.rejects] == [8, 10]
    assert "is not UTF-8" in got.rejects[0].reason and "has 1 columns" in got.rejects[1].reason
    assert got.counts["documents_filtered"] == 1
    with pytest.raises(InputError, match="there is no column 'text'; the file has: i\0d, text\0\\. Choose"):
        mill_files({"a.csv": data}, val_fraction=0)


def test_what_is_wrong_with_a_header_is_told_in_the_same_words_on_every_python():
    for header, words in {
        b"id\rx,text\n": "there is a line break in a value without quotes",
        b'"id"x,text\n': "',' expected after '\"'",
        b'"id,text\n': "unexpected end of data",
    }.items():
        got = mill_files({"a.csv": header + b"1,one\n", "b.txt": b"x"}, val_fraction=0, on_error="skip")
        assert [reject.reason for reject in got.rejects] == [f"cannot read the header: {words}"]


@pytest.mark.parametrize("limit", [10, 50, 131072])
def test_the_limit_of_the_csv_module_is_left_alone_and_does_not_matter(limit):
    """It is that of the whole process: once reading a table raised it for everybody."""
    rows = ["one", "a longer text " * 5, "two\nlines", "a very long text " * 10_000]
    data = b"id,text\n" + "".join(f'1,"{row}"\n' for row in rows).encode()
    before = csv.field_size_limit(limit)
    try:
        got = mill_files({"a.csv": data}, val_fraction=0)
        assert csv.field_size_limit() == limit
    finally:
        csv.field_size_limit(before)
    assert got.train == tokens(rows)


# ---- plain text


def test_a_document_that_is_not_utf8_is_left_out():
    documents = [b"one", b"\xff\xfe", b"two " * 100 + b"\xff", b"three", b"four " * 100]
    data = SEPARATOR.encode().join(documents)
    for block_bytes in (5, 100, 1 << 20):
        for choices in ({}, SMALL):
            for name, packed in (("a.txt", data), ("a.txt.gz", formats.COMPRESSIONS[".gz"](data))):
                got = mill_files(
                    {name: packed},
                    val_fraction=0,
                    on_error="skip",
                    separator=SEPARATOR,
                    block_bytes=block_bytes,
                    **choices,
                )
                assert got.train == tokens(["one", "three", "four " * 100])
                assert (got.counts["documents"], got.counts["documents_rejected"]) == (5, 2)
                assert [reject.location.byte for reject in got.rejects] == [0 + 3 + 8, 3 + 8 + 2 + 8]


def test_a_byte_order_mark_is_counted_before_a_long_document_that_is_left_out():
    data = b"\xef\xbb\xbf" + b"bad \xff " * 100 + b"##good"
    got = mill_files({"a.txt": data}, separator="##", on_error="skip", val_fraction=0, block_bytes=20, **SMALL)
    assert (got.counts["byte_order_marks"], got.counts["documents_rejected"]) == (1, 1)
    assert got.counts["documents"] == 2 and got.train == tokens(["good"])


def test_a_file_that_is_not_utf8_is_left_out_among_others():
    got = mill_files([b"one", b"\xff", b"two"], val_fraction=0, on_error="skip")
    assert got.train == tokens(["one", "two"])
    assert (got.counts["documents"], got.counts["documents_rejected"]) == (3, 1)


def test_a_passage_of_running_text_that_is_not_utf8_is_left_out():
    text = "\n".join(f"{number} {samples.ENGLISH}" for number in range(40)).encode()
    broken = text[:50_000] + b"\xff" + text[50_000:]
    choices = {"passage_bytes": 2048, "max_run_bytes": 1 << 16, "on_error": "skip", "val_fraction": 0.1}
    results = [mill_files([broken], block_bytes=size, **choices) for size in (5, 5000, 1 << 20)]
    assert results[0].counts["passages_rejected"] == 1 and len(results[0].rejects) == 1
    for other in results[1:]:
        assert (other.train, other.val, other.counts) == (results[0].train, results[0].val, results[0].counts)


# ---- damaged files


def told(milled):
    return [(dataclasses.replace(each.location, path=""), each.reason, each.records) for each in milled.rejects]


@pytest.mark.parametrize("name", ["txt.gz", "jsonl.gz", "jsonl.zst", "jsonl.bz2", "csv.xz", "arrow.zst"])
@pytest.mark.parametrize("longest", [512 << 10, 400])
def test_a_compressed_file_that_was_cut_short(name, longest):
    """Wherever a Block ends, and also where records are longer than what is held of a run of text."""
    documents = [f"{number} {samples.ENGLISH[:500]}" for number in range(2000)]
    stem, _, packed = name.partition(".")
    data = formats.COMPRESSIONS["." + packed]({"txt": formats.text, **formats.STREAMS}[stem](documents))
    data = data[: len(data) * 9 // 10]
    choices = {
        "val_fraction": 0,
        "separator": SEPARATOR if stem == "txt" else None,
        "max_run_bytes": longest,
        "passage_bytes": 200,
    }
    with pytest.raises(InputError, match=r"truncated|cut short|is damaged after"):
        mill_files({f"a.{name}": data}, **choices)
    got = [
        mill_files({f"a.{name}": data}, on_error="skip", block_bytes=size, **choices) for size in (300, 2000, 1 << 20)
    ]
    for other in got[1:]:
        assert got[0].train == other.train and got[0].counts == other.counts and told(got[0]) == told(other)
    assert len(got[0].rejects) == 1 and "lost" in got[0].rejects[0].reason
    whole = tokens(documents)
    assert 1000 < len(got[0].train) < len(whole)
    assert got[0].train[:1000] == whole[:1000]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather"])
def test_a_file_of_rows_that_was_cut_short(name):
    documents = [f"{number} {samples.ENGLISH[:500]}" for number in range(200)]
    write = {"a.parquet": formats.parquet, "a.arrow": formats.arrow_stream, "a.feather": formats.arrow_file}[name]
    data = write(documents)
    for keep in (len(data) - (0 if name == "a.feather" else 1) - len(data) // 3, len(data) // 2, 20, 0):
        with pytest.raises(InputError, match=r"a\.(parquet|arrow|feather)"):
            mill_files({name: data[:keep], "b.txt": b"x"}, val_fraction=0)
        got = mill_files({name: data[:keep], "b.txt": b"x"}, val_fraction=0, on_error="skip")
        assert got.rejects and got.train[-2:] == tokens(["x"])


def test_a_page_of_parquet_that_is_damaged_costs_its_row_group():
    documents = [f"{number} {samples.ENGLISH[: 100 + number]}" for number in range(60)]
    data = bytearray(
        formats.parquet(documents, row_group_size=20, compression="zstd", use_dictionary=False, write_batch_size=2)
    )
    chunk = pa.parquet.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(1).column(1)
    place = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[place : place + 40] = b"\x00" * 40
    with pytest.raises(InputError, match=r"row \d+: \d+ rows, to the end of row group 1, cannot be read"):
        mill_files({"a.parquet": bytes(data)}, val_fraction=0)
    got = [
        mill_files({"a.parquet": bytes(data)}, val_fraction=0, on_error="skip", block_bytes=size)
        for size in (5, 1000, 1 << 20)
    ]
    assert got[0].counts == got[1].counts == got[2].counts and got[0].train == got[1].train == got[2].train
    lost = got[0].counts["documents_rejected"]
    assert 0 < lost < 20 and got[0].counts["documents"] == 60
    assert got[0].train == tokens([*documents[: 40 - lost], *documents[40:]])


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "parquet", "arrow", "feather"])
def test_random_damage_is_told_and_loses_nothing_silently(name):
    rng = random.Random(7)
    documents = [f"{number} {samples.ENGLISH[:60]}" for number in range(40)]
    stem, _, packed = name.partition(".")
    whole = formats.COMPRESSIONS["." + packed if packed else ""](
        {**formats.STREAMS, **formats.WHOLE, "arrow": formats.arrow_stream}[stem](documents)
    )
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.choice((0, 1, 1, 5))] = rng.randbytes(rng.choice((0, 1, 1, 5)))
        try:
            got = mill_files({f"a.{name}": bytes(data), "z.txt": b"x"}, val_fraction=0, on_error="skip")
        except ShardmillError:
            continue
        assert accounted(got.counts, got.train.count(EOT))
        assert len(got.rejects) > 0 or got.counts["documents"] >= 40 or stem in ("csv", "jsonl")


# ---- selecting


def test_a_sample_is_picked_by_content_and_is_the_same_in_every_format():
    documents = [f"{number} {samples.ENGLISH[:50]}" for number in range(400)]
    want = mill_files({"a.txt": formats.text(documents)}, separator=SEPARATOR, sample=0.25, val_fraction=0.1)
    kept = len(documents) - want.counts["documents_unsampled"]
    assert 60 < kept < 140 and accounted(want.counts, kept)
    for name, data in {"a.jsonl": formats.jsonl(documents), "a.parquet": formats.parquet(documents)}.items():
        got = mill_files({name: data}, sample=0.25, val_fraction=0.1, block_bytes=500)
        assert (got.train, got.val) == (want.train, want.val)


def test_text_that_is_cut_short_inside_a_character_is_told_as_cut_short(tmp_path):
    """Half a character at the break is not what went wrong, and iconv would not help."""
    from backports import zstd

    from shardmill import Spec, prepare
    from shardmill.errors import InputError

    whole = zstd.compress("".join(f"문서 {number}의 글이다. " for number in range(60_000)).encode())
    (tmp_path / "cut.txt.zst").write_bytes(whole[: len(whole) // 2])
    for policy in ("stop", "replace"):
        with pytest.raises(InputError, match="truncated"):
            prepare(Spec(inputs=[tmp_path / "cut.txt.zst"], output=tmp_path / policy, on_error=policy))
