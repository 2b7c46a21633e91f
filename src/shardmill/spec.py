"""The job as asked for: a Spec is every choice that changes bytes, Limits every choice that does not."""

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from shardmill.errors import UsageError
from shardmill.system import machine
from shardmill.system.names import is_url, without_secrets

Eot = Literal["auto", "after", "before", "none"]
Split = Literal["auto", "hash", "tail", "head", "first-shard"]
Dtype = Literal["auto", "uint16", "uint32"]
OnError = Literal["stop", "skip", "replace"]
InputFormat = Literal["auto", "text", "jsonl", "parquet", "arrow", "csv", "tsv", "warc"]
Engine = Literal["auto", "native", "gigatoken", "reference"]
# The names that registry.py knows, here for the command line, which must answer --help at once.
OUTPUT_FORMATS = (
    "nanogpt",
    "shards",
    "build-nanogpt",
    "llmc",
    "modded-nanogpt",
    "megatron",
    "datatrove",
    "olmo",
    "mds",
    "litdata",
)

# Text without a single place to cut is cut by force after this many bytes. There must be a maximum: one such
# run costs tiktoken up to 68 times its size, tokenizers up to 211 times, and o200k's pattern fails in tiktoken
# on a million spaces.
MAX_RUN_BYTES = 512 << 10
BLOCK_BYTES = 1 << 20
# Running text goes to train or val in passages of about this size, some 16,000 tokens; small inputs in
# smaller ones, down to 16 KiB, so that a tenth of a small file is still several of them.
PASSAGE_BYTES = 64 << 10
VAL_FRACTION = 0.0005
# A file that is one document is judged as a whole up to here, and by passages beyond.
WHOLE_FILE_BYTES = 1 << 20
# A server that restarts or limits its callers is back within minutes.
NETWORK_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """Everything that decides the bytes of the result (I1). Two equal Specs on equal inputs give equal files."""

    inputs: tuple[str, ...]
    output: str
    tokenizer: str = "gpt2"
    separator: str | None = None
    eot: Eot = "auto"
    eot_token: str | None = None
    val_fraction: float = VAL_FRACTION
    split: Split = "auto"
    seed: int = 0
    dtype: Dtype = "auto"
    on_error: OnError = "stop"
    input_format: InputFormat = "auto"
    field: str = "text"
    """The JSON field or the column that holds the text; a.b is field b of field a."""
    sample: float | None = None
    limit_documents: int | None = None
    limit_tokens: int | None = None
    format: str = "nanogpt"
    shard_tokens: int | None = None
    sample_tokens: int | None = None
    """How many tokens the trainer takes at a time, in formats that have samples."""
    index: bool = False
    provenance: bool = False
    max_run_bytes: int = MAX_RUN_BYTES
    passage_bytes: int = PASSAGE_BYTES

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str):
            raise UsageError(
                f"inputs must be a list of paths, not the single text {self.inputs!r}; write [{self.inputs!r}]"
            )
        object.__setattr__(self, "inputs", tuple(str(path) for path in self.inputs))
        object.__setattr__(self, "output", str(self.output))
        if not self.inputs:
            raise UsageError("no input given; name at least one text file, folder or glob")
        if not 0 <= self.val_fraction < 1:
            raise UsageError(
                f"val fraction {self.val_fraction} is outside 0 ≤ f < 1; 0.0005 keeps one document in 2,000 for validation, 0 writes no val file"
            )
        if self.separator == "":
            raise UsageError("the separator is empty; leave it out to make each file one document")
        if self.shard_tokens is not None and self.shard_tokens < 1:
            raise UsageError(f"shard_tokens {self.shard_tokens} is less than 1; 100M is what most trainers use")
        if self.sample_tokens is not None and self.sample_tokens < 1:
            raise UsageError(f"sample_tokens {self.sample_tokens} is less than 1; pass the context length of the model")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(f"{name} {value!r} is not known; choose one of {', '.join(allowed)}")
        if not self.field:
            raise UsageError("the field is empty; name the JSON field or column that holds the text, such as text")
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UsageError(f"sample {self.sample} is outside 0 < s ≤ 1; 0.1 keeps about a tenth of the documents")
        for name, limit in (("limit_documents", self.limit_documents), ("limit_tokens", self.limit_tokens)):
            if limit is not None and limit < 1:
                raise UsageError(f"{name} {limit} is less than 1; leave it out to mill everything")
        if not 8 <= self.passage_bytes <= self.max_run_bytes // 2:
            raise UsageError(
                f"passage_bytes {self.passage_bytes:,} must be at least 8 and at most half of max_run_bytes, {self.max_run_bytes:,}"
            )

    def choices(self) -> dict[str, Any]:
        """The Spec without its places, as it stands in the manifest."""
        choices = dataclasses.asdict(self)
        del choices["inputs"], choices["output"]
        return choices


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the job may use. Never changes a byte of the result. None means: decide from the machine."""

    workers: int | None = None
    max_memory: int | None = None
    engine: Engine = "auto"
    block_bytes: int = BLOCK_BYTES
    """How much text a worker takes at a time; less where memory is short."""
    cache: str | None = None
    checkpoint_seconds: float = 1.0
    """How much work a kill costs at most, in seconds and in bytes of input."""
    checkpoint_bytes: int = 128 << 20
    network_seconds: float = NETWORK_SECONDS
    """How long a connection may fail, tried again and again, before the job gives up."""
    staging: str | None = None
    """Where files that go to a store grow, each job in a folder of its own. None: in the cache."""
    max_rejects: int | float | None = None
    """With on_error skip: stop when more records were left out than this many, or, given as a float, than this share."""
    max_staging: int | None = None
    """The most bytes that may wait there. None: half of what is free, and of shards at most 32 GiB."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers {self.workers} is less than 1")
        if self.engine not in get_args(Engine):
            raise UsageError(f"engine {self.engine!r} is not known; choose one of {', '.join(get_args(Engine))}")
        if self.max_rejects is not None and not 0 <= self.max_rejects < (
            1 if isinstance(self.max_rejects, float) else 1 << 63
        ):
            raise UsageError(
                f"max_rejects {self.max_rejects} is neither a number of records nor a share; 100 allows a hundred, 0.001 one in a thousand"
            )
        if self.max_staging is not None and self.max_staging < 1:
            raise UsageError(f"max_staging {self.max_staging} is less than 1 byte")
        if self.block_bytes < 1:
            raise UsageError(f"block size {self.block_bytes} is less than 1 byte")

    def resolved_workers(self) -> int:
        return self.workers or machine.cores()

    def resolved_memory(self) -> int:
        """256 MiB and 96 MiB for each worker, but at most a quarter of what the machine or container has."""
        if self.max_memory is not None:
            return self.max_memory
        wanted = (256 + 96 * self.resolved_workers()) * machine.MIB
        return min(wanted, machine.memory() // 4)

    def most_memory(self) -> int:
        """What the budget may grow to when the inputs need it."""
        return self.max_memory if self.max_memory is not None else machine.memory() // 4

    def work_folder(self, output: str) -> Path:
        """Where files grow: the output itself, or for one in a store a folder here, always the same for the same address."""
        if not is_url(output):
            return Path(output)
        url = output.rstrip("/")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", without_secrets(url).partition("://")[2])[-40:].strip("-.")
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        staging = Path(self.staging) if self.staging is not None else self.cache_folder() / "staging"
        return staging / f"{name}-{digest}"

    def cache_folder(self) -> Path:
        return Path(self.cache) if self.cache is not None else Path.home() / ".cache" / "shardmill"


_CHOICES: dict[str, tuple[str, ...]] = {
    "eot": ("auto", "after", "before", "none"),
    "split": ("auto", "hash", "tail", "head", "first-shard"),
    "dtype": ("auto", "uint16", "uint32"),
    "on_error": ("stop", "skip", "replace"),
    "input_format": ("auto", "text", "jsonl", "parquet", "arrow", "csv", "tsv", "warc"),
}
