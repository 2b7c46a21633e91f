"""Defaults that work, and outputs that the trainer can use, or a note before the work that says why not."""

import json
import lzma
from unittest.mock import patch

import numpy as np
import pytest

import reference
import shardmill
from shardmill import Limits, Spec, Target
from shardmill.errors import InputError, UsageError
from shardmill.job import budget
from shardmill.job.notes import gist
from shardmill.system import machine
from shardmill.system.machine import MIB

SENTENCE = "The mill turns slowly, and what it grinds is fine; nobody in town remembers who built it.\n"


def started(tmp_path, **choices):
    """What on_start was told, and the result."""
    told = []
    spec = Spec(**{"output": str(tmp_path / "data"), **choices})
    result = shardmill.prepare(spec, limits=Limits(workers=1), on_start=told.append)
    assert len(told) == 1
    return told[0], result


def write_text(tmp_path, tokens_about):
    path = tmp_path / "a.txt"
    path.write_text(SENTENCE * (tokens_about // 20))
    return str(path)


def write_records(tmp_path, count, text=SENTENCE):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i in range(count)))
    return str(path)


def mentions(notes, *parts):
    return any(all(part in note for part in parts) for note in notes)


def sizes(result, split):
    return [file.tokens for file in result.manifest.files if file.split == split]


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "o200k_base"])
@pytest.mark.parametrize("memory", [700 << 20, 1 << 30, 64 << 30])
@pytest.mark.parametrize("workers", [1, 64])
def test_a_default_never_refuses_itself(tmp_path, tokenizer, memory, workers):
    spec = Spec(inputs=[write_text(tmp_path, 2000)], output=str(tmp_path / "data"), tokenizer=tokenizer)
    with patch.object(machine, "memory", lambda: memory), patch.object(machine, "rss", lambda: 230 << 20):
        found = shardmill.estimate(spec, limits=Limits(workers=workers, engine="reference"))
    assert found.workers == workers or mentions(
        found.notes, f"only {found.workers} of {workers} workers", "--max-memory"
    )
    assert memory < 2 << 30 or found.workers == workers


def test_the_memory_that_the_note_names_is_enough_for_all_workers():
    footprint = budget.Footprint(base=165 * MIB, reference=36 * MIB, max_run=512 << 10)
    note = budget.fit(400 * MIB, 8, MIB, footprint).note
    enough = int(note.rsplit("--max-memory ", 1)[1].removesuffix("MiB"))
    assert budget.fit(enough * MIB, 8, MIB, footprint).workers == 8
    assert budget.fit((enough - 6) * MIB, 8, MIB, footprint).workers < 8


def test_a_shard_is_compared_with_the_text_not_with_its_compressed_size(tmp_path):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress((SENTENCE * 20_000).encode()))
    spec = {"inputs": [str(tmp_path / "a.txt.xz")], "format": "build-nanogpt"}
    _, result = started(tmp_path, **spec, shard_tokens=100_000)
    assert sizes(result, "val") == [100_000] and len(sizes(result, "train")) >= 2
    with pytest.raises(UsageError, match=r"nothing would be left to train on.*--val-tokens"):
        shardmill.prepare(Spec(**spec, output=str(tmp_path / "other")))


def test_modded_nanogpt_keeps_two_train_shards(tmp_path):
    _, result = started(
        tmp_path, inputs=[write_records(tmp_path, 22_000)], format="modded-nanogpt", shard_tokens=200_000
    )
    assert len(sizes(result, "train")) >= 2
    assert not mentions(result.notes, "train shard")


def test_one_train_shard_is_told_before_the_work(tmp_path):
    start, _ = started(
        tmp_path,
        inputs=[write_records(tmp_path, 4000)],
        format="modded-nanogpt",
        shard_tokens=200_000,
        val_tokens=1000,
    )
    assert mentions(start.notes, "one train shard", "--shard-tokens")


def test_a_validation_set_of_most_of_the_text_is_told_before_the_work(tmp_path):
    path = write_text(tmp_path, 126_000)
    start, result = started(tmp_path, inputs=[path], format="build-nanogpt", shard_tokens=100_000)
    assert mentions(start.notes, "100,000 tokens, is the validation set", "%", "--val-tokens", "--shard-tokens")
    assert sizes(result, "val") == [100_000]


def test_val_tokens_is_the_length_of_the_first_shard(tmp_path):
    path = write_text(tmp_path, 126_000)
    _, result = started(
        tmp_path, inputs=[path], format="build-nanogpt", shard_tokens=50_000, val_tokens=5000, eot="none"
    )
    assert sizes(result, "val") == [5000] and sizes(result, "train")[0] == 50_000
    tokens = reference.encode("r50k_base", (tmp_path / "a.txt").read_text())
    corpus = shardmill.open(tmp_path / "data")
    assert np.array_equal(corpus["val"][:], tokens[:5000]) and np.array_equal(corpus["train"][:], tokens[5000:])
    assert shardmill.verify(tmp_path / "data", sources=[path]).ok


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"val_tokens": 10}, "--val-tokens: is the length of a first shard"),
        ({"val_tokens": 10, "format": "llmc", "split": "hash"}, "pass --val-fraction instead"),
        ({"val_tokens": 2000, "format": "llmc", "shard_tokens": 1000}, "a shard has at most 1,000 tokens"),
        ({"split": "nanogpt", "separator": "x"}, "cuts one text in two"),
        ({"val_tokens": 0, "format": "llmc"}, "--val-tokens 0: is less than 1"),
        ({"val_fraction": 1.5}, "--val-fraction 1.5: is outside"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, choices, why):
    with pytest.raises(UsageError, match=why):
        shardmill.prepare(Spec(inputs=[write_text(tmp_path, 5000)], output=str(tmp_path / "data"), **choices))


def test_more_files_than_a_folder_should_have_are_refused_before_the_work(tmp_path):
    path, data = write_text(tmp_path, 126_000), tmp_path / "data"
    with pytest.raises(UsageError, match=r"--shard-tokens 1: makes 1\d\d,\d{3} files.*pass at least 2"):
        shardmill.prepare(Spec(inputs=[path], output=data, format="shards", shard_tokens=1))
    assert not data.exists()
    shardmill.prepare(Spec(inputs=[path], output=data))
    with pytest.raises(UsageError, match=r"--shard-tokens 1: makes 1\d\d,\d{3} files"):
        shardmill.convert(data, Target(output=tmp_path / "new", format="shards", shard_tokens=1))


def test_a_tiny_validation_set_is_told(tmp_path):
    path = write_records(tmp_path, 300, "short")
    start, result = started(tmp_path, inputs=[path], val_fraction=0.01)
    assert mentions(start.notes, "val has about", "nanoGPT", "block_size", "--val-fraction")
    assert mentions(result.notes, "val has", "1,025 at a time", "block_size + 1")


def both_told(tmp_path, **choices):
    """The notes of prepare before its work, and of estimate, which must be the same."""
    start, result = started(tmp_path, **choices)
    spec = Spec(**{"output": str(tmp_path / "dry"), **choices})
    found = shardmill.estimate(spec, limits=Limits(workers=1))
    assert [gist(note) for note in found.notes] == [gist(note) for note in start.notes]
    return start.notes, result


@pytest.mark.parametrize(
    ("choices", "parts"),
    [
        ({"format": "build-nanogpt", "shard_tokens": 2000}, ["each shard of train has about 2,000 tokens", "65,537"]),
        ({"format": "llmc", "shard_tokens": 30_000, "val_tokens": 100}, ["val has about 100 tokens", "--val-tokens"]),
        (
            {"format": "mds", "shard_tokens": 10_000, "sample_tokens": 1024, "val_fraction": 0},
            ["10,240 tokens instead"],
        ),
        ({"format": "mds", "sample_tokens": 30_000, "val_fraction": 0.01}, ["val has about", "one sample of 30,000"]),
        ({"format": "shards", "shard_tokens": 60_000, "split": "hash"}, []),
    ],
)
def test_what_options_decide_is_told_before_the_work(tmp_path, choices, parts):
    notes, _ = both_told(tmp_path, inputs=[write_text(tmp_path, 126_000)], **choices)
    assert mentions(notes, *parts) if parts else not notes


@pytest.mark.parametrize("limit", [{"limit_documents": 100}, {"limit_tokens": 2000}])
def test_a_limit_that_leaves_no_validation_set_is_told_before_the_work(tmp_path, limit):
    notes, result = both_told(tmp_path, inputs=[write_records(tmp_path, 4000)], **limit)
    assert mentions(notes, "may be no validation set", "one in 2,000", "--val-fraction, such as 0.1")
    assert not sizes(result, "val")
    notes, result = both_told(
        tmp_path, inputs=[str(tmp_path / "a.jsonl")], output=str(tmp_path / "b"), val_fraction=0.1, **limit
    )
    assert not mentions(notes, "no validation set") and sizes(result, "val")


def test_a_limit_in_running_text_is_told_by_passages(tmp_path):
    notes, _ = both_told(tmp_path, inputs=[write_text(tmp_path, 800_000)], limit_tokens=50_000)
    assert mentions(notes, "passages", "may be no validation set", "--val-fraction")


def test_a_limit_before_the_tail_is_told(tmp_path):
    notes, result = both_told(
        tmp_path, inputs=[write_text(tmp_path, 100_000)], limit_tokens=5000, split="tail", val_fraction=0.1
    )
    assert mentions(notes, "--split tail", "a limit stops before it") and not sizes(result, "val")


def test_what_a_damaged_record_stops_has_no_note_on_its_size(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"texts": "no text here"}\n')
    told = []
    with pytest.raises(InputError, match="text"):
        shardmill.prepare(Spec(inputs=[tmp_path / "a.jsonl"], output=tmp_path / "data"), on_start=told.append)
    assert told[0].notes == ()


def test_the_validation_set_that_is_suggested_suits_the_trainer(tmp_path):
    with pytest.raises(UsageError, match=r"nothing would be left to train on.*\(say 4,097\)"):
        shardmill.prepare(Spec(inputs=[write_text(tmp_path, 50_000)], output=str(tmp_path / "data"), format="llmc"))


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"where": ["n == 7"]}, "3 filtered out by --where.*check the names of its fields"),
        ({"sample": 1e-9}, "3 not in the --sample.*larger --sample"),
    ],
)
def test_a_job_that_writes_nothing_is_refused_and_leaves_nothing(tmp_path, choices, why):
    path = write_records(tmp_path, 3)
    with pytest.raises(InputError, match=why):
        started(tmp_path, inputs=[path], **choices)
    assert not (tmp_path / "data").exists()
    assert started(tmp_path, inputs=[path])[1].manifest.tokens


def test_an_input_that_is_named_twice_is_told(tmp_path):
    path = write_text(tmp_path, 9000)
    notes, result = both_told(tmp_path, inputs=[path, path, str(tmp_path / "*.txt")])
    assert mentions(notes, "named more than once, and read once", "a.txt and 1 more")
    assert len(result.manifest.job["inputs"]) == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt.xz"])
def test_nanogpts_split_is_for_one_plain_text(tmp_path, name):
    write_records(tmp_path, 3)
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(SENTENCE.encode()))
    with pytest.raises(UsageError, match="--split nanogpt: cuts one text by its characters"):
        shardmill.prepare(Spec(inputs=[tmp_path / name], output=tmp_path / "data", split="nanogpt"))


def test_a_last_shard_below_a_batch_is_told(tmp_path):
    _, result = started(tmp_path, inputs=[write_text(tmp_path, 126_000)], format="build-nanogpt", shard_tokens=100_000)
    assert mentions(result.notes, "train has", "65,537 at a time", "B × T + 1", "--shard-tokens")


def test_uint32_for_nanogpt_is_told_before_the_work(tmp_path):
    start, _ = started(tmp_path, inputs=[write_text(tmp_path, 9000)], tokenizer="cl100k_base")
    assert mentions(start.notes, "uint32", "get_batch")


def test_shards_are_rounded_to_whole_samples_and_it_is_told(tmp_path):
    path = write_text(tmp_path, 30_000)
    start, result = started(
        tmp_path, inputs=[path], format="mds", shard_tokens=10_000, sample_tokens=1024, val_fraction=0
    )
    assert mentions(start.notes, "10,240 tokens instead of 10,000", "--sample-tokens")
    assert sizes(result, "train")[0] == 10_240
    assert len(shardmill.open(tmp_path / "data")["train"]) == len(
        reference.encode("r50k_base", (tmp_path / "a.txt").read_text())
    )


def test_nanogpts_own_split_of_shakespeare_is_one_option_away(tmp_path):
    path = "samples/tinyshakespeare.txt"
    _, result = started(tmp_path, inputs=[path], split="nanogpt")
    assert sizes(result, "train") == [301_966] and sizes(result, "val") == [36_059]
    assert shardmill.verify(tmp_path / "data", sources=[path]).ok


@pytest.mark.parametrize("fraction", [0.1, 0.25])
def test_the_characters_are_cut_as_nanogpt_cuts_them(tmp_path, fraction):
    text = ("Grüße 中文字符 “mill” 🙂🙂 " + SENTENCE) * 997
    (tmp_path / "a.txt").write_text(text)
    with patch("shardmill.job.first_pass._WINDOW", 1000):
        started(tmp_path, inputs=[str(tmp_path / "a.txt")], split="nanogpt", val_fraction=fraction)
    cut = int(len(text) * (1 - fraction))
    corpus = shardmill.open(tmp_path / "data")
    assert np.array_equal(corpus["train"][:], reference.encode("r50k_base", text[:cut]))
    assert np.array_equal(corpus["val"][:], reference.encode("r50k_base", text[cut:]))


def test_every_format_names_the_line_that_loads_it(tmp_path):
    from shardmill.cli.console import load_line
    from shardmill.formats.registry import FORMATS

    path = write_text(tmp_path, 60_000)
    for name, found in FORMATS.items():
        choices = {"shard_tokens": 20_490} if found.sharded else {}
        spec = Spec(inputs=[path], output=str(tmp_path / name), format=name, **choices)
        line = load_line(tmp_path / name, shardmill.prepare(spec, limits=Limits(workers=1)).manifest)
        assert str(tmp_path / name) in line and "{" not in line
    assert "--train-data-path" in FORMATS["megatron"].load
