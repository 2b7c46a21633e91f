"""Outputs → one output: merged, or in another format, without encoding anything again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardmill import folder as folders
from shardmill import journal, machine, manifest, storage
from shardmill.corpus import Corpus, Split, open_corpus
from shardmill.ends import Positions
from shardmill.errors import OutputError, UsageError
from shardmill.foreign import Claims, open_foreign
from shardmill.formats import registry
from shardmill.formats.files import OutputFiles, Syncing
from shardmill.formats.registry import Format, Output
from shardmill.formats.shards import SPLITS, SplitName, Tokens
from shardmill.formats.sides import Places
from shardmill.formats.writer import FormatWriter
from shardmill.journal import Journal
from shardmill.lock import locked
from shardmill.manifest import Counts, Manifest
from shardmill.names import is_url, show
from shardmill.reading import ahead
from shardmill.shelf import ShelfFile

# What is read at a time, while what was read before is written.
_CHUNK_TOKENS = 1 << 20
_NO_ENDS = np.empty(0, np.int64)
Report = Callable[[int, int], None]
"""Called with the bytes of tokens written, and how many it will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What to make of the sources; None: as in the first of them."""

    output: Path
    format: str | None = None
    eot: str | None = None
    shard_tokens: int | None = None
    index: bool = False
    overwrite: bool = False
    sync: bool = True
    """Whether to wait until all is on disk. False: like cp, leave to the system when that is."""


def convert(
    source: str | Path, target: Target, claims: Claims | None = None, on_progress: Report | None = None
) -> Manifest:
    """Write the tokens of one output, or of files that another program made, in another format."""
    folder, claims = Path(source), claims or Claims()
    if is_url(str(source)):
        if claims != Claims():
            raise UsageError(
                f"{show(str(source))}: files that another program made are read from a disk; download them first"
            )
        corpus = open_corpus(source)
    elif claims.format is None and (not folder.is_dir() or (folder / manifest.NAME).exists()):
        corpus = open_corpus(folder)
    else:
        corpus = open_foreign(folder, claims)
    return _write([corpus], target, "convert", on_progress)


def merge(sources: list[str | Path], target: Target, on_progress: Report | None = None) -> Manifest:
    """Join outputs of the same tokenizer and format: all train tokens in the order given, and all val tokens."""
    corpora = [open_corpus(source) for source in sources]
    if not corpora:
        raise UsageError("nothing to merge; name at least one output folder")
    first = _nature(corpora[0])
    for corpus in corpora[1:]:
        changed = manifest.differences(first, _nature(corpus))
        if changed:
            raise UsageError(
                f"{show(corpus.folder)} cannot be merged with {show(corpora[0].folder)}:\n  "
                + "\n  ".join(changed)
                + "\nConvert one of them first (shardmill convert), or make it again with the same tokenizer."
            )
    return _write(corpora, target, "merge", on_progress)


def _nature(corpus: Corpus) -> dict[str, Any]:
    """What must be the same in outputs that are merged."""
    assert corpus.manifest is not None
    job = corpus.manifest.job
    return {
        "dtype": corpus.dtype.name,
        "eot": {"id": corpus.eot_id, "side": corpus.eot_side},
        "format": corpus.format.name,
        "tokenizer": job["choices"].get("tokenizer"),
        "tokenizer_sha256": job.get("tokenizer_sha256"),
        "vocabulary_size": job.get("vocabulary_size"),
    }


def _write(corpora: list[Corpus], target: Target, made_by: str, on_progress: Report | None) -> Manifest:
    found = registry.get(target.format) if target.format else corpora[0].format
    side = _side(corpora[0], found, target)
    output = _output(corpora, found, target)
    for corpus in corpora:
        _refuse_unknown_ends(corpus, output, side)
        if target.output.exists() and target.output.resolve() == Path(corpus.folder).resolve():
            raise UsageError(f"{show(target.output)}: is the source too; choose another output folder with -o")
    machine.keep_freed_memory()
    job = _job(corpora, output, side, made_by)
    total, done = sum(corpus.tokens for corpus in corpora) * output.dtype.itemsize, 0
    with locked(target.output):
        if (complete := _make_room(target, found, job)) is not None:
            return complete
        _check_space(target.output, total)
        log = Journal(target.output, overwrites=target.overwrite)
        files = OutputFiles(target.output, {}, drop_behind=storage.worth_dropping(total))
        try:
            log.begin(job)
            writer = FormatWriter(output, files)
            with Syncing(files, wanted=target.sync) as syncing:
                for split, tokens, ends, places in ahead(_all(corpora, side, output)):
                    writer.append(split, tokens, ends, places)
                    syncing.written(tokens.nbytes)
                    done += tokens.nbytes
                    if on_progress is not None:
                        on_progress(done, total)
            writer.finish()
            made = _manifest(corpora, job, output, side, writer)
            files.seal(sync=target.sync)
            files.publish()
        except BaseException:
            files.abandon()
            log.remove()
            raise
        log.close()
        folders.conclude(target.output, None, made, {"made_by": made_by})
    return made


def _check_space(output: Path, needed: int) -> None:
    free = storage.free_bytes(output)
    if needed > free:
        raise OutputError(
            f"{show(output)}: the tokens take {needed:,} bytes, and {free:,} are free on this disk; free some, or choose another disk with -o"
        )


def _make_room(target: Target, found: Format, job: dict[str, Any]) -> Manifest | None:
    """Remove what is to be replaced; or return the manifest, if just this was done already."""
    left, ours = None, False
    if not target.overwrite:
        left = journal.read(target.output)
        there = folders.look(target.output, None)
        complete = folders.completed(there, job, (), begun=folders.unfinished(target.output))
        if complete is not None:
            folders.tidy(target.output, None, found)
            return complete
        ours = left is not None and not manifest.differences(left.job, job)  # a kill left it: begin again
    if left is not None and not ours:
        raise OutputError(
            f"{show(target.output)}: holds an unfinished job; finish it, pass --overwrite to replace it, or choose another folder with -o"
        )
    folders.make_room(target.output, None, found, overwrite=target.overwrite or ours)
    return None


def _output(corpora: list[Corpus], found: Format, target: Target) -> Output:
    first = corpora[0]
    job = first.manifest.job if first.manifest else {}
    vocabulary = job.get("vocabulary_size") or (1 << 8 * first.dtype.itemsize if first.dtype.itemsize == 2 else 1 << 31)
    name = str(job.get("choices", {}).get("tokenizer", "unknown tokenizer"))
    same = found.name == first.format.name
    asked = target.shard_tokens or (job.get("choices", {}).get("shard_tokens") if same else None)
    if target.shard_tokens is not None and not found.sharded:
        raise UsageError(f"--shard-tokens: {found.trainer} reads one file for each split; leave it out")
    if found.sharded and asked is None and found.shard_tokens is None:
        raise UsageError(f"--to {found.name}: say how long a shard is, e.g. --shard-tokens 500M")
    dtype = first.dtype if same or not job else registry.choose_dtype(found, int(vocabulary), name, "auto")
    if dtype.itemsize == 4 and found.only_uint16:
        raise UsageError(f"--to {found.name}: the tokens are uint32, but {found.only_uint16}; choose another format")
    provenance = all(_places_file(corpus, split) for corpus in corpora for split in corpus.splits)
    return Output(
        format=found,
        dtype=dtype,
        shard_tokens=registry.shard_tokens(found, dtype, asked),
        first_shard_is_val=False,
        index=target.index or (same and all(_has_index(corpus) for corpus in corpora)),
        provenance=provenance,
        tokenizer=name,
        sources=tuple(str(item["path"]) for corpus in corpora for item in _inputs(corpus)),
    )


def _side(corpus: Corpus, found: Format, target: Target) -> str:
    """Where end-of-text tokens go: where asked, else where they are if the format does not mind, else where it has them."""
    if target.eot is not None and found.needs_eot and target.eot != found.eot_side:
        raise UsageError(f"--eot {target.eot}: {found.trainer} cannot train on it: {found.needs_eot}; leave --eot out")
    if target.eot is not None:
        return target.eot
    if corpus.eot_side == "none" and found.needs_eot and corpus.manifest is not None:
        raise UsageError(
            f"{show(corpus.folder)} has no end-of-text tokens, and {found.trainer} needs them: {found.needs_eot}; make it again with --format {found.name}"
        )
    return corpus.eot_side if corpus.eot_side == "none" or found.name == corpus.format.name else found.eot_side


def _refuse_unknown_ends(corpus: Corpus, output: Output, side: str) -> None:
    moves = side != corpus.eot_side
    if moves and corpus.eot_id is None:
        raise UsageError(
            f"{show(corpus.folder)}: which token ends a text is not known, so it cannot be moved from {corpus.eot_side} to {side}; say it with --eot-id, or keep it with --eot {corpus.eot_side}"
        )
    why = "end-of-text tokens are to be moved" if moves else f"--format {output.format.name} needs them"
    if not (moves or output.format.sides or output.index):
        return
    for split in corpus.splits.values():
        if not split.knows_documents:
            raise UsageError(
                f"{show(corpus.folder)}: where documents end in {split.name} is not known (there is no index, and no end-of-text token marks them), and {why}. Make it again with --index, or for files of another program say --eot-id"
            )


def _all(corpora: list[Corpus], side: str, output: Output) -> Iterator[tuple[SplitName, Tokens, Positions, Places]]:
    """Everything as it will be written: train of all corpora in turn, then val."""
    for split in SPLITS:
        for corpus, first_input in zip(corpora, _first_inputs(corpora), strict=True):
            for tokens, ends, places in _stream(corpus, split, side, first_input, output):
                yield split, tokens, ends, places


def _stream(
    corpus: Corpus, name: SplitName, side: str, first_input: int, output: Output
) -> Iterator[tuple[Tokens, Positions, Places]]:
    """The tokens of a split as they will be written, where documents end among them, and where they came from."""
    if name not in corpus.splits:
        return
    split = corpus.splits[name]
    moves = side != corpus.eot_side
    shift = _shift(corpus, split, side) if moves else 0
    wanted = (moves and not shift) or output.index or output.format.sides is not None
    move = _Mover(corpus, split, side) if moves and not shift else None
    scans = wanted and move is None and split.ends is None  # the marks are seen in what is copied anyway
    ends = _Window(split.document_ends() if wanted and not scans else iter(()))
    places = _place_reader(corpus, name, first_input)
    at = number = 0
    for start in range(0, len(split), _CHUNK_TOKENS):
        chunk = _read(split, start, min(start + _CHUNK_TOKENS, len(split)), shift)
        last = at + len(chunk) == len(split)
        if scans:
            inside = split.ends_among(chunk, side, first=at == 0, last=last)
        else:
            inside = ends.until(at + len(chunk)) - at
        at += len(chunk)
        where, number = places(number, len(inside)), number + len(inside)
        if move is not None:
            chunk, inside = move(chunk, inside, last=last)
        yield chunk.astype(output.dtype, copy=False), inside, where


def _shift(corpus: Corpus, split: Split, side: str) -> int:
    """Where every document has its mark, moving all marks to the other side moves all tokens by one; 0: not so."""
    if "none" in (side, corpus.eot_side) or not len(split) or _straddles(corpus):
        return 0
    if corpus.manifest is not None and corpus.manifest.counts.passages:
        return 0  # running text that was parted: a document has its mark in one split only
    if corpus.manifest is None and split.ends is not None:
        return 0
    marked = split[-1 if corpus.eot_side == "after" else 0] == corpus.eot_id
    return (-1 if side == "before" else 1) if marked else 0


def _read(split: Split, start: int, stop: int, shift: int) -> Tokens:
    """The tokens [start, stop) when all are moved by one; at the end that is left free stands the mark."""
    if not shift:
        return split.read(start, stop)
    inside = split.read(max(0, start + shift), min(stop + shift, len(split)))
    if len(inside) == stop - start:
        return inside
    mark = np.array([split.eot_id], split.dtype)
    return np.concatenate([mark, inside] if shift < 0 else [inside, mark])


class _Window:
    """Ends in order, taken as far as some place."""

    def __init__(self, source: Iterator[Positions]) -> None:
        self._source, self._rest = source, _NO_ENDS

    def until(self, place: int) -> Positions:
        taken = []
        while True:
            count = int(np.searchsorted(self._rest, place, side="right"))
            taken.append(self._rest[:count])
            self._rest = self._rest[count:]
            if len(self._rest):
                break
            following = next(self._source, None)
            if following is None:
                break
            self._rest = following
        return np.concatenate(taken)


class _Mover:
    """Takes end-of-text tokens from one side of each document and puts them at the other, or at none.

    A first shard that is val ends, and the next begins, in the middle of a document: there is none to put.
    """

    def __init__(self, corpus: Corpus, split: Split, side: str) -> None:
        assert corpus.eot_id is not None
        self._eot, self._from, self._to = corpus.eot_id, corpus.eot_side, side
        self._begins = not (split.name == "train" and _straddles(corpus))
        self._stays_open = split.name == "val" and _straddles(corpus)
        self._fresh = self._begins

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


def _straddles(corpus: Corpus) -> bool:
    """Whether val and train are one stream that was cut inside a document."""
    if {"train", "val"} - corpus.splits.keys():
        return False
    first = corpus.format.first_shard_is_val
    if corpus.manifest is not None:
        choices = corpus.manifest.job.get("choices", {})
        first = choices.get("split") == "first-shard" or (first and choices.get("split") == "auto")
        first = first and "made_by" not in corpus.manifest.job
    if not first:
        return False
    if corpus.eot_side == "before":
        return corpus["train"][0] != corpus.eot_id
    return corpus["val"][-1] != corpus.eot_id


def _has_index(corpus: Corpus) -> bool:
    return corpus.manifest is not None and any(side.name.endswith(".ends") for side in corpus.manifest.sides)


def _places_file(corpus: Corpus, split: SplitName) -> ShelfFile | None:
    sides = corpus.manifest.sides if corpus.manifest else ()
    name = next((side.name for side in sides if side.split == split and side.kind == "places"), None)
    shelf = corpus.splits[split].files[0].file.shelf
    return None if name is None else ShelfFile(shelf=shelf, name=name)


def _place_reader(corpus: Corpus, split: SplitName, first_input: int) -> Callable[[int, int], Places]:
    path = _places_file(corpus, split)

    def read(first: int, count: int) -> Places:
        if path is None or not count:  # all that is known is which document it is
            numbers = np.arange(first, first + count, dtype=np.uint64)
            return np.column_stack([np.full(count, 1 << 62, np.uint64), numbers])
        found = np.frombuffer(path.read(16 * first, 16 * count), "<u8").reshape(-1, 2).copy()
        found[:, 0] += np.uint64(first_input)
        return found

    return read


def _inputs(corpus: Corpus) -> list[dict[str, Any]]:
    return list(corpus.manifest.job.get("inputs", ())) if corpus.manifest else []


def _first_inputs(corpora: list[Corpus]) -> list[int]:
    """The number that the first input of each has among all of them."""
    firsts, total = [], 0
    for corpus in corpora:
        firsts.append(total)
        total += len(_inputs(corpus))
    return firsts


def _job(corpora: list[Corpus], output: Output, side: str, made_by: str) -> dict[str, Any]:
    """What decides the bytes, as the manifest and the journal have it."""
    first = corpora[0].manifest
    job = first.job if first else {"choices": {}, "tokenizer_sha256": None, "vocabulary_size": None}
    choices = {
        **job["choices"],
        "format": output.format.name,
        "shard_tokens": output.shard_tokens,
        "index": output.index,
        "provenance": output.index and output.provenance,
        "eot": side,
    }
    return {
        **job,
        "choices": choices,
        "inputs": [item for corpus in corpora for item in _inputs(corpus)],
        "made_by": made_by,
        "made_of": [_fingerprint(corpus) for corpus in corpora],
    }


def _manifest(corpora: list[Corpus], job: dict[str, Any], output: Output, side: str, writer: FormatWriter) -> Manifest:
    counts = Counts()
    for corpus in corpora:
        counts += corpus.manifest.counts if corpus.manifest else Counts()
    return Manifest(
        job=job,
        dtype=output.dtype.name,
        eot_id=corpora[0].eot_id if side != "none" else None,
        eot_side=side,
        counts=counts,
        files=writer.shards(),
        sides=writer.sides(),
    )


def _fingerprint(corpus: Corpus) -> str:
    """Of an output, the checksum of its manifest; of others' files, of their names and sizes."""
    if corpus.manifest is not None:
        return xxhash.xxh3_64_hexdigest(corpus.manifest.to_json())
    files = [f"{file.file.name} {file.tokens}" for split in corpus.splits.values() for file in split.files]
    return xxhash.xxh3_64_hexdigest("\n".join(files).encode())
