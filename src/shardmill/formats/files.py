"""The files that a format writes: they grow together, with checksums, and get their names together."""

from dataclasses import dataclass
from pathlib import Path

import xxhash

from shardmill import storage
from shardmill.errors import OutputError
from shardmill.names import show
from shardmill.storage import GrowingFile

# Checksums are kept for stretches of this size, so that a damaged one can be named and a job resumed.
SEGMENT_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """A file as far as it is written: its size, the xxh3-64 of each whole segment, and of the begun one."""

    bytes: int = 0
    checksums: tuple[str, ...] = ()
    tail: str | None = None

    @property
    def all_checksums(self) -> tuple[str, ...]:
        return self.checksums if self.tail is None else (*self.checksums, self.tail)


class OutputFiles:
    """Files in one folder, by name. One that an earlier run began goes on from the state given for it."""

    def __init__(self, folder: Path, states: dict[str, FileState], *, drop_behind: bool) -> None:
        self.folder = folder
        self._drop_behind = drop_behind
        self._files: dict[str, _CheckedFile] = {}
        self._unlisted = False
        for name, state in states.items():
            self._files[name] = _CheckedFile(folder / name, state, drop_behind=drop_behind)

    def append(self, name: str, data: memoryview) -> None:
        if name not in self._files:
            self._files[name] = _CheckedFile(self.folder / name, None, drop_behind=self._drop_behind)
            self._unlisted = True
        self._files[name].append(data)

    def states(self) -> dict[str, FileState]:
        return {name: file.state() for name, file in self._files.items()}

    def sync(self) -> None:
        """All that states() said before is on disk after, the names in the folder too. May run beside append."""
        if unlisted := self._unlisted:  # not one assignment: a file that append creates meanwhile would be forgotten
            self._unlisted = False
        for file in list(self._files.values()):
            file.growing.sync()
        if unlisted:
            storage.sync_folder(self.folder)
        storage.reached("data-synced")

    def seal(self) -> None:
        for file in self._files.values():
            file.growing.seal()
        storage.sync_folder(self.folder)
        storage.reached("files-sealed")

    def publish(self) -> None:
        """Give all files their final names."""
        for _, file in sorted(self._files.items()):
            file.growing.publish()
        storage.sync_folder(self.folder)
        storage.reached("names-synced")

    def close(self) -> None:
        for file in self._files.values():
            file.growing.close()

    def abandon(self) -> None:
        for file in self._files.values():
            file.growing.abandon()


class _CheckedFile:
    def __init__(self, path: Path, state: FileState | None, *, drop_behind: bool) -> None:
        self.growing = GrowingFile(path, at=None if state is None else state.bytes, drop_behind=drop_behind)
        self._hash = xxhash.xxh3_64()
        self._room = SEGMENT_BYTES
        self._checksums: list[str] = []
        if state is not None:
            self._go_on(state)

    def append(self, data: memoryview) -> None:
        self.growing.append(data)
        self._add(data)

    def state(self) -> FileState:
        begun = self._room < SEGMENT_BYTES
        return FileState(
            bytes=self.growing.bytes,
            checksums=tuple(self._checksums),
            tail=self._hash.hexdigest() if begun else None,
        )

    def _add(self, data: memoryview) -> None:
        while data.nbytes >= self._room:
            self._hash.update(data[: self._room])
            self._checksums.append(self._hash.hexdigest())
            data = data[self._room :]
            self._hash.reset()
            self._room = SEGMENT_BYTES
        self._hash.update(data)
        self._room -= data.nbytes

    def _go_on(self, state: FileState) -> None:
        """Hash the begun segment again, and see that it is what was written."""
        self._checksums = list(state.checksums)
        at = len(state.checksums) * SEGMENT_BYTES
        while at < state.bytes:
            data = self.growing.read(at, min(_CHUNK_BYTES, state.bytes - at))
            if not data:
                break
            self._add(memoryview(data))
            at += len(data)
        if self.state() != state:
            self.growing.close()
            raise OutputError(
                f"{show(self.growing.path)}: the bytes that an earlier run left are not what it wrote; it was changed, or the disk is failing. Start again with --overwrite, or choose another folder with -o"
            )
