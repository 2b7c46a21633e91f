"""A job → what its user should know: before the work, while it can still be changed, and about the result."""

from collections.abc import Callable
from typing import Protocol

from shardmill.documents import rejects
from shardmill.errors import InputError, UsageError
from shardmill.formats import registry
from shardmill.formats.registry import Format
from shardmill.formats.shards import SPLITS
from shardmill.inputs.choose import listed
from shardmill.io.reading import open_input
from shardmill.job.job import Job
from shardmill.record.manifest import Manifest
from shardmill.system.names import show

# More than this is hardly meant to be the validation set.
_MOST_VAL = 0.1
# Plain text has at most a token for each byte, and hardly ever less than one for eight.
_MOST_BYTES_PER_TOKEN = 8
_HINT_BYTES = 4 << 20
_HINT_LEAST = 3
_NOTHING_WANTED = "meets --where; check the names of its fields, and whether their values are numbers or text"
# Separators that are common in text files. The last is weak, so it must be frequent.
_LIKELY_SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>", "\n\n\n")


class Expected(Protocol):
    """How many tokens are expected, and at most."""

    @property
    def middle(self) -> int: ...

    @property
    def high(self) -> int: ...


def notes_before(job: Job, expect: Callable[[Job], Expected]) -> tuple[str, ...]:
    """What may make the user change the command. Raises UsageError if nothing would be left to train on.

    expect counts the tokens by samples, which takes a while: it is called only if they matter.
    """
    asked, rounded = job.spec.shard_tokens, job.writes.shard_tokens
    notes = [
        job.engines.note,
        job.budget.note,
        _separator_hint(job),
        *_about_files(job.writes.format, job.writes.dtype.name),
    ]
    if asked is not None and rounded != asked:
        notes.append(
            f"shards get {rounded:,} tokens instead of {asked:,}, since they hold whole samples of {job.writes.shape.sample_tokens:,} (--sample-tokens)"
        )
    if job.files.left_out:
        notes.append(f"left out: {listed(job.files.left_out)}; --include takes what its pattern matches")
    return tuple(note for note in (*notes, *_about_val(job, expect)) if note)


def _about_val(job: Job, expect: Callable[[Job], Expected]) -> list[str]:
    """Whether the validation set, or what is left to train on, will be too small."""
    if not job.files.known or job.spec.limit_tokens is not None or job.spec.limit_documents is not None:
        return []
    bounds = (job.total_bytes // _MOST_BYTES_PER_TOKEN, job.total_bytes)
    if job.plain and not any(_judge_val(job, tokens, tokens) for tokens in bounds):
        return []
    tokens = expect(job)
    if job.rules.where is not None and not tokens.high:
        return [f"no record of the samples {_NOTHING_WANTED}"]
    if job.writes.val_tokens > tokens.high:
        raise UsageError(
            f"--format {job.writes.format.name}: the input has at most about {tokens.high:,} tokens, and the first {job.writes.val_tokens:,} are the validation set: nothing would be left to train on. "
            f"Pass a smaller --val-tokens (say {max(1, tokens.middle // 100):,}) and --shard-tokens, or --split hash"
        )
    return _judge_val(job, tokens.middle, tokens.high)


def _judge_val(job: Job, total: int, most: int) -> list[str]:
    found, val, total = job.writes.format, job.writes.val_tokens, max(1, total)
    if val > _MOST_VAL * total:
        return [
            f"the first shard, {val:,} tokens, is the validation set: about {min(1.0, val / total):.0%} of the text; choose its length with --val-tokens, or pass a smaller --shard-tokens or --split hash"
        ]
    shard = job.writes.shard_tokens
    if shard and found.least_shards > 1 and most - val < shard:
        return [
            f"there will be one train shard, and {found.trainer} stops with fewer than {found.least_shards}; pass a smaller --shard-tokens, such as {max(1, total // 4):,}"
        ]
    few = job.val_fraction * most
    passages = job.plain and job.rules.separator is None  # of running text: one is enough
    if job.val_fraction and not passages and few < found.batch:
        return [_too_few("val", int(few), found, "about ")]
    return []


def _about_files(found: Format, dtype: str) -> list[str]:
    """What the trainer must be told about files of this type."""
    if found.name != "nanogpt" or dtype != "uint32":
        return []
    return [
        "the tokens are uint32, and nanoGPT's own train.py reads uint16; change np.uint16 in its get_batch to np.uint32, or choose a tokenizer with at most 65,536 tokens"
    ]


def _separator_hint(job: Job) -> str | None:
    """A note on text that looks like many documents in one file, if no separator was given."""
    if job.rules.separator is not None or not job.plain:
        return None
    file = job.files[int(job.files.sizes.argmax())]
    try:
        with open_input(file) as reader:
            head = reader.read(0, _HINT_BYTES)
    except InputError:  # the job reports it
        return None
    for separator in _LIKELY_SEPARATORS:
        count = head.count(separator.encode())
        if count >= (_HINT_LEAST if separator.strip() else 10 * _HINT_LEAST):
            written = separator.replace("\n", "\\n")
            part = "" if len(head) == file.size else f" in its first {len(head) >> 20} MiB"
            return f"{show(file.path)} contains '{written}' {count:,} times{part}, but is read as one document; if it separates documents, pass --separator '{written}'"
    return None


def notes_on(job: Job, made: Manifest) -> tuple[str, ...]:
    """What is to be known about the result."""
    notes, counts = [], made.counts
    if job.rules.separator is not None and job.plain and counts.documents <= len(job.files):
        notes.append(f"the separator {job.spec.separator!r} does not occur in the text; each file is one document")
    why = (
        "because exact cuts are not known for this tokenizer"
        if job.tokenizer.family == "unknown"
        else f"in text without an exact cut for {job.spec.max_run_bytes:,} bytes"
    )
    forced = counts.forced_cuts - job.rules.exact_border  # one was asked for
    counted = {
        f"{forced:,} cuts were forced {why}; tokens there may differ from the reference's": forced,
        f"{counts.replaced_characters:,} replacement characters (U+FFFD) stand for bytes that are not UTF-8": counts.replaced_characters,
        f"skipped {counts.documents_rejected:,} bad of {counts.documents:,} documents; see {rejects.NAME}": counts.documents_rejected,
        f"skipped {counts.passages_rejected:,} bad passages of running text; see {rejects.NAME}": counts.passages_rejected,
    }
    notes += [sentence for sentence, count in counted.items() if count]
    if counts.documents and counts.documents == counts.documents_filtered:
        notes.append(f"no record {_NOTHING_WANTED}")
    if job.val_fraction and not any(file.split == "val" for file in made.files):
        notes.append(
            f"there is no validation set: none of these documents or passages falls into a share of {job.val_fraction:g}; pass a larger --val-fraction"
        )
    notes += _short(made, job.writes.format, job.writes.shape.sample_tokens or 0)
    if job.writes.val_tokens and not any(file.split == "train" for file in made.files):
        notes.append(
            f"there is no train shard: all {made.tokens:,} tokens fit into the first shard, which is the validation set; pass a smaller --val-tokens or --shard-tokens, or --split hash"
        )
    return tuple(notes)


def notes_on_files(made: Manifest) -> tuple[str, ...]:
    """What a trainer would trip over in files that merge or convert made."""
    choices, splits = made.job["choices"], {file.split for file in made.files}
    found = registry.get(choices["format"])
    notes = _about_files(found, made.dtype) + _short(made, found, choices.get("sample_tokens") or 0)
    if found.first_shard_is_val:
        notes += [
            f"there is no {split} shard, and {found.trainer} stops without one; make the source again with a validation set (--val-fraction), or give the trainer other files"
            for split in SPLITS
            if split not in splits
        ]
    return tuple(notes)


def _short(made: Manifest, found: Format, sample: int) -> list[str]:
    """Files too short for the trainer."""
    notes = []
    for split in SPLITS:
        sizes = [file.tokens for file in made.files if file.split == split]
        if 0 < sum(sizes) < sample:
            notes.append(
                f"{split} has {sum(sizes):,} tokens, fewer than one sample of {sample:,} (--sample-tokens), so a trainer finds none in it; pass a smaller --sample-tokens{', or a larger --val-fraction' if split == 'val' else ''}"
            )
        elif sizes and sizes[-1] < found.batch and (split == "val" or found.name != "modded-nanogpt"):
            notes.append(_too_few(split if len(sizes) == 1 else f"the last shard of {split}", sizes[-1], found))
        if split == "train" and 0 < len(sizes) < found.least_shards:
            notes.append(
                f"there is one train shard, and {found.trainer} stops with fewer than {found.least_shards}; pass a smaller --shard-tokens"
            )
    return notes


def _too_few(what: str, tokens: int, found: Format, about: str = "") -> str:
    remedy = "give it more text"
    if what.endswith("val"):
        remedy = "make a larger one with --val-tokens" if found.first_shard_is_val else "pass a larger --val-fraction"
    elif found.sharded:
        remedy = "prepare it with another --shard-tokens"
    return f"{what} has {about}{tokens:,} tokens, and {found.trainer} takes {found.batch:,} at a time by default ({found.batch_name}), so it fails there; {remedy}, or make that smaller in the trainer"
