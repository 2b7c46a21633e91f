"""Token files that another program made → a Corpus, checked as far as the files can tell."""

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.errors import InputError, UsageError
from shardmill.formats import mds_litdata
from shardmill.formats.mds_litdata import SampleFile, open_samples
from shardmill.formats.registry import FORMATS, LLMC_BYTES, LLMC_MAGIC, Format, get
from shardmill.formats.shards import SPLITS, SplitName, TokenType
from shardmill.io.fileset import LocalFiles, StoredFile
from shardmill.io.reading import InputReader
from shardmill.results import document_index
from shardmill.results.corpus import Corpus, Split, TokenFile
from shardmill.results.document_index import Ends, EndsFile, MegatronEnds
from shardmill.spec import Dtype
from shardmill.system.names import show

_SUFFIX = {"build-nanogpt": ".npy", "olmo": ".npy", "datatrove": ".ds"}
_EVAL_MAGIC = 20240522
_LARGEST_INDEX = 1 << 28
# What MDS and litdata call the integers that tokens are here. Ids are below 2^31, so signed ones are read as unsigned;
# whoever copies them sees that none is negative.
_MDS_TYPES = {"uint16": "<u2", "uint32": "<u4", "int32": "<u4", "uint64": "<u8", "int64": "<u8"}
_LITDATA_TYPES = {
    "no_header_tensor:20": "<u2",
    "no_header_tensor:15": "<u4",
    "no_header_tensor:16": "<u4",
    "no_header_numpy:2": "<u4",
    "no_header_numpy:5": "<u2",
    "no_header_numpy:6": "<u4",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """What the user says of files that cannot tell it themselves."""

    format: str | None = None
    dtype: Dtype = "auto"
    eot_id: int | None = None
    """The end-of-text token; saying so also says that no text holds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    path: Path
    offset: int
    tokens: int
    dtype: TokenType
    index: Path | None = None
    samples: int | None = None
    """How many the shard has, where each says its own length."""


def open_foreign(folder: Path, claims: Claims) -> Corpus:
    """Files of one format in a folder; those with val in their names are the validation set."""
    found_format = get(claims.format or detect(folder))
    if found_format.name in ("mds", "litdata"):
        found = [file for index in _indexes(folder) for file in _listed(index, found_format.name)]
    else:
        paths = _paths(folder, found_format)
        _refuse_gaps(paths)
        found = [_look(path, found_format, claims) for path in paths]
    if not found:
        raise InputError(
            f"{show(folder)}: holds no shards that an {mds_litdata.INDEX} lists, in it or in train and val"
        )
    for file in found:
        if file.dtype != found[0].dtype:
            raise InputError(
                f"{show(file.path)}: holds {file.dtype.name}, and {show(found[0].path)} holds {found[0].dtype.name}; files of one folder must agree. Convert them apart"
            )
    check_claims(folder, found[0].dtype, claims)
    side = found_format.eot_side if claims.eot_id is not None else "none"
    splits = {
        name: _split(
            name,
            [file for file in found if _split_name(file.path, folder) == name],
            found[0].dtype,
            claims.eot_id,
            side,
        )
        for name in SPLITS
    }
    return Corpus(
        folder=folder,
        format=found_format,
        dtype=found[0].dtype,
        splits={name: split for name, split in splits.items() if split.files},
        eot_id=claims.eot_id,
        eot_side=side,
    )


def check_claims(folder: Path | str, dtype: TokenType, claims: Claims) -> None:
    """What the user says must not contradict what the files say."""
    if claims.dtype not in ("auto", dtype.name):
        raise UsageError(
            f"--from-dtype {claims.dtype}: the files in {show(folder)} say that they hold {dtype.name}; leave it out. What is written is chosen with --dtype"
        )
    if claims.eot_id is not None and claims.eot_id >> 8 * dtype.itemsize:
        raise UsageError(
            f"--eot-id {claims.eot_id:,}: the files in {show(folder)} hold {dtype.name}, which ends at {(1 << 8 * dtype.itemsize) - 1:,}"
        )


def detect(folder: Path) -> str:
    """The format, told by names and first bytes; raw integers cannot be told."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
    for index in _indexes(folder):
        content = _read_index(index)
        if "shards" in content or "chunks" in content:
            return "mds" if "shards" in content else "litdata"
    for path in paths:
        if path.suffix == ".ds":
            return "datatrove"
        if path.suffix == ".bin" and path.with_suffix(".idx").exists():
            return "megatron"
        if path.suffix == ".npy":
            return "build-nanogpt" if _head(path, 6) == b"\x93NUMPY" else "olmo"
        if path.suffix == ".bin":
            magic = int.from_bytes(_head(path, 4), "little")
            if magic in (known for known, _ in LLMC_MAGIC.values()):
                return "llmc"
    what = (
        "it holds no token files that are known"
        if not any(path.suffix == ".bin" for path in paths)
        else "its .bin files have no header"
    )
    raise UsageError(
        f"{show(folder)}: has no manifest.json, and the format cannot be told: {what}. Say it with --from ({', '.join(FORMATS)}), and for raw integers --from-dtype"
    )


def _paths(folder: Path, found: Format) -> list[Path]:
    suffix = _SUFFIX.get(found.name, ".bin")
    paths = sorted(path for path in folder.iterdir() if path.suffix == suffix) if folder.is_dir() else []
    if not paths:
        raise InputError(f"{show(folder)}: holds no {suffix} file, and files of {found.trainer} end with it")
    return paths


def _refuse_gaps(paths: list[Path]) -> None:
    """Numbers in names count up; one that is missing is a shard that was lost. Shards of two splits may share a count."""
    numbered: dict[str, list[int]] = {}
    for path in paths:
        if match := re.fullmatch(r"(.*?)(\d+)(\D*)", path.name):
            numbered.setdefault(re.sub("train|val", "*", match[1]), []).append(int(match[2]))
    for name, numbers in numbered.items():
        missing = sorted(set(range(min(numbers), max(numbers) + 1)) - set(numbers))
        if missing:
            raise InputError(
                f"{show(paths[0].parent)}: shards {show(name)}{min(numbers)} to {max(numbers)} are there, but number {missing[0]} is missing"
                + (f" ({len(missing):,} are)" if len(missing) > 1 else "")
                + "; fetch it, or move the others away"
            )


def _look(path: Path, found: Format, claims: Claims) -> _Found:
    with InputReader(str(path)) as reader:
        size, head = reader.size, reader.read(0, 4096)
    match found.name:
        case "build-nanogpt":
            return _look_npy(path, size, head)
        case "llmc" | "modded-nanogpt":
            return _look_llmc(path, size, head)
        case "megatron":
            index = path.with_suffix(".idx")
            if not index.exists():
                raise InputError(
                    f"{show(path)}: there is no {show(index.name)} beside it, and Megatron's files come in pairs"
                )
            dtype: TokenType = document_index.open_megatron(_file(index), 0, size)[1]
            return _counted(path, size, 0, dtype, index)
        case "datatrove":
            index = path.with_name(path.name + ".index")
            return _counted(path, size, 0, _datatrove_dtype(path, claims), index if index.exists() else None)
        case _:
            return _counted(path, size, 0, _claimed(path, claims), None)


def _look_npy(path: Path, size: int, head: bytes) -> _Found:
    try:
        stream = io.BytesIO(head)
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except ValueError as e:
        raise InputError(f"{show(path)}: is not a .npy file ({show(str(e))}); name the right format with --from") from e
    if dtype.str not in ("<u2", "<u4") or len(shape) != 1:
        raise InputError(
            f"{show(path)}: holds {show(str(dtype))} of shape {shape}; tokens are one row of uint16 or uint32"
        )
    return _counted(path, size, stream.tell(), np.dtype(dtype.str), None, said=shape[0])


def _look_llmc(path: Path, size: int, head: bytes) -> _Found:
    numbers = np.frombuffer(head[:12].ljust(12, b"\0"), "<i4").tolist()
    for itemsize, (magic, version) in LLMC_MAGIC.items():
        if numbers[:2] == [magic, version] and size >= LLMC_BYTES:
            return _counted(path, size, LLMC_BYTES, np.dtype(f"<u{itemsize}"), None, said=numbers[2])
    if numbers[0] == _EVAL_MAGIC:
        raise InputError(f"{show(path)}: is a file of questions for evaluation (magic {_EVAL_MAGIC}), not of text")
    known = " or ".join(f"{magic}, version {version}" for magic, version in LLMC_MAGIC.values())
    raise InputError(
        f"{show(path)}: begins with magic {numbers[0]}, version {numbers[1]}; files of llm.c begin with {known}. Name the right format with --from"
    )


def _counted(
    path: Path, size: int, offset: int, dtype: TokenType, index: Path | None, said: int | None = None
) -> _Found:
    tokens, rest = divmod(size - offset, dtype.itemsize)
    if said is not None and said != tokens:
        raise InputError(
            f"{show(path)}: its header says {said:,} tokens, and there is room for {tokens:,} in its {size:,} bytes; it was cut short, or the header lies"
        )
    if rest:
        raise InputError(
            f"{show(path)}: has {size:,} bytes, which is no whole number of {dtype.name}; it was cut short, or the integers are others (--from-dtype)"
        )
    return _Found(path=path, offset=offset, tokens=tokens, dtype=dtype, index=index)


def _datatrove_dtype(path: Path, claims: Claims) -> TokenType:
    """The first line of the metadata ends with the size of a token."""
    notes = path.with_name(path.name + ".metadata")
    if notes.exists():
        said = _head(notes, 4096).split(b"\n")[0].rpartition(b"|")[2]
        if said in (b"2", b"4"):
            return np.dtype("<u2" if said == b"2" else "<u4")
    return _claimed(path, claims)


def _claimed(path: Path, claims: Claims) -> TokenType:
    if claims.dtype == "auto":
        raise UsageError(
            f"{show(path)}: the file does not say how wide its integers are; say it with --from-dtype uint16 or --from-dtype uint32"
        )
    return np.dtype("<u2" if claims.dtype == "uint16" else "<u4")


def _split(name: SplitName, found: list[_Found], dtype: TokenType, eot_id: int | None, side: str) -> Split:
    files: list[TokenFile | SampleFile] = []
    parts: list[EndsFile | MegatronEnds] = []
    base = 0
    for file in found:
        if file.samples is None:
            files.append(TokenFile(file=_file(file.path), offset=file.offset, tokens=file.tokens))
        else:
            files.append(SampleFile(file=_file(file.path), samples=file.samples, tokens=file.tokens))
        if file.index is not None and file.index.suffix == ".idx":
            parts.append(document_index.open_megatron(_file(file.index), base, file.tokens * file.dtype.itemsize)[0])
        elif file.index is not None:
            parts.append(document_index.open_ends(_file(file.index), base, file.tokens))
        base += file.tokens
    known: Ends | None = tuple(parts) if parts and len(parts) == len(files) else None
    return Split(name=name, files=tuple(files), dtype=dtype, ends=known, eot_id=eot_id, eot_side=side)


def _file(path: Path) -> StoredFile:
    return StoredFile(fileset=LocalFiles(path.parent), name=path.name)


def _split_name(path: Path, folder: Path) -> SplitName:
    return "val" if any("val" in part for part in path.relative_to(folder).parts) else "train"


def _indexes(folder: Path) -> list[Path]:
    """index.json of a split each, or one for all that is there."""
    places = [folder / mds_litdata.INDEX, *(folder / split / mds_litdata.INDEX for split in SPLITS)]
    return [path for path in places if path.is_file()]


def _read_index(path: Path) -> dict[str, Any]:
    with InputReader(str(path)) as reader:
        data = reader.read(0, _LARGEST_INDEX)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{show(path)}: cannot be read as JSON ({show(str(e))})") from e
    return content if isinstance(content, dict) else {}


def _listed(index: Path, name: str) -> list[_Found]:
    """The shards that an index.json speaks of, in its order."""
    content = _read_index(index)
    try:
        if name == "mds":
            return [_look_mds(index, shard) for shard in content["shards"]]
        return [_look_chunk(index, content["config"], chunk) for chunk in content["chunks"]]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:
        raise InputError(
            f"{show(index)}: is not an index of {name} ({type(e).__name__}: {show(str(e))}); name the right format with --from"
        ) from e


def _look_mds(index: Path, shard: dict[str, Any]) -> _Found:
    encodings, names = shard["column_encodings"], shard["column_names"]
    kind, *rest = encodings[0].split(":")
    if names != ["tokens"] or shard["compression"] or kind != "ndarray" or not rest or rest[0] not in _MDS_TYPES:
        raise InputError(
            f"{show(index)}: a shard with {show(str(names))} of {show(str(encodings))}, compression {show(str(shard['compression']))}; what can be read has only tokens, of ndarray:TYPE or ndarray:TYPE:N with {', '.join(_MDS_TYPES)} as the type, and no compression"
        )
    path, dtype = _beside(index, shard["raw_data"]["basename"]), np.dtype(_MDS_TYPES[rest[0]])
    with InputReader(str(path)) as reader:
        size, head = reader.size, reader.read(0, 8)
    offset = int(np.frombuffer(head, "<u4")[1])
    if size != shard["raw_data"]["bytes"] or offset > size:
        raise InputError(
            f"{show(path)}: has {size:,} bytes, and {mds_litdata.INDEX} says {shard['raw_data']['bytes']:,}; it was cut short, or is another"
        )
    if len(rest) == 1:  # without a shape, each sample has its own
        tokens = open_samples(_file(path), int(shard["samples"]), dtype).tokens
        return _Found(path=path, offset=0, tokens=tokens, dtype=dtype, samples=int(shard["samples"]))
    return _counted(path, size, offset, dtype, None)


def _look_chunk(index: Path, config: dict[str, Any], chunk: dict[str, Any]) -> _Found:
    form = config["data_format"]
    if len(form) != 1 or form[0] not in _LITDATA_TYPES or config.get("compression") or config.get("encryption"):
        raise InputError(
            f"{show(index)}: holds {show(str(form))}, compression {show(str(config.get('compression')))}; what can be read is tokens of TokensLoader, 16 or 32 bits wide, and no compression"
        )
    path = _beside(index, chunk["filename"])
    with InputReader(str(path)) as reader:
        size = reader.size
    return _counted(path, size, 4 * (2 + chunk["chunk_size"]), np.dtype(_LITDATA_TYPES[form[0]]), None, chunk["dim"])


def _beside(index: Path, name: str) -> Path:
    """A file that an index names: it may be a stranger's, and must not lead elsewhere."""
    if Path(name).name != name:
        raise InputError(f"{show(index)}: names the file {show(name)}, which is not beside it")
    return index.with_name(name)


def _head(path: Path, length: int) -> bytes:
    with InputReader(str(path)) as reader:
        return reader.read(0, length)
