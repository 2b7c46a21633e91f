"""Pages of Parquet are read in C as a few lines of Python would, and Parts of several row groups are exact and small (I5, I7)."""

import random

import formats
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from milling import job_of, mill_blocks, mill_files, mill_ranges, same, some_of
from test_parquet_pages import DOCUMENTS, LONG, SMALL, values_of, wanted

import samples
from given_texts import load_once
from shardmill.documents.columnar import chunks, native, parquet, values
from shardmill.documents.columnar.native import PageRows, Window
from shardmill.documents.long_values import BytesReader
from shardmill.documents.pieces import Position
from shardmill.documents.records import Counted
from shardmill.documents.rules import TextRules
from shardmill.errors import InputError
from shardmill.io.reading import InputReader

WORDS = [b"%d" % number for number in range(300)]


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def packed(numbers, width):
    """Groups of eight, the last filled up with zeros."""
    numbers = [*numbers, *[0] * (-len(numbers) % 8)]
    bits = sum(number << width * i for i, number in enumerate(numbers))
    return varint(len(numbers) // 8 << 1 | 1) + bits.to_bytes(len(numbers) * width // 8, "little"), len(numbers)


def repeated(number, count, width):
    return varint(count << 1) + number.to_bytes((width + 7) // 8, "little"), count


@st.composite
def runs(draw, most):
    """Numbers below most as runs of Parquet's RLE: their bits, their bytes, and the numbers."""
    width = draw(st.integers((most - 1).bit_length(), 32))
    number = st.integers(0, most - 1)
    data, numbers = b"", []
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            some = draw(st.lists(number, min_size=1, max_size=20))
            more, count = packed(some, width)
            numbers += some + [0] * (count - len(some))
        else:
            some, count = draw(number), draw(st.integers(0, 30))
            more, count = repeated(some, count, width)
            numbers += [some] * count
        data += more
    return width, data, numbers


def rows_of(page, **window):
    """What C finds, a window at a time, until it says why it stops: texts are offsets in a dictionary that is not here."""
    found = []
    while True:
        rows = Window(window.get("most", 7), window.get("longest", 1 << 40))
        rows.room = window.get("room", 50)
        why = rows.add(page)
        texts, null = rows.take([], 0)
        found += [None if no else int(at) for at, no in zip(texts.pointers, null, strict=True)]
        if why != native.FULL:
            return found, why


@given(runs(2), runs(len(WORDS)), st.integers(0, 200))
def test_levels_and_numbers_are_those_that_python_finds(levels, numbers, count):
    page = PageRows(top=1, rows=count, level=-1, length=-1)
    values._set(page.levels, levels[1], 0, levels[0])
    values._set(page.numbers, numbers[1], 0, numbers[0])
    ends = np.cumsum([4 + len(word) for word in WORDS]).astype(np.uint32)
    page.ends, page.words = ends.ctypes.data, len(ends)
    left, want, stops = iter(numbers[2]), [], native.DONE
    for i in range(count):
        if i >= len(levels[2]):
            stops = native.NO_LEVEL
            break
        number = next(left, None) if levels[2][i] else -1
        if number is None:
            stops = native.NO_VALUE
            break
        want.append(None if number < 0 else int(ends[number]) - len(WORDS[number]))
    assert rows_of(page) == (want, stops)


@given(st.binary(max_size=40), st.integers(0, 32), st.binary(max_size=40), st.integers(0, 32))
def test_any_bytes_are_levels_and_numbers_that_end(levels, level_bits, numbers, bits):
    page = PageRows(top=1, rows=100, level=-1, length=-1)
    values._set(page.levels, levels, 0, level_bits)
    values._set(page.numbers, numbers, 0, bits)
    ends = np.arange(5, 500, 5).astype(np.uint32)
    page.ends, page.words = ends.ctypes.data, len(ends)
    found, why = rows_of(page)
    assert len(found) <= 100 and why in (native.DONE, native.NO_VALUE, native.NO_LEVEL, native.NO_WORD)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_are_not(data):
    length, numbers = native.header(data)
    assert -1 <= length <= len(data)
    assert length <= 0 or (all(0 <= number < 1 << 31 for number in numbers) and numbers[5] <= min(numbers[1:3]))


def test_a_header_is_whole_or_not_yet():
    whole = formats.parquet(DOCUMENTS)[4:]
    length, numbers = native.header(whole)
    assert length > 10
    for cut in range(length):
        assert native.header(whole[:cut])[0] == 0
    assert native.header(whole[:length]) == (length, numbers)


# ---- Parts of several row groups


def rules_of(**changed):
    told = {"separator": None, "passage_bytes": None, "border": None, "max_run_bytes": 1 << 20, "block_bytes": 1 << 20}
    return TextRules(cuts=load_once("r50k_base").cuts, seed=None, **{**told, **changed})


def parts_of(data, start=0, **changed):
    return list(parquet.read_parts(Position(record=start), BytesReader("a.parquet", data), 0, rules_of(**changed)))


def texts_of(parts):
    return [text.decode() for part in parts if not isinstance(part, Counted) for text in part.values.texts]


def test_rows_of_several_row_groups_are_one_part():
    data = formats.parquet([f"row {i}" for i in range(1000)], row_group_size=10)
    (part,) = parts_of(data)
    assert (part.row, len(part.values), part.after.record) == (0, 1000, 1000)
    assert texts_of([part]) == [f"row {i}" for i in range(1000)]
    for start in (1, 9, 10, 11, 995):
        assert texts_of(parts_of(data, start)) == [f"row {i}" for i in range(start, 1000)]


def test_rows_before_and_after_a_damaged_row_group_are_kept():
    data = bytearray(formats.parquet([f"row {i}" for i in range(100)], row_group_size=10, compression="zstd"))
    chunk = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(4).column(1)
    at = chunk.data_page_offset
    data[at : at + 30] = b"\xff" * 30
    before, bad, after = parts_of(bytes(data))
    assert texts_of([before]) == [f"row {i}" for i in range(40)]
    assert (bad.location.row, bad.rejected, bad.after.record) == (40, 10, 50)
    assert texts_of([after]) == [f"row {i}" for i in range(50, 100)]


@pytest.mark.parametrize("group", [1, 3, 1000])
def test_blocks_across_row_groups_give_the_same_tokens_and_resume_anywhere(group):
    documents = [*LONG, *DOCUMENTS, *LONG]
    data, want = formats.parquet(documents, row_group_size=group), wanted(documents)
    got = mill_files({"a.parquet": data}, block_bytes=1 << 20, **SMALL)
    assert (got.train, got.val) == (want.train, want.val)
    with job_of({"a.parquet": data}, block_bytes=700, **SMALL) as (job, splitter):
        whole = mill_blocks(job, splitter)
        for after, val, train_done, val_done, *_ in some_of(whole.after):
            rest = mill_blocks(job, splitter, after, val)
            assert (rest.train, rest.val) == (whole.train[train_done:], whole.val[val_done:])


def test_a_part_holds_little_more_than_its_text():
    """A dictionary of 900 KB in each row group, of which a row uses three bytes."""
    words = [f"{i:03d}" if i < 100 else f"{i} {samples.ENGLISH}" * 3 for i in range(400)]
    tables = [pa.table({"text": pa.DictionaryArray.from_arrays([n], words)}) for n in range(100)]
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, tables[0].schema, dictionary_pagesize_limit=1 << 30) as writer:
        for table in tables:
            writer.write_table(table)
    data = out.getvalue().to_pybytes()
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.num_row_groups == 100
    parts = parts_of(data)
    assert texts_of(parts) == words[:100]
    for part in parts:
        assert sum(len(owner) for owner in part.values.texts.owners) <= 4 * part.values.texts.total
    for block_bytes in (2000, 1 << 20):
        documents = [f"{i} {samples.ENGLISH[: i * 10]}" for i in range(300)]
        for part in parts_of(formats.parquet(documents, row_group_size=50), block_bytes=block_bytes):
            assert sum(len(owner) for owner in part.values.texts.owners) <= 4 * part.values.texts.total


# ---- reading ahead


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_small_pages_of_several_row_groups_are_read(tmp_path, codec):
    documents = [f"{i} {samples.ENGLISH[: random.Random(i).randrange(900)]}" for i in range(200)]
    data = formats.parquet(documents, compression=codec, write_batch_size=5, data_page_size=500, row_group_size=90)
    assert list(values_of(data).values()) == [document.encode() for document in documents]
    file = tmp_path / "a.parquet"
    file.write_bytes(data)
    with InputReader(str(file)) as reader:
        assert texts_of(parquet.read_parts(Position(), reader, 0, rules_of())) == documents


def test_a_file_that_shrinks_while_it_is_read_is_an_input_at_fault(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(formats.parquet(DOCUMENTS * 200, row_group_size=500, compression="none", use_dictionary=False))
    with InputReader(str(file)) as reader:
        parts = parquet.read_parts(Position(), reader, 0, rules_of(block_bytes=10_000))
        next(parts)
        with open(file, "r+b") as shrunk:
            shrunk.truncate(1000)
        with pytest.raises(InputError, match="ends at byte"):
            list(parts)


# ---- what C decompresses and reads by itself


def some_texts(rng, nulls):
    texts = ["", "a", "the same", "é" * 90, "x" * 290, *map(str, range(30))] + ["long " * 200] * rng.randrange(2)
    each = "{} {}" if rng.random() < 0.5 else "{1}"  # all of them in a dictionary once, or some of them often
    made = (each.format(number, rng.choice(texts) * rng.randrange(3)) for number in range(400))
    return [None if nulls and rng.random() < 0.2 else text for text in made]


def some_table(rng, codec, version):
    """With dictionaries of few words or too many, and pages and row groups of any size."""
    nulls = rng.random() < 0.5
    table = pa.table({"text": pa.array(some_texts(rng, nulls), pa.string())})
    if not nulls and rng.random() < 0.5:
        table = table.cast(pa.schema([pa.field("text", pa.string(), nullable=False)]))
    options = {"data_page_size": rng.choice([50, 700, 1 << 20]), "write_batch_size": rng.choice([3, 100])}
    options |= {"use_dictionary": rng.random() < 0.6, "dictionary_pagesize_limit": rng.choice([100, 1 << 20])}
    out, rows = pa.BufferOutputStream(), rng.choice([20, 150, 400])
    pq.write_table(table, out, compression=codec, data_page_version=version, row_group_size=rows, **options)
    return out.getvalue().to_pybytes()


def assert_ranges_give_the_same(rng, data):
    """As page by page, wherever it is entered; what cannot be read is left out."""
    choices = {"val_fraction": 0.3, "on_error": "skip", "max_run_bytes": 2000, "passage_bytes": 600}
    with job_of({"a.parquet": data}, block_bytes=rng.choice([400, 5000, 20_000]), **choices) as (job, splitter):
        whole = mill_blocks(job, splitter)
        for slice_bytes in (100, 700, 5000):
            assert same(mill_ranges(job, splitter, slice_bytes), whole)
        for after, val, train_done, val_done, *_ in whole.after[:: max(1, len(whole.after) // 3)]:
            rest = mill_ranges(job, splitter, rng.choice([100, 700, 5000]), after, val)
            assert (rest.train, rest.val) == (whole.train[train_done:], whole.val[val_done:])


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_ranges_of_pages_are_read_as_page_by_page(monkeypatch, codec, version):
    rng = random.Random(f"{codec} {version}")
    for _ in range(8):
        monkeypatch.setattr(chunks, "_MOST_WORDS", rng.choice([4, 1000]))
        assert_ranges_give_the_same(rng, some_table(rng, codec, version))


@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
def test_damage_is_found_as_it_is_page_by_page(codec):
    rng = random.Random(codec)
    for number in range(24):
        data = bytearray(some_table(rng, codec, "2.0" if number % 3 == 0 else "1.0"))
        footer = int.from_bytes(data[-8:-4], "little") + 8
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(4, len(data) - footer)] = rng.randrange(256)
        assert_ranges_give_the_same(rng, bytes(data))


@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
def test_a_dictionary_is_kept_for_the_pages_behind_it(codec):
    """Where a dictionary is the last page that there is room for, the next pages have words of it, and those of other row
    groups have others, which took its place: its buffer was given back."""
    rng = random.Random(codec)
    for _ in range(10):
        sizes = [rng.randrange(20, 290) for _ in range(30)]
        texts = [f"{number} {chr(97 + number % 26) * sizes[number // 10]}" for number in range(300)]
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": texts}), out, compression=codec, row_group_size=10, data_page_size=200)
        assert_ranges_give_the_same(rng, out.getvalue().to_pybytes())


@given(st.binary(max_size=300), st.integers(1, 40), st.data())
def test_snappy_is_decompressed_as_pyarrow_does(data, times, draw):
    """And nothing else: not to less room, nor what is cut off, nor to more bytes than there are."""
    text, snappy = data * times, pa.Codec("snappy")
    packed = snappy.compress(text, asbytes=True)
    assert bytes(native.decompressed("SNAPPY", packed, len(text))) == text
    assert native.decompressed("SNAPPY", packed, len(text) + 1) is None
    assert not text or native.decompressed("SNAPPY", packed, len(text) - 1) is None
    assert native.decompressed("SNAPPY", packed[:-1], len(text)) is None or not text
    damaged = bytearray(packed)
    damaged[draw.draw(st.integers(0, len(packed) - 1))] ^= draw.draw(st.integers(1, 255))
    found = native.decompressed("SNAPPY", bytes(damaged), len(text))
    assert found is None or bytes(found) == snappy.decompress(bytes(damaged), len(text), asbytes=True)
