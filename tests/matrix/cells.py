"""A seed → cells of the matrix: every two values of any two dimensions meet in some cell, then again in others."""

import itertools
import random
from collections.abc import Iterator

DIMENSIONS = {
    "kind": ("text", "texts", "separated", "jsonl", "csv", "tsv", "parquet", "arrow", "stream", "warc", "several"),
    "packing": ("none", ".gz", ".zst", "frames", ".bz2", ".xz"),
    "format": (
        *("nanogpt", "shards", "build-nanogpt", "llmc", "modded-nanogpt"),
        *("megatron", "datatrove", "olmo", "mds", "litdata"),
    ),
    "place": ("disk", "s3"),
    "index": ("none", "ends", "places"),
    "where": ("all", "number", "word", "several"),
    "select": ("all", "sample", "documents", "tokens", "sample+documents", "sample+tokens"),
    # after the dash: what the input holds, or how the policy changes when the job goes on
    "errors": ("stop", "stop-behind", "skip", "skip-bad", "replace-bad", "stop-then-skip", "skip-then-replace"),
    "split": ("few", "many", "head", "tail", "first-shard", "none"),
    "eot": ("auto", "after", "before", "none"),
    "separator": ("none", "mark", "blank", "overlap", "letter"),
    "workers": (1, 2, 7, 16),
    "block": (64, 101, 333, 1000, 2741, 8192, 1 << 20),
    "run": (700, 1100, 3000, 524_288),
    # how the first run ends: not at all; or what happens to an input while it is read
    "kill": ("no", "kill", "stop", "chain", "late", "edit", "swap", "denied", "unreadable", "forbidden"),
    "constants": ("own", "small"),
    "tokenizer": ("r50k_base", "cl100k_base", "o200k_base"),
    "bom": (0, 1),
}
NATURALLY = {"build-nanogpt", "llmc", "modded-nanogpt"}
SHARDED = {*NATURALLY, "shards", "olmo", "mds", "litdata"}
# What costs time need not meet everything: a store each format, a large vocabulary whatever comes.
_RARE = {"place": ("disk", {"format"}), "tokenizer": ("r50k_base", {"format", "kind"})}

Cell = dict[str, str | int]


def refusal(cell: Cell) -> str | None:
    """Why the documentation says that this cannot be, if it does; of a cell, or of a part of one."""
    split, packing, kind = (cell.get(name) for name in ("split", "packing", "kind"))
    modded = cell.get("format") == "modded-nanogpt"
    if split == "first-shard" and cell.get("format", "shards") not in SHARDED:
        return "has no shards"
    if modded and cell.get("eot") in ("after", "none"):
        return "starts every batch at an end-of-text token"
    if modded and cell.get("tokenizer", "r50k_base") != "r50k_base":
        return "uint16"
    if cell.get("where", "all") != "all" and kind in ("text", "texts", "separated"):
        return "plain text has none"
    if split in ("head", "tail") and (packing not in (None, "none") or kind in ("arrow", "stream")):
        return "need byte offsets in the input"
    return None


def _means_nothing(cell: Cell) -> bool:
    """Whether a cell, or a part of one, asks for what there is not."""
    kind, errors = cell.get("kind"), str(cell.get("errors"))
    return (
        (kind == "parquet" and cell.get("packing", "none") != "none")
        or (kind in ("text", "texts") and cell.get("separator", "none") != "none")
        or (kind == "separated" and cell.get("separator") == "none")
        or (errors == "stop-behind" and "documents" not in str(cell.get("select", "documents")))
        or ("-then-" in errors and cell.get("kill", "kill") not in ("kill", "stop", "chain", "late"))
    )


def cells(seed: int, count: int) -> Iterator[Cell]:
    """The first so many cells of a seed; each covering of all pairs is followed by another."""
    turns = ((random.Random(seed * 1000 + turn), turn % 4 == 0) for turn in itertools.count())
    made = itertools.chain.from_iterable(_covering(rng, stores=stores) for rng, stores in turns)
    for number, cell in enumerate(itertools.islice(made, count)):
        yield {"seed": seed * 1_000_000 + number, **cell}


def pairs() -> list[tuple[tuple[str, object], ...]]:
    return [
        ((a, x), (b, y))
        for a, b in itertools.combinations(DIMENSIONS, 2)
        for x, y in itertools.product(DIMENSIONS[a], DIMENSIONS[b])
        if not _means_nothing({a: x, b: y})
    ]


def _covering(rng: random.Random, *, stores: bool) -> Iterator[Cell]:
    """Cells in which all pairs meet; those that are refused, in one cell each. A store takes time: not always."""
    order = [pair for pair in pairs() if stores or ("place", "s3") not in pair]
    rng.shuffle(order)
    missing = {pair for pair in order if refusal(dict(pair)) is None and not is_costly(pair)}
    for pair in order:
        if pair in missing or refusal(dict(pair)):
            cell = _draw(rng, dict(pair), missing)
            missing.difference_update(itertools.combinations(cell.items(), 2))
            yield cell


def is_costly(pair: tuple[tuple[str, object], ...]) -> bool:
    (a, x), (b, y) = pair
    return any(
        name in _RARE and value != _RARE[name][0] and other not in _RARE[name][1]
        for name, value, other in ((a, x, b), (b, y, a))
    )


def _draw(rng: random.Random, given: Cell, missing: set[tuple[tuple[str, object], ...]]) -> Cell:
    """Fill up with what meets most of the pairs that have not met, and is not refused unless it must be."""
    cell, refused = dict(given), refusal(given)
    for name in rng.sample(list(DIMENSIONS), len(DIMENSIONS)):
        if name in cell:
            continue
        values = rng.sample(DIMENSIONS[name], len(DIMENSIONS[name]))
        values = [v for v in values if not _means_nothing({**cell, name: v}) and refusal({**cell, name: v}) == refused]
        if name in _RARE and _RARE[name][0] in values:
            values = [_RARE[name][0]]
        cell[name] = max(values, key=lambda value: _news(name, value, cell, missing))
    return {name: cell[name] for name in DIMENSIONS}


def _news(name: str, value: object, cell: Cell, missing: set[tuple[tuple[str, object], ...]]) -> int:
    """How many pairs would meet for the first time."""
    order = list(DIMENSIONS).index
    met = (
        ((name, value), other) if order(name) < order(other[0]) else (other, (name, value)) for other in cell.items()
    )
    return sum(pair in missing for pair in met)


def line(cell: Cell) -> str:
    return " ".join(f"{name}={value}" for name, value in cell.items())


def parse(text: str) -> Cell:
    """What line() made."""
    pairs = (word.split("=", 1) for word in text.split())
    return {name: int(value) if value.isdigit() else value for name, value in pairs}
