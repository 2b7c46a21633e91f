"""Outputs → one output: merged, or in another format, without encoding anything again."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardmill.documents import rejects
from shardmill.errors import InputError, OutputError, UsageError
from shardmill.formats import registry
from shardmill.formats.output_files import OutputFiles, Syncing
from shardmill.formats.registry import Format, Output
from shardmill.formats.shards import SPLITS, TokenType
from shardmill.formats.writer import FormatWriter
from shardmill.inputs.input_files import InputFiles, Strings
from shardmill.io import storage
from shardmill.io.fileset import StoredFile
from shardmill.io.lock import locked
from shardmill.io.reading import ahead
from shardmill.job import output_folder as folders
from shardmill.record import input_list, journal, manifest
from shardmill.record.journal import Journal
from shardmill.record.manifest import Counts, Manifest
from shardmill.results.corpus import Corpus, open_corpus
from shardmill.results.eot import cuts_of, everything, places_file, rows_files, stream_order
from shardmill.results.foreign import Claims, check_claims, open_foreign
from shardmill.spec import Dtype
from shardmill.system.names import is_url, show

_REJECTS_BYTES = 1 << 20
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
    dtype: Dtype = "auto"
    """The integers to write. Narrower ones than the source has: if every id fits, which is seen while copying."""
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
    folder, claims, far = Path(source), claims or Claims(), is_url(str(source))
    if far and claims.format is not None:
        raise UsageError(
            f"{show(str(source))}: files that another program made are read from a disk; download them first"
        )
    if not far and (claims.format is not None or (folder.is_dir() and not (folder / manifest.NAME).exists())):
        corpus = open_foreign(folder, claims)
    else:
        corpus = _as_claimed(open_corpus(source), claims)
    return _write([corpus], target, "convert", on_progress)


def _as_claimed(corpus: Corpus, claims: Claims) -> Corpus:
    """An output of ours tells all itself; but one without end-of-text tokens may get some, if the user says which."""
    check_claims(corpus.folder, corpus.dtype, claims)
    assert corpus.manifest is not None
    size = corpus.manifest.job.get("vocabulary_size")
    if claims.eot_id in (None, corpus.eot_id):
        return corpus
    if corpus.eot_side != "none" or (size is not None and claims.eot_id >= size):
        raise UsageError(
            f"--eot-id {claims.eot_id:,}: the manifest in {show(corpus.folder)} says end-of-text {corpus.eot_side}, id {corpus.eot_id}, and a vocabulary of {size}; leave it out"
        )
    return dataclasses.replace(corpus, eot_id=claims.eot_id)


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
        _refuse_what_is_not_known(corpus, output, side)
        if target.output.exists() and target.output.resolve() == Path(corpus.folder).resolve():
            raise UsageError(f"{show(target.output)}: is the source too; choose another output folder with -o")
    job = _job(corpora, output, side, made_by)
    tokens = sum(corpus.tokens for corpus in corpora)
    total, done = tokens * output.dtype.itemsize, 0
    needed = output.bytes_of(tokens, sum(corpus.manifest.counts.documents for corpus in corpora if corpus.manifest))
    with locked(target.output):
        if (complete := _make_room(target, found, job, needed)) is not None:
            return complete
        log = Journal(target.output, overwrites=target.overwrite)
        files = OutputFiles(target.output, {}, drop_behind=storage.worth_dropping(total))
        try:
            log.begin(job)
            writer = FormatWriter(output, files)
            with Syncing(files, wanted=target.sync) as syncing:
                for chunk in ahead(everything(corpora, side, output)):
                    writer.copy(chunk.split, chunk.tokens, chunk.ends, chunk.places, chunk.origin)
                    syncing.written(chunk.tokens.nbytes)
                    done += chunk.tokens.nbytes
                    if on_progress is not None:
                        on_progress(done, total)
            writer.finish()
            _list_inputs(corpora, files)
            _list_rejects(corpora, files)
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
            f"{show(output)}: the result takes {needed:,} bytes, and {free:,} are free on this disk; free some, or choose another disk with -o"
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
    dtype = _dtype(first, found, target, name)
    provenance = all(places_file(corpus, split) for corpus in corpora for split in corpus.splits)
    return Output(
        format=found,
        shape=registry.choose_shape(found, dtype, asked, sample),
        first_shard_is_val=False,
        index=target.index or (same and all(_has_index(corpus) for corpus in corpora)),
        provenance=provenance,
        tokenizer=name,
        sources=Strings(path for corpus in corpora for path in corpus.sources) if found.sides == "olmo" else (),
    )


def _dtype(corpus: Corpus, found: Format, target: Target, tokenizer: str) -> TokenType:
    """The integers to write: those asked for, else those of the source, else what the vocabulary needs in this format."""
    vocabulary = corpus.manifest.job.get("vocabulary_size") if corpus.manifest else None
    keeps = target.dtype == "auto" and found.name == corpus.format.name
    if vocabulary is not None and not keeps:
        return registry.choose_dtype(found, int(vocabulary), tokenizer, target.dtype)
    narrow = target.dtype == "uint16" or (target.dtype == "auto" and corpus.dtype.itemsize == 2)
    if not narrow and found.only_uint16:
        raise UsageError(
            f"--to {found.name}: the tokens would be uint32, but {found.only_uint16}; pass --dtype uint16 if every id is below 65,536, or choose another format"
        )
    return np.dtype("<u2" if narrow else "<u4")


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


def _refuse_what_is_not_known(corpus: Corpus, output: Output, side: str) -> None:
    moves = side != corpus.eot_side
    if moves and corpus.eot_id is None:
        raise UsageError(
            f"{show(corpus.folder)}: which token ends a text is not known, so it cannot be moved from {corpus.eot_side} to {side}; say it with --eot-id, or keep it with --eot {corpus.eot_side}"
        )
    if moves and any(split.cuts for split in corpus.splits.values()):
        raise UsageError(
            f"{show(corpus.folder)}: was merged of outputs that were cut inside a document, where their first shard ends, and end-of-text tokens are to be moved from {corpus.eot_side} to {side}; convert those outputs first and merge the results, or keep the tokens where they are with --eot {corpus.eot_side}"
        )
    parted = len(corpus.splits) > 1 and corpus.manifest is not None and bool(corpus.manifest.counts.passages)
    if parted and moves and side != "none":
        raise UsageError(
            f"{show(corpus.folder)}: holds running text that was parted between train and val, and which of them has the {'end' if side == 'after' else 'beginning'} of a document is not known, so its end-of-text token cannot be moved from {corpus.eot_side} to {side}; keep it with --eot {corpus.eot_side}, or make it again in that format"
        )
    if not (moves or output.format.needs_ends or output.index):
        return
    why = "end-of-text tokens are to be moved" if moves else f"--format {output.format.name} needs them"
    for split in corpus.splits.values():
        if rows_files(corpus, split.name) or split.ends is not None:
            continue
        if not split.knows_documents:
            raise UsageError(
                f"{show(corpus.folder)}: where documents end in {split.name} is not known (there is no index, and no end-of-text token marks them), and {why}. Make it again with --index, or for files of another program say --eot-id"
            )
        if parted and not moves:
            raise UsageError(
                f"{show(corpus.folder)}: holds running text that was parted between train and val, where only one of them has the end-of-text token of a document; where they end in {split.name} is not known without an index, and {why}. Make it again with --index"
            )


def _has_index(corpus: Corpus) -> bool:
    return corpus.manifest is not None and any(side.name.endswith(".ends") for side in corpus.manifest.sides)


def _inputs(corpus: Corpus) -> input_list.Inputs:
    return corpus.manifest.job.get("inputs", []) if corpus.manifest else []


def _all_inputs(corpora: list[Corpus]) -> input_list.Inputs:
    """The inputs of all of them as the manifest has them."""
    every = [_inputs(corpus) for corpus in corpora]
    count, sizes = sum(map(input_list.count, every)), [input_list.total_bytes(inputs) for inputs in every]
    if count <= input_list.MOST:
        return [json.loads(line) for line in _input_lines(corpora)]
    known = [size for size in sizes if size is not None]
    return input_list.summary(_input_lines(corpora), count, sum(known) if len(known) == len(sizes) else None)


def _list_inputs(corpora: list[Corpus], files: OutputFiles) -> None:
    """Many inputs have a file of their own."""
    if sum(input_list.count(_inputs(corpus)) for corpus in corpora) > input_list.MOST:
        for some in input_list.in_pieces(_input_lines(corpora)):
            files.append(input_list.NAME, some)


def _list_rejects(corpora: list[Corpus], files: OutputFiles) -> None:
    """What was left out of the sources is left out of the result: one list after the other."""
    for corpus in corpora:
        listed = (
            next((side for side in corpus.manifest.sides if side.kind == "rejects"), None) if corpus.manifest else None
        )
        if listed is None or corpus.fileset is None:
            continue
        file = StoredFile(fileset=corpus.fileset, name=listed.name)
        if file.size != listed.bytes:
            raise InputError(f"{show(file.path)}: has {file.size:,} bytes, and the manifest says {listed.bytes:,}")
        for at in range(0, listed.bytes, _REJECTS_BYTES):
            files.append(rejects.NAME, memoryview(file.read(at, min(_REJECTS_BYTES, listed.bytes - at))))


def _input_lines(corpora: list[Corpus]) -> Iterator[bytes]:
    for corpus in corpora:
        yield from corpus.input_lines()


def _job(corpora: list[Corpus], output: Output, side: str, made_by: str) -> dict[str, Any]:
    """What decides the bytes, as the manifest and the journal have it."""
    first = corpora[0].manifest
    job = first.job if first else {"choices": {}, "tokenizer_sha256": None, "vocabulary_size": None}
    choices = {
        **_choices(corpora),
        "format": output.format.name,
        "shard_tokens": output.shard_tokens,
        "sample_tokens": output.shape.sample_tokens,
        "index": output.index,
        "provenance": output.index and output.provenance,
        "eot": side,
    }
    in_order = choices.get("split") in ("first-shard", "head", "tail")
    if made_by == "convert" and not in_order and stream_order(corpora[0]) is not None:
        choices["split"] = "first-shard"
    elif made_by == "merge" and in_order:
        choices["split"] = "auto"  # val is the beginning or end of each source, not of all together
    cuts = _cuts(corpora) if made_by == "merge" else job.get("cuts")
    return {
        **{name: value for name, value in job.items() if name != "cuts"},
        **({"cuts": cuts} if cuts else {}),
        "choices": choices,
        "inputs": _all_inputs(corpora),
        "made_by": made_by,
        "made_of": [_fingerprint(corpus) for corpus in corpora],
    }


def _choices(corpora: list[Corpus]) -> dict[str, Any]:
    """What all sources were made with; of limits the sum, since together they hold at most that much."""
    every = [corpus.manifest.job["choices"] if corpus.manifest else {} for corpus in corpora]
    same = {name: value for name, value in every[0].items() if all(name in e and e[name] == value for e in every)}
    for limit in ("limit_documents", "limit_tokens"):
        if limit in every[0]:
            same[limit] = sum(choices.get(limit) or 0 for choices in every) or None
    return same


def _cuts(corpora: list[Corpus]) -> dict[str, list[int]]:
    """Where in each split of a merge a source begins or ends that was cut there inside a document."""
    found: dict[str, list[int]] = {}
    for name in SPLITS:
        base = 0
        for corpus in corpora:
            found.setdefault(name, []).extend(base + cut for cut in cuts_of(corpus, name))
            base += len(corpus.splits[name]) if name in corpus.splits else 0
    return {name: sorted(set(cuts)) for name, cuts in found.items() if cuts}


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
