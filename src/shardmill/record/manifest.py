"""The finished job → manifest.json: what was made, of what, by which choices. Present only when the job is complete (I3)."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import xxhash

from shardmill.documents import rejects
from shardmill.errors import OutputError
from shardmill.formats.registry import FORMATS
from shardmill.formats.shards import Shard, SidecarFile
from shardmill.io.fileset import FileSet
from shardmill.io.storage import read_small, write_whole
from shardmill.spec import Spec
from shardmill.system.names import show

FORMAT = 2
NAME = "manifest.json"
RUN_NAME = "run.json"
INPUTS_NAME = "manifest.inputs.jsonl"
_LARGEST = 1 << 30
_LARGEST_NUMBER = (1 << 63) - 1
_LONGEST_CHOICE = 1024  # bits; a seed may be any number
_DEEPEST = 16
_LONGEST_VALUE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Everything that was read, accounted for (I6): documents = written + empty + rejected + not in the sample."""

    input_bytes: int = 0
    documents: int = 0
    documents_empty: int = 0
    documents_rejected: int = 0
    documents_unsampled: int = 0
    documents_val: int = 0
    passages: int = 0
    passages_val: int = 0
    passages_rejected: int = 0
    passages_unsampled: int = 0
    byte_order_marks: int = 0
    replaced_characters: int = 0
    forced_cuts: int = 0

    @property
    def rejected(self) -> int:
        return self.documents_rejected + self.passages_rejected

    @property
    def records(self) -> int:
        """All that could be rejected."""
        return self.documents + self.passages + self.passages_rejected + self.passages_unsampled

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All of it is decided by the Spec and the inputs (I1); times, memory and machine are in run.json."""

    job: dict[str, Any]
    """What was asked for and of what: choices, tokenizer, inputs. Two jobs with equal ones give equal bytes."""
    dtype: str
    eot_id: int | None
    eot_side: str
    counts: Counts
    files: tuple[Shard, ...]
    sides: tuple[SidecarFile, ...] = ()
    format: int = FORMAT
    """The format number that it was read with; it is always written with the current one."""

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)

    def to_json(self) -> bytes:
        return dump(
            {
                "job": self.job,
                "dtype": self.dtype,
                "eot": {"id": self.eot_id, "side": self.eot_side},
                "counts": asdict(self.counts),
                "files": [asdict(file) for file in self.files],
                "sides": [asdict(side) for side in self.sides],
            }
        )


def dump(content: dict[str, Any]) -> bytes:
    """JSON as all our files have it: format number, checksum of all that follows, sorted keys, and a newline at the end."""
    rest = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=True)[2:].encode() + b"\n"
    return _head(rest) + rest


def _head(rest: bytes) -> bytes:
    return b'{\n "format": %d,\n "checksum": "%s",\n' % (FORMAT, xxhash.xxh3_128_hexdigest(rest).encode())


def load(data: bytes, path: str | Path) -> dict[str, Any]:
    """What dump wrote, to the last bit; format 1, which had no checksum, is read as it is."""
    content = json.loads(data)
    check_depth(content)
    number = content["format"]
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise OutputError(
            f"{show(path)}: has format {_brief(number)}, and this version of shardmill knows formats 1 to {FORMAT}; use the version that wrote it, or another folder"
        )
    rest = data[len(_head(b"")) :]
    if number == FORMAT and data != _head(rest) + rest:
        raise OutputError(
            f"{show(path)}: is not what shardmill wrote (its checksum does not match its content), so it was edited, or the disk is failing; restore it from a copy, or make the result again"
        )
    return dict(content)


def check_name(name: Any) -> None:
    """A name in a manifest or journal means a file that some format writes, so that a stranger's replaces no other."""
    besides = (rejects.NAME, INPUTS_NAME)
    if not isinstance(name, str) or not (name in besides or any(form.owns(name) for form in FORMATS.values())):
        raise ValueError(f"{_brief(name)} is not the name of a file that shardmill writes")


def check_numbers(numbers: Iterable[Any], *, none: bool = False) -> None:
    """none: None is welcome too."""
    for number in numbers:
        if none and number is None:
            continue
        if type(number) is not int or not 0 <= number <= _LARGEST_NUMBER:
            raise ValueError(f"{_brief(number)} is not a whole number, or too large")


def check_depth(content: Any) -> None:
    """Ours is never nested deeply, and whoever walks through a stranger's must not run out of stack."""
    level = [content]
    for _ in range(_DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ValueError("it is nested too deeply")


def check_job(job: dict[str, Any]) -> None:
    """A job in a manifest or journal: every part that anyone relies on is of its type."""
    types = _choice_types()
    for name, value in job["choices"].items():
        odd = isinstance(value, int) and value.bit_length() > _LONGEST_CHOICE
        if odd or (name in types and type(value) not in types[name]):
            raise ValueError(f"choices.{name} is {_brief(value)}")
    inputs = job["inputs"]  # each, or a word about all of them: input_list.py
    if isinstance(inputs, dict):
        check_numbers([inputs["files"]])
        check_numbers([inputs["bytes"]], none=True)
    else:
        for entry in inputs:
            check_input(entry)
    check_numbers([job["vocabulary_size"]], none=True)
    if not all(isinstance(job.get(name), str | None) for name in ("tokenizer_sha256", "made_by")):
        raise ValueError("tokenizer_sha256 or made_by is not a text")


def check_input(entry: Any) -> None:
    """What stands of one input in a manifest, or in the list beside it."""
    check_numbers([entry["bytes"]], none=True)
    if type(entry["path"]) is not str:
        raise ValueError("an input has no path")


@lru_cache(maxsize=1)
def _choice_types() -> dict[str, set[type]]:
    """Of each choice of a Spec the types that its value may have in JSON."""
    found: dict[str, set[type]] = {}
    for name, hint in get_type_hints(Spec).items():
        kinds = {str} if get_origin(hint) is Literal else set(get_args(hint) or (hint,))
        found[name] = kinds | {int} if float in kinds else kinds
    return found


def _check_types(content: dict[str, Any]) -> None:
    """Whoever reads a manifest relies on these."""
    check_job(content["job"])
    files, sides = content["files"], content["sides"]
    check_numbers(number for file in files for number in (file["tokens"], file.get("offset", 0)))
    check_numbers([*content["counts"].values(), *(file["bytes"] for file in (*files, *sides))])
    eot, width = content["eot"], {"uint16": 16, "uint32": 32}[content["dtype"]]
    check_numbers([eot["id"]], none=True)
    if eot["side"] not in ("after", "before", "none") or (eot["id"] or 0) >> width:
        raise ValueError(f"eot is {_brief(eot)}")
    for file in (*files, *sides):
        check_name(file["name"])
        if not all(isinstance(checksum, str) for checksum in file["checksums"]):
            raise ValueError(f"the checksums of {file['name']} are not ones")
    splits = {file["split"] for file in files} | {side["split"] for side in sides} - {None}
    names = {file["name"] for file in (*files, *sides)}
    if not splits <= {"train", "val"} or len(names) < len(files) + len(sides):
        raise ValueError("a file is listed twice, or in no split")
    if not all(isinstance(side["kind"], str) for side in sides):
        raise ValueError("a file is of no kind")


def write(folder: Path, manifest: Manifest) -> None:
    write_whole(folder / NAME, manifest.to_json())


def read(folder: Path) -> Manifest | None:
    """The manifest of a complete job in this folder, None if there is none."""
    try:
        return parse(read_small(folder / NAME, _LARGEST), folder / NAME)
    except FileNotFoundError:
        return None


def of(fileset: FileSet) -> Manifest | None:
    """The manifest of a complete job, wherever it is."""
    data = fileset.read_all(NAME, _LARGEST)
    return None if data is None else parse(data, fileset.path(NAME))


def parse(data: bytes, path: str | Path) -> Manifest:
    try:
        content = load(data, path)
        _check_types(content)
        return Manifest(
            job=dict(content["job"]),
            dtype=content["dtype"],
            eot_id=content["eot"]["id"],
            eot_side=content["eot"]["side"],
            counts=Counts(**content["counts"]),
            files=tuple(Shard(**{**file, "checksums": tuple(file["checksums"])}) for file in content["files"]),
            sides=tuple(SidecarFile(**{**side, "checksums": tuple(side["checksums"])}) for side in content["sides"]),
            format=content["format"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise OutputError(
            f"{show(path)}: is not a manifest that shardmill wrote ({type(e).__name__}: {show(str(e))}); choose another folder with -o"
        ) from e


def when(time_ns: int) -> str:
    """A time as people read it, to the last digit."""
    seconds, rest = divmod(time_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest:09} UTC"
    except (ValueError, OverflowError, OSError):  # some file systems know years that datetime does not
        return f"{seconds}.{rest:09} s after 1970"


def differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> list[str]:
    """What changed between two jobs, field by field, one line each."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{place}{show(name)}.")
        elif isinstance(before, list) and isinstance(after, list):
            lines += _list_differences(before, after, f"{place}{show(name)}")
        elif before != after:
            lines.append(f"{place}{show(name)}: was {_brief(before)}, is now {_brief(after)}")
    return lines


def _list_differences(before: list[Any], after: list[Any], place: str) -> list[str]:
    if len(before) != len(after):
        return [f"{place}: were {len(before):,}, are now {len(after):,}"]
    lines = []
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            both = isinstance(one, dict) and isinstance(other, dict)
            lines += (
                differences(one, other, f"{place}[{number}].")
                if both
                else [f"{place}[{number}]: was {_brief(one)}, is now {_brief(other)}"]
            )
    return lines


def _brief(value: Any) -> str:
    brief = repr(value)
    return show(brief if len(brief) <= _LONGEST_VALUE else brief[:_LONGEST_VALUE] + " …")
