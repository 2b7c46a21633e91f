"""The formats by name → what each asks for: names, headers, integers, the side of the end-of-text token, its limits."""

import dataclasses
import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardmill.errors import UsageError
from shardmill.formats import mds_litdata
from shardmill.formats.shards import Header, Layout, Shape, SplitName, TokenType
from shardmill.spec import VAL_FRACTION, Dtype, Spec, SplitMode
from shardmill.system.names import show
from shardmill.tokens.tokenizer import Tokenizer

SidecarKind = Literal["megatron", "datatrove", "olmo", "mds", "litdata"]
LLMC_BYTES = 1024
NPY_BYTES = 128
# magic and version of llm.c's files, by the size of a token
LLMC_MAGIC = {2: (20240520, 1), 4: (20240801, 7)}
# llm.c's loader stops when a shard is shorter than processes × B × T + 1 tokens; its usual batch is 524,288.
_LEAST_SHARD = (1 << 20) + 1
_INT32, _UINT32 = (1 << 31) - 1, (1 << 32) - 1
_SHARD_TOKENS = 100_000_000
# 64 MiB of uint16, which mosaicml-streaming and litdata take for a good download.
_STREAMED_TOKENS = 1 << 25
# Each sample has its place in the shard's header, which is held in memory: 4 MiB at most.
_MOST_SAMPLES = 1 << 20


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
    header: Header | None = None
    wide_from: int = (1 << 16) + 1
    """Vocabularies of this size or more get uint32."""
    only_uint16: str = ""
    """Why the trainer reads nothing else, if so."""
    least_last: bool = False
    """A short last shard is joined to the one before it."""
    sample_tokens: int | None = None
    """How many tokens the trainer takes at a time, where shards hold whole samples."""
    max_shard_bytes: int | None = None
    sides: SidecarKind | None = None
    beside: tuple[str, ...] = ()
    """The names of the files beside the tokens."""
    bytes_per_document: int = 0
    """About what those take for each document."""
    bytes_at_the_end: int = 0
    """As much of that as is written when all documents are known."""
    bytes_per_shard: int = 0
    """About what those take for each shard, at the end too."""

    @property
    def needs_ends(self) -> bool:
        """Whether a file beside the tokens says where documents end."""
        return self.sides in ("megatron", "datatrove", "olmo")

    def file_name(self, split: SplitName, number: int) -> str:
        return self.file.format(split=split, number=number + (self.train_from if split == "train" else 0))

    def owns(self, name: str) -> bool:
        """Whether a file of this name may be one that this format wrote."""
        return _name_pattern(self).fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Everything that a writer must know: the format and what was chosen in it."""

    format: Format
    shape: Shape
    first_shard_is_val: bool
    index: bool
    provenance: bool
    tokenizer: str
    """Its name, for those who want to read it."""
    sources: Sequence[str] = ()
    """The paths of the inputs, by the numbers that documents name them with."""

    @property
    def bytes_per_document(self) -> int:
        """About what the files beside the tokens take for each."""
        return self.format.bytes_per_document + (8 if self.index else 0) + (16 if self.provenance else 0)

    def bytes_of(self, tokens: int, documents: int) -> int:
        """About what so many take, with the headers of the shards that they begin."""
        headers = self._shards(tokens) * self.layout().header_bytes
        return tokens * self.dtype.itemsize + documents * self.bytes_per_document + headers

    def bytes_to_finish(self, tokens: int, documents: int) -> int:
        """About what is still to be written beside so many when there are no more."""
        return documents * self.format.bytes_at_the_end + self._shards(tokens) * self.format.bytes_per_shard

    def _shards(self, tokens: int) -> int:
        return tokens // self.shard_tokens + 1 if self.shard_tokens else 1

    @property
    def needs_places(self) -> bool:
        """Whether anyone wants to know where documents came from."""
        return self.provenance or self.format.sides == "olmo"

    @property
    def dtype(self) -> TokenType:
        return self.shape.dtype

    @property
    def shard_tokens(self) -> int | None:
        return self.shape.shard_tokens

    def layout(self) -> Layout:
        header = self.format.header
        return Layout(
            name=self.format.file_name,
            dtype=self.dtype,
            shard_tokens=self.shard_tokens,
            header=functools.lru_cache(4)(lambda count: header(count, self.shape)) if header else lambda _: b"",
            least_tokens=_least_tokens(self.format, self.shape),
        )


def npy_header(count: int, shape: Shape) -> bytes:
    """A header of version 1.0 as numpy writes it, padded to 128 bytes whatever the count."""
    text = f"{{'descr': '{shape.dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", NPY_BYTES - 10) + text.ljust(NPY_BYTES - 11).encode() + b"\n"


def llmc_header(count: int, shape: Shape) -> bytes:
    return struct.pack("<3i", *LLMC_MAGIC[shape.dtype.itemsize], count).ljust(LLMC_BYTES, b"\0")


_ALIGNED = "it begins every batch at an end-of-text token, which must stand before each document"
_LLMC = Format(
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
)
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
        _LLMC,
        dataclasses.replace(
            _LLMC,
            name="modded-nanogpt",
            trainer="modded-nanogpt",
            needs_eot=_ALIGNED,
            only_uint16="its loader reads files of version 1, and they hold uint16",
        ),
        Format(
            name="megatron",
            trainer="Megatron-LM",
            file="{split}.bin",
            wide_from=65500,
            sides="megatron",
            beside=("{split}.idx",),
            bytes_per_document=20,
            bytes_at_the_end=16,
        ),
        Format(
            name="datatrove",
            trainer="datatrove, nanotron",
            file="{split}.ds",
            sides="datatrove",
            beside=("{split}.ds.index", "{split}.ds.metadata"),
            bytes_per_document=8,
        ),
        Format(
            name="olmo",
            trainer="OLMo-core",
            file="{split}-{number:05}.npy",
            sharded=True,
            shard_tokens=1 << 30,
            sides="olmo",
            beside=("{split}-{number:05}.csv.gz", "{split}.rows"),
            bytes_per_document=24 + 80,
            bytes_at_the_end=80,
        ),
        Format(
            name="mds",
            trainer="mosaicml-streaming, LLM Foundry",
            file="{split}/shard.{number:05}.mds",
            sharded=True,
            shard_tokens=_STREAMED_TOKENS,
            header=mds_litdata.mds_header,
            least_last=True,
            sample_tokens=2048,
            max_shard_bytes=_UINT32,
            sides="mds",
            beside=("{split}/index.json",),
            bytes_per_shard=320,
        ),
        Format(
            name="litdata",
            trainer="litdata, LitGPT",
            file="{split}/chunk-0-{number:01}.bin",
            sharded=True,
            shard_tokens=_STREAMED_TOKENS,
            header=mds_litdata.litdata_header,
            least_last=True,
            sample_tokens=2049,  # LitGPT takes one token more than its context, the last target
            max_shard_bytes=_UINT32,
            sides="litdata",
            beside=("{split}/index.json",),
            bytes_per_shard=110,
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
    if spec.sample_tokens is not None and found.sample_tokens is None:
        raise UsageError(f"--sample-tokens: the files of --format {found.name} know no samples; leave it out")
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


def split_mode(spec: Spec) -> SplitMode:
    """hash, tail, head or first-shard: what auto means in this format."""
    if spec.split != "auto":
        return spec.split
    return "first-shard" if get(spec.format).first_shard_is_val else "hash"


def plan_output(spec: Spec, tokenizer: Tokenizer, sources: Sequence[str], input_bytes: int) -> Output:
    """What the writer of this job must know, or why the tokens do not fit the format."""
    found = check(spec)
    dtype = choose_dtype(found, tokenizer.size, tokenizer.name, spec.dtype)
    first = _first_shard_is_val(found, spec) and spec.val_fraction > 0
    shape = choose_shape(found, dtype, spec.shard_tokens, spec.sample_tokens)
    tokens = shape.shard_tokens
    if first and tokens is not None and input_bytes < tokens:
        raise UsageError(
            f"--format {found.name}: the input has {input_bytes:,} bytes, so at most about as many tokens, and the first shard of {tokens:,} tokens is the validation set: nothing would be left to train on. "
            f"Pass a smaller --shard-tokens (say {max(1, input_bytes // 100):,}), or --split hash"
        )
    return Output(
        format=found,
        shape=shape,
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


def choose_shape(found: Format, dtype: TokenType, shard_tokens: int | None, sample_tokens: int | None) -> Shape:
    """How long shards and samples are: as asked, if the trainer can read it so, else as the format has them."""
    sample = found.sample_tokens if sample_tokens is None else sample_tokens
    tokens = found.shard_tokens if shard_tokens is None else shard_tokens
    if sample is not None and tokens is not None:
        if shard_tokens is None:
            tokens = min(max(tokens // sample, 1), _MOST_SAMPLES) * sample
        if tokens % sample:
            raise UsageError(
                f"--shard-tokens {tokens:,}: a shard holds whole samples, and {sample:,} tokens are one (--sample-tokens); use {-(-tokens // sample) * sample:,}"
            )
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
                f"--shard-tokens {tokens:,}: {found.trainer} keeps the number of tokens and places in the file as 32-bit integers, so a shard must stay below {limit}; at most {most:,} tokens of {dtype.name}"
            )
    return shape


def _least_tokens(found: Format, shape: Shape) -> int:
    """How short the last shard may be: a batch of llm.c, one sample, or anything."""
    return min(shape.sample_tokens or _LEAST_SHARD, shape.shard_tokens or 0) if found.least_last else 0


def _first_shard_is_val(found: Format, spec: Spec) -> bool:
    return spec.split == "first-shard" or (spec.split == "auto" and found.first_shard_is_val)


@functools.lru_cache(maxsize=16)
def _name_pattern(found: Format) -> re.Pattern[str]:
    names = "|".join(re.escape(name) for name in (found.file, *found.beside, "{split}.ends", "{split}.places"))
    return re.compile(
        re.sub(r"\\\{number:0(\d)\\\}", r"[0-9]{\1,}", names).replace(r"\{split\}", "(train|val)"),
    )
