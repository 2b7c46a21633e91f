"""A long value is read in windows: from any place on, whatever was read before, it is the same text."""

import json

from hypothesis import given
from hypothesis import strategies as st

from shardmill.documents import json_scan
from shardmill.documents.long_values import BytesReader

TEXT = "".join(f"{number} näher 中文 😀 \n" for number in range(40_000))
RAW = json.dumps(TEXT).encode()
BYTES = TEXT.encode()
places = st.integers(0, len(BYTES))


def reader():
    return json_scan.string_reader(BytesReader("x.jsonl", RAW), (1, len(RAW) - 1), replace=False)


@given(st.lists(st.tuples(places, st.integers(0, 300_000)), max_size=6))
def test_a_value_is_the_same_from_any_place_on(reads):
    value = reader()
    for offset, length in reads:
        assert value.read(offset, length) == BYTES[offset : offset + length]


# A job that was stopped inside a long record began again far inside a value, and dropped more of it than it held:
# from there on, other text was read than the record has.
@given(places, st.integers(1, 100_000))
def test_a_value_whose_beginning_is_done_is_read_from_there(start, step):
    value = reader()
    value.done_until(start)
    for offset in range(start, min(len(BYTES), start + 5 * step), step):
        assert value.read(offset, step) == BYTES[offset : offset + step]
        value.done_until(offset + step)
