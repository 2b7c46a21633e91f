"""Whether `estimate` tells the truth: its intervals against what prepare then writes, over inputs of all kinds.

    python tools/estimate_truth.py [FOLDER] [--size 12MiB] [--seconds 2] [--only PATTERN]

Every arrangement of documents (one source, several languages, very different lengths, sorted by length, a head that
differs from its rest) is written in every container. The documents are those of the text files in FOLDER, where two
blank lines separate them, or generated ones. --seconds is the time that reading may take: with less of it, more of a
compressed file stays unread, as in one that is much larger.
"""

import argparse
import bz2
import csv
import gzip
import io
import json
import lzma
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill import Spec, estimate, prepare
from shardmill.cli.options import SIZE
from shardmill.job import estimate as estimating

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SOURCE_BYTES = 8 << 20
ALPHABETS = {
    "latin": "etaoinshrdlcumwfgypbvk",
    "cyrillic": "оеаинтсрвлкмдпуяыьгзбчйхжшю",
    "chinese": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
    "digits": "0123456789",
    "symbols": "{}()[];=+-*/<>&|!\"'\\ \n\tixyz",
}
Documents = list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """An estimate and the truth."""

    name: str
    tokens: int
    low: int
    middle: int
    high: int
    documents_held: bool

    @property
    def held(self) -> bool:
        return self.low <= self.tokens <= self.high

    @property
    def width(self) -> float:
        """Half of the interval, relative to the truth."""
        return (self.high - self.low) / 2 / max(1, self.tokens)


def generated(rng: random.Random) -> dict[str, Documents]:
    """Documents in five alphabets."""
    sources = {}
    for name, letters in ALPHABETS.items():
        words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(3000)]
        sources[name] = [" ".join(rng.choices(words, k=rng.randint(20, 600))) for _ in range(1500)]
    return sources


def read_sources(folder: Path) -> dict[str, Documents]:
    """The documents of the text files in a folder, of each at most the first megabytes."""
    sources = {}
    for path in sorted(folder.glob("*.txt*")):
        with zstd.open(path) if path.suffix == ".zst" else path.open("rb") as file:
            text = file.read(SOURCE_BYTES).decode("utf-8", "ignore")
        parts = text.split("\n\n\n")
        sources[path.name] = [part for part in (parts if len(parts) > 50 else text.split("\n\n")) if part.strip()]
    return sources


def taken(documents: Documents, size: int, rng: random.Random) -> Documents:
    """Random documents of about this many bytes."""
    found, left = [], size
    while left > 0:
        document = rng.choice(documents)[: 64 << 10]
        found.append(document)
        left -= len(document.encode())
    return found


def of_any_length(documents: Documents, rng: random.Random) -> Documents:
    """The same text in documents whose lengths differ by a factor of thousands."""
    text, at, found = "\n".join(documents), 0, []
    while at < len(text):
        length = max(1, int(rng.lognormvariate(6, 2)))
        found.append(text[at : at + length])
        at += length
    return found


def arrangements(
    sources: dict[str, Documents], size: int, rng: random.Random
) -> Iterator[tuple[str, Callable[[], list[Documents]]]]:
    """Names, and functions that make the documents of each file."""

    def one() -> Documents:
        return taken(rng.choice(list(sources.values())), size, rng)

    def languages() -> list[Documents]:
        names = rng.sample(list(sources), k=min(4, len(sources)))
        return [taken(sources[name], size * weight // 10, rng) for name, weight in zip(names, (1, 2, 3, 4))]

    def two_parts() -> list[Documents]:
        first, second = rng.sample(list(sources), k=2)
        return [taken(sources[first], size // 3, rng) + taken(sources[second], size - size // 3, rng)]

    yield "one source", lambda: [one()]
    yield "languages", languages
    yield "any length", lambda: [of_any_length(one(), rng)]
    yield "sorted", lambda: [sorted(of_any_length(one(), rng), key=len)]
    yield "head differs", two_parts


def json_lines(documents: Documents) -> bytes:
    rows = (
        {
            "id": number,
            "url": f"https://example.com/{number * 7919 % 10007}",
            "text": text,
            "meta": {"score": number % 7},
        }
        for number, text in enumerate(documents)
    )
    return "".join(json.dumps(row, ensure_ascii=number % 5 == 0) + "\n" for number, row in enumerate(rows)).encode()


def table(documents: Documents) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["id", "text", "source"])
    writer.writerows((number, text.replace("\0", ""), "web") for number, text in enumerate(documents))
    return out.getvalue().encode()


def sized_zstd(data: bytes) -> bytes:
    return zstd.compress(data, 3)


def streamed_zstd(data: bytes) -> bytes:
    """Without the size of the text in its header."""
    compressor = zstd.ZstdCompressor(3)
    return b"".join(
        [*(compressor.compress(data[at : at + 65536]) for at in range(0, len(data), 65536)), compressor.flush()]
    )


def framed_zstd(data: bytes) -> bytes:
    return b"".join(zstd.compress(data[at : at + (1 << 20)], 3) for at in range(0, len(data), 1 << 20))


def members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + (1 << 20)], 1) for at in range(0, len(data), 1 << 20))


PACKED: dict[str, tuple[Callable[[Documents], bytes], Callable[[bytes], bytes]]] = {
    "jsonl": (json_lines, bytes),
    "jsonl.gz": (json_lines, lambda data: gzip.compress(data, 1)),
    "members.jsonl.gz": (json_lines, members),
    "jsonl.zst": (json_lines, sized_zstd),
    "streamed.jsonl.zst": (json_lines, streamed_zstd),
    "framed.jsonl.zst": (json_lines, framed_zstd),
    "jsonl.xz": (json_lines, lambda data: lzma.compress(data, preset=0)),
    "jsonl.bz2": (json_lines, lambda data: bz2.compress(data, 1)),
    "csv": (table, bytes),
    "csv.gz": (table, lambda data: gzip.compress(data, 1)),
    "txt": (lambda documents: "\n\n\n".join(documents).encode(), bytes),
    "txt.gz": (lambda documents: "\n\n\n".join(documents).encode(), lambda data: gzip.compress(data, 1)),
}


def write_parquet(path: Path, documents: Documents) -> None:
    pq.write_table(pa.table({"id": range(len(documents)), "text": documents}), path, row_group_size=1000)


def write_many(folder: Path, documents: Documents, container: str) -> None:
    """Files of few documents each."""
    for number in range(0, len(documents), 5):
        some = documents[number : number + 5]
        path = folder / f"{number:07}.{container}"
        path.write_bytes(gzip.compress(json_lines(some), 1) if container == "jsonl.gz" else "\n\n".join(some).encode())


CONTAINERS = [*PACKED, "parquet", "many txt", "many jsonl.gz"]


def write(folder: Path, container: str, files: list[Documents]) -> None:
    for number, documents in enumerate(files):
        if container.startswith("many "):
            (folder / str(number)).mkdir()
            write_many(folder / str(number), documents, container.removeprefix("many "))
        elif container == "parquet":
            write_parquet(folder / f"{number}.parquet", documents)
        else:
            render, pack = PACKED[container]
            (folder / f"{number}.{container}").write_bytes(pack(render(documents)))


def compare(name: str, folder: Path, **choices: Any) -> Outcome:
    """What estimate says about a folder, and what prepare makes of it."""
    with tempfile.TemporaryDirectory() as output:
        spec = Spec(inputs=[folder], output=output, val_fraction=0, **choices)
        told, made = estimate(spec), prepare(spec).manifest
    written = made.counts.documents - made.counts.documents_empty - made.counts.documents_rejected
    return Outcome(
        name=name,
        tokens=made.tokens,
        low=told.tokens.low,
        middle=told.tokens.middle,
        high=told.tokens.high,
        documents_held=told.documents.low <= written <= told.documents.high,
    )


def outcomes(
    sources: dict[str, Documents], *, size: int, wanted: Callable[[str], bool], rng: random.Random, **choices: Any
) -> Iterator[Outcome]:
    for arrangement, make in arrangements(sources, size, rng):
        for container in CONTAINERS:
            name = f"{arrangement}, {container}"
            if not wanted(name):
                continue
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder), container, make())
                separator = {"separator": "\\n\\n\\n"} if container.startswith("txt") else {}
                yield compare(name, Path(folder), **separator, **choices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=lambda text: SIZE.convert(text, None, None), default=12 << 20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", default="gpt2")
    given = parser.parse_args()
    rng, found = random.Random(given.seed), []
    sources = read_sources(given.folder) if given.folder else generated(rng)
    choices = {"size": given.size, "wanted": lambda name: given.only in name, "rng": rng, "tokenizer": given.tokenizer}
    with patch.object(estimating, "_SECONDS", given.seconds):
        for each in outcomes(sources, **choices):
            found.append(each)
            off = 100 * (each.middle - each.tokens) / max(1, each.tokens)
            verdict = ("held" if each.held else "MISSED") + ("" if each.documents_held else ", documents MISSED")
            print(
                f"{each.name:<36} {each.tokens:>12,}  {off:+6.1f} %  ± {100 * each.width:5.1f} %  {verdict}", flush=True
            )
    widths = [each.width for each in found]
    held, documents = sum(each.held for each in found), sum(each.documents_held for each in found)
    print(
        f"tokens held {held} of {len(found)}, documents {documents}; mean ± {100 * statistics.fmean(widths):.1f} %, median ± {100 * statistics.median(widths):.1f} %"
    )


if __name__ == "__main__":
    main()
