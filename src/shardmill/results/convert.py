"""Outputs → one output: merged, or in another format, without tokenizing again."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from shardmill.documents import rejects
from shardmill.errors import InputError, OutputError, UsageError
from shardmill.formats import registry
from shardmill.formats.output_files import OutputFiles, syncing
from shardmill.formats.registry import Format, Output
from shardmill.formats.shards import SPLITS, Shape, TokenType
from shardmill.formats.writer import FormatWriter
from shardmill.inputs.input_files import InputFiles, Strings
from shardmill.io import storage
from shardmill.io.lock import locked
from shardmill.io.reading import ahead
from shardmill.job import destination as destinations
from shardmill.job.destination import local
from shardmill.job.notes import too_many_files
from shardmill.record import input_list, journal, manifest
from shardmill.record.journal import Journal, Unfinished
from shardmill.record.manifest import Counts, Manifest, Text
from shardmill.record.untrusted import brief
from shardmill.results.corpus import Corpus, open_corpus
from shardmill.results.eot import ORDERS, cuts_of, everything, rows_files, stream_order
from shardmill.results.foreign import open_claimed
from shardmill.spec import Claims, Dtype, OutputFormat, Target
from shardmill.system.names import show

if TYPE_CHECKING:
    from shardmill.results.parquet import ParquetRows

_REJECTS_BYTES = 1 << 20
Report = Callable[[int, int], None]
"""Called with the bytes of tokens written, and how many there will be."""


def convert(
    source: str | Path,
    target: Target,
    *,
    from_format: OutputFormat | None = None,
    from_dtype: Dtype = "auto",
    eot_id: int | None = None,
    on_progress: Report | None = None,
) -> Manifest:
    """Write an output, or files of another program, in another format, without tokenizing again.

    For files of another program that do not say it themselves: from_format and from_dtype are the format and the width
    of their integers, and eot_id is the end-of-text token that separates documents.

    >>> made = shardmill.convert("data", shardmill.Target(output="data-megatron", format="megatron"))
    >>> made.job["made_by"]
    'convert'
    """
    claims = Claims(from_format=from_format, from_dtype=from_dtype, eot_id=eot_id)
    return _write([open_claimed(source, claims)], target, "convert", on_progress)


def merge(sources: Sequence[str | Path], target: Target, *, on_progress: Report | None = None) -> Manifest:
    """Join outputs of the same tokenizer and format: all train tokens in the order given, then all val tokens.

    >>> made = shardmill.merge(["data", "data"], shardmill.Target(output="data-twice"))
    >>> len(made.job["made_of"])
    2
    """
    corpora = [open_corpus(source) for source in sources]
    if not corpora:
        raise UsageError("nothing to merge; name at least one output folder")
    for corpus in corpora[1:]:
        _refuse_unlike(corpora[0], corpus)
    return _write(corpora, target, "merge", on_progress)


def _refuse_unlike(first: Corpus, other: Corpus) -> None:
    """An error if two outputs cannot be merged, with the command that makes them alike, if there is one."""
    ours, theirs = _identity(first), _identity(other)
    unlike = {name: f"{brief(ours[name])} and {brief(theirs[name])}" for name in ours if ours[name] != theirs[name]}
    if not unlike:
        return
    eot = "" if first.eot_side == other.eot_side else f" --eot {first.eot_side}"
    remedy = f"Convert the second first: shardmill convert {show(other.folder)} -o NEW --format {first.format} --dtype {first.dtype.name}{eot}"
    if unlike.keys() & {"tokenizer", "SHA-256 of the tokenizer", "vocabulary"}:
        remedy = "The same id means different text in them: prepare one again with the other's --tokenizer."
    raise UsageError(
        f"{show(other.folder)} cannot be merged with {show(first.folder)}; they differ in\n  "
        + "\n  ".join(f"{name}: {values}" for name, values in unlike.items())
        + f"\n{remedy}"
    )


def _identity(corpus: Corpus) -> dict[str, Any]:
    """What outputs must have in common to be merged."""
    job = corpus.manifest.job
    return {
        "tokenizer": job["choices"].get("tokenizer"),
        "SHA-256 of the tokenizer": job.get("tokenizer_sha256"),
        "vocabulary": job.get("vocabulary_size"),
        "format": corpus.format,
        "dtype": corpus.dtype.name,
        "end-of-text": f"{corpus.eot_side}, id {corpus.eot_id}",
    }


def _write(corpora: list[Corpus], target: Target, made_by: str, on_progress: Report | None) -> Manifest:
    found, folder = registry.get(target.format or corpora[0].format), Path(target.output)
    output = _output(corpora, found, target)
    side = _side(corpora[0], found, target)
    for corpus in corpora:
        for unknown in _unknown_about(corpus, output, side):
            raise UsageError(unknown)
        if folder.exists() and folder.resolve() == Path(corpus.folder).resolve():
            raise UsageError(f"{show(folder)}: is also the source; choose another output folder with -o")
    job = _job(corpora, output, side, made_by)
    counts = sum((corpus.manifest.counts for corpus in corpora), Counts())
    tokens = sum(corpus.tokens for corpus in corpora)
    if reason := too_many_files(output.shard_tokens, tokens):
        raise UsageError(reason)
    total, done = tokens * output.dtype.itemsize, 0
    listed = corpora[0].sidecar("token-bytes") if found.described else None
    table = listed.read(0, listed.size) if listed is not None else None
    with locked(folder):
        if (complete := _make_room(target, found, job, output.bytes_of(tokens, counts.documents))) is not None:
            return complete
        log = Journal(folder, Unfinished(overwrites=target.overwrite))
        files = OutputFiles(folder, {}, drop_behind=storage.worth_dropping(total))
        try:
            log.begin(job)
            writer = _writer(output, files)
            with syncing(files) if target.sync else contextlib.nullcontext(lambda _: None) as written:
                for split, ids, ends, provenance in ahead(everything(corpora, side, output)):
                    writer.append(split, ids, ends, provenance)
                    written(ids.nbytes)
                    done += ids.nbytes
                    if on_progress is not None:
                        on_progress(done, total)
            writer.finish()
            if found.described:
                _copy_lists(corpora, files)
            made = Manifest(
                job=job,
                dtype=output.dtype.name,
                eot_id=corpora[0].eot_id if side != "none" else None,
                eot_side=side,
                counts=counts,
                files=writer.shards(),
                sidecars=writer.sidecars(),
                text=_text(corpora, side),
            ).with_table(table)
            files.seal(sync=target.sync)
            files.publish()
        except BaseException:
            files.abandon()
            log.remove()
            raise
        log.close()
        if found.described:
            destinations.conclude(local(folder), made, {"made_by": made_by}, table)
        else:
            journal.discard(folder)
    return made


def _writer(output: Output, files: OutputFiles) -> "FormatWriter | ParquetRows":
    if output.format.name != "parquet":
        return FormatWriter(output, files)
    from shardmill.results.parquet import ParquetRows  # pyarrow takes as long to import as all the rest

    return ParquetRows(output, files)


def _make_room(target: Target, found: Format, job: dict[str, Any], needed: int) -> Manifest | None:
    """Remove what is to be replaced; or return the manifest, if exactly this was done already."""
    folder, left, ours = Path(target.output), None, False
    if not target.overwrite:
        left = journal.read(folder)
        complete = destinations.completed(local(folder), job, InputFiles())
        if complete is not None:
            destinations.tidy(local(folder), found)
            return complete
        ours = left is not None and not manifest.differences(left.job, job)  # left by a kill: start again
    if left is not None and not ours:
        raise OutputError(
            f"{show(folder)}: holds an unfinished job; finish it, pass --overwrite to replace it, or choose another folder with -o"
        )
    replaces = target.overwrite or ours
    free = storage.free_bytes(folder) + (destinations.replaced_bytes(folder, found) if replaces else 0)
    if needed > free:
        raise OutputError(
            f"{show(folder)}: the result takes {needed:,} bytes, and {free:,} are free on this disk; free some, or choose another disk with -o"
        )
    destinations.make_room(local(folder), found, overwrite=replaces)
    return None


def _output(corpora: list[Corpus], found: Format, target: Target) -> Output:
    first = corpora[0]
    same, choices = found.name == first.format, first.manifest.job["choices"]
    tokenizer = str(choices.get("tokenizer", "unknown tokenizer"))
    if found.name == "parquet":
        return _rows(found, target, tokenizer)
    before = choices if same else {}
    shard_tokens = target.shard_tokens or (before.get("shard_tokens") if target.sample_tokens is None else None)
    registry.refuse_unfit(found, target.eot or "auto", shard_tokens, target.sample_tokens)
    dtype = _dtype(first, found, target, tokenizer)
    sample_tokens = target.sample_tokens or before.get("sample_tokens")
    return Output(
        format=found,
        shape=registry.choose_shape(found, dtype, shard_tokens, sample_tokens),
        index=target.index or (same and all(corpus.manifest.job["choices"].get("index") for corpus in corpora)),
        provenance=all(corpus.sidecar("places", name) for corpus in corpora for name in SPLITS if name in corpus),
        tokenizer=tokenizer,
        sources=Strings(path for corpus in corpora for path in corpus.sources) if found.needs_places else (),
    )


def _rows(found: Format, target: Target, tokenizer: str) -> Output:
    """Parquet: one row per document, or with sample_tokens one row per that many tokens."""
    if target.dtype != "auto" or target.index:
        raise UsageError("--format parquet: ids are int32, and rows say where documents end; drop --dtype and --index")
    dtype = registry.choose_dtype(found, 0, tokenizer, "auto")
    shard, sample = target.shard_tokens or found.shard_tokens, target.sample_tokens
    shape = Shape(dtype=dtype, shard_tokens=shard, sample_tokens=sample)
    return Output(format=found, shape=shape, index=sample is None, tokenizer=tokenizer)


def _dtype(corpus: Corpus, found: Format, target: Target, tokenizer: str) -> TokenType:
    """As asked for, else as in the source, else as the vocabulary needs it in this format."""
    vocabulary = corpus.manifest.job.get("vocabulary_size")
    keeps = target.dtype == "auto" and found.name == corpus.format
    if vocabulary is not None and not keeps:
        return registry.choose_dtype(found, int(vocabulary), tokenizer, target.dtype)
    narrow = target.dtype == "uint16" or (target.dtype == "auto" and corpus.dtype.itemsize == 2)
    if not narrow and found.only_uint16:
        raise UsageError(
            f"--format {found.name}: the tokens would be uint32, but {found.only_uint16}; pass --dtype uint16 if every id is below 65,536, or choose another format"
        )
    return np.dtype("<u2" if narrow else "<u4")


def _side(corpus: Corpus, found: Format, target: Target) -> str:
    """The side of end-of-text tokens: as asked for, else unchanged within a format, else as the format has it."""
    if target.eot is not None:
        return target.eot
    if corpus.eot_side == "none" and found.needs_eot and not corpus.foreign:
        raise UsageError(
            f"{show(corpus.folder)} has no end-of-text tokens, and {found.trainer} needs them: {found.needs_eot}; prepare it again with --format {found.name}"
        )
    stays = corpus.eot_side == "none" or found.name in (corpus.format, "parquet")
    return corpus.eot_side if stays else found.eot_side


def _unknown_about(corpus: Corpus, output: Output, side: str) -> Iterator[str]:
    """What must be known about documents and the corpus does not say, and what to do instead."""
    moves = side != corpus.eot_side
    if moves and corpus.eot_id is None:
        yield f"{show(corpus.folder)}: the end-of-text token is unknown, so it cannot be moved from {corpus.eot_side} to {side}; name it with --eot-id, or keep it where it is with --eot {corpus.eot_side}"
    if moves and any(split.cuts for split in corpus.values()):
        yield f"{show(corpus.folder)}: is a merge of outputs whose first shard ends inside a document, so end-of-text tokens cannot be moved from {corpus.eot_side} to {side}; convert those outputs first and merge the results, or keep the tokens where they are with --eot {corpus.eot_side}"
    divided = len(corpus) > 1 and bool(corpus.manifest.counts.passages)
    if divided and moves and side != "none":
        yield f"{show(corpus.folder)}: holds running text divided between train and val, and which of them has the {'end' if side == 'after' else 'beginning'} of a document is unknown, so end-of-text tokens cannot be moved from {corpus.eot_side} to {side}; keep them where they are with --eot {corpus.eot_side}, or prepare it again in that format"
    if not (moves or output.format.needs_ends or output.index):
        return
    why = "end-of-text tokens are to be moved" if moves else f"--format {output.format.name} needs them"
    for split in corpus.values():
        if rows_files(corpus, split) or split.ends is not None:
            continue
        if not split.knows_documents:
            yield f"{show(corpus.folder)}: the document boundaries in {split.name} are unknown (there is neither an index nor end-of-text tokens), and {why}. Prepare it again with --index, or for files of another program pass --eot-id"
        if divided and not moves:
            yield f"{show(corpus.folder)}: holds running text divided between train and val, where only one of them has the end-of-text token of a document; without an index the document boundaries in {split.name} are unknown, and {why}. Prepare it again with --index"


def _copy_lists(corpora: list[Corpus], files: OutputFiles) -> None:
    """The inputs, if there are too many for the manifest, and the rejects of all sources."""
    count = sum(input_list.count(corpus.inputs) for corpus in corpora)
    input_list.write_list(files, _input_lines(corpora), count)
    for corpus in corpora:
        for listed in corpus.manifest.sidecars:
            if listed.kind == "rejects" and (file := corpus.sidecar("rejects")) is not None:
                if file.size != listed.bytes:
                    raise InputError(
                        f"{show(file.path)}: has {file.size:,} bytes, and the manifest says {listed.bytes:,}"
                    )
                for at in range(0, listed.bytes, _REJECTS_BYTES):
                    files.append(rejects.NAME, memoryview(file.read(at, min(_REJECTS_BYTES, listed.bytes - at))))


def _text(corpora: list[Corpus], side: str) -> Text | None:
    """How much text the splits hold; None: a source does not say it, or a token moves from one split to the other."""
    known = [corpus.manifest.text for corpus in corpora if corpus.manifest.text is not None]
    moved = any(stream_order(corpus) is not None and corpus.eot_side != side for corpus in corpora)
    return None if moved or len(known) < len(corpora) else functools.reduce(operator.add, known)


def _input_lines(corpora: list[Corpus]) -> Iterator[bytes]:
    return (line for corpus in corpora for line in corpus.input_lines())


def _all_inputs(corpora: list[Corpus]) -> input_list.Inputs:
    """The inputs of all sources, as the manifest has them."""
    count = sum(input_list.count(corpus.inputs) for corpus in corpora)
    sizes = [input_list.total_bytes(corpus.inputs) for corpus in corpora]
    known = [size for size in sizes if size is not None]
    return input_list.in_manifest(_input_lines(corpora), count, sum(known) if len(known) == len(sizes) else None)


def _job(corpora: list[Corpus], output: Output, side: str, made_by: str) -> dict[str, Any]:
    """What decides the bytes, as the manifest and the journal have it."""
    job = corpora[0].manifest.job
    choices = {
        **_choices(corpora),
        "format": output.format.name,
        "shard_tokens": output.shard_tokens,
        "sample_tokens": output.shape.sample_tokens,
        "index": output.index,
        "provenance": output.index and output.provenance,
        "eot": side,
    }
    in_order = choices.get("split") in ORDERS
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
    """The choices that all sources share; limits are added up, since together they hold at most that much."""
    every = [corpus.manifest.job["choices"] for corpus in corpora]
    same = {name: value for name, value in every[0].items() if all(name in e and e[name] == value for e in every)}
    for limit in ("limit_documents", "limit_tokens"):
        if limit in every[0]:
            same[limit] = sum(choices.get(limit) or 0 for choices in every) or None
    return same


def _cuts(corpora: list[Corpus]) -> dict[str, list[int]]:
    """Where in each split of a merge a source begins or ends inside a document."""
    found: dict[str, list[int]] = {}
    for name in SPLITS:
        base = 0
        for corpus in corpora:
            found.setdefault(name, []).extend(base + cut for cut in cuts_of(corpus, name))
            base += len(corpus[name]) if name in corpus else 0
    return {name: sorted(set(cuts)) for name, cuts in found.items() if cuts}


def _fingerprint(corpus: Corpus) -> str:
    """The checksum of an output's manifest; of foreign files, that of their names and sizes."""
    if not corpus.foreign:
        return xxhash.xxh3_64_hexdigest(corpus.manifest.to_json())
    files = [f"{file.file.name} {file.tokens}" for split in corpus.values() for file in split.files]
    return xxhash.xxh3_64_hexdigest("\n".join(files).encode())
