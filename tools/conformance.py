"""Real text through our engine and through the reference: the ids must be the same.

    python tools/conformance.py TOKENIZERS TEXTS [--megabytes 100] [--out table.md]

TOKENIZERS is a folder of tokenizer.json files (.json or .json.zst), or names separated by commas; TEXTS one or more folders
or files (.txt or .jsonl, perhaps .zst). A text is cut into documents where two blank lines are, as our corpora have them,
and these at exact cuts into pieces, as the mill does; each piece is compared with what the reference gives. At most 40 KB
of a text in a row are one piece: the reference takes much memory. Where the next piece has no exact cut to begin at,
nothing is compared. The exit code is 1 if anything differs.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench_tokenizers import contents, found_in, unpacked

from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import Tokenizer, load

_PIECE_BYTES = 40 << 10
_AT_ONCE = 32
_SUFFIXES = (".txt", ".jsonl", ".txt.zst", ".jsonl.zst", ".bin")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", help="a folder of tokenizer.json files, or names separated by commas")
    parser.add_argument("texts", type=Path, nargs="+", help="folders of texts, or texts")
    parser.add_argument("--megabytes", type=float, default=1e6, help="how much of each text, at most")
    parser.add_argument("--out", type=Path, help="where the table goes, too")
    args = parser.parse_args()
    names = found_in(Path(args.tokenizers)) if Path(args.tokenizers).is_dir() else args.tokenizers.split(",")
    texts = [path for text in args.texts for path in (sorted(text.iterdir()) if text.is_dir() else [text])]
    texts = [path for path in texts if path.name.endswith(_SUFFIXES)]
    labels = [path.name.partition(".")[0] for path in texts]
    lines = ["MB compared (pieces that differ)", "", "| tokenizer | " + " | ".join(labels) + " |"]
    lines.append("|---|" + "--:|" * len(labels))
    differing = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = load(unpacked(name, Path(folder)))
            cells = []
            for text in texts:
                compared, wrong = compare(tokenizer, contents(text)[: int(args.megabytes * 1e6)])
                differing += wrong
                cells.append(f"{compared / 1e6:.1f}" + (f" ({wrong})" if wrong else ""))
                print(f"{Path(name).name} × {text.name}: {cells[-1]} MB", file=sys.stderr, flush=True)
        lines.append(f"| {Path(name).name.partition('.')[0]} | " + " | ".join(cells) + " |")
    table = "\n".join([*lines, "", f"{differing:,} pieces differ"])
    print(table)
    if args.out:
        args.out.write_text(table + "\n")
    sys.exit(differing > 0)


def compare(tokenizer: Tokenizer, text: bytes) -> tuple[int, int]:
    """How many bytes were compared, and how many pieces of them differ."""
    engines = choose_engines(tokenizer, "native")
    encoder, reference = Encoder(engines), load_reference(tokenizer)
    pieces = list(pieces_of(tokenizer, text.decode(errors="ignore").encode()))
    compared = wrong = 0
    for at in range(0, len(pieces), _AT_ONCE):
        some = pieces[at : at + _AT_ONCE]
        ids, counts = encoder.encode([piece for piece, _ in some], [begins for _, begins in some])
        for (piece, begins), own in zip(some, np.split(ids, np.cumsum(counts)[:-1]), strict=True):
            compared += len(piece)
            if not np.array_equal(own, reference.encode(piece, begins=begins)):
                wrong += 1
                print(f"differs: {piece[:200]!r} …", file=sys.stderr, flush=True)
    return compared, wrong


def pieces_of(tokenizer: Tokenizer, text: bytes) -> Iterator[tuple[bytes, bool]]:
    """Pieces, and whether each begins its document."""
    for document in text.split(b"\n\n\n"):
        at = 0
        while at < len(document):
            end = tokenizer.cuts.first(document, at + _PIECE_BYTES, len(document)) or len(document)
            if end - at <= 8 * _PIECE_BYTES:
                yield document[at:end], at == 0
            at = end


if __name__ == "__main__":
    main()
