"""What is durable so far → where the same command resumes.

OUT/shardmill.journal is a list of lines, each a checksum and a JSON object. The first describes the job, the others
record its progress. A line is written only after the data that it refers to is on disk, and a reader trusts only
lines whose checksum is right: a line torn by a crash counts as never written. The checksum covers all lines before
it, so that none can be missing, repeated or moved. When the journal has grown long, a new, short file replaces it.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardmill.documents.pieces import BEGINNING, Position
from shardmill.errors import OutputError
from shardmill.formats.output_files import FileState, OutputFiles
from shardmill.io import storage
from shardmill.record.manifest import Counts, check_job, check_name
from shardmill.record.untrusted import build, check_depth
from shardmill.system.names import show

NAME = "shardmill.journal"
FORMAT = 5
# A line is some 700 bytes, so this is half an hour of checkpoints, read in 50 ms.
_MOST_BYTES = 1 << 20
_LONGEST_LINE = 128 << 20


@dataclass(kw_only=True, slots=True)
class Checkpoint:
    """How far the job is after one of its Blocks: what the next one needs to know, and the state of each file."""

    index: int = 0
    """The number of the next Block, and where it begins."""
    position: Position = BEGINNING
    val: bool = False
    """Whether the last document, which may not have ended, is in val."""
    has_text: bool = False
    """Whether any of it was written."""
    tokens: int = 0
    ended: int = 0
    """Documents that were written to their end."""
    counts: Counts = field(default_factory=Counts)
    files: dict[str, FileState] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    """What the writer must know beyond the sizes of its files."""
    finished: bool = False
    """All files are complete: only their final names are missing."""


@dataclass(kw_only=True, slots=True)
class Unfinished:
    """What an earlier run of a job left."""

    job: dict[str, Any] = field(default_factory=dict)
    """What determines the bytes, and what shows that an input changed; as given to begin()."""
    overwrites: bool = False
    """Begun with overwrite: the same command, with overwrite, resumes instead of starting over."""
    split: int | None = None
    """The outcome of the first pass: documents whose key is lower are val."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    uploaded: set[str] = field(default_factory=set)
    """Files that are in the object store and were removed here."""
    valid_bytes: int = 0
    chain: bytes = b""
    """The checksum of the last line."""

    @property
    def bytes(self) -> int:
        """How much of the result is in the folder."""
        return sum(state.bytes for name, state in self.checkpoint.files.items() if name not in self.uploaded)


@dataclass(frozen=True, kw_only=True, slots=True)
class _FileChange:
    """How a file differs from the line before: usually it has grown, at the end its header changes."""

    bytes: int
    tail: str | None
    keep: int
    more: tuple[str, ...]


class Journal:
    """Appends lines; each is on disk when its method returns."""

    def __init__(self, folder: Path, unfinished: Unfinished) -> None:
        self.path = folder / NAME
        self._file = storage.DurableLog(self.path, at=unfinished.valid_bytes or None)
        # What a reader would find: everything that a new file must say when this one has grown too long.
        self._state = dataclasses.replace(unfinished, uploaded={*unfinished.uploaded})
        self._most = _MOST_BYTES
        self._lock = threading.Lock()  # uploads run concurrently with the work

    def begin(self, job: dict[str, Any]) -> None:
        with self._lock:
            self._append(_first_line(job, self._state.overwrites))
            self._state.job = job
        storage.sync_folder(self.path.parent)
        storage.reached("journal-begun")

    def split(self, limit: int) -> None:
        with self._lock:
            self._append({"split": limit})
            self._state.split = limit

    def uploaded(self, name: str) -> None:
        """The store has all of this file, and a checkpoint lists it: it may be removed here."""
        with self._lock:
            self._append({"uploaded": name})
            self._state.uploaded.add(name)
        storage.reached("upload-recorded")

    def checkpoint(self, reached: Checkpoint) -> None:
        """Writes only what changed in each file since the last one."""
        with self._lock:
            self._append(_checkpoint_line(reached, self._state.checkpoint.files))
            self._state.checkpoint = reached
        storage.reached("checkpoint-synced")

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self._file.close()
        discard(self.path.parent)
        storage.reached("journal-removed")

    def _append(self, content: dict[str, Any]) -> None:
        if self._file.bytes > self._most:
            self._compact()
        line, chain = _signed(content, self._state.chain)
        self._file.append(line)
        self._state.chain = chain

    def _compact(self) -> None:
        """The same in as few lines as possible. If those are many, twice as much may follow before the next time."""
        state, chain, lines = self._state, b"", []
        contents = [_first_line(state.job, state.overwrites)]
        contents += [{"split": state.split}] if state.split is not None else []
        contents += [_checkpoint_line(state.checkpoint, {})]
        for content in (*contents, *({"uploaded": name} for name in sorted(state.uploaded))):
            line, chain = _signed(content, chain)
            lines.append(line)
        self._file.replace(b"".join(lines))
        state.chain, self._most = chain, max(_MOST_BYTES, 2 * self._file.bytes)


def discard(folder: Path) -> None:
    """Remove the journal, and what a kill may have left of a new one."""
    storage.remove(folder / (NAME + storage.PARTIAL))
    storage.remove(folder / NAME)


def read(folder: Path) -> Unfinished | None:
    """What an earlier run left in this folder; None: nothing. Damage is reported, never trusted."""
    path, found = folder / NAME, None
    files: dict[str, FileState] = {}
    try:
        for body, valid, chain in _valid_lines(path):
            line = json.loads(body)
            check_depth(line)
            if found is None:
                found = _begun(line, path)
            elif "job" in line:
                found.job = _job(line["job"])
            elif "split" in line:
                found.split = _split(line["split"])
            elif "uploaded" in line:
                check_name(line["uploaded"])
                found.uploaded.add(line["uploaded"])
            else:
                found.checkpoint = _checkpoint(line["checkpoint"], files)
            found.valid_bytes, found.chain = valid, chain
        if found is not None:
            found.checkpoint = dataclasses.replace(found.checkpoint, files=files)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise OutputError(
            f"{show(path)}: the journal of an unfinished job is damaged ({type(e).__name__}: {show(str(e))}), so the job cannot be resumed safely. Start over with --overwrite, or choose another folder with -o"
        ) from e
    return found


class Checkpoints:
    """Writes checkpoints in the background: every second, or every 128 MiB of input.

    Each thread that writes asks in its turn whether one is due. To begin it waits only if the disk has fallen so far
    behind that a kill would cost too much work.
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
        """durable is called with each checkpoint once it is on disk."""
        self._journal, self._durable = journal, durable
        self._files = files
        self._seconds, self._bytes = seconds, input_bytes
        self._last_time, self._last_bytes = time.monotonic(), 0
        self._under_way = Future[None]()
        self._under_way.set_result(None)

    def due(self, input_bytes: int) -> bool:
        behind = input_bytes - self._last_bytes
        if time.monotonic() - self._last_time < self._seconds and behind < self._bytes:
            return False
        return self._under_way.done() or behind >= 2 * self._bytes

    def begin(self, input_bytes: int, now: Callable[[], Checkpoint]) -> None:
        self.wait()
        self._last_time, self._last_bytes = time.monotonic(), input_bytes
        pool = ThreadPoolExecutor(1, thread_name_prefix="shardmill-checkpoint")
        self._under_way = pool.submit(self._make, now())
        pool.shutdown(wait=False)  # the thread ends with this checkpoint

    def wait(self) -> None:
        """Wait until no checkpoint is in progress. Raises the error of the last one, if it failed."""
        self._under_way.result()

    def settle(self) -> None:
        """Wait until no checkpoint is in progress, whether it failed or not."""
        wait([self._under_way])

    def commit(self, reached: Checkpoint) -> None:
        """Write a checkpoint now."""
        self.wait()
        self._make(reached)

    def _make(self, reached: Checkpoint) -> None:
        self._files.sync()
        self._journal.checkpoint(reached)
        self._durable(reached)


def _valid_lines(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    """The lines up to the first whose checksum is wrong; where each ends, and its checksum."""
    valid, chain, torn = 0, b"", False
    for raw in storage.read_lines(path, _LONGEST_LINE):
        if not raw.endswith(b"\n"):
            return
        checksum, _, body = raw[:-1].partition(b" ")
        if not torn and checksum == _checksum(chain, body):
            valid, chain = valid + len(raw), checksum
            yield body, valid, chain
        elif torn or not valid:  # a crash tears only the last line
            raise ValueError(f"the line at byte {valid:,} is not what was written")
        else:
            torn = True


def _begun(line: dict[str, Any], path: Path) -> Unfinished:
    if line["format"] != FORMAT:
        raise OutputError(
            f"{show(path)}: another version of shardmill began this job (its journal has format {show(repr(line['format']))}, this version reads format {FORMAT}); finish it with the version that began it, or start over with --overwrite"
        )
    return Unfinished(job=_job(line["job"]), overwrites=bool(line["overwrites"]))


def _job(job: dict[str, Any]) -> dict[str, Any]:
    check_job(job)
    times, inputs = job.get("modified"), job["inputs"]  # a time per input, or the latest of many: input_list.times
    found = [type(time) for time in times] if isinstance(times, list) else type(times["last"]) if times else None
    if found not in (None, [int] * len(inputs) if isinstance(inputs, list) else int):
        raise ValueError("the modification times do not match the inputs")
    return dict(job)


def _split(limit: Any) -> int:
    if type(limit) is not int or not 0 <= limit <= 1 << 64:  # keys are 64 bits, and the limit may be beyond all of them
        raise ValueError(f"{limit!r} is not a key")
    return limit


def _checkpoint(line: dict[str, Any], files: dict[str, FileState]) -> Checkpoint:
    """All of it but its files, which are updated as it says."""
    for name, changed in line.pop("files").items():
        if name not in files:
            check_name(name)
        change, known = build(_FileChange, changed), files.get(name, FileState()).checksums
        if change.keep > len(known):
            raise ValueError(f"{name} is not described as a file should be")
        files[name] = FileState(bytes=change.bytes, checksums=known[: change.keep] + change.more, tail=change.tail)
    for name in line.pop("gone"):
        files.pop(name, None)
    return build(Checkpoint, line)


def _first_line(job: dict[str, Any], overwrites: bool) -> dict[str, Any]:
    return {"format": FORMAT, "job": job, "overwrites": overwrites}


def _checkpoint_line(reached: Checkpoint, known: dict[str, FileState]) -> dict[str, Any]:
    line = {each.name: getattr(reached, each.name) for each in dataclasses.fields(reached)}
    changed = {name: _change(known.get(name), now) for name, now in reached.files.items() if now != known.get(name)}
    gone = sorted(known.keys() - reached.files.keys())
    counts, position = asdict(reached.counts), asdict(reached.position)
    return {"checkpoint": {**line, "counts": counts, "position": position, "files": changed, "gone": gone}}


def _change(before: FileState | None, now: FileState) -> dict[str, Any]:
    known = before.checksums if before else ()
    keep = len(known) if now.checksums[: len(known)] == known else 0
    return asdict(_FileChange(bytes=now.bytes, tail=now.tail, keep=keep, more=now.checksums[keep:]))


def _signed(content: dict[str, Any], chain: bytes) -> tuple[bytes, bytes]:
    """A line and its checksum, which covers that of the line before."""
    body = json.dumps(content, sort_keys=True).encode()
    checksum = _checksum(chain, body)
    return b"%s %s\n" % (checksum, body), checksum


def _checksum(before: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(before + body).encode()
