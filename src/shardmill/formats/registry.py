"""The formats by name → what each requires: file names, headers, integers, end-of-text tokens, sidecar files, limits."""

import dataclasses
import functools
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardmill.documents import rejects
from shardmill.errors import UsageError
from shardmill.formats import mds_litdata
from shardmill.formats.shards import Header, Shape, SplitName, TokenType
from shardmill.spec import VAL_FRACTION, Dtype, Eot, Spec, SplitMode, TargetFormat
from shardmill.system.names import show
from shardmill.tokens import token_bytes
from shardmill.tokens.tokenizer import Tokenizer

INPUTS_NAME = "manifest.inputs.jsonl"
# Sidecar files that every format may have: the name → the kind, as the manifest lists it.
COMMON_SIDECARS = {
    "{split}.ends": "ends",
    "{split}.places": "places",
    "{split}.document_offsets.npy": "offsets",
    rejects.NAME: "rejects",
    INPUTS_NAME: "inputs",
    token_bytes.NAME: "token-bytes",
}
_WITH_ENDS = {"ends", "megatron-index", "rows"}
LLMC_BYTES = 1024
NPY_BYTES = 128
# magic and version of llm.c's files, by the size of a token
LLMC_MAGIC = {2: (20240520, 1), 4: (20240801, 7)}
# llm.c's loader stops when a shard is shorter than processes × B × T + 1 tokens; its usual batch is 524,288.
_LEAST_SHARD = (1 << 20) + 1
_INT32, _UINT32 = (1 << 31) - 1, (1 << 32) - 1
_SHARD_TOKENS = 100_000_000
# 64 MiB of uint16, which mosaicml-streaming and litdata recommend as the size of a download.
_STREAMED_TOKENS = 1 << 25
# The header of a shard has the offset of each sample and is held in memory: 4 MiB at most.
_MOST_SAMPLES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """What one trainer reads."""

    name: TargetFormat
    trainer: str
    file: str
    """The name of a token file, with {split}, and {number} if there are shards."""
    load: str
    """The line that loads the result in the trainer, with {folder}, {dtype}, {itemsize} and {sample}."""
    batch: int = 0
    """The tokens that the trainer takes at a time by default, as its script names them in batch_name;"""
    batch_name: str = ""
    """it fails on a file with fewer."""
    shard_tokens: int | None = None
    eot_side: Literal["after", "before"] = "after"
    needs_eot: str = ""
    """Why the trainer needs its end-of-text tokens on that side, if it does."""
    first_shard_is_val: bool = False
    """The trainer's own script makes the first shard the validation set, and numbers train shards from 1."""
    header: Header | None = None
    wide_from: int = (1 << 16) + 1
    """Vocabularies of this size or more get uint32."""
    only_uint16: str = ""
    """Why the trainer reads nothing but uint16, if so."""
    least_last: bool = False
    """A short last shard is appended to the one before it,"""
    least_shards: int = 1
    """but only if this many shards remain: the trainer stops if there are fewer."""
    sample_tokens: int | None = None
    """The tokens of a sample, if shards hold whole samples."""
    max_shard_bytes: int | None = None
    sidecars: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """The names of its own sidecar files → their kinds."""
    bytes_per_document: int = 0
    """Approximate bytes per document in the sidecar files."""
    bytes_at_the_end: int = 0
    """How many of these are written at the end, once all documents are known."""
    bytes_per_shard: int = 0
    """Approximate bytes per shard in the sidecar files, also written at the end."""
    described: bool = True
    """Whether manifest.json and the other files of a result are written next to the tokens."""

    @property
    def sharded(self) -> bool:
        return "{number" in self.file

    @property
    def needs_ends(self) -> bool:
        """Whether a sidecar file says where documents end."""
        return not _WITH_ENDS.isdisjoint(self.sidecars.values())

    @property
    def needs_places(self) -> bool:
        """Whether a sidecar file says where documents came from."""
        return "rows" in self.sidecars.values()

    def file_name(self, split: SplitName, number: int) -> str:
        return self.file.format(split=split, number=number + (self.first_shard_is_val and split == "train"))

    def kind_of(self, name: str) -> str | None:
        """The kind of the sidecar file with this name; None: it is not one."""
        sidecars = {**self.sidecars, **COMMON_SIDECARS}
        return next((kind for template, kind in sidecars.items() if _pattern(template).fullmatch(name)), None)

    def owns(self, name: str) -> bool:
        """Whether this format may have written a file with this name."""
        return _pattern(self.file, *self.sidecars, *COMMON_SIDECARS).fullmatch(name) is not None


@functools.lru_cache(maxsize=64)
def _pattern(*templates: str) -> re.Pattern[str]:
    names = "|".join(map(re.escape, templates)).replace(r"\{split\}", "(train|val)")
    return re.compile(re.sub(r"\\\{number:0(\d)\\\}", r"[0-9]{\1,}", names))


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Everything that a writer must know: the format, and the choices made within it."""

    format: Format
    shape: Shape
    tokenizer: str
    """Its name, for people to read."""
    val_tokens: int = 0
    """The first this many tokens are the validation set; 0: it is chosen elsewhere."""
    index: bool = False
    provenance: bool = False
    sources: Sequence[str] = ()
    """The paths of the inputs, by the numbers that documents refer to them with."""
    vocabulary: Tokenizer | None = None
    """The tokenizer itself, if text is tokenized: it knows how much text tokens are."""

    @property
    def bytes_per_document(self) -> int:
        """Approximate bytes per document in all sidecar files."""
        index = 8 * (1 + self.offsets) if self.index else 0
        return self.format.bytes_per_document + index + (16 if self.provenance else 0)

    def bytes_of(self, tokens: int, documents: int) -> int:
        """Approximate size of this many tokens and documents, shard headers included."""
        headers = self._shards(tokens) * self.header_bytes
        return tokens * self.dtype.itemsize + documents * self.bytes_per_document + headers

    def bytes_to_finish(self, tokens: int, documents: int) -> int:
        """Approximate number of bytes still to write after this many tokens and documents."""
        per_document = self.format.bytes_at_the_end + 8 * self.offsets
        return documents * per_document + self._shards(tokens) * self.format.bytes_per_shard

    @property
    def offsets(self) -> bool:
        """Whether SPLIT.document_offsets.npy is written: it is for readers that map a split as one file."""
        return self.index and not self.format.sharded

    def _shards(self, tokens: int) -> int:
        return tokens // self.shard_tokens + 1 if self.shard_tokens else 1

    @property
    def needs_places(self) -> bool:
        """Whether the output says where documents came from."""
        return self.provenance or self.format.needs_places

    @property
    def dtype(self) -> TokenType:
        return self.shape.dtype

    @property
    def shard_tokens(self) -> int | None:
        """The exact length of every shard but the last of a split; None: one file, however long."""
        return self.shape.shard_tokens

    @property
    def least_tokens(self) -> int:
        """A last shard with fewer is joined to the one before it: less than a batch of llm.c, or than one sample."""
        least = min(self.shape.sample_tokens or _LEAST_SHARD, self.shard_tokens or 0)
        return least if self.format.least_last else 0

    def header(self, tokens: int) -> bytes:
        """The first bytes of a file with this many tokens."""
        return _header(self.format.header, tokens, self.shape) if self.format.header else b""

    @property
    def header_bytes(self) -> int:
        return len(self.header(0))


@functools.lru_cache(4)
def _header(header: Header, tokens: int, shape: Shape) -> bytes:
    return header(tokens, shape)


def npy_header(count: int, descr: str) -> bytes:
    """A header of version 1.0 as numpy writes it, padded to 128 bytes whatever the count."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", NPY_BYTES - 10) + text.ljust(NPY_BYTES - 11).encode() + b"\n"


def llmc_header(count: int, shape: Shape) -> bytes:
    return struct.pack("<3i", *LLMC_MAGIC[shape.dtype.itemsize], count).ljust(LLMC_BYTES, b"\0")


_ALIGNED = "it starts every batch at an end-of-text token, so there must be one before each document"
_BUILD_NANOGPT = Format(
    name="build-nanogpt",
    trainer="build-nanogpt",
    file="edufineweb_{split}_{number:06}.npy",
    load='data_root = "{folder}"  # DataLoaderLite in train_gpt2.py',
    batch=64 * 1024 + 1,
    batch_name="B × T + 1",
    shard_tokens=_SHARD_TOKENS,
    eot_side="before",
    first_shard_is_val=True,
    header=lambda count, shape: npy_header(count, shape.dtype.str),
)
_LLMC = dataclasses.replace(
    _BUILD_NANOGPT,
    name="llmc",
    trainer="llm.c",
    file="fineweb_{split}_{number:06}.bin",
    load='./train_gpt2cu -i "{folder}/fineweb_train_*.bin" -j "{folder}/fineweb_val_*.bin"',
    batch=4 * 1024 + 1,
    header=llmc_header,
    least_last=True,
    max_shard_bytes=_INT32,
)
_MDS = Format(
    name="mds",
    trainer="mosaicml-streaming, LLM Foundry",
    file="{split}/shard.{number:05}.mds",
    load='StreamingDataset(local="{folder}", split="train", batch_size=8)',
    shard_tokens=_STREAMED_TOKENS,
    header=mds_litdata.mds_header,
    least_last=True,
    sample_tokens=2048,
    max_shard_bytes=_UINT32,
    sidecars={"{split}/index.json": "shards"},
    bytes_per_shard=320,
)
FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        Format(
            name="nanogpt",
            trainer="nanoGPT",
            file="{split}.bin",
            load='np.memmap("{folder}/train.bin", dtype=np.{dtype}, mode="r")',
            batch=1024 + 1,
            batch_name="block_size + 1",
        ),
        Format(
            name="shards",
            trainer="anything that reads raw integers",
            file="{split}-{number:05}.bin",
            load='np.memmap("{folder}/train-00000.bin", dtype=np.{dtype}, mode="r")',
        ),
        _BUILD_NANOGPT,
        _LLMC,
        dataclasses.replace(
            _LLMC,
            name="modded-nanogpt",
            trainer="modded-nanogpt",
            load='train_files = "{folder}/fineweb_train_*.bin"; val_files = "{folder}/fineweb_val_*.bin"  # train_gpt.py',
            batch=10_485_760,
            batch_name="val_tokens",
            needs_eot=_ALIGNED,
            least_shards=2,
            only_uint16="its loader reads files of version 1, which hold uint16",
        ),
        Format(
            name="megatron",
            trainer="Megatron-LM",
            file="{split}.bin",
            load="--train-data-path {folder}/train --valid-data-path {folder}/val",
            wide_from=65500,
            sidecars={"{split}.idx": "megatron-index"},
            bytes_per_document=20,
            bytes_at_the_end=16,
        ),
        Format(
            name="datatrove",
            trainer="datatrove, nanotron",
            file="{split}.ds",
            load='DatatroveFolderDataset("{folder}", seq_len, filename_pattern="*train.ds", token_size={itemsize})',
            sidecars={"{split}.ds.index": "ends", "{split}.ds.metadata": "metadata"},
            bytes_per_document=8,
        ),
        Format(
            name="olmo",
            trainer="OLMo-core",
            file="{split}-{number:05}.npy",
            load='NumpyFSLDatasetConfig.glob("{folder}/train-*.npy", dtype=NumpyDatasetDType.{dtype}, ...)',
            shard_tokens=1 << 30,
            sidecars={"{split}-{number:05}.csv.gz": "rows", "{split}.rows": "rows"},
            bytes_per_document=24 + 80,
            bytes_at_the_end=80,
        ),
        _MDS,
        dataclasses.replace(
            _MDS,
            name="litdata",
            trainer="litdata, LitGPT",
            file="{split}/chunk-0-{number:01}.bin",
            load='StreamingDataset("{folder}/train", item_loader=TokensLoader(block_size={sample}))',
            header=mds_litdata.litdata_header,
            sample_tokens=2049,  # LitGPT takes one token more than its context, the last target
            bytes_per_shard=110,
        ),
    )
}

PARQUET = Format(
    name="parquet",
    trainer="datasets of Hugging Face",
    file="{split}-{number:05}.parquet",
    load='datasets.load_dataset("parquet", data_files="{folder}/train-*.parquet")',
    shard_tokens=_SHARD_TOKENS,
    wide_from=0,
    described=False,  # load_dataset takes every file of a folder, and JSON is among what it reads
)


def get(name: str) -> Format:
    found = PARQUET if name == PARQUET.name else FORMATS.get(name)
    if found is None:
        raise UsageError(f"format {name!r} is not known; choose one of {', '.join(FORMATS)}")
    return found


def split_mode(found: Format, asked: SplitMode) -> SplitMode:
    """hash, tail, head or first-shard: what auto means in this format. Nothing else decides that a first shard is val."""
    if asked != "auto":
        return asked
    return "first-shard" if found.first_shard_is_val else "hash"


def check(spec: Spec) -> Format:
    """The format of a Spec; an error with the reason if another choice contradicts it."""
    found = get(spec.format)
    refuse_unfit(found, spec.eot, spec.shard_tokens, spec.sample_tokens)
    if spec.split == "first-shard" and not found.sharded:
        raise UsageError(f"--split first-shard: --format {found.name} has no shards; choose hash, head or tail")
    first = split_mode(found, spec.split) == "first-shard"
    if first and spec.val_fraction not in (0, VAL_FRACTION):
        raise UsageError(
            f"--val-fraction {spec.val_fraction}: in --format {found.name} the first shard is the validation set, whatever fraction that is; choose its length with --val-tokens, or pass --split hash to choose a fraction"
        )
    if spec.val_tokens is not None and not first:
        raise UsageError(
            f"--val-tokens: is the length of a first shard that is the validation set, and here documents are chosen; pass --val-fraction instead{', or --split first-shard' if found.sharded else ''}"
        )
    if spec.provenance and not spec.index:
        raise UsageError("--provenance adds to the index where each document came from; pass --index with it")
    return found


def refuse_unfit(found: Format, eot: Eot, shard_tokens: int | None, sample_tokens: int | None) -> None:
    """An error if one of the choices that prepare and convert share does not fit the format."""
    if shard_tokens is not None and not found.sharded:
        raise UsageError(
            f"--shard-tokens: {found.trainer} reads one file per split; leave it out, or choose the format shards"
        )
    if found.sharded and found.shard_tokens is None and shard_tokens is None:
        raise UsageError(f"the format {found.name} has no default shard length; pass one, e.g. --shard-tokens 500M")
    if sample_tokens is not None and found.sample_tokens is None:
        raise UsageError(f"--sample-tokens: the format {found.name} has no samples; leave it out")
    if found.needs_eot and eot not in ("auto", found.eot_side):
        raise UsageError(f"--eot {eot}: {found.trainer} cannot train on it: {found.needs_eot}; leave --eot out")


def plan_output(spec: Spec, tokenizer: Tokenizer, sources: Sequence[str]) -> Output:
    """What the writer of this job must know; an error if the tokens do not fit the format."""
    found = check(spec)
    dtype = choose_dtype(found, tokenizer.size, tokenizer.name, spec.dtype)
    shape = choose_shape(found, dtype, spec.shard_tokens, spec.sample_tokens)
    first = split_mode(found, spec.split) == "first-shard" and spec.val_fraction > 0
    val_tokens = (spec.val_tokens or shape.shard_tokens or 0) if first else 0
    if shape.shard_tokens is not None and val_tokens > shape.shard_tokens:
        raise UsageError(
            f"--val-tokens {val_tokens:,}: the validation set is one shard, and a shard has at most {shape.shard_tokens:,} tokens; pass a larger --shard-tokens, or at most that"
        )
    return Output(
        format=found,
        shape=shape,
        val_tokens=val_tokens,
        index=spec.index,
        provenance=spec.provenance,
        tokenizer=tokenizer.name,
        sources=sources,
        vocabulary=tokenizer,
    )


def choose_dtype(found: Format, vocabulary: int, tokenizer: str, asked: Dtype) -> TokenType:
    """The smallest of uint16 and uint32 that holds every id, special tokens included."""
    fits = vocabulary <= 1 << 16
    if asked == "uint16" and not fits:
        raise UsageError(
            f"--dtype uint16: tokenizer {show(tokenizer)} has ids up to {vocabulary - 1:,}, and uint16 ends at 65,535; use --dtype uint32 or auto"
        )
    wide = asked == "uint32" or not fits or (asked == "auto" and vocabulary >= found.wide_from)
    if wide and found.only_uint16:
        raise UsageError(
            f"--format {found.name}: tokenizer {show(tokenizer)} with ids up to {vocabulary - 1:,} and --dtype {asked} means uint32, but {found.only_uint16}; choose a tokenizer with at most 65,536 tokens, or another format"
        )
    return np.dtype("<u4" if wide else "<u2")


def choose_shape(found: Format, dtype: TokenType, shard_tokens: int | None, sample_tokens: int | None) -> Shape:
    """The lengths of shards and samples: those asked for, if the trainer can read them, else the format's own."""
    sample = found.sample_tokens if sample_tokens is None else sample_tokens
    tokens = found.shard_tokens if shard_tokens is None else shard_tokens
    if sample is not None and tokens is not None:
        if shard_tokens is None:
            tokens = min(max(tokens // sample, 1), _MOST_SAMPLES) * sample
        tokens = -(-tokens // sample) * sample
        if tokens // sample > _MOST_SAMPLES:
            raise UsageError(
                f"--shard-tokens {tokens:,}: makes {tokens // sample:,} samples of {sample:,} tokens, and a shard holds at most {_MOST_SAMPLES:,}; pass at most {_MOST_SAMPLES * sample:,}"
            )
    shape = Shape(dtype=dtype, shard_tokens=tokens, sample_tokens=sample)
    if tokens is not None and found.max_shard_bytes is not None and found.header is not None:
        room = found.max_shard_bytes - len(found.header(0, shape))
        most = room // dtype.itemsize - (sample or _LEAST_SHARD)
        if tokens > most:
            limit = "2 GiB" if found.max_shard_bytes == _INT32 else "4 GiB"
            raise UsageError(
                f"--shard-tokens {tokens:,}: {found.trainer} keeps token counts and file offsets as 32-bit integers, so a shard must stay below {limit}: at most {most:,} tokens of {dtype.name}"
            )
    return shape
