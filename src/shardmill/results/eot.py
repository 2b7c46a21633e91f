"""Outputs → their tokens as merge and convert write them: end-of-text tokens moved, document ends and provenance along."""

import itertools
from collections.abc import Iterator

import numpy as np

from shardmill.errors import InputError
from shardmill.formats.registry import FORMATS, Output, split_mode
from shardmill.formats.shards import SPLITS, Positions, Provenance, SplitName, Tokens, TokenType
from shardmill.io.fileset import StoredFile
from shardmill.record import input_list
from shardmill.results.corpus import Corpus, Split
from shardmill.results.document_index import RowsFile, read_rows
from shardmill.system.names import show

# Tokens read at a time, while those before them are written.
_CHUNK_TOKENS = 2 << 20
_ROWS_AT_ONCE = 1 << 16
# Instead of the number of a document's input, where that is unknown.
_NO_INPUT = 1 << 62
_NO_ENDS = np.empty(0, np.int64)
_NO_PROVENANCE = np.empty((0, 2), np.uint64)
ORDERS: dict[str, tuple[SplitName, SplitName]] = {
    "first-shard": ("val", "train"),
    "head": ("val", "train"),
    "tail": ("train", "val"),
    "nanogpt": ("train", "val"),
}

Documents = Iterator[tuple[Positions, Provenance]]
"""Where documents end, in order, and where each came from; some at a time."""
Chunk = tuple[SplitName, Tokens, Positions, Provenance]
"""Tokens as they will be written to a split, where documents end among them, and where those came from."""


def everything(corpora: list[Corpus], side: str, output: Output) -> Iterator[Chunk]:
    """Train of all corpora in turn, then val."""
    firsts = [*itertools.accumulate((input_list.count(corpus.inputs) for corpus in corpora), initial=0)]
    for name in SPLITS:
        for corpus, first_input in zip(corpora, firsts):
            if name in corpus:
                yield from _stream(corpus, corpus[name], side, first_input, output)


def _stream(corpus: Corpus, split: Split, side: str, first_input: int, output: Output) -> Iterator[Chunk]:
    moves = side != corpus.eot_side
    shift = shift_of(corpus, split, side) if moves else 0
    move = Mover(corpus, split, side) if moves and not shift else None
    wanted = move is not None or output.index or output.format.needs_ends
    rows = rows_files(corpus, split)
    scans = wanted and move is None and split.ends is None and not rows  # finds the ends in what is copied anyway
    known = _from_rows(corpus, rows, first_input) if rows else _from_index(corpus, split, first_input)
    documents = Window(known if wanted and not scans else iter(()))
    number = 0
    for start in range(0, len(split), _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, len(split))
        tokens = read_shifted(split, start, stop, shift)
        _refuse_large_ids(corpus, split, tokens, start + shift, output.dtype)
        if scans:
            ends = split.ends_among(tokens, side, start)
            provenance, number = _numbered(number, len(ends)), number + len(ends)
        else:
            ends, provenance = documents.until(stop)
            ends = ends - start
        if move is not None:
            tokens, ends = move(tokens, ends, last=stop == len(split))
        yield split.name, tokens.astype(output.dtype, copy=False), ends, provenance


def _refuse_large_ids(corpus: Corpus, split: Split, tokens: Tokens, start: int, dtype: TokenType) -> None:
    """Ids that do not fit the new integers, and negative ones, which foreign files may hold."""
    if tokens.dtype == dtype and (dtype.itemsize == 2 or not corpus.foreign):
        return
    bits, limit = 8 * tokens.dtype.itemsize, 1 << (16 if dtype.itemsize == 2 else 31)
    if not len(tokens) or int(tokens.max()) < limit:
        return
    position = int(np.argmax(tokens >= limit))
    found = int(tokens[position])
    signed = f" ({found - (1 << bits):,} as a signed integer)" if found >> (bits - 1) else ""
    raise InputError(
        f"{show(corpus.folder)}: token {max(0, start) + position:,} of {split.name} is {found:,}{signed}, and {dtype.name} files hold ids up to {limit - 1:,}; "
        + ("pass --dtype uint32, or leave --dtype out" if dtype.itemsize == 2 else "no tokenizer has such an id")
    )


def _numbered(first: int, count: int) -> Provenance:
    """Only the number of each document is known, not its input."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return np.column_stack([np.full(count, _NO_INPUT, np.uint64), numbers])


def _from_index(corpus: Corpus, split: Split, first_input: int) -> Documents:
    file, number = corpus.sidecar("places", split.name), 0
    for ends in split.document_ends():
        provenance = _numbered(number, len(ends))
        if file is not None:
            provenance = np.frombuffer(file.read(16 * number, 16 * len(ends)), "<u8").reshape(-1, 2).copy()
            provenance[:, 0] += np.uint64(first_input)
        yield ends, provenance
        number += len(ends)


def rows_files(corpus: Corpus, split: Split) -> tuple[RowsFile, ...]:
    """OLMo's rows say where documents end and came from; not needed if shardmill's own index says both."""
    listed = {side.name for side in corpus.manifest.sidecars}
    base, found = 0, []
    for shard in split.files if corpus.sidecar("places", split.name) is None else ():
        name = shard.file.name.removesuffix(".npy") + ".csv.gz"
        if name in listed:
            file = StoredFile(fileset=shard.file.fileset, name=name)
            found.append(RowsFile(file=file, base=base, tokens=shard.tokens))
        base += shard.tokens
    return tuple(found)


def _from_rows(corpus: Corpus, files: tuple[RowsFile, ...], first_input: int) -> Documents:
    """Rows name the inputs by their paths; documents are in the order of the inputs."""
    sources, number = corpus.sources, 0
    rows = read_rows(files)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        provenance = []
        for _, path, position in some:
            while path and number < len(sources) and sources[number] != path:
                number += 1
            known = path and number < len(sources)
            provenance.append((first_input + number if known else _NO_INPUT, position))
        yield np.array([end for end, _, _ in some], np.int64), np.array(provenance, np.uint64)


def shift_of(corpus: Corpus, split: Split, side: str) -> int:
    """Where every document has its end-of-text token, moving these shifts all tokens by one. 0: that does not hold."""
    if "none" in (side, corpus.eot_side) or not len(split) or cuts_of(corpus, split.name):
        return 0
    if corpus.foreign and split.ends is not None:
        return 0
    complete = split[-1 if corpus.eot_side == "after" else 0] == corpus.eot_id
    return (-1 if side == "before" else 1) if complete else 0


def read_shifted(split: Split, start: int, stop: int, shift: int) -> Tokens:
    """The tokens [start, stop) once all are shifted; the end that becomes free holds an end-of-text token."""
    inside = split.read(max(0, start + shift), min(stop + shift, len(split)))
    if len(inside) == stop - start:
        return inside
    eot = np.array([split.eot_id], split.dtype)
    return np.concatenate([eot, inside] if shift < 0 else [inside, eot])


class Window:
    """Documents in order, taken up to some position."""

    def __init__(self, source: Documents) -> None:
        self._source, self._ends, self._provenance = source, _NO_ENDS, _NO_PROVENANCE

    def until(self, position: int) -> tuple[Positions, Provenance]:
        while not len(self._ends) or self._ends[-1] <= position:
            if (following := next(self._source, None)) is None:
                break
            self._ends = np.concatenate([self._ends, following[0]])
            self._provenance = np.concatenate([self._provenance, following[1]])
        count = int(np.searchsorted(self._ends, position, side="right"))
        taken = self._ends[:count], self._provenance[:count]
        self._ends, self._provenance = self._ends[count:], self._provenance[count:]
        return taken


class Mover:
    """Takes the end-of-text tokens from one side of each document and puts them on the other, or on neither.

    Where one text was cut into val and train, val ends and train begins inside a document, without an end-of-text token.
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
        # Positions once the old end-of-text tokens are gone.
        new_at, ends_at = (positions - np.searchsorted(old, positions) for positions in (new, ends))
        moved = np.insert(np.delete(tokens, old), new_at, self._eot)
        # An end-of-text token after a document belongs to it, one before the next does not.
        return moved, ends_at + np.searchsorted(new, ends, side="right" if self._to == "after" else "left")


def cuts_of(corpus: Corpus, name: SplitName) -> tuple[int, ...]:
    """Where a split, or a source that was merged into it, begins or ends inside a document."""
    order = stream_order(corpus)
    if order is None or len(corpus) < 2:
        return corpus[name].cuts if name in corpus else ()
    first, then = (corpus[each] for each in order)
    whole = then[0] == corpus.eot_id if corpus.eot_side == "before" else first[-1] == corpus.eot_id
    return () if whole else (0,) if name == then.name else (len(first),)


def stream_order(corpus: Corpus) -> tuple[SplitName, SplitName] | None:
    """The splits in the order of the text, if one continues the other. convert keeps that, merge does not."""
    mode, made_by = corpus.manifest.job["choices"].get("split", "auto"), corpus.manifest.job.get("made_by")
    if made_by is None:
        mode = split_mode(FORMATS[corpus.format], mode)
    return ORDERS.get(mode) if made_by != "merge" else None
