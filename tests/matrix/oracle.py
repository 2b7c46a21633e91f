"""What must come out of a cell, slowly and obviously: whole documents by tiktoken, the rules as they are documented."""

import math
from collections import Counter
from dataclasses import dataclass, field

import xxhash
from cells import SHARDED, Cell
from world import SMALL_HEAD, World

import reference

EOT = {"r50k_base": 50256, "cl100k_base": 100257, "o200k_base": 199999}
BEFORE = {"build-nanogpt", "llmc", "modded-nanogpt"}
_SAMPLE_SEED = 0x5A3C_9D17_42E8_B60F
_FEW = 40


@dataclass(kw_only=True, slots=True)
class Expected:
    """The tokens of each split, where documents end in them, and where those came from; and what was counted."""

    error: bool = False
    """A bad record is met, and is an error."""
    unsure: bool = False
    """It may be met: a limit lies in the same text, little before the bad byte or well before it."""
    tokens: dict[str, list[int]] = field(default_factory=lambda: {"train": [], "val": []})
    ends: dict[str, list[int]] = field(default_factory=lambda: {"train": [], "val": []})
    places: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {"train": [], "val": []})
    counts: Counter = field(default_factory=Counter)
    rejects: list[tuple[str, int]] = field(default_factory=list)
    replaced: tuple[int, int] = (0, 0)
    """At least and at most so many characters, where a limit cuts a document."""

    def add(self, split, tokens, place):
        """One more document, or a part of one."""
        if tokens:
            self.tokens[split] += tokens
            self.ends[split].append(len(self.tokens[split]))
            self.places[split].append(place)


def eot_side(cell: Cell, world: World) -> str:
    """A single text without separator gets none, unless the trainer needs it; else as the format has it."""
    if cell["eot"] != "auto":
        return str(cell["eot"])
    one_text = len(world.files) == 1 and world.spec["separator"] is None and cell["kind"] == "text"
    if one_text and cell["format"] != "modded-nanogpt":
        return "none"
    return "before" if cell["format"] in BEFORE else "after"


def expected(cell: Cell, world: World) -> Expected:
    """For documents that are judged whole."""
    spec, found = world.spec, Expected()
    is_val = _splitter(cell, world)
    shard = spec["shard_tokens"] if cell["split"] == "first-shard" else 0
    limit_documents, limit_tokens = spec.get("limit_documents"), spec.get("limit_tokens")
    pending: Counter = Counter()
    written = tokens_before = base = 0
    rejects: list[tuple[str, int]] = []
    for number, (path, made) in enumerate(world.files.items()):
        pending["byte_order_marks"] += made.marks
        for document in made.documents:
            pending["documents"] += 1
            if not _is_wanted(world, document):
                pending["documents_filtered"] += 1
                continue
            unsampled = bool(document.text) and not _in_sample(cell, world, document)
            bad = not document.good and not (unsampled and document.raw)  # of plain text, what is wanted must be good
            if bad and _may_be_behind(world, document, tokens_before):
                found.unsure, bad = True, False
            if bad and (spec["on_error"] == "stop" or (document.text is None and spec["on_error"] == "replace")):
                found.error = True
                return found
            if bad and spec["on_error"] == "skip":
                pending["documents_rejected"] += 1
                rejects.append((path, document.place))
                continue
            if not document.text or unsampled:
                pending["documents_unsampled" if unsampled else "documents_empty"] += 1
                continue
            tokens = reference.tokens(
                spec["tokenizer"], [document.text], eot=EOT[spec["tokenizer"]], side=eot_side(cell, world)
            )
            val = is_val(document, base + document.at)
            pending["documents_val"] += val
            most = len(tokens) if limit_tokens is None else limit_tokens - tokens_before
            at_least = found.replaced[1]
            found.replaced = at_least + (document.replaced if most >= len(tokens) else 0), at_least + document.replaced
            tokens = tokens[:most]
            tokens_before, written = tokens_before + len(tokens), written + 1
            room = max(0, shard - len(found.tokens["val"]))
            found.add("val" if val else "train", tokens[room:], (number, document.place))
            found.add("val", tokens[:room], (number, document.place))
            found.counts += pending
            found.rejects += rejects
            pending, rejects = Counter(), []
            if written == limit_documents or tokens_before == limit_tokens:
                found.counts["input_bytes"] = base
                return found
        base += len(made.data)
    found.counts += pending
    found.rejects += rejects
    found.counts["input_bytes"] = base
    return found


def _may_be_behind(world, document, tokens_before):
    """Whether the limit on tokens lies before what is bad in plain text; forced cuts make more tokens."""
    spec = world.spec
    if spec["on_error"] != "stop" or spec.get("limit_tokens") is None or document.raw is None:
        return False
    try:
        good = document.raw.decode()
    except UnicodeDecodeError as e:
        good = document.raw[: e.start].decode()
    return world.cutless or spec["limit_tokens"] - tokens_before <= len(reference.encode(spec["tokenizer"], good)) + 1


def _hash(cell, document, seed):
    """Of what a document is judged by: its first 64 KiB, of plain text as they stand in the file."""
    head = document.text.encode() if document.raw is None else document.raw
    head = head[: SMALL_HEAD if cell["constants"] == "small" else 64 << 10]
    return xxhash.xxh3_64_intdigest(head, seed=seed & (1 << 64) - 1)


def _is_wanted(world, document):
    """The filter comes first, and looks only at the fields; but a record that cannot be parsed has none."""
    return document.tags is None or world.wants(document.tags["score"], document.tags["language"])


def _in_sample(cell, world, document):
    share, seed = world.spec.get("sample"), world.spec["seed"] ^ _SAMPLE_SEED
    return share is None or _hash(cell, document, seed) < share * (1 << 64)


def _splitter(cell, world):
    """A document and its place → whether it is val."""
    fraction, total = world.spec.get("val_fraction", 0.0), sum(len(made.data) for made in world.files.values())
    match cell["split"]:
        case "first-shard" | "none":
            return lambda _document, _at: False
        case "head":
            return lambda _document, at: at < round(total * fraction)
        case "tail":
            return lambda _document, at: at >= total - round(total * fraction)
    limit = _lowest(cell, world, fraction)
    limit = int(fraction * (1 << 64)) if limit is None else limit
    return lambda document, _at: _hash(cell, document, world.spec["seed"]) < limit


def _lowest(cell, world, fraction):
    """The lowest key that is not val, when there are few; None when there are enough for a threshold.

    Whatever the policy: bad plain text has a say, a bad record, which may have no text at all, has none.
    """
    every = [document for made in world.files.values() for document in made.documents]
    documents = [document for document in every if _is_wanted(world, document)]
    judged = [d for d in documents if d.text and (d.good or d.raw is not None) and _in_sample(cell, world, d)]
    keys = sorted(_hash(cell, document, world.spec["seed"]) for document in judged)
    selects = world.spec.get("sample") is not None or bool(world.spec["where"])
    if (len(keys) if selects else len(documents)) >= _FEW / fraction:
        return None
    if len(keys) < 2 or keys[0] == keys[-1]:
        return 0
    return min(keys[max(1, math.floor(len(keys) * fraction + 0.5)) - 1] + 1, keys[-1])


def interleave(whole, one, other):
    """Whether the tokens of a text are those of train and val, each in order, and nothing else."""
    if len(whole) != len(one) + len(other):
        return False
    at = {0}  # how many of one are used up
    for number, token in enumerate(whole):
        at = {i + 1 for i in at if i < len(one) and one[i] == token} | {
            i for i in at if 0 <= number - i < len(other) and other[number - i] == token
        }
    return len(one) in at


def lonely(tokens, eot, side):
    """Where an end-of-text token has no text: two in a row, or one at the end that it should not be at."""
    alone = 0 if side == "after" else len(tokens) - 1
    return [i for i, token in enumerate(tokens) if token == eot and (i == alone or (i and tokens[i - 1] == eot))]


def is_sharded(cell: Cell) -> bool:
    return cell["format"] in SHARDED
