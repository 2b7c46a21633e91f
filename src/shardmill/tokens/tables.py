"""What a reference of some version makes of each code point: tables that ship with the package, or were swept here.

The references have different versions of Unicode, and none says which. So each is asked about every code point
(sweep.py): when we release, for the versions that there are, and by `shardmill tokenizers --sweep` for a later one.
"""

import contextlib
import json
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal

import xxhash

from shardmill.errors import ShardmillError
from shardmill.io import storage

Kind = Literal["classes", "nfc"]
Table = dict[str, Any]

FORMATS: dict[Kind, int] = {"classes": 2, "nfc": 1}
SWEEP = "`shardmill tokenizers --sweep` asks it, once"
_SWEPT = "swept.json"
_folders: set[Path] = set()


def installed(package: str) -> str:
    """
    >>> installed("tokenizers")
    'tokenizers 0.23.2'
    """
    return f"{package} {metadata.version(package)}"


def look_in(folder: Path) -> None:
    """Tables that were kept in this folder count too."""
    _folders.add(folder)


def find(kind: Kind, version: str) -> Table | None:
    """The table of this version of a reference; None if it was never asked."""
    swept = (table for folder in _folders for table in _read(folder).get(kind, []))
    known = (table for tables in (_shipped(kind), swept) for table in tables)
    return next((table for table in known if version in table["made_with"]), None)


def keep(folder: Path, kind: Kind, table: Table) -> Path:
    """Write a table into the folder, beside those that are there."""
    tables = _read(folder)
    tables[kind] = [table, *(other for other in tables.get(kind, []) if other["made_with"] != table["made_with"])]
    storage.make_folder(folder)
    path = folder / _SWEPT
    content = {"checksum": _checksum(tables), "formats": FORMATS, "tables": tables}
    storage.write_whole(path, json.dumps(content).encode())
    return path


def _read(folder: Path) -> dict[str, list[Table]]:
    """What was kept in the folder: nothing if it is damaged, or was written by another version of this package."""
    with contextlib.suppress(OSError, ShardmillError, ValueError, KeyError, TypeError):
        content = json.loads((folder / _SWEPT).read_bytes())
        tables: dict[str, list[Table]] = content["tables"]
        if content["formats"] == FORMATS and content["checksum"] == _checksum(tables):
            return tables
    return {}


def _checksum(tables: dict[str, list[Table]]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(tables, sort_keys=True).encode())


@lru_cache(maxsize=2)
def _shipped(kind: Kind) -> list[Table]:
    content = json.loads((resources.files("shardmill.tokens") / f"{kind}.json").read_bytes())
    assert content["format"] == FORMATS[kind]
    tables: list[Table] = content["tables"]
    return tables
