"""What the user asks for: Spec and Target decide the bytes of the result, Limits never changes them."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from shardmill.errors import UsageError
from shardmill.system import machine
from shardmill.system.names import is_url, show, without_secrets

Eot = Literal["auto", "after", "before", "none"]
EotSide = Literal["after", "before", "none"]
SplitMode = Literal["auto", "hash", "tail", "head", "first-shard", "nanogpt"]
Dtype = Literal["auto", "uint16", "uint32"]
OnError = Literal["stop", "skip", "replace"]
InputFormat = Literal["auto", "text", "jsonl", "parquet", "arrow", "csv", "tsv", "warc"]
Engine = Literal["auto", "native", "reference"]
ReferenceShare = Literal["sample", "all"]
# Names of the formats in formats/registry.py, which is too slow to import for --help.
OutputFormat = Literal[
    "nanogpt", "shards", "build-nanogpt", "llmc", "modded-nanogpt", "megatron", "datatrove", "olmo", "mds", "litdata"
]
TargetFormat = Literal[OutputFormat, "parquet"]
"""convert also writes rows for datasets of Hugging Face, which nothing here reads back."""

# Text without a single safe place to cut is cut by force after this many bytes. There must be a maximum: one such
# run costs tiktoken up to 68 times its size, tokenizers up to 211 times, and o200k's pattern fails in tiktoken
# on a million spaces.
MAX_RUN_BYTES = 512 << 10
BLOCK_BYTES, MOST_BLOCK_BYTES = 1 << 20, 8 << 20
# So much is taken at a time, if there is enough of it: with 1 MiB, JSON lines and separated text take 6 to 8 % more CPU
# time. Text that is decompressed waits in memory to be milled, so it is less.
_USUAL_BLOCK_BYTES, _PACKED_BLOCK_BYTES = 4 << 20, 2 << 20
# Running text goes to train or val in passages of about this size, some 16,000 tokens; small inputs in
# smaller ones, down to 16 KiB, so that a tenth of a small file is still several of them.
PASSAGE_BYTES = 64 << 10
VAL_FRACTION = 0.0005
# A file that is one document goes to train or val as a whole up to this size, and by passages beyond.
WHOLE_FILE_BYTES = 1 << 20
# A server that restarts or limits its callers is back within minutes.
NETWORK_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What to prepare: every choice that decides the bytes of the result (I1). The options of `shardmill prepare`.

    Equal Specs on equal inputs give equal files, on any machine and with any Limits.

    >>> spec = Spec(inputs=["book.txt", "corpus/"], output="data", tokenizer="cl100k_base", val_fraction=0.01)
    """

    inputs: Sequence[str | Path]
    """Files, folders, globs, URLs, @LIST or - for standard input; kept as a tuple of str."""
    output: str | Path
    tokenizer: str = "gpt2"
    separator: str | None = None
    """Text that ends a document. None: each file is one document."""
    eot: Eot = "auto"
    eot_token: str | None = None
    format: OutputFormat = "nanogpt"
    shard_tokens: int | None = None
    sample_tokens: int | None = None
    """The context length of the trainer, in formats whose shards hold whole samples."""
    dtype: Dtype = "auto"
    index: bool = False
    provenance: bool = False
    val_fraction: float = VAL_FRACTION
    val_tokens: int | None = None
    """Where the first shard is the validation set: its length. None: that of the others."""
    split: SplitMode = "auto"
    seed: int = 0
    include: Sequence[str] = ()
    """Take only files that match one of these patterns from folders and globs."""
    exclude: Sequence[str] = ()
    """Leave files out that match one of these."""
    where: Sequence[str] = ()
    """Conditions that the fields of a record must all meet: 'score >= 3', 'language in ("en", "de")'."""
    input_format: InputFormat = "auto"
    field: str = "text"
    """The JSON field or the column that holds the text; a.b is field b of field a."""
    on_error: OnError = "stop"
    sample: float | None = None
    limit_documents: int | None = None
    limit_tokens: int | None = None
    max_run_bytes: int = MAX_RUN_BYTES
    passage_bytes: int = PASSAGE_BYTES

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str):
            raise UsageError(
                f"inputs must be a list of paths, not the single string {self.inputs!r}; write [{self.inputs!r}]"
            )
        object.__setattr__(self, "inputs", tuple(str(path) for path in self.inputs))
        object.__setattr__(self, "output", str(self.output))
        _keep_as_tuples(self, "include", "exclude", "where")
        if not self.inputs:
            raise UsageError("no input given; name at least one text file, folder or glob")
        if not 0 <= self.val_fraction < 1:
            raise UsageError(
                f"--val-fraction {self.val_fraction:g}: is outside 0 ≤ f < 1; 0.0005 keeps one document in 2,000 for validation, 0 writes no val file"
            )
        if self.separator == "":
            raise UsageError("--separator: is empty; leave it out to make each file one document")
        if not self.field:
            raise UsageError("--field: is empty; name the JSON field or column that holds the text, such as text")
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UsageError(
                f"--sample {self.sample:g}: is outside 0 < s ≤ 1; 0.1 keeps about a tenth of the documents"
            )
        if not 8 <= self.passage_bytes <= self.max_run_bytes // 2:
            raise UsageError(
                f"passage_bytes {self.passage_bytes:,} must be at least 8 and at most half of max_run_bytes, {self.max_run_bytes:,}"
            )
        _check_choices(self)
        _check_positive(
            self,
            shard_tokens="; most trainers use 100M",
            sample_tokens="; pass the context length of the model",
            val_tokens="; pass --val-fraction 0 to have no validation set",
            limit_documents="; leave it out to prepare everything",
            limit_tokens="; leave it out to prepare everything",
        )

    def choices(self) -> dict[str, Any]:
        """The Spec as the manifest records it: without inputs and output; null for an empty list."""
        choices = {name: value for name, value in asdict(self).items() if name not in ("inputs", "output")}
        return {name: list(value) or None if isinstance(value, tuple) else value for name, value in choices.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What merge and convert write. None: as in the first source.

    >>> target = Target(output="data-megatron", format="megatron")
    """

    output: str | Path
    """A folder on this machine."""
    format: TargetFormat | None = None
    eot: EotSide | None = None
    shard_tokens: int | None = None
    sample_tokens: int | None = None
    dtype: Dtype = "auto"
    """Width of the token ids. Narrower than the source's only if every id fits, which is checked while copying."""
    index: bool = False
    overwrite: bool = False
    sync: bool = True
    """Wait until everything is on disk. False: leave that to the system, as cp does."""

    def __post_init__(self) -> None:
        if is_url(self.output):
            raise UsageError(
                f"{show(self.output)}: merge and convert write to a local disk; choose a folder there with -o, then copy it to the object store, manifest.json last"
            )
        object.__setattr__(self, "output", Path(self.output))
        _check_choices(self)
        _check_positive(self, shard_tokens="", sample_tokens="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """What the user says about files that convert reads and that do not say it themselves."""

    from_format: OutputFormat | None = None
    from_dtype: Dtype = "auto"
    eot_id: int | None = None
    """The end-of-text token, which must not occur inside documents."""

    def __post_init__(self) -> None:
        _check_choices(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a job may use of the machine. Never changes a byte of the result. None: decide from the machine.

    >>> limits = Limits(workers=4, max_memory=512 << 20)
    """

    workers: int | None = None
    max_memory: int | None = None
    engine: Engine = "auto"
    max_rejects: int | float | None = None
    """With on_error="skip": stop when more records than this are rejected, or, as a float, more than this share."""
    staging: str | None = None
    """Where files bound for an object store grow, each job in a folder of its own. None: in the cache."""
    max_staging: int | None = None
    """The most bytes that may wait there. None: half of the free space, at most 32 GiB of shards."""
    block_bytes: int | None = None
    """How much text a worker takes at a time; None: more for many workers, less where memory is short."""
    cache: str | None = None
    checkpoint_seconds: float = 1.0
    """How much work a kill can cost, in seconds and in bytes of input."""
    checkpoint_bytes: int = 128 << 20
    network_seconds: float = NETWORK_SECONDS
    """How long to retry a failing connection before giving up."""

    def __post_init__(self) -> None:
        share = isinstance(self.max_rejects, float)
        if self.max_rejects is not None and not 0 <= self.max_rejects < (1 if share else 1 << 63):
            raise UsageError(
                f"--max-rejects {self.max_rejects}: is neither a number of records nor a share; 100 allows a hundred, 0.001 one in a thousand"
            )
        _check_choices(self)
        _check_positive(self, workers="", max_staging="", block_bytes="")

    def resolved_workers(self) -> int:
        return self.workers or machine.cores()

    def resolved_block_bytes(self, text_bytes: int, *, packed: bool = False) -> int:
        """The more workers, the more text they take at a time, so that they meet less often; if there is enough of it.
        packed: inputs are compressed."""
        workers = self.resolved_workers()
        least = _PACKED_BLOCK_BYTES if packed else _USUAL_BLOCK_BYTES
        enough = text_bytes // (2 * workers) if text_bytes else MOST_BLOCK_BYTES
        return self.block_bytes or max(BLOCK_BYTES, min(max(least, workers << 19), MOST_BLOCK_BYTES, enough))

    def most_memory(self) -> int:
        """What the budget may grow to when the inputs need it."""
        return self.max_memory if self.max_memory is not None else machine.memory() // 2

    def work_folder(self, output: str | Path) -> Path:
        """Where files grow: the output itself, or for an object store a local folder, always the same for one URL."""
        if not is_url(output):
            return Path(output)
        url = str(output).rstrip("/")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", without_secrets(url).partition("://")[2])[-40:].strip("-.")
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        staging = Path(self.staging) if self.staging is not None else self.cache_folder() / "staging"
        return staging / f"{name}-{digest}"

    def cache_folder(self) -> Path:
        return Path(self.cache) if self.cache is not None else Path.home() / ".cache" / "shardmill"


hints_of = cache(get_type_hints)


@cache
def choices_of(kind: type) -> dict[str, tuple[str, ...]]:
    """The fields of a Spec, Target or Limits that take one of a few words, and these words."""
    found = {}
    for name, hint in hints_of(kind).items():
        for literal in (hint, *get_args(hint)):
            if get_origin(literal) is Literal:
                found[name] = get_args(literal)
    return found


def option_of(field: str) -> str:
    """The option that sets a field, as messages name it."""
    return "--" + field.replace("_", "-")


def _keep_as_tuples(value: Any, *names: str) -> None:
    """Fields with any number of strings; None, as in a manifest, is none."""
    for name in names:
        found = getattr(value, name)
        if isinstance(found, str):
            raise UsageError(f"{name} must be a list, not the single string {found!r}; write [{found!r}]")
        if not all(isinstance(each, str) and each for each in found or ()):
            raise UsageError(f"{name} {found!r} must hold strings that are not empty")
        object.__setattr__(value, name, tuple(found or ()))


def _check_choices(value: Any) -> None:
    kind: Any = type(value)
    for name, words in choices_of(kind).items():
        found = getattr(value, name)
        if found not in words and found != value.__dataclass_fields__[name].default:
            raise UsageError(f"{option_of(name)} {found!r}: is not known; choose one of {', '.join(words)}")


def _check_positive(value: Any, **remedies: str) -> None:
    for name, remedy in remedies.items():
        if (found := getattr(value, name)) is not None and found < 1:
            raise UsageError(f"{option_of(name)} {found}: is less than 1{remedy}")
