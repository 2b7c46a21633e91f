"""The parser of ordinary lines accepts nothing that Python's json refuses, and reads what it accepts as json does."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import samples
from shardmill.documents import jsonl, native
from shardmill.documents.records import Broken

documents = st.text() | st.integers(0, len(samples.ALL) - 500).map(lambda at: samples.ALL[at : at + 500])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
others = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "text"), values, max_size=3)
# Bits of lines: put together at random, most are no JSON, and many nearly are.
BITS = [
    b'"text"', b'"text"', b'"a"', b":", b":", b",", b",", b"{", b"}", b"[", b"]", b" ", b"\t", b"\r", b"\n", b"\\", b"\\u0061", b"\\ud83d",
    b"\\ude00", b'"', b'"x"', b'"x"', b'"\\n"', b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"t\\u0065xt"', b"0", b"-", b"1.5", b"1e5", b"01",
    b"1.", b".5", b"1e", b"+1", b"true", b"false", b"null", b"nul", b"NaN", b"Infinity", b"\0", b"\x7f", "é😀".encode(), b"\xff", b"{}", b"[]",
    b'{"text": "a"}', b'{"text":', b'"text": "b"', b"\xe2\x80\xa8", b"'",
]  # fmt: skip


def texts(data, *path):
    count = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    found, unusual, *_ = native.texts_of_lines(np.frombuffer(data, np.uint8), count, path or ("text",))
    return [None if odd else text for text, odd in zip(found, unusual, strict=True)]


def by_json(line, path=("text",)):
    """What Python's json makes of a line; None where it must be refused."""
    try:
        return jsonl.exact(line.decode(), path).encode()
    except (Broken, UnicodeError):
        return None


@given(st.lists(st.tuples(documents, others, st.booleans()), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_ordinary_lines_are_read(records, ascii_only, close):
    """Whatever stands around the text, on either side of it; a backslash in a key aside, which might hide the name."""
    lines, want = [], []
    for text, around, first in records:
        around = {
            name: value for name, value in around.items() if "\\" not in json.dumps(name, ensure_ascii=ascii_only)
        }
        record = {"text": text, **around} if first else {**around, "text": text}
        separators = (",", ":") if close else (", ", ": ")
        lines.append(
            json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode("utf-8", "surrogatepass")
        )
        want.append(text)
    encoded = [text.encode() for text in want]
    for end in (b"\n", b"\r\n", b" \t\n"):
        data = end.join(lines)
        assert texts(data) == texts(data + end) == encoded


@given(st.lists(st.sampled_from(BITS), max_size=12), st.booleans())
@example([b'"text"', b":", b'"x"', b",", b'"a"', b":", b"1", b"}"], True)
def test_what_json_refuses_is_never_taken(bits, opened):
    line = b"{" * opened + b"".join(bits)
    rows = line.split(b"\n")
    for found, row in zip(texts(line), rows if rows[-1] else rows[:-1], strict=True):
        assert found is None or found == by_json(row)


def test_a_line_with_one_byte_changed_or_cut_off_is_read_as_json_does():
    record = {"id": -1.5e3, "a": [True, None, {"b": '\\"/'}], "text": 'é\n"\\\u0001😀 x', "z": {"text": "inner"}}
    for ascii_only in (True, False):
        line = json.dumps(record, ensure_ascii=ascii_only).encode()
        assert texts(line) == [record["text"].encode()]
        changed = [line[:cut] for cut in range(1, len(line))]
        changed += [
            line[:at] + bytes([c]) + line[at + 1 :] for at in range(len(line)) for c in b'"\\{}[],: \r0e\x1fu\xc3'
        ]
        for other in changed:
            (found,) = texts(other)
            assert found is None or found == by_json(other), other


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a", "text": "b"}', b'{"text": 5}', b'{"text": null}', b'{"body": "a"}', b"{}", b"[]", b'"text"',
        b'{"t\\u0065xt": "a", "text": "b"}', b'{"text": "\\ud83d"}', b'{"text": "\\ude00\\ud83d"}', b'{"text": "a"} {"text": "b"}',
        b'{"text": "a"}\r{"text": "b"}', b" ", b'{"text": "\xff"}', b'{"text": "a", "b": "\xff"}', b'{"text": "a\\', b'{"text": "a", "x": NaN}', b'{"text": "a",}', b'{"text": "a\tb"}',
        b'{"text": "a", "x": ' + b"[" * 70 + b"]" * 70 + b"}", b'{"text": {"text": "a"}}', b'\xef\xbb\xbf{"text": "a"}',
    ],
)  # fmt: skip
def test_an_unusual_line_is_left_to_others_and_only_that(line):
    """One of them once made the whole Part slow."""
    good = b'{"text": "good"}\n'
    assert texts(line) == [None]
    assert texts(good + line) == [b"good", None]
    assert texts(good + line + b"\n" + good + b"\n" + good) == [b"good", None, b"good", None, b"good"]


def test_an_empty_text_is_read():
    assert texts(b'{"text": ""}\n{"text": "a"}\n{"text": ""}') == [b"", b"a", b""]


def test_a_field_inside_another():
    line = b'{"a": {"b": {"c": "no"}, "c": "yes"}, "c": "no", "d": {"a": {"c": "no"}}}'
    assert texts(line, "a", "c") == [b"yes"]
    assert texts(line, "a", "b", "c") == [b"no"]
    assert texts(line, "a", "b") == [None]
    assert texts(line.replace(b'"c": "yes"', b'"c": "yes", "c": "x"'), "a", "c") == [None]
    assert texts(line.replace(b'"d"', b'"a"'), "a", "c") == [None]
    assert texts(b'{"a.c": "dot", "\xc3\xa9": "accent"}', "a.c") == [b"dot"]
    assert texts(b'{"a.c": "dot", "\xc3\xa9": "accent"}', "é") == [b"accent"]
