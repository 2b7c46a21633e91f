"""Ranges, milled by one call into C, give the tokens, counts and rejects of Parts, which the references prove elsewhere:
any kind of input, content, tokenizer, split, end-of-text side, slices of any size; and most of it is done in C."""

import gzip
import hashlib
import io
import json
import lzma
import random
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from milling import job_of, mill_blocks, mill_ranges, same, slices_of

import samples
import sentencepieces
from shardmill.documents import ranges
from shardmill.documents.columnar import native
from shardmill.io.zstd import zstd
from shardmill.job import mill, workers
from shardmill.spec import Limits, Spec

SEPARATOR = "<|sep|>"
HARD = [
    "nai\u0308ve",
    "m!ll",
    "<tag>",
    "e\u0301",
    "   ",
    "\u1100\u1161",
    "x" * 700,
    '"\\\u2028',
    "\r\n",
    "😀",
    "the mill ",
]
LONG_LINE = 3000


def words(seed, size):
    """About so many characters."""
    chance, found = random.Random(seed), []
    while sum(map(len, found)) < size:
        at = chance.randrange(len(samples.ALL) - 200)
        found.append(samples.ALL[at : at + chance.randrange(1, 200)])
        found += chance.choices(HARD, k=chance.randrange(2))
    return "".join(found)


def documents(seed, count=90):
    """Of very different lengths; some are empty, some come twice, and one is longer than a slice and than a Part."""
    chance = random.Random(seed)
    found = [words(seed + number, chance.choice([0, 1, 20, 200, 900])) for number in range(count)]
    found += [*found[:5], "", "", words(seed, LONG_LINE)]
    chance.shuffle(found)
    return found


def lines(texts, bad=()):
    made = [json.dumps({"id": n, "text": text, "url": "x"}, ensure_ascii=n % 3 == 0) for n, text in enumerate(texts)]
    for number, line in bad:
        made.insert(number, line)
    return "\n".join(made).encode() + b"\n" * (len(texts) % 2)


def frames(data, size=5000):
    return b"".join(zstd.compress(data[at : at + size]) for at in range(0, len(data), size))


def table(texts, **how):
    out, choices = io.BytesIO(), {"row_group_size": 17, "data_page_size": 400, "compression": "zstd", **how}
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())}), out, **choices)
    return out.getvalue()


def one_group(texts, **how):
    """Of many pages, the first of which have the words of a dictionary."""
    return table(texts, **{"row_group_size": 10_000, "write_batch_size": 3, "dictionary_pagesize_limit": 900, **how})


BAD_LINES = [(9, "{"), (10, '{"text": null}'), (30, '{"text": "\ud83d"}'.encode("ascii", "backslashreplace").decode()), (31, ""), (60, "[]"), (61, '{"no": 1}')]  # fmt: skip
KINDS = {
    "lines": lambda texts: {"a.jsonl": lines(texts), "b.jsonl": lines(texts[::-1])},
    "lines, compressed": lambda texts: {"a.jsonl.gz": gzip.compress(lines(texts)), "b.jsonl.zst": frames(lines(texts[::-1]))},
    "separated": lambda texts: {"a.txt": SEPARATOR.join(texts).encode(), "b.txt": (SEPARATOR.join(texts) + SEPARATOR).encode()},
    "rows": lambda texts: {"a.parquet": table(texts), "b.parquet": table(texts[::-1], data_page_version="2.0")},
    "rows, as they are": lambda texts: {"a.parquet": table(texts, compression="none", use_dictionary=False)},
    "rows by dictionary": lambda texts: {"a.parquet": table(texts[:30] * 8, row_group_size=60, dictionary_pagesize_limit=1 << 20)},
    "rows of one group": lambda texts: {"a.parquet": one_group(texts, compression="snappy"), "b.parquet": one_group(texts[::-1])},
    "a text": lambda texts: {"a.txt": "\n".join(texts * 6).encode()},
}  # fmt: skip
UNUSUAL = {
    "bad lines": lambda texts: {"a.jsonl": lines(texts, BAD_LINES), "b.jsonl": lines(texts, BAD_LINES[:1])},
    "bad lines, compressed": lambda texts: {
        "a.jsonl.zst": frames(lines(texts, BAD_LINES)),
        "b.jsonl.xz": lzma.compress(lines(texts, BAD_LINES[:1])),
    },
    "not UTF-8 between separators": lambda texts: {"a.txt": b"\xff".join([SEPARATOR.join(texts).encode()] * 2)},
    "rows that are null": lambda texts: {"a.parquet": table([*texts, None, *texts, None, None])},
    "rows that are not UTF-8": lambda texts: {"a.parquet": _not_utf8(texts)},
    "a text that is not UTF-8": lambda texts: {"a.txt": b"\xc3\n".join(["\n".join(texts * 3).encode()] * 2)},
    "damaged pages": lambda texts: {"a.parquet": _damaged(table(texts * 3))},
    "damaged pages of one group": lambda texts: {
        "a.parquet": _damaged_body(one_group(texts * 3)),
        "b.parquet": one_group(texts),
    },
    "damaged pages of large groups": lambda texts: {
        "a.parquet": _damaged_body(one_group(texts * 3, row_group_size=120))
    },
}


def _not_utf8(texts):
    out = io.BytesIO()
    column = pa.array([*(text.encode() for text in texts), b"\xff", *(text.encode() for text in texts)], pa.binary())
    pq.write_table(pa.table({"text": column}), out, row_group_size=29, compression="zstd")
    return out.getvalue()


def _damaged(data, step=500):
    data = bytearray(data)
    for at in range(len(data) // 4, len(data) // 2, step):
        data[at] ^= 0x55
    return bytes(data)


def _damaged_body(data):
    """A page in the middle of some row groups, the first and the last among them; their headers are whole."""
    data, meta = bytearray(data), pq.read_metadata(io.BytesIO(data))
    for group in {0, meta.num_row_groups // 3, meta.num_row_groups // 2, meta.num_row_groups - 1}:
        chunk = meta.row_group(group).column(1)
        start = min(filter(None, (chunk.data_page_offset, chunk.dictionary_page_offset)))
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            place = np.array([start, start + chunk.total_compressed_size, chunk.num_values, 0])
            pages = native.headers(file.fileno(), place)
        _, _, compressed, *_, at, _ = pages[len(pages) // 2].tolist()
        data[at + compressed // 2 : at + compressed] = bytes(compressed - compressed // 2)
    return bytes(data)


@pytest.fixture(scope="module")
def tokenizers(gpt2_json, tmp_path_factory):
    """Of each shape: bytes with ids of two bytes and of four, with added tokens and normal form C, SentencePiece."""
    folder, base = tmp_path_factory.mktemp("tokenizers"), json.loads(Path(gpt2_json).read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [*base["added_tokens"], {"id": 50257, "content": "m!ll", **flags}]
    configs = {"nfc": {**base, "normalizer": {"type": "NFC"}, "added_tokens": added}}
    configs |= {name: sentencepieces.CONFIGS[name]() for name in ("llama 2", "gemma", "phi 3")}
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return {"gpt2": "gpt2", "o200k": "o200k_base", **{name: str(folder / f"{name}.json") for name in configs}}


def choices_of(seed, **choices):
    chance = random.Random(seed)
    how = {
        "val_fraction": chance.choice([0, 0.1, 0.5, 0.9]),
        "split": chance.choice(["hash", "hash", "head", "tail"]),
        "format": chance.choice(["nanogpt", "build-nanogpt"]),
        "seed": chance.randrange(4),
        "passage_bytes": 600,
        "max_run_bytes": 2000,
        **choices,
    }
    by_hash = "compressed" in seed or not how["val_fraction"]
    return {**how, "split": "hash" if by_hash else how["split"]}


def in_c(job, splitter, slice_bytes):
    """What share of the text that is in ranges is milled in C; what is milled is compared on the way."""
    seen, mill_in_c = [0, 0], ranges.mill

    def counted(part, at, recipe, keep):
        found = mill_in_c(part, at, recipe, keep)
        seen[0] += found.at - at
        seen[1] += (part.end - part.at) * (at == part.at)
        return found

    with patch.object(ranges, "mill", counted):
        mill_ranges(job, splitter, slice_bytes)
    return seen[0] / seen[1] if seen[1] else 0


@pytest.mark.thin
@pytest.mark.parametrize("name", ["gpt2", "o200k", "nfc", "llama 2", "gemma", "phi 3"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_give_what_parts_give(tokenizers, kind, name):
    for seed, block_bytes in enumerate((300, 6000, 1 << 20)):
        choices = choices_of(f"{kind}{name}{seed}", tokenizer=tokenizers[name], eot_token=None)
        separator = SEPARATOR if kind == "separated" else None
        if name in ("llama 2", "gemma", "phi 3"):
            choices["eot_token"] = "</s>"
        with job_of(KINDS[kind](documents(seed)), block_bytes=block_bytes, separator=separator, **choices) as given:
            out = mill_blocks(*given)
            assert all(same(mill_ranges(*given, slice_bytes), out) for slice_bytes in (80, 700, 5000))


@pytest.mark.parametrize("name", ["gpt2", "nfc", "gemma"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_usual_is_milled_in_c(tokenizers, kind, name):
    choices = {"tokenizer": tokenizers[name], "eot_token": "</s>" if name == "gemma" else None, "passage_bytes": 600}
    files = KINDS[kind](documents(1, 400))
    with job_of(files, block_bytes=20_000, separator=SEPARATOR if kind == "separated" else None, **choices) as given:
        assert in_c(*given, 900) == 1


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_is_milled_as_ever(kind, on_error):
    if on_error == "replace" and "UTF-8" not in kind:
        pytest.skip("nothing to replace")
    for seed, block_bytes in enumerate((300, 4000, 9000)):
        choices = choices_of(f"{kind}{seed}", on_error=on_error)
        separator = SEPARATOR if "separators" in kind else None
        with job_of(UNUSUAL[kind](documents(seed)), block_bytes=block_bytes, separator=separator, **choices) as given:
            out = mill_blocks(*given)
            again = [mill_ranges(*given, slice_bytes) for slice_bytes in (80, 5000)]
            assert all(each is None or same(each, out) for each in again)
            assert on_error == "replace" or out.counts["documents_rejected"] or out.counts["passages_rejected"]


@pytest.mark.parametrize(
    "kind",
    [
        "lines",
        "lines, compressed",
        "bad lines, compressed",
        "separated",
        "rows",
        "rows of one group",
        "a text",
        "damaged pages of one group",
        "damaged pages of large groups",
    ],
)
def test_any_number_of_workers_writes_the_same_files(tmp_path, kind):
    """Half of it is val, so that there is no room for all of it in the first call."""
    for name, data in {**KINDS, **UNUSUAL}[kind](documents(1, 900)).items():
        (tmp_path / name).write_bytes(data)
    names, made = sorted(str(path) for path in tmp_path.iterdir()), set()
    separator = SEPARATOR if kind == "separated" else None
    for how in (0, 1, 2, 7, 16):
        output = str(tmp_path / f"out{how}")
        spec = Spec(inputs=names, output=output, val_fraction=0.5, separator=separator, on_error="skip")
        limits = Limits(workers=how or 1, block_bytes=20_000)
        with patch.object(workers, "recipe_of", workers.recipe_of if how else lambda *_: None), slices_of(900):
            mill.prepare(spec, limits=limits)
        files = ((tmp_path / f"out{how}" / name).read_bytes() for name in ("train.bin", "val.bin", "manifest.json"))
        made.add(hashlib.sha256(b"".join(files)).hexdigest())
    assert len(made) == 1


@pytest.mark.parametrize("kind", ["lines", "separated", "rows", "a text"])
def test_what_was_milled_leaves_the_page_cache(tmp_path, monkeypatch, kind):
    (name, data), *_ = KINDS[kind](documents(1, 900)).items()
    (tmp_path / name).write_bytes(data)
    dropped = []
    monkeypatch.setattr("shardmill.io.reading.advise", lambda _, at, size, how: dropped.append((how, at, size)))
    monkeypatch.setattr("shardmill.io.storage.worth_dropping", lambda *_: True)
    spec = Spec(inputs=[str(tmp_path / name)], output=str(tmp_path / "out"), val_fraction=0, passage_bytes=600)
    with slices_of(900):
        mill.prepare(spec, limits=Limits(workers=2, block_bytes=20_000))
    gone = set[int]()
    for how, at, size in dropped:
        gone |= set(range(at, at + size)) if how.endswith("DONTNEED") else set()
    assert len(gone) > 0.8 * len(data)


# The C of a Parquet range begins with its first row, always: where train or val was full, all its rows came again.
@pytest.mark.parametrize("kind", ["lines", "separated", "rows", "a text"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_where_there_is_no_room_nothing_comes_twice(monkeypatch, kind, share):
    monkeypatch.setattr(ranges.Recipe, "most_in_val", lambda *_: share)
    monkeypatch.setattr(ranges, "_LEAST_RECORD", 400)
    for seed in range(3):
        choices = {"val_fraction": 0.5, "separator": SEPARATOR if kind == "separated" else None, "seed": seed}
        with job_of(
            KINDS[kind](documents(seed, 300)), block_bytes=20_000, max_run_bytes=3500, passage_bytes=600, **choices
        ) as given:
            mill_blocks(*given)


def test_wrong_room_or_an_exception_in_python_lets_the_caller_encode(tokenizers, monkeypatch):
    """What C calls back must not raise: there it would be lost."""
    from shardmill.tokens.bytelevel import ByteLevel

    encode, asked = ByteLevel.encode, []

    def fails(self, pieces, begins=None):
        asked.append(begins is None)
        if begins is None:
            raise MemoryError
        return encode(self, pieces, begins)

    choices = {"tokenizer": tokenizers["nfc"], "val_fraction": 0}
    with job_of(KINDS["lines"](documents(5)), block_bytes=3000, **choices) as given:
        right = mill_ranges(*given, 700)
        with monkeypatch.context() as patched:
            patched.setattr(ByteLevel, "encode", fails)
            found = mill_ranges(*given, 700)
    assert found.train == right.train and found.counts == right.counts and any(asked)
