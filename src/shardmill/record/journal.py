"""What is durable so far → the point where the same command goes on.

OUT/shardmill.journal is a list of lines, each a checksum and a JSON object. The first says what the job is,
each other one how far it is. A line is written only after the data that it speaks of is on disk, and a
reader trusts only lines whose checksum is right: what a crash tore off at the end is as if never written.
The checksum covers all lines before it, so that none can be missing, doubled or in another place.
When the lines have become many, a new file with what they say takes the place of the old one.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardmill.documents.pieces import BEGINNING, Position
from shardmill.errors import OutputError
from shardmill.formats.output_files import FileState, OutputFiles
from shardmill.io import storage
from shardmill.record.manifest import Counts, check_depth, check_job, check_name, check_numbers
from shardmill.system.names import show

NAME = "shardmill.journal"
FORMAT = 2
# A line is some 700 bytes, so this is half an hour of checkpoints, and read in 30 ms.
_MOST_BYTES = 1 << 20
_LONGEST_LINE = 128 << 20


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
class Unfinished:
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

    def __init__(self, folder: Path, left: Unfinished | None = None, *, overwrites: bool = False) -> None:
        self.path = folder / NAME
        self._file = storage.DurableLog(self.path, at=left.valid_bytes if left else None)
        # What a reader would find: all that the next file must say when this one has grown too long.
        self._left = dataclasses.replace(left, away={*left.away}) if left else Unfinished(job={}, overwrites=overwrites)
        self._most = _MOST_BYTES
        self._appending = threading.Lock()  # files go to a store beside the work

    def begin(self, job: dict[str, Any]) -> None:
        self._append(_first_line(job, self._left.overwrites), lambda left: setattr(left, "job", job))
        storage.sync_folder(self.path.parent)
        storage.reached("journal-begun")

    def split(self, progress: dict[str, Any]) -> None:
        self._append({"split": progress}, lambda left: setattr(left, "split", progress))

    def away(self, name: str) -> None:
        """The store has all of this file, and a checkpoint speaks of it: it may be removed here."""
        self._append({"away": name}, lambda left: left.away.add(name))
        storage.reached("away-synced")

    def checkpoint(self, reached: Checkpoint) -> None:
        """Only what changed since the last one is written of each file."""
        known = self._left.checkpoint.files if self._left.checkpoint else {}
        self._append(_checkpoint_line(reached, known), lambda left: setattr(left, "checkpoint", reached))
        storage.reached("checkpoint-synced")

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self._file.close()
        discard(self.path.parent)
        storage.reached("journal-removed")

    def _append(self, content: dict[str, Any], then: Callable[[Unfinished], None]) -> None:
        with self._appending:
            line, chain = _signed(content, self._left.chain)
            self._file.append(line)
            self._left.chain = chain
            then(self._left)
            if self._file.bytes > self._most:
                self._begin_again()

    def _begin_again(self) -> None:
        """The same in as few lines as it takes. Where those are many, twice as much may follow before the next time."""
        left, chain, lines = self._left, b"", []
        contents = [_first_line(left.job, left.overwrites)]
        contents += [{"split": left.split}] if left.split is not None else []
        contents += [_checkpoint_line(left.checkpoint, {})] if left.checkpoint is not None else []
        for content in (*contents, *({"away": name} for name in sorted(left.away))):
            line, chain = _signed(content, chain)
            lines.append(line)
        self._file.replace(b"".join(lines))
        left.chain, self._most = chain, max(_MOST_BYTES, 2 * self._file.bytes)


def discard(folder: Path) -> None:
    """The journal away, and what a kill may have left of a new one."""
    storage.remove(folder / (NAME + storage.PARTIAL))
    storage.remove(folder / NAME)


def read(folder: Path) -> Unfinished | None:
    """What an earlier run left in this folder, None if nothing. What is damaged is reported, never trusted."""
    path, left, files = folder / NAME, None, _Files()
    try:
        for body, valid, chain in _valid_lines(path):
            line = json.loads(body)
            check_depth(line)
            if left is None:
                left = _begun(line, path)
            elif "job" in line:
                left.job = _job(line["job"])
            elif "split" in line:
                left.split = _split(line["split"])
            elif "away" in line:
                check_name(line["away"])
                left.away.add(line["away"])
            else:
                left.checkpoint = _checkpoint(line["checkpoint"], files)
            left.valid_bytes, left.chain = valid, chain
        if left is not None and left.checkpoint is not None:
            left.checkpoint = dataclasses.replace(left.checkpoint, files=files.states())
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
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


def _valid_lines(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """The lines whose checksum is right, up to the first that is not; where each ends, and its checksum."""
    valid, chain, torn = 0, b"", False
    for raw in storage.read_lines(path, _LONGEST_LINE):
        if not raw.endswith(b"\n"):
            return
        checksum, _, body = raw[:-1].partition(b" ")
        if not torn and checksum == _checksum(chain, body):
            valid, chain = valid + len(raw), checksum
            yield body, valid, chain
        elif torn or not valid:  # a crash tears only the last one
            raise ValueError(f"the line at byte {valid:,} is not what was written")
        else:
            torn = True


def _begun(line: dict[str, Any], path: Path) -> Unfinished:
    if line["format"] != FORMAT:
        raise OutputError(
            f"{show(path)}: another version of shardmill began this job (its journal has format {show(repr(line['format']))}, this version knows format {FORMAT}); finish it with the version that began it, or start again with --overwrite"
        )
    return Unfinished(job=_job(line["job"]), overwrites=bool(line["overwrites"]))


def _job(job: dict[str, Any]) -> dict[str, Any]:
    check_job(job)
    times = job.get("modified")  # of each input, or of many the last: listing.times
    if isinstance(times, dict) and (isinstance(job["inputs"], list) or type(times["last"]) is not int):
        raise ValueError("the times of the inputs are not told as they should be")
    if isinstance(times, list) and isinstance(job["inputs"], dict):
        raise ValueError("the times of the inputs are not told as they should be")
    return dict(job)


def _split(line: dict[str, Any]) -> dict[str, Any]:
    check_numbers(value for name, value in line.items() if name not in ("lowest", "position", "highest", "limit"))
    for number in (line.get("limit", 0), *line.get("lowest", ())):  # keys are 64 bits, and a limit may be beyond all
        if type(number) is not int or not 0 <= number <= 1 << 64:
            raise ValueError(f"{number!r} is not a key")
    if "limit" not in line:
        check_numbers(line["position"].values())
        Position(**line["position"])
        if not {"records", "count", "highest", "lowest"} <= line.keys() or type(line["highest"]) is not int:
            raise ValueError("the first pass is not told in full")
    return dict(line)


class _Files:
    """The files as the lines so far say that they are."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, list[str], str | None]] = {}

    def change(self, name: str, state: dict[str, Any]) -> None:
        size, keep, more, tail = state["bytes"], state["keep"], state["more"], state["tail"]
        check_numbers([size, keep])
        if name not in self._known:
            check_name(name)
        checksums = self._known[name][1] if name in self._known else []
        if keep > len(checksums) or not all(isinstance(text, str) for text in (*more, "" if tail is None else tail)):
            raise ValueError(f"{name} is not described as a file should be")
        checksums[keep:] = more
        self._known[name] = size, checksums, tail

    def drop(self, name: str) -> None:
        self._known.pop(name, None)

    def states(self) -> dict[str, FileState]:
        return {
            name: FileState(bytes=size, checksums=tuple(checksums), tail=tail)
            for name, (size, checksums, tail) in self._known.items()
        }


def _checkpoint(line: dict[str, Any], files: _Files) -> Checkpoint:
    """All of it but its files, which are changed as it says."""
    for name, state in line["files"].items():
        files.change(name, state)
    for name in line["gone"]:
        files.drop(name)
    check_numbers([line["index"], line["tokens"], line["ended"], *line["position"].values()])
    check_numbers([*line["counts"].values(), *line["extra"].values()])
    return Checkpoint(
        index=line["index"],
        position=Position(**line["position"]),
        val=bool(line["val"]),
        has_text=bool(line["has_text"]),
        tokens=line["tokens"],
        ended=line["ended"],
        counts=Counts(**line["counts"]),
        extra=dict(line["extra"]),
        finished=bool(line["finished"]),
    )


def _first_line(job: dict[str, Any], overwrites: bool) -> dict[str, Any]:
    return {"format": FORMAT, "job": job, "overwrites": overwrites}


def _checkpoint_line(reached: Checkpoint, known: dict[str, FileState]) -> dict[str, Any]:
    line = {
        "index": reached.index,
        "position": asdict(reached.position),
        "val": reached.val,
        "has_text": reached.has_text,
        "tokens": reached.tokens,
        "ended": reached.ended,
        "counts": asdict(reached.counts),
        "files": {
            name: _change(known.get(name), state) for name, state in reached.files.items() if state != known.get(name)
        },
        "gone": sorted(known.keys() - reached.files.keys()),
        "extra": reached.extra,
        "finished": reached.finished,
    }
    return {"checkpoint": line}


def _change(before: FileState | None, now: FileState) -> dict[str, Any]:
    """How a file differs from what the line before said: mostly it has grown, at the end its header changes."""
    known = before.checksums if before else ()
    keep = len(known) if now.checksums[: len(known)] == known else 0
    return {"bytes": now.bytes, "tail": now.tail, "keep": keep, "more": now.checksums[keep:]}


def _signed(content: dict[str, Any], chain: bytes) -> tuple[bytes, bytes]:
    """A line, and its checksum, which covers that of the line before."""
    body = json.dumps(content, sort_keys=True).encode()
    checksum = _checksum(chain, body)
    return b"%s %s\n" % (checksum, body), checksum


def _checksum(before: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(before + body).encode()
