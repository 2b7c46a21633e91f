"""URLs → the objects they mean on the hub, in S3, in Google Cloud Storage or on the web. The only door to fsspec.

fsspec lists and knows where credentials are; the bytes come through http.py, the same way from every place.
"""

import glob
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardmill.errors import InputError, ShardmillError, UsageError
from shardmill.io import http
from shardmill.io.http import Address, Remote
from shardmill.io.retry import Missing, Retry, Trouble
from shardmill.system.names import show, without_secrets

# A signed URL is made for every request, and only has to outlive its beginning.
_SIGNED_SECONDS = 3600
# A file is put in parts of this size, some at once: as much of it is in memory at a time.
PART_BYTES, PARTS_AT_ONCE = 8 << 20, 4
# Libraries whose exceptions mean that the network or the server had a bad moment.
_NETWORK = {"aiohttp", "aiobotocore", "botocore", "gcsfs", "google", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib3"}  # fmt: skip
_WEB_ADVICE = (
    "open the address in a browser to see what it asks for; a name and password for the host may stand in ~/.netrc"
)

T = TypeVar("T")
Wanted = Callable[[str], bool]
"""Whether a file is taken from a folder, by its path below that folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Filesystem:
    """A file system of fsspec, and what one URL means in it."""

    fs: Any
    path: str
    """What to look for, as fs writes it."""
    shown: Callable[[str], str]
    """A name that fs gives → as the user would write it."""
    version: Callable[[dict[str, Any]], str]
    pinned: bool
    """The address names the version, so the bytes cannot change."""
    address: Callable[[str, dict[str, Any]], Address]
    advice: str
    not_data: tuple[str, ...] = ()
    """Files of the folder that are about the data."""
    put_options: dict[str, Any] = field(default_factory=dict)
    """How a file is put: in parts that take little memory."""


class Resolver:
    """Looks up URLs. Made anew for every job: what it has listed, it remembers."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._open: dict[str, Any] = {}

    def find(self, url: str, wanted: Wanted) -> list[Remote]:
        """All files that a URL means: itself, the wanted ones below it, or what matches its glob. In no order."""
        if _on_web(url):
            return [self._on_the_web(url)]
        return self.attempt(
            url,
            lambda store: [
                self._remote(store, name, info)
                for name, info in _entries(store, wanted)
                if not name.endswith("/")  # what some tools leave for a folder
            ],
        )

    def folder(self, url: str) -> dict[str, Remote] | None:
        """The files in a folder, by name, those in train/ and val/ too; None on the web, where they cannot be listed.

        Missing if it is not there.
        """
        if _on_web(url):
            return None

        def listed(store: Filesystem) -> dict[str, Remote]:
            found = store.fs.ls(store.path, detail=True)
            for below in [f"{store.path}/train", f"{store.path}/val"]:
                if any(info["type"] == "directory" and str(info["name"]).rstrip("/") == below for info in found):
                    found = [*found, *store.fs.ls(below, detail=True)]
            inside = store.path + "/"
            return {
                name.removeprefix(inside): self._remote(store, name, info)
                for info in found
                if info["type"] != "directory" and (name := str(info["name"])).startswith(inside)
            }

        return self.attempt(url, listed)

    def attempt(
        self,
        url: str,
        act: Callable[[Filesystem], T],
        done: str = "read",
        stop: threading.Event | None = None,
        shown: str | None = None,
    ) -> T:
        """What act makes of the place; tried again while the network or the server has a bad moment."""
        shown = shown or url
        scheme = _scheme(url)
        opening = {"hf": self._hub, "s3": self._s3, "gs": self._gcs, "gcs": self._gcs}.get(scheme)
        if opening is None:
            raise UsageError(
                f"{show(url)}: {scheme}:// is not read; give a path, or a URL that begins with hf://, s3://, gs:// or https://"
            )
        trying = Retry(shown, self._patience, stop)
        if done == "write":  # it was looked at before, so its name is right
            trying.arrived()
        while True:
            try:
                return act(opening(url))
            except Trouble as e:
                trying.pause(e)
            except Exception as e:
                trying.pause(_understood(shown, e, _ADVICE[scheme], done))

    def _remote(self, store: Filesystem, name: str, info: dict[str, Any]) -> Remote:
        version, size = store.version(info), info.get("size")
        if not isinstance(size, int) or size < 0:
            raise InputError(f"{show(store.shown(name))}: its size is not told; download it first, then mill the copy")
        return Remote(
            path=store.shown(name),
            identity=store.shown(name),
            size=size,
            version=version,
            etag="" if store.pinned else version,
            address=lambda: store.address(name, info),
            advice=store.advice,
            patience=self._patience,
        )

    def _on_the_web(self, url: str) -> Remote:
        if "*" in url:
            raise UsageError(
                f"{show(url)}: a web server cannot be searched for names; write the addresses into a file, one a line, and give @FILE"
            )
        path = without_secrets(url)
        size, version = http.probe(path, lambda: Address(url=url), _WEB_ADVICE, self._patience)
        return Remote(
            path=path,
            identity=url,
            size=size,
            version=version,
            etag=version,
            address=lambda: Address(url=url),
            advice=_WEB_ADVICE,
            patience=self._patience,
        )

    def _hub(self, url: str) -> Filesystem:
        try:
            from huggingface_hub import HfApi, HfFileSystem, hf_hub_url
            from huggingface_hub.utils import build_hf_headers
        except ImportError as e:
            raise _missing(url, "hub", "huggingface_hub") from e
        if "hf" not in self._open:
            self._open["hf"] = HfFileSystem(skip_instance_cache=True)
        fs = self._open["hf"]
        path = url.partition("://")[2].strip("/")
        if path.startswith("buckets/") or path.count("/") < 1:
            raise UsageError(f"{show(url)}: write it like hf://datasets/ORG/NAME/FOLDER, or …/NAME@REVISION/FOLDER")
        where = fs.resolve_path(path)
        # One commit for the whole job: whoever pushes meanwhile changes nothing.
        commit = HfApi().repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha
        kind = {"dataset": "datasets/", "space": "spaces/"}.get(where.repo_type, "")
        typed = path[len(kind + where.repo_id) :]
        revision = typed[: len(typed) - len(where.path_in_repo)].rstrip("/") if typed.startswith("@") else ""
        root, pinned = f"{kind}{where.repo_id}{revision}", f"{kind}{where.repo_id}@{commit}"

        def address(name: str, _: dict[str, Any]) -> Address:
            inside = name.removeprefix(pinned + "/")
            file = hf_hub_url(
                where.repo_id, inside, repo_type=where.repo_type, revision=commit, endpoint=HfApi().endpoint
            )
            return Address(url=file, headers=build_hf_headers(library_name="shardmill"))

        return Filesystem(
            fs=fs,
            path=f"{pinned}/{where.path_in_repo}".rstrip("/"),
            shown=lambda name: "hf://" + root + name.removeprefix(pinned),
            version=_hub_version,
            pinned=True,
            address=address,
            advice=_ADVICE["hf"],
            not_data=() if where.path_in_repo else ("README.md",),
        )

    def _s3(self, url: str) -> Filesystem:
        try:
            import botocore.session
            from s3fs import S3FileSystem
        except ImportError as e:
            raise _missing(url, "s3", "s3fs") from e
        if "s3" not in self._open:
            # Without any credentials what is public can still be read. Old signatures are not taken everywhere.
            anonymous = botocore.session.get_session().get_credentials() is None
            options = {} if anonymous else {"config_kwargs": {"signature_version": "s3v4"}}
            self._open["s3"] = S3FileSystem(
                anon=anonymous, use_listings_cache=False, skip_instance_cache=True, **options
            )
        fs = self._open["s3"]
        return Filesystem(
            fs=fs,
            path=url.partition("://")[2].rstrip("/"),
            shown=lambda name: f"s3://{name}",
            version=lambda info: str(info.get("ETag", "")).strip('"'),
            pinned=False,
            address=lambda name, _: Address(url=fs.sign(name, expiration=_SIGNED_SECONDS)),
            advice=_ADVICE["s3"],
            put_options={"chunksize": PART_BYTES, "max_concurrency": PARTS_AT_ONCE},
        )

    def _gcs(self, url: str) -> Filesystem:
        try:
            from gcsfs import GCSFileSystem
        except ImportError as e:
            raise _missing(url, "gcs", "gcsfs") from e
        if "gs" not in self._open:
            self._open["gs"] = GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)
        fs = self._open["gs"]

        def address(name: str, info: dict[str, Any]) -> Address:
            headers: dict[str, str] = {}
            fs.credentials.apply(headers)
            return Address(url=fs.url(name, generation=info.get("generation")), headers=headers)

        return Filesystem(
            fs=fs,
            path=url.partition("://")[2].rstrip("/"),
            shown=lambda name: f"gs://{name}",
            version=lambda info: str(info.get("generation") or info.get("etag") or ""),
            pinned=True,
            address=address,
            advice=_ADVICE["gs"],
            put_options={"chunksize": PART_BYTES, "consistency": "md5"},
        )


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _on_web(url: str) -> bool:
    return _scheme(url) in ("http", "https")


def _entries(store: Filesystem, wanted: Wanted) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files that a path, folder or glob means, with what fsspec knows of each."""
    fs, path = store.fs, store.path
    if glob.has_magic(path):
        found = dict(fs.glob(path, detail=True))
        if not found:
            raise InputError(f"{show(store.shown(path))}: no file matches this pattern; check the spelling")
    else:
        found = {path: fs.info(path)}
    for name, info in found.items():
        if info["type"] != "directory":
            yield name, info
            continue
        for below, inner in dict(fs.find(name, detail=True)).items():
            inside = below[len(name) :].lstrip("/")
            if wanted(inside) and inside not in store.not_data:
                yield below, inner


def _hub_version(info: dict[str, Any]) -> str:
    """The SHA-256 of a large file, the blob of a small one: what is in it, whichever commit it is read from."""
    large = info.get("lfs")
    return str((large and (large["sha256"] if isinstance(large, dict) else large.sha256)) or info.get("blob_id") or "")


_ADVICE = {
    "hf": "check the name; if it is private or gated, ask for access on its page, then log in with `hf auth login` or set HF_TOKEN",
    "s3": "check the name, and who you are with `aws sts get-caller-identity`; credentials come from `aws configure`, AWS_PROFILE or AWS_ACCESS_KEY_ID",
    "gs": "check the name, and log in with `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS",
}
_ADVICE["gcs"] = _ADVICE["gs"]


def _missing(url: str, extra: str, library: str) -> UsageError:
    return UsageError(f"{show(url)}: needs {library}, which is not installed; run: pip install 'shardmill[{extra}]'")


def _understood(url: str, e: Exception, advice: str, done: str) -> Trouble:
    """What went wrong while something was looked up or written: Trouble is returned, to be tried again; all else is raised."""
    if isinstance(e, ShardmillError):
        raise e
    chain: list[BaseException] = [e]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    names = {type(link).__name__ for link in chain}
    statuses = {status for link in chain if (status := _status(link)) is not None}
    if "RevisionNotFoundError" in names:
        raise InputError(f"{show(url)}: the hub has no such revision; check what stands after the @") from e
    if "RepositoryNotFoundError" in names:
        raise InputError(
            f"{show(url)}: the hub has no such repository, or it is private. Datasets begin with hf://datasets/; {advice}"
        ) from e
    if "NoCredentialsError" in names or statuses & {401, 403} or isinstance(e, PermissionError):
        raise InputError(f"{show(url)}: you may not {done} this; {advice}") from e
    if "NoSuchBucket" in {_code(link) for link in chain}:
        raise InputError(f"{show(url)}: there is no such bucket; check the spelling, or make it first") from e
    if isinstance(e, FileNotFoundError) or 404 in statuses:
        raise Missing(f"{show(url)}: there is no such file or folder; check the spelling") from e
    if any(status == 429 or status >= 500 for status in statuses):
        return Trouble(f"the server answers {max(statuses)}")
    if 400 in statuses:
        raise InputError(f"{show(url)}: the server does not understand the request (400); {advice}") from e
    libraries = {type(link).__module__.partition(".")[0] for link in chain}
    if isinstance(e, OSError) or libraries & _NETWORK:
        return Trouble(f"the place cannot be reached ({type(e).__name__})", unreachable=True)
    if isinstance(e, ValueError | NotImplementedError):
        raise UsageError(f"{show(url)}: this is not an address that can be read; check the spelling") from e
    raise e


def _code(e: BaseException) -> str:
    """The name that S3 gives an error."""
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
