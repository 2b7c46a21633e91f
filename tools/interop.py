"""`make interop`: the programs that train on these formats read our files, prepared and converted, with their own code.

The readers are in tests/interop/readers. Each runs in an environment of its own under .interop/, made when it is
missing, and prints the tokens it was given; they must be those of the oracle in tests/reference.py. Where pip has a
build of torch without CUDA, PIP_CONSTRAINT with a line such as torch==2.13.0+cpu saves gigabytes.
"""

import json
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shardmill
from shardmill.spec import OutputFormat

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

import reference  # type: ignore[import-not-found]  # noqa: E402

ENVIRONMENTS = Path(".interop")
DOCUMENTS = [
    f"Document {i} tells of the mill, der Müller, 粉屋 and {i * 7919} sacks.\n" * (i % 7 + 1) for i in range(500)
]
FIRST_SHARD = {"shard_tokens": 5000}
TAIL: dict[str, Any] = {"split": "tail", "val_fraction": 0.1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumer:
    """A reader of one format: its program, what to install for it, and what to ask of prepare and convert."""

    name: str
    format: OutputFormat
    packages: tuple[str, ...] = ()
    environment: str = "torch"
    prepare: dict[str, Any] = field(default_factory=lambda: TAIL)
    target: dict[str, Any] = field(default_factory=dict)
    wide: bool = False
    """The files say how wide their tokens are, so 32 bits are tried too."""


_TORCH = ("torch", "numpy")
_SAMPLES: dict[str, Any] = {"shard_tokens": 7000, "sample_tokens": 70}
CONSUMERS = (
    Consumer(name="nanogpt", format="nanogpt", packages=_TORCH),
    Consumer(name="build_nanogpt", format="build-nanogpt", packages=_TORCH, prepare=FIRST_SHARD, target=FIRST_SHARD),
    Consumer(name="modded_nanogpt", format="modded-nanogpt", packages=_TORCH, prepare=FIRST_SHARD, target=FIRST_SHARD),
    Consumer(name="llmc_reader", format="llmc", prepare=FIRST_SHARD, target=FIRST_SHARD),
    Consumer(
        name="megatron_indexed",
        format="megatron",
        packages=(*_TORCH, "megatron-core"),
        environment="megatron-core",
        wide=True,
    ),
    Consumer(
        name="datatrove_folder",
        format="datatrove",
        packages=(*_TORCH, "datatrove[processing]", "tokenizers"),
        environment="datatrove",
    ),
    Consumer(
        name="olmo_fsl",
        format="olmo",
        packages=(*_TORCH, "ai2-olmo-core"),
        environment="olmo-core",
        prepare={**TAIL, **FIRST_SHARD},
        target=FIRST_SHARD,
    ),
    Consumer(
        name="mosaic_streaming",
        format="mds",
        packages=("mosaicml-streaming",),
        environment="mosaicml-streaming",
        prepare={**TAIL, **_SAMPLES},
        target=_SAMPLES,
        wide=True,
    ),
    Consumer(
        name="litdata_tokens",
        format="litdata",
        packages=("litdata",),
        environment="litdata",
        prepare={**TAIL, **_SAMPLES},
        target=_SAMPLES,
        wide=True,
    ),
)


def main() -> int:
    asked = set(sys.argv[1:])
    failed = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "a.txt").write_text("##".join(DOCUMENTS))
        for consumer in CONSUMERS:
            if asked and consumer.name not in asked:
                continue
            try:
                program = _program(consumer, work)
                for folder in _outputs(consumer, work):
                    print(f"{consumer.name:<18} {folder.name:<26} {_compare(consumer, program, folder)}", flush=True)
            except (subprocess.CalledProcessError, AssertionError) as e:
                print(f"{consumer.name}: {e}{getattr(e, 'stderr', None) or ''}", file=sys.stderr)
                failed.append(consumer.name)
    print(f"failed: {', '.join(failed)}" if failed else "all of them read the tokens of the oracle")
    return bool(failed)


def _outputs(consumer: Consumer, work: Path) -> list[Path]:
    """The text in this format, and the same converted from another format with the same split."""
    made, other, new = (work / f"{consumer.format}-{what}" for what in ("prepared", "other", "converted"))
    source: OutputFormat = "megatron" if consumer.prepare.get("split") and consumer.format != "megatron" else "nanogpt"
    common: dict[str, Any] = {"inputs": (str(work / "a.txt"),), "separator": "##"}
    shardmill.prepare(shardmill.Spec(output=str(made), format=consumer.format, **common, **consumer.prepare))
    if consumer.prepare is FIRST_SHARD:  # what has shards of another length keeps the same first shard as val
        shardmill.convert(
            made, shardmill.Target(output=other, format="shards", eot="before", shard_tokens=999, index=True)
        )
    else:
        shardmill.prepare(shardmill.Spec(output=str(other), format=source, index=True, **common, **TAIL))
    shardmill.convert(other, shardmill.Target(output=new, format=consumer.format, **consumer.target))
    if not consumer.wide:
        return [made, new]
    wide = work / f"{consumer.format}-32-bits"
    common["tokenizer"] = "cl100k_base"
    shardmill.prepare(shardmill.Spec(output=str(wide), format=consumer.format, **common, **consumer.prepare))
    return [made, new, wide]


def _compare(consumer: Consumer, program: list[str], folder: Path) -> str:
    """Let the program read the folder; what it was given must be what the oracle says."""
    found = _read(consumer, program, folder)
    counted = {}
    for split, (expected, starts) in _expected(folder).items():
        tokens, block = found["tokens"][split], found.get("block")
        unseen = len(expected) - len(tokens)
        assert 0 <= unseen < found.get("unseen", block or 1), f"{folder.name}: {unseen:,} tokens of {split} are missing"
        assert tokens == expected[: len(tokens)], f"{folder.name}: the tokens of {split} differ"
        if "starts" in found:
            also = set(range(0, len(tokens), block)) if block else set()  # it counts from 0 in each sequence
            wanted = sorted({start for start in starts if start < len(tokens)} | also)
            assert found["starts"][split] == wanted, f"{folder.name}: documents of {split} begin elsewhere"
        counted[split] = len(tokens)
    return ", ".join(f"{count:,} tokens of {split}" for split, count in counted.items())


def _expected(folder: Path) -> dict[str, tuple[list[int], list[int]]]:
    """The tokens of each split by the oracle, and where its documents begin."""
    made = shardmill.open(folder).manifest
    assert made is not None
    tokenizer = made.job["choices"]["tokenizer"]
    documents = [reference.tokens(tokenizer, [text], eot=made.eot_id, side=made.eot_side) for text in DOCUMENTS]
    stream = [token for ids in documents for token in ids]
    starts = [0]
    for ids in documents:
        starts.append(starts[-1] + len(ids))
    if made.counts.documents_val:  # the tail
        cut = starts[len(DOCUMENTS) - made.counts.documents_val]
        parts = {"train": (0, cut), "val": (cut, len(stream))}
    else:  # the first shard
        cut = FIRST_SHARD["shard_tokens"]
        parts = {"val": (0, cut), "train": (cut, len(stream))}
    return {
        split: (stream[begin:end], [start - begin for start in starts if begin <= start < end])
        for split, (begin, end) in parts.items()
    }


def _read(consumer: Consumer, program: list[str], folder: Path) -> dict[str, Any]:
    if consumer.format != "llmc":
        return dict(json.loads(_run([*program, str(folder)]).splitlines()[-1]))
    tokens = {
        split: [
            int(line)
            for path in sorted(folder.glob(f"fineweb_{split}_*.bin"))
            for line in _run([*program, str(path), "5000"]).split()
        ]
        for split in ("train", "val")
    }
    return {"tokens": tokens}


def _program(consumer: Consumer, work: Path) -> list[str]:
    """The command that reads: a script in its own environment, or the C program, compiled."""
    if not consumer.packages:
        _run(["cc", "-O1", "-o", str(work / consumer.name), str(TESTS / "interop" / f"{consumer.name}.c")])
        return [str(work / consumer.name)]
    home = ENVIRONMENTS / consumer.environment
    python, ready = home / "bin" / "python", home / ".ready"
    wanted = "\n".join(consumer.packages)
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(home, with_pip=True)
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *consumer.packages])
        ready.write_text(wanted)
    return [str(python), str(TESTS / "interop" / "readers" / f"{consumer.name}.py")]


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
