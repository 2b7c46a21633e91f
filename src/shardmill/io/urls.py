"""URLs → the remote files they name: on the Hugging Face hub, in S3, in Google Cloud Storage or on the web.

The only door to fsspec, which lists files and finds credentials; the bytes come through http.py, whatever the source.
"""

import glob
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from shardmill.errors import InputError, OutputError, ShardmillError, UsageError
from shardmill.io import http
from shardmill.io.http import Address, RemoteFile
from shardmill.io.retry import NotFound, Retry, TransientError
from shardmill.system.names import show, without_secrets

# A URL is signed for every request, and only has to outlive the start of that.
_SIGNED_SECONDS = 3600
# Multipart uploads: this much of a file is in memory at a time.
PART_BYTES, PARTS_AT_ONCE = 8 << 20, 4
# Libraries whose exceptions mean a failure of the network or the server.
_NETWORK = {"aiohttp", "aiobotocore", "botocore", "gcsfs", "google", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib3"}  # fmt: skip
_ADVICE = {
    "hf": "check the name; if it is private or gated, request access on its page, then log in with `hf auth login` or set HF_TOKEN",
    "s3": "check the name, and who you are with `aws sts get-caller-identity`; credentials come from `aws configure`, AWS_PROFILE or AWS_ACCESS_KEY_ID",
    "gs": "check the name, and log in with `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS",
    "web": "open the URL in a browser to see what it asks for; a user name and password for the host can be put in ~/.netrc",
}
_EXTRAS = {"hf": ("hub", "huggingface_hub"), "s3": ("s3", "s3fs"), "gs": ("gcs", "gcsfs")}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filesystem:
    """An fsspec file system, and what one URL means in it."""

    fs: Any
    path: str
    """The path of the URL, as fs writes it."""
    root: tuple[str, str]
    """The start of every path as fs writes it, and as the user does."""
    version: Callable[[dict[str, Any]], str]
    pinned: bool
    """The address names the version, so the bytes cannot change."""
    address: Callable[[str, dict[str, Any]], Address]
    put_options: dict[str, Any] = field(default_factory=dict)
    """Options of put_file that keep its memory small."""

    def shown(self, name: str) -> str:
        """A path of fs, as the user would write it."""
        return self.root[1] + name.removeprefix(self.root[0])


class Listed(NamedTuple):
    """A file that a URL names."""

    file: RemoteFile
    below: str
    """Its path below the folder, or below the part of the glob without * ? [; empty if the URL names the file itself."""
    in_folder: bool
    """It was found in a folder."""


class Resolver:
    """Looks up URLs. A new one for every job, since it caches listings."""

    def __init__(self, network_seconds: float) -> None:
        self._network_seconds = network_seconds

    def find(self, url: str) -> list[Listed]:
        """All files that a URL names: itself, those below it, or the matches of its glob. In no order."""
        if _on_web(url):
            return [Listed(self._web_file(url), "", False)]
        return self.attempt(url, lambda store: list(self._entries(store)))

    def _entries(self, store: Filesystem) -> Iterator[Listed]:
        fs, path = store.fs, store.path
        fixed = len(path)
        if glob.has_magic(path):
            found = dict(fs.glob(path, detail=True))
            if not found:
                raise InputError(f"{show(store.shown(path))}: no file matches this pattern; check the spelling")
            fixed = len(fixed_part(path))
        else:
            found = {path: fs.info(path)}
        for name, info in found.items():
            is_folder = info["type"] == "directory"
            for below, inner in dict(fs.find(name, detail=True)).items() if is_folder else [(name, info)]:
                if not below.endswith("/"):  # the folder marker that some tools write
                    yield Listed(self._file(store, below, inner), below[fixed:].lstrip("/"), is_folder)

    def folder(self, url: str) -> dict[str, RemoteFile] | None:
        """The files in a folder and in its train/ and val/, by name; None on the web, where folders cannot be listed.

        Raises NotFound if there is no such folder.
        """
        if _on_web(url):
            return None

        def listed(store: Filesystem) -> dict[str, RemoteFile]:
            found = store.fs.ls(store.path, detail=True)
            for below in [f"{store.path}/train", f"{store.path}/val"]:
                if any(info["type"] == "directory" and str(info["name"]).rstrip("/") == below for info in found):
                    found = [*found, *store.fs.ls(below, detail=True)]
            inside = store.path + "/"
            return {
                name.removeprefix(inside): self._file(store, name, info)
                for info in found
                if info["type"] != "directory" and (name := str(info["name"])).startswith(inside)
            }

        return self.attempt(url, listed)

    def attempt(
        self, url: str, act: Callable[[Filesystem], T], action: str = "read", stop: threading.Event | None = None
    ) -> T:
        """The result of act, retried while the network or the server fails."""
        scheme = _scheme(url)
        opening = {"hf": self._hub, "s3": self._s3, "gs": self._gcs}.get(scheme)
        if opening is None:
            raise UsageError(
                f"{show(url)}: {scheme}:// is not supported; give a path, or a URL that begins with hf://, s3://, gs:// or https://"
            )
        retry = Retry(url, self._network_seconds, stop)
        if action == "write":  # the store was read before, so its name is right
            retry.succeeded()

        def once() -> T:
            try:
                return act(opening(url))
            except (TransientError, ShardmillError):
                raise
            except ImportError as e:
                extra, library = _EXTRAS[scheme]
                raise UsageError(
                    f"{show(url)}: needs {library}, which is not installed; run: pip install 'shardmill[{extra}]'"
                ) from e
            except Exception as e:
                raise _explained(url, e, _ADVICE[scheme], action) from e

        return retry.call(once)

    def _file(self, store: Filesystem, name: str, info: dict[str, Any]) -> RemoteFile:
        path, version, size = store.shown(name), store.version(info), info.get("size")
        if not isinstance(size, int) or size < 0:
            raise InputError(f"{show(path)}: the server reports no size; download the file, then use the copy")
        return RemoteFile(
            path=path,
            identity=path,
            size=size,
            version=version,
            etag="" if store.pinned else version,
            address=lambda: store.address(name, info),
            advice=_ADVICE[_scheme(path)],
            network_seconds=self._network_seconds,
        )

    def _web_file(self, url: str) -> RemoteFile:
        if "*" in url:
            raise UsageError(
                f"{show(url)}: a web server cannot be searched for file names; write the URLs to a file, one per line, and pass @FILE"
            )
        return http.probe(
            RemoteFile(
                path=without_secrets(url),
                identity=url,
                address=lambda: Address(url=url),
                advice=_ADVICE["web"],
                network_seconds=self._network_seconds,
            )
        )

    @cached_property
    def _hub_fs(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True)

    def _hub(self, url: str) -> Filesystem:
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        path = url.partition("://")[2].strip("/")
        if path.startswith("buckets/") or path.count("/") < 1:
            raise UsageError(f"{show(url)}: write it as hf://datasets/ORG/NAME/FOLDER, or …/NAME@REVISION/FOLDER")
        where = self._hub_fs.resolve_path(path)
        # One commit for the whole job: a push in the meantime changes nothing.
        hub = HfApi()
        commit = hub.repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha
        kind = {"dataset": "datasets/", "space": "spaces/"}.get(where.repo_type, "")
        typed = path[len(kind + where.repo_id) :]
        revision = typed[: len(typed) - len(where.path_in_repo)].rstrip("/") if typed.startswith("@") else ""
        root, pinned = f"{kind}{where.repo_id}{revision}", f"{kind}{where.repo_id}@{commit}"

        def address(name: str, _: dict[str, Any]) -> Address:
            inside = name.removeprefix(pinned + "/")
            file = hf_hub_url(where.repo_id, inside, repo_type=where.repo_type, revision=commit, endpoint=hub.endpoint)
            return Address(url=file, headers=build_hf_headers(library_name="shardmill"))

        return Filesystem(
            fs=self._hub_fs,
            path=f"{pinned}/{where.path_in_repo}".rstrip("/"),
            root=(pinned, f"hf://{root}"),
            version=_hub_version,
            pinned=True,
            address=address,
        )

    @cached_property
    def _s3_fs(self) -> Any:
        import botocore.session
        from s3fs import S3FileSystem

        # Public data can be read without credentials. Not every store accepts signatures older than s3v4.
        anonymous = botocore.session.get_session().get_credentials() is None
        options = {} if anonymous else {"config_kwargs": {"signature_version": "s3v4"}}
        return S3FileSystem(anon=anonymous, use_listings_cache=False, skip_instance_cache=True, **options)

    def _s3(self, url: str) -> Filesystem:
        fs = self._s3_fs
        return Filesystem(
            fs=fs,
            path=url.partition("://")[2].rstrip("/"),
            root=("", "s3://"),
            version=lambda info: str(info.get("ETag", "")).strip('"'),
            pinned=False,
            address=lambda name, _: Address(url=fs.sign(name, expiration=_SIGNED_SECONDS)),
            put_options={"chunksize": PART_BYTES, "max_concurrency": PARTS_AT_ONCE},
        )

    @cached_property
    def _gcs_fs(self) -> Any:
        from gcsfs import GCSFileSystem

        return GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)

    def _gcs(self, url: str) -> Filesystem:
        fs = self._gcs_fs

        def address(name: str, info: dict[str, Any]) -> Address:
            headers: dict[str, str] = {}
            fs.credentials.apply(headers)
            return Address(url=fs.url(name, generation=info.get("generation")), headers=headers)

        return Filesystem(
            fs=fs,
            path=url.partition("://")[2].rstrip("/"),
            root=("", "gs://"),
            version=lambda info: str(info.get("generation") or info.get("etag") or ""),
            pinned=True,
            address=address,
            put_options={"chunksize": PART_BYTES, "consistency": "md5"},
        )


def _scheme(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    return "gs" if scheme == "gcs" else scheme


def _on_web(url: str) -> bool:
    return _scheme(url) in ("http", "https")


def fixed_part(pattern: str) -> str:
    """The folder that a glob begins with, in which there is no * ? or [."""
    return "".join(re.split(r"[*?[]", pattern)[0].rpartition("/")[:2])


def _hub_version(info: dict[str, Any]) -> str:
    """The SHA-256 of a large file, the blob id of a small one: the same content in any commit."""
    large = info.get("lfs")
    return str((large and (large["sha256"] if isinstance(large, dict) else large.sha256)) or info.get("blob_id") or "")


def _explained(url: str, e: Exception, advice: str, action: str) -> Exception:
    """An error of a lookup or upload, as one of ours: TransientError if it is worth another try."""
    shown, error = show(url), OutputError if action == "write" else InputError
    chain: list[BaseException] = [e]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    names = {type(link).__name__ for link in chain}
    statuses = {status for link in chain if (status := _status(link)) is not None}
    if "RevisionNotFoundError" in names:
        return error(f"{shown}: the hub has no such revision; check the name after the @")
    if "RepositoryNotFoundError" in names:
        return error(
            f"{shown}: the hub has no such repository, or it is private. Datasets begin with hf://datasets/; {advice}"
        )
    if "NoCredentialsError" in names or statuses & {401, 403} or isinstance(e, PermissionError):
        return error(f"{shown}: no permission to {action} this; {advice}")
    if "NoSuchBucket" in {_s3_code(link) for link in chain}:
        return error(f"{shown}: no such bucket; check the spelling, or create it first")
    if isinstance(e, FileNotFoundError) or 404 in statuses:
        return (error if action == "write" else NotFound)(f"{shown}: no such file or folder; check the spelling")
    if any(status == 429 or status >= 500 for status in statuses):
        return TransientError(f"the server answers {max(statuses)}")
    if 400 in statuses:
        return error(f"{shown}: the server rejects the request (400); {advice}")
    libraries = {type(link).__module__.partition(".")[0] for link in chain}
    if isinstance(e, OSError) or libraries & _NETWORK:
        return TransientError(f"the server cannot be reached ({type(e).__name__})", unreachable=True)
    if isinstance(e, ValueError | NotImplementedError):
        return UsageError(f"{shown}: not a valid URL; check the spelling")
    raise e


def _s3_code(e: BaseException) -> str:
    """The error code of S3, such as NoSuchBucket."""
    response = getattr(e, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _status(e: BaseException) -> int | None:
    """The HTTP status that an exception of any of the libraries carries."""
    response = getattr(e, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif response is not None:
        found = getattr(response, "status_code", None)
    else:
        found = getattr(e, "code", None) or getattr(e, "status", None)
    return int(found) if re.fullmatch(r"[1-5]\d\d", str(found)) else None
