"""The finished job → manifest.json: what was made, from what, with which choices. Present only when complete (I3)."""

import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import xxhash

from shardmill.errors import OutputError
from shardmill.formats.output_files import checksums_of
from shardmill.formats.registry import FORMATS
from shardmill.formats.shards import Shard, SidecarFile, SplitText
from shardmill.io.fileset import FileSet
from shardmill.record.untrusted import LARGEST_NUMBER, brief, build, check_depth, typed
from shardmill.spec import Spec, hints_of, option_of
from shardmill.system.names import show
from shardmill.tokens import token_bytes
from shardmill.tokens.token_bytes import ByteRule

# 2: a checksum of the rest. 3: passages of running text begin elsewhere. 4: other passages of long texts are val.
FORMAT = 4
NAME = "manifest.json"
RUN_NAME = "run.json"
_LARGEST = 1 << 30
_LONGEST_CHOICE = 1024  # bits; a seed may be any number


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Accounts for everything that was read (I6): documents = written + empty + rejected + not sampled + filtered."""

    input_bytes: int = 0
    documents: int = 0
    documents_empty: int = 0
    documents_rejected: int = 0
    documents_unsampled: int = 0
    documents_filtered: int = 0
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
        """Everything that could be rejected."""
        return self.documents + self.passages + self.passages_rejected + self.passages_unsampled

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**dict(zip(_COUNTED, map(operator.add, _counts(self), _counts(other)))))


_COUNTED = tuple(field.name for field in fields(Counts))
_counts = operator.attrgetter(*_COUNTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """How much text each split holds, as UTF-8, and how the bytes of its tokens (token_bytes.npy) compare with that."""

    train: SplitText
    val: SplitText
    rule: ByteRule

    def __add__(self, other: "Text") -> "Text":
        return Text(train=self.train + other.train, val=self.val + other.val, rule=self.rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Depends only on the Spec and the inputs (I1); times, memory and machine are in run.json."""

    job: dict[str, Any]
    """What was asked for: choices, tokenizer, inputs. Equal jobs give equal bytes."""
    dtype: str
    eot_id: int | None
    eot_side: str
    counts: Counts
    files: tuple[Shard, ...]
    sidecars: tuple[SidecarFile, ...] = ()
    text: Text | None = None
    """None: unknown, as in outputs of earlier versions."""
    format: int = FORMAT
    """The format number it was read with; it is always written with the current one."""

    def __repr__(self) -> str:
        return f"Manifest({self.tokens:,} tokens, {self.dtype}, {len(self.files):,} files, {self.counts.documents:,} documents)"

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)

    @property
    def names(self) -> set[str]:
        """All files of the result that it lists."""
        return {shard.name for shard in self.files} | {sidecar.name for sidecar in self.sidecars}

    def with_table(self, table: bytes | None) -> "Manifest":
        """With token_bytes.npy, which is written at once, right before the manifest; None: there is none."""
        if table is None:
            return self
        listed = SidecarFile(
            name=token_bytes.NAME, split=None, kind="token-bytes", bytes=len(table), checksums=checksums_of(table)
        )
        return replace(self, sidecars=tuple(sorted((*self.sidecars, listed), key=lambda sidecar: sidecar.name)))

    def to_json(self) -> bytes:
        content = asdict(self)
        del content["format"]
        content["eot"] = {"id": content.pop("eot_id"), "side": content.pop("eot_side")}
        content["sides"] = content.pop("sidecars")
        if self.text is None:
            del content["text"]
        return dump(content)


def dump(content: dict[str, Any]) -> bytes:
    """JSON as in all our files: a format number, a checksum of the rest, sorted keys, a newline at the end."""
    rest = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=True)[2:].encode() + b"\n"
    return _head(rest, FORMAT) + rest


def _head(rest: bytes, number: int) -> bytes:
    return b'{\n "format": %d,\n "checksum": "%s",\n' % (number, xxhash.xxh3_128_hexdigest(rest).encode())


def load(data: bytes, path: str | Path) -> dict[str, Any]:
    """What dump wrote, to the last bit; format 1, which had no checksum, is read unchecked."""
    content = json.loads(data)
    check_depth(content)
    number = content["format"]
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise OutputError(
            f"{show(path)}: has format {brief(number)}, and this version of shardmill reads formats 1 to {FORMAT}; use the version that wrote it, or choose another folder"
        )
    rest = data[len(_head(b"", number)) :]
    if number > 1 and data != _head(rest, number) + rest:
        raise OutputError(
            f"{show(path)}: is not what shardmill wrote (its checksum does not match its content): it was edited, or the disk is failing; restore it from a copy, or prepare the result again"
        )
    return dict(content)


def check_name(name: Any) -> None:
    """A manifest or journal may only name files that some format writes, so that a stranger's replaces no others."""
    if not isinstance(name, str) or not any(form.owns(name) for form in FORMATS.values()):
        raise ValueError(f"{brief(name)} is not the name of a file that shardmill writes")


def check_job(job: dict[str, Any]) -> None:
    """Every part of a manifest's or journal's job that the code relies on has its type."""
    types = _choice_types()
    for name, value in job["choices"].items():
        odd = isinstance(value, int) and value.bit_length() > _LONGEST_CHOICE
        if odd or (name in types and type(value) not in types[name]):
            raise ValueError(f"choices.{name} is {brief(value)}")
    inputs = job["inputs"]  # each, or a summary of very many: input_list.py
    if isinstance(inputs, dict):
        typed(int, inputs["files"])
        typed(int | None, inputs["bytes"])
    else:
        for entry in inputs:
            check_input(entry)
    typed(int | None, job["vocabulary_size"])
    typed(str | None, job.get("tokenizer_sha256"))
    typed(str | None, job.get("made_by"))


def check_input(entry: Any) -> None:
    """One input, as the manifest or its list describes it."""
    size = 0 if entry["bytes"] is None else entry["bytes"]
    if type(entry["path"]) is not str or type(size) is not int or not 0 <= size <= LARGEST_NUMBER:
        raise ValueError(f"{brief(entry)} does not describe an input")


@lru_cache(maxsize=1)
def _choice_types() -> dict[str, set[type]]:
    """The types that each choice of a Spec may have in JSON."""
    found: dict[str, set[type]] = {}
    for name, hint in hints_of(Spec).items():
        origin, kinds = get_origin(hint), set(get_args(hint) or (hint,))
        if origin in (Literal, Sequence):
            kinds = {str} if origin is Literal else {list, NoneType}
        found[name] = kinds | {int} if float in kinds else kinds
    return found


def of(fileset: FileSet) -> Manifest | None:
    """The manifest of a complete job, local or remote; None: there is none."""
    data = fileset.read_all(NAME, _LARGEST)
    return None if data is None else parse(data, fileset.path(NAME))


def parse(data: bytes, path: str | Path) -> Manifest:
    try:
        content = load(data, path)
        check_job(content["job"])
        made = Manifest(
            job=dict(content["job"]),
            dtype=content["dtype"],
            eot_id=typed(int | None, content["eot"]["id"]),
            eot_side=content["eot"]["side"],
            counts=build(Counts, content["counts"]),
            files=tuple(build(Shard, file) for file in content["files"]),
            sidecars=tuple(build(SidecarFile, sidecar) for sidecar in content["sides"]),
            text=build(Text, content["text"]) if "text" in content else None,
            format=content["format"],
        )
        for name in made.names:
            check_name(name)
        if len(made.names) < len(made.files) + len(made.sidecars):
            raise ValueError("a file is listed twice")
        width = {"uint16": 16, "uint32": 32}[made.dtype]
        if made.eot_side not in ("after", "before", "none") or (made.eot_id or 0) >> width:
            raise ValueError(f"eot is {brief(content['eot'])}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise OutputError(
            f"{show(path)}: is not a manifest that shardmill wrote ({type(e).__name__}: {show(str(e))}); choose another folder with -o"
        ) from e
    return made


def when(time_ns: int) -> str:
    """A time for people to read, to the nanosecond."""
    seconds, rest = divmod(time_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{rest:09} UTC"
    except (ValueError, OverflowError, OSError):  # some file systems know years that datetime does not
        return f"{seconds}.{rest:09} s after 1970"


def differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> list[str]:
    """What changed between two jobs, field by field, one line each; a choice as the option that makes it."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, "--" if name == "choices" else f"{place}{show(name)}.")
        elif before != after:
            what = option_of(show(name)) if place == "--" else place + show(name)
            lines.append(f"{what}: was {brief(before)}, is now {brief(after)}")
    return lines
