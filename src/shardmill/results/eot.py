"""Outputs → their tokens as they will be written in another, for merge and convert.

End-of-text tokens on one side of each document go to the other, or away; with the tokens comes where documents end
among them, and where those came from.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardmill.errors import InputError
from shardmill.formats.registry import Output
from shardmill.formats.shards import SPLITS, Provenance, SplitName, Tokens, TokenType
from shardmill.io.fileset import StoredFile
from shardmill.io.storage import Origin
from shardmill.record import input_list
from shardmill.results.corpus import Corpus, Split
from shardmill.results.document_index import Positions, RowsFile, read_rows
from shardmill.system.names import show

# What is read at a time, while what was read before is written.
_CHUNK_TOKENS = 2 << 20
_ROWS_AT_ONCE = 1 << 16
# In the place of the number of a document's input where that is not known.
_NO_INPUT = 1 << 62
_NO_ENDS = np.empty(0, np.int64)
_NO_PLACES = np.empty((0, 2), np.uint64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Tokens as they will be written, where documents end among them, and where those came from."""

    split: SplitName
    tokens: Tokens
    ends: Positions
    places: Provenance
    origin: Origin | None
    """Where just these bytes stand already."""


def everything(corpora: list[Corpus], side: str, output: Output) -> Iterator[Chunk]:
    """Everything as it will be written: train of all corpora in turn, then val."""
    for split in SPLITS:
        for corpus, first_input in zip(corpora, _first_inputs(corpora), strict=True):
            yield from _stream(corpus, split, side, first_input, output)


def _stream(corpus: Corpus, name: SplitName, side: str, first_input: int, output: Output) -> Iterator[Chunk]:
    if name not in corpus.splits:
        return
    split = corpus.splits[name]
    moves = side != corpus.eot_side
    shift = shift_of(corpus, split, side) if moves else 0
    wanted = (moves and not shift) or output.index or output.format.needs_ends
    move = Mover(corpus, split, side) if moves and not shift else None
    rows = rows_files(corpus, name)
    scans = wanted and move is None and split.ends is None and not rows  # the marks are seen in what is copied anyway
    known = _from_rows(corpus, rows, first_input) if rows else _from_index(corpus, split, first_input)
    documents = Window(known if wanted and not scans else iter(()))
    number = 0
    for start in range(0, len(split), _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, len(split))
        chunk = read_shifted(split, start, stop, shift)
        _refuse_large_ids(corpus, split, chunk, start + shift, output.dtype)
        origin = split.origin(start + shift, stop + shift) if move is None and output.dtype == split.dtype else None
        if scans:
            ends = split.ends_among(chunk, side, start)
            places, number = _no_places(number, len(ends)), number + len(ends)
        else:
            ends, places = documents.until(stop)
            ends = ends - start
        if move is not None:
            chunk, ends = move(chunk, ends, last=stop == len(split))
        tokens = chunk.astype(output.dtype, copy=False)
        yield Chunk(split=name, tokens=tokens, ends=ends, places=places, origin=origin)


def _refuse_large_ids(corpus: Corpus, split: Split, tokens: Tokens, at: int, dtype: TokenType) -> None:
    """Ids that the new integers cannot hold; or that are none, since they are negative where they come from."""
    if tokens.dtype == dtype and (dtype.itemsize == 2 or corpus.manifest is not None):
        return
    bits, most = 8 * tokens.dtype.itemsize, 1 << (16 if dtype.itemsize == 2 else 31)
    if not len(tokens) or int(tokens.max()) < most:
        return
    place = int(np.argmax(tokens >= most))
    found = int(tokens[place])
    signed = f" ({found - (1 << bits):,} as a signed integer)" if found >> (bits - 1) else ""
    raise InputError(
        f"{show(corpus.folder)}: token {max(0, at) + place:,} of {split.name} is {found:,}{signed}, and {dtype.name} files hold ids up to {most - 1:,}; "
        + ("pass --dtype uint32, or leave --dtype out" if dtype.itemsize == 2 else "no tokenizer has such an id")
    )


def places_file(corpus: Corpus, split: SplitName) -> StoredFile | None:
    sides = corpus.manifest.sides if corpus.manifest else ()
    name = next((side.name for side in sides if side.split == split and side.kind == "places"), None)
    fileset = corpus.splits[split].files[0].file.fileset
    return None if name is None else StoredFile(fileset=fileset, name=name)


def _no_places(first: int, count: int) -> Provenance:
    """All that is known is which document it is."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return np.column_stack([np.full(count, _NO_INPUT, np.uint64), numbers])


def _from_index(corpus: Corpus, split: Split, first_input: int) -> Iterator[tuple[Positions, Provenance]]:
    """Where documents end, and where they came from if that is known too."""
    path, number = places_file(corpus, split.name), 0
    for ends in split.document_ends():
        places = _no_places(number, len(ends))
        if path is not None:
            places = np.frombuffer(path.read(16 * number, 16 * len(ends)), "<u8").reshape(-1, 2).copy()
            places[:, 0] += np.uint64(first_input)
        yield ends, places
        number += len(ends)


def rows_files(corpus: Corpus, name: SplitName) -> tuple[RowsFile, ...]:
    """OLMo's rows tell where documents end and came from, unless an index of ours tells both."""
    sides = {side.name: side for side in corpus.manifest.sides} if corpus.manifest else {}
    split, base, found = corpus.splits[name], 0, []
    for file in split.files if places_file(corpus, name) is None else ():
        rows = file.file.name.removesuffix(".npy") + ".csv.gz"
        if rows in sides:
            found.append(
                RowsFile(file=StoredFile(fileset=file.file.fileset, name=rows), base=base, tokens=file.tokens),
            )
        base += file.tokens
    return tuple(found)


def _from_rows(corpus: Corpus, files: tuple[RowsFile, ...], first_input: int) -> Iterator[tuple[Positions, Provenance]]:
    """The inputs are named there by their paths; documents are in the order of the inputs."""
    sources, number = corpus.sources, 0
    rows = read_rows(files)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        places = []
        for _, path, place in some:
            while path and number < len(sources) and sources[number] != path:
                number += 1
            places.append((first_input + number if path and number < len(sources) else _NO_INPUT, place))
        yield np.array([end for end, _, _ in some], np.int64), np.array(places, np.uint64)


def _first_inputs(corpora: list[Corpus]) -> list[int]:
    """The number that the first input of each has among all of them."""
    firsts, total = [], 0
    for corpus in corpora:
        firsts.append(total)
        total += input_list.count(corpus.manifest.job.get("inputs", []) if corpus.manifest else [])
    return firsts


def shift_of(corpus: Corpus, split: Split, side: str) -> int:
    """Where every document has its mark, moving all marks to the other side moves all tokens by one; 0: not so."""
    if "none" in (side, corpus.eot_side) or not len(split) or cuts_of(corpus, split.name):
        return 0
    if corpus.manifest is None and split.ends is not None:
        return 0
    marked = split[-1 if corpus.eot_side == "after" else 0] == corpus.eot_id
    return (-1 if side == "before" else 1) if marked else 0


def read_shifted(split: Split, start: int, stop: int, shift: int) -> Tokens:
    """The tokens [start, stop) when all are moved by one; at the end that is left free stands the mark."""
    if not shift:
        return split.read(start, stop)
    inside = split.read(max(0, start + shift), min(stop + shift, len(split)))
    if len(inside) == stop - start:
        return inside
    mark = np.array([split.eot_id], split.dtype)
    return np.concatenate([mark, inside] if shift < 0 else [inside, mark])


class Window:
    """Ends in order and where those documents came from, taken as far as some place."""

    def __init__(self, source: Iterator[tuple[Positions, Provenance]]) -> None:
        self._source, self._rest = source, (_NO_ENDS, _NO_PLACES)

    def until(self, place: int) -> tuple[Positions, Provenance]:
        taken = []
        while True:
            ends, places = self._rest
            count = int(np.searchsorted(ends, place, side="right"))
            taken.append((ends[:count], places[:count]))
            self._rest = ends[count:], places[count:]
            following = next(self._source, None) if count == len(ends) else None
            if following is None:
                break
            self._rest = following
        return np.concatenate([ends for ends, _ in taken]), np.concatenate([places for _, places in taken])


class Mover:
    """Takes end-of-text tokens from one side of each document and puts them at the other, or at none.

    Where a stream was cut into val and train, one ends and the other begins inside a document: there is none to put.
    """

    def __init__(self, corpus: Corpus, split: Split, side: str) -> None:
        assert corpus.eot_id is not None
        self._eot, self._from, self._to = corpus.eot_id, corpus.eot_side, side
        cuts = cuts_of(corpus, split.name)
        self._fresh, self._stays_open = 0 not in cuts, len(split) in cuts

    def __call__(self, tokens: Tokens, ends: Positions, *, last: bool) -> tuple[Tokens, Positions]:
        starts = np.unique(ends[ends < len(tokens)])
        if self._fresh and len(tokens):
            starts = np.concatenate([[0], starts[starts > 0]])
        stops = np.unique(ends[ends > 0])
        old = stops - 1 if self._from == "after" else starts
        old = old[tokens[old] == self._eot] if self._from != "none" else _NO_ENDS
        self._fresh = bool(len(ends)) and ends[-1] == len(tokens)
        if last and self._stays_open:
            stops = stops[stops < len(tokens)]
        new = {"after": stops, "before": starts, "none": _NO_ENDS}[self._to]
        keep = np.ones(len(tokens), np.bool_)
        keep[old] = False
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        out = np.insert(tokens[keep], kept_before[new], self._eot)
        # An end-of-text token after a document belongs to it, one before the next does not.
        put_before = np.searchsorted(new, ends, side="right" if self._to == "after" else "left")
        return out, kept_before[ends] + put_before


def cuts_of(corpus: Corpus, name: SplitName) -> tuple[int, ...]:
    """Where a split begins or ends inside a document, or a source of it did that was merged into it."""
    order = stream_order(corpus)
    if order is None or order[0] not in corpus.splits or order[1] not in corpus.splits:
        return corpus.splits[name].cuts if name in corpus.splits else ()
    first, then = (corpus.splits[each] for each in order)
    whole = then[0] == corpus.eot_id if corpus.eot_side == "before" else first[-1] == corpus.eot_id
    return () if whole else (0,) if name == then.name else (len(first),)


def stream_order(corpus: Corpus) -> tuple[SplitName, SplitName] | None:
    """The splits in the order of the text, if one goes on where the other ends. convert keeps that, merge does not."""
    val_first: tuple[SplitName, SplitName] = ("val", "train")
    if corpus.manifest is None:
        return val_first if corpus.format.first_shard_is_val else None
    job = corpus.manifest.job
    match job.get("choices", {}).get("split"), job.get("made_by"):
        case _, "merge":
            return None
        case (("first-shard" | "head"), _):
            return val_first
        case "tail", _:
            return ("train", "val")
        case "auto", None:
            return val_first if corpus.format.first_shard_is_val else None
    return None
