"""I1 across versions: the token files and indexes of these jobs are, byte for byte, what they have been since November 2026.

`SHARDMILL_GOLDEN=write pytest tests/golden` writes the table anew, for a change of bytes that is meant and told in CHANGELOG.md.
"""

import functools
import json
import os
import random
from pathlib import Path
from unittest.mock import patch

import pytest
import xxhash

import made_files
import samples
from given_texts import load_once
from shardmill import Limits, Spec, prepare
from shardmill.job import job

TABLE = Path(__file__).with_name("golden.json")
SHAKESPEARE = (Path(__file__).parents[2] / "samples" / "tinyshakespeare.txt").read_text()
WRITES = os.environ.get("SHARDMILL_GOLDEN") == "write"
SEPARATOR = "<|mark|>"
DOCUMENTS = [
    *samples.SAMPLES.values(),
    *samples.SCRIPTS,
    "",
    " ",
    "\n\n\n",
    "Mixed\r\nline\rends\n",
    SHAKESPEARE[:20_000],
    samples.CHINESE_WITHOUT_PUNCTUATION * 6,
    "",
    *(SHAKESPEARE[30_000 + 97 * i : 30_000 + 97 * i + 13 * i] for i in range(90)),
    "x" * 700,
    "the end",
]
SMALL = {"max_run_bytes": 4096, "passage_bytes": 512}
RECORDS = {
    "jsonl": lambda rng: made_files.jsonl(DOCUMENTS, rng),
    "json": lambda rng: made_files.jsonl(DOCUMENTS, rng, bom=True, newline="\r\n"),
    "csv": lambda _: made_files.table(DOCUMENTS),
    "tsv": lambda _: made_files.table(DOCUMENTS, "\t", bom=True),
    "parquet": lambda rng: made_files.parquet(DOCUMENTS, rng),
    "arrow": lambda rng: made_files.arrow(DOCUMENTS, rng),
    "feather": lambda rng: made_files.arrow(DOCUMENTS, rng, stream=True),
    "wet": lambda rng: made_files.warc(DOCUMENTS, rng),
    "txt": lambda _: made_files.text(DOCUMENTS, SEPARATOR),
}
FORMATS = {
    "nanogpt": {},
    "shards": {"shard_tokens": 20_000},
    "build-nanogpt": {"shard_tokens": 16_384},
    "llmc": {"shard_tokens": 16_384},
    "modded-nanogpt": {"shard_tokens": 16_384},
    "megatron": {},
    "datatrove": {},
    "olmo": {"shard_tokens": 20_000},
    "mds": {"shard_tokens": 16_384, "sample_tokens": 256},
    "litdata": {"shard_tokens": 16_400, "sample_tokens": 205},
}


def _seed(name):
    return random.Random(xxhash.xxh32_intdigest(name.encode()))


def _records(suffix, compression=""):
    rng = _seed(suffix)
    data = RECORDS[suffix](rng).data
    pack = made_files.COMPRESSIONS.get(compression)
    return {f"in/a.{suffix}{compression}": pack(data, 3) if pack else data}


def _many_texts():
    texts = [*DOCUMENTS[:40], "\ufeff" + samples.ENGLISH, samples.CRLF]
    return {f"in/{i}.txt": text.encode() for i, text in enumerate(texts)}


def _running(bom=False):
    return {"in/one.txt": made_files.BOM * bom + (SHAKESPEARE[:60_000] + samples.ALL + samples.ALL).encode()}


def _several():
    return {**_records("jsonl", ".zst"), **_records("parquet"), **_many_texts(), **_records("wet", ".gz")}


def _cells():
    """Name → files, choices, limits."""
    mark, index = {"separator": SEPARATOR}, {"index": True, "provenance": True}
    for suffix in RECORDS:
        for compression in ["", *made_files.COMPRESSIONS] if suffix != "parquet" else [""]:
            name, choices = f"{suffix}{compression}", {**(mark if suffix == "txt" else {}), **index}
            yield name, _records(suffix, compression), {"val_fraction": 0.1, **choices}
        yield f"{suffix} small", _records(suffix), {"val_fraction": 0.3, "seed": 7, **SMALL, **choices}
    for format, shape in FORMATS.items():
        yield f"{format}", _records("jsonl"), {"format": format, **shape, **index}
        yield (
            f"{format} hash",
            _records("txt"),
            {"format": format, "split": "hash", "val_fraction": 0.2, **shape, **mark},
        )
        yield (
            f"{format} one text",
            _running(),
            {"format": format, "split": "hash", "val_fraction": 0.1, **shape, **SMALL},
        )
    for eot in ("auto", "after", "before", "none"):
        yield f"eot {eot} texts", _many_texts(), {"eot": eot, "val_fraction": 0.2, **index}
        yield f"eot {eot} one text", _running(), {"eot": eot, "val_fraction": 0.2, **index, **SMALL}
        yield f"eot {eot} megatron", _records("jsonl"), {"eot": eot, "format": "megatron", "val_fraction": 0.2}
    for split in ("head", "tail"):
        for kind, files in (("one text", _running()), ("texts", _many_texts()), ("jsonl", _records("jsonl"))):
            yield f"{split} {kind}", files, {"split": split, "val_fraction": 0.2, **index, **SMALL}
    for fraction in (0, 0.0005, 0.5, 0.9):
        yield f"val {fraction}", _records("jsonl"), {"val_fraction": fraction, **index}
        yield f"val {fraction} one text", _running(bom=True), {"val_fraction": fraction, "seed": 3}
    for tokenizer in ("r50k_base", "cl100k_base", "o200k_base"):
        yield f"{tokenizer}", _records("jsonl"), {"tokenizer": tokenizer, "val_fraction": 0.1}
        yield f"{tokenizer} one text", _running(), {"tokenizer": tokenizer, "val_fraction": 0.1, **SMALL}
    yield "blank lines", {"in/a.txt": _running()["in/one.txt"]}, {"separator": "\\n\\n", "val_fraction": 0.1, **index}
    yield "uint32", _records("csv"), {"dtype": "uint32", "format": "mds", **FORMATS["mds"]}
    yield "several kinds", _several(), {"val_fraction": 0.1, "separator": SEPARATOR, **index}
    yield "sample", _records("jsonl"), {"sample": 0.4, "val_fraction": 0.3}
    yield "limit documents", _records("jsonl"), {"limit_documents": 70, "val_fraction": 0.3}
    yield "limit tokens", _records("jsonl"), {"limit_tokens": 7001, "val_fraction": 0.3}
    yield "skip", {"in/a.jsonl": _with_bad()}, {"on_error": "skip", "val_fraction": 0}
    yield "replace", {"in/a.txt": b"a \xff b " * 500}, {"on_error": "replace", "val_fraction": 0}


def _with_bad():
    contents = [content for text in DOCUMENTS for content in (text, made_files.BROKEN)]
    return made_files.jsonl(contents, _seed("bad")).data


CELLS = {name: (files, choices) for name, files, choices in _cells()}


@pytest.fixture(scope="module", autouse=True)
def engines_once():
    """Loading them is most of the time that so small a job takes."""
    choose = functools.lru_cache(maxsize=None)(lambda name, engine: _choose(load_once(name), engine))
    _choose = job.choose_engines
    with (
        patch.object(job, "load", load_once),
        patch.object(job, "choose_engines", lambda found, engine: choose(found.name, engine)),
    ):
        yield


@pytest.fixture(scope="module")
def table():
    known = {} if WRITES else json.loads(TABLE.read_text())
    yield known
    if WRITES:
        TABLE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("name", CELLS)
def test_the_bytes_are_what_they_were(name, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # OLMo's rows hold the paths as they are given
    files, choices = CELLS[name]
    Path("in").mkdir()
    for path, data in files.items():
        Path(path).write_bytes(data)
    prepare(Spec(inputs=sorted(files), output="out", **choices), limits=Limits(workers=2, block_bytes=5000))
    found = {
        path.relative_to("out").as_posix(): xxhash.xxh3_128_hexdigest(path.read_bytes())
        for path in sorted(Path("out").rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "run.json", "rejects.jsonl", "token_bytes.npy")
    }
    assert found == table.setdefault(name, found) if WRITES else found == table[name]
