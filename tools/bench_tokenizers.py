"""`make bench-tokenizers`: every tokenizer × every text, our engine beside gigatoken → a table of MB per CPU-second.

    python tools/bench_tokenizers.py TOKENIZERS TEXTS [--megabytes 20] [--paths] [--out table.md]

TOKENIZERS is a folder of tokenizer.json files (any name that ends in .json or .json.zst), or a comma-separated list of
names; TEXTS a folder of .txt or .txt.zst. For each pair both engines are made anew, so nothing is learned yet, and get
slices of a megabyte in turn, in one thread; with --paths each code path of our engine that this processor has. gigatoken gets the file without its added tokens: it would find special
ones. Each tokenizer has a process of its own: this file with --child.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from shardmill.tokens import native
from shardmill.tokens.encoder import Encoder, Engines, choose_engines
from shardmill.tokens.tokenizer import ENCODINGS, Tokenizer, load

Encode = Callable[[bytes], object]

SLICE_BYTES = 1 << 20
PRETOKENIZERS = {"r50k_base": "gpt2", "cl100k_base": "cl100k", "o200k_base": "o200k"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", help="a folder of tokenizer.json files, or names separated by commas")
    parser.add_argument("texts", type=Path, help="a .txt or .txt.zst file, or a folder of them")
    parser.add_argument("--megabytes", type=int, default=20, help="how much of each text")
    parser.add_argument("--paths", action="store_true", help="every code path that this processor has")
    parser.add_argument("--out", type=Path, help="where the table goes, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    files = args.texts.iterdir() if args.texts.is_dir() else [args.texts]
    texts = sorted(path for path in files if path.name.endswith((".txt", ".txt.zst")))
    if args.child:
        paths = list(native.cpu_paths()) if args.paths else [native.cpu_path()]
        print(json.dumps(measured(args.tokenizers, texts, args.megabytes * 10**6, paths)))
        return
    names = found_in(Path(args.tokenizers)) if Path(args.tokenizers).is_dir() else args.tokenizers.split(",")
    options = [str(args.texts), "--megabytes", str(args.megabytes), *(["--paths"] if args.paths else []), "--child"]
    rows = {}
    for name in names:
        done = subprocess.run([sys.executable, __file__, name, *options], check=True, stdout=subprocess.PIPE)
        rows[name] = json.loads(done.stdout)
        print(f"{Path(name).name}: {rows[name]}", file=sys.stderr)
    table = "\n".join(lines_of(rows, [text.name for text in texts], args.megabytes))
    print(table)
    if args.out:
        args.out.write_text(table + "\n")


def found_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir() if path.name.endswith((".json", ".json.zst")))


def measured(name: str, texts: list[Path], most: int, paths: list[str]) -> dict[str, dict[str, Any]]:
    """For each text MB per CPU-second of all engines; without gigatoken where that cannot load the tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load(unpacked(name, Path(folder)))
        make = gigatoken_maker(tokenizer)
        found = {}
        for text in texts:
            engines = {path: engines_for(path, tokenizer) for path in paths}
            contenders = {path: _encode(Encoder(made)) for path, made in engines.items()}
            if make:
                contenders["gigatoken"] = make()
            slices = slices_of(contents(text).decode("utf-8", "ignore").encode()[:most])
            found[text.name] = {"engine": engines[paths[0]].name, "speeds": taking_turns(contenders, slices)}
    return found


def engines_for(path: str, tokenizer: Tokenizer) -> Engines:
    os.environ["SHARDMILL_CPU"] = path
    return choose_engines(tokenizer, "auto")


def _encode(encoder: Encoder) -> Encode:
    return lambda piece: encoder.encode([piece])


def taking_turns(contenders: dict[str, Encode], slices: list[bytes]) -> dict[str, float]:
    seconds = dict.fromkeys(contenders, 0.0)
    for encode in contenders.values():
        encode(b"warm")
    rng = random.Random(0)  # in any order: one leaves its tables in the processor's cache to the next
    for piece in slices:
        for which in rng.sample(list(contenders), len(contenders)):
            started = time.thread_time()
            contenders[which](piece)
            seconds[which] += time.thread_time() - started
    size = sum(map(len, slices)) / 1e6
    return {which: size / spent for which, spent in seconds.items()}


def contents(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".zst":
        return data
    from backports import zstd

    return bytes(zstd.decompress(data))


def unpacked(name: str, folder: Path) -> str:
    if not name.endswith(".zst"):
        return name
    path = folder / "tokenizer.json"
    path.write_bytes(contents(Path(name)))
    return str(path)


def slices_of(text: bytes) -> list[bytes]:
    """About a megabyte each, from line to line."""
    found, at = [], 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + SLICE_BYTES) + 1 or min(at + SLICE_BYTES, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end += 1
        found.append(text[at:end])
        at = end
    return found


def gigatoken_maker(tokenizer: Tokenizer) -> Callable[[], Encode] | None:
    """What makes a new engine of gigatoken; None if it cannot load this tokenizer."""
    import gigatoken

    if tokenizer.kind == "tiktoken":
        make = partial(gigatoken.Tokenizer.from_tiktoken, tokenizer.source, pretokenizer=PRETOKENIZERS[tokenizer.name])
    else:
        config = json.loads(tokenizer.source.read_bytes()) | {"added_tokens": [], "post_processor": None}
        make = partial(gigatoken.Tokenizer.from_json, json.dumps(config))
    try:
        make()
    except Exception as e:  # its loader raises many kinds
        print(f"gigatoken cannot load {tokenizer.name}: {e}", file=sys.stderr)
        return None

    def encoder() -> Encode:
        made = make()
        return lambda piece: made.encode_batch_padded([piece], 0, parallel=False)

    return encoder


def lines_of(rows: dict[str, Any], texts: list[str], megabytes: int) -> list[str]:
    labels = [text.partition(".")[0] for text in texts]
    lines = [
        f"MB per CPU-second of one thread, {native.version()} / gigatoken {metadata.version('gigatoken')} (times as fast), nothing learned before; up to {megabytes} MB of each text; {_cpu()}",
        "",
        "| tokenizer | " + " | ".join(labels) + " |",
        "|---|" + "--:|" * len(labels),
    ]
    for name, row in rows.items():
        shown = name if name in ENCODINGS else Path(name).name.partition(".")[0]
        for path in (path for path in row[texts[0]]["speeds"] if path != "gigatoken"):
            lines.append(f"| {shown}, {path} | " + " | ".join(_cell(row[text], path) for text in texts) + " |")
    return lines


def _cell(found: dict[str, Any], path: str) -> str:
    ours, theirs = found["speeds"][path], found["speeds"].get("gigatoken")
    mark = "" if found["engine"] == native.version() else " (reference)"
    return f"{ours:.3g}{mark}" + (f" / {theirs:.3g} ({ours / theirs:.1f}×)" if theirs else " / –")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
