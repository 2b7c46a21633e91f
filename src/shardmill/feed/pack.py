"""Where documents end → a plan that packs them into rows of one length, by best fit: only the index is read.

Documents are packed some at a time, the longest first, each into the fullest row that has room for it. Documents of
one length are alike, so they are placed together: a step of the packing moves many.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardmill.errors import UsageError
from shardmill.feed.documents import refuse_unknown
from shardmill.feed.order import Numbers, key_of, permuted, runs
from shardmill.feed.plan import GOES_ON, HEADER_BYTES, SPAN, LongDocuments, Packing
from shardmill.feed.source import Opened, Source, open_source
from shardmill.formats.output_files import OutputFiles
from shardmill.formats.shards import SPLITS
from shardmill.system.names import show

WINDOW = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Put this many items of one length into rows with this much room, as many into each as fit."""

    length: int
    room: int
    items: int
    rows: int
    new: bool
    """The rows are new ones."""


def pack(
    source: str | Path | Source,
    *,
    length: int,
    long: LongDocuments = "fragment",
    seed: int = 0,
    window: int = WINDOW,
    output: str | Path | None = None,
) -> Packing:
    """Pack the documents of a split into rows of this many tokens, and write the plan: by default OUTPUT/SPLIT-LENGTH.plan.

    Documents longer than a row are cut into several rows ("fragment"), lose their end ("crop"), or are left out ("drop").

    >>> result = shardmill.prepare(shardmill.Spec(inputs=["corpus/"], output="indexed", index=True))
    >>> shardmill.pack("indexed", length=1024).lost
    0
    """
    opened = open_source(source if isinstance(source, Source) else Source(path=source))
    if not 1 <= length < GOES_ON or window < 1:
        raise UsageError(f"length {length:,}, window {window:,}: both must be at least 1, and a row shorter than 2^31")
    path = Path(output) if output is not None else Path(opened.source.path) / f"{opened.split.name}-{length}.plan"
    if path.name.startswith(SPLITS) and path.suffix != ".plan":
        raise UsageError(f"{show(path)}: could be mistaken for a token file; name the plan {show(path.name)}.plan")
    began = Packing(length=length, long=long, window=window, seed=seed, split=opened.split.name, **opened.identity)
    files = OutputFiles(path.parent, {}, drop_behind=False)
    try:
        made = _write(files, path.name, opened, began)
        files.seal()
        files.publish()
    except BaseException:
        files.abandon()
        raise
    return made


def _write(files: OutputFiles, name: str, opened: Opened, made: Packing) -> Packing:
    ends_name, histogram = f"{name}.rows", np.zeros(made.length + 1, np.int64)
    files.append(name, memoryview(bytes(HEADER_BYTES)))
    for number, (starts, sizes) in enumerate(_windows(opened, made.window)):
        starts, lengths, goes_on = _items(starts, sizes, made)
        counts = np.bincount(lengths, minlength=made.length + 1)
        histogram += counts
        rows = _rows_of(lengths, counts, made.length)
        count = int(rows.max(initial=-1)) + 1
        rows = permuted(np.arange(count), count, key_of(made.seed, number))[rows]
        order = _sorted_stably(rows)
        spans = np.empty(len(order), SPAN)
        spans["start"], spans["length"] = starts[order], (lengths | goes_on * GOES_ON)[order]
        files.append(name, spans.data.cast("B"))
        row_ends = made.spans + np.cumsum(np.bincount(rows, minlength=count))
        files.append(ends_name, row_ends.astype("<u8").data.cast("B"))
        made = replace(
            made,
            documents=made.documents + len(sizes),
            rows=made.rows + count,
            spans=made.spans + len(spans),
            lost=made.lost + int(sizes.sum() - lengths.sum()),
            cut=made.cut + int((sizes > made.length).sum()),
        )
    if not made.rows:
        raise UsageError(
            f"{opened.shown}: no document fits into a row of {made.length:,} tokens, so there is nothing to pack"
        )
    files.copy(ends_name, 0, 8 * made.rows, name)
    files.drop(ends_name)
    made = replace(made, rows_at_once=sum(step.rows for step in best_fit(histogram, made.length) if step.new))
    files.patch(name, made.header())
    return made


def _windows(opened: Opened, window: int) -> Iterator[tuple[Numbers, Numbers]]:
    """The documents, some at a time: where each begins, and its length."""
    refuse_unknown(opened)
    start, held, count = 0, [], 0
    for ends in opened.split.document_ends():
        while len(ends):
            held.append(ends[: window - count])
            count, ends = count + len(held[-1]), ends[len(held[-1]) :]
            if count == window:
                yield (found := _starts(held, start))
                start, held, count = int(found[0][-1] + found[1][-1]), [], 0
    if held:
        yield _starts(held, start)


def _starts(held: list[Numbers], start: int) -> tuple[Numbers, Numbers]:
    ends = np.concatenate(held)
    starts = np.concatenate([[start], ends[:-1]])
    return starts, ends - starts


def _items(starts: Numbers, sizes: Numbers, made: Packing) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
    """What is packed: where documents, or parts of them no longer than a row, begin, their lengths, and which go on."""
    length, long = made.length, sizes > made.length
    if made.long == "fragment" and long.any():
        owner, part = runs(-(-sizes // length))
        before = part * length
        left = sizes[owner] - before
        return starts[owner] + before, np.minimum(left, length), left > length
    kept = (sizes > 0) & ~long if made.long == "drop" else sizes > 0
    return starts[kept], np.minimum(sizes[kept], length), long[kept]


def best_fit(histogram: Numbers, capacity: int) -> Iterator[Step]:
    """The steps that place the items of a histogram of lengths, longest first, each into the fullest row with room for it.

    An item that fits twice goes into the same row again, since no other has less room: so rows are filled one by one.
    """
    free: dict[int, int] = {}  # room → rows that have it
    rooms = 0  # bit r is set: there are rows with room for r
    for length in np.flatnonzero(histogram)[::-1].tolist() if len(histogram) else ():
        left = int(histogram[length]) if length else 0
        while left:
            above = rooms >> length
            room = length + (above & -above).bit_length() - 1 if above else capacity
            each = room // length
            rows = -(-left // each) if not above else min(free[room], -(-left // each))
            items = min(left, rows * each)
            yield Step(length=length, room=room, items=items, rows=rows, new=not above)
            left -= items
            if above:
                free[room] -= rows
                rooms ^= (not free[room]) << room
            full, rest = divmod(items, each)
            for remains, count in ((room - each * length, full), (room - rest * length, rest > 0)):
                if count and remains:
                    free[remains] = free.get(remains, 0) + count
                    rooms |= 1 << remains


def _rows_of(lengths: Numbers, histogram: Numbers, capacity: int) -> Numbers:
    """The row of each item."""
    order = _sorted_stably(capacity - lengths)  # the longest first
    rows = np.empty(len(lengths), np.int64)
    stacks: dict[int, list[Numbers]] = {}
    at = made = 0
    for step in best_fit(histogram, capacity):
        if step.new:
            taken = np.arange(made, made + step.rows)
            made += step.rows
        else:
            taken = _take(stacks[step.room], step.rows)
        each = step.room // step.length
        full, rest = divmod(step.items, each)
        rows[at : at + step.items] = taken if each == 1 else np.repeat(taken, each)[: step.items]
        at += step.items
        if full:
            stacks.setdefault(step.room - each * step.length, []).append(taken[:full])
        if rest:
            stacks.setdefault(step.room - rest * step.length, []).append(taken[full:])
    found = np.empty_like(rows)
    found[order] = rows
    return found


def _take(stack: list[Numbers], count: int) -> Numbers:
    """Pop this many rows off the stack."""
    taken = []
    while count:
        last = stack.pop()
        if len(last) > count:
            stack.append(last[:-count])
            last = last[-count:]
        taken.append(last)
        count -= len(last)
    return taken[0] if len(taken) == 1 else np.concatenate(taken)


def _sorted_stably(values: Numbers) -> Numbers:
    """Like argsort, by 16 bits at a time, which numpy sorts ten times faster."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    if len(values) and (most := int(values.max())) >> 16:
        high = (values[order] >> 16).astype(np.uint32 if most >> 32 else np.uint16)
        order = order[np.argsort(high, kind="stable")]
    return order
