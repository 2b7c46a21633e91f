"""What is durable so far → the point where the same command goes on.

OUT/shardmill.journal is a list of lines, each a checksum and a JSON object. The first says what the job is,
each other one how far it is. A line is written only after the data that it speaks of is on disk, and a
reader trusts only lines whose checksum is right: what a crash tore off at the end is as if never written.
The checksum covers all lines before it, so that none can be missing, doubled or in another place.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardmill import storage
from shardmill.documents.pieces import BEGINNING, Position
from shardmill.errors import OutputError
from shardmill.formats.files import FileState, OutputFiles
from shardmill.manifest import Counts, check_name
from shardmill.names import show

NAME = "shardmill.journal"
FORMAT = 2
_LARGEST = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The job after one of its Blocks, as it is on disk."""

    index: int = 0
    """The number of the next Block, and where it begins."""
    position: Position = BEGINNING
    val: bool = False
    """The side of the last document, which may not have ended."""
    has_text: bool = False
    """Whether anything of it was written."""
    tokens: int = 0
    ended: int = 0
    """Documents that were written to their end."""
    counts: Counts = field(default_factory=Counts)
    files: dict[str, FileState] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    """What the writer must know beside the sizes of its files."""
    finished: bool = False
    """All files are as they will be: only their names are missing."""


@dataclass(kw_only=True, slots=True)
class Left:
    """What an earlier run left behind."""

    job: dict[str, Any]
    """What decides the bytes, and what shows that an input changed; as begin() was given it."""
    overwrites: bool = False
    """Begun with overwrite: the same command, with overwrite, goes on and does not begin again."""
    split: dict[str, Any] | None = None
    """How far the first pass for the split is, or its outcome."""
    checkpoint: Checkpoint | None = None
    away: set[str] = field(default_factory=set)
    """Files that are in the store, and removed here."""
    valid_bytes: int = 0
    chain: bytes = b""
    """The checksum of the last line."""

    @property
    def bytes(self) -> int:
        """How much of the result is in the folder."""
        files = self.checkpoint.files if self.checkpoint else {}
        return sum(state.bytes for name, state in files.items() if name not in self.away)


class Journal:
    """Appends lines; each append is on disk when it returns."""

    def __init__(self, folder: Path, left: Left | None = None, *, overwrites: bool = False) -> None:
        self.path = folder / NAME
        self._file = storage.DurableLog(self.path, at=left.valid_bytes if left else None)
        self._files = dict(left.checkpoint.files) if left and left.checkpoint else {}
        self._chain = left.chain if left else b""
        self._overwrites = overwrites
        self._appending = threading.Lock()  # files go to a store beside the work

    def begin(self, job: dict[str, Any]) -> None:
        self._append({"format": FORMAT, "job": job, "overwrites": self._overwrites})
        storage.sync_folder(self.path.parent)
        storage.reached("journal-begun")

    def split(self, progress: dict[str, Any]) -> None:
        self._append({"split": progress})

    def away(self, name: str) -> None:
        """The store has all of this file, and a checkpoint speaks of it: it may be removed here."""
        self._append({"away": name})
        storage.reached("away-synced")

    def checkpoint(self, reached: Checkpoint) -> None:
        """Only what changed since the last one is written of each file."""
        files = {
            name: _change(self._files.get(name), state)
            for name, state in reached.files.items()
            if state != self._files.get(name)
        }
        line = {
            "index": reached.index,
            "position": asdict(reached.position),
            "val": reached.val,
            "has_text": reached.has_text,
            "tokens": reached.tokens,
            "ended": reached.ended,
            "counts": asdict(reached.counts),
            "files": files,
            "gone": sorted(self._files.keys() - reached.files.keys()),
            "extra": reached.extra,
            "finished": reached.finished,
        }
        self._append({"checkpoint": line})
        self._files = dict(reached.files)
        storage.reached("checkpoint-synced")

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self._file.close()
        storage.remove(self.path)
        storage.reached("journal-removed")

    def _append(self, content: dict[str, Any]) -> None:
        body = json.dumps(content, sort_keys=True).encode()
        with self._appending:
            self._chain = _checksum(self._chain, body)
            self._file.append(b"%s %s\n" % (self._chain, body))


def read(folder: Path) -> Left | None:
    """What an earlier run left in this folder, None if nothing. What is damaged is reported, never trusted."""
    path = folder / NAME
    try:
        data = storage.read_small(path, _LARGEST)
    except FileNotFoundError:
        return None
    try:
        lines, valid, chain = _valid_lines(data)
        if not lines:
            if b"\n" in data:
                raise ValueError("its first line is not what was written")
            return None  # killed while the first line was written
        if lines[0]["format"] != FORMAT:
            raise OutputError(
                f"{show(path)}: has format {lines[0]['format']!r}, and this version of shardmill knows format {FORMAT}; finish the job with the version that began it, or start again with --overwrite"
            )
        left = Left(job=dict(lines[0]["job"]), overwrites=bool(lines[0]["overwrites"]), valid_bytes=valid, chain=chain)
        for line in lines[1:]:
            if "job" in line:
                left.job = dict(line["job"])
            elif "split" in line:
                left.split = _split(line["split"])
            elif "away" in line:
                check_name(line["away"])
                left.away.add(line["away"])
            else:
                left.checkpoint = _checkpoint(line["checkpoint"], left.checkpoint)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as e:
        raise OutputError(
            f"{show(path)}: the journal of an unfinished job is damaged ({type(e).__name__}: {show(str(e))}), so it cannot go on safely. Start again with --overwrite, or choose another folder with -o"
        ) from e
    return left


class Checkpoints:
    """Writes checkpoints beside the work: a second of it, or 128 MiB of input, after the one before.

    offer() is called after each Block by the one thread that writes. It waits only when the disk is so far
    behind that too much work would have to be repeated.
    """

    def __init__(
        self,
        journal: Journal,
        files: OutputFiles,
        *,
        seconds: float,
        input_bytes: int,
        durable: Callable[[Checkpoint], None] = lambda _: None,
    ) -> None:
        """durable is called after each checkpoint, when it is on disk."""
        self._journal, self._durable = journal, durable
        self._files = files
        self._seconds, self._bytes = seconds, input_bytes
        self._thread: threading.Thread | None = None
        self._last_time, self._last_bytes = time.monotonic(), 0
        self._error: BaseException | None = None

    def offer(self, input_bytes: int, now: Callable[[], Checkpoint]) -> None:
        behind = input_bytes - self._last_bytes
        if time.monotonic() - self._last_time < self._seconds and behind < self._bytes:
            return
        if self._thread is not None and self._thread.is_alive() and behind < 2 * self._bytes:
            return
        self.wait()
        self._last_time, self._last_bytes = time.monotonic(), input_bytes
        self._thread = threading.Thread(target=self._commit, args=(now(),), name="shardmill-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the one under way is on disk. Raises what it met."""
        self.settle()
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Until none is under way, whatever became of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def commit(self, reached: Checkpoint) -> None:
        """One more, now."""
        self.wait()
        self._make(reached)

    def _make(self, reached: Checkpoint) -> None:
        self._files.sync()
        self._journal.checkpoint(reached)
        self._durable(reached)

    def _commit(self, reached: Checkpoint) -> None:
        try:
            self._make(reached)
        except BaseException as e:  # the thread's boundary: the next offer() raises it
            self._error = e


def _valid_lines(data: bytes) -> tuple[list[dict[str, Any]], int, bytes]:
    """The lines whose checksum is right, up to the first that is not; how many bytes they take; the last checksum."""
    lines: list[dict[str, Any]] = []
    valid, chain = 0, b""
    whole = data.split(b"\n")[:-1]
    for raw in whole:
        checksum, _, body = raw.partition(b" ")
        if checksum != _checksum(chain, body):
            if len(lines) < len(whole) - 1:  # a crash tears only the last one
                raise ValueError(f"the line at byte {valid:,} is not what was written")
            break
        lines.append(json.loads(body))
        valid, chain = valid + len(raw) + 1, checksum
    return lines, valid, chain


def _split(line: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: value for name, value in line.items() if name not in ("lowest", "position", "highest")}
    for number in (*numbers.values(), *line.get("lowest", ()), *line.get("position", {}).values()):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a whole number")
    if "limit" not in line:
        Position(**line["position"])
        if not {"records", "count", "highest", "lowest"} <= line.keys() or type(line["highest"]) is not int:
            raise ValueError("the first pass is not told in full")
    return dict(line)


def _checkpoint(line: dict[str, Any], before: Checkpoint | None) -> Checkpoint:
    files = dict(before.files) if before else {}
    for name, state in line["files"].items():
        check_name(name)
        older = files[name].checksums[: int(state["keep"])] if name in files else ()
        files[name] = FileState(bytes=int(state["bytes"]), checksums=(*older, *state["more"]), tail=state["tail"])
    for name in line["gone"]:
        files.pop(name, None)
    for number in (line["index"], line["tokens"], line["ended"], *line["position"].values(), *line["counts"].values()):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a whole number")
    return Checkpoint(
        index=int(line["index"]),
        position=Position(**line["position"]),
        val=bool(line["val"]),
        has_text=bool(line["has_text"]),
        tokens=int(line["tokens"]),
        ended=int(line["ended"]),
        counts=Counts(**line["counts"]),
        files=files,
        extra={str(name): int(value) for name, value in line["extra"].items()},
        finished=bool(line["finished"]),
    )


def _change(before: FileState | None, now: FileState) -> dict[str, Any]:
    """How a file differs from what the line before said: mostly it has grown, at the end its header changes."""
    known = before.checksums if before else ()
    keep = len(known) if now.checksums[: len(known)] == known else 0
    return {"bytes": now.bytes, "tail": now.tail, "keep": keep, "more": now.checksums[keep:]}


def _checksum(before: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(before + body).encode()
