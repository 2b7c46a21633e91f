"""Outputs → one output: merged, or in another format, without encoding anything again."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardmill import folder as folders
from shardmill import journal, listing, machine, manifest, storage
from shardmill.corpus import Corpus, open_corpus
from shardmill.ends import Positions
from shardmill.errors import OutputError, UsageError
from shardmill.foreign import Claims, open_foreign
from shardmill.formats import registry
from shardmill.formats.files import OutputFiles, Syncing
from shardmill.formats.registry import Format, Output
from shardmill.formats.shards import SPLITS, Places, SplitName, Tokens
from shardmill.formats.writer import FormatWriter
from shardmill.inputs import InputFiles, Strings
from shardmill.journal import Journal
from shardmill.lock import locked
from shardmill.manifest import Counts, Manifest
from shardmill.marks import Mover, Window, is_one_stream, read_shifted, shift_of
from shardmill.names import is_url, show
from shardmill.reading import ahead
from shardmill.shelf import ShelfFile
from shardmill.storage import Origin

# What is read at a time, while what was read before is written.
_CHUNK_TOKENS = 2 << 20
Report = Callable[[int, int], None]
"""Called with the bytes of tokens written, and how many it will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What to make of the sources; None: as in the first of them."""

    output: Path
    format: str | None = None
    eot: str | None = None
    shard_tokens: int | None = None
    sample_tokens: int | None = None
    index: bool = False
    overwrite: bool = False
    sync: bool = True
    """Whether to wait until all is on disk. False: like cp, leave to the system when that is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", Path(self.output))  # a str is welcome too


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
        if (complete := _make_room(target, found, job, total)) is not None:
            return complete
        log = Journal(target.output, overwrites=target.overwrite)
        files = OutputFiles(target.output, {}, drop_behind=storage.worth_dropping(total))
        try:
            log.begin(job)
            writer = FormatWriter(output, files)
            with Syncing(files, wanted=target.sync) as syncing:
                for chunk in ahead(_all(corpora, side, output)):
                    writer.copy(chunk.split, chunk.tokens, chunk.ends, chunk.places, chunk.origin)
                    syncing.written(chunk.tokens.nbytes)
                    done += chunk.tokens.nbytes
                    if on_progress is not None:
                        on_progress(done, total)
            writer.finish()
            _list_inputs(corpora, files)
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


def _check_space(output: Path, needed: int, freed: int) -> None:
    free = storage.free_bytes(output) + freed
    if needed > free:
        raise OutputError(
            f"{show(output)}: the tokens take {needed:,} bytes, and {free:,} are free on this disk; free some, or choose another disk with -o"
        )


def _make_room(target: Target, found: Format, job: dict[str, Any], needed: int) -> Manifest | None:
    """Remove what is to be replaced; or return the manifest, if just this was done already."""
    left, ours = None, False
    if not target.overwrite:
        left = journal.read(target.output)
        there = folders.look(target.output, None)
        complete = folders.completed(there, job, InputFiles(), begun=left is not None)
        if complete is not None:
            folders.tidy(target.output, None, found)
            return complete
        ours = left is not None and not manifest.differences(left.job, job)  # a kill left it: begin again
    if left is not None and not ours:
        raise OutputError(
            f"{show(target.output)}: holds an unfinished job; finish it, pass --overwrite to replace it, or choose another folder with -o"
        )
    replaces = target.overwrite or ours
    _check_space(target.output, needed, folders.replaced_bytes(target.output, found) if replaces else 0)
    folders.make_room(target.output, None, found, overwrite=replaces)
    return None


def _output(corpora: list[Corpus], found: Format, target: Target) -> Output:
    first = corpora[0]
    job = first.manifest.job if first.manifest else {}
    vocabulary = job.get("vocabulary_size") or (1 << 8 * first.dtype.itemsize if first.dtype.itemsize == 2 else 1 << 31)
    name = str(job.get("choices", {}).get("tokenizer", "unknown tokenizer"))
    same = found.name == first.format.name
    before = job.get("choices", {}) if same else {}
    asked = target.shard_tokens or (before.get("shard_tokens") if target.sample_tokens is None else None)
    sample = target.sample_tokens or before.get("sample_tokens")
    if target.shard_tokens is not None and not found.sharded:
        raise UsageError(f"--shard-tokens: {found.trainer} reads one file for each split; leave it out")
    if target.sample_tokens is not None and found.sample_tokens is None:
        raise UsageError(f"--sample-tokens: the files of --to {found.name} know no samples; leave it out")
    if found.sharded and asked is None and found.shard_tokens is None:
        raise UsageError(f"--to {found.name}: say how long a shard is, e.g. --shard-tokens 500M")
    dtype = first.dtype if same or not job else registry.choose_dtype(found, int(vocabulary), name, "auto")
    if dtype.itemsize == 4 and found.only_uint16:
        raise UsageError(f"--to {found.name}: the tokens are uint32, but {found.only_uint16}; choose another format")
    provenance = all(_places_file(corpus, split) for corpus in corpora for split in corpus.splits)
    return Output(
        format=found,
        shape=registry.choose_shape(found, dtype, asked, sample),
        first_shard_is_val=False,
        index=target.index or (same and all(_has_index(corpus) for corpus in corpora)),
        provenance=provenance,
        tokenizer=name,
        sources=Strings(path for corpus in corpora for path in corpus.sources) if found.sides == "olmo" else (),
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
    if not (moves or output.format.needs_ends or output.index):
        return
    for split in corpus.splits.values():
        if not split.knows_documents:
            raise UsageError(
                f"{show(corpus.folder)}: where documents end in {split.name} is not known (there is no index, and no end-of-text token marks them), and {why}. Make it again with --index, or for files of another program say --eot-id"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """Tokens as they will be written, where documents end among them, and where those came from."""

    split: SplitName
    tokens: Tokens
    ends: Positions
    places: Places
    origin: Origin | None
    """Where just these bytes stand already."""


def _all(corpora: list[Corpus], side: str, output: Output) -> Iterator[_Chunk]:
    """Everything as it will be written: train of all corpora in turn, then val."""
    for split in SPLITS:
        for corpus, first_input in zip(corpora, _first_inputs(corpora), strict=True):
            yield from _stream(corpus, split, side, first_input, output)


def _stream(corpus: Corpus, name: SplitName, side: str, first_input: int, output: Output) -> Iterator[_Chunk]:
    if name not in corpus.splits:
        return
    split = corpus.splits[name]
    moves = side != corpus.eot_side
    shift = shift_of(corpus, split, side) if moves else 0
    wanted = (moves and not shift) or output.index or output.format.needs_ends
    move = Mover(corpus, split, side) if moves and not shift else None
    scans = wanted and move is None and split.ends is None  # the marks are seen in what is copied anyway
    ends = Window(split.document_ends() if wanted and not scans else iter(()))
    places = _place_reader(corpus, name, first_input)
    at = number = 0
    for start in range(0, len(split), _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, len(split))
        chunk = read_shifted(split, start, stop, shift)
        origin = split.origin(start + shift, stop + shift) if move is None and output.dtype == split.dtype else None
        last = at + len(chunk) == len(split)
        if scans:
            inside = split.ends_among(chunk, side, first=at == 0, last=last)
        else:
            inside = ends.until(at + len(chunk)) - at
        at += len(chunk)
        where, number = places(number, len(inside)), number + len(inside)
        if move is not None:
            chunk, inside = move(chunk, inside, last=last)
        tokens = chunk.astype(output.dtype, copy=False)
        yield _Chunk(split=name, tokens=tokens, ends=inside, places=where, origin=origin)


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


def _inputs(corpus: Corpus) -> listing.Inputs:
    return corpus.manifest.job.get("inputs", []) if corpus.manifest else []


def _all_inputs(corpora: list[Corpus]) -> listing.Inputs:
    """The inputs of all of them as the manifest has them."""
    every = [_inputs(corpus) for corpus in corpora]
    count, sizes = sum(map(listing.count, every)), [listing.total_bytes(inputs) for inputs in every]
    if count <= listing.MOST:
        return [json.loads(line) for line in _input_lines(corpora)]
    known = [size for size in sizes if size is not None]
    return listing.summary(_input_lines(corpora), count, sum(known) if len(known) == len(sizes) else None)


def _list_inputs(corpora: list[Corpus], files: OutputFiles) -> None:
    """Many inputs have a file of their own."""
    if sum(listing.count(_inputs(corpus)) for corpus in corpora) > listing.MOST:
        for some in listing.in_pieces(_input_lines(corpora)):
            files.append(listing.NAME, some)


def _input_lines(corpora: list[Corpus]) -> Iterator[bytes]:
    for corpus in corpora:
        yield from corpus.input_lines()


def _first_inputs(corpora: list[Corpus]) -> list[int]:
    """The number that the first input of each has among all of them."""
    firsts, total = [], 0
    for corpus in corpora:
        firsts.append(total)
        total += listing.count(_inputs(corpus))
    return firsts


def _job(corpora: list[Corpus], output: Output, side: str, made_by: str) -> dict[str, Any]:
    """What decides the bytes, as the manifest and the journal have it."""
    first = corpora[0].manifest
    job = first.job if first else {"choices": {}, "tokenizer_sha256": None, "vocabulary_size": None}
    choices = {
        **job["choices"],
        "format": output.format.name,
        "shard_tokens": output.shard_tokens,
        "sample_tokens": output.shape.sample_tokens,
        "index": output.index,
        "provenance": output.index and output.provenance,
        "eot": side,
    }
    if made_by == "convert" and is_one_stream(corpora[0]):
        choices["split"] = "first-shard"
    return {
        **job,
        "choices": choices,
        "inputs": _all_inputs(corpora),
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
