"""An S3 or GCS prefix → files uploaded there whole, since an object store can neither append nor rename."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from shardmill.errors import InputError, OutputError, UsageError
from shardmill.io.fileset import FileSet, RemoteFiles
from shardmill.io.retry import NotFound, TransientError
from shardmill.io.urls import Filesystem, Resolver
from shardmill.system.names import is_url, show, without_secrets

_PROBE = ".shardmill.partial"
_REASONS = {
    "hf": "a commit on the hub needs all files at once; write to a folder, then `hf upload ORG/NAME FOLDER --repo-type dataset`",
    **dict.fromkeys(("http", "https"), "a web server accepts no uploads; write to a folder, s3:// or gs://"),
}


def check_output_url(output: str) -> None:
    """Refuse at once a URL that cannot be written to."""
    scheme, _, path = output.partition("://")
    if not is_url(output) or (scheme.lower() in ("s3", "gs", "gcs") and path.strip("/") and "*" not in path):
        return
    reason = _REASONS.get(scheme.lower(), "write s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a local folder")
    raise UsageError(f"-o {show(output)}: cannot be written to: {reason}")


class ObjectStore:
    """A prefix that files are put under. A file appears only when all of it is there; failed uploads are retried."""

    def __init__(self, url: str, network_seconds: float) -> None:
        self.url = url.rstrip("/")
        self.shown = without_secrets(self.url)
        self._network_seconds = network_seconds
        self._resolver = Resolver(network_seconds)

    def files(self) -> FileSet | None:
        """What is there now; None if nothing is."""
        try:
            return RemoteFiles(self.url, self._network_seconds, self._resolver)
        except NotFound:
            return None
        except InputError as e:
            raise OutputError(str(e)) from e

    def put(self, name: str, source: Path | bytes, stop: threading.Event | None = None) -> None:
        """Upload a whole file; returns when the store has acknowledged it and reports its size."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size

        def upload(store: Filesystem) -> None:
            if isinstance(source, bytes):
                store.fs.pipe_file(store.path, source)
            else:
                store.fs.put_file(str(source), store.path, **store.put_options)
            found = int(store.fs.info(store.path)["size"])
            if found != size:
                raise TransientError(f"the store has {found:,} bytes of it, but {size:,} were sent")

        self._resolver.attempt(f"{self.url}/{name}", upload, "write", stop)

    def remove(self, name: str) -> None:
        def delete(store: Filesystem) -> None:
            with contextlib.suppress(FileNotFoundError):
                store.fs.rm_file(store.path)

        self._resolver.attempt(f"{self.url}/{name}", delete, "write")

    def abort_unfinished(self, ours: Callable[[str], bool]) -> None:
        """Abort multipart uploads of our files that a killed run left: invisible, but billed."""

        def abort(store: Filesystem) -> None:
            bucket, _, prefix = store.path.partition("/")
            prefix = f"{prefix}/" if prefix else ""
            with contextlib.suppress(Exception):  # not every store supports or permits it, and nothing depends on it
                found = store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
                for upload in found.get("Uploads", ()):
                    if ours(upload["Key"].removeprefix(prefix)):
                        which = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                        store.fs.call_s3("abort_multipart_upload", **which)

        if self.url.lower().startswith("s3://"):
            self._resolver.attempt(self.url, abort, "write")

    def check_writable(self) -> None:
        """Find out now, not after hours, that uploads are denied. The probe stays where nothing may be removed."""
        self.put(_PROBE, b"")
        with contextlib.suppress(OutputError):
            self.remove(_PROBE)
