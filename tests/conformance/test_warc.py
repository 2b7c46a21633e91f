"""WET files, as warcio writes them, give the documents that are in them; what is no text is told."""

import io
import json
import random

import formats
import pytest
from formats import SEPARATOR
from milling import job_of, mill_blocks, mill_files
from warcio.warcwriter import WARCWriter

import samples
from shardmill.errors import InputError
from shardmill.job import plan

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # warcio leaves them to Python

LONG = ["short", samples.ENGLISH[:900], "中文" * 150, "a\r\n\r\nWARC/1.0\r\n" * 30, "7" * 500, "", "end\r\n"]
DOCUMENTS = [*LONG, *(f"{i} {samples.ENGLISH[i : 2 * i]}" for i in range(60))]
SMALL = {"max_run_bytes": 128, "passage_bytes": 16}
VAL = {"val_fraction": 0.3}


def warc(documents, kind="conversion", *, packed=False, media="text/plain", others=True):
    """A record for each document; before the first and in between, records that are none."""
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=packed)
    if others:
        writer.write_record(writer.create_warcinfo_record("a.warc", {"software": "x", "description": "y" * 300}))
    for number, document in enumerate(documents):
        data = document if isinstance(document, bytes) else document.encode()
        address = f"http://example.com/{number}"
        writer.write_record(writer.create_warc_record(address, kind, payload=io.BytesIO(data), warc_content_type=media))
        if others and number % 5 == 0:
            writer.write_record(
                writer.create_warc_record(
                    address, "metadata", payload=io.BytesIO(b"z" * 500), warc_content_type="text/plain"
                )
            )
    return out.getvalue()


def wanted(documents, **choices):
    return mill_files({"a.txt": formats.text(documents)}, separator=SEPARATOR, **VAL, **choices)


@pytest.mark.parametrize("choices", [{}, SMALL], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ["a.wet", "a.warc.wet.gz", "a.warc", "a.data", "a.wet.zst"])
def test_every_conversion_is_a_document(name, choices):
    data = warc(DOCUMENTS, packed=name.endswith("gz"))
    if name.endswith("zst"):
        data = formats.COMPRESSIONS[".zst"](data)
    want = wanted(DOCUMENTS, **choices)
    for block_bytes in (5, 3000, 1 << 20):
        got = mill_files({name: data}, block_bytes=block_bytes, **VAL, **choices)
        assert (got.train, got.val) == (want.train, want.val)
        assert got.counts == {**want.counts, "input_bytes": len(data)}


@pytest.mark.parametrize("choices", [{}, SMALL], ids=["whole", "streamed"])
@pytest.mark.parametrize("packed", [False, True])
def test_reading_on_from_after_any_block_gives_the_rest(choices, packed):
    with job_of({"a.wet": warc(DOCUMENTS, packed=packed)}, block_bytes=200 if choices else 1000, **choices, **VAL) as (
        job,
        splitter,
    ):
        whole = mill_blocks(job, splitter)
        assert len(whole.after) > 10
        for after, val, train_done, val_done, counts, _ in whole.after[::4]:
            position = plan.Position(**json.loads(json.dumps({f: getattr(after, f) for f in after.__slots__})))
            assert not packed or after.file or position.frame  # each record is a member of its own
            rest = mill_blocks(job, splitter, position, val)
            assert (rest.train, rest.val) == (whole.train[train_done:], whole.val[val_done:])
            assert {k: v + getattr(counts, k) for k, v in rest.counts.items()} == whole.counts


@pytest.mark.parametrize("choices", [{}, SMALL], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("kind", "media", "reason"),
    [
        ("response", "application/http", "WET files"),
        ("resource", "text/html", "text/html"),
        ("conversion", "a/b", "a/b"),
    ],
)
def test_what_is_no_text_is_told_and_can_be_left_out(kind, media, reason, choices):
    bad = warc(["HTTP/1.1 200 OK\r\n\r\n" + "<html>" * 40], kind, media=media, others=False)
    data = warc(["one"], others=False) + bad + warc(["two"], "resource", others=False)
    with pytest.raises(InputError, match=rf"a\.warc byte [\d,]+: .*{reason}.*--on-error skip"):
        mill_files({"a.warc": data}, val_fraction=0, **choices)
    got = mill_files({"a.warc": data}, val_fraction=0, on_error="skip", **choices)
    assert got.train == mill_files({"a.warc": warc(["one", "two"])}, val_fraction=0).train
    assert (got.counts["documents"], got.counts["documents_rejected"]) == (3, 1)
    assert data[got.rejects[0].location.byte :].startswith(b"WARC/1.")


def test_a_record_that_is_not_utf8_is_told_left_out_or_repaired():
    data = warc(["one", b"\xff" * 200, "two"])
    for choices in ({}, SMALL):
        with pytest.raises(InputError, match=r"a\.wet byte [\d,]+: .*not UTF-8"):
            mill_files({"a.wet": data}, val_fraction=0, **choices)
        assert mill_files({"a.wet": data}, val_fraction=0, on_error="skip", **choices).counts["documents_rejected"] == 1
        got = mill_files({"a.wet": data}, val_fraction=0, on_error="replace", **choices)
        assert got.counts["replaced_characters"] == 200


@pytest.mark.parametrize("choices", [{}, SMALL], ids=["whole", "streamed"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_was_cut_short_or_is_damaged_keeps_what_came_before(packed, choices):
    whole = warc(DOCUMENTS[:20], packed=packed)
    rng = random.Random(2)
    for _ in range(25):
        until = rng.randrange(50, len(whole) - 5)
        if whole.startswith(b"\x1f\x8b\x08", until):  # between two members: a whole file of fewer records
            continue
        data = whole[:until] if rng.random() < 0.5 else whole[:until] + b"?" * 9 + whole[until + 9 :]
        got = mill_files({"a.wet": data, "z.txt": b"x"}, val_fraction=0, on_error="skip", **choices)
        text = got.counts["documents"] - got.counts["documents_rejected"]
        assert got.rejects or text == 21 or not packed  # a plain text of other letters is a text, too
        if len(data) < len(whole) and until > 900:
            assert got.rejects or data.endswith((b"\r\n", b"\r", b"\n")) or packed
