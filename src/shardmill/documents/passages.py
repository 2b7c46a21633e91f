"""Running text → passages with content-defined borders: the units of the split."""

from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from shardmill.documents.rules import PASSAGE_HEAD, Passages, TextRules, growing
from shardmill.io.reading import Reader
from shardmill.tokens.cuts import CONTEXT_BYTES, Cuts

# The rules for cuts look back two characters.
BEFORE_BYTES = 8
# For tokenizers without known exact cuts, passages still end at spaces and lines, but by force: val must get its share.
_BY_FORCE = Cuts("spaces")


def find_passages(reader: Reader, base: int, at: int, rules: TextRules, block_bytes: int) -> tuple[bytes, Passages]:
    """The next bytes of the file, and the passages that begin and end in them."""
    for limit in growing(block_bytes, max(block_bytes, rules.max_run_bytes)):
        data = reader.read(at, limit + CONTEXT_BYTES)
        at_end = len(data) < limit + CONTEXT_BYTES if reader.size is None else at + len(data) == reader.size
        starts: list[int] = []
        end, forced = 0, False
        while end < len(data) and not forced:
            rest = (len(data) if reader.size is None else reader.size - at) - end
            border, forced = _next_border(data, end, base + at, rules, at_end=at_end, rest=rest)
            if border is None:
                break
            starts.append(end)
            end = border
        if starts:
            break
    keys = [
        rules.key(data[a : min(b, a + PASSAGE_HEAD)], base + at + a)
        for a, b in zip(starts, [*starts[1:], end][: len(starts)], strict=True)
    ]
    last = at_end and end == len(data)
    return data, Passages(starts=tuple(starts), keys=tuple(keys), end=end, forced=forced, last=last)


def survey(reader: Reader, base: int, at: int, rules: TextRules) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The keys of all passages from the start of one at `at`, and each time where the last of them ends.

    The same passages as find_passages finds, but reads only the start of each and the lines where it may end.
    """
    head, last = reader.read(at, PASSAGE_HEAD), False
    while not last:
        if (seen := _glance(reader, base, at, rules)) is not None:
            end, following = seen
            keys: tuple[int, ...] = (rules.key(head[: end - at], base + at),)
        else:
            _, found = find_passages(reader, base, at, rules, rules.block_bytes)
            end, keys, last = at + found.end, found.keys, found.last or not found.starts
            following = reader.read(end, PASSAGE_HEAD)
        if keys:
            yield end, keys
        at, head = end, following
        reader.done_until(at)


def _glance(reader: Reader, base: int, at: int, rules: TextRules) -> tuple[int, bytes] | None:
    """Where the passage that begins there ends, if the lines around its length tell, and the beginning of the next."""
    assert rules.passage_bytes is not None and reader.size is not None
    begin = at + max(0, rules.passage_bytes - 2 * BEFORE_BYTES)
    length = 2 * BEFORE_BYTES + rules.passage_bytes // 16 + 2 * CONTEXT_BYTES
    data = reader.read(begin, length + PASSAGE_HEAD)
    border, forced = _next_border(data[:length], at - begin, base + begin, rules, at_end=False, rest=reader.size - at)
    if border is None or (forced and rules.cuts.family != "unknown"):
        return None
    return begin + border, data[border : border + PASSAGE_HEAD]


def _next_border(
    data: bytes, at: int, offset: int, rules: TextRules, *, at_end: bool, rest: int
) -> tuple[int | None, bool]:
    """Where the passage that begins at `at` ends, and whether by force; (None, …) if more text is needed to decide.

    Passages begin at lines chosen by a hash of the line before, so that an edit moves only the borders near it; where
    there are no lines, at the first exact cut. A short last passage (`rest` is what is left of the file) is joined to
    the one before it: a validation set of a few tokens is useless.
    """
    assert rules.passage_bytes is not None
    visible = len(data) if at_end else len(data) - CONTEXT_BYTES
    goal = at + rules.passage_bytes
    line_until = goal + rules.passage_bytes // 16
    border_ahead = rules.border is not None and offset + at < rules.border < offset + at + rest
    if border_ahead and rules.border is not None and rules.border <= offset + line_until:
        if rules.exact_border:
            return (rules.border - offset, True) if rules.border - offset <= len(data) else (None, False)
        goal = line_until = max(rules.border - offset, at + BEFORE_BYTES)  # the context that the rules need is there
    elif rest < 2 * rules.passage_bytes and not border_ahead:
        return (len(data) if at_end else None), False
    if goal >= len(data):
        return (len(data) if at_end else None), False
    if line_until > visible and not at_end:
        return None, False
    forced = rules.cuts.family == "unknown"
    cuts = _BY_FORCE if forced else rules.cuts
    after = goal
    while after := data.find(b"\n", after, line_until) + 1:
        if (
            after < len(data)
            and data[after] > 0x20 < data[after - 2]
            and xxh3_64_intdigest(data[after - 16 : after]) & 1
            and cuts.is_line_cut(data, after)
        ):
            return after, forced
    last = at + rules.max_run_bytes
    for window in range(line_until, last, 4 << 10):
        until = min(window + (4 << 10), last)
        if until > visible and not at_end:
            return cuts.first_space(data, window, visible), forced
        found = cuts.first(data, window, min(until, len(data)), at)
        if found is not None:
            return found, forced
        if until >= len(data):
            return len(data), False
    return character_boundary(data, last), True


def character_boundary(data: bytes, at: int) -> int:
    """The last offset up to `at` that is not inside a character."""
    for start in range(at - 1, max(0, at - 4), -1):
        if data[start] & 0xC0 != 0x80:
            size = 1 + (data[start] >= 0xC0) + (data[start] >= 0xE0) + (data[start] >= 0xF0)
            return start if at < start + size else at
    return at
