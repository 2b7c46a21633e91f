"""The code points on which a fast engine and the reference disagree, and where they occur in a text.

The engines ship different versions of Unicode, so they classify the newest characters differently and split words
there in different places. A sweep tries every code point in many contexts on both engines. Its table depends on both
versions: the one for the pinned versions ships with the package, any other is computed once and cached.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import numpy as np

from shardmill.errors import ShardmillError
from shardmill.io import storage
from shardmill.tokens.cuts import code_points
from shardmill.tokens.reference import Fast, Reference
from shardmill.tokens.tokenizer import Tokenizer

TABLE_FORMAT = 1
SHIPPED = "guard.json"
# Above this share of code points, the engines differ in more than their version of Unicode.
_MAX_SHARE = 0.02

# Contexts in which the class of a character (letter, number, mark, symbol, space, case) shows in the tokens.
_BEFORE = ("", " ", "  ", "1", "!", "\n", "'", "A")
_AFTER = ("", "'s", "'S", "a", "A", "1", "!", "\n\n", "  a", "/")
_CONTEXTS = tuple(
    dict.fromkeys(
        [
            *((before, "'s") for before in _BEFORE),
            *((before, "  a") for before in _BEFORE),
            *(("", after) for after in _AFTER),
        ]
    )
)
_CHUNK = 256
# With more lead bytes than this in a text, decoding all of it is faster than looking at each.
_FEW = 500
# Planes 4 to 13 are unassigned, and 15 and 16 private, in every version: one code point in 61 stands for its chunk.
_DENSE_END = 0x40000
_SPARSE_STEP = 61


class Guard:
    """Finds the characters of a table in UTF-8 text."""

    def __init__(self, points: frozenset[int]) -> None:
        self.code_points = points
        self._characters = frozenset(chr(point).encode() for point in points)
        self._leads = sorted({character[0] for character in self._characters})
        self._is_guarded = np.zeros(0x110000 if points else 0, np.bool_)
        self._is_guarded[list(points)] = True

    def occurs_in(self, texts: list[bytes]) -> bool:
        """Whether any of the texts has a character of the table. The NUL keeps two halves from forming one."""
        return bool(self._leads) and bool(self.find(texts[0] if len(texts) == 1 else b"\0".join(texts)))

    def find(self, text: bytes) -> list[int]:
        """Where the characters of the table start in text."""
        found: list[int] = []
        for lead in self._leads:
            # Most text has few of the lead bytes, and searching for one byte runs at memory speed.
            size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            at = text.find(lead)
            for _ in range(_FEW):
                if at < 0:
                    break
                if text[at : at + size] in self._characters:
                    found.append(at)
                at = text.find(lead, at + 1)
            else:
                points, offsets = code_points(text)
                return [int(offset) for offset in offsets[self._is_guarded[points]]]
        return sorted(found)


def load_guard(
    key: str, make: Callable[[], Fast], reference: Reference, cache: Path, *, may_sweep: bool = True
) -> Guard | None:
    """The guard for a table_key: shipped, cached, or found by a sweep with a new engine; None if that is not allowed."""
    shipped = json.loads((resources.files("shardmill.tokens") / SHIPPED).read_text())["tables"]
    file = cache / f"guard-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    points = _from_ranges(shipped[key]) if key in shipped else _read_cached(file, key)
    if points is None and not may_sweep:
        return None
    if points is None:
        points = find_disagreements(make(), reference)
        content = {"format": TABLE_FORMAT, "key": key, "ranges": to_ranges(points)}
        with contextlib.suppress(ShardmillError):  # a cache that cannot be written costs time, never the job
            storage.make_folder(cache)
            storage.write_whole(file, json.dumps(content, sort_keys=True).encode() + b"\n")
    if len(points) > _MAX_SHARE * 0x110000:
        raise ShardmillError(f"the fast engine differs from {reference.version} on {len(points):,} code points")
    return Guard(points)


def table_key(engine: str, tokenizer: Tokenizer, reference: Reference) -> str:
    """What a table depends on: the versions of both engines, and the tokenizer."""
    return f"{engine} / {reference.version} / {tokenizer.digest}"


def find_disagreements(fast: Fast, reference: Reference) -> frozenset[int]:
    """Try every code point in every context on both engines. Seconds for tiktoken, a minute for tokenizers."""
    chunks = list(_chunks())
    texts = [" ".join(map(_in_contexts, chunk)).encode() for chunk in chunks]
    with ThreadPoolExecutor(2) as pool:
        differ = pool.map(lambda text: not np.array_equal(fast.encode([text])[0], reference.encode(text)), texts)
        suspects = [
            point
            for chunk, wrong in zip(chunks, differ, strict=True)
            if wrong
            for point in range(chunk[0], chunk[-1] + 1)
        ]
    return frozenset(point for point in suspects if not 0xD800 <= point < 0xE000 and not _agree(fast, reference, point))


def to_ranges(points: frozenset[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return ranges


def _chunks() -> Iterator[list[int]]:
    """Neighbouring code points, tried together: all of them where characters are assigned, a few where none are."""
    for start in range(0, 0x110000, _CHUNK):
        if start >= _DENSE_END and start >> 12 != 0xE0:
            points = list(range(start, start + _CHUNK, _SPARSE_STEP))
        else:
            points = [point for point in range(start, start + _CHUNK) if not 0xD800 <= point < 0xE000]
        if points:
            yield points


def _in_contexts(point: int) -> str:
    # " q" on both sides keeps the contexts apart: text can be cut exactly before it.
    return " q".join(f"{before}{chr(point)}{after}" for before, after in _CONTEXTS) + " q"


def _agree(fast: Fast, reference: Reference, point: int) -> bool:
    text = _in_contexts(point).encode()
    return bool(np.array_equal(fast.encode([text])[0], reference.encode(text)))


def _from_ranges(ranges: list[list[int]]) -> frozenset[int]:
    return frozenset(point for first, last in ranges for point in range(first, last + 1))


def _read_cached(file: Path, key: str) -> frozenset[int] | None:
    try:
        content = json.loads(file.read_bytes())
        if content["format"] == TABLE_FORMAT and content["key"] == key:
            return _from_ranges(content["ranges"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None
