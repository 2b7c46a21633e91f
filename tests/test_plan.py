"""InputFiles → Blocks: the same ones, whichever way a file is read."""

import dataclasses
import gc
import gzip
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from given_texts import load_once
from shardmill.documents.pieces import Position
from shardmill.documents.rules import BOM, MAX_RECORDS, TextRules
from shardmill.documents.text import TextPart
from shardmill.errors import InputError
from shardmill.inputs.find import find_inputs
from shardmill.inputs.input_files import InputFiles
from shardmill.io.reading import InputFile
from shardmill.job import plan, sources
from shardmill.system import buffers

TEXT = b"One mill grinds wheat, the other rye.\n\nNothing else is known. "
CONTENTS = [
    b"", BOM, TEXT, BOM + TEXT, b"\n\n\n", TEXT * 9, b"PAR1" + TEXT, b"PK\x03\x04" + TEXT, gzip.compress(TEXT), b"\xff",
    TEXT.decode().encode("utf-16"), TEXT.decode().encode("utf-16-le"), b"ARROW1\0\0", b"%PDF-1.7", bytes(range(256)),
]  # fmt: skip
contents = st.sampled_from(CONTENTS) | st.binary(max_size=20)
files = st.lists(
    st.tuples(contents, st.sampled_from([".txt", ".md", ".TXT", ".txt.gz", ".csv", ""])), min_size=1, max_size=8
)


def rules(**changes):
    usual = {"separator": None, "passage_bytes": 2000, "border": None, "max_run_bytes": 4000, "block_bytes": 300}
    return TextRules(cuts=load_once("r50k_base").cuts, seed=0, **{**usual, **changes})


def blocks_of(found, how, start):
    """As text: the errors in them are equal if they say the same."""
    return [as_text(block) for block in plan.blocks(found, how, plan.rest(start))]


def as_text(block):
    parts = [
        dataclasses.replace(part, data=bytes(part.data), **({"valid": False} if isinstance(part, TextPart) else {}))
        if hasattr(part, "data")
        else part
        for part in block.parts
    ]
    return repr(dataclasses.replace(block, parts=tuple(parts)))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("separator", [None, b"\n\n"])
@settings(max_examples=60)
@given(files, st.sampled_from(["auto", "text", "jsonl"]), st.sampled_from([40, 300, 4000]), st.integers(0, 3))
def test_a_small_file_is_read_as_a_large_one_is(separator, on_error, given, input_format, block_bytes, first):
    how = rules(separator=separator, on_error=on_error, input_format=input_format, block_bytes=block_bytes)
    with tempfile.TemporaryDirectory() as folder:
        found = InputFiles()
        for number, (content, suffix) in enumerate(given):
            path = Path(folder) / f"{number}{suffix}"
            path.write_bytes(content)
            found.add_local(str(path), len(content), path.stat().st_mtime_ns)
        start = Position(file=min(first, len(found) - 1))
        quickly = blocks_of(found, how, start)
        with patch.object(sources, "_SMALL_BYTES", 0):
            assert quickly == blocks_of(found, how, start)


@pytest.mark.parametrize("change", ["longer", "shorter", "touched", "gone"])
def test_a_small_file_that_changed_since_it_was_found_is_an_error(tmp_path, change):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(TEXT)
    found = find_inputs([str(tmp_path)])
    match change:
        case "longer":
            (tmp_path / "b.txt").write_bytes(TEXT * 2)
        case "shorter":
            (tmp_path / "b.txt").write_bytes(TEXT[:9])
        case "touched":
            os.utime(tmp_path / "b.txt", (1, 1))
        case "gone":
            (tmp_path / "b.txt").unlink()
    (block,) = plan.blocks(found, rules())
    assert block.parts[0].data == TEXT
    with pytest.raises(InputError, match=r"b\.txt: (had|was modified|no such file)"):
        block.parts[1].pieces(0, rules(), lambda keys: keys < 0)


def test_blocks_from_the_middle_of_a_long_list_do_not_look_at_what_is_before(tmp_path):
    (tmp_path / "last.txt").write_bytes(TEXT)
    last = InputFile(
        path=str(tmp_path / "last.txt"), size=len(TEXT), modified_ns=(tmp_path / "last.txt").stat().st_mtime_ns
    )
    found = InputFiles([*(InputFile(path=f"/nowhere/{number}.txt", size=1) for number in range(1000)), last])
    (block,) = plan.blocks(found, rules(), plan.rest(Position(file=1000)))
    assert block.index and block.parts[0].data == TEXT and block.after == Position(file=1001)


def test_a_compressed_file_among_plain_ones_is_looked_into(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(TEXT)
    assert sources.probe(find_inputs([str(tmp_path)]), "auto", "text") == sources.Probe(
        plain=True, first_is_text=True, window=0, held=0
    )
    (tmp_path / "9.txt.gz").write_bytes(gzip.compress(TEXT))
    found = sources.probe(find_inputs([str(tmp_path)]), "auto", "text")
    assert not found.plain and found.window and found.held


SHORT = {
    "text": ("a.txt", lambda count: b"a\n" * count, {"separator": b"\n", "passage_bytes": None}),
    "jsonl": ("a.jsonl", lambda count: b'{"text":"a"}\n' * count, {}),
    "csv": ("a.csv", lambda count: b"text\n" + b"a\n" * count, {}),
    "parquet": ("a.parquet", lambda count: parquet(["a"] * count), {}),
    "files": ("a", lambda count: count, {"passage_bytes": None}),
}


def parquet(values, **how):
    to = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": values}), to, **how)
    return to.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", SHORT)
def test_a_block_has_a_bounded_number_of_documents(tmp_path, kind):
    """Each takes memory beside its text, however short it is."""
    name, make, choices = SHORT[kind]
    count = (1 if kind == "files" else 3) * MAX_RECORDS + 5
    if kind == "files":
        for number in range(count):
            (tmp_path / f"{number}.txt").write_bytes(b"a")
    else:
        (tmp_path / name).write_bytes(make(count))
    how = rules(max_run_bytes=512 << 10, block_bytes=1 << 20, **choices)
    found = find_inputs([str(tmp_path)])
    sizes = []
    for block in plan.blocks(found, how):
        pieces = [part.pieces(0, how, lambda keys: keys < 0) for part in block.parts]
        sizes.append(sum(len(each) for each in pieces))
    assert sum(sizes) == count and max(sizes) <= 2 * MAX_RECORDS and len(sizes) > 1


LONG = {
    "text": ("a.txt", b"some words\n" * 100_000, {}),
    "separated": ("a.txt", b"some words<>" * 100_000, {"separator": b"<>", "passage_bytes": None}),
    "jsonl": ("a.jsonl", b'{"text":"%s"}\n' % (b"some words " * 300) * 400, {}),
    "an odd line": ("a.jsonl", b'{"text":"%s"}\n' % (b"some words " * 300) * 400 + b"{\n", {"on_error": "skip"}),
    "parquet": ("a.parquet", None, {}),
}


@pytest.mark.parametrize("kind", LONG)
def test_the_memory_of_a_block_is_free_as_soon_as_nobody_refers_to_it(tmp_path, kind):
    """Pieces and their records once referred to each other: buffers waited for the next search for garbage, and 16 workers
    took twice the memory."""
    name, data, choices = LONG[kind]
    (tmp_path / name).write_bytes(
        data or parquet([f"{n} " + "some words " * 300 for n in range(400)], compression="zstd")
    )
    how, found = rules(max_run_bytes=512 << 10, block_bytes=1 << 20, **choices), find_inputs([str(tmp_path)])
    gc.disable()
    try:
        with buffers.used_again():
            for block in plan.blocks(found, how):
                pieces = [part.pieces(0, how, lambda keys: keys < 0) for part in block.parts]
                assert all(each.origin for each in pieces)
            del block, pieces
            assert buffers._mapped and buffers._mapped == sum(memory.size for memory in buffers._free)
    finally:
        gc.enable()
