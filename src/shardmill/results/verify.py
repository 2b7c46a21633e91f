"""A finished output folder → what is wrong with it, if anything.

verify       checks every file against the manifest; with sources, also that the tokens are those of the text
_check_file  size, checksums segment by segment, and ids within the vocabulary, in one pass
_Comparison  takes the milled Blocks of the sources and compares them with what is in the files
"""

import bisect
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from shardmill.documents import rejects
from shardmill.documents.pieces import BEGINNING
from shardmill.errors import InputError, MismatchError, OutputError, UsageError
from shardmill.formats import registry
from shardmill.formats.output_files import SEGMENT_BYTES
from shardmill.formats.shards import SPLITS, Shard, SidecarFile, SplitName, Tokens
from shardmill.inputs.find import find_inputs
from shardmill.io import storage
from shardmill.io.fileset import FileSet, open_fileset
from shardmill.io.http_reader import RemoteReader
from shardmill.io.reading import InputReader, Reader
from shardmill.io.retry import NotFound
from shardmill.job.block import Milled
from shardmill.job.job import Job, choose_splitter, describe, make_job
from shardmill.job.truncate import Truncation
from shardmill.job.workers import mill_blocks
from shardmill.record import input_list, journal, manifest
from shardmill.record.manifest import Counts, Manifest
from shardmill.results import corpus, document_index
from shardmill.spec import Limits, Spec
from shardmill.system.names import is_url, show
from shardmill.tokens.check import Checker
from shardmill.tokens.tokenizer import ENCODINGS, Tokenizer, load

_CHUNK_BYTES = 4 << 20
_MOST_PROBLEMS = 100
# Where the reference does not do it all, comparing with it may take this share of the CPU time.
CHECKED_SHARE = 0.15

How = Literal["sample", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong: in which file, where, and what."""

    file: str
    what: str
    byte: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was checked, and every problem that was found, up to a hundred."""

    output: Path | str
    problems: tuple[Problem, ...]
    files: int = 0
    bytes: int = 0
    tokens: int = 0
    source_bytes: int | None = None
    """How much text was milled again and compared; None: no sources were given."""
    reference_bytes: int | None = None
    """How much of it by the reference tokenizer."""

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    output: str | Path,
    *,
    sources: Sequence[str] = (),
    how: How = "sample",
    tokenizer: str | None = None,
    limits: Limits | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Check a finished output folder against its manifest, and with sources against the text it was made of.

    how: all text is milled again and compared; "sample" checks some of it with the reference tokenizer too, at hashed
    places, "all" does it all with the reference. tokenizer: where the tokenizer.json is, if one was used.
    on_progress(done, total) is called with bytes.
    """
    folder: Path | str = str(output) if is_url(str(output)) else Path(output)
    limits = limits or Limits()
    limits = dataclasses.replace(limits, engine="reference") if how == "all" else limits
    try:
        fileset = open_fileset(folder, limits.network_seconds)
        made = manifest.of(fileset)
    except (NotFound, OutputError) as e:
        return Verified(output=folder, problems=(Problem(file=manifest.NAME, what=str(e)),))
    folder = fileset.folder
    if made is None:
        return Verified(output=folder, problems=(Problem(file=manifest.NAME, what=_without_manifest(fileset)),))
    report = on_progress or (lambda _done, _total: None)
    problems: list[Problem] = []
    listed: list[Shard | SidecarFile] = [*made.files, *made.sides]
    total, done = sum(file.bytes for file in listed), 0
    for file in listed:
        problems += _check_file(fileset, made, file, lambda read: report(done + read, total))  # noqa: B023
        done += file.bytes
    problems += _check_counts(made)
    problems += _check_rejects(fileset, made) + _check_ends(fileset, made) if not problems else []
    problems += _check_others(fileset, made)
    checked = Verified(
        output=folder, problems=tuple(problems[:_MOST_PROBLEMS]), files=len(listed), bytes=total, tokens=made.tokens
    )
    if not sources or problems:
        return checked
    return _verify_source(checked, fileset, made, sources, tokenizer, limits, report)


def _without_manifest(fileset: FileSet) -> str:
    if fileset.size(journal.NAME) is not None:
        return "there is none, since the job is not finished; run its command again, and it goes on where it stopped"
    return "there is none, so this is not a finished result of shardmill"


def _check_file(
    fileset: FileSet, made: Manifest, file: Shard | SidecarFile, report: Callable[[int], None]
) -> list[Problem]:
    name, size = file.name, fileset.size(file.name)
    here = fileset.folder / name if isinstance(fileset.folder, Path) else None
    linked = here is not None and (here.is_symlink() or (here.parent != fileset.folder and here.parent.is_symlink()))
    if size is None or linked:
        there = here is not None and here.exists()
        return [Problem(file=name, what="is not a regular file" if there else "the file is missing")]
    problems = []
    item = np.dtype(made.dtype).itemsize
    if size != file.bytes:
        less = "fewer" if size < file.bytes else "more"
        problems.append(
            Problem(
                file=name,
                byte=min(size, file.bytes),
                what=f"has {size:,} bytes, {abs(size - file.bytes):,} {less} than the {file.bytes:,} that were written",
            )
        )
    adds_up = not isinstance(file, Shard) or file.bytes == file.offset + file.tokens * item
    if not adds_up or len(file.checksums) != -(-file.bytes // SEGMENT_BYTES):
        return [*problems, Problem(file=manifest.NAME, what=f"what it says of {name} does not add up")]
    with fileset.open(name) as reader:
        return problems + list(_check_segments(reader, made, file, report))


def _check_segments(
    reader: Reader, made: Manifest, file: Shard | SidecarFile, report: Callable[[int], None]
) -> Iterator[Problem]:
    vocabulary = made.job["vocabulary_size"] if isinstance(file, Shard) else None
    header = file.offset if isinstance(file, Shard) else 0
    for number, expected in enumerate(file.checksums):
        start, end = number * SEGMENT_BYTES, min((number + 1) * SEGMENT_BYTES, file.bytes)
        found, largest = _scan(reader, start, end, header, np.dtype(made.dtype), report)
        if found != expected:
            what = f"bytes {start:,} to {end:,} are not what was written: the data is damaged"
            yield Problem(file=file.name, byte=start, what=what)
        elif isinstance(vocabulary, int) and largest >= vocabulary:
            what = f"has the id {largest:,} between bytes {start:,} and {end:,}, and the vocabulary ends at {vocabulary - 1:,}"
            yield Problem(file=file.name, byte=start, what=what)


def _scan(
    reader: Reader, start: int, end: int, header: int, dtype: np.dtype[Any], report: Callable[[int], None]
) -> tuple[str, int]:
    """The checksum of a segment as it is, however short it is, and its largest id."""
    checksum, largest = xxhash.xxh3_64(), -1
    for data, at in _chunks(reader, start, end):
        checksum.update(data)
        # Behind a header of any length, a token may lie in two chunks: its bytes are in the checksum.
        first = header - at if at < header else (header - at) % dtype.itemsize
        whole = len(data) - (len(data) - first) % dtype.itemsize
        if whole > first:
            largest = max(largest, int(np.frombuffer(data[first:whole], dtype).max()))
        report(at + len(data))
    return checksum.hexdigest(), largest


def _chunks(reader: Reader, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    at = start
    while at < end and (data := reader.read(at, min(_CHUNK_BYTES, end - at))):
        yield data, at
        at += len(data)
        reader.done_until(at)


def _check_counts(made: Manifest) -> list[Problem]:
    """What the manifest says must add up (I6)."""
    counts, expected = made.counts, input_list.total_bytes(made.job["inputs"])
    found = []
    # Of what was merged, the choices are those of the first; any of them may have been limited.
    less = _is_limited(made) or made.job.get("made_by") == "merge"
    if expected is not None and (counts.input_bytes > expected if less else counts.input_bytes != expected):
        found.append(f"its inputs have {expected:,} bytes together, and {counts.input_bytes:,} were read")
    if counts.documents_val > _written(counts) or counts.passages_val > counts.passages:
        found.append(f"its counts of documents and passages do not add up: {counts}")
    return [Problem(file=manifest.NAME, what=what) for what in found]


def _is_limited(made: Manifest) -> bool:
    return any(made.job["choices"].get(name) for name in ("limit_documents", "limit_tokens"))


def _written(counts: Counts) -> int:
    return counts.documents - counts.documents_empty - counts.documents_rejected - counts.documents_unsampled


def _check_rejects(fileset: FileSet, made: Manifest) -> list[Problem]:
    """rejects.jsonl must list what was left out. Older versions did not always, and handed it on to no other output."""
    if made.format == 1:
        return []
    side = next((side for side in made.sides if side.kind == "rejects"), None)
    try:
        listed = 0 if side is None else _listed_rejects(fileset, side)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        return [Problem(file=rejects.NAME, what=f"has a line that is not a reject of shardmill ({show(str(e))})")]
    what = f"lists {listed:,} documents, and {made.counts.rejected:,} were rejected"
    return [Problem(file=rejects.NAME, what=what)] if listed != made.counts.rejected else []


def _listed_rejects(fileset: FileSet, side: SidecarFile) -> int:
    """A line is about one document, or as many records as it says."""
    listed, rest = 0, b""
    with fileset.open(side.name) as reader:
        for data, _ in _chunks(reader, 0, side.bytes):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _CHUNK_BYTES:
                raise ValueError("it is too long")
            listed += sum(int(json.loads(line)["records"]) if b'"records":' in line else 1 for line in lines)
    return listed + bool(rest)


def _check_ends(fileset: FileSet, made: Manifest) -> list[Problem]:
    """Where there is an index: documents end in order, within the tokens, the last with them, and are as many as were written."""
    expected = _documents(made)
    try:
        for split in corpus.corpus_of(fileset).splits.values():
            if split.ends is not None:
                last = max((int(some[-1]) for some in document_index.chunks(split.ends) if len(some)), default=0)
                count, wanted = document_index.count_of(split.ends), expected.get(split.name)
                what = ""
                if last != len(split):
                    what = f"the last document ends at token {last:,}, and {split.name} has {len(split):,}"
                elif wanted not in (None, count):
                    what = f"has {count:,} documents, and {wanted:,} were written to {split.name}"
                if what:
                    return [Problem(file=split.ends[-1].file.name, what=what)]
    except (InputError, OutputError, UsageError) as e:
        return [Problem(file=manifest.NAME, what=str(e))]
    return []


def _documents(made: Manifest) -> dict[str, int]:
    """How many documents each split has, where it is certain: each is in one split, and none is empty or cut off."""
    counts, choices = made.counts, made.job["choices"]
    mode, found = choices.get("split"), registry.FORMATS.get(choices.get("format", ""))
    by_hash = mode == "hash" or (mode == "auto" and found is not None and not found.first_shard_is_val)
    parted = counts.passages or counts.passages_rejected or counts.passages_unsampled
    if made.job.get("made_by") or _is_limited(made) or not by_hash or parted or made.eot_side == "none":
        return {}
    return {"train": _written(counts) - counts.documents_val, "val": counts.documents_val}


def _check_others(fileset: FileSet, made: Manifest) -> list[Problem]:
    """Files that are no part of the result, and that a trainer which reads all files of the format would read too."""
    form = registry.FORMATS.get(made.job["choices"].get("format", ""))
    listed = {file.name for file in made.files} | {side.name for side in made.sides}
    problems = []
    for name in fileset.names() if form is not None else ():
        bare = name.removesuffix(storage.PARTIAL)
        if name not in listed and form is not None and (form.owns(bare) or bare in (rejects.NAME, input_list.NAME)):
            what = "is left of a job that did not end" if name != bare else "is no part of this result"
            problems.append(
                Problem(file=name, what=f"{what}, and a trainer may read it; remove it, or move it elsewhere")
            )
    return problems


def _verify_source(
    checked: Verified,
    fileset: FileSet,
    made: Manifest,
    sources: Sequence[str],
    tokenizer: str | None,
    limits: Limits,
    report: Callable[[int, int], None],
) -> Verified:
    """Mill the sources again, without writing, and compare."""
    if (how := made.job.get("made_by")) is not None:
        raise UsageError(
            f"{show(fileset.folder)}: was made of other outputs, by shardmill {how}, so it cannot be compared with text; verify those with --source, and this one without"
        )
    spec, vocabulary = _spec_of(made, sources, tokenizer)
    files = find_inputs(spec.inputs, network_seconds=limits.network_seconds, most_bytes=limits.most_memory())
    aside: dict[str, Any] = {"inputs": None}
    changed = manifest.differences({**made.job, **aside}, {**describe(spec, files, vocabulary), **aside})
    changed += input_list.changes(fileset, made.job["inputs"], files, paths=False)
    if changed:
        problem = Problem(file="source", what="is not what the result was made of: " + "; ".join(changed[:5]))
        return dataclasses.replace(checked, problems=(problem,))
    job = make_job(spec, files, vocabulary, limits)
    job = dataclasses.replace(job, checker=Checker(job.engines, CHECKED_SHARE, ~spec.seed))  # in other places
    splitter = choose_splitter(job, None, lambda _: None, lambda _: None)
    comparison = _Comparison(fileset, made, job)
    try:
        mill_blocks(
            job,
            splitter,
            BEGINNING,
            0,
            comparison.write,
            lambda: report(comparison.input_bytes, job.total_bytes),
        )
        comparison.finish()
        problems: tuple[Problem, ...] = ()
    except _Different as e:
        problems = (e.problem,)
    except MismatchError as e:
        problems = (Problem(file="source", what=str(e)),)
    finally:
        comparison.close()
    by_reference = comparison.input_bytes if job.engines.guard is None else comparison.checked_bytes
    return dataclasses.replace(
        checked, problems=problems, source_bytes=comparison.input_bytes, reference_bytes=by_reference
    )


def _spec_of(made: Manifest, sources: Sequence[str], tokenizer: str | None) -> tuple[Spec, Tokenizer]:
    """The Spec that the manifest tells of. A path in a manifest may be a stranger's, so none is opened."""
    try:
        choices = dict(made.job["choices"])
        name = tokenizer or str(choices["tokenizer"])
        if tokenizer is None and name not in ENCODINGS:
            raise UsageError(
                f"the result was made with the tokenizer {show(name)}; say with --tokenizer where it is now, so that the source can be compared"
            )
        found = load(name)
        spec = Spec(**{**choices, "tokenizer": choices["tokenizer"], "inputs": tuple(sources), "output": "verify"})
    except (KeyError, TypeError, ValueError) as e:
        raise OutputError(f"{manifest.NAME}: does not tell how the result was made ({type(e).__name__}: {e})") from e
    return spec, dataclasses.replace(found, name=str(choices["tokenizer"]))


class _Different(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class _Comparison:
    """Reads the files along with the milled Blocks, and raises at the first token that differs."""

    def __init__(self, fileset: FileSet, made: Manifest, job: Job) -> None:
        self._truncation = Truncation(job, 0, 0, 0)
        self.input_bytes = self.checked_bytes = 0
        self._dtype = np.dtype(made.dtype)
        self._streams = {split: _Stream(fileset, made, split) for split in SPLITS}
        self._first = self._streams["val"].tokens if job.writes.first_shard_is_val else 0
        self._val = False

    def write(self, milled: Milled) -> bool:
        milled = self._truncation.take(milled)
        for run in milled.runs:
            self._val = self._val if run.val is None else run.val
            tokens = run.tokens
            if (room := self._first - self._streams["val"].at) > 0:  # the first shard is the validation set
                self._compare("val", tokens[:room])
                tokens = tokens[room:]
            self._compare("val" if self._val else "train", tokens)
        self.input_bytes += milled.counts.input_bytes
        self.checked_bytes += milled.checked_bytes
        return not self._truncation.full

    def finish(self) -> None:
        for stream in self._streams.values():
            if stream.at != stream.tokens:
                what = f"goes on after token {stream.at:,} of {stream.split}, where the text ends"
                raise _Different(Problem(file=stream.file, what=what))

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _compare(self, split: SplitName, tokens: Tokens) -> None:
        stream = self._streams[split]
        begin = stream.at
        there = stream.read(len(tokens))
        same = min(len(there), len(tokens))
        unequal = np.flatnonzero(there[:same] != tokens[:same])
        if len(unequal) or same < len(tokens):
            first = int(unequal[0]) if len(unequal) else same
            found = f"{there[first]:,}" if first < len(there) else "missing"
            file, byte = stream.place(begin + first)
            what = f"token {begin + first:,} of {split} is {found}, and the text gives {tokens[first]:,}"
            raise _Different(Problem(file=file, byte=byte, what=what))


class _Stream:
    """The tokens of one split in order, whatever files they are in."""

    def __init__(self, fileset: FileSet, made: Manifest, split: SplitName) -> None:
        self.split = split
        self.at = 0
        self._fileset, self._dtype = fileset, np.dtype(made.dtype)
        self._shards = [file for file in made.files if file.split == split]
        self._ends = list(itertools.accumulate(shard.tokens for shard in self._shards))
        self.tokens = self._ends[-1] if self._ends else 0
        self._open: tuple[int, InputReader | RemoteReader] | None = None

    @property
    def file(self) -> str:
        return self.place(max(0, self.at - 1))[0]

    def place(self, token: int) -> tuple[str, int | None]:
        """The file and the byte where a token stands."""
        number = bisect.bisect_right(self._ends, token)
        if number >= len(self._shards):
            return (self._shards[-1].name if self._shards else self.split), None
        shard = self._shards[number]
        return shard.name, shard.offset + (token - self._ends[number] + shard.tokens) * self._dtype.itemsize

    def read(self, count: int) -> Tokens:
        """The next tokens, fewer only where there are no more."""
        found: list[Tokens] = []
        while count and self.at < self.tokens:
            number = bisect.bisect_right(self._ends, self.at)
            some = min(count, self._ends[number] - self.at)
            offset = self.place(self.at)[1]
            assert offset is not None
            data = self._reader(number).read(offset, some * self._dtype.itemsize)
            found.append(np.frombuffer(data, self._dtype))
            self.at, count = self.at + some, count - some
        return np.concatenate(found) if found else np.empty(0, self._dtype)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _reader(self, number: int) -> InputReader | RemoteReader:
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, self._fileset.open(self._shards[number].name)
        return self._open[1]
