"""The formats by name → what each asks for: names, headers, integers, the side of the end-of-text token, its limits."""

import functools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardmill.errors import UsageError
from shardmill.formats.shards import Layout, SplitName, TokenType
from shardmill.names import show
from shardmill.spec import VAL_FRACTION, Dtype, Spec, Split
from shardmill.tokens.tokenizer import Tokenizer

SideKind = Literal["megatron", "datatrove", "olmo"]
LLMC_BYTES = 1024
NPY_BYTES = 128
# magic and version of llm.c's files, by the size of a token
LLMC_MAGIC = {2: (20240520, 1), 4: (20240801, 7)}
# llm.c's loader stops when a shard is shorter than processes × B × T + 1 tokens; its usual batch is 524,288.
_LEAST_SHARD = (1 << 20) + 1
_INT32 = (1 << 31) - 1
_SHARD_TOKENS = 100_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """What one trainer reads."""

    name: str
    trainer: str
    file: str
    """The name of a token file: {split}, and {number} where there are shards."""
    sharded: bool = False
    shard_tokens: int | None = None
    train_from: int = 0
    """The number of the first train shard."""
    eot_side: Literal["after", "before"] = "after"
    needs_eot: str = ""
    """Why the trainer needs its end-of-text tokens at that side, if it does."""
    first_shard_is_val: bool = False
    header: Callable[[int, TokenType], bytes] | None = None
    wide_from: int = (1 << 16) + 1
    """Vocabularies of this size or more get uint32."""
    only_uint16: str = ""
    """Why the trainer reads nothing else, if so."""
    least_last: bool = False
    max_shard_bytes: int | None = None
    sides: SideKind | None = None

    def file_name(self, split: SplitName, number: int) -> str:
        return self.file.format(split=split, number=number + (self.train_from if split == "train" else 0))

    def owns(self, name: str) -> bool:
        """Whether a file of this name may be one that this format wrote."""
        return _name_pattern(self).fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Everything that a writer must know: the format and what was chosen in it."""

    format: Format
    dtype: TokenType
    shard_tokens: int | None
    first_shard_is_val: bool
    index: bool
    provenance: bool
    tokenizer: str
    """Its name, for those who want to read it."""
    sources: tuple[str, ...] = ()
    """The paths of the inputs, by the numbers that documents name them with."""

    @property
    def bytes_per_document(self) -> int:
        """About what the files beside the tokens take for each."""
        of_format = {None: 0, "megatron": 20, "datatrove": 8, "olmo": 24 + 80}[self.format.sides]
        return of_format + (8 if self.index else 0) + (16 if self.provenance else 0)

    @property
    def bytes_at_the_end(self) -> int:
        """As much of it as is written when all documents are known."""
        return {None: 0, "megatron": 16, "datatrove": 0, "olmo": 80}[self.format.sides]

    @property
    def needs_places(self) -> bool:
        """Whether anyone wants to know where documents came from."""
        return self.provenance or self.format.sides == "olmo"

    def layout(self) -> Layout:
        header = self.format.header
        return Layout(
            name=self.format.file_name,
            dtype=self.dtype,
            shard_tokens=self.shard_tokens,
            header=functools.lru_cache(4)(lambda count: header(count, self.dtype)) if header else lambda _: b"",
            least_tokens=min(_LEAST_SHARD, self.shard_tokens or 0) if self.format.least_last else 0,
        )


def npy_header(count: int, dtype: TokenType) -> bytes:
    """A header of version 1.0 as numpy writes it, padded to 128 bytes whatever the count."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", NPY_BYTES - 10) + text.ljust(NPY_BYTES - 11).encode() + b"\n"


def llmc_header(count: int, dtype: TokenType) -> bytes:
    return struct.pack("<3i", *LLMC_MAGIC[dtype.itemsize], count).ljust(LLMC_BYTES, b"\0")


_ALIGNED = "it begins every batch at an end-of-text token, which must stand before each document"
FORMATS = {
    found.name: found
    for found in (
        Format(name="nanogpt", trainer="nanoGPT", file="{split}.bin"),
        Format(name="shards", trainer="anything that reads raw integers", file="{split}-{number:05}.bin", sharded=True),
        Format(
            name="build-nanogpt",
            trainer="build-nanogpt",
            file="edufineweb_{split}_{number:06}.npy",
            sharded=True,
            shard_tokens=_SHARD_TOKENS,
            train_from=1,
            eot_side="before",
            first_shard_is_val=True,
            header=npy_header,
        ),
        Format(
            name="llmc",
            trainer="llm.c",
            file="fineweb_{split}_{number:06}.bin",
            sharded=True,
            shard_tokens=_SHARD_TOKENS,
            train_from=1,
            eot_side="before",
            first_shard_is_val=True,
            header=llmc_header,
            least_last=True,
            max_shard_bytes=_INT32,
        ),
        Format(
            name="modded-nanogpt",
            trainer="modded-nanogpt",
            file="fineweb_{split}_{number:06}.bin",
            sharded=True,
            shard_tokens=_SHARD_TOKENS,
            train_from=1,
            eot_side="before",
            needs_eot=_ALIGNED,
            first_shard_is_val=True,
            header=llmc_header,
            only_uint16="its loader reads files of version 1, and they hold uint16",
            least_last=True,
            max_shard_bytes=_INT32,
        ),
        Format(name="megatron", trainer="Megatron-LM", file="{split}.bin", wide_from=65500, sides="megatron"),
        Format(name="datatrove", trainer="datatrove, nanotron", file="{split}.ds", sides="datatrove"),
        Format(
            name="olmo",
            trainer="OLMo-core",
            file="{split}-{number:05}.npy",
            sharded=True,
            shard_tokens=1 << 30,
            sides="olmo",
        ),
    )
}


def check(spec: Spec) -> Format:
    """The format of a Spec; an error with the reason if another choice contradicts it."""
    found = get(spec.format)
    first = _first_shard_is_val(found, spec)
    if spec.shard_tokens is not None and not found.sharded:
        instead = "use --format shards" if found.name == "nanogpt" else "leave it out"
        raise UsageError(f"--shard-tokens: {found.trainer} reads one file for each split; {instead}")
    if found.sharded and found.shard_tokens is None and spec.shard_tokens is None:
        raise UsageError(f"--format {found.name}: say how long a shard is, e.g. --shard-tokens 500M")
    if spec.split == "first-shard" and not found.sharded:
        raise UsageError(f"--split first-shard: --format {found.name} has no shards; choose hash, head or tail")
    if first and spec.val_fraction not in (0, VAL_FRACTION):
        raise UsageError(
            f"--val-fraction {spec.val_fraction}: in --format {found.name} the first shard is the validation set, whatever share that is; pass --split hash to have a share instead, or choose its size with --shard-tokens"
        )
    if found.needs_eot and spec.eot not in ("auto", found.eot_side):
        raise UsageError(f"--eot {spec.eot}: {found.trainer} cannot train on it: {found.needs_eot}; leave --eot out")
    if spec.provenance and not spec.index:
        raise UsageError("--provenance tells where each document of the index came from; pass --index with it")
    return found


def get(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(f"format {name!r} is not known; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def split_mode(spec: Spec) -> Split:
    """hash, tail, head or first-shard: what auto means in this format."""
    if spec.split != "auto":
        return spec.split
    return "first-shard" if get(spec.format).first_shard_is_val else "hash"


def plan_output(spec: Spec, tokenizer: Tokenizer, sources: tuple[str, ...], input_bytes: int) -> Output:
    """What the writer of this job must know, or why the tokens do not fit the format."""
    found = check(spec)
    dtype = choose_dtype(found, tokenizer.size, tokenizer.name, spec.dtype)
    first = _first_shard_is_val(found, spec) and spec.val_fraction > 0
    tokens = shard_tokens(found, dtype, spec.shard_tokens)
    if first and tokens is not None and input_bytes < tokens:
        raise UsageError(
            f"--format {found.name}: the input has {input_bytes:,} bytes, so at most about as many tokens, and the first shard of {tokens:,} tokens is the validation set: nothing would be left to train on. "
            f"Pass a smaller --shard-tokens (say {max(1, input_bytes // 100):,}), or --split hash"
        )
    return Output(
        format=found,
        dtype=dtype,
        shard_tokens=tokens,
        first_shard_is_val=first,
        index=spec.index,
        provenance=spec.provenance,
        tokenizer=tokenizer.name,
        sources=sources,
    )


def choose_dtype(found: Format, vocabulary: int, tokenizer: str, asked: Dtype) -> TokenType:
    """The smallest of uint16 and uint32 that holds every id, special ones too; never narrower than the vocabulary."""
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


def shard_tokens(found: Format, dtype: TokenType, asked: int | None) -> int | None:
    tokens = asked if asked is not None else found.shard_tokens
    if tokens is not None and found.max_shard_bytes is not None:
        most = (found.max_shard_bytes - LLMC_BYTES) // dtype.itemsize - _LEAST_SHARD
        if tokens > most:
            raise UsageError(
                f"--shard-tokens {tokens:,}: {found.trainer} keeps the number of tokens and places in the file as 32-bit integers, so a shard must stay below 2 GiB; at most {most:,} tokens of {dtype.name}"
            )
    return tokens


def _first_shard_is_val(found: Format, spec: Spec) -> bool:
    return spec.split == "first-shard" or (spec.split == "auto" and found.first_shard_is_val)


@functools.lru_cache(maxsize=16)
def _name_pattern(found: Format) -> re.Pattern[str]:
    tokens = re.escape(found.file).replace(r"\{split\}", "(train|val)")
    tokens = re.sub(r"\\\{number:0(\d)\\\}", r"\\d{\1,}", tokens)
    sides = {
        None: "",
        "megatron": r"|(train|val)\.idx",
        "datatrove": r"|(train|val)\.ds\.(index|metadata)",
        "olmo": r"|(train|val)-\d{5,}\.csv\.gz|(train|val)\.rows",
    }
    return re.compile(rf"{tokens}{sides[found.sides]}|(train|val)\.(ends|places)")
