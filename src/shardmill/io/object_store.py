"""A prefix of an object store → files that are put there whole, since it can neither append nor rename."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from shardmill.errors import InputError, OutputError, UsageError
from shardmill.io.fileset import FileSet, RemoteFiles
from shardmill.io.retry import Missing, Trouble
from shardmill.io.urls import Filesystem, Resolver
from shardmill.system.names import is_url, show, without_secrets

_PROBE = ".shardmill.partial"
_REASONS = {
    "hf": "a commit of the hub takes all files at once; write to a folder, then `hf upload ORG/NAME FOLDER --repo-type dataset`",
    "http": "a web server takes no files; write to a folder, s3:// or gs://",
}
_REASONS["https"] = _REASONS["http"]


def check_place(output: str) -> None:
    """Say at once what cannot be written to."""
    scheme, _, path = output.partition("://")
    if not is_url(output) or (scheme.lower() in ("s3", "gs", "gcs") and path.strip("/") and "*" not in path):
        return
    reason = _REASONS.get(scheme.lower(), "write it like s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, or name a folder")
    raise UsageError(f"-o {show(output)}: cannot be written to: {reason}")


class ObjectStore:
    """Puts are whole or not there. Bad moments of the network are tried again; stop ends that."""

    def __init__(self, url: str, patience: float) -> None:
        self.url = url.rstrip("/")
        self.shown = without_secrets(self.url)
        self._patience = patience
        self._places = Resolver(patience)

    def look(self) -> FileSet | None:
        """What is there now; None: nothing."""
        try:
            return RemoteFiles(self.url, self._patience, self._places)
        except Missing:
            return None
        except InputError as e:
            raise OutputError(str(e)) from e

    def put(self, name: str, path: Path, stop: threading.Event | None = None) -> None:
        """All of a file, under a name; the store has acknowledged it, and has as many bytes."""
        size = path.stat().st_size

        def act(place: Filesystem) -> None:
            place.fs.put_file(str(path), f"{place.path}/{name}", **place.put_options)
            _compare(place, name, size)

        self._attempt(name, act, stop)

    def put_bytes(self, name: str, data: bytes) -> None:
        def act(place: Filesystem) -> None:
            place.fs.pipe_file(f"{place.path}/{name}", data)
            _compare(place, name, len(data))

        self._attempt(name, act)

    def remove(self, name: str) -> None:
        def act(place: Filesystem) -> None:
            with contextlib.suppress(FileNotFoundError):
                place.fs.rm_file(f"{place.path}/{name}")

        self._attempt(name, act)

    def drop_unfinished(self, ours: Callable[[str], bool]) -> None:
        """Parts that a killed run had put of files of ours: they are seen by nobody, and paid for."""

        def act(place: Filesystem) -> None:
            bucket, _, prefix = place.path.partition("/")
            prefix = f"{prefix}/" if prefix else ""
            with contextlib.suppress(
                Exception
            ):  # not every server knows this, not everyone may, and nothing depends on it
                found = place.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
                for begun in found.get("Uploads", ()):
                    if ours(begun["Key"].removeprefix(prefix)):
                        which = {"Bucket": bucket, "Key": begun["Key"], "UploadId": begun["UploadId"]}
                        place.fs.call_s3("abort_multipart_upload", **which)

        if self.url.lower().startswith("s3://"):
            self._attempt("", act)

    def check_writable(self) -> None:
        """Find out now, not after hours, that files are not taken. The probe stays where nothing may be removed."""
        self.put_bytes(_PROBE, b"")
        with contextlib.suppress(OutputError):
            self.remove(_PROBE)

    def _attempt(self, name: str, act: Callable[[Filesystem], None], stop: threading.Event | None = None) -> None:
        try:
            # The place is the folder; what is said of it is said of the file.
            self._places.attempt(self.url, act, "write", stop, shown=f"{self.shown}/{name}")
        except InputError as e:
            raise OutputError(str(e)) from e


def _compare(place: Filesystem, name: str, size: int) -> None:
    found = int(place.fs.info(f"{place.path}/{name}")["size"])
    if found != size:
        raise Trouble(f"the store has {found:,} bytes of it where {size:,} were put")
