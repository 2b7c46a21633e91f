"""The finished job → manifest.json: what was made, of what, by which choices. Present only when the job is complete (I3)."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from shardmill import rejects
from shardmill.errors import OutputError
from shardmill.formats.registry import FORMATS
from shardmill.formats.shards import Shard, SideFile
from shardmill.names import show
from shardmill.shelf import Shelf
from shardmill.storage import read_small, write_whole

FORMAT = 1
NAME = "manifest.json"
RUN_NAME = "run.json"
INPUTS_NAME = "manifest.inputs.jsonl"
_LARGEST = 1 << 30
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
    sides: tuple[SideFile, ...] = ()

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
    """JSON as all our files have it: the format number first, then sorted keys, and a newline at the end."""
    body = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=True)
    return b'{\n "format": %d,\n' % FORMAT + body[2:].encode() + b"\n"


def check_name(name: Any) -> None:
    """A name in a manifest or journal means a file that some format writes, so that a stranger's replaces no other."""
    besides = (rejects.NAME, INPUTS_NAME)
    if not isinstance(name, str) or not (name in besides or any(form.owns(name) for form in FORMATS.values())):
        raise ValueError(f"{name!r} is not the name of a file that shardmill writes")


def _check_types(content: dict[str, Any]) -> None:
    """Whoever reads a manifest relies on these."""
    listed = [*content["files"], *content["sides"]]
    numbers = [file["tokens"] for file in content["files"]] + [file["bytes"] for file in listed]
    inputs = content["job"]["inputs"]  # each, or a word about all of them: listing.py
    numbers += [*content["counts"].values()]
    numbers += (
        [inputs["files"], inputs["bytes"] or 0] if isinstance(inputs, dict) else [e["bytes"] or 0 for e in inputs]
    )
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a count is not a whole number")
    if content["dtype"] not in ("uint16", "uint32") or type(content["job"]["vocabulary_size"]) not in (int, type(None)):
        raise ValueError("dtype or vocabulary_size is not one")
    for file in listed:
        check_name(file["name"])
        if file["split"] not in ("train", "val", None) or not all(isinstance(sum_, str) for sum_ in file["checksums"]):
            raise ValueError(f"{file['name']!r} is not described as a file should be")


def write(folder: Path, manifest: Manifest) -> None:
    write_whole(folder / NAME, manifest.to_json())


def read(folder: Path) -> Manifest | None:
    """The manifest of a complete job in this folder, None if there is none."""
    try:
        return parse(read_small(folder / NAME, _LARGEST), folder / NAME)
    except FileNotFoundError:
        return None


def of(shelf: Shelf) -> Manifest | None:
    """The manifest of a complete job, wherever it is."""
    data = shelf.whole(NAME, _LARGEST)
    return None if data is None else parse(data, shelf.path(NAME))


def parse(data: bytes, path: str | Path) -> Manifest:
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise OutputError(
                f"{show(path)}: has format {content['format']!r}, and this version of shardmill knows format {FORMAT}; use the version that wrote it, or another folder"
            )
        _check_types(content)
        return Manifest(
            job=dict(content["job"]),
            dtype=str(content["dtype"]),
            eot_id=content["eot"]["id"],
            eot_side=content["eot"]["side"],
            counts=Counts(**content["counts"]),
            files=tuple(Shard(**{**file, "checksums": tuple(file["checksums"])}) for file in content["files"]),
            sides=tuple(SideFile(**{**side, "checksums": tuple(side["checksums"])}) for side in content["sides"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError) as e:
        raise OutputError(
            f"{show(path)}: is not a manifest that shardmill wrote ({type(e).__name__}: {show(str(e))}); choose another folder with -o"
        ) from e


def when(time_ns: int) -> str:
    """A time as people read it, to the last digit."""
    seconds, rest = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest:09} UTC"


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
