"""A cell → the files that it reads, with their documents, and the Spec: all from its seed."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cells import NATURALLY, SHARDED, Cell

import made_files
import samples
from made_files import BROKEN, HALF, Made

SHAKESPEARE = (Path(__file__).parents[2] / "samples" / "tinyshakespeare.txt").read_text()[:200_000]
SEPARATORS = {"none": None, "mark": "<|endoftext|>", "blank": "\n\n", "overlap": "=-=", "letter": "e"}
SUFFIXES = {"jsonl": ".jsonl", "csv": ".csv", "tsv": ".tsv", "parquet": ".parquet", "arrow": ".arrow"}
SUFFIXES |= {"stream": ".arrow", "warc": ".wet"}
# Conditions, and the same in Python; a score may be missing.
WHERE = {
    "number": (["score >= 2"], lambda score, _: score is not None and score >= 2),
    "word": (['meta_.language in ("en", "de")'], lambda _, language: language in ("en", "de")),
    "several": (
        ['score != 3 or meta_.language == "zh"', "(meta_.language > 'dd')"],
        lambda score, language: ((score is not None and score != 3) or language == "zh") and language > "dd",
    ),
}
_BETWEEN_WORDS = re.compile(r"[\s!-/:-@\[-`{-~、。，「」]+")
# What a document is judged by, when constants are small: as if documents were 64 KiB long everywhere.
SMALL_HEAD = 90


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What there is to mill, and how; paths are relative to the folder of the cell."""

    files: dict[str, Made]
    """As they are on disk, in the order of their paths."""
    spec: dict
    """The choices of the Spec, without inputs and output; on_error is that of the last run."""
    first_errors: str
    """The policy of the runs before the last."""
    running: bool
    """A file is one text that is judged by passages."""
    wants: Callable
    """The score and the language of a record → whether --where wants it."""
    cutless: bool
    """Something in it is longer than max_run_bytes and cannot be cut exactly."""


def make(cell: Cell) -> World:
    rng = random.Random(int(cell["seed"]))
    contents, cutless = _contents(rng, cell)
    separator = SEPARATORS[str(cell["separator"])]
    files = _files(rng, cell, contents, separator)
    wants = WHERE[str(cell["where"])][1] if cell["where"] != "all" else lambda _score, _language: True
    every = (document for made in files.values() for document in made.documents)
    documents = [each for each in every if each.tags is None or wants(each.tags["score"], each.tags["language"])]
    first_errors, _, errors = str(cell["errors"]).partition("-then-")
    first_errors = first_errors.partition("-")[0]
    running = cell["split"] in ("few", "many", "head", "tail") and separator is None and cell["where"] == "all"
    running = running and (
        cell["kind"] == "text" or (cell["kind"] in ("texts", "several") and cell["constants"] == "small")
    )
    return World(
        files=files,
        spec={**_choices(rng, cell, documents, separator), "on_error": errors or first_errors},
        first_errors=first_errors,
        running=running,
        wants=wants,
        cutless=cutless or _has_long_words(files, int(cell["run"])),
    )


def _has_long_words(files, run):
    """Whether text without space or punctuation is nearly as long as max_run_bytes; Chinese may have no cut in it."""
    texts = (document.text for made in files.values() for document in made.documents if document.text)
    return any(len(word.encode()) > run * 3 // 4 for text in texts for word in _BETWEEN_WORDS.split(text))


def _choices(rng, cell, documents, separator):
    named = str(cell["format"])
    choices = {
        "format": named,
        "tokenizer": cell["tokenizer"],
        "separator": separator,
        "eot": cell["eot"],
        "seed": rng.choice([0, 1, 2**63, -5]),
        "index": cell["index"] != "none",
        "provenance": cell["index"] == "places",
        "max_run_bytes": cell["run"],
        "passage_bytes": rng.choice([40, 64, 150, 340]),
        "dtype": "uint32" if named != "modded-nanogpt" and rng.random() < 0.1 else "auto",
        "where": WHERE[str(cell["where"])][0] if cell["where"] != "all" else (),
        **_split(rng, cell, len(documents)),
        **_selection(rng, cell, documents),
    }
    if named in ("mds", "litdata"):
        choices["sample_tokens"] = rng.choice([7, 32])
        choices["shard_tokens"] = choices["sample_tokens"] * rng.choice([1, 3, 9])
    elif named in SHARDED:
        choices["shard_tokens"] = rng.choice([1, 37, 200, 1000])
    if "shard_tokens" in choices:  # many files cost time
        least = sum(len(document.text or "") for document in documents) // (6 if cell["place"] == "s3" else 40)
        choices["shard_tokens"] *= max(1, least // choices["shard_tokens"])
    return choices


def _split(rng, cell, documents):
    """40 of val are enough for a threshold; with fewer, a first pass finds the lowest hashes."""
    match cell["split"]:
        case "few":
            return {"split": "hash", "val_fraction": min(rng.choice([0.0005, 0.05, 0.3]), 30 / max(31, documents))}
        case "many":
            return {"split": "hash", "val_fraction": rng.choice([0.7, 0.9])}
        case "first-shard":
            return {"split": "auto" if cell["format"] in NATURALLY and rng.random() < 0.5 else "first-shard"}
        case "none":
            return {"val_fraction": 0.0}
        case side:
            return {"split": side, "val_fraction": rng.choice([0.0005, 0.1, 0.5])}


def _selection(rng, cell, documents):
    chosen, wanted = {}, str(cell["select"]).split("+")
    if "sample" in wanted:
        chosen["sample"] = rng.choice([0.15, 0.5, 0.85])
    if "documents" in wanted:
        good = sum(document.good and document.text != "" for document in documents)
        chosen["limit_documents"] = rng.choice([1, 2, max(1, good // 2), max(1, good), good + 5])
        if cell["errors"] == "stop-behind":
            first = next((i for i, document in enumerate(documents) if not document.good), len(documents))
            before = sum(document.text != "" for document in documents[:first])
            chosen["limit_documents"] = max(1, min(chosen["limit_documents"], before))
            chosen.pop("sample", None)
    if "tokens" in wanted:
        chosen["limit_tokens"] = rng.choice([1, 2, 17, 150, 800, 3000])
    return chosen


def _files(rng, cell, contents, separator):
    """Names and what is in them; one file, or several."""
    kind = str(cell["kind"])
    if kind == "texts":
        made = [made_files.text([content], bom=bool(cell["bom"]) and rng.random() < 0.3) for content in contents]
        return dict(_named(rng, cell, f"in/{i:03}.txt", file) for i, file in enumerate(made))
    if kind == "several":
        kinds = ["jsonl", "text", "csv", "warc", "parquet", "text", "arrow", "jsonl"]
        kinds = [k for k in kinds if k != "arrow"] if cell["split"] in ("head", "tail") else kinds
        kinds = [k for k in kinds if k != "text"] if cell["where"] != "all" else kinds
        share = -(-len(contents) // len(kinds))
        some = [contents[i * share : (i + 1) * share] for i in range(len(kinds))]
        parts = [(k, part) for k, part in zip(kinds, some, strict=True) if part]
        return dict(_file(rng, cell, k, part, separator, f"in/{i:03}") for i, (k, part) in enumerate(parts))
    return dict([_file(rng, cell, kind, contents, separator, "in/a")])


def _file(rng, cell, kind, contents, separator, stem):
    bom, tags = bool(cell["bom"]), None
    if cell["where"] != "all":
        scores, languages = [0, 1, 2, 2.5, 3, 1e300, None], ["en", "de", "zh", "d", "eñ", ""]
        tags = [{"score": rng.choice(scores), "language": rng.choice(languages)} for _ in contents]
    match kind:
        case "text" | "separated":
            return _named(rng, cell, f"{stem}.txt", made_files.text(contents, separator, bom=bom))
        case "jsonl":
            made = made_files.jsonl(contents, rng, bom=bom, newline=rng.choice(["\n", "\n", "\r\n"]), tags=tags)
        case "csv" | "tsv":
            made = made_files.table(contents, "," if kind == "csv" else "\t", bom=bom, tags=tags)
        case "parquet":
            return f"{stem}.parquet", made_files.parquet(contents, rng, tags=tags)
        case "arrow" | "stream":
            made = made_files.arrow(contents, rng, stream=kind == "stream", tags=tags)
        case _:
            made = made_files.warc(contents, rng, tags=tags)
    return _named(rng, cell, stem + SUFFIXES[kind], made)


def _named(rng, cell, name, made):
    """Packed in some pieces, each of which a reader can begin with."""
    packing = str(cell["packing"])
    if packing == "none":
        return name, made
    pieces = rng.choice([1, 2, 5])
    if packing == "frames":
        packing, pieces = ".zst", max(1, len(made.data) // rng.choice([5, 60, 300]))
    data = made_files.COMPRESSIONS[packing](made.data, pieces)
    return name + packing, Made(data=data, documents=made.documents, marks=made.marks)


def _contents(rng, cell):
    """Documents of all lengths that matter here: empty, a word, longer than a block, longer than a run; some twice."""
    block, run = int(cell["block"]), int(cell["run"])
    room = min(16_000, max(3000, 60 * block))
    lengths = [0, 5, 40, 200, min(3 * block, 4000), min(run * 3 // 2, 5000)]
    single, contents = cell["kind"] == "text", []
    while (room > 0 or len(contents) < 4) and len(contents) < (80 if cell["split"] == "many" else 50):
        if contents and rng.random() < 0.08:
            contents.append(rng.choice(contents))
        else:
            contents.append(_text(rng, rng.choice(lengths if rng.random() < 0.3 else lengths[:4])))
        room -= len(contents[-1].encode())
    if cell["split"] == "many":
        contents += [f"{i} {_text(rng, 10)}" for i in range(60 - len(contents))]
    rng.shuffle(contents)
    cutless = run < 10_000 and rng.random() < 0.06
    if cutless:
        contents.insert(rng.randrange(len(contents)), "".join(rng.choices("xyz", k=run * 2)))
    contents = _damaged(rng, cell, contents)
    if single:
        contents = [b"".join(map(made_files.raw, contents))]
    return contents, cutless


def _text(rng, length):
    pieces = []
    while length > 0:
        if rng.random() < 0.15:
            piece = "".join(rng.choices(samples.NASTY, k=rng.randrange(1, 6)))
        else:
            source = rng.choice([SHAKESPEARE, SHAKESPEARE, *samples.SAMPLES.values(), *samples.SCRIPTS])
            start = rng.randrange(len(source))
            piece = source[start : start + rng.randrange(1, 160)]
        pieces.append(piece[:length] if length < 160 else piece)
        length -= len(pieces[-1].encode())
        if rng.random() < 0.02:
            pieces.append("=-=-= \n\n\n")
    return "".join(pieces)


def _damaged(rng, cell, contents):
    """The same with bad records: anywhere, or only behind the limit of the cell; repairable ones, or any."""
    errors = str(cell["errors"])
    if errors in ("stop", "skip"):
        return contents
    kind = str(cell["kind"])
    repairable = "replace" in errors
    texts = kind in ("text", "texts", "separated", "several")
    first = len(contents) // 2 if errors == "stop-behind" else 0
    damaged = []
    for i, content in enumerate(contents):
        if i >= first and rng.random() < 0.15:
            kinds = ["bytes"] if texts else ["bytes", "half" if kind == "jsonl" else "bytes"]
            kinds += [] if repairable or texts else ["broken"]
            content = _bad(rng, rng.choice(kinds), content)
        damaged.append(content)
    return damaged


def _bad(rng, how, content):
    at = rng.randrange(len(content) + 1)
    match how:
        case "broken":
            return BROKEN
        case "half":
            return content[:at] + HALF + "." + content[at:]
    return content[:at].encode() + rng.choice([b"\xff", b"\xff\xc0", b"\xe4\xb8", b"\xc3(\xff"]) + content[at:].encode()
