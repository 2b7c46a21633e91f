"""Train and val together hold every token of the text, and the same tokens on each side whatever the Limits (I1, I7)."""

import dataclasses
import gzip
import json

import pytest
import xxhash
from formats import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from milling import BLOCK_BYTES, mill_files, mill_text, prepare_files

import reference
import samples
from given_texts import texts
from servers import Server
from shardmill.job import first_pass
from shardmill.job.mill import prepare
from shardmill.spec import Limits, Spec
from shardmill.tokens.tokenizer import ENCODINGS

SPLITS = ("hash", "tail", "head")
LONG = "\n".join(f"{number}. {text}" for number in range(8) for text in samples.SAMPLES.values())


def outcome(milled):
    return dataclasses.replace(milled, runs=[])


@pytest.mark.parametrize("split", SPLITS)
@settings(max_examples=8)
@given(text=texts(max_pieces=30), fraction=st.sampled_from([0.01, 0.1, 0.5]), start=st.integers(0, 9000))
def test_passages_of_both_sides_together_are_the_whole_text(encoding, split, text, fraction, start):
    text = samples.ALL[start:] + text + samples.ALL
    how = {
        "tokenizer": encoding,
        "engine": "reference",
        "val_fraction": fraction,
        "split": split,
        "passage_bytes": 2000,
    }
    outs = [mill_text(text, block_bytes=size, **how) for size in (64, 1000, 5000, 1 << 20)]
    assert outs[0].both == reference.encode(encoding, text)
    assert outs[0].train, "never all of it is val"
    assert outs[0].val, "never none of it is val"
    assert all(outcome(out) == outcome(outs[0]) for out in outs)


@pytest.mark.parametrize("split", ["tail", "head"])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9])
def test_the_tail_or_head_of_a_text_is_val_within_a_word_of_the_share_asked_for(split, fraction):
    out = mill_text(samples.ENGLISH * 40, tokenizer="r50k_base", split=split, val_fraction=fraction)
    first, second = (out.train, out.val) if split == "tail" else (out.val, out.train)
    assert first + second == reference.encode("r50k_base", samples.ENGLISH * 40)
    val_bytes = len(decoded("r50k_base", out.val))
    assert abs(val_bytes - fraction * 40 * len(samples.ENGLISH)) < 30


def decoded(encoding, tokens):
    return reference._encoder(encoding).__self__.decode(tokens)


def lowest(documents, fraction, seed):
    """What the split promises for a small input: the documents with the lowest hashes, and no document apart from its twin."""
    keys = [xxhash.xxh3_64_intdigest(text.encode()[: 64 << 10], seed=seed) for text in documents]
    wanted = max(1, int(len(keys) * fraction + 0.5))
    limit = sorted(keys)[min(wanted, len(keys)) - 1]
    return [key <= limit and key < max(keys) for key in keys] if len(set(keys)) > 1 else [False] * len(keys)


@settings(max_examples=30)
@given(
    documents=st.lists(
        texts(max_pieces=4).map(lambda text: text.replace("\n", " ")).filter(bool), min_size=1, max_size=12
    ),
    fraction=st.sampled_from([0.01, 0.1, 0.5, 0.99]),
    seed=st.integers(0, 3),
    block_bytes=st.sampled_from(BLOCK_BYTES),
)
def test_each_document_goes_whole_to_the_side_of_its_hash(encoding, documents, fraction, seed, block_bytes):
    text = "\n".join(documents)
    how = {"tokenizer": encoding, "separator": r"\n", "val_fraction": fraction, "seed": seed}
    out = mill_text(text, block_bytes=block_bytes, **how)
    sides = lowest(documents, fraction, seed)
    eot = ENCODINGS[encoding].specials["<|endoftext|>"]
    chosen = {side: [doc for doc, is_val in zip(documents, sides) if is_val is side] for side in (True, False)}
    assert out.val == reference.tokens(encoding, chosen[True], eot=eot, side="after")
    assert out.train == reference.tokens(encoding, chosen[False], eot=eot, side="after")
    assert out.counts["documents_val"] == sum(sides)


def test_a_document_longer_than_a_block_goes_whole_to_one_side():
    documents = [f"{number} {samples.ENGLISH}" * 150 for number in range(6)]
    how = {"tokenizer": "r50k_base", "separator": "<|endoftext|>", "val_fraction": 0.3}
    outs = [mill_text("<|endoftext|>".join(documents), block_bytes=size, **how) for size in (5000, 70_000, 1 << 20)]
    sides = lowest(documents, 0.3, 0)
    val = [document for document, is_val in zip(documents, sides) if is_val]
    assert 0 < len(val) < len(documents)
    assert all(out.val == reference.tokens("r50k_base", val, eot=50256, side="after") for out in outs)


def test_counts_do_not_depend_on_which_files_share_a_block():
    """Story: small files were not counted as val when a file that is judged by passages had a part in their block."""
    small = [f"{number} {samples.GERMAN}".encode() for number in range(20)]
    files = [*small[:10], (samples.ENGLISH * 1500).encode(), *small[10:]]
    how = {"tokenizer": "r50k_base", "val_fraction": 0.3}
    counts = [mill_files(files, block_bytes=size, **how).counts for size in (1000, 64_000, 1 << 20)]
    assert counts[0]["passages"] > 0
    assert counts[0]["documents_val"] > 0
    assert counts[1] == counts[0]
    assert counts[2] == counts[0]


@pytest.mark.parametrize("split", ["tail", "head"])
def test_a_short_last_passage_does_not_swallow_the_border(split):
    """Story: the rest of a text of less than two passages was joined to the passage before, with the border in it."""
    fraction = 0.1 if split == "tail" else 0.9
    out = mill_text(samples.ENGLISH * 40, tokenizer="r50k_base", split=split, val_fraction=fraction)
    assert out.train
    assert out.val


def test_the_border_of_the_tail_does_not_depend_on_block_size():
    """Story: the border fell right behind the beginning of a passage, and whether the characters before that could be seen
    depended on the block: with blocks of 21,504 bytes the tail began at byte 17,415, with larger ones at 17,412."""
    text = "中文" * 30_000
    fraction = 1 - 17_410 / len(text.encode())
    how = {"tokenizer": "r50k_base", "val_fraction": fraction, "split": "tail"}
    small, large = (mill_text(text, block_bytes=size, **how) for size in (21_504, 1 << 20))
    assert len(small.train) == len(large.train)
    assert small.val == large.val


def test_short_passages_do_not_depend_on_block_size():
    """Story: a passage shorter than the context of a cut had other borders when a block began with it."""
    text = "字ท글글字ททท글字" * 300
    how = {"tokenizer": "o200k_base", "val_fraction": 0.4, "passage_bytes": 16}
    outs = [mill_text(text, block_bytes=size, **how) for size in BLOCK_BYTES]
    assert [out.counts for out in outs] == [outs[0].counts] * len(outs)
    assert all(out.val == outs[0].val for out in outs)


def record(text):
    return json.dumps({"text": text}).encode() + b"\n"


SHORT = [f"{number} bags of wheat." for number in range(400)]
COUNTED = {
    "enough": b"".join(map(record, SHORT)),
    "too few": b"".join(map(record, SHORT[:150])) + record(samples.ALL) * 9,
    "enough, after long ones": record(samples.ALL) * 9 + b"".join(map(record, SHORT)),
    "enough, if lines that are no records count": b"{}\n" * 300 + b"".join(map(record, SHORT[:150])),
}


def prepared(files, **choices):
    train, val, made = prepare_files(files, **choices)
    return train, val, made.counts


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("packed", ["", ".zst", ".gz"])
@pytest.mark.parametrize("case", COUNTED)
def test_a_quick_count_of_records_finds_the_split_that_parsing_them_finds(monkeypatch, case, packed, newline):
    """200 documents make a split by threshold."""
    lines = COUNTED[case].replace(b"\n", newline)
    data = {"": bytes, ".zst": zstd.compress, ".gz": gzip.compress}[packed](lines)
    how = {"val_fraction": 0.2, "on_error": "skip"}
    monkeypatch.setattr(first_pass, "_WINDOW", 1000)
    counted, count = [], first_pass._has_records
    monkeypatch.setattr(first_pass, "_has_records", lambda *given: counted.append(count(*given)) or counted[-1])
    found = prepared({"a.jsonl" + packed: data}, **how)
    assert counted == [case != "too few"], "counted once, be it before the engines are loaded or after"
    monkeypatch.setattr(first_pass, "_has_records", lambda *_: False)
    assert prepared({"a.jsonl" + packed: data}, **how) == found


def test_records_outside_a_sample_are_not_counted(monkeypatch):
    monkeypatch.setattr(first_pass, "_has_records", lambda *_: pytest.fail("it was"))
    prepare_files({"a.jsonl": COUNTED["enough"]}, val_fraction=0.2, sample=0.9)


@pytest.mark.parametrize("count", [140, 400])
@pytest.mark.parametrize("mark", ["\n", "<|endoftext|>"])
def test_separators_are_counted_too(monkeypatch, count, mark):
    monkeypatch.setattr(first_pass, "_WINDOW", 1000)
    texts = [*SHORT[:count], *[samples.ALL.replace("\n", " ")] * 9]
    files = [mark.join(texts[:100]).encode(), mark.join(texts[100:]).encode()]
    how = {"val_fraction": 0.2, "separator": mark.replace("\n", "\\n")}
    found = prepared(files, **how)
    monkeypatch.setattr(first_pass, "_has_records", lambda *_: False)
    assert prepared(files, **how) == found


# Lines that differ, so that passages do, and twice, so that each has a duplicate.
ONCE = "".join(f"{number}. {text}\n" for number in range(60) for text in samples.SAMPLES.values())


@pytest.fixture
def all_texts_are_large(monkeypatch):
    monkeypatch.setattr(first_pass, "LARGE_BYTES", 0)
    monkeypatch.setattr(first_pass, "run", lambda *_, **__: pytest.fail("it was read twice"))


@pytest.mark.usefixtures("all_texts_are_large")
@pytest.mark.parametrize("fraction", [0.0001, 0.01, 0.05, 0.4])
@pytest.mark.parametrize("seed", [0, 5, 1 << 70])
def test_a_long_text_is_not_read_twice_and_its_val_is_as_much_as_asked_for(encoding, fraction, seed):
    how = {"tokenizer": encoding, "val_fraction": fraction, "seed": seed, "passage_bytes": 2000}
    outs = [mill_text(ONCE, block_bytes=size, **how) for size in (2000, 50_000, 1 << 20)]
    assert all(outcome(out) == outcome(outs[0]) for out in outs)
    assert outs[0].both == reference.encode(encoding, ONCE)
    share = len(decoded(encoding, outs[0].val)) / len(ONCE)
    passage = 2 * 2000 / len(ONCE.encode())
    assert share > 0 and abs(share - fraction) < max(passage, 0.25 * fraction)


@pytest.mark.usefixtures("all_texts_are_large")
@pytest.mark.parametrize("seed", range(4))
def test_passages_of_a_long_text_that_are_the_same_stay_on_one_side(seed):
    out = mill_text(ONCE + ONCE, tokenizer="r50k_base", val_fraction=0.01, seed=seed, passage_bytes=2000)
    val = decoded("r50k_base", out.val)
    # Where the halves meet, a passage may have no duplicate.
    lines = [line for line in set(val.split("\n")) if len(line) > 20 and ONCE.count(line + "\n") == 1]
    assert lines and sum(val.count(line) == 2 for line in lines) > 0.6 * len(lines)


@pytest.mark.usefixtures("all_texts_are_large")
def test_val_of_a_long_text_begins_behind_places_that_the_seed_draws():
    data = ONCE.encode()
    for seed in range(6):
        out = mill_text(ONCE, tokenizer="r50k_base", val_fraction=0.0001, seed=seed, passage_bytes=2000)
        place = len(data) * xxhash.xxh3_64_intdigest(bytes(8), seed=seed) >> 64
        begin = data.find(decoded("r50k_base", out.val).encode())
        assert out.val and place <= begin <= place + 8000


@pytest.mark.usefixtures("all_texts_are_large")
@pytest.mark.parametrize("ranges", [True, False])
def test_a_long_text_on_a_server_is_split_as_on_disk(tmp_path, ranges):
    how = {"val_fraction": 0.005, "passage_bytes": 2000}
    (tmp_path / "a.txt").write_text(ONCE * 4)
    made = []
    with Server() as server:
        server.files["/a.txt"], server.ranges = (ONCE * 4).encode(), ranges
        for number, source in enumerate([tmp_path / "a.txt", f"{server.url}/a.txt"]):
            output = tmp_path / f"out-{number}"
            prepare(Spec(inputs=[source], output=output, **how), limits=Limits(workers=2))
            made.append([(output / name).read_bytes() for name in ("train.bin", "val.bin")])
    assert made[0] == made[1] and made[0][1]
