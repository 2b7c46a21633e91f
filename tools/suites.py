"""`make suites`: the readers on JSONTestSuite and parquet-testing, compared with Python's json and with pyarrow.

Say where they lie: `make suites JSON_SUITE=…/JSONTestSuite PARQUET_SUITE=…/parquet-testing`. Neither is part of this
project: github.com/nst/JSONTestSuite, github.com/apache/parquet-testing.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import shardmill
from shardmill.documents.rules import TextRules
from shardmill.inputs.find import find_inputs
from shardmill.job import plan
from shardmill.tokens.cuts import Cuts
from shardmill.tokens.tokenizer import load

# A bad file may not take more than this, nor longer.
MEMORY = 256 << 20
SECONDS = 60
# A line longer than a run is read by other code: both must agree.
WAYS: dict[str, dict[str, int]] = {"whole": {}, "streamed": {"max_run_bytes": 16}}
TEXT = (pa.types.is_string, pa.types.is_binary)
FRAMES: dict[str, Callable[[bytes], bytes]] = {
    "the record": lambda data: data,
    "the text": lambda data: b'{"text": ' + data + b"}",
    "the text, out of its list": lambda data: b'{"text": ' + data.strip().removeprefix(b"[").removesuffix(b"]") + b"}",
    "another field": lambda data: b'{"other": ' + data + b', "text": "fine"}',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parquet", type=Path)
    asked = parser.parse_args()
    wrong = 0
    if asked.json:
        wrong += run_json(asked.json)
    if asked.parquet:
        wrong += run_parquet(asked.parquet)
    sys.exit(1 if wrong else 0)


def milled(file: Path, **choices: Any) -> list[str]:
    """The documents of a file, as the mill would encode them."""
    defaults = {"max_run_bytes": 512 << 10, "field": "text", "on_error": "stop", **choices}
    rules = TextRules(
        cuts=_cuts(),
        seed=None,
        separator=None,
        passage_bytes=None,
        border=None,
        block_bytes=defaults["max_run_bytes"],
        **defaults,
    )
    documents: list[bytes] = []
    for block in plan.blocks(find_inputs((str(file),)), rules):
        for part in block.parts:
            found = part.pieces(0, rules, lambda keys: keys < 0)
            for data, begins in zip(found.texts, found.begins, strict=True):
                if begins:
                    documents.append(data)
                else:
                    documents[-1] += data
    return [document.decode() for document in documents]


@lru_cache(maxsize=1)
def _cuts() -> Cuts:
    return load("gpt2").cuts


# ---- JSON


def run_json(suite: Path) -> int:
    """Every file as one line, between two good ones."""
    cases = {}
    for file in sorted((suite / "test_parsing").glob("*.json")):
        data = file.read_bytes().rstrip(b"\n")
        if b"\n" not in data:  # else it is no line
            cases[file.name] = data
    wrong = 0
    for frame, wrap in FRAMES.items():
        lines = {name: wrap(data) for name, data in cases.items()}
        want = {name: python_reads(line) for name, line in lines.items()}
        for way, choices in WAYS.items():
            bad = wrong_lines(lines, want, choices)
            for name, reason in bad.items():
                print(f"WRONG {name} as {frame}, {way}: {reason}")
            wrong += len(bad)
        kinds = Counter((name[0], "read" if want[name] is not None else "refused") for name in lines)
        told = ", ".join(f"{kind}_ {what} {number}" for (kind, what), number in sorted(kinds.items()))
        print(f"JSON as {frame}: {len(lines)} lines, each way: {told}")
        lenient = sorted(name for name in lines if name.startswith("n_") and want[name] is not None)
        if frame == "another field":
            print(f"  n_ files that Python's json reads: {', '.join(lenient) or 'none'}")
    return wrong


def python_reads(line: bytes) -> str | None:
    """The text of a record, or None where it must be refused."""
    try:
        record = json.loads(line.decode(), object_pairs_hook=list)
        if not line.lstrip(b" \t\r").startswith(b"{"):
            return None
        found = [value for name, value in record if name == "text"]
        text = found[0] if len(found) == 1 and isinstance(found[0], str) else None
        return None if text is None else text.encode().decode()
    except (ValueError, RecursionError):
        return None


def wrong_lines(lines: dict[str, bytes], want: dict[str, str | None], choices: dict[str, int]) -> dict[str, str]:
    """What went otherwise than it should, by the name of the case."""
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, line in lines.items():
            file = Path(folder) / "a.jsonl"
            file.write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
            expected = ["before", *([want[name]] if want[name] else []), "after"]
            try:
                got = milled(file, on_error="skip", **choices)
                if got != expected:
                    wrong[name] = f"gives {got!r}, not {expected!r}"[:300]
                stopped = None
                try:
                    milled(file, **choices)
                except shardmill.ShardmillError as e:
                    stopped = str(e)
                if line.strip(b" \t\r") and (stopped is None) != (want[name] is not None):
                    wrong[name] = f"told {stopped!r}"
                if stopped is not None and "a.jsonl line 2 (byte 19)" not in stopped:
                    wrong[name] = f"told without its place: {stopped}"
            except Exception as e:
                wrong[name] = f"{type(e).__name__}: {e}"[:300]
    return wrong


# ---- Parquet


def run_parquet(suite: Path) -> int:
    """Every text column of every good file, and of every bad one; each file in a process of its own."""
    wrong = 0
    told: Counter[str] = Counter()
    for file in sorted([*(suite / "data").rglob("*.parquet"), *(suite / "bad_data").glob("*.parquet")]):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=_look_at, args=(file, file.parent.name == "bad_data", theirs))
        process.start()
        theirs.close()
        try:
            results = ours.recv() if ours.poll(SECONDS) else [("WRONG", "hangs")]
        except EOFError:
            results = [("WRONG", "the process died")]
        if process.is_alive():
            process.kill()
        process.join()
        for kind, what in results:
            told[kind if file.parent.name != "bad_data" else f"bad_data: {kind}"] += 1
            wrong += kind == "WRONG"
            if kind == "WRONG" or file.parent.name == "bad_data":
                print(f"{kind} {file.name}: {what}")
    print("Parquet:", ", ".join(f"{kind} {number}" for kind, number in sorted(told.items())))
    return wrong


def _look_at(file: Path, bad: bool, answer: Any) -> None:
    _cuts()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        columns = text_columns(file)
    except Exception as e:
        columns, reason = [], f"pyarrow: {e}"
    else:
        reason = "no column of text"
    results = [_compared(file, name, bad) for name in columns] or [_refused(file, reason)]
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before << 10
    answer.send(results if taken < MEMORY else [("WRONG", f"took {taken >> 20} MiB")])


def text_columns(file: Path) -> list[str]:
    schema = pq.read_schema(file)
    found = []
    for field in schema:
        kinds = [(field.name, field.type)]
        if pa.types.is_struct(field.type):
            kinds = [(f"{field.name}.{inner.name}", inner.type) for inner in field.type]
        found += [name for name, kind in kinds if any(check(kind) for check in TEXT)]
    return found


def _refused(file: Path, reason: str) -> tuple[str, str]:
    """A file without text must be refused in words."""
    try:
        milled(file, field="text")
    except shardmill.ShardmillError as e:
        return "refused", f"{reason}: {e}" if file.name in str(e) else f"told without its name: {e}"
    except Exception as e:
        return "WRONG", f"{type(e).__name__}: {e}"
    return "WRONG", "read, and it holds no text"


def _compared(file: Path, name: str, bad: bool) -> tuple[str, str]:
    top, *inside = name.split(".") if name not in pq.read_schema(file).names else [name]
    try:
        column = pq.read_table(file, columns=[top]).column(top)
        values = column.to_pylist()
        for part in inside:
            values = [None if value is None else value[part] for value in values]
    except (OSError, pa.ArrowException) as e:
        values, known = [], f"pyarrow: {e}"
    else:
        known = ""
    data = [value.encode() if isinstance(value, str) else value for value in values]
    want = [text for value in data if value and (text := _decoded(value)) is not None]
    try:
        got = milled(file, field=name, on_error="skip")
        stopped = None
        try:
            milled(file, field=name)
        except shardmill.ShardmillError as e:
            stopped = str(e)
    except shardmill.ShardmillError as e:
        return ("refused", str(e)) if known or bad or not want else ("WRONG", str(e))
    except Exception as e:
        return "WRONG", f"{name}: {type(e).__name__}: {e}"
    if known:
        kind = "refused" if stopped and file.name in stopped else "WRONG"
        return kind, f"{name}: {len(got)} documents before it; {stopped} ({known[:100]})"
    if got != want:
        return "WRONG", f"{name}: {len(got)} documents instead of {len(want)}: {stopped}"
    flawed = any(value is None or _decoded(value) is None for value in data)
    if flawed != (stopped is not None):
        return "WRONG", f"{name}: told {stopped}"
    return "equal", f"{name}: {len(got)} documents; {stopped}"


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


if __name__ == "__main__":
    main()
