"""shardmill.open: tokens and documents again, from every format."""

import json
import os

import numpy as np
import pytest
from click.testing import CliRunner

import reference
import shardmill
from edited import rewrite
from shardmill import Limits, Spec, prepare
from shardmill.cli.main import cli
from shardmill.errors import InputError, UsageError
from shardmill.formats import registry
from shardmill.results.inspect import printable, spell, statistics

DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(90)]
LIMITS = Limits(engine="reference", workers=1)


def mill(root, name="out", **choices):
    (root / "a.txt").write_text("##".join(DOCUMENTS))
    spec = Spec(inputs=[root / "a.txt"], output=root / name, separator="##", **choices)
    prepare(spec, limits=LIMITS)
    return shardmill.open(root / name)


@pytest.mark.parametrize("name", registry.FORMATS)
def test_slices_and_documents_of_every_format(tmp_path, name):
    shards = {"shard_tokens": 500} if registry.get(name).sharded else {}
    shards |= {"sample_tokens": 50} if registry.get(name).sample_tokens else {}
    side = registry.get(name).eot_side
    marked = [reference.tokens("r50k_base", [text], eot=50256, side=side) for text in DOCUMENTS]
    stream = [token for ids in marked for token in ids]
    for index in (False, True):
        corpus = mill(tmp_path, f"{name}{index}", format=name, val_fraction=0, index=index, **shards)
        train = corpus["train"]
        assert len(train) == len(stream) == corpus.tokens and train[:].tolist() == stream
        assert train[490:1510].tolist() == stream[490:1510] and train[-1] == stream[-1] and train[7] == stream[7]
        assert len(train[5:5]) == 0 and len(train[len(stream) :]) == 0
        assert [ids.tolist() for ids in train.documents()] == marked
        assert all(train.document(i).tolist() == marked[i] for i in (0, 1, 44, 89, -1, -2, -90))
        for number in (90, -91):
            with pytest.raises(IndexError, match=f"no document {number}"):
                train.document(number)
        text = corpus.decode(train.document(3))
        assert text.replace("<|endoftext|>", "") == DOCUMENTS[3]


def test_a_corpus_is_a_mapping_of_its_splits(tmp_path):
    corpus = mill(tmp_path, val_fraction=0.1)
    assert list(corpus) == list(corpus.keys()) == ["train", "val"] and len(corpus) == 2
    assert "val" in corpus and "test" not in corpus and corpus.get("test") is None
    assert {name: len(split) for name, split in corpus.items()} == {name: len(corpus[name]) for name in corpus}
    assert sum(len(split) for split in corpus.values()) == corpus.tokens
    with pytest.raises(KeyError, match="has no split test; it has train, val"):
        corpus["test"]


def test_positions_outside_the_split_are_refused(tmp_path):
    train = mill(tmp_path, val_fraction=0)["train"]
    size = len(train)
    for start, stop in ((-1, 5), (5, 4), (0, size + 1), (-5, -1)):
        with pytest.raises(IndexError, match=f"of train, which has {size:,}"):
            train.read(start, stop)
    for position in (size, -size - 1):
        with pytest.raises(IndexError):
            train[position]
    assert train[-size] == train[0] and len(train[size + 5 :]) == 0 and len(train.read(size, size)) == 0


def test_reading_keeps_nothing_open(tmp_path):
    corpus = mill(tmp_path, format="shards", shard_tokens=100, val_fraction=0)
    if os.path.isdir("/proc/self/fd"):
        before = len(os.listdir("/proc/self/fd"))
        for i in range(200):
            corpus["train"][i * 7 : i * 7 + 300]
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_is_not_ours_or_not_finished_says_so(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        shardmill.open(tmp_path / "none")
    with pytest.raises(InputError, match=r"shardmill did not make it; .* --from"):
        shardmill.open(tmp_path)
    (tmp_path / "shardmill.journal").write_text("x")
    with pytest.raises(InputError, match="not finished; run its command again"):
        shardmill.open(tmp_path)


def test_documents_without_an_index_or_marks_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("One text.")
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0), limits=LIMITS)
    corpus = shardmill.open(tmp_path / "out")
    with pytest.raises(UsageError, match="Prepare it again with --index"):
        list(corpus["train"].documents())
    with pytest.raises(KeyError, match="has no split val"):
        corpus["val"]
    with pytest.raises(ValueError, match="without a step"):
        corpus["train"][::2]
    assert statistics(corpus["train"]).lengths is None


def test_integers_that_cannot_hold_the_vocabulary_are_refused(tmp_path):
    folder = mill(tmp_path, val_fraction=0).folder
    rewrite(folder, lambda content: content["job"].update(vocabulary_size=100_277))
    with pytest.raises(InputError, match="says uint16, which ends at 65,535, and a vocabulary of 100,277"):
        shardmill.open(folder)


def test_statistics_are_exact(tmp_path):
    corpus = mill(tmp_path, val_fraction=0, index=True)
    sizes = [len(reference.encode("r50k_base", text)) + 1 for text in DOCUMENTS]
    found = statistics(corpus["train"])
    assert found.lengths is not None
    assert (found.lengths.documents, found.lengths.shortest, found.lengths.longest) == (90, min(sizes), max(sizes))
    assert sum(count for _, count in found.lengths.histogram) == 90
    tokens = corpus["train"][:]
    assert found.frequent[0][1] == np.bincount(tokens).max() and found.counted_tokens == len(tokens)


def test_text_cannot_command_the_terminal(tmp_path):
    (tmp_path / "a.txt").write_text("red \x1b[31m and a bell \x07, 漢字 🎉\n")
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0), limits=LIMITS)
    corpus = shardmill.open(tmp_path / "out")
    shown = "".join(spell(corpus, corpus["train"][:].tolist()))
    assert shown == "red \\x1b[31m and a bell \\x07, 漢字 🎉\n" and printable("\x9b") == "\\x9b"


def test_inspect_tells_all_of_it_as_json_and_for_people(tmp_path):
    corpus = mill(tmp_path, format="megatron", val_fraction=0)
    done = CliRunner().invoke(cli, ["inspect", str(corpus.folder), "--json"])
    content = json.loads(done.stdout)
    assert done.exit_code == 0 and content["splits"][0]["lengths"]["documents"] == 90
    assert content["manifest"]["job"]["choices"]["format"] == "megatron" and content["bytes_per_token"] > 1
    shown = CliRunner().invoke(cli, ["inspect", str(corpus.folder)]).stdout
    assert DOCUMENTS[0].strip() in shown and "90 documents" in shown and "\x1b" not in shown


def test_inspect_shows_numbers_where_the_tokenizer_is_not_known(tmp_path):
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "train.bin").write_bytes(np.arange(10, dtype="<u2").tobytes())
    arguments = ["convert", str(tmp_path / "others"), "--from", "nanogpt", "--from-dtype", "uint16", "--to", "shards"]
    done = CliRunner().invoke(cli, [*arguments, "--shard-tokens", "4", "-o", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "0 1 2 3 4 5 6 7 8 9" in CliRunner().invoke(cli, ["inspect", str(tmp_path / "new")]).stdout
