"""Added tokens are found where the tokenizers library finds them."""

import random

import tokenizers

from shardmill.tokens import added
from shardmill.tokens.added import TEXT, Added
from shardmill.tokens.model import AddedToken

CONTENTS = [
    "<a>",
    "<a><b>",
    "<b>",
    "b>x",
    "ab",
    "abc",
    " ",
    "  ",
    "\n",
    "é",
    "éé",
    "x y",
    "w",
    "文字",
    "<s><a>",
    "a\u0301",
]
PARTS = [*CONTENTS, *"<>abxyw \n\t_é文", "\u3000", "\xa0", "\u2028", "1", "-", "\u200d", "\u0301", "Ⓐ", "²", "<s>"]


def tokens_of(rng):
    """Tokens with any flags, numbered as the library numbers them."""
    contents = rng.sample(CONTENTS, rng.randrange(1, 9))
    odds = rng.choice([0, 0.2, 0.5])
    flags = [{name: rng.random() < odds for name in ("special", "lstrip", "rstrip", "single_word")} for _ in contents]
    return [AddedToken(content=c, id=1 + i, **f) for i, (c, f) in enumerate(zip(contents, flags, strict=True))]


def reference_of(tokens):
    """The library with a model that takes text as it is."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.encode_special_tokens = True
    for token in tokens:
        flags = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word", "special")}
        one = [tokenizers.AddedToken(token.content, normalized=False, **flags)]
        made.add_special_tokens(one) if token.special else made.add_tokens(one)
    return made


def spans_of(reference, text):
    """Bytes and ids, with 0 for text."""
    size = [len(text[:i].encode()) for i in range(len(text) + 1)]
    found = reference.encode(text, add_special_tokens=False)
    return [(size[a], size[b], number) for (a, b), number in zip(found.offsets, found.ids, strict=True)]


def test_tokens_of_all_kinds_are_found_as_the_library_finds_them():
    rng = random.Random(5)
    for _ in range(150):
        tokens = tokens_of(rng)
        reference, finder = reference_of(tokens), Added(tokens)
        texts = ["".join(rng.choices(PARTS, k=rng.randrange(14))) for _ in range(30)]
        kept, expected = [], []
        for text in texts:
            try:
                expected += [(len(kept), a, b, n) for a, b, n in spans_of(reference, text)]
                kept.append(text)
            except BaseException as e:  # white space that a token on either side would take: the library panics
                assert "bad split" in str(e)
        found = finder.split([text.encode() for text in kept])
        rows = [] if found is None else found.tolist()
        assert [(piece, a, b, max(n, 0)) for piece, a, b, n in rows] == (expected if rows else [])
        assert rows or not any(number for *_, number in expected)


def test_tokens_are_found_at_every_offset_of_a_long_text():
    finder = Added([AddedToken(content="<a>", id=3), AddedToken(content="<aa>", id=4)])
    for lead in range(70):
        text = b"x" * lead + b"<a>" + b"." * 40 + b"<aa>"
        assert finder.split([b"none", text]).tolist() == [
            [0, 0, 4, TEXT],
            *([[1, 0, lead, TEXT]] if lead else []),
            [1, lead, lead + 3, 3],
            [1, lead + 3, lead + 43, TEXT],
            [1, lead + 43, lead + 47, 4],
        ]
    assert finder.split([b"none", b"", b"<b>" * 99]) is None


def test_a_long_run_of_tokens_that_take_white_space_takes_no_longer():
    """Story: each newline looked for the end of the run, or for its beginning."""
    for flags in ({"rstrip": True}, {"lstrip": True}, {"rstrip": True, "lstrip": True}):
        finder = Added([AddedToken(content="\n", id=3, **flags)])
        found = finder.split([b"x" + b"\n" * 100_000])
        assert len(found) == (2 if len(flags) == 2 else 100_001)


def test_many_first_bytes_are_no_obstacle():
    tokens = [AddedToken(content=chr(point) + "!", id=point) for point in range(33, 127)]
    assert Added(tokens).split([b"12 34A!5"]).tolist() == [[0, 0, 5, TEXT], [0, 5, 7, 65], [0, 7, 8, TEXT]]


def test_what_is_part_of_a_word_is_what_the_reference_takes_for_it():
    """All of the basic plane, of which Python knows nearly everything."""
    ours = added.word_characters()
    points = [point for point in range(0x80, 0x10000) if not 0xD800 <= point < 0xE000]
    theirs = added._are_words(points)
    wrong = [hex(p) for p, is_word in zip(points, theirs, strict=True) if (ours[p >> 3] >> (p & 7) & 1) != is_word]
    assert wrong == []
