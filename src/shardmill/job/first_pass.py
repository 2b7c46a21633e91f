"""InputFiles → the keys that decide the split: all those of a small input, or the certainty that there are enough."""

import contextlib
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from xxhash import xxh3_64_intdigest

from shardmill.documents import detect
from shardmill.documents.native import Hashes
from shardmill.documents.passages import find_passages, first_border
from shardmill.documents.pieces import Position
from shardmill.documents.rules import TextRules
from shardmill.documents.text import SmallFiles
from shardmill.errors import ContentError, InputError
from shardmill.inputs.input_files import InputFiles
from shardmill.io.reading import Reader, ahead
from shardmill.job import plan, split
from shardmill.job.plan import Block, Stretch
from shardmill.job.split import Lowest, Splitter
from shardmill.spec import BLOCK_BYTES
from shardmill.system import buffers
from shardmill.tokens.strings import Flags

Keys = tuple[Position, int, list[int], int]
"""Where the next keys begin, how many bytes were read, the keys, and how many records there are, bad ones included."""

_WINDOW = 1 << 20
_LARGER = 4 << 20
# Running text above this size is not read twice.
LARGE_BYTES = 64 << 20
# Some places are followed by the same passage, or by none.
_MORE_PLACES = 8


def run(
    files: InputFiles, rules: TextRules, fraction: float, found: Lowest | None, *, plain: bool, workers: int
) -> Iterator[tuple[Lowest, int]]:
    """After each block, what was found so far and how many bytes were read. Ends when there are enough records.

    Whatever --on-error says, bad records have no say, so that the split is the same if it changes between two runs.
    found is where an earlier run was stopped; without it, records are counted first, which is fast.
    """
    # Of running text, less is read twice in larger Blocks.
    larger = (
        max(_LARGER, rules.block_bytes)
        if rules.passage_bytes and rules.block_bytes >= BLOCK_BYTES
        else rules.block_bytes
    )
    rules = dataclasses.replace(rules, on_error="skip", judging=True, block_bytes=larger)
    enough = split.enough(fraction)
    if found is None:
        files_suffice = plain and len(files) >= enough  # a file of text is at least one document
        counted = not rules.selects and (files_suffice or _has_records(files, rules, enough))
        found = Lowest(records=math.ceil(enough) if counted else 0)
        yield found, 0
    if found.records < enough:
        for after, size, keys, records in _keys(files, rules, found.position, workers):
            found = found.plus(keys, len(keys) if rules.selects else records, after)
            yield found, size
            if found.records >= enough:
                return


def begin(
    files: InputFiles, rules: TextRules, fraction: float, *, plain: bool, until: Callable[[], bool]
) -> Lowest | Splitter | None:
    """As much of a first pass as takes little memory, while something else is waited for. run reports any errors."""
    found = None
    with contextlib.suppress(InputError):
        if is_large_text(files, rules, plain=plain):
            return of_large_text(files, rules, fraction)
        for found, _ in run(files, rules, fraction, None, plain=plain, workers=1):
            if until() or not plain:
                return found
    return found


def is_large_text(files: InputFiles, rules: TextRules, *, plain: bool) -> bool:
    """Whether the input is one long text in which the val passages are found by their places, without a first pass."""
    running = plain and len(files) == 1 and rules.separator is None and not (rules.selects or files.pipes)
    return running and rules.passage_bytes is not None and files.total_bytes > LARGE_BYTES


def of_large_text(files: InputFiles, rules: TextRules, fraction: float) -> Splitter | None:
    """Where few passages will be val: those that follow places drawn by the seed, about the fraction asked for; and any
    other with the same content. None: there are no passages."""
    assert rules.passage_bytes is not None
    wanted = files.total_bytes * fraction
    if wanted >= split.FEW * rules.passage_bytes:
        return split.by_threshold(fraction)
    chosen = dict[int, int]()
    for key, length in _following(files, rules, 2 * math.ceil(wanted / rules.passage_bytes) + _MORE_PLACES):
        if chosen and sum(chosen.values()) + length / 2 > wanted:
            break
        chosen[key] = length
    return Splitter(mode="hash", keys=tuple(chosen)) if chosen else None


def _following(files: InputFiles, rules: TextRules, count: int) -> list[tuple[int, int]]:
    """Key and length of the passages that follow so many places, in the order in which these are drawn. The text is read
    from its beginning to its end: some servers cannot go back."""
    seed, rules = (rules.seed or 0) & (1 << 64) - 1, dataclasses.replace(rules, judging=True)
    drawn = [files.total_bytes * xxh3_64_intdigest(n.to_bytes(8, "little"), seed=seed) >> 64 for n in range(count)]
    found = dict[int, tuple[int, int]]()
    with files.opened.reader(files[0]) as reader:
        for place in sorted(drawn):
            if (begin := first_border(reader, 0, place, rules)) is not None:
                _, passages = find_passages(reader, 0, begin, rules, 2 * (rules.passage_bytes or 0))
                found[place] = int(passages.keys[0]), int(passages.bounds[1])
    return [found[place] for place in drawn if place in found]


def byte_of_character(reader: Reader, choose: Callable[[int], int]) -> int:
    """The byte where a character begins, whose number is chosen by how many there are in all."""
    counts = [_characters(data) for data in _windows(reader)]
    wanted, at = choose(sum(counts)), 0
    for number, count in enumerate(counts):
        if wanted < count:
            data = np.frombuffer(reader.read(at := number * _WINDOW, _WINDOW), np.uint8)
            return at + int(np.flatnonzero(data & 0xC0 != 0x80)[wanted])
        wanted -= count
    return reader.size or 0


def _characters(data: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) & 0xC0 != 0x80))


def _has_records(files: InputFiles, rules: TextRules, enough: float) -> bool:
    """Whether a quick count, which is never too high, finds this many records."""
    for file in files:
        try:
            with files.opened.reader(file) as reader:
                counts = _quick_counts(reader, rules)
                if counts is None:
                    return False
                for count in counts:
                    enough -= count
                    if enough <= 0:
                        return True
        except ContentError:
            return False  # reported when the file is read
    return False


def _quick_counts(reader: Reader, rules: TextRules) -> Iterator[int] | None:
    """How many records there are at least, some at a time; None where only parsing tells."""
    reader, found = detect.content_of(reader, rules.input_format, max_window=rules.max_window)
    match found:
        case "parquet":
            from shardmill.documents.columnar import parquet

            return iter([parquet.rows(reader, rules.field)])
        case "jsonl":
            return map(_count_lines, ahead(_windows(reader)))
        case "text" if (separator := rules.separator) is not None:
            return (data.count(separator) for data in ahead(_windows(reader)))
        case _:
            return None


def _count_lines(data: bytes) -> int:
    """How many lines end an object. As bytes.count(b"}\\n"), and five times as fast."""
    characters = np.frombuffer(data, np.uint8)
    count = np.count_nonzero((characters[1:] == ord("\n")) & (characters[:-1] == ord("}")))
    return int(count) or data.count(b"}\r\n")


def _windows(reader: Reader) -> Iterator[bytes]:
    at = 0
    while data := reader.read(at, _WINDOW):
        at += len(data)
        reader.done_until(at)
        yield data


def _keys(files: InputFiles, rules: TextRules, start: Position, workers: int) -> Iterator[Keys]:
    """The keys of every Block from start on; with several workers, of every stretch, and only the first tells where to
    continue."""
    if workers == 1:
        with buffers.used_again():
            yield from (_keys_of(files, rules, block) for block in plan.blocks(files, rules, plan.rest(start)))
        return

    def found(stretch: Stretch) -> list[Keys]:
        with buffers.used_again():
            return [_keys_of(files, rules, block) for block in plan.blocks(files, rules, stretch)]

    with ThreadPoolExecutor(workers, thread_name_prefix="shardmill-first") as pool:
        pending: deque[Future[list[Keys]]] = deque()
        try:
            for stretch in plan.stretches(files, rules, start):
                pending.append(pool.submit(found, stretch))
                if len(pending) > 2 * workers:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            for each in pending:
                each.cancel()


def _keys_of(files: InputFiles, rules: TextRules, block: Block) -> Keys:
    noted: list[Hashes] = []

    def note(keys: Hashes) -> Flags:
        noted.append(keys)
        return np.zeros(len(keys), np.bool_)

    small = SmallFiles.of(block.parts, rules)
    if small is not None:
        pieces = [small.pieces(rules, note)]
    else:
        pieces = [part.pieces(files.base(part.file), rules, note) for part in block.parts]
    found = [key for keys in noted for key in keys.tolist()]
    return block.after, block.input_bytes, found, sum(each.records for each in pieces)
