"""The faces for PyTorch: the same rows through every loader, and exact resume. `make faces` runs these."""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

import shardmill  # noqa: E402
from feeding import firsts, milled, positions, texts_of  # noqa: E402
from shardmill import Documents, Source, UsageError, Windows, pack  # noqa: E402
from shardmill.torch import Batches, Dataset, Loader, nanochat_loader  # noqa: E402


@pytest.fixture
def rows(tmp_path):
    return Windows(positions(tmp_path / "data", 4001, shards=3), length=10, seed=1)


def take(loader, count):
    found = []
    for batch in loader:
        found.append(batch["input_ids"][:, 0].tolist())
        if len(found) == count:
            return found
    return found


def expected(rows, batch, count, first=0):
    return [firsts(rows.batch(range(first + i * batch, first + (i + 1) * batch))) for i in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_gives_the_rows_in_order_with_any_workers(rows, workers):
    loader = DataLoader(Dataset(rows), batch_size=8, num_workers=workers, shuffle=False)
    assert take(loader, 50) == expected(rows, 8, 50) and len(Dataset(rows)) == 400
    batch = next(iter(loader))
    assert batch["labels"].dtype == torch.int64 and (batch["labels"] == batch["input_ids"] + 1).all()


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_are_the_same_with_any_workers(rows, workers):
    loader = DataLoader(Batches(rows, 8), batch_size=None, num_workers=workers)
    assert take(loader, 60) == expected(rows, 8, 60), "without end: 400 rows are 50 batches"


def test_the_loader_reads_ahead_and_its_state_is_what_was_handed_out(rows):
    loader = Loader(rows, 8)
    assert take(loader, 5) == expected(rows, 8, 5)
    state = loader.state_dict()
    assert state["sample"] == 40
    for batch, ranks in ((8, 1), (12, 3), (5, 5)):
        shares = []
        for rank in range(ranks):
            again = Loader(rows, batch, rank=rank, ranks=ranks)
            again.load_state_dict(state)
            shares.append(take(again, 4))
        joined = [[first for share in shares for first in share[i]] for i in range(4)]
        assert joined == expected(rows, batch, 4, first=40)
    with pytest.raises(UsageError, match="cannot be divided among 3 ranks"):
        Loader(rows, 8, rank=0, ranks=3)
    with pytest.raises(UsageError, match="pass both rank and ranks"):
        Loader(rows, 8, rank=0)
    other = Loader(Windows(rows._rows[0].opened.source, length=10, seed=2), 8)
    with pytest.raises(UsageError, match="seed: was 1, is now 2"):
        other.load_state_dict(state)


def test_an_error_while_reading_ahead_is_raised_where_the_batch_is_used(tmp_path):
    source = positions(tmp_path, 101)
    loader = iter(Loader(Windows(source, length=10, seed=None, vocabulary_size=96), 4, ahead=1))
    assert next(loader)["input_ids"].max() < 96 and next(loader) is not None
    with pytest.raises(shardmill.InputError, match="vocabulary ends at 95"):
        next(loader)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes(rows, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader = stateful(Batches(rows, 8), batch_size=None, num_workers=workers)
    assert take(loader, 7) == expected(rows, 8, 7)
    again = stateful(Batches(rows, 8), batch_size=None, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    assert take(again, 6) == expected(rows, 8, 6, first=56)


def test_documents_reach_the_batch(tmp_path):
    out = milled(tmp_path, texts_of(random.Random(1), 60), index=True)
    batch = next(iter(Loader(Windows(out, length=32, documents=Documents(most=8)), 4)))
    assert batch["cu_seqlens"].dtype == torch.int32 and len(batch["cu_seqlens"]) == 4 * 8 + 1
    assert batch["document_ids"].shape == batch["position_ids"].shape == (4, 32)
    few = next(iter(DataLoader(Dataset(Windows(out, length=32, documents=True)), batch_size=4)))
    assert few["document_ids"].shape == (4, 32)


def test_the_loader_of_nanochat_can_be_replaced(tmp_path):
    """nanochat calls it with tokenizer, B, T, split, and goes over inputs, targets, state."""
    out = Path(milled(tmp_path, texts_of(random.Random(1), 300), eot="before", index=True))
    pack(out, length=64, long="crop")
    for plans in (None, {"train": str(out / "train-64.plan")}):
        loader = nanochat_loader(out, plans=plans)
        batches = loader(None, 4, 64, "train", device="cpu")
        seen = [next(batches) for _ in range(5)]
        inputs, targets, state = seen[2]
        assert inputs.shape == targets.shape == (4, 64) and inputs.dtype == torch.int64
        assert (inputs[:, 0] == 50256).float().mean() >= 0.75, "rows begin with a document"
        assert targets.min() >= -1 and (targets[:, :-1] == inputs[:, 1:])[targets[:, :-1] >= 0].all()
        assert (state["epoch"], state["rg_idx"]) == (1, 8) and state["pq_idx"] == 0, "base_train.py prints them"
        saved = json.loads(json.dumps(state))  # as its checkpoints have it, while this batch is yet to be trained on
        resumed = loader(None, 4, 64, "train", tokenizer_threads=4, device="cpu", resume_state_dict=saved)
        assert all((next(resumed)[0] == seen[i][0]).all() for i in (2, 3, 4))


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
TRAINER = Path(__file__).parents[2] / "examples/train_gpt.py"


def command(*options, ranks=1):
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"] if ranks > 1 else []
    return [sys.executable, *launch, str(TRAINER), *options, "--size", "tiny", "--length", "32", "--batch", "12"]


def run(folder, *options, ranks=1):
    done = subprocess.run(
        command("data", *options, ranks=ranks), cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def seen(folder, name):
    """Sample → checksum; of a step that was repeated after a kill, both times the same."""
    found = {}
    for path in folder.glob(f"{name}.[0-9]"):
        for line in path.read_text().splitlines():
            sample, digest = line.strip("[]").split(", ")
            assert found.setdefault(int(sample), digest) == digest
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    sample = Path(__file__).parents[2] / "samples/tinyshakespeare.txt"
    (folder / "book.txt").write_text(sample.read_text()[:300_000])
    made = tokenizers.Tokenizer(models.BPE())  # a small vocabulary, so that a CPU learns in seconds
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=384, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    made.train_from_iterator([sample.read_text()[:50_000]], trainer)
    made.save(str(folder / "tokenizer.json"))
    spec = shardmill.Spec(
        inputs=[folder / "book.txt"], output=folder / "data", tokenizer=str(folder / "tokenizer.json")
    )
    shardmill.prepare(spec, limits=shardmill.Limits(engine="reference"))
    out = run(folder, "--steps", "60", "--every", "20", "--rate", "3e-3", "--rows", "whole")
    (folder / "whole.txt").write_text(out)
    return folder


def test_the_trainer_learns_and_says_how_fast_and_how_well(folder):
    out = (folder / "whole.txt").read_text()
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < losses[1] < losses[0] - 0.2
    bits = float(re.search(r"([\d.]+) bits per byte", out)[1])
    assert 1 < bits < 5 and re.search(r"tokens/s on 1 × cpu", out) and re.search(r"device waited [\d.]+%", out)


def test_a_trainer_that_is_killed_goes_on_with_other_ranks_and_sees_the_same_rows(folder):
    """Killed after step 25, resumed by two ranks from an earlier checkpoint."""
    options = ["--checkpoint", "run.pt", "--every", "10", "--rate", "3e-3", "--rows", "resumed"]
    killed = subprocess.Popen(
        command("data", *options, "--steps", "100000"), cwd=folder, env=ONE_THREAD, stdout=subprocess.DEVNULL
    )
    rows = folder / "resumed.0"
    while not (rows.exists() and len(rows.read_bytes().splitlines()) > 25 * 12):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    text = rows.read_text()
    rows.write_text(text[: text.rindex("\n") + 1])  # the kill may have cut the last line
    assert torch.load(folder / "run.pt")["data"]["sample"] % (10 * 12) == 0
    run(folder, *options, "--steps", "60", ranks=2)
    found, whole = seen(folder, "resumed"), seen(folder, "whole")
    assert {sample: found[sample] for sample in whole} == whole and len(whole) == 60 * 12


def lines_for(name):
    """The lines that docs/training.md gives for a trainer."""
    page = (Path(__file__).parents[2] / "docs/training.md").read_text()
    return re.search(rf"<!-- {name}:start -->\n```python\n(.*?)```", page, re.DOTALL)[1]


def test_lines_that_nanogpt_needs_give_its_batches(tmp_path):
    out = milled(tmp_path, texts_of(random.Random(1), 300))
    scope = {"data_dir": str(out), "block_size": 32, "batch_size": 4, "device": "cpu", "ddp_world_size": 1}
    exec(lines_for("nanogpt"), scope)
    x, y = scope["get_batch"]("train")
    again, _ = scope["get_batch"]("train")
    assert x.shape == y.shape == (4, 32) and (x[:, 1:] == y[:, :-1]).all() and (x != again).any()
    ids = np.fromfile(Path(out) / "train.bin", "<u2")
    assert any((ids[i : i + 32] == x[0].numpy()).all() for i in range(0, len(ids) - 32, 32))
    with pytest.raises(shardmill.InputError, match="has no split val"):
        scope["get_batch"]("val")


def test_lines_that_build_nanogpt_needs_take_the_place_of_its_loader(tmp_path, monkeypatch):
    """It makes one for each split, asks for batches, resets that of val, and reads B and T."""
    out = Path(milled(tmp_path, texts_of(random.Random(1), 300), format="build-nanogpt", split="hash"))
    monkeypatch.chdir(tmp_path)
    out.rename(tmp_path / "edu_fineweb10B")
    scope = {}
    exec(lines_for("build-nanogpt"), scope)
    loaders = [scope["DataLoaderLite"](B=4, T=32, process_rank=rank, num_processes=2, split="train") for rank in (0, 1)]
    first = [loader.next_batch() for loader in loaders]
    assert all(x.shape == y.shape == (4, 32) and (x[:, 1:] == y[:, :-1]).all() for x, y in first)
    assert (first[0][0] != first[1][0]).any() and loaders[0].B * loaders[0].T == 128
    loaders[0].next_batch()
    loaders[0].reset()
    assert (loaders[0].next_batch()[0] == first[0][0]).all()


def test_a_plan_is_read_by_the_source(tmp_path):
    out = Path(milled(tmp_path, texts_of(random.Random(1), 200), index=True))
    pack(out, length=64)
    loader = Loader(Windows(Source(path=out, plan=out / "train-64.plan"), length=64, documents=True), 4)
    assert (next(iter(loader))["labels"] == -100).any()
