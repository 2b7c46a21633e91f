"""A SentencePiece-style Model → the characters between which text is not cut: those that a token holds side by side.

No merge crosses any other place, since it would make a token with the two side by side. The vocabulary has a few tokens
that no merge reaches, so some places are left out that could be cut too.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from shardmill.tokens.model import AddedToken, Model

Pairs = npt.NDArray[np.uint64]

POINT_BITS = 21
ANY = (1 << POINT_BITS) - 1
"""Any character, as one of a pair."""
UNDERLINE = 0x2581

# White_Space, as Unicode has had it for long: what a token with lstrip or rstrip takes.
_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def neighbours(model: Model) -> Pairs:
    """Pairs of code points, sorted: the first shifted by POINT_BITS, or the second. A blank is U+2581."""
    # Special tokens are text, but hide what is inside them.
    added = [token.content.encode() for token in model.added]
    rules = [tuple(map(_point, pair)) for token in model.added if not token.special for pair in _at_edges(token, model)]
    edges = np.array([first << POINT_BITS | second for first, second in rules], np.uint64)
    return np.unique(np.concatenate([_side_by_side([*model.vocabulary, *added]), edges]))


def _side_by_side(tokens: Iterable[bytes]) -> Pairs:
    text = b"\xff".join(tokens).decode("utf-8", "surrogateescape")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    points[points == ord(" ")] = UNDERLINE
    between = points == 0xDCFF
    pairs = points[:-1] << np.uint64(POINT_BITS) | points[1:]
    return np.unique(pairs[~between[:-1] & ~between[1:]])


def _at_edges(token: AddedToken, model: Model) -> Iterator[tuple[str | None, str | None]]:
    """What a cut next to an added token must not part; None is any character."""
    first, last = token.content[0], token.content[-1]
    prepends = model.prepend and not model.metaspace  # to the text behind each token
    if token.single_word:  # what stands beside it matters
        yield from ((last, None), (None, first))
    if prepends:
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
