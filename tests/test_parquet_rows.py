"""Documents as rows of Parquet files: every token once, in order."""

import random

import pyarrow.parquet as pq
import pytest

import shardmill
from feeding import milled, positions, texts_of
from shardmill import OutputError, UsageError, to_parquet
from shardmill.feed import parquet


@pytest.mark.parametrize("group", [1, 50, 1 << 20])
@pytest.mark.parametrize("index", [True, False])
def test_each_document_is_a_row(tmp_path, monkeypatch, group, index):
    monkeypatch.setattr(parquet, "_GROUP_TOKENS", group)
    out = milled(tmp_path, texts_of(random.Random(1), 90), index=index)
    files = to_parquet(out, tmp_path / "rows", file_tokens=2000)
    assert len(files) > 1 or group > 2000
    rows = [row for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]
    assert rows == [document.tolist() for document in shardmill.open(out)["train"].documents()] and len(rows) == 90
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == [file.name for file in files]
    with pytest.raises(OutputError, match="exists already"):
        to_parquet(out, tmp_path / "rows")


def test_unknown_documents_are_refused(tmp_path):
    with pytest.raises(UsageError, match="document boundaries are unknown"):
        to_parquet(positions(tmp_path / "raw", 100), tmp_path / "rows")
