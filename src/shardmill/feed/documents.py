"""Where documents end → which of them are in a row: masks, positions and sequence lengths for attention."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError, UsageError
from shardmill.feed.order import Numbers, runs
from shardmill.feed.source import Mapped, Opened
from shardmill.io import storage
from shardmill.io.lock import in_turn
from shardmill.results.corpus import Split
from shardmill.results.document_index import EndsFile
from shardmill.spec import Limits
from shardmill.system.names import show

IGNORED = -100  # the label that torch's cross_entropy leaves out
Flags = npt.NDArray[np.bool_]
Row = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """What a row says about its documents.

    most: how many of them a row has at most, which fixes the size of cu_seqlens; None: as many as tokens.
    begin: each row begins with a document, if one begins within its first `length` tokens; what lies before it is left
    out, and what follows the row may be in the next one too.
    """

    most: int | None = None
    begin: bool = False


def document_ends(opened: Opened) -> Mapped:
    """Where each document ends: from the index, or found once and kept in the cache folder."""
    split = opened.split
    single = split.ends[0] if split.ends is not None and len(split.ends) == 1 else None
    if isinstance(single, EndsFile):
        path = Path(single.file.path)
    else:
        refuse_unknown(opened)
        path = Limits().cache_folder() / f"ends-{opened.files.stamp()}-{split.eot_id}-{split.eot_side}.u8"
        _write_once(path, split)
    ends = Mapped(path, np.dtype("<i8"))
    if not len(ends.array) or ends.array[-1] != len(split):
        raise InputError(
            f"{show(path)}: does not end with the {len(split):,} tokens of {opened.shown}; the index is damaged, or belongs to other tokens. Restore it, or prepare the output again"
        )
    return ends


def refuse_unknown(opened: Opened) -> None:
    """Of running text divided between train and val, only one split has the end-of-text token of a document."""
    corpus, split = opened.corpus, opened.split
    divided = len(corpus) > 1 and corpus.manifest.counts.passages
    if not split.knows_documents or (split.ends is None and divided):
        raise UsageError(
            f"{opened.shown}: the document boundaries are unknown: there is no index, and end-of-text tokens do not show them. Prepare it again with --index, or for files of another program pass eot_id"
        )


def _write_once(path: Path, split: Split) -> None:
    """Find all ends and write them to a file, if it is not there yet: one of many ranks does it while the others wait."""
    if path.exists():
        return
    storage.make_folder(path.parent)
    with in_turn(path):
        if path.exists():
            return
        made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")  # where there are no locks, several are made
        storage.write_whole(made, (some.astype("<u8").tobytes() for some in split.document_ends()))
        with storage.writing(path):
            os.replace(made, path)


def begins_in(index: Mapped, starts: Numbers, length: int) -> Flags:
    """Which of the length tokens after each start begin a document; the first always counts as a beginning."""
    ends = index.array
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(ends, starts + length, side="left")
    rows, inside = runs(last - first)
    at = ends[first[rows] + inside] - starts[rows]
    if len(at) and (at.min() <= 0 or at.max() >= length):
        raise InputError(
            f"{show(index.path)}: the ends of documents are not in ascending order; the index is damaged. Restore it, or prepare the output again"
        )
    flags = np.zeros((len(starts), length), np.bool_)
    flags[rows, at] = True
    flags[:, 0] = True
    return flags


def described(begins: Flags, most: int | None) -> Row:
    """Of rows where documents begin at these tokens: the number of each token's document, its position in it, and the
    documents' limits in all rows laid end to end, padded to a fixed size for kernels that are compiled for it."""
    rows, length = begins.shape
    most = most or length
    found = begins.sum(axis=1)
    if int(found.max(initial=0)) > most:
        raise UsageError(
            f"a row holds {int(found.max()):,} documents, and cu_seqlens has room for {most:,}; pass documents=Documents(most={int(found.max()):,}) or more"
        )
    columns = np.arange(length)
    since = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    limits = np.full(rows * most + 1, rows * length, np.int32)
    starts = np.flatnonzero(begins)
    limits[: len(starts)] = starts
    return {
        "document_ids": np.cumsum(begins, axis=1, dtype=np.int32) - 1,
        "position_ids": columns - since,
        "cu_seqlens": limits,
    }
