"""A finished output → what is wrong with it, if anything.

verify       checks every file against the manifest; with sources, also the tokens against the text
_check_file  size, checksums segment by segment, and ids within the vocabulary, in one pass
_Comparison  takes the tokenized Blocks of the sources and compares them with the files
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardmill.documents import rejects
from shardmill.documents.pieces import BEGINNING, NOT_WRITTEN
from shardmill.errors import InputError, MismatchError, OutputError, UsageError
from shardmill.formats import registry
from shardmill.formats.output_files import SEGMENT_BYTES
from shardmill.formats.shards import Shard, SidecarFile, SplitName, Tokens, TokenType
from shardmill.inputs.choose import Chooser
from shardmill.inputs.find import find_inputs
from shardmill.io import storage
from shardmill.io.fileset import FileSet, StoredFile, open_fileset
from shardmill.io.reading import Reader
from shardmill.io.retry import NotFound
from shardmill.job.block import Milled
from shardmill.job.first_pass import LARGE_BYTES
from shardmill.job.job import Job, choose_splitter, describe, make_job
from shardmill.job.join import Join
from shardmill.job.truncate import Truncation
from shardmill.job.workers import mill_blocks
from shardmill.record import input_list, journal, manifest
from shardmill.record.manifest import Counts, Manifest
from shardmill.results import document_index
from shardmill.results.corpus import Corpus, TokenFile, corpus_of
from shardmill.results.eot import stream_order
from shardmill.spec import Limits, ReferenceShare, Spec
from shardmill.system.names import is_url, show
from shardmill.tokens.check import Checker
from shardmill.tokens.token_bytes import read_token_bytes
from shardmill.tokens.tokenizer import Tokenizer

_CHUNK_BYTES = 4 << 20
_MOST_PROBLEMS = 100
# The share of the CPU time that comparing with the reference tokenizer may take, unless it does everything.
CHECKED_SHARE = 0.15
Listed = Shard | SidecarFile
Report = Callable[[int], None]
"""Called with how many bytes of a file were checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong: in which file, at which byte, and what."""

    file: str
    what: str
    byte: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was checked, and the problems that were found, at most a hundred."""

    output: Path | str
    problems: tuple[Problem, ...]
    files: int = 0
    bytes: int = 0
    tokens: int = 0
    source_bytes: int | None = None
    """How much text was tokenized again and compared; None: no sources were given."""
    reference_bytes: int | None = None
    """How much of it with the reference tokenizer."""

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    output: str | Path,
    *,
    sources: Sequence[str | Path] = (),
    reference: ReferenceShare = "sample",
    tokenizer: str | None = None,
    limits: Limits | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Check a finished output against its manifest, and with sources against the text it was made of.

    All of the sources is tokenized again and compared: with the fast engine, and "sample" of it or "all" of it with the
    reference tokenizer. tokenizer is the path of the tokenizer.json, if one was used. on_progress(done, total) gets bytes.

    >>> shardmill.verify("data", sources=["corpus/"]).ok
    True
    """
    folder: Path | str = str(output) if is_url(output) else Path(output)
    limits = limits or Limits()
    limits = replace(limits, engine="reference") if reference == "all" else limits
    try:
        fileset = open_fileset(folder, limits.network_seconds)
        made, folder = manifest.of(fileset), fileset.folder
    except (NotFound, OutputError) as e:
        return Verified(output=folder, problems=(Problem(file=manifest.NAME, what=str(e)),))
    if made is None:
        what = "there is none: this is not a finished result of shardmill"
        if fileset.size(journal.NAME) is not None:
            what = "there is none: the job is not finished; run its command again to resume it"
        return Verified(output=folder, problems=(Problem(file=manifest.NAME, what=what),))
    report = on_progress or (lambda _done, _total: None)
    listed: list[Listed] = [*made.files, *made.sidecars]
    total, done = sum(file.bytes for file in listed), 0
    problems: list[Problem] = []
    for file in listed:
        problems += _check_file(fileset, made, file, lambda read: report(done + read, total))  # noqa: B023
        done += file.bytes
    problems += _check_counts(made)
    corpus: Corpus | None = None
    if not problems:
        try:
            corpus = corpus_of(fileset, tokenizer)
            problems += [*_check_rejects(fileset, made), *_check_ends(corpus)]
            problems += [*_check_offsets(corpus), *_check_text(corpus)] if not problems else []
        except (InputError, OutputError, UsageError) as e:
            problems.append(Problem(file=manifest.NAME, what=str(e)))
    problems += _check_others(fileset, made)
    shown = tuple(problems[:_MOST_PROBLEMS])
    checked = Verified(output=folder, problems=shown, files=len(listed), bytes=total, tokens=made.tokens)
    if not sources or problems or corpus is None:
        return checked
    return _verify_source(checked, corpus, sources, limits, report)


def _check_file(fileset: FileSet, made: Manifest, file: Listed, report: Report) -> Iterator[Problem]:
    name, size = file.name, fileset.size(file.name)
    here = fileset.folder / name if isinstance(fileset.folder, Path) else None
    linked = here is not None and (here.is_symlink() or (here.parent != fileset.folder and here.parent.is_symlink()))
    if size is None or linked:
        there = here is not None and here.exists()
        yield Problem(file=name, what="is not a regular file" if there else "the file is missing")
        return
    if size != file.bytes:
        less = "fewer" if size < file.bytes else "more"
        what = f"has {size:,} bytes, {abs(size - file.bytes):,} {less} than the {file.bytes:,} that were written"
        yield Problem(file=name, byte=min(size, file.bytes), what=what)
    item = np.dtype(made.dtype).itemsize
    adds_up = not isinstance(file, Shard) or file.bytes == file.offset + file.tokens * item
    if not adds_up or len(file.checksums) != -(-file.bytes // SEGMENT_BYTES):
        yield Problem(file=manifest.NAME, what=f"its numbers for {name} do not add up")
        return
    with fileset.open(name) as reader:
        yield from _check_segments(reader, made, file, report)


def _check_segments(reader: Reader, made: Manifest, file: Listed, report: Report) -> Iterator[Problem]:
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


def _scan(reader: Reader, start: int, end: int, header: int, dtype: TokenType, report: Report) -> tuple[str, int]:
    """The checksum of a segment as it is, even if it is short, and its largest id."""
    checksum, largest, at = xxhash.xxh3_64(), -1, start
    while at < end and (data := reader.read(at, min(_CHUNK_BYTES, end - at))):
        checksum.update(data)
        # After a header of any length, a token may lie in two chunks: the checksum covers its bytes.
        first = header - at if at < header else (header - at) % dtype.itemsize
        whole = len(data) - (len(data) - first) % dtype.itemsize
        if whole > first:
            largest = max(largest, int(np.frombuffer(data[first:whole], dtype).max()))
        at += len(data)
        report(at)
        reader.done_until(at)
    return checksum.hexdigest(), largest


def _check_counts(made: Manifest) -> Iterator[Problem]:
    """What the manifest counts must add up (I6)."""
    counts, expected = made.counts, input_list.total_bytes(made.job["inputs"])
    # A merge has the choices that all its sources share; any of them may have been limited.
    limited = _is_limited(made) or made.job.get("made_by") == "merge"
    if expected is not None and (counts.input_bytes > expected if limited else counts.input_bytes != expected):
        what = f"its inputs have {expected:,} bytes together, and {counts.input_bytes:,} were read"
        yield Problem(file=manifest.NAME, what=what)
    if counts.documents_val > _written(counts) or counts.passages_val > counts.passages:
        yield Problem(file=manifest.NAME, what=f"its counts of documents and passages do not add up: {counts}")


def _is_limited(made: Manifest) -> bool:
    return any(made.job["choices"].get(name) for name in ("limit_documents", "limit_tokens"))


def _written(counts: Counts) -> int:
    left_out: list[int] = [getattr(counts, name) for name in NOT_WRITTEN]
    return counts.documents - sum(left_out)


def _check_rejects(fileset: FileSet, made: Manifest) -> Iterator[Problem]:
    """rejects.jsonl must list every reject. Format 1 did not always, and merge and convert did not copy it."""
    if made.format == 1:
        return
    try:
        listed = sum(_listed_rejects(fileset, side) for side in made.sidecars if side.kind == "rejects")
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        yield Problem(file=rejects.NAME, what=f"has a line that is not a reject of shardmill ({show(str(e))})")
        return
    if listed != made.counts.rejected:
        what = f"lists {listed:,} documents, and {made.counts.rejected:,} were rejected"
        yield Problem(file=rejects.NAME, what=what)


def _listed_rejects(fileset: FileSet, side: SidecarFile) -> int:
    """A line is about one document, or as many records as it says."""
    lines = StoredFile(fileset=fileset, name=side.name).lines()
    return sum(int(json.loads(line)["records"]) if b'"records":' in line else 1 for line in lines)


def _check_ends(corpus: Corpus) -> Iterator[Problem]:
    """In an index, documents end in order and within the tokens, the last with them, and none is missing."""
    expected = _documents(corpus)
    for split in corpus.values():
        if split.ends is not None:
            file, count = split.ends[-1].file.name, document_index.count_of(split.ends)
            last = max((int(some[-1]) for some in document_index.chunks(split.ends) if len(some)), default=0)
            if last != len(split):
                what = f"the last document ends at token {last:,}, and {split.name} has {len(split):,}"
                yield Problem(file=file, what=what)
            elif (wanted := expected.get(split.name, count)) != count:
                yield Problem(file=file, what=f"has {count:,} documents, and {wanted:,} were written to {split.name}")


def _check_offsets(corpus: Corpus) -> Iterator[Problem]:
    """document_offsets.npy says the same as the index."""
    for split in corpus.values():
        file = corpus.sidecar("offsets", split.name)
        if file is None or split.ends is None:
            continue
        count = document_index.count_of(split.ends)
        at, same = 0, file.size == registry.NPY_BYTES + 8 * (count + 1)
        header = registry.npy_header(count + 1, "<i8") + bytes(8)
        for expected in itertools.chain([header], (some.tobytes() for some in document_index.chunks(split.ends))):
            same, at = same and file.read(at, len(expected)) == expected, at + len(expected)
        if not same:
            yield Problem(file=file.name, what=f"does not say what {split.ends[-1].file.name} says")


def _check_text(corpus: Corpus) -> Iterator[Problem]:
    """The bytes of the tokens are the bytes of the text that was written, unless the tokenizer may change it."""
    text, table = corpus.manifest.text, corpus.sidecar("token-bytes")
    if text is None or table is None or text.rule == "unknown":
        return
    sizes = read_token_bytes(table.read(0, table.size), table.path)
    if len(sizes) != corpus.manifest.job.get("vocabulary_size"):
        yield Problem(file=table.name, what=f"has {len(sizes):,} entries, and the vocabulary has another size")
        return
    for name, split in corpus.items():
        written = text.train if name == "train" else text.val
        found = sum(int(sizes.take(tokens).sum(dtype=np.int64)) for tokens in split.chunks())
        exact = text.rule == "exact"  # else ▁ before documents is counted too, and one in the text as one byte
        if found != written.bytes if exact else not found - written.documents <= written.bytes <= 3 * found:
            what = f"its tokens stand for {found:,} bytes of text, and {written.bytes:,} were written"
            yield Problem(file=split.files[0].file.name, what=what)


def _documents(corpus: Corpus) -> dict[str, int]:
    """The number of documents in each split, where it is certain: each is in one split, none is empty or cut off."""
    made, counts = corpus.manifest, corpus.manifest.counts
    divided = stream_order(corpus) or counts.passages or counts.passages_rejected or counts.passages_unsampled
    if made.job.get("made_by") or _is_limited(made) or divided or made.eot_side == "none":
        return {}
    return {"train": _written(counts) - counts.documents_val, "val": counts.documents_val}


def _check_others(fileset: FileSet, made: Manifest) -> Iterator[Problem]:
    """Stray files, which a trainer that reads all files of the format would read too."""
    form = registry.FORMATS.get(made.job["choices"].get("format", ""))
    listed = made.names
    for name in fileset.names() if form is not None else ():
        bare = name.removesuffix(storage.PARTIAL)
        if name not in listed and form is not None and form.owns(bare):
            what = "is left over from an unfinished job" if name != bare else "is not part of this result"
            yield Problem(file=name, what=f"{what}, and a trainer may read it; remove it, or move it elsewhere")


def _verify_source(
    checked: Verified, corpus: Corpus, sources: Sequence[str | Path], limits: Limits, report: Callable[[int, int], None]
) -> Verified:
    """Tokenize the sources again, without writing, and compare."""
    made, fileset = corpus.manifest, corpus.fileset
    if (how := made.job.get("made_by")) is not None:
        raise UsageError(
            f"{show(fileset.folder)}: was made from other outputs by shardmill {how}, so it cannot be compared with text; verify those with --source, and this one without"
        )
    spec, vocabulary = _spec_of(corpus, sources)
    chooser, most = Chooser(spec.include, spec.exclude), limits.most_memory()
    files = find_inputs(map(str, sources), chooser, network_seconds=limits.network_seconds, most_bytes=most)
    with files.opened:
        aside: dict[str, Any] = {"inputs": None}
        changed = manifest.differences({**made.job, **aside}, {**describe(spec, files, vocabulary), **aside})
        changed += input_list.changes(fileset, made.job["inputs"], input_list.describe(files), files, paths=False)
        if changed:
            problem = Problem(file="source", what="is not what the result was made from: " + "; ".join(changed[:5]))
            return replace(checked, problems=(problem,))
        job = make_job(spec, files, vocabulary, limits)
        checker = Checker(job.engines, CHECKED_SHARE, ~spec.seed)  # other samples than prepare
        job = replace(job, checker=checker)
        splitter = choose_splitter(job, None, lambda _: None, lambda _: None)
        comparison = _Comparison(corpus, job)
        problems: tuple[Problem, ...] = ()
        try:
            idle = lambda: report(comparison.input_bytes, job.total_bytes)  # noqa: E731
            mill_blocks(job, splitter, Join(BEGINNING), comparison.place, idle)
            comparison.finish()
        except _Different as e:
            problems = e.args
        except MismatchError as e:
            problems = (Problem(file="source", what=str(e)),)
        by_reference = comparison.input_bytes if job.engines.ours is None else comparison.checked_bytes
        return replace(checked, problems=problems, source_bytes=comparison.input_bytes, reference_bytes=by_reference)


def _spec_of(corpus: Corpus, sources: Sequence[str | Path]) -> tuple[Spec, Tokenizer]:
    """The Spec that the manifest records."""
    made = corpus.manifest
    if made.counts.passages and (made.format < 3 or (made.format < 4 and made.counts.input_bytes > LARGE_BYTES)):
        raise OutputError(
            f"{manifest.NAME}: an older version of shardmill made this result, and chose other passages of the text for validation, so it cannot be compared with its source; compare it with that version, or prepare it again"
        )
    try:
        choices = corpus.manifest.job["choices"]
        spec = Spec(**{**choices, "inputs": sources, "output": "verify"})
        return spec, replace(corpus.load_tokenizer(), name=choices["tokenizer"])
    except (KeyError, TypeError, ValueError) as e:
        raise OutputError(f"{manifest.NAME}: does not say how the result was made ({type(e).__name__}: {e})") from e


class _Different(Exception):
    """Its one argument is the Problem that was found."""


class _Comparison:
    """Reads the files along with the tokenized Blocks, and raises at the first token that differs."""

    def __init__(self, corpus: Corpus, job: Job) -> None:
        self._truncation = Truncation(job, 0, 0, 0)
        self.input_bytes = self.checked_bytes = 0
        self._corpus = corpus
        self._at: dict[SplitName, int] = {"train": 0, "val": 0}
        self._first = self._length("val") if job.writes.val_tokens else 0
        self._val = False

    def place(self, milled: Milled) -> tuple[bool, Callable[[], None]]:
        milled = self._truncation.take(milled)
        for run in milled.runs:
            self._val = self._val if run.val is None else run.val
            tokens = run.tokens
            if (room := self._first - self._at["val"]) > 0:  # the first shard is the validation set
                self._compare("val", tokens[:room])
                tokens = tokens[room:]
            self._compare("val" if self._val else "train", tokens)
        self.input_bytes += milled.counts.input_bytes
        self.checked_bytes += milled.checked_bytes
        return not self._truncation.full, lambda: None

    def finish(self) -> None:
        for split, at in self._at.items():
            if at < self._length(split):
                raise self._different(split, at, f"{split} continues after token {at:,}, where the text ends")

    def _compare(self, split: SplitName, tokens: Tokens) -> None:
        at = self._at[split]
        stop = min(at + len(tokens), self._length(split))
        found = self._corpus[split].read(at, stop) if stop > at else tokens[:0]
        unequal = np.flatnonzero(found != tokens[: len(found)])
        if len(unequal) or len(found) < len(tokens):
            first = int(unequal[0]) if len(unequal) else len(found)
            there = f"{found[first]:,}" if first < len(found) else "missing"
            what = f"token {at + first:,} of {split} is {there}, and the text gives {tokens[first]:,}"
            raise self._different(split, at + first, what)
        self._at[split] = stop

    def _length(self, split: SplitName) -> int:
        return len(self._corpus[split]) if split in self._corpus else 0

    def _different(self, split: SplitName, token: int, what: str) -> _Different:
        """With the file and the byte of the token; past the end, with the last file."""
        if token < self._length(split):
            file, number = self._corpus[split].locate(token)
            assert isinstance(file, TokenFile)
            byte = file.offset + number * self._corpus.dtype.itemsize
            return _Different(Problem(file=file.file.name, byte=byte, what=what))
        last = self._corpus[split].files[-1].file.name if split in self._corpus else split
        return _Different(Problem(file=last, what=what))
