"""`make classes`: write which class each code point has for the installed tiktoken, found with its own patterns."""

import json
from importlib import metadata
from pathlib import Path

import numpy as np
import tiktoken

TABLE = Path("src/shardmill/tokens/classes.json")
# Numbered as in native/engine.h; 0 is every other character.
PATTERNS = {1: r"[\p{Lm}\p{Lo}]", 2: r"\p{Ll}", 3: r"[\p{Lu}\p{Lt}]", 4: r"\p{N}", 5: r"\s", 6: r"\p{M}"}


def characters(pattern: str) -> list[int]:
    """The code points that match. An encoding leaves out what its pattern does not match, and gives bytes here."""
    encoding = tiktoken.Encoding(
        "bytes", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
    )
    every = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    return [ord(c) for c in bytes(encoding.encode_ordinary(every)).decode()]


def main() -> None:
    classes = np.zeros(0x110000, np.uint8)
    for number, pattern in PATTERNS.items():
        found = characters(pattern)
        assert not classes[found].any(), "each has one class"
        classes[found] = number
    begins = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist()]
    runs = [[begin, int(classes[begin])] for begin in begins]
    content = {"format": 1, "made_with": f"tiktoken {metadata.version('tiktoken')}", "runs": runs}
    TABLE.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(f"{TABLE}: {len(runs):,} runs")


if __name__ == "__main__":
    main()
