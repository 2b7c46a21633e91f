"""What an Arrow file will need is told by its headers, not by reading it."""

import io

import pyarrow as pa
import pytest

from shardmill.documents import arrow
from shardmill.documents.records import BytesReader


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
