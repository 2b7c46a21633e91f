"""`make compare`: the same text through shardmill and through what people use instead, measured in one run.

    python tools/compare.py TEXT [--megabytes N] [--repeat 2] [--only NAME …] [--write]

tools/peers.py has each other way. Everyone gets two cores, and two workers where there are any. For each:

exact      are the tokens those that tiktoken gives for each whole document (or for the whole text)?
speed      MB of text a second, the whole command from start to exit, best of --repeat
memory     the most that the process tree held at once, shared pages counted once (PSS), on a quarter of the text and on all
resume     kill -9 at 70 % of the time, then the same command again: the same files? sooner than from the start?

Packages are installed from PyPI under .compare/, one environment each; what cannot be installed is left out and named.
--write puts the tables into README.md and docs/benchmarks.md.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import peers
import psutil  # type: ignore[import-untyped]
import tokenizers
import xxhash
from bench import put_into, stamp
from bench_base import MB, MIB

from shardmill.tokens.compile import byte_alphabet
from shardmill.tokens.tokenizer import read_ranks, vocabulary_file

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".compare"
TOKENIZER = HOME / "tokenizer"
DOCUMENT_CHARACTERS = 1900
PARTS = 8
SOURCE_FILES = ("text.txt", "documents.txt", "documents.jsonl")
SAMPLE_SECONDS = 0.05
KILL_AT = 0.7
SHORTEST_KILL = 5.0  # what takes less is killed on the text eight times over: checkpoints are made every second
RESUMED = 0.8  # of the time of a whole run
CORES = set(sorted(os.sched_getaffinity(0))[: peers.WORKERS])

Tokens = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A way to tokenize: what to install for it, where its token files are, and whether it takes running text."""

    name: str
    shown: str
    files: str = "train.bin"
    packages: tuple[str, ...] = ()
    text: bool = False


PEERS = (
    Peer(name="whole_file", shown="nanoGPT's `prepare.py`: the whole text, one list", text=True),
    Peer(name="streaming_script", shown="the usual streaming script: 1,000,000 characters at a time", text=True),
    Peer(name="gigatoken", shown="gigatoken, all in memory"),
    Peer(name="build_nanogpt", shown="build-nanogpt's `fineweb.py`", files="shard_*.npy"),
    Peer(
        name="megatron",
        shown="Megatron-LM's `preprocess_data.py`",
        files="text_document.bin",
        packages=("megatron-core", "transformers", "torch", "numpy"),
    ),
    Peer(name="datatrove", shown="datatrove", files="**/*.ds", packages=("datatrove[io,processing]", "tokenizers")),
    Peer(name="litdata", shown="litdata", files="**/chunk-*.bin", packages=("litdata", "tiktoken")),
    Peer(name="tokbin", shown="tokbin", files="web/train-*.bin", packages=("tokbin",)),
    Peer(name="shardmill_text", shown="**shardmill**, plain text", text=True),
    Peer(name="shardmill", shown="**shardmill**, JSONL"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    wall: float
    peak: int = 0
    code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A row of the table; why says why there are no figures."""

    peer: str
    version: str = ""
    exact: str = ""
    speed: float = 0.0
    small_peak: int = 0
    peak: int = 0
    resume: str = ""
    why: str = ""


def main() -> int:
    options = arguments()
    HOME.mkdir(exist_ok=True)
    write_tokenizer()
    work = HOME / "work"
    shutil.rmtree(work, ignore_errors=True)
    full, quarter = work / "full", work / "quarter"
    documents, text = read_text(options.text, options.megabytes)
    write_inputs(full, documents, text)
    write_inputs(quarter, documents[: len(documents) // 4], text[: len(text) // 4])
    truth = Truth(documents, text)
    asked = [peer for peer in PEERS if not options.only or peer.name in options.only]
    rows = [measured(peer, work, truth, options.repeat) for peer in asked]
    shutil.rmtree(work)
    machine = {**stamp(), "text": f"{options.text.name}, {truth.bytes / MB:,.0f} MB in {len(documents):,} documents"}
    (HOME / "results.json").write_text(json.dumps({"machine": machine, "rows": rows}, default=dataclasses.asdict))
    long, short = long_table(rows, machine), short_table(rows)
    print(f"{long}\n\n{short}")
    if options.write:
        put_into(ROOT / "docs/benchmarks.md", "compare", long)
        put_into(ROOT / "README.md", "compare", short)
    return any(row.why for row in rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare shardmill with what people use instead.")
    parser.add_argument("text", type=Path, help="a UTF-8 text of some hundred megabytes")
    parser.add_argument("--megabytes", type=int, help="use only so much of it")
    parser.add_argument("--repeat", type=int, default=2, help="best of this many (default: 2)")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="only these")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md and docs/benchmarks.md")
    return parser.parse_args()


# ---- the inputs


def read_text(file: Path, megabytes: int | None) -> tuple[list[str], str]:
    """The text, and its paragraphs put together to documents of a web page's length."""
    with open(file, encoding="utf-8", newline="") as source:
        text = source.read(megabytes * MB if megabytes else -1)
    documents, parts = [], []
    for paragraph in re.split(r"\n\n+", text):
        parts.append(paragraph)
        if sum(map(len, parts)) > DOCUMENT_CHARACTERS:
            documents.append("\n\n".join(parts).replace(peers.EOT, ""))
            parts = []
    return documents, text


def write_inputs(folder: Path, documents: list[str], text: str) -> None:
    (folder / "parts").mkdir(parents=True)
    with open(folder / "text.txt", "w", encoding="utf-8", newline="") as file:
        file.write(text)
    (folder / "documents.txt").write_text(peers.EOT.join(documents), encoding="utf-8", newline="")
    lines = [json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents]
    (folder / "documents.jsonl").write_text("".join(lines), encoding="utf-8")
    size = -(-len(lines) // PARTS)
    for number, at in enumerate(range(0, len(lines), size)):
        (folder / "parts" / f"{number}.jsonl").write_text("".join(lines[at : at + size]), encoding="utf-8")


def eight_times(source: Path, folder: Path) -> Path:
    """The same inputs eight times over, made when they are first needed."""
    if not folder.exists():
        (folder / "parts").mkdir(parents=True)
        for name in SOURCE_FILES:
            with open(folder / name, "wb") as file:
                for copy in range(8):
                    file.write(peers.EOT.encode() if copy and name == "documents.txt" else b"")
                    file.write((source / name).read_bytes())
        for copy, part in itertools.product(range(8), sorted((source / "parts").iterdir())):
            shutil.copy(part, folder / "parts" / f"{copy}-{part.name}")
    return folder


def write_tokenizer() -> None:
    """GPT-2's vocabulary, for tiktoken and as a tokenizer.json."""
    TOKENIZER.mkdir(exist_ok=True)
    shutil.copy(vocabulary_file("r50k_base"), TOKENIZER / "r50k_base.tiktoken")
    ranks = read_ranks("r50k_base")
    letters = {byte: letter for letter, byte in byte_alphabet().items()}

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token in sorted(filter(lambda token: len(token) > 1, ranks), key=ranks.__getitem__):
        left, right = halves(token, ranks)
        merges.append((spelled(left), spelled(right)))
    model = tokenizers.models.BPE(vocab={spelled(token): rank for token, rank in ranks.items()}, merges=merges)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([peers.EOT])
    made.save(str(TOKENIZER / "tokenizer.json"))


def halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that merge into this one."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        _, i = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


# ---- the truth


class Truth:
    """What tiktoken gives for each whole document, as sorted hashes, and for the whole text."""

    def __init__(self, documents: list[str], text: str) -> None:
        encoding = peers.gpt2(TOKENIZER)
        self.bytes = len(text.encode())
        self.document_bytes = sum(len(document.encode()) for document in documents)
        self.documents = np.sort(np.array([_hash(np.array(encoding.encode_ordinary(d), np.uint16)) for d in documents]))
        self.text = encoding.encode_to_numpy(text, disallowed_special=()).astype(np.uint16)
        self._sizes = np.array([len(encoding.decode_single_token_bytes(i)) for i in range(peers.EOT_ID + 1)])

    def judge(self, peer: Peer, tokens: Tokens) -> str:
        return self._judge_text(tokens) if peer.text else self._judge_documents(tokens)

    def _judge_text(self, tokens: Tokens) -> str:
        if np.array_equal(tokens, self.text):
            return "yes"
        wrong = np.setdiff1d(self._placed(tokens), self._placed(self.text), assume_unique=True) >> 16
        near = 1 + int((np.diff(wrong) > 1000).sum())
        return f"no: {len(wrong):,} wrong tokens in {near:,} places"

    def _judge_documents(self, tokens: Tokens) -> str:
        found = document_hashes(tokens)
        if np.array_equal(found, self.documents):
            return "yes"
        missing = len(self.documents) - len(np.intersect1d(found, self.documents))
        return f"no: {missing:,} of {len(self.documents):,} documents differ"

    def _placed(self, tokens: Tokens) -> npt.NDArray[np.int64]:
        """Each token with the byte where it ends."""
        return np.cumsum(self._sizes[tokens]) << 16 | tokens


def document_hashes(tokens: Tokens) -> Hashes:
    """Sorted: some tools reorder documents."""
    parts = np.split(tokens, np.flatnonzero(tokens == peers.EOT_ID))
    hashes = [_hash(part[part != peers.EOT_ID]) for part in parts]
    return np.sort(np.array([each for each in hashes if each != _hash(tokens[:0])], np.uint64))


def _hash(tokens: Tokens) -> int:
    return xxhash.xxh3_64_intdigest(tokens.tobytes())


def tokens_in(peer: Peer, output: Path) -> Tokens:
    return np.concatenate([_read(file) for file in sorted(output.glob(peer.files))] or [np.empty(0, np.uint16)])


def _read(file: Path) -> Tokens:
    if file.suffix == ".npy":
        return np.asarray(np.load(file))
    skip = 0
    if file.name.startswith("chunk-"):  # litdata: the number of items, then where each begins and the last ends
        skip = int(np.fromfile(file, "<u4", 2)[1])
    return np.fromfile(file, "<u2", offset=skip)


# ---- what is measured


def measured(peer: Peer, work: Path, truth: Truth, repeat: int) -> Measured:
    print(f"{peer.name} …", file=sys.stderr, flush=True)
    try:
        python = environment(peer)
    except subprocess.CalledProcessError as e:
        return Measured(peer=peer.name, why=f"cannot be installed: {_last_line(e.stderr)}")
    output = work / "output"

    def go(inputs: Path, **how: Any) -> Cost:
        cost = run(command(peer, python, inputs, output), work, **how)
        if cost.code and "kill_after" not in how:
            raise RuntimeError(f"exit code {cost.code}: {_last_line((work / 'log').read_text(errors='replace'))}")
        return cost

    try:
        small = _fresh(output, lambda: go(work / "quarter", watch=True))
        whole = _fresh(output, lambda: go(work / "full", watch=True))
        tokens = tokens_in(peer, output)
        exact = truth.judge(peer, tokens)
        best = min([whole.wall, *(_fresh(output, lambda: go(work / "full")).wall for _ in range(repeat - 1))])
        resume = kill_and_resume(peer, go, work, best, document_hashes(tokens))
    except RuntimeError as e:
        return Measured(peer=peer.name, version=version(peer, python), why=str(e))
    size = truth.bytes if peer.text else truth.document_bytes
    return Measured(
        peer=peer.name,
        version=version(peer, python),
        exact=exact,
        speed=size / MB / best,
        small_peak=small.peak,
        peak=whole.peak,
        resume=resume,
    )


def kill_and_resume(peer: Peer, go: Callable[..., Cost], work: Path, wall: float, expected: Hashes) -> str:
    inputs, output = work / "full", work / "output"
    if wall < SHORTEST_KILL:
        inputs = eight_times(inputs, work / "eight")
        wall = _fresh(output, lambda: go(inputs)).wall
        expected = document_hashes(tokens_in(peer, output))
    killed = _fresh(output, lambda: go(inputs, kill_after=KILL_AT * wall))
    if killed.code != -signal.SIGKILL:
        return "could not be killed in time"
    try:
        again = go(inputs)
    except RuntimeError as e:
        return f"fails: {e}"
    if not np.array_equal(document_hashes(tokens_in(peer, output)), expected):
        return "wrong tokens"
    share = again.wall / wall
    return f"resumes ({share:.0%} of the time)" if share < RESUMED else "starts over"


def _fresh(output: Path, work: Callable[[], Cost]) -> Cost:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    return work()


def command(peer: Peer, python: Path, inputs: Path, output: Path) -> list[str]:
    if not peer.name.startswith("shardmill"):
        script = Path(__file__).with_name("peers.py")
        return [str(python), str(script), peer.name, str(inputs), str(output), str(TOKENIZER)]
    source = inputs / ("text.txt" if peer.text else "parts")
    chosen = ["--val-fraction", "0", "--workers", str(peers.WORKERS), "-q"]
    return [str(python), "-m", "shardmill", "prepare", str(source), "-o", str(output), *chosen]


def environment(peer: Peer) -> Path:
    """A Python that has the packages of a peer; this one where it needs none."""
    if not peer.packages:
        return Path(sys.executable)
    home = HOME / peer.name
    python, ready = home / "bin" / "python", home / ".ready"
    wanted = "\n".join(peer.packages)
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(home, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.packages]
        subprocess.run(install, check=True, capture_output=True, text=True)
        ready.write_text(wanted)
    return python


def version(peer: Peer, python: Path) -> str:
    own = {"gigatoken": "gigatoken", "shardmill": "shardmill", "shardmill_text": "shardmill"}
    package = peer.packages[0].split("[")[0] if peer.packages else own.get(peer.name, "tiktoken")
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return f"{package} {subprocess.run([str(python), '-c', code], capture_output=True, text=True).stdout.strip()}"


def run(command: list[str], work: Path, *, watch: bool = False, kill_after: float | None = None) -> Cost:
    """One command on two cores, its output in a log; killed with all its children after so many seconds."""
    (work / "tmp").mkdir(exist_ok=True)
    quiet = {"HF_HUB_OFFLINE": "1", "TMPDIR": str(work / "tmp"), "DATA_OPTIMIZER_CACHE_FOLDER": str(work / "tmp")}
    started = time.perf_counter()
    with open(work / "log", "w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **quiet},
        )
    os.sched_setaffinity(process.pid, CORES)
    peak = [0]
    if watch:
        threading.Thread(target=_watch, args=(process.pid, peak), daemon=True).start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(kill_after)
    wall = time.perf_counter() - started
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(1)  # its children are gone too
    return Cost(wall=wall, peak=peak[0], code=process.returncode)


def _watch(pid: int, peak: list[int]) -> None:
    root = psutil.Process(pid)
    while root.is_running():
        with contextlib.suppress(psutil.Error):  # one of them just ended
            peak[0] = max(peak[0], sum(each.memory_full_info().pss for each in _tree(root)))
        time.sleep(SAMPLE_SECONDS)


def _tree(root: Any) -> Iterator[Any]:
    yield root
    yield from root.children(recursive=True)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")[:200].rstrip(".")


# ---- what is said about it


def long_table(rows: list[Measured], machine: dict[str, str]) -> str:
    lines = [
        "| | version | exact | MB/s | peak memory, ¼ of the text | peak memory, all of it | after `kill -9` |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        if not row.why:
            small, whole = (f"{peak / MIB:,.0f} MiB" for peak in (row.small_peak, row.peak))
            lines.append(
                f"| {_shown(row)} | {row.version} | {row.exact} | {row.speed:,.1f} | {small} | {whole} | {row.resume} |"
            )
    lines += ["", *(f"Left out: {_shown(row)}: {row.why}." for row in rows if row.why)]
    said = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join([*lines, f"Measured by `make compare` on: {said}."])


def short_table(rows: list[Measured]) -> str:
    lines = ["| | exact | MB/s | peak memory | with 4× the text | after `kill -9` |", "|---|---|--:|--:|--:|---|"]
    for row in rows:
        if not row.why:
            exact, resumes = (said.split(" (")[0].split(": ")[0] for said in (row.exact, row.resume))
            memory = f"{row.peak / MIB:,.0f} MiB | {row.peak / row.small_peak:.1f}×"
            lines.append(f"| {_shown(row)} | {exact} | {row.speed:,.0f} | {memory} | {resumes} |")
    return "\n".join(lines)


def _shown(row: Measured) -> str:
    return next(peer.shown for peer in PEERS if peer.name == row.peer)


if __name__ == "__main__":
    sys.exit(main())
