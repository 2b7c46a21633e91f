"""The finished job → manifest.json: what was made, of what, by which choices. Present only when the job is complete (I3)."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardmill.errors import OutputError
from shardmill.formats.raw import Shard
from shardmill.storage import show, write_whole

FORMAT = 1
NAME = "manifest.json"
RUN_NAME = "run.json"
_LARGEST = 1 << 30


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
            }
        )


def dump(content: dict[str, Any]) -> bytes:
    """JSON as all our files have it: the format number first, then sorted keys, and a newline at the end."""
    body = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=True)
    return b'{\n "format": %d,\n' % FORMAT + body[2:].encode() + b"\n"


def write(folder: Path, manifest: Manifest) -> None:
    write_whole(folder / NAME, manifest.to_json())


def read(folder: Path) -> Manifest | None:
    """The manifest of a complete job in this folder, None if there is none."""
    path = folder / NAME
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise OutputError(
                f"{show(path)}: has format {content['format']!r}, and this version of shardmill knows format {FORMAT}; use the version that wrote it, or another folder"
            )
        return Manifest(
            job=dict(content["job"]),
            dtype=str(content["dtype"]),
            eot_id=content["eot"]["id"],
            eot_side=content["eot"]["side"],
            counts=Counts(**content["counts"]),
            files=tuple(Shard(**{**file, "checksums": tuple(file["checksums"])}) for file in content["files"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise OutputError(
            f"{show(path)}: is not a manifest that shardmill wrote ({type(e).__name__}: {e}); choose another folder with -o"
        ) from e


def differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> list[str]:
    """What changed between two jobs, field by field, one line each."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{place}{name}.")
        elif before != after:
            lines.append(f"{place}{name}: was {_brief(before)}, is now {_brief(after)}")
    return lines


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value):,} entries" if len(value) != 1 else show(str(value[0]))
    return show(repr(value))
