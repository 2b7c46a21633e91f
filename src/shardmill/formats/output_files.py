"""The files that a format writes: they grow together, with checksums, and get their final names together."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shardmill.errors import OutputError
from shardmill.formats.shards import Shard, SplitName
from shardmill.io import storage
from shardmill.io.storage import GrowingFile
from shardmill.system.names import show

# Each segment of this size has a checksum, so that damage can be located and a job resumed.
SEGMENT_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_SYNC_BYTES = 32 << 20
_OPEN_FULL = 32  # twice as many while a checkpoint is under way


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """A file as far as it is written: its size, the xxh3-64 of each complete segment, and of the last, incomplete one."""

    bytes: int = 0
    checksums: tuple[str, ...] = ()
    tail: str | None = None

    @property
    def all_checksums(self) -> tuple[str, ...]:
        return self.checksums if self.tail is None else (*self.checksums, self.tail)


def checksums_of(data: bytes) -> tuple[str, ...]:
    """Of a file that is written at once."""
    return tuple(xxhash.xxh3_64_hexdigest(data[at : at + SEGMENT_BYTES]) for at in range(0, len(data), SEGMENT_BYTES))


class OutputFiles:
    """Files in one folder, by name; a name may include a subfolder. Each continues from the state given for it.

    A full file is closed at the next sync, or when too many are open: thousands of shards need few descriptors.
    """

    def __init__(
        self, folder: Path, states: dict[str, FileState], *, drop_behind: bool, uploaded: Collection[str] = ()
    ) -> None:
        """uploaded: files that are already in the object store and no longer in the folder."""
        self.folder = folder
        self._drop_behind = drop_behind
        self._files: dict[str, _CheckedFile] = {}
        self._uploaded: dict[str, FileState] = {}
        self._settled: list[str] = []
        self._full: set[str] = set()
        self._open_full: list[str] = []
        self._closing = threading.Lock()
        self._placing: Placed | None = None
        self._unwritten: set[Placed] = set()
        self._written = threading.Condition()
        self._failed: BaseException | None = None
        self._dropped: set[str] = set()
        self._unlisted = False
        self._folders = {folder}
        for name, state in states.items():
            if name in uploaded:
                self._uploaded[name] = state
                self._unlink(name)  # a kill may have left it
            else:
                self._files[name] = self._file(name, state)

    def append(self, name: str, data: memoryview) -> None:
        if name not in self._files:
            self._files[name] = self._file(name, None)
            self._unlisted = True
        if (placed := self._placing) is None:
            file, at, data = self._files[name].place(data)
            file.write(at, data)
            return
        with self._written:  # before it gets its offset: a checkpoint must wait for it
            self._unwritten.add(placed)
        placed.writes.append(self._files[name].place(data))

    def placing(self) -> "Placed":
        """Bytes appended inside get their offsets and checksums now, and are written later by Placed.write."""
        return Placed(self)

    def place_in(self, placed: "Placed | None") -> None:
        """Where the bytes are noted that are appended from now on; None: they are written at once."""
        self._placing = placed

    def done(self, placed: "Placed", error: BaseException | None = None) -> None:
        """All of it is written, or never will be."""
        with self._written:
            self._failed = self._failed or error
            self._unwritten.discard(placed)
            self._written.notify_all()

    @property
    def failed(self) -> bool:
        """Writing something that already had its offset failed, so there can be no more checkpoints."""
        return self._failed is not None

    def _wait_until_written(self) -> None:
        """Wait until everything that has an offset by now is written."""
        with self._written:
            placed = set(self._unwritten)
            self._written.wait_for(lambda: placed.isdisjoint(self._unwritten))
            if self._failed is not None:
                raise self._failed

    def _file(self, name: str, state: FileState | None) -> "_CheckedFile":
        path = self.folder / name
        if path.parent not in self._folders:
            storage.make_subfolder(path.parent)
            self._folders.add(path.parent)
        return _CheckedFile(path, state, drop_behind=self._drop_behind)

    def _sync_folders(self) -> None:
        for folder in list(self._folders):  # append may add one meanwhile
            storage.sync_folder(folder)

    def full(self, name: str) -> None:
        """Nothing more is appended to this file while the job runs."""
        self._full.add(name)
        with self._written:
            self._open_full.append(name)
        if len(self._open_full) > _OPEN_FULL:
            if self._placing is not None:
                self._placing.write()
            self._close_full()

    def settle(self, name: str) -> None:
        """This file is final: nothing will be appended, joined or patched."""
        self._settled.append(name)

    def settled(self) -> list[str]:
        """The settled files that are in the folder. May run concurrently with append."""
        return [name for name in list(self._settled) if name in self._files]

    def remaining(self) -> list[str]:
        """All files in the folder."""
        return sorted(self._files)

    def uploaded(self) -> list[str]:
        """All files that are in the object store."""
        return sorted(self._uploaded)

    @property
    def staged(self) -> int:
        """Bytes in the folder."""
        return sum(file.growing.bytes for file in list(self._files.values()))

    def size(self, name: str) -> int:
        return self._files[name].growing.bytes

    def path(self, name: str) -> Path:
        """Where a file is now."""
        return self._files[name].growing.where

    def release(self, name: str) -> None:
        """The file is in the store, and the journal says so: remove it here. May run concurrently with append."""
        with self._closing:
            self._uploaded[name] = self._files[name].state()  # first: states() must find it in one of the two
            self._files[name].growing.close()
        self._unlink(name)
        del self._files[name]  # last: a thread that waits for room writes as soon as this is done

    def _unlink(self, name: str) -> None:
        for path in (storage.inside(self.folder, name + storage.PARTIAL), storage.inside(self.folder, name)):
            with storage.writing(path):
                path.unlink(missing_ok=True)

    def restore_header(self, name: str, data: bytes) -> None:
        """Undo a patch of the first bytes by a run that was stopped while it finished."""
        growing = self._files[name].growing
        if growing.read(0, len(data)) != data:
            growing.patch(0, data)

    def patch(self, name: str, data: bytes) -> None:
        """Change the first bytes of a file that is done, and its checksums with them."""
        self._files[name].patch(data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly these bytes of what was written."""
        data = b"".join(self._files[name].read(offset, offset + length))
        if len(data) != length:
            raise _changed(self.folder / name)
        return data

    def copy(self, name: str, offset: int, length: int, to: str) -> None:
        """Append bytes of one file to another."""
        for at in range(offset, offset + length, _CHUNK_BYTES):
            self.append(to, memoryview(self.read(name, at, min(_CHUNK_BYTES, offset + length - at))))

    def drop(self, name: str) -> None:
        """Not part of the result: forgotten now, removed when the others get their names."""
        if (file := self._files.pop(name, None)) is not None:
            file.growing.close()
        self._dropped.add(name)

    def verify(self) -> None:
        """Check that files which will grow still hold what an earlier run wrote."""
        for name, file in self._files.items():
            if name not in self._full:
                file.verify()

    def states(self) -> dict[str, FileState]:
        return {name: file.state() for name, file in list(self._files.items())} | self._uploaded

    def shard(self, name: str, split: SplitName, tokens: int, offset: int = 0) -> Shard:
        """A finished token file, as the manifest lists it."""
        file = self._files.get(name)
        state = file.state() if file is not None else self._uploaded[name]
        return Shard(
            name=name, split=split, tokens=tokens, bytes=state.bytes, checksums=state.all_checksums, offset=offset
        )

    def sync(self) -> None:
        """Everything that states() reported before is on disk after, names included. May run concurrently with append."""
        if unlisted := self._unlisted:  # not one assignment: a file that append creates meanwhile would be forgotten
            self._unlisted = False
        sizes = [(file.growing, file.growing.bytes) for file in list(self._files.values())]
        self._wait_until_written()
        self._close_full()
        for file, size in sizes:
            with self._closing:
                file.sync(size)
        if unlisted:
            self._sync_folders()
        storage.reached("data-synced")

    def _close_full(self) -> None:
        with self._written:
            full, self._open_full = self._open_full, []
        if full:
            self._wait_until_written()
        with self._closing:  # by the thread that writes, or the one that makes a checkpoint
            for name in full:
                if (file := self._files.get(name)) is not None:
                    file.growing.sync()
                    file.growing.close()

    def seal(self, *, sync: bool = True) -> None:
        for file in list(self._files.values()):
            with self._closing:  # an upload may end and release it
                file.growing.seal(sync=sync)
        self._sync_folders()
        storage.reached("files-sealed")

    def publish(self) -> None:
        """Give all files their final names."""
        self.remove_dropped()
        for name in self.remaining():
            self._files[name].growing.publish()
        self._sync_folders()
        storage.reached("names-synced")

    def remove_dropped(self) -> None:
        for name in sorted(self._dropped):
            storage.remove(storage.inside(self.folder, name + storage.PARTIAL))

    def close(self) -> None:
        for file in list(self._files.values()):
            file.growing.close()

    def abandon(self) -> None:
        for file in list(self._files.values()):
            file.growing.abandon()
        self.remove_dropped()
        for folder in self._folders - {self.folder}:
            storage.remove_if_empty(folder)


class Placed:
    """Bytes whose offsets in the files are decided, and which may not be written yet."""

    def __init__(self, files: OutputFiles) -> None:
        self._files = files
        self.writes: list[tuple[GrowingFile, int, memoryview]] = []

    def __enter__(self) -> "Placed":
        self._files.place_in(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._files.place_in(None)
        if error is not None:
            self._files.done(self, error)

    def write(self) -> None:
        """Write them, in any thread, while others append and write."""
        try:
            for file, at, data in self.writes:
                file.write(at, data)
            self.writes.clear()
        except BaseException as e:
            self._files.done(self, e)
            raise
        self._files.done(self)


@contextlib.contextmanager
def syncing(files: OutputFiles) -> Iterator[Callable[[int], None]]:
    """Sync in the background while more is copied, so that there is little to wait for at the end.

    Yields a function to call with the number of bytes written. The system reports a disk error only once, to the thread
    that syncs, so it is raised again here.
    """
    unsynced, under_way = 0, Future[None]()
    under_way.set_result(None)

    def written(count: int) -> None:
        nonlocal unsynced, under_way
        unsynced += count
        if unsynced >= _SYNC_BYTES and under_way.done():
            under_way.result()
            unsynced, under_way = 0, pool.submit(files.sync)

    with ThreadPoolExecutor(1, thread_name_prefix="shardmill-sync") as pool:
        yield written
    under_way.result()


class _CheckedFile:
    def __init__(self, path: Path, state: FileState | None, *, drop_behind: bool) -> None:
        self.growing = GrowingFile(path, at=None if state is None else state.bytes, drop_behind=drop_behind)
        self._hash = xxhash.xxh3_64()
        self._room = SEGMENT_BYTES
        self._checksums: list[str] = []
        self._unverified = state
        if state is not None:
            self.growing.close()

    def place(self, data: memoryview) -> tuple[GrowingFile, int, memoryview]:
        """The next bytes of the file: where they are to be written. They are in its checksums already."""
        self.verify()
        at = self.growing.place(data.nbytes)
        self._add(data)
        return self.growing, at, data

    def patch(self, data: bytes) -> None:
        assert len(data) <= SEGMENT_BYTES
        self.verify()
        self.growing.patch(0, data)
        first = xxhash.xxh3_64()
        for chunk in self.read(0, min(SEGMENT_BYTES, self.growing.bytes)):
            first.update(chunk)
        if self._checksums:
            self._checksums[0] = first.hexdigest()
        else:
            self._hash = first

    def verify(self) -> None:
        """Hash the last, incomplete segment again, and check that it is what was written."""
        state, self._unverified = self._unverified, None
        if state is None:
            return
        self._checksums = list(state.checksums)
        for data in self.read(len(state.checksums) * SEGMENT_BYTES, state.bytes):
            self._add(memoryview(data))
        if self.state() != state:
            self.growing.close()
            raise _changed(self.growing.path)

    def state(self) -> FileState:
        if self._unverified is not None:
            return self._unverified
        tail = self._hash.hexdigest() if self._room < SEGMENT_BYTES else None
        return FileState(bytes=self.growing.bytes, checksums=tuple(self._checksums), tail=tail)

    def _add(self, data: memoryview) -> None:
        while data.nbytes >= self._room:
            self._hash.update(data[: self._room])
            self._checksums.append(self._hash.hexdigest())
            data = data[self._room :]
            self._hash.reset()
            self._room = SEGMENT_BYTES
        self._hash.update(data)
        self._room -= data.nbytes

    def read(self, at: int, until: int) -> Iterator[bytes]:
        while at < until and (data := self.growing.read(at, min(_CHUNK_BYTES, until - at))):
            yield data
            at += len(data)


def _changed(path: Path) -> OutputError:
    return OutputError(
        f"{show(path)}: does not hold what an earlier run wrote; it was edited, or the disk is failing. Start over with --overwrite, or choose another folder with -o"
    )
