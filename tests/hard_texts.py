"""Texts that are hard on a tokenizer: long runs without a cut, words that never come again, what must be normalized."""

import base64
import random
from collections.abc import Callable, Iterable, Iterator

Make = Callable[[random.Random], str]


def _of(alphabet: Iterable[str], size: int = 4096) -> Make:
    letters = list(alphabet)
    return lambda rng: "".join(rng.choices(letters, k=size))


def _words(letters: str, longest: int, between: str = " ") -> Make:
    """Words of random letters."""
    return lambda rng: "".join(
        "".join(rng.choices(letters, k=rng.randint(1, longest))) + rng.choice(between) for _ in range(500)
    )


def _zalgo(rng: random.Random) -> str:
    marks = [chr(point) for point in range(0x300, 0x370)]
    return "".join(letter + "".join(rng.choices(marks, k=rng.randrange(20))) for letter in "the old mill " * 20)


def _syllables(rng: random.Random) -> str:
    """Korean in its parts, which normal form C puts together."""
    return "".join(chr(rng.randrange(0x1100, 0x1113)) + chr(rng.randrange(0x1161, 0x1176)) for _ in range(500)) + " "


def _code(rng: random.Random) -> str:
    """As minified JavaScript is: short names that are used again, and no blanks."""
    names = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz$_", k=rng.randint(1, 3))) for _ in range(60)]
    some = [
        "{0}.{1}({2})",
        "var {0}={1};",
        "if(!{0}){{return {1}.{2}}}",
        "function({0},{1}){{{2}++}}",
        "{0}[{1}]=void 0,",
    ]
    return "".join(rng.choice(some).format(*rng.choices(names, k=3)) for _ in range(300))


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_EMOJI = ["👩", "👨", "👧", "❤\ufe0f", "🏽", "🧑", "🚀", "😀", "🏳\ufe0f", "🌈"]
_MAKES: dict[str, Make] = {
    "one letter": _of("a"),
    "one letter, accented": _of("é"),
    "one Chinese character": _of("中"),
    "DNA": _of("ACGT"),
    "DNA, small": _of("acgt"),
    "base64": lambda rng: base64.b64encode(rng.randbytes(3072)).decode(),
    "hexadecimal": lambda rng: rng.randbytes(2048).hex(),
    "digits": _of("0123456789"),
    "digits of other scripts": _of("٠١٢٣٤٥٦٧٨٩०१२३४५६७८९"),
    "blanks": _of(" "),
    "tabs": _of("\t"),
    "newlines": _of("\n"),
    "white space": _of(" \t\n\r\u3000\u00a0"),
    "▁": _of("▁"),
    "▁ and blanks": _of("▁ "),
    "emoji with joiners": _of(f"{one}\u200d" for one in _EMOJI),
    "Zalgo": _zalgo,
    "marks": _of(map(chr, range(0x300, 0x370))),
    "Korean in its parts": _syllables,
    "Chinese at random": _of(map(chr, range(0x4E00, 0xA000))),
    "Korean at random": _of(map(chr, range(0xAC00, 0xD7A4))),
    "Hindi at random": _of(map(chr, range(0x905, 0x940))),
    "Thai at random": _of(map(chr, range(0xE01, 0xE3B))),
    "Russian at random": _of(map(chr, range(0x430, 0x450))),
    "characters at random": _of(chr(p) for p in range(0xA1, 0x2FFFF, 7) if not 0xD800 <= p < 0xE000),
    "minified code": _code,
    "words at random": _words(_LETTERS, 14),
    "long words at random": _words(_LETTERS, 90),
    "small and capital letters": _of(_LETTERS + _LETTERS.upper()),
    "punctuation": _of('!"#$%&()*+,-./:;<=>?@[]^_`{|}~'),
    "one sign": _of("="),
    "apostrophes": _words("'", 3, "strdlvem"),
    "angle brackets": _of("<|>"),
}


def hard_texts(size: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """The name and about `size` bytes of each, of which nothing longer than a few kilobytes comes twice."""
    for name, make in _MAKES.items():
        rng, parts, done = random.Random(seed), list[bytes](), 0
        while done < size:
            parts.append(make(rng).encode())
            done += len(parts[-1])
        yield name, b"".join(parts)
