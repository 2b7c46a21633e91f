"""Two at a time: any format into any other, sides, indexes and splits drawn by lot, against an oracle of a few lines."""

import csv
import gzip
import io
import json
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import reference
import shardmill
from given_texts import load_once
from shardmill import Limits, Spec, Target, prepare
from shardmill.errors import UsageError
from shardmill.formats.registry import FORMATS
from shardmill.job import job
from shardmill.results import eot

EOT = 50256
TEXTS = [f"Sack {i} of {i * 7919} went to the mill.\n" * (i % 4 + 1) for i in range(24)]
LIMITS = Limits(engine="reference", workers=1)
SLOW_CELLS = 3000


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document, or what one split has of it, without marks; and the byte where the document begins."""

    tokens: tuple[int, ...]
    place: int
    begins: bool = True
    ends: bool = True

    def marked(self, side):
        before, after = side == "before" and self.begins, side == "after" and self.ends
        return [EOT] * before + list(self.tokens) + [EOT] * after


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is in a folder, as the oracle has it."""

    folder: object
    format: str
    side: str
    dtype: str
    pieces: dict
    index: bool
    places: bool = False
    """Whether a file tells where documents come from."""
    rows: bool = False
    """Whether OLMo's rows do."""
    in_order: bool = False
    """Whether val and train are one stream."""
    merged_cuts: bool = False
    eot_known: bool = True

    @property
    def knows_documents(self):
        return self.index or self.side != "none" or FORMATS[self.format].needs_ends


def places():
    return np.cumsum([0, *(len(text) + 2 for text in TEXTS)])[:-1].tolist()


def whole_pieces():
    return [
        Piece(tokens=tuple(reference.encode("r50k_base", t)), place=at) for t, at in zip(TEXTS, places(), strict=True)
    ]


def cut(pieces, side, count):
    """The stream of all documents with their marks, cut after so many tokens."""
    sides, room = ([], []), count
    for piece in pieces:
        size = len(piece.marked(side))
        if not 0 < room < size:
            sides[room <= 0].append(piece)
        else:
            inside = min(len(piece.tokens), room - (side == "before"))
            sides[0].append(replace(piece, tokens=piece.tokens[:inside], ends=False))
            sides[1].append(replace(piece, tokens=piece.tokens[inside:], begins=False))
        room -= size
    return {"val": sides[0], "train": sides[1]}


def shards(name, chance):
    form = FORMATS[name]
    if not form.sharded:
        return {}
    if form.sample_tokens is None:
        return {"shard_tokens": chance.choice([40, 97, 150])}
    return {"sample_tokens": 7, "shard_tokens": chance.choice([42, 98])}


def concatenated(folder, name, split, dtype):
    """The tokens as the trainer finds them."""
    match name:
        case "nanogpt" | "megatron":
            return np.fromfile(folder / f"{split}.bin", dtype)
        case "datatrove":
            return np.fromfile(folder / f"{split}.ds", dtype)
        case "shards" | "olmo":
            suffix = "bin" if name == "shards" else "npy"
            return np.concatenate([np.fromfile(path, dtype) for path in sorted(folder.glob(f"{split}-*.{suffix}"))])
        case "build-nanogpt":
            return np.concatenate([np.load(path) for path in sorted(folder.glob(f"edufineweb_{split}_*.npy"))])
        case "llmc" | "modded-nanogpt":
            files = sorted(folder.glob(f"fineweb_{split}_*.bin"))
            return np.concatenate([np.fromfile(path, dtype, offset=1024) for path in files])
        case "litdata":
            chunks = json.loads((folder / split / "index.json").read_text())["chunks"]
            return np.concatenate([np.fromfile(folder / split / c["filename"], dtype, offset=12) for c in chunks])
        case "mds":
            listed = json.loads((folder / split / "index.json").read_text())["shards"]
            paths = [folder / split / shard["raw_data"]["basename"] for shard in listed]
            return np.concatenate([np.fromfile(p, dtype, offset=int(np.fromfile(p, "<u4", 2)[1])) for p in paths])


def check(output):
    """Every token, every index, and what verify says."""
    dtype = {"uint16": "<u2", "uint32": "<u4"}[output.dtype]
    source = str(output.folder.parent / "a.txt")
    for split, pieces in output.pieces.items():
        marked = [(piece, tokens) for piece in pieces if (tokens := piece.marked(output.side))]
        expected = [token for _, tokens in marked for token in tokens]
        ends = np.cumsum([len(tokens) for _, tokens in marked]).tolist()
        if not expected:
            continue
        assert concatenated(output.folder, output.format, split, dtype).tolist() == expected, split
        if output.index:
            assert np.fromfile(output.folder / f"{split}.ends", "<u8").tolist() == ends
        if output.places:
            found = np.fromfile(output.folder / f"{split}.places", "<u8").reshape(-1, 2)
            assert found[:, 1].tolist() == [piece.place for piece, _ in marked]
        else:
            assert not (output.folder / f"{split}.places").exists()
        if output.format == "datatrove":
            assert np.fromfile(output.folder / f"{split}.ds.index", "<u8").tolist() == ends
        if output.format == "megatron":
            sizes = np.fromfile(output.folder / f"{split}.idx", "<i4", len(ends), offset=34)
            assert np.cumsum(sizes).tolist() == ends
        if output.format == "olmo":
            check_rows(output, split, ends, [(source, piece.place) for piece, _ in marked])
    made = shardmill.open(output.folder).manifest
    assert made.dtype == output.dtype and made.eot_side == output.side
    assert {file.split for file in made.files} == {name for name, pieces in output.pieces.items() if pieces}
    assert shardmill.verify(output.folder).problems == ()


def check_rows(output, split, ends, came_from):
    found, base = {}, 0
    for path in sorted(output.folder.glob(f"{split}-*.npy")):
        text = gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode()
        for start, end, number, name, place in csv.reader(io.StringIO(text, newline="")):
            assert base + int(start) == (
                found[int(number)][0] if int(number) in found else ends[int(number) - 1] if int(number) else 0
            )
            found[int(number)] = base + int(end), name, int(place)
        base += path.stat().st_size // np.dtype(output.dtype).itemsize
    assert [end for end, _, _ in found.values()] == ends
    if output.rows:
        assert [(name, place) for _, name, place in found.values()] == came_from
    else:
        assert {name for _, name, _ in found.values()} == {""}


class Workshop:
    """Makes outputs, each kind once, and remembers what must be in them."""

    def __init__(self, root):
        self.root, self.made, self.count = root, {}, 0
        (root / "a.txt").write_text("##".join(TEXTS))
        self.assigned = {}

    def spec(self, folder, **choices):
        return Spec(inputs=[self.root / "a.txt"], output=folder, separator="##", **choices)

    def parted(self, split, fraction):
        """Which documents prepare gives to val: the same in every format."""
        if (split, fraction) not in self.assigned:
            folder = self.root / f"parted-{split}-{fraction}"
            prepare(self.spec(folder, split=split, val_fraction=fraction, eot="after"), limits=LIMITS)
            text, val = [], set()
            for token in np.fromfile(folder / "val.bin", "<u2").tolist():
                text = [*text, token] if token != EOT else val.add(tuple(text)) or []
            self.assigned[split, fraction] = val
        val = self.assigned[split, fraction]
        return {name: [p for p in whole_pieces() if (p.tokens in val) == (name == "val")] for name in ("train", "val")}

    def source(self, name, chance):
        form = FORMATS[name]
        sides = ["before"] if form.needs_eot else ["after", "before", "none"]
        side, split = chance.choice(sides), chance.choice(["hash", "first-shard", "tail", "whole"] if form.sharded else ["hash", "tail", "whole"])  # fmt: skip
        index, provenance = chance.choice([(False, False), (True, False), (True, True)])
        dtype = chance.choice(["uint16", "uint32"] if not form.only_uint16 else ["uint16"])
        size = shards(name, chance)
        key = name, side, split, index, provenance, dtype, *size.values()
        if key not in self.made:
            folder = self.new()
            choices = {"format": name, "eot": side, "index": index, "provenance": provenance, "dtype": dtype, **size}
            fraction = {"hash": 0.3, "tail": 0.3, "whole": 0, "first-shard": 0.0005}[split]
            choices |= {"val_fraction": fraction, "split": "hash" if split == "whole" else split}
            prepare(self.spec(folder, **choices), limits=LIMITS)
            if split == "first-shard":
                pieces = cut(whole_pieces(), side, size["shard_tokens"])
            else:
                pieces = self.parted(split, fraction) if fraction else {"train": whole_pieces(), "val": []}
            self.made[key] = Output(
                folder=folder,
                format=name,
                side=side,
                dtype=dtype,
                pieces=pieces,
                index=index,
                places=provenance,
                rows=name == "olmo",
                in_order=split in ("first-shard", "tail"),
                eot_known=side != "none",
            )
            check(self.made[key])
        return self.made[key]

    def new(self):
        self.count += 1
        return self.root / str(self.count)

    def merge(self, one):
        """The same twice."""
        folder = self.new()
        shardmill.merge([one.folder, one.folder], Target(output=folder))
        cuts = any(not (piece.begins and piece.ends) for pieces in one.pieces.values() for piece in pieces)
        pieces = {name: [*pieces, *pieces] for name, pieces in one.pieces.items()}
        return replace(one, folder=folder, pieces=pieces, in_order=False, merged_cuts=cuts)

    def convert(self, one, to, chance):
        """The new output, or None if it must be refused, and was."""
        form, same = FORMATS[to], to == one.format
        asked = chance.choice([None, None, "after", "before", "none"])
        side = asked or (one.side if one.side == "none" or same else form.eot_side)
        dtype = chance.choice(["auto", "auto", "uint16", "uint32"])
        index = chance.random() < 0.3
        target = Target(output=self.new(), format=to, eot=asked, index=index, dtype=dtype, **shards(to, chance))
        index = index or (same and one.index)
        moves = side != one.side
        refused = (
            (form.needs_eot and side != form.eot_side)
            or (form.only_uint16 and dtype == "uint32")
            or (moves and (not one.eot_known or one.merged_cuts))
            or ((moves or index or form.needs_ends) and not one.knows_documents)
        )
        if refused:
            with pytest.raises(UsageError):
                shardmill.convert(one.folder, target)
            assert not target.output.exists()
            return None
        shardmill.convert(one.folder, target)
        return replace(
            one,
            folder=target.output,
            format=to,
            side=side,
            dtype=dtype if dtype != "auto" else one.dtype if same else "uint16",
            index=index,
            places=one.places and index,
            rows=to == "olmo" and (one.places or one.rows),
            eot_known=side != "none",
        )

    def cell(self, source, to, chance):
        one, known = self.source(source, chance), self.count
        if chance.random() < 0.25 and (one.knows_documents or not FORMATS[one.format].needs_ends):
            one = self.merge(one)
            check(one)
        for name in (to, chance.choice(list(FORMATS))):  # and once more, from what was converted
            new = self.convert(one, name, chance)
            if new is not None:
                check(new)
                one = new
        for number in range(known, self.count):
            shutil.rmtree(self.root / str(number + 1), ignore_errors=True)


@pytest.fixture(scope="module")
def workshop():
    """In memory if there is any: an fsync waits there for nothing."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=memory) as folder:
        patch.setattr(job, "load", load_once)
        engines = job.choose_engines(load_once("gpt2"), "reference")
        patch.setattr(job, "choose_engines", lambda *_: engines)
        patch.setattr(eot, "_CHUNK_TOKENS", 31)
        patch.setattr(eot, "_ROWS_AT_ONCE", 5)
        yield Workshop(Path(folder))


@pytest.mark.parametrize("source", FORMATS)
def test_any_format_becomes_any_other(workshop, source):
    for to in FORMATS:
        workshop.cell(source, to, random.Random(f"{source} {to}"))


@pytest.mark.slow
def test_any_format_becomes_any_other_in_every_way(workshop):
    for number in range(SLOW_CELLS):
        chance = random.Random(number)
        source, to = chance.choice(list(FORMATS)), chance.choice(list(FORMATS))
        try:
            workshop.cell(source, to, chance)
        except BaseException as e:
            e.add_note(f"cell {number}: {source} to {to}")
            raise
