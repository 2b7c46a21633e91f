"""A finished job → notes: what its user should know about the result."""

from shardmill.documents import rejects
from shardmill.formats import registry
from shardmill.formats.shards import SPLITS
from shardmill.job.estimate import separator_hint
from shardmill.job.job import Job
from shardmill.record.manifest import Manifest


def notes_on(job: Job, made: Manifest) -> tuple[str, ...]:
    notes = [job.engines.note] if job.engines.note else []
    if (hint := separator_hint(job)) is not None:
        notes.append(hint)
    if job.rules.separator is not None and job.plain and made.counts.documents <= len(job.files):
        notes.append(f"the separator {job.spec.separator!r} does not occur in the text; each file is one document")
    counts = made.counts
    why = (
        "because exact cuts are not known for this tokenizer"
        if job.tokenizer.family == "unknown"
        else f"in text without an exact cut for {job.spec.max_run_bytes:,} bytes"
    )
    counted = {
        f"{counts.forced_cuts:,} cuts were forced {why}; tokens there may differ from the reference's": counts.forced_cuts,
        f"{counts.replaced_characters:,} replacement characters (U+FFFD) stand for bytes that are not UTF-8": counts.replaced_characters,
        f"skipped {counts.documents_rejected:,} bad of {counts.documents:,} documents; see {rejects.NAME}": counts.documents_rejected,
        f"skipped {counts.passages_rejected:,} bad passages of running text; see {rejects.NAME}": counts.passages_rejected,
    }
    notes += [sentence for sentence, count in counted.items() if count]
    if job.val_fraction and not any(file.split == "val" for file in made.files):
        notes.append("there is no validation set: too few different documents or passages for this --val-fraction")
    notes += _without_samples(made, job.writes.shape.sample_tokens or 0)
    if job.writes.first_shard_is_val and not any(file.split == "train" for file in made.files):
        notes.append(
            f"there is no train shard: all {made.tokens:,} tokens fit into the first shard, which is the validation set; pass a smaller --shard-tokens, or --split hash"
        )
    return tuple(notes)


def notes_on_files(made: Manifest) -> tuple[str, ...]:
    """What a trainer would trip over in files that merge or convert made."""
    choices, splits = made.job["choices"], {file.split for file in made.files}
    found = registry.get(choices["format"])
    notes = _without_samples(made, choices.get("sample_tokens") or 0)
    if found.name == "nanogpt" and made.dtype == "uint32":
        notes.append(
            "the tokens are uint32, and nanoGPT's own train.py reads uint16; change np.uint16 in its get_batch to np.uint32, or convert with --dtype uint16 if every id is below 65,536"
        )
    if found.first_shard_is_val:
        notes += [
            f"there is no {split} shard, and {found.trainer} stops without one; make the source again with a validation set (--val-fraction), or give the trainer other files"
            for split in SPLITS
            if split not in splits
        ]
    return tuple(notes)


def _without_samples(made: Manifest, sample: int) -> list[str]:
    tokens = {split: sum(file.tokens for file in made.files if file.split == split) for split in SPLITS}
    return [
        f"{split} has {count:,} tokens, fewer than one sample of {sample:,} (--sample-tokens), so a trainer finds none in it; pass a larger --val-fraction, or a smaller --sample-tokens"
        for split, count in tokens.items()
        if 0 < count < sample
    ]
