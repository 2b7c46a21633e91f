"""`make demo`: mill the bundled sample with the real command, check the result, and say what to do next."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import load

SAMPLE = Path("samples/tinyshakespeare.txt")
OUTPUT = Path("demo-data")


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    command = ["shardmill", "prepare", str(SAMPLE), "-o", str(OUTPUT), "--val-fraction", "0.1"]
    print("$", " ".join(command), flush=True)
    subprocess.run([str(Path(sys.executable).with_name("shardmill")), *command[1:]], check=True)
    train, val = (np.memmap(OUTPUT / name, dtype=np.uint16, mode="r") for name in ("train.bin", "val.bin"))
    expected = load_reference(load("gpt2")).encode(SAMPLE.read_bytes())
    if sorted(np.concatenate([train, val]).tolist()) != sorted(expected.tolist()):
        sys.exit("demo: the tokens are not those that tiktoken gives for the whole text")
    print(
        f"checked: {len(train) + len(val):,} tokens in train and val together, identical to tiktoken's for the whole text"
    )
    print("next: .venv/bin/shardmill prepare YOUR_TEXT.txt -o data/   (or: source .venv/bin/activate)")


if __name__ == "__main__":
    main()
