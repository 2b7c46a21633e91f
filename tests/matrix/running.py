"""A cell → nothing, if what comes out of it is what must; else a Difference that says what is not."""

import contextlib
import functools
import importlib
import json
import os
import pkgutil
import random
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import mishaps
import numpy as np
import oracle
import outputs
import stores
import world as worlds
from cells import DIMENSIONS, Cell, line, refusal

import reference
import shardmill
from commit_steps import STEPS
from shardmill import Limits, Spec
from shardmill.errors import InputError, OutputError, ShardmillError, UsageError
from shardmill.io import storage
from shardmill.job import job
from shardmill.results import corpus as corpus_module
from shardmill.tokens import tokenizer

PLENTY = 16 << 30
LATE = STEPS.index("files-finished")
# What decides bytes and must be the same in all runs of a cell, and what must not matter at all.
MEANT = {
    "documents.text.DOCUMENT_HEAD": worlds.SMALL_HEAD,
    "documents.text_reader.DOCUMENT_HEAD": worlds.SMALL_HEAD,
    "documents.records.DOCUMENT_HEAD": worlds.SMALL_HEAD,
    "documents.rules.DOCUMENT_HEAD": worlds.SMALL_HEAD,
    "documents.text.PASSAGE_HEAD": 30,
    "documents.passages.PASSAGE_HEAD": 30,
    "documents.ranges.PASSAGE_HEAD": 30,
    "documents.rules.PASSAGE_HEAD": 30,
    "job.plan.WHOLE_FILE_BYTES": 600,
    "job.notes.WHOLE_FILE_BYTES": 600,
    "spec.WHOLE_FILE_BYTES": 600,
    "record.input_list.MOST": 5,
    "formats.output_files.SEGMENT_BYTES": 3000,
    "results.verify.SEGMENT_BYTES": 3000,
}
SHRUNK = {
    "io.spool.IN_MEMORY": 500,
    "io.compression._INPUT_BYTES": 97,
    "io.compression._OUTPUT_BYTES": 301,
    "io.zstd._LEAST_ROOM": 0,
    "documents.long_values._WINDOW": 97,
    "documents.long_values._LOOK_BACK": 64,
    "documents.long_values.HELD_BYTES": 600,
    "documents.jsonl.HELD_BYTES": 600,
    "documents.delimited._WINDOW": 311,
    "documents.utf8._WINDOW": 173,
    "documents.rules.MAX_RECORDS": 5,
    "documents.rules._BYTES_OF_RECORD": 1 << 40,
    "documents.delimited.MAX_RECORDS": 5,
    "documents.warc.MAX_RECORDS": 5,
    "documents.columnar.arrow.MAX_RECORDS": 5,
    "documents.columnar.values.MAX_RECORDS": 5,
    "documents.columnar.parquet.MAX_RECORDS": 5,
    "documents.columnar.filtered.MAX_RECORDS": 5,
    "documents.columnar.filtered._AT_ONCE": 16,
    "documents.columnar.filtered.VALUE_BYTES": 12,  # of a value that --where compares; its words are shorter
    "documents.json_scan.VALUE_BYTES": 12,
    "documents.delimited.VALUE_BYTES": 12,
    "documents.columnar.pages.MOST_HELD": 3000,  # larger pages are streamed
    "job.plan._MAX_PARTS": 3,
    "job.plan._BLOCKS": 2,
    "job.plan._REMOTE_BLOCKS": 3,
    "job.budget._AHEAD_FACTOR": 0,  # everything that waits for its turn waits on disk
    "job.first_pass._WINDOW": 500,
    "results.document_index._CHUNK": 7,
    "formats.indexes._CHUNK": 7,
    "formats.output_files._CHUNK_BYTES": 26,
    "results.verify._CHUNK_BYTES": 512,
    "io.storage._WRITE_BYTES": 100,
    "io.open_files._MOST_OPEN": 1,
}


class Difference(Exception):
    """Something is not what it must be."""


class Killed(BaseException):
    """The process is dead: every further step of the commit protocol raises this too."""


@contextlib.contextmanager
def constants(values):
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            module, _, constant = f"shardmill.{name}".rpartition(".")
            stack.enter_context(patch.object(importlib.import_module(module), constant, value))
        yield


def missing_constants():
    """Those that this file names and the code does not have (any more)."""
    split = ((name, *f"shardmill.{name}".rpartition(".")[::2]) for name in {**MEANT, **SHRUNK})
    return [name for name, module, constant in split if not hasattr(importlib.import_module(module), constant)]


def forgotten_constants():
    """Where the code has a constant of the same name as one in MEANT, and it is not named here."""
    names = {name.rpartition(".")[2] for name in MEANT}
    every = (each.name for each in pkgutil.walk_packages(shardmill.__path__, "shardmill."))
    modules = [importlib.import_module(name) for name in every if name not in ("shardmill.__main__", "shardmill.torch")]
    found = {f"{module.__name__}.{name}" for module in modules for name in names & vars(module).keys()}
    return sorted(found - {f"shardmill.{name}" for name in MEANT})


@contextlib.contextmanager
def engines_kept():
    """Loading tokenizers and engines is most of what a small job does: once is enough."""
    load, choose = functools.lru_cache(maxsize=None)(tokenizer.load), job.choose_engines
    kept = {}

    def choose_once(found, engine, *rest):
        if (found.name, engine) not in kept:
            kept[found.name, engine] = choose(found, engine, *rest)
        return kept[found.name, engine]

    with (
        patch.object(job, "load", load),
        patch.object(corpus_module, "load", load),
        patch.object(job, "choose_engines", choose_once),
    ):
        yield


class Watch:
    """Ends a run at its n-th step, or at its n-th late one; dead says whether all that follows fails too."""

    def __init__(self, number, *, late=False, dead=True):
        self.number, self.late, self.dead = number, late, dead
        self.over = False

    def __call__(self, step):
        self.number -= not self.late or step in STEPS[LATE:]
        if self.number == 0 or (self.over and self.dead):
            self.over = True
            raise Killed(step)


def in_process(spec, limits, watch):
    """Whether it came to its end."""
    try:
        with patch.object(storage, "watch", watch or storage.watch):
            shardmill.prepare(spec, limits=limits)
    except Killed:
        return False
    return True


def forked(spec, limits, watch):
    """The same in a process of its own, which is really killed."""
    pid = os.fork()
    if pid == 0:
        if watch is not None:
            storage.watch = lambda step: _die(watch, step)
        try:
            shardmill.prepare(spec, limits=limits)
            os._exit(0)
        except ShardmillError as e:
            Path(spec.output).with_name("error.json").write_text(json.dumps([type(e).__name__, str(e)]))
            os._exit(3)
        finally:
            os._exit(4)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 3:
        name, message = json.loads(Path(spec.output).with_name("error.json").read_text())
        raise getattr(importlib.import_module("shardmill.errors"), name)(message)
    if code not in (0, -9):
        raise Difference(f"the process ended with {code}")
    return code == 0


def _die(watch, step):
    try:
        watch(step)
    except Killed:
        os.kill(os.getpid(), 9)


def run(cell: Cell, *, runner=in_process):
    """None, or why the cell is refused; raises a Difference with the line that shows it again."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="shardmill-matrix-", dir=shm) as folder:
        try:
            with (
                constants({**MEANT, **SHRUNK} if cell["constants"] == "small" else {}),
                stores.login() if cell["place"] == "s3" else contextlib.nullcontext(),
            ):
                return Run(cell, Path(folder), runner).go()
        except Difference as e:
            raise Difference(f"{e}\n  python tools/matrix.py --cell '{line(cell)}'") from e
        except Exception as e:
            told = f"{type(e).__name__}: {str(e)[:400]}"
            raise Difference(f"{told}\n  python tools/matrix.py --cell '{line(cell)}'") from e


class Run:
    """One cell in its folder."""

    def __init__(self, cell, folder, runner):
        self.cell, self.folder, self.runner = cell, folder, runner
        self.rng = random.Random(int(cell["seed"]) ^ 0x5EED)
        self.world = worlds.make(cell)
        self.inputs = []
        for path, made in self.world.files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(made.data)
            self.inputs.append(str(folder / path))
        if cell["kill"] == "forbidden":
            self.inputs = stores.serve({f"/{folder.name}/{path}": made.data for path, made in self.world.files.items()})
        self.output = f"s3://mill/{folder.name}" if cell["place"] == "s3" else str(folder / "out")

    def go(self):
        spec = self.spec(on_error=self.world.first_errors)
        if (why := refusal(self.cell)) is not None:
            self.must_raise(why, UsageError, InputError, spec=spec)
            return why
        try:
            if self.cell["kill"] in mishaps.MISHAPS:
                return self.go_with_a_mishap()
            policy = self.mill()
            self.world.spec["on_error"] = policy
            return self.finish()
        except (UsageError, InputError) as e:
            if not self.nothing_is_left(str(e)):
                raise
            return "nothing would be left to train on, or to write at all"

    def finish(self):
        """The last run, which must come to its end, or must not."""
        want = oracle.expected(self.cell, self.world)
        try:
            self.runner(self.spec(), self.limits(), None)
        except InputError as e:
            if "can no longer be skipped" in str(e) and self.cell["errors"] == "stop-then-skip":
                return "a document whose beginning was written before it was found to be bad"
            if not (want.error or want.unsure) and not (self.world.running and self.is_bad_in_one_go()):
                raise
            return None
        if want.error and not self.world.running:
            raise Difference("nothing was refused, and there is a bad record")
        self.check(None if self.world.running else want)
        return None

    def is_bad_in_one_go(self):
        """Whether there is a bad record before the limit; by passages, only the mill itself can tell."""
        try:
            self.in_one_go()
        except InputError:
            return True
        return False

    def go_with_a_mishap(self):
        """An input that is edited, replaced, denied or unreadable stops the job, whatever the policy for bad records."""
        limits = self.limits(workers=self.cell["workers"], block=self.cell["block"])
        times = [os.stat(path).st_mtime_ns for path in self.inputs if "://" not in path]
        try:
            with mishaps.MISHAPS[str(self.cell["kill"])](self.rng, self.inputs):
                ended = in_process(self.spec(), limits, None)
        except ShardmillError:
            ended = False
        if not ended and self.cell["kill"] in ("edit", "swap"):
            if (Path(self.output) / "manifest.json").exists():
                raise Difference("an input changed, the job stopped, and there is a manifest")
            return None
        for path, made, time in zip(self.inputs, self.world.files.values(), times):
            Path(path).write_bytes(made.data)  # it came too late, so nobody need know of it
            os.utime(path, ns=(time, time))
        return self.finish()

    def spec(self, output=None, **choices):
        return Spec(inputs=self.inputs, output=output or self.output, **{**self.world.spec, **choices})

    def limits(self, **given):
        drawn = {name: self.rng.choice(DIMENSIONS[name]) for name in ("workers", "block")}
        chosen = {**drawn, **given}
        return Limits(
            workers=chosen["workers"],
            block_bytes=chosen["block"],
            max_memory=PLENTY,
            engine=self.engine(),
            checkpoint_seconds=self.rng.choice([0.0, 0.0, 1.0]),
            checkpoint_bytes=self.rng.choice([1, 1000, 1 << 20]),
            staging=str(self.folder / "staging"),
            network_seconds=5.0,
        )

    def engine(self):
        return "auto" if self.rng.random() < 0.7 else "reference"

    def nothing_is_left(self, told):
        """Whether the job was refused since all tokens would be val, or there are none; raises a Difference if that is wrong."""
        none = "nothing is left to write" in told
        if not none and (self.cell["split"] != "first-shard" or "nothing would be left to train on" not in told):
            return False
        want = oracle.expected(self.cell, self.world)
        unsure = want.error or want.unsure or self.world.running or "-then-" in str(self.cell["errors"])
        left = len(want.tokens["train"]) + (len(want.tokens["val"]) if none else 0)
        if left and not unsure:
            raise Difference(f"{left} tokens should be left, and it was refused: {told}")
        return True

    def must_raise(self, why, *kinds, spec):
        try:
            self.runner(spec, self.limits(), None)
        except kinds as e:
            if why not in str(e):
                raise Difference(f"refused, but not since {why!r}: {e}") from e
            return
        raise Difference(f"nothing was refused, though: {why or 'a bad record'}")

    def mill(self):
        """The runs before the last; returns the policy that the last one is to have."""
        first, last = self.world.first_errors, self.world.spec["on_error"]
        turns = {"no": 0, "chain": 3}.get(self.cell["kill"], 1)
        limits = self.limits(workers=self.cell["workers"], block=self.cell["block"])
        for _turn in range(turns or 1):
            watch = self.watch() if turns else None
            try:
                if self.runner(self.spec(on_error=first), limits, watch):
                    return first
            except InputError:
                if first == "stop":
                    break
                raise
            limits = self.limits()
        if first == last:
            return last
        try:
            self.runner(self.spec(), self.limits(), None)
        except OutputError as e:
            if "--on-error" not in str(e):
                raise
            limited = str(self.cell["select"]).endswith(("documents", "tokens"))
            complete = "manifest.json" in self.files()  # killed after its last step
            if first == "stop" and not limited and not complete:
                raise Difference(f"the policy did not matter yet, and must not change: {e}") from e
            return first
        except InputError:
            pass  # told by the last run, too
        return last

    def watch(self):
        text = sum(len(document.text or "") for made in self.world.files.values() for document in made.documents)
        blocks = text // min(int(self.cell["block"]), 3000) + len(self.world.files)
        late = self.cell["kill"] == "late" or self.rng.random() < 0.1
        number = self.rng.randint(1, 6) if late else 1 + int(self.rng.random() * (5 + 2 * blocks))
        dead = self.cell["kill"] != "stop" and self.rng.random() < 0.8
        return Watch(number, late=late, dead=dead)

    def files(self, output=None):
        """Name → bytes of all that is there."""
        if output is None and self.cell["place"] == "s3":
            return stores.objects(self.folder.name)
        root = Path(output or self.output)
        return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}

    def check(self, want):
        files = self.files()
        files.pop(".shardmill.lock", None)
        made = json.loads(files["manifest.json"])
        found = {split: self.tokens(files, made, split) for split in ("train", "val")}
        self.whole_names(files, found)
        if want is not None and not self.world.cutless:
            self.compare(files, made, found, want)
        else:
            self.compare_running(made, found)
        plain = want is not None and not self.world.cutless and self.cell["select"] == "all"
        if not plain or self.cell["kill"] in mishaps.MISHAPS or self.rng.random() < 0.2:
            self.compare_with_one_go(files)
        self.verify()

    def tokens(self, files, made, split):
        """All tokens of a split, and every shard as long as it must be."""
        form, dtype = str(self.cell["format"]), np.dtype(made["dtype"])
        parts = [(name, np.frombuffer(data, dtype)) for name, data in outputs.shards(files, form, split)]
        length = self.world.spec.get("shard_tokens")
        sample = self.world.spec.get("sample_tokens")
        for name, tokens in parts:
            if outputs.told(files[name], form, dtype, sample) not in (None, len(tokens)):
                raise Difference(f"{name}: its header tells of other than {len(tokens)} tokens")
        sizes = [len(tokens) for _, tokens in parts]
        least = {"llmc": length, "modded-nanogpt": length, "mds": sample, "litdata": sample}.get(form, 0)
        if length and (any(size != length for size in sizes[:-1]) or sizes[-1:] > [length + (least or 1) - 1]):
            raise Difference(f"{split}: shards of {sizes} tokens, not {length}")
        two = form == "modded-nanogpt" and split == "train"  # its trainer stops with a single shard
        if length and len(sizes) > 1 + two and sizes[-1] < (least or 1):
            raise Difference(f"{split}: the last shard has {sizes[-1]} tokens")
        return np.concatenate([tokens for _, tokens in parts]).tolist() if parts else []

    def whole_names(self, files, found):
        """R5, R6: a split without tokens has no files, and nothing else lies about."""
        form = str(self.cell["format"])
        for split in ("train", "val"):
            there = [
                name
                for name in files
                if name.startswith((f"{split}.", f"{split}-", f"{split}/")) or f"_{split}_" in name
            ]
            if bool(there) != bool(found[split]):
                raise Difference(f"{split} has {len(found[split])} tokens and the files {there}")
        strange = [
            name for name in files if "partial" in name or "journal" in name or (form != "olmo" and ".csv" in name)
        ]
        if strange:
            raise Difference(f"left behind: {strange}")
        if (self.folder / "staging").exists() and list((self.folder / "staging").iterdir()):
            raise Difference(f"left in the staging folder: {list((self.folder / 'staging').rglob('*'))}")

    def compare(self, files, made, found, want):
        same("tokens of train", found["train"], want.tokens["train"])
        same("tokens of val", found["val"], want.tokens["val"])
        form = str(self.cell["format"])
        for split in ("train", "val"):
            for name, ends in outputs.ends(files, form, split, want.ends[split]).items():
                same(name, ends, want.ends[split])
            if f"{split}.places" in files:
                same(f"{split}.places", outputs.places(files, split), want.places[split])
            if form == "olmo" and want.ends[split]:
                rows = {n: (path, at) for _, _, n, path, at in outputs.rows(files, split)}
                same(f"{split} rows", list(rows.values()), [(self.inputs[n], at) for n, at in want.places[split]])
            if bool(self.world.spec["index"] and want.ends[split]) != (f"{split}.ends" in files):
                raise Difference(f"{split}.ends is there, or is not")
        counts = dict(made["counts"])
        low, high = want.replaced if self.world.spec["on_error"] == "replace" else (0, 0)
        if not low <= (replaced := counts.pop("replaced_characters")) <= high:
            raise Difference(f"replaced_characters: {replaced}, and {low} to {high} are right")
        same("counts", counts, {name: want.counts[name] for name in counts})
        same("rejects", self.rejects(files), want.rejects)

    def rejects(self, files):
        listed = [json.loads(each) for each in files.get("rejects.jsonl", b"").splitlines()]
        paths = dict(zip(self.inputs, self.world.files, strict=True))
        return [(paths[each["path"]], _place(each)) for each in listed]

    def compare_running(self, made, found):
        """Text in passages: nothing is lost, nothing is doubled, and end-of-text tokens stand at text."""
        spec, counts = self.world.spec, Counter(made["counts"])
        side, eot = oracle.eot_side(self.cell, self.world), oracle.EOT[spec["tokenizer"]]
        if self.cell["split"] == "first-shard":
            found = {"train": found["val"] + found["train"], "val": []}
        for split, tokens in found.items():
            lonely = oracle.lonely(tokens, eot, side) if side != "none" and "limit_tokens" not in spec else []
            if lonely:
                raise Difference(f"end-of-text tokens without text at {lonely[:5]} of {split}")
        # Where head or tail ends there must be a border, and with passages this short the next cut may be too far away.
        by_split = self.cell["split"] in ("head", "tail")
        if counts["forced_cuts"] > by_split and not self.world.cutless:
            raise Difference(f"{counts['forced_cuts']} forced cuts in text that has others")
        left_out = counts["passages_unsampled"] + counts["passages_rejected"] + counts["documents_unsampled"]
        left_out += counts["documents_rejected"] + counts["documents_filtered"] + counts["forced_cuts"]
        if left_out or any(spec.get(name) for name in ("limit_documents", "limit_tokens")):
            return
        whole = [document.text for made in self.world.files.values() for document in made.documents if document.text]
        tokens = reference.tokens(spec["tokenizer"], whole, eot=eot, side=side)
        if not oracle.interleave(tokens, found["train"], found["val"]):
            raise Difference("train and val together are not the tokens of the text")

    def in_one_go(self):
        """The files of the same job with one worker, one block, no interruption, on this disk."""
        limits = Limits(workers=1, block_bytes=1 << 20, max_memory=PLENTY, engine=self.engine())
        output = str(self.folder / "whole")
        with constants({**MEANT, **_own(SHRUNK)} if self.cell["constants"] == "small" else {}):
            in_process(self.spec(output=output), limits, None)
        return self.files(output)

    def compare_with_one_go(self, files):
        """I1."""
        whole = self.in_one_go()
        for name in sorted({*files, *whole} - {"run.json"}):
            if files.get(name) != whole.get(name):
                raise Difference(f"{name} is not what it is in one go{_first(name, files, whole)}")

    def verify(self):
        tokenizer, limits = None, self.limits()
        for sources in ((), self.inputs):
            done = shardmill.verify(self.output, sources=sources, tokenizer=tokenizer, limits=limits)
            if not done.ok:
                how = " with sources" if sources else ""
                raise Difference(f"verify{how} is not content: {[(p.file, p.what[:300]) for p in done.problems[:3]]}")


def _own(values):
    """The same names with the values that they have in the code."""
    return {name: value for name, value in _OWN.items() if name in values}


_OWN = {}
for _name in SHRUNK:
    _module, _, _constant = f"shardmill.{_name}".rpartition(".")
    _OWN[_name] = getattr(importlib.import_module(_module), _constant)


def _place(reject):
    if reject.get("row") is not None:
        return reject["row"]
    return reject["line"] - 1 if reject.get("line") is not None else reject["byte"]


def same(what, found, wanted):
    if found != wanted:
        if isinstance(found, dict):
            differ = {name: (found[name], wanted[name]) for name in found if found[name] != wanted[name]}
            raise Difference(f"{what}: found and wanted {differ}")
        first = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
        raise Difference(
            f"{what}: {len(found)} and {len(wanted)} are right; from {first} on {found[first : first + 4]}, and {wanted[first : first + 4]} is right"
        )


def _first(name, files, whole):
    if name != "manifest.json" or name not in files or name not in whole:
        return f" ({len(files.get(name, b''))} and {len(whole.get(name, b''))} bytes)"
    one, other = json.loads(files[name]), json.loads(whole[name])
    counts = {
        k: (one["counts"][k], other["counts"][k]) for k in other["counts"] if one["counts"].get(k) != other["counts"][k]
    }
    return f": {counts or [key for key in other if one.get(key) != other[key]]}"
