"""Manifests that are damaged, or that a stranger wrote with a checksum that is right: refused in words, or of no consequence."""

import copy
import json
import shutil
import time

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import shardmill
from edited import rewrite, signed
from mutations import mutated
from shardmill import Limits, Spec, Target, prepare, verify
from shardmill.cli.main import cli
from shardmill.errors import OutputError, ShardmillError, UsageError
from shardmill.io.fileset import LocalFiles
from shardmill.record import manifest
from shardmill.tokens import tokenizer

LIMITS = Limits(engine="reference", workers=1)
FORMATS = {
    "nanogpt": {},
    "llmc": {"split": "hash", "shard_tokens": 30},
    "mds": {"sample_tokens": 8, "shard_tokens": 32},
}


def spec_of(folder, format="nanogpt"):
    return Spec(
        inputs=[folder / "a.txt"],
        output=folder / format,
        separator="##",
        val_fraction=0.2,
        format=format,
        index=True,
        provenance=True,
        **FORMATS[format],
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifests")
    (folder / "a.txt").write_text("##".join(f"Text number {i} of the miller." for i in range(30)))
    for format in FORMATS:
        prepare(spec_of(folder, format), limits=LIMITS)
    return folder


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_found(made, tmp_path):
    """M8: in the format number, the checksum, names, numbers and white space alike; and none ends in a traceback."""
    prepare(Spec(inputs=[made / "a.txt"], output=tmp_path, val_fraction=0), limits=LIMITS)
    path = tmp_path / manifest.NAME
    data = path.read_bytes()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        problems = verify(tmp_path).problems
        assert len(problems) == 1 and problems[0].file == manifest.NAME, (place, problems)
    path.write_bytes(data)
    assert verify(tmp_path).ok


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"id": 50256', b'"id": 50252'),
        lambda data: json.dumps(json.loads(data)).encode(),
        lambda data: data + b" ",
        lambda data: data.replace(b'"format": 4', b'"format": 3, "format": 3'),
        lambda data: data.replace(b'"vocabulary_size": 50257', b'"vocabulary_size": 50258'),
    ],
)
def test_every_reader_refuses_an_edited_manifest(made, tmp_path, damage):
    """M8: a changed end-of-text id made convert write one document."""
    out = tmp_path / "nanogpt"
    shutil.copytree(made / "nanogpt", out)
    data = (out / manifest.NAME).read_bytes()
    assert damage(data) != data
    (out / manifest.NAME).write_bytes(damage(data))
    spec = Spec(inputs=[made / "a.txt"], output=out)
    for read in (
        lambda: shardmill.open(out),
        lambda: shardmill.convert(out, Target(output=tmp_path / "new", format="megatron")),
        lambda: shardmill.merge([out], Target(output=tmp_path / "new")),
        lambda: prepare(spec, limits=LIMITS),
    ):
        with pytest.raises(OutputError, match="checksum does not match its content"):
            read()
    assert "checksum" in verify(out).problems[0].what and not (tmp_path / "new").exists()


def outcome(act):
    """What came of it; any exception but ours fails the test, and so does one that can command a terminal, or a long wait."""
    started = time.monotonic()
    try:
        act()
        said = ""
    except ShardmillError as e:
        said = str(e)
    assert "\x1b" not in said and "this is a bug" not in said
    assert time.monotonic() - started < 20
    return said


def inspect(folder):
    done = CliRunner().invoke(cli, ["inspect", str(folder)])
    assert "\x1b" not in done.output
    if done.exception is not None:
        raise done.exception


@settings(max_examples=60)
@given(data=st.data(), format=st.sampled_from(list(FORMATS)))
def test_a_strangers_manifest_is_refused_in_words_or_of_no_consequence(made, tmp_path_factory, data, format):
    out = made / format
    path = out / manifest.NAME
    right = path.read_bytes()
    content = data.draw(mutated(json.loads(right)))
    try:
        path.write_bytes(signed(content) if isinstance(content, dict) else json.dumps(content).encode())
        read = outcome(lambda: manifest.of(LocalFiles(out)))
        outcome(lambda: shardmill.open(out).sources)
        outcome(lambda: verify(out))
        outcome(lambda: prepare(spec_of(made, format), limits=LIMITS))
        if not read:
            outcome(lambda: inspect(out))
            new = tmp_path_factory.mktemp("new")
            for to in ("megatron", "olmo"):
                target = Target(output=new / to, format=to, shard_tokens=20 if to == "olmo" else None)
                outcome(lambda: shardmill.convert(out, target))  # noqa: B023
    finally:
        path.write_bytes(right)
    assert {path.name for path in made.iterdir()} == {"a.txt", *FORMATS}, "nothing outside"


@pytest.mark.parametrize("depth", [20, 1000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_deep_nesting_is_refused_in_words(tmp_path, depth, brackets):
    open_, close = brackets[:-1], brackets[-1]
    (tmp_path / manifest.NAME).write_text('{"format": 1, "job": ' + open_ * depth + "1" + close * depth + "}")
    with pytest.raises(OutputError, match="not a manifest"):
        manifest.of(LocalFiles(tmp_path))


@pytest.fixture
def out(made, tmp_path):
    shutil.copytree(made / "nanogpt", tmp_path / "out")
    return tmp_path / "out"


def test_no_other_tokenizer_that_a_manifest_names_is_loaded(out, monkeypatch, gpt2_json):
    """A hub id was asked for on the network, a file of 8 GiB read whole; now its content must be that of the manifest."""
    loaded = []
    for door in ("_load_json", "_download"):
        monkeypatch.setattr(tokenizer, door, lambda *given: loaded.append(given))
    for name in ("someone/model", str(gpt2_json), "/dev/zero", "../tokenizer.json"):
        rewrite(out, lambda content: content["job"]["choices"].update(tokenizer=name))  # noqa: B023
        found = shardmill.open(out)
        with pytest.raises(UsageError, match=r"--tokenizer \(in Python: tokenizer="):
            found.decode([1])
        done = CliRunner().invoke(cli, ["inspect", str(out)])
        assert done.exit_code == 0 and "30 documents" in done.output and "--tokenizer" in done.output
        assert CliRunner().invoke(cli, ["inspect", str(out), "--json"]).exit_code == 0
    assert loaded == []


def test_the_recorded_tokenizer_decodes_if_it_is_still_on_this_disk(out, gpt2_json):
    digest = tokenizer.load(str(gpt2_json)).digest
    rewrite(out, lambda content: content["job"].update(tokenizer_sha256=digest))
    rewrite(out, lambda content: content["job"]["choices"].update(tokenizer=str(gpt2_json)))
    done = CliRunner().invoke(cli, ["inspect", str(out)])
    assert done.exit_code == 0 and "of the miller." in done.output


def test_the_tokenizer_that_the_user_gives_decodes_if_it_is_the_right_one(out, gpt2_json):
    wrong = CliRunner().invoke(cli, ["inspect", str(out), "--tokenizer", str(gpt2_json)])
    assert isinstance(wrong.exception, UsageError) and "is not the one that made" in str(wrong.exception)
    digest = tokenizer.load(str(gpt2_json)).digest
    rewrite(out, lambda content: content["job"].update(tokenizer_sha256=digest))
    rewrite(out, lambda content: content["job"]["choices"].update(tokenizer="someone/model"))
    found = shardmill.open(out, tokenizer=str(gpt2_json))
    assert "miller" in found.decode(found["train"][:20])
    right = CliRunner().invoke(cli, ["inspect", str(out), "--tokenizer", str(gpt2_json)])
    assert right.exit_code == 0 and "of the miller." in right.output


def test_tokens_that_no_tokenizer_knows_are_shown_as_numbers(out):
    import numpy as np

    ids = np.full(1000, 60000, "<u2")
    ids.tofile(out / "train.bin")
    rewrite(out, lambda content: content["files"][0].update(tokens=1000, bytes=2000))
    rewrite(out, lambda content: content.update(sides=[]))
    done = CliRunner().invoke(cli, ["inspect", str(out)])
    assert done.exit_code == 0 and "60000 60000" in done.output


def test_ids_of_four_billion_are_counted_in_little_memory(out):
    import numpy as np

    from shardmill.results.inspect import statistics

    np.full(1000, 2**32 - 1, "<u4").tofile(out / "train.bin")

    def change(content):
        content["files"] = [file for file in content["files"] if file["split"] == "train"]
        content["files"][0].update(tokens=1000, bytes=4000)
        content.update(sides=[], dtype="uint32")

    rewrite(out, change)
    assert statistics(shardmill.open(out)["train"]).frequent == ()


def test_the_mutations_change_what_they_are_given():
    """Else the tests above could not fail."""
    content = {"a": [1, {"b": 2}], "c": "d"}
    seen = []

    @settings(max_examples=50)
    @given(mutated(content))
    def collect(found):
        seen.append(copy.deepcopy(found))

    collect()
    assert sum(found != content for found in seen) > 40
