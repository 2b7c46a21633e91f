"""I5 for records: a line, a row group, a value or a window of any size, and the command stays within --max-memory."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from peaks import MB, documents, mill, mill_within, smallest, unseen_words

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.slow

ONE = ("--workers", "1", "--val-fraction", "0")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


def words(size):
    source, made, total = unseen_words(), [], 0
    while total < size:
        made.append(next(source))
        total += len(made[-1])
    return b"".join(made)[:size].decode()


def test_one_line_of_json_of_any_length_stays_within_the_smallest_budget(tmp_path, output):
    text = tmp_path / "line.jsonl"
    with open(text, "w") as file:
        file.write('{"other": "' + "é\\n" * (3 * MB) + '", "text": ')
        json.dump(words(15 * MB), file)
        file.write("}\n")
    mill_within(text, output, smallest(text, output, *ONE), *ONE)


def test_many_lines_of_json_stay_within_the_smallest_budget(tmp_path, output):
    text = tmp_path / "lines.jsonl"
    source = documents()
    with open(text, "w") as file:
        for _ in range(80_000):
            file.write(json.dumps({"text": next(source).decode()}) + "\n")
    mill_within(text, output, smallest(text, output, *ONE), *ONE)


def test_a_large_row_group_stays_within_the_smallest_budget(tmp_path, output):
    data = words(30 * MB)
    rows = [data[at : at + 3000] for at in range(0, len(data), 3000)]
    text = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": rows}), text, row_group_size=len(rows), compression="zstd")
    mill_within(text, output, smallest(text, output, *ONE), *ONE)


def test_a_row_group_whose_last_values_are_large_stays_within_the_smallest_budget(tmp_path, output):
    # The mean of the row group says nothing about them: the headers of the pages do.
    data = words(30 * MB)
    rows = ["tiny"] * 100_000 + [data[at : at + 5 * MB] for at in range(0, len(data), 5 * MB)]
    text = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": rows}), text, row_group_size=len(rows), use_dictionary=False, write_batch_size=64)
    mill_within(text, output, smallest(text, output, *ONE), *ONE)


def one_large_value(folder, codec, *, first):
    """A file whose only large value is 45 MB long, in the first row group or in a later one."""
    tables = [pa.table({"text": ["a"] * 1000}), pa.table({"text": ["z y" * (15 * MB), "b"]})]
    text = folder / "rows.parquet"
    with pq.ParquetWriter(text, tables[0].schema, compression=codec, use_dictionary=first) as writer:
        for table in reversed(tables) if first else tables:
            writer.write_table(table)
    return text


def test_a_value_that_is_too_large_to_hold_is_told_or_left_out(tmp_path, output):
    text = one_large_value(tmp_path, "lz4", first=False)
    budget = smallest(text, output, *ONE)
    told = mill(text, output, budget, *ONE)
    assert told.code == 1 and "row 1,000" in told.message and "45,000,0" in told.message
    assert "write it with zstd" in told.message
    mill_within(text, output, budget, "--on-error", "skip", *ONE)


@pytest.mark.parametrize(("codec", "first"), [("snappy", True), ("zstd", False)])
def test_a_value_of_parquet_of_any_length_stays_within_the_smallest_budget(tmp_path, output, codec, first):
    text = one_large_value(tmp_path, codec, first=first)
    budget = smallest(text, output, *ONE)
    assert budget < 400
    made = mill_within(text, output, budget, *ONE)
    lines = tmp_path / "lines.txt"
    rows = [["a"] * 1000, ["z y" * (15 * MB), "b"]]
    lines.write_text("\n".join(row for group in (reversed(rows) if first else rows) for row in group))
    assert made.files["train.bin"] == mill_within(lines, output, 4096, *ONE, "--separator", "\\n").files["train.bin"]


@pytest.mark.parametrize("name", ["jsonl.zst", "csv.zst", "txt.zst"])
def test_a_record_of_any_length_stays_within_the_smallest_budget(tmp_path, output, name):
    """What cannot be read backwards is put on disk as long as it is needed."""
    long = words(8 * MB)
    rows = {
        "jsonl": "".join(json.dumps({"text": text}) + "\n" for text in ("a", long, "b")),
        "csv": f'text\na\n"{long}"\nb\n',
        "txt": f"a\n{long}\nb\n",
    }[name.split(".")[0]].encode()
    text = tmp_path / f"rows.{name}"
    text.write_bytes(zstd.compress(rows, 1) if name.endswith("zst") else rows)
    options = (*ONE, "--on-error", "skip", "--separator", "\\n")[: 6 if name != "txt.zst" else None]
    made = mill_within(text, output, smallest(text, output, *options), *options)
    plain = tmp_path / "plain.txt"
    plain.write_text(f"a\n{long}\nb\n")
    assert made.files["train.bin"] == mill_within(plain, output, 4096, *ONE, "--separator", "\\n").files["train.bin"]


@pytest.mark.parametrize("name", ["jsonl", "jsonl.zst", "csv"])
def test_records_that_are_just_short_enough_to_hold_stay_within_the_smallest_budget(tmp_path, output, name):
    """Up to 4 MiB a record is parsed at once, by whoever reads: one reserve for all workers."""
    data = words(20 * MB)
    books = [data[at : at + (4 << 20) - 200] for at in range(0, len(data), 4 << 20)]
    rows = "".join(json.dumps({"text": book}) + "\n" for book in books) if "json" in name else ""
    rows = (rows or "text\n" + "".join(f'"{book}"\n' for book in books)).encode()
    text = tmp_path / f"books.{name}"
    text.write_bytes(zstd.compress(rows, 1) if name.endswith("zst") else rows)
    options = ("--workers", "2", "--val-fraction", "0")
    mill_within(text, output, smallest(text, output, *options) + 80, *options)
    mill_within(text, output, smallest(text, output, *ONE), *ONE)


def test_the_window_of_zstd_is_reserved(tmp_path, output):
    noise = np.random.default_rng(0).integers(97, 123, 30 * MB, np.uint8).tobytes()
    text = tmp_path / "text.txt.zst"
    text.write_bytes(
        zstd.compress(
            noise, options={zstd.CompressionParameter.window_log: 26, zstd.CompressionParameter.compression_level: 1}
        )
    )
    small = tmp_path / "small.txt.zst"
    small.write_bytes(zstd.compress(b"few words"))
    assert smallest(text, output, *ONE) >= smallest(small, output, *ONE) + 18
    mill_within(text, output, smallest(text, output, *ONE), *ONE)


WHERE = ("--where", "score >= 3", "--where", 'tag in ("a", "b")', "--where", "m.n < 2e9")


def filtered(folder, kind):
    """A file whose fields are as hard on memory as its text: long tags, lines dense with values, large pages."""
    data = words(20 * MB)
    rows = [data[at : at + 2500] for at in range(0, len(data), 2500)]
    tags = ["a", "b", "c" * 1_000_000]
    if kind == "parquet":
        columns = {"text": rows, "score": [i % 7 for i in range(len(rows))], "m": [{"n": i} for i in range(len(rows))]}
        columns["tag"] = pa.array([i % 3 for i in range(len(rows))]).dictionary_encode().indices
        table = pa.table({**columns, "tag": pa.DictionaryArray.from_arrays(columns["tag"], tags)})
        pq.write_table(table, folder / "a.parquet", row_group_size=len(rows), compression="zstd")
    elif kind == "dense":
        with open(folder / "a.jsonl", "w") as file:
            dense = json.dumps([{"a": i} for i in range(40_000)])
            for i, row in enumerate(rows):
                more = dense if i % 500 == 0 else "0"
                file.write(
                    f'{{"score": {i % 7}, "tag": "b", "m": {{"n": {i}}}, "more": {more}, "text": {json.dumps(row)}}}\n'
                )
    else:
        with open(folder / "a.csv", "w") as file:
            file.write("tag,m.n,score,text\n")
            for i, row in enumerate(rows[:800]):
                file.write(f'{tags[i % 3]},{i},{i % 7},"{row if i % 100 else data[: 5 * MB]}"\n')
    return next(folder.glob("a.*"))


@pytest.mark.parametrize("kind", ["parquet", "dense", "csv"])
def test_filtering_stays_within_the_smallest_budget(tmp_path, output, kind):
    text = filtered(tmp_path, kind)
    mill_within(text, output, smallest(text, output, *ONE, *WHERE), *ONE, *WHERE)
