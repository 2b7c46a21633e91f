"""A job → what its user should know: before the work, while it can still be changed, and about the result."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from shardmill.documents import rejects
from shardmill.errors import InputError, UsageError
from shardmill.formats import registry
from shardmill.formats.registry import Format
from shardmill.formats.shards import SPLITS
from shardmill.inputs.choose import listed
from shardmill.job.intervals import Range
from shardmill.job.job import Job
from shardmill.record.manifest import Counts, Manifest
from shardmill.spec import WHOLE_FILE_BYTES
from shardmill.system.names import show

# More than this is hardly meant to be the validation set.
_MOST_VAL = 0.1
# With so many documents expected in val, there is none once in 150 times.
_SURE_VAL = 5
_SAFE_FOR_PIPES = 0.01
# A folder with more files is slow everywhere, and their names alone take much memory.
_MOST_FILES = 100_000
# Plain text has at most a token for each byte, and hardly ever less than one for eight.
_MOST_BYTES_PER_TOKEN = 8
_USUAL_BYTES_PER_TOKEN = 4
_NOTHING_WANTED = "meets --where; check the names of its fields, and whether their values are numbers or text"

Expected = tuple[Range, Range]
"""Documents and tokens."""


def notes_before(job: Job, expect: Callable[[], Expected]) -> tuple[str, ...]:
    """What may make the user change the command. Raises UsageError if the result would be of no use.

    expect counts documents and tokens by samples, which takes a while: it is called only if they matter.
    """
    return tuple(filter(None, (job.engines.note, job.budget.note, *_about_job(job), *_about_sizes(job, expect))))


def _about_job(job: Job) -> Iterator[str]:
    """What is known from the options and the list of inputs."""
    asked, rounded = job.spec.shard_tokens, job.writes.shard_tokens
    yield _separator_hint(job)
    yield from _about_files(job.writes.format, job.writes.dtype.name)
    if asked is not None and rounded != asked:
        yield f"shards get {rounded:,} tokens instead of {asked:,}, since they hold whole samples of {job.writes.shape.sample_tokens:,} (--sample-tokens)"
    if job.files.left_out:
        yield f"left out: {listed(job.files.left_out)}; --include takes what its pattern matches"
    if job.files.repeated:
        yield f"named more than once, and read once: {job.files.repeated}"


def _about_sizes(job: Job, expect: Callable[[], Expected]) -> Iterator[str]:
    """Whether files will be too short or too many for the trainer, or missing."""
    if not job.files.known:
        yield from _expected_short(job, 0, 1 << 62)
        yield from _about_pipe(job)
        return
    most = job.total_bytes
    bounds = [Range.exactly(tokens) for tokens in (most // _MOST_BYTES_PER_TOKEN, most)]
    if job.plain and not job.rules.limited and not any(_refusal(job, n) or any(_judge(job, n, n)) for n in bounds):
        return
    documents, tokens = expect()
    if tokens.high:
        if refusal := _refusal(job, tokens):
            raise UsageError(refusal)
        yield from _judge(job, documents, tokens)
    elif job.rules.where is not None:  # otherwise the job says why, unless nobody can know
        yield f"no record of the samples {_NOTHING_WANTED}"


def _refusal(job: Job, tokens: Range) -> str | None:
    found, val = job.writes.format, job.writes.val_tokens
    if val > tokens.high:
        enough = min(max(found.batch, tokens.middle // 100), tokens.middle // 2)
        return (
            f"--format {found.name}: the input has at most about {tokens.high:,} tokens, and the first {val:,} are the validation set: nothing would be left to train on. "
            f"Pass a smaller --val-tokens (say {max(1, enough):,}) and --shard-tokens, or --split hash"
        )
    return too_many_files(job.writes.shard_tokens, tokens.low)


def too_many_files(shard_tokens: int | None, tokens: int) -> str | None:
    """Why so many tokens cannot be cut into shards of this length."""
    files = tokens // shard_tokens if shard_tokens else 0
    if files <= _MOST_FILES:
        return None
    return f"--shard-tokens {shard_tokens:,}: makes {files:,} files of about {tokens:,} tokens, and a folder should have at most {_MOST_FILES:,}; pass at least {-(-tokens // _MOST_FILES):,}"


def _judge(job: Job, documents: Range, tokens: Range) -> Iterator[str]:
    writes, total = job.writes, max(1, tokens.middle)
    if writes.val_tokens > _MOST_VAL * total:
        yield f"the first shard, {writes.val_tokens:,} tokens, is the validation set: about {min(1.0, writes.val_tokens / total):.0%} of the text; choose its length with --val-tokens, or pass a smaller --shard-tokens or --split hash"
        return
    unit, name = total / max(1, documents.middle), "documents"
    if job.plain and job.rules.separator is None and job.total_bytes > WHOLE_FILE_BYTES * (len(job.files) - 1):
        unit, name = min(total, (job.rules.passage_bytes or 0) / _USUAL_BYTES_PER_TOKEN), "passages"
    notes = [*_none_in_limit(job, total / max(1, unit), name)]
    val = 0 if notes else job.val_fraction and math.ceil(max(job.val_fraction * tokens.high, unit))
    yield from _expected_short(job, int(val), tokens.high)
    yield from notes


def _none_in_limit(job: Job, units: float, name: str) -> Iterator[str]:
    """Whether all that is written before a limit may be train."""
    if not job.val_fraction or not job.rules.limited or job.split == "head":
        return
    if job.split == "tail":
        yield "--split tail takes the end of the input, and a limit stops before it, so there may be no validation set; leave --split out"
    elif job.val_fraction * units < _SURE_VAL:
        yield f"the limit is reached after about {math.ceil(units):,} {name}, and one in {1 / job.val_fraction:,.0f} is for validation, so there may be no validation set; pass a larger --val-fraction, such as {min(0.5, float(f'{2 * _SURE_VAL / units:.1g}')):g}"


def _about_pipe(job: Job) -> Iterator[str]:
    """A pipe is read once, so nobody can choose at least one of its documents."""
    if 0 < job.val_fraction < _SAFE_FOR_PIPES:
        yield f"a pipe is read once, so one document or passage in {1 / job.val_fraction:,.0f} is for validation as it comes, and a short one may have none; pass a larger --val-fraction, such as {_SAFE_FOR_PIPES:g}"


def refuse_nothing(job: Job, counts: Counts) -> None:
    """An error if --where or --sample left no document to write: most likely they are not what was meant."""
    unsampled = counts.documents_unsampled + counts.passages_unsampled
    left_out = [f"{counts.documents_filtered:,} filtered out by --where"] if counts.documents_filtered else []
    left_out += [f"{unsampled:,} not in the --sample"] if unsampled else []
    if left_out:
        whose = show(job.files[0].path) + (f" and {len(job.files) - 1:,} more" if len(job.files) > 1 else "")
        remedy = f"no record {_NOTHING_WANTED}" if counts.documents_filtered else "pass a larger --sample"
        raise InputError(f"{whose}: nothing is left to write ({', '.join(left_out)}); {remedy}")


def _about_files(found: Format, dtype: str) -> Iterator[str]:
    """What the trainer must be told about files of this type."""
    if found.name == "nanogpt" and dtype == "uint32":
        yield "the tokens are uint32, and nanoGPT's own train.py reads uint16; change np.uint16 in its get_batch to np.uint32, or choose a tokenizer with at most 65,536 tokens"


def _separator_hint(job: Job) -> str:
    """A note on text that looks like many documents in one file, if no separator was given."""
    if job.looks_separated is None:
        return ""
    file, (separator, count, length) = job.files.largest, job.looks_separated
    written = separator.replace("\n", "\\n")
    part = "" if length == file.size else f" in its first {length >> 20} MiB"
    return f"{show(file.path)} contains '{written}' {count:,} times{part}, but is read as one document; if it separates documents, pass --separator '{written}'"


def notes_on(job: Job, made: Manifest, told: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be known about the result, apart from what was told before the work with numbers that were expected."""
    known = set(map(gist, told))
    return tuple(note for note in _about_result(job, made) if gist(note) not in known)


def _about_result(job: Job, made: Manifest) -> Iterator[str]:
    counts = made.counts
    if job.rules.separator is not None and job.plain and counts.documents <= len(job.files):
        yield f"the separator {job.spec.separator!r} does not occur in the text; each file is one document"
    why = f"in text without an exact cut for {job.spec.max_run_bytes:,} bytes"
    if job.tokenizer.family == "unknown":
        why = "because exact cuts are not known for this tokenizer"
    if forced := counts.forced_cuts - job.rules.exact_border:  # one was asked for
        yield f"{forced:,} cuts were forced {why}; tokens there may differ from the reference's"
    if counts.replaced_characters:
        yield f"{counts.replaced_characters:,} replacement characters (U+FFFD) stand for bytes that are not UTF-8"
    if counts.documents_rejected:
        yield f"skipped {counts.documents_rejected:,} bad of {counts.documents:,} documents; see {rejects.NAME}"
    if counts.passages_rejected:
        yield f"skipped {counts.passages_rejected:,} bad passages of running text; see {rejects.NAME}"
    sizes = _sizes(made)
    if job.val_fraction and not sizes["val"]:
        yield f"there is no validation set: none of these documents or passages falls into a share of {job.val_fraction:g}; pass a larger --val-fraction"
    yield from _short(sizes, job.writes.format, job.writes.shape.sample_tokens or 0)
    if job.writes.val_tokens and not sizes["train"]:
        yield f"there is no train shard: all {made.tokens:,} tokens fit into the first shard, which is the validation set; pass a smaller --val-tokens or --shard-tokens, or --split hash"


def gist(note: str) -> str:
    """A note without its numbers."""
    return re.sub(r"(about )?[0-9][0-9,.]*", "", note)


def notes_on_files(made: Manifest) -> Iterator[str]:
    """What a trainer would trip over in files that merge or convert made."""
    choices, sizes = made.job["choices"], _sizes(made)
    found = registry.get(choices["format"])
    yield from _about_files(found, made.dtype)
    yield from _short(sizes, found, choices.get("sample_tokens") or 0)
    for split in [split for split in SPLITS if found.first_shard_is_val and not sizes[split]]:
        yield f"there is no {split} shard, and {found.trainer} stops without one; make the source again with a validation set (--val-fraction), or give the trainer other files"


def _sizes(made: Manifest) -> dict[str, list[int]]:
    return {split: [file.tokens for file in made.files if file.split == split] for split in SPLITS}


def _expected_short(job: Job, val: int, most: int) -> Iterator[str]:
    """As _short, for the files that so many tokens will fill; nobody knows how long the last one will be."""
    writes = job.writes
    val = writes.val_tokens or val
    train, shard = most - val, writes.shard_tokens or most
    sizes = {"train": [min(train, shard)] * (2 if train > shard else 1), "val": [min(val, shard)]}
    return _short(sizes, writes.format, writes.shape.sample_tokens or 0, "about ")


def _short(sizes: Mapping[str, Sequence[int]], found: Format, sample: int, about: str = "") -> Iterator[str]:
    """Files too short for the trainer, and too few of them."""
    for split, lengths in sizes.items():
        tokens = f"{about}{sum(lengths):,} tokens"
        if 0 < sum(lengths) < sample:
            yield f"{split} has {tokens}, fewer than one sample of {sample:,} (--sample-tokens), so a trainer finds none in it; pass a smaller --sample-tokens{', or a larger --val-fraction' if split == 'val' else ''}"
        elif sum(lengths) and lengths[-1] < found.batch and (split == "val" or found.name != "modded-nanogpt"):
            yield _too_few(split, lengths, found, about)
        if split == "train" and 0 < len(lengths) < found.least_shards:
            yield f"there is only one train shard, and {found.trainer} stops with fewer than {found.least_shards}; pass a smaller --shard-tokens, such as {max(1, sum(lengths) // 4):,}"


def _too_few(split: str, lengths: Sequence[int], found: Format, about: str) -> str:
    which, remedy = "", "give it more text"
    if len(lengths) > 1:
        which = "each shard of " if lengths[0] < found.batch else "the last shard of "
    if split == "val":
        remedy = "make a larger one with --val-tokens" if found.first_shard_is_val else "pass a larger --val-fraction"
    elif found.sharded:
        remedy = f"pass {'a larger' if which.startswith('each') else 'another'} --shard-tokens"
    return f"{which}{split} has {about}{lengths[-1]:,} tokens, and {found.trainer} takes {found.batch:,} at a time by default ({found.batch_name}), so it fails there; {remedy}, or make that smaller in the trainer"
