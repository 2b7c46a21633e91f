"""A SentencePiece-style Model → the characters between which text is not cut: those that a token holds side by side.

No merge crosses any other place, since it would make a token with the two side by side. The vocabulary has a few tokens
that no merge reaches, so some places are left out that could be cut too.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shardmill.tokens.model import AddedToken, Model, Texts

Pairs = npt.NDArray[np.uint64]

POINT_BITS = 21
ANY = (1 << POINT_BITS) - 1
"""Any character, as one of a pair."""
UNDERLINE = 0x2581

# Finding out which merges can happen takes time in proportion to the square of a token's length.
_LONGEST_TOKEN = 1024
_MOST_WORK = 1 << 31
_IN_TEXT = (*range(0xC0), *range(0xC2, 0xF5))  # the bytes that UTF-8 uses
# White_Space, as Unicode has had it for long: what a token with lstrip or rstrip takes.
_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def why_not(model: Model) -> str | None:
    """Why text of a SentencePiece-style Model cannot be cut, nor run on our engine; None if it can."""
    tokens, begins, sizes = model.tokens.joined, model.tokens.offsets[:-1], np.diff(model.tokens.offsets)
    if model.merges is None or model.whole_words:
        return "its tokens do not come of merges alone"
    if sizes.max() > _LONGEST_TOKEN or (sizes.astype(np.int64) ** 2).sum() > _MOST_WORK:
        return "its vocabulary has too long tokens"
    ascii_ones = set(tokens[begins[sizes == 1]].tolist())
    if not (tokens[begins[sizes == 3][:, None] + np.arange(3)] == list("▁".encode())).all(axis=1).any():
        return "its vocabulary has no token for a blank"
    of_bytes = np.flatnonzero(sizes == 6)
    spelled = tokens[begins[of_bytes][:, None] + np.arange(6)]
    is_byte = (spelled[:, [0, 1, 2, 5]] == list(b"<0x>")).all(axis=1)
    found = {bytes(token) for token in spelled[is_byte].tolist()}
    for byte in _IN_TEXT:
        if b"<0x%02X>" % byte not in found and byte not in ascii_ones and byte != ord(" "):
            return f"its vocabulary has no token for byte {byte:#04x}, so that characters may be unknown"
    if np.isin(model.merges, of_bytes[is_byte]).any() or _merged(model, found):
        return "its merges take or give tokens for bytes"
    return None


def _merged(model: Model, tokens: set[bytes]) -> bool:
    """Whether a merge gives one of these tokens, which have six bytes."""
    assert model.merges is not None
    sizes = np.diff(model.tokens.offsets)
    made = model.tokens.take(model.merges[sizes[model.merges].sum(axis=1) == 6].ravel()).joined[:-1]
    return not tokens.isdisjoint(map(bytes, made.reshape(-1, 6).tolist()))


def neighbours(model: Model) -> Pairs:
    """Pairs of code points, sorted: the first shifted by POINT_BITS, or the second. A blank is U+2581."""
    # Special tokens are text, but hide what is inside them.
    prepends = model.prepend and not model.metaspace
    spelled = [("▁" if token.normalized and prepends else "") + token.content for token in model.added]
    added = Texts.of(content.encode() for content in spelled)
    rules = [tuple(map(_point, pair)) for token in model.added if not token.special for pair in _at_edges(token, model)]
    edges = np.array([first << POINT_BITS | second for first, second in rules], np.uint64)
    return np.unique(np.concatenate([_side_by_side(model.tokens), _side_by_side(added), edges]))


def _side_by_side(texts: Texts) -> Pairs:
    parted = np.insert(texts.joined[:-1], texts.offsets[1:-1].astype(np.int64), 0xFF)
    text = parted.tobytes().decode("utf-8", "surrogateescape")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    points[points == ord(" ")] = UNDERLINE
    between = points == 0xDCFF
    pairs = points[:-1] << np.uint64(POINT_BITS) | points[1:]
    return np.unique(pairs[~between[:-1] & ~between[1:]])


def _at_edges(token: AddedToken, model: Model) -> Iterator[tuple[str | None, str | None]]:
    """What a cut next to an added token must not part; None is any character."""
    first, last = token.content[0], token.content[-1]
    prepends = model.prepend and not model.metaspace  # before normalized tokens, and to the text behind others
    first = "▁" if prepends and token.normalized else first
    if token.single_word:  # what stands beside it matters
        yield from ((last, None), (None, first))
    if prepends and not token.normalized:
        yield last, None
    if token.lstrip or token.rstrip:
        yield from ((one, other) for one in _WHITESPACE for other in _WHITESPACE)
    if token.lstrip:
        yield from ((space, first) for space in _WHITESPACE)
    if token.rstrip:
        yield from ((last, space) for space in _WHITESPACE)
        yield from ((space, None) for space in _WHITESPACE if prepends)


def _point(character: str | None) -> int:
    return ANY if character is None else UNDERLINE if character == " " else ord(character)
