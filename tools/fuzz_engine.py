"""`make fuzz`: random texts through the native engine, words against Oniguruma and ids against the tokenizers library.

python tools/fuzz_engine.py --seconds 60 --seed 1 --family o200k
python tools/fuzz_engine.py --every                  every code point in contexts, minutes
python tools/fuzz_engine.py --text file.txt          the words of a real text
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import patterns  # type: ignore[import-not-found]  # noqa: E402
import tiny  # type: ignore[import-not-found]  # noqa: E402

# Every one of the planes in which characters are assigned, and one in 61 of the others.
_POINTS = [*range(0xD800), *range(0xE000, 0x34000), *range(0x34000, 0xE0000, 61), *range(0xE0000, 0xE0200)]
_POINTS += range(0xE0200, 0x110000, 61)


def texts(asked: argparse.Namespace) -> Iterator[str]:
    rng, end = random.Random(asked.seed), time.monotonic() + asked.seconds
    if asked.every:
        for at in range(0, len(_POINTS), 512):
            yield patterns.contexts([chr(point) for point in _POINTS[at : at + 512]])
    elif asked.text:
        content = asked.text.read_bytes().decode(errors="ignore")
        for at in range(0, len(content), 100_000):
            yield content[at : at + 100_000]
    else:
        while time.monotonic() < end:
            yield patterns.random_text(rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other texts")
    parser.add_argument("--family", action="append", choices=patterns.FAMILIES, help="only these")
    parser.add_argument("--every", action="store_true", help="every code point in contexts, and no random text")
    parser.add_argument("--text", type=Path, help="the words of this file, and no random text")
    asked = parser.parse_args()
    trials = {family: tiny.trial(family) for family in asked.family or patterns.FAMILIES}
    cases = wrong = 0
    for text in texts(asked):
        for family, trial in trials.items():
            cases += 1
            if said := trial(text):
                wrong += 1
                print(f"{family}: {said}: {text[:300]!r}", flush=True)
    print(f"{cases:,} cases, {wrong:,} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
