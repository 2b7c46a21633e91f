"""Token files of other programs → a Corpus, checked as far as the files themselves allow."""

import io
import itertools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.errors import InputError, UsageError
from shardmill.formats.mds_litdata import INDEX, SampleFile, open_samples
from shardmill.formats.registry import FORMATS, LLMC_BYTES, LLMC_MAGIC, Format, get
from shardmill.formats.shards import SPLITS, SplitName, TokenType
from shardmill.io.fileset import LocalFiles, StoredFile
from shardmill.record import journal, manifest
from shardmill.record.manifest import Counts, Manifest
from shardmill.results import document_index
from shardmill.results.corpus import Corpus, Split, TokenFile, open_corpus
from shardmill.results.document_index import EndsPart
from shardmill.spec import Claims
from shardmill.system.names import is_url, show
from shardmill.tokens import token_bytes

_EVAL_MAGIC = 20240522
_LARGEST_INDEX = 1 << 28
# Names of integer types in MDS and litdata. Ids are below 2^31, so signed integers are read as unsigned;
# copying the tokens checks that none is negative.
_MDS_TYPES = {"uint16": "<u2", "uint32": "<u4", "int32": "<u4", "uint64": "<u8", "int64": "<u8"}
_LITDATA_TYPES = {
    **dict.fromkeys(("no_header_tensor:20", "no_header_numpy:5"), "<u2"),
    **dict.fromkeys(("no_header_tensor:15", "no_header_tensor:16", "no_header_numpy:2", "no_header_numpy:6"), "<u4"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shard:
    path: Path
    file: TokenFile | SampleFile
    dtype: TokenType
    ends: EndsPart | None = None


def open_claimed(source: str | Path, claims: Claims) -> Corpus:
    """An output of shardmill; or files of another program, if there is no manifest or the user names their format."""
    folder, remote = Path(source), is_url(source)
    if remote and claims.from_format is not None:
        raise UsageError(f"{show(source)}: files of another program are read from a local disk; download them first")
    ours = any((folder / name).exists() for name in (manifest.NAME, journal.NAME))
    if not remote and (claims.from_format is not None or (folder.is_dir() and not ours)):
        return open_foreign(folder, claims)
    return _as_claimed(open_corpus(source), claims)


def _as_claimed(corpus: Corpus, claims: Claims) -> Corpus:
    """An output of shardmill says everything itself; but one without end-of-text tokens may get the one that is named."""
    check_claims(corpus.folder, corpus.dtype, claims)
    size = corpus.manifest.job.get("vocabulary_size")
    if claims.eot_id in (None, corpus.eot_id):
        return corpus
    if corpus.eot_side != "none" or (size is not None and claims.eot_id >= size):
        raise UsageError(
            f"--eot-id {claims.eot_id:,}: the manifest in {show(corpus.folder)} says end-of-text {corpus.eot_side}, id {corpus.eot_id}, and a vocabulary of {size}; drop --eot-id"
        )
    return replace(corpus, eot_id=claims.eot_id)


def open_foreign(folder: Path, claims: Claims) -> Corpus:
    """The files of one format in a folder; those with val in their names are the validation set."""
    found = get(claims.from_format or detect(folder))
    if found.name in ("mds", "litdata"):
        shards = [shard for index in _indexes(folder) for shard in _listed(index, found.name)]
    else:
        paths = _paths(folder, found)
        _refuse_gaps(paths)
        shards = [_read_shard(path, found, claims) for path in paths]
    if not shards:
        raise InputError(f"{show(folder)}: no {INDEX} in it, or in its train and val folders, lists any shard")
    dtype = shards[0].dtype
    for shard in shards:
        if shard.dtype != dtype:
            raise InputError(
                f"{show(shard.path)}: holds {shard.dtype.name}, and {show(shards[0].path)} holds {dtype.name}; the files of one folder must have one type. Convert them separately"
            )
    check_claims(folder, dtype, claims)
    side = found.eot_side if claims.eot_id is not None else "none"
    splits: dict[str, Split] = {
        name: _split(name, some, claims.eot_id, side)
        for name in SPLITS
        if (some := [shard for shard in shards if _split_name(shard.path, folder) == name])
    }
    choices = {"format": found.name}
    job: dict[str, Any] = {"choices": choices, "inputs": [], "tokenizer_sha256": None, "vocabulary_size": None}
    made = Manifest(job=job, dtype=dtype.name, eot_id=claims.eot_id, eot_side=side, counts=Counts(), files=())
    return Corpus(fileset=LocalFiles(folder), manifest=made, splits=splits, eot_id=claims.eot_id, foreign=True)


def check_claims(folder: Path | str, dtype: TokenType, claims: Claims) -> None:
    """The user must not contradict the files."""
    if claims.from_dtype not in ("auto", dtype.name):
        raise UsageError(
            f"--from-dtype {claims.from_dtype}: the files in {show(folder)} hold {dtype.name}; leave it out. --dtype chooses what is written"
        )
    if claims.eot_id is not None and claims.eot_id >> 8 * dtype.itemsize:
        raise UsageError(
            f"--eot-id {claims.eot_id:,}: the files in {show(folder)} hold {dtype.name}, whose largest id is {(1 << 8 * dtype.itemsize) - 1:,}; check --eot-id and --from-dtype"
        )


def detect(folder: Path) -> str:
    """The format, by names and first bytes; raw integers are not recognizable."""
    for index in _indexes(folder):
        content = _read_index(index)
        if "shards" in content or "chunks" in content:
            return "mds" if "shards" in content else "litdata"
    paths = [path for path in _files(folder) if path.is_file()]
    for path in paths:
        if path.suffix == ".ds":
            return "datatrove"
        if path.suffix == ".bin" and path.with_suffix(".idx").exists():
            return "megatron"
        if path.suffix == ".npy":
            return "build-nanogpt" if _stored(path).read(0, 6) == b"\x93NUMPY" else "olmo"
        if path.suffix == ".bin":
            magic = int.from_bytes(_stored(path).read(0, 4), "little")
            if magic in (known for known, _ in LLMC_MAGIC.values()):
                return "llmc"
    raw = any(path.suffix == ".bin" for path in paths)
    why = "its .bin files have no header" if raw else "it holds no known token files"
    raise UsageError(
        f"{show(folder)}: has no manifest.json, and the format cannot be detected: {why}. Pass --from-format ({', '.join(FORMATS)}), and for raw integers --from-dtype"
    )


def _files(folder: Path) -> list[Path]:
    """All but arrays that are not tokens."""
    others = (token_bytes.NAME, "document_offsets.npy")
    return sorted(path for path in folder.iterdir() if not path.name.endswith(others)) if folder.is_dir() else []


def _paths(folder: Path, found: Format) -> list[Path]:
    suffix = Path(found.file).suffix
    paths = [path for path in _files(folder) if path.suffix == suffix]
    if not paths:
        raise InputError(f"{show(folder)}: holds no {suffix} file, the suffix of {found.trainer}'s token files")
    return paths


def _refuse_gaps(paths: list[Path]) -> None:
    """Numbers in names count up; a missing one is a lost shard. Shards of two splits may share one count."""
    numbered: dict[str, list[int]] = {}
    for path in paths:
        if match := re.fullmatch(r"(.*?)(\d+)(\D*)", path.name):
            numbered.setdefault(re.sub("train|val", "*", match[1]), []).append(int(match[2]))
    for name, numbers in numbered.items():
        missing = sorted(set(range(min(numbers), max(numbers) + 1)) - set(numbers))
        if missing:
            raise InputError(
                f"{show(paths[0].parent)}: of the shards {show(name)}{min(numbers)} to {max(numbers)}, number {missing[0]} is missing"
                + (f" ({len(missing):,} in all)" if len(missing) > 1 else "")
                + "; fetch it, or move the others away"
            )


def _read_shard(path: Path, found: Format, claims: Claims) -> _Shard:
    match found.name:
        case "build-nanogpt":
            return _read_npy(path)
        case "llmc" | "modded-nanogpt":
            return _read_llmc(path)
        case "megatron":
            index = path.with_suffix(".idx")
            if not index.exists():
                raise InputError(f"{show(path)}: there is no {show(index.name)} next to it; Megatron needs both files")
            ends = document_index.open_megatron(_stored(index), _stored(path).size)
            return replace(_checked(path, 0, np.dtype(f"<u{ends.itemsize}")), ends=ends)
        case "datatrove":
            shard, index = _checked(path, 0, _datatrove_dtype(path, claims)), path.with_name(path.name + ".index")
            ends_file = document_index.open_ends(_stored(index), shard.file.tokens) if index.exists() else None
            return replace(shard, ends=ends_file)
        case _:
            return _checked(path, 0, _claimed_dtype(path, claims))


def _read_npy(path: Path) -> _Shard:
    stream = io.BytesIO(_stored(path).read(0, 4096))
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except ValueError as e:
        raise InputError(
            f"{show(path)}: is not a .npy file ({show(str(e))}); name the right format with --from-format"
        ) from e
    if dtype.str not in ("<u2", "<u4") or len(shape) != 1:
        raise InputError(
            f"{show(path)}: holds {show(str(dtype))} of shape {shape}; tokens must be a one-dimensional array of uint16 or uint32"
        )
    return _checked(path, stream.tell(), np.dtype(dtype.str), announced=shape[0])


def _read_llmc(path: Path) -> _Shard:
    file = _stored(path)
    numbers = np.frombuffer(file.read(0, 12).ljust(12, b"\0"), "<i4").tolist()
    for itemsize, (magic, version) in LLMC_MAGIC.items():
        if numbers[:2] == [magic, version] and file.size >= LLMC_BYTES:
            return _checked(path, LLMC_BYTES, np.dtype(f"<u{itemsize}"), announced=numbers[2])
    if numbers[0] == _EVAL_MAGIC:
        raise InputError(f"{show(path)}: holds evaluation questions (magic {_EVAL_MAGIC}), not text")
    known = " or ".join(f"{magic}, version {version}" for magic, version in LLMC_MAGIC.values())
    raise InputError(
        f"{show(path)}: begins with magic {numbers[0]}, version {numbers[1]}; files of llm.c begin with {known}. Name the right format with --from-format"
    )


def _checked(path: Path, offset: int, dtype: TokenType, *, announced: int | None = None) -> _Shard:
    """A shard of raw integers after a header, which may announce their number."""
    file = _stored(path)
    tokens, rest = divmod(file.size - offset, dtype.itemsize)
    if announced is not None and announced != tokens:
        raise InputError(
            f"{show(path)}: its header announces {announced:,} tokens, and its {file.size:,} bytes hold {tokens:,}; it was truncated, or the header is wrong"
        )
    if rest:
        raise InputError(
            f"{show(path)}: has {file.size:,} bytes, not a multiple of {dtype.itemsize} ({dtype.name}); it was truncated, or the integers are of another width (--from-dtype)"
        )
    return _Shard(path=path, file=TokenFile(file=file, offset=offset, tokens=tokens), dtype=dtype)


def _datatrove_dtype(path: Path, claims: Claims) -> TokenType:
    """The first line of the metadata ends with the size of a token."""
    metadata = path.with_name(path.name + ".metadata")
    if metadata.exists():
        itemsize = _stored(metadata).read(0, 4096).split(b"\n")[0].rpartition(b"|")[2]
        if itemsize in (b"2", b"4"):
            return np.dtype(f"<u{int(itemsize)}")
    return _claimed_dtype(path, claims)


def _claimed_dtype(path: Path, claims: Claims) -> TokenType:
    if claims.from_dtype == "auto":
        raise UsageError(
            f"{show(path)}: the file does not say how wide its integers are; pass --from-dtype uint16 or --from-dtype uint32"
        )
    return np.dtype("<u2" if claims.from_dtype == "uint16" else "<u4")


def _split(name: SplitName, shards: list[_Shard], eot_id: int | None, side: str) -> Split:
    """The files in order; the document ends count only if every file has them."""
    bases = itertools.accumulate((shard.file.tokens for shard in shards), initial=0)
    ends = [replace(shard.ends, base=base) for shard, base in zip(shards, bases) if shard.ends is not None]
    return Split(
        name=name,
        files=tuple(shard.file for shard in shards),
        dtype=shards[0].dtype,
        ends=tuple(ends) if len(ends) == len(shards) else None,
        eot_id=eot_id,
        eot_side=side,
    )


def _stored(path: Path) -> StoredFile:
    return StoredFile(fileset=LocalFiles(path.parent), name=path.name)


def _split_name(path: Path, folder: Path) -> SplitName:
    return "val" if any("val" in part for part in path.relative_to(folder).parts) else "train"


def _indexes(folder: Path) -> list[Path]:
    """The index.json of each split, or one for the whole folder."""
    candidates = [folder / INDEX, *(folder / split / INDEX for split in SPLITS)]
    return [path for path in candidates if path.is_file()]


def _read_index(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_stored(path).read(0, _LARGEST_INDEX))
    except (ValueError, RecursionError) as e:
        raise InputError(f"{show(path)}: is not valid JSON ({show(str(e))})") from e
    return content if isinstance(content, dict) else {}


def _listed(index: Path, name: str) -> list[_Shard]:
    """The shards that an index.json lists, in its order."""
    content = _read_index(index)
    try:
        if name == "mds":
            return [_read_mds(index, shard) for shard in content["shards"]]
        return [_read_chunk(index, content["config"], chunk) for chunk in content["chunks"]]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:
        raise InputError(
            f"{show(index)}: is not an index of {name} ({type(e).__name__}: {show(str(e))}); name the right format with --from-format"
        ) from e


def _read_mds(index: Path, listed: dict[str, Any]) -> _Shard:
    encodings, names = listed["column_encodings"], listed["column_names"]
    kind, *rest = encodings[0].split(":")
    if names != ["tokens"] or listed["compression"] or kind != "ndarray" or not rest or rest[0] not in _MDS_TYPES:
        raise InputError(
            f"{show(index)}: a shard with {show(str(names))} of {show(str(encodings))}, compression {show(str(listed['compression']))}; supported: a single column tokens of ndarray:TYPE or ndarray:TYPE:N, where TYPE is {', '.join(_MDS_TYPES)}, without compression"
        )
    path, dtype = _sibling(index, listed["raw_data"]["basename"]), np.dtype(_MDS_TYPES[rest[0]])
    file = _stored(path)
    offset = int(np.frombuffer(file.read(0, 8), "<u4")[1])
    if file.size != listed["raw_data"]["bytes"] or offset > file.size:
        raise InputError(
            f"{show(path)}: has {file.size:,} bytes, and {INDEX} says {listed['raw_data']['bytes']:,}; it was truncated, or replaced"
        )
    if len(rest) == 1:  # without a shape, each sample states its own length
        return _Shard(path=path, file=open_samples(file, int(listed["samples"]), dtype), dtype=dtype)
    return _checked(path, offset, dtype)


def _read_chunk(index: Path, config: dict[str, Any], chunk: dict[str, Any]) -> _Shard:
    form = config["data_format"]
    if len(form) != 1 or form[0] not in _LITDATA_TYPES or config.get("compression") or config.get("encryption"):
        raise InputError(
            f"{show(index)}: holds {show(str(form))}, compression {show(str(config.get('compression')))}; supported: tokens of TokensLoader, 16 or 32 bits wide, without compression"
        )
    path, offset = _sibling(index, chunk["filename"]), 4 * (2 + chunk["chunk_size"])
    return _checked(path, offset, np.dtype(_LITDATA_TYPES[form[0]]), announced=chunk["dim"])


def _sibling(index: Path, name: str) -> Path:
    """A file that an index names; the index may be a stranger's, and must not lead elsewhere."""
    if Path(name).name != name:
        raise InputError(f"{show(index)}: names the file {show(name)}, which is not in the same folder")
    return index.with_name(name)
