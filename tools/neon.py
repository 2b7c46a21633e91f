"""`make neon`: the engine compiled for 64-bit ARM and run in an emulator; its ids and words are compared with those of
this machine, whose engine the other tests compare with the references. Speed is not judged there.

    python tools/neon.py --texts 200 --seed 1

Takes qemu-user (Debian: apt-get install qemu-user) and aarch64-linux-gnu-gcc, or zig's compiler (pip install ziglang).
"""

import argparse
import importlib.util
import json
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import patterns  # type: ignore[import-not-found]  # noqa: E402
import tiny  # type: ignore[import-not-found]  # noqa: E402
from shardmill.documents import native as documents  # noqa: E402
from shardmill.tokens import native  # noqa: E402
from shardmill.tokens.model import Model  # noqa: E402
from shardmill.tokens.tokenizer import ENCODINGS, load  # noqa: E402

_SAMPLES = runpy.run_path(str(ROOT / "tests/samples.py"))
_SOURCES = ROOT / "src/shardmill/tokens/native"
_DOCUMENTS = ROOT / "src/shardmill/documents/native"
_FLAGS = ["-std=gnu11", "-O3", "-static", "-pthread", f"-I{_SOURCES}", f"-I{_DOCUMENTS}"]


def emulator() -> str | None:
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def compiler() -> list[str] | None:
    if found := shutil.which("aarch64-linux-gnu-gcc"):
        return [found]
    pythons = [ROOT / ".wheels/bin/python", *([Path(sys.executable)] if importlib.util.find_spec("ziglang") else [])]
    return next(
        (
            [str(python), "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
            for python in pythons
            if python.exists()
        ),
        None,
    )


def missing() -> str | None:
    """What is missing here; None if it can run."""
    if not emulator():
        return "there is no qemu-aarch64; apt-get install qemu-user"
    return (
        None
        if compiler()
        else "there is no compiler for 64-bit ARM; apt-get install gcc-aarch64-linux-gnu, or pip install ziglang"
    )


def run(texts: int, seed: int) -> str:
    """What the driver prints; an error if anything differs."""
    command, emulate = compiler(), emulator()
    assert command and emulate, "ask missing first"
    with tempfile.TemporaryDirectory() as folder:
        program, cases = Path(folder) / "driver", Path(folder) / "cases"
        sources = [str(path) for folder in (_SOURCES, _DOCUMENTS) for path in sorted(folder.glob("*.c"))]
        subprocess.run([*command, *_FLAGS, "-o", str(program), str(ROOT / "tools/neon_driver.c"), *sources], check=True)
        rng = random.Random(seed)
        pieces = [*_SAMPLES["SAMPLES"].values(), _SAMPLES["ALL"], *(patterns.random_text(rng) for _ in range(texts))]
        with cases.open("wb") as file:
            for array in (*_lines(pieces), *(array for model in _models() for array in _case(model, pieces))):
                data = array.tobytes()
                file.write(len(data).to_bytes(8, "little") + data + bytes(-len(data) % 8))
        done = subprocess.run([emulate, str(program), str(cases)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + f"the driver ended with {done.returncode}")
    return done.stdout.strip()


def _models() -> Iterator[Model]:
    for name in ENCODINGS:
        model = load(name).model
        assert isinstance(model, Model)
        yield model
    for family in patterns.FAMILIES:
        yield tiny.model(family, *tiny.trained(), whole_words=family in ("llama3", "tekken"))


def _lines(texts: list[str]) -> list[npt.NDArray[Any]]:
    """JSON lines, some of them escaped as far as can be and a few that are declined; their texts, and the hashes of these."""
    lines = [json.dumps({"text": text}, ensure_ascii=bool(number % 2)) for number, text in enumerate(texts)]
    lines += ['{"text": 5}', '{"text": "a\tb"}', *(json.dumps({"text": "x" * size}) for size in range(300))]
    data = np.frombuffer("\n".join(lines).encode(), np.uint8)
    found, declined, *_ = documents.texts_of_lines(data, len(lines), ("text",))
    made, ends = np.frombuffer(b"".join(found), np.uint8), np.cumsum(found.sizes)
    return [data, made, ends - found.sizes, ends, declined, documents.hashes(found, 4096, 5)]


def _case(model: Model, texts: list[str]) -> list[npt.NDArray[Any]]:
    """As neon_driver.c numbers them."""
    pieces = [text.encode() for text in texts]
    model = native.with_live(model)
    engine = native.Native(model)
    given, kept = native.given_to_engine(model)
    text = b"".join(pieces)
    ids, counts = engine.encode(pieces)
    words = np.array([len(word) for word in engine.words(text)], np.int64)
    shape = np.frombuffer(bytes(given.shape), np.uint8)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    tables = [kept[name] for name in ("text", "offsets", "ids", "live", "classes")]
    return [shape, *tables, np.frombuffer(text, np.uint8), sizes, ids.astype(np.uint32), counts, words]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100, help="how many random texts for each tokenizer")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other texts")
    asked = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    print(run(asked.texts, asked.seed))


if __name__ == "__main__":
    main()
