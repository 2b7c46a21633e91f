"""`make bench-tokenizers`: texts that are hard on a tokenizer (tests/hard_texts.py) → how many times English's CPU time each takes.

    python tools/bad_cases.py TOKENIZERS TEXTS [--megabytes 4] [--all]

TOKENIZERS is as for bench_tokenizers.py; TEXTS a folder with an English text, named like wikipedia_en.txt.zst, or the
text itself. Each text has an engine of its own, which has learned nothing, and time is that per byte of one thread.
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

from bench_tokenizers import contents, found_in, slices_of, unpacked

from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.tokenizer import Tokenizer, load

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from hard_texts import hard_texts  # type: ignore[import-not-found]

BAR = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", help="a folder of tokenizer.json files, or names separated by commas")
    parser.add_argument("texts", type=Path, help="an English text, or a folder with one")
    parser.add_argument("--megabytes", type=float, default=4, help="how much of each text")
    parser.add_argument("--all", action="store_true", help="every text, not the five that take longest")
    args = parser.parse_args()
    names = found_in(Path(args.tokenizers)) if Path(args.tokenizers).is_dir() else args.tokenizers.split(",")
    size, worst = int(args.megabytes * 1e6), 0.0
    english = contents(english_in(args.texts))[:size].decode(errors="ignore").encode()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            base, times = times_of(load(unpacked(name, Path(folder))), english, size)
        ordered = sorted(times, key=lambda each: times[each], reverse=True)
        shown = ", ".join(f"{text} {times[text]:.1f}" for text in (ordered if args.all else ordered[:5]))
        print(f"{Path(name).name}: English {base:.0f} MB/s; times as long for each byte: {shown}", flush=True)
        worst = max(worst, times[ordered[0]])
    print(f"worst: {worst:.1f} times English's; at most {BAR} is the aim")
    sys.exit(worst > BAR)


def english_in(texts: Path) -> Path:
    if texts.is_file():
        return texts
    return next(path for path in sorted(texts.iterdir()) if re.search(r"_en\b|english", path.name))


def times_of(tokenizer: Tokenizer, english: bytes, size: int) -> tuple[float, dict[str, float]]:
    """MB/s of English, and how many times as long each hard text takes for each byte."""
    base = min(seconds_per_byte(tokenizer, english) for _ in range(3))
    return 1e-6 / base, {name: seconds_per_byte(tokenizer, text) / base for name, text in hard_texts(size)}


def seconds_per_byte(tokenizer: Tokenizer, text: bytes) -> float:
    encoder = Encoder(choose_engines(tokenizer, "native"))
    encoder.encode([b"warm"])
    slices = slices_of(text)
    started = time.thread_time()
    for piece in slices:
        encoder.encode([piece])
    return (time.thread_time() - started) / len(text)


if __name__ == "__main__":
    main()
