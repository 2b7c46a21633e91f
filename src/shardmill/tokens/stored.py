"""What was made of a tokenizer ⇄ a file in the cache folder, so that the next job need not make it again: the compiled
tokenizer, and the bytes of its tokens.

The file is only ever a shortcut: one that is missing, damaged, of another version or unreadable is made anew, and one
that cannot be written costs time and nothing else.
"""

import contextlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from shardmill.errors import ShardmillError
from shardmill.io import storage
from shardmill.tokens import native
from shardmill.tokens.model import Model, Texts

# Goes up with every change to what is compiled, or to how it is stored.
VERSION = 2
_MAGIC = b"shardmill tokenizer\n"
_CHECKSUM_BYTES = 16

Array = npt.NDArray[Any]
What = Literal["tokenizer", "token-bytes"]


def from_model(model: Model) -> tuple[dict[str, Any], dict[str, Array]]:
    """What is stored of a Model."""
    arrays: dict[str, Array] = {"tokens": model.tokens.joined, "offsets": model.tokens.offsets, "ids": model.ids}
    some = {"merges": model.merges, "live": model.live}
    return model.facts(), arrays | {name: array for name, array in some.items() if array is not None}


def to_model(facts: dict[str, Any], arrays: dict[str, Array]) -> Model:
    tokens = Texts(arrays["tokens"], arrays["offsets"])
    some = {name: arrays.get(name) for name in ("merges", "live")}
    return Model.restored(facts, tokens=tokens, ids=arrays["ids"], **some)


def read(cache: Path, digest: str, what: What = "tokenizer") -> tuple[dict[str, Any], dict[str, Array]] | None:
    """The facts and arrays that were stored for a tokenizer of this digest, by these versions."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = _file(cache, digest, what).read_bytes()
        content = memoryview(data)[:-_CHECKSUM_BYTES]
        if data.startswith(_MAGIC) and xxhash.xxh3_128_digest(content) == data[-_CHECKSUM_BYTES:]:
            end = data.index(b"\n", len(_MAGIC))
            header = json.loads(data[len(_MAGIC) : end])
            if header["key"] == _key(digest):
                return header["facts"], _arrays(header["arrays"], content[end + 1 :])
    return None


def write(cache: Path, digest: str, facts: dict[str, Any], arrays: dict[str, Array], what: What = "tokenizer") -> None:
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    header = json.dumps({"key": _key(digest), "facts": facts, "arrays": shapes}).encode()
    content = b"".join([_MAGIC, header, b"\n", *(array.tobytes() for array in arrays.values())])
    with contextlib.suppress(ShardmillError, OSError):
        storage.make_folder(cache)
        storage.write_whole(_file(cache, digest, what), content + xxhash.xxh3_128_digest(content))


def _arrays(shapes: dict[str, Any], content: memoryview) -> dict[str, Array]:
    found, at = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found[name] = np.frombuffer(bytes(content[at : at + size]), dtype).reshape(shape)
        at += size
    return found


def _key(digest: str) -> str:
    """What the content depends on. The library is asked about patterns that are not known."""
    return f"{VERSION} / {native.version()} / tokenizers {metadata.version('tokenizers')} / {digest}"


def _file(cache: Path, digest: str, what: What = "tokenizer") -> Path:
    return cache / f"{what}-{digest[:24]}.bin"
