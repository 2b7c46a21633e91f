"""Links in the output folder lead the tool nowhere: nothing outside is removed, written or believed (I8)."""

import json
import os
import shutil

import pytest

import shardmill
from edited import signed
from shardmill import Limits, Spec, Target, prepare, verify
from shardmill.errors import OutputError, ShardmillError
from shardmill.formats.output_files import FileState, OutputFiles
from shardmill.io import storage
from shardmill.io.fileset import LocalFiles
from shardmill.job import mill
from shardmill.record import journal, manifest
from shardmill.results import convert

LIMITS = Limits(engine="reference", workers=1, block_bytes=300, checkpoint_seconds=0, checkpoint_bytes=1)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("one two three\n" * 200)
    return tmp_path / "a.txt"


def spec_of(text, **choices):
    return Spec(**{"inputs": [text], "output": text.parent / "out", "val_fraction": 0.1, "separator": "\\n", **choices})


MDS = {"format": "mds", "sample_tokens": 8, "shard_tokens": 80}


@pytest.fixture
def site(tmp_path):
    """A folder of somebody else's, which out/train leads to."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.json").write_text("site")
    (tmp_path / "site/shard.00000.mds").write_text("shard")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train").symlink_to("../site")
    yield tmp_path / "site"
    assert {path.name: path.read_text() for path in (tmp_path / "site").iterdir()} == {
        "index.json": "site",
        "shard.00000.mds": "shard",
    }


SIDE = {"name": "train/index.json", "split": "train", "kind": "shards", "bytes": 4, "checksums": ["0"]}
JOB = {"choices": {}, "inputs": [], "tokenizer_sha256": None, "vocabulary_size": None}
MADE = {"job": JOB, "dtype": "uint16", "eot": {"id": None, "side": "none"}, "counts": {}, "files": [], "sides": [SIDE]}


def plant(out, what):
    if what == "manifest":
        (out / manifest.NAME).write_bytes(signed(MADE))
        assert manifest.of(LocalFiles(out)).sidecars[0].name == "train/index.json"
        return
    state = {"bytes": 4, "keep": 0, "more": [], "tail": "0"}
    line = {
        "index": 1,
        "position": {},
        "val": False,
        "has_text": False,
        "tokens": 1,
        "ended": 0,
        "counts": {},
        "gone": [],
        "extra": {},
    }
    files = {"train/index.json": state, "train/shard.00000.mds": state}
    lines = [journal._first_line(JOB, True), {"checkpoint": {**line, "files": files, "finished": False}}]
    chain, data = b"", b""
    for content in (*lines, *([{"uploaded": "train/index.json"}] if what == "uploaded" else [])):
        signed_line, chain = journal._signed(content, chain)
        data += signed_line
    (out / journal.NAME).write_bytes(data)
    assert journal.read(out).checkpoint.files.keys() == files.keys()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("choices", [{}, MDS])
@pytest.mark.parametrize("what", ["manifest", "journal", "uploaded"])
def test_overwrite_removes_nothing_behind_a_link(text, tmp_path, what, choices):
    """It emptied a folder elsewhere that out/train led to."""
    plant(tmp_path / "out", what)
    try:
        prepare(spec_of(text, **choices), limits=LIMITS, overwrite=True)
    except OutputError as e:
        assert choices and "out/train" in str(e)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("what", ["manifest", "journal"])
def test_merge_and_convert_with_overwrite_remove_nothing_behind_a_link(text, tmp_path, what):
    prepare(spec_of(text, output=tmp_path / "source"), limits=LIMITS)
    for act in (
        lambda: shardmill.merge([tmp_path / "source"], Target(output=tmp_path / "out", overwrite=True)),
        lambda: shardmill.convert(tmp_path / "source", Target(output=tmp_path / "out", format="mds", overwrite=True)),
    ):
        plant(tmp_path / "out", what)
        try:
            act()
        except OutputError as e:
            assert "out/train" in str(e)


def test_uploaded_files_are_not_removed_behind_a_link(text, tmp_path, site):
    """The journal is that of this very job: what it says was uploaded is removed here, but not elsewhere."""
    (tmp_path / "out/train").unlink()
    stop_after(4, spec_of(text, **MDS))
    out = tmp_path / "out"
    lines = [line.partition(b" ")[2] for line in (out / journal.NAME).read_bytes().splitlines()]
    chain, data = b"", b""
    for content in (*map(json.loads, lines), {"uploaded": "train/shard.00000.mds"}):
        line, chain = journal._signed(content, chain)
        data += line
    (out / journal.NAME).write_bytes(data)
    shutil.rmtree(out / "train")
    (out / "train").symlink_to(site)
    with pytest.raises(OutputError, match=r"shard\.00000\.mds: has 5 bytes, and an earlier run of this job uploaded"):
        prepare(spec_of(text, **MDS), limits=LIMITS)
    name = "train/shard.00000.mds"
    with pytest.raises(OutputError, match=r"out/train: is a symlink"):
        OutputFiles(out, {name: FileState(bytes=5)}, drop_behind=False, uploaded=[name])


def stop_after(blocks, spec):
    place, seen = mill._Output.place, 0

    def stop(self, milled):
        nonlocal seen
        seen += 1
        if seen > blocks:
            raise KeyboardInterrupt
        return place(self, milled)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mill._Output, "place", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(spec, limits=LIMITS)


@pytest.mark.parametrize("target", ["nowhere", "train.bin", "."])
def test_a_link_under_the_name_of_a_result_is_refused_or_replaced_never_followed(text, tmp_path, target):
    """A dangling one ended in a traceback."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train.bin").symlink_to(target)
    with pytest.raises(OutputError, match=r"train\.bin: exists, and shardmill did not write it"):
        prepare(spec_of(text), limits=LIMITS)
    assert prepare(spec_of(text), limits=LIMITS, overwrite=True).manifest.tokens
    assert not (tmp_path / "out/train.bin").is_symlink() and verify(tmp_path / "out").ok
    assert not (tmp_path / "out/nowhere").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "train.bin.partial",
        "shardmill.journal",
        "shardmill.journal.partial",
        "manifest.json.partial",
        "run.json.partial",
        ".shardmill.lock",
        ".shardmill.partial",
    ],
)
def test_a_hard_link_is_not_written_through(text, tmp_path, name, overwrite):
    (tmp_path / "precious").write_bytes(b"")  # empty: as a journal it says nothing, so the job begins
    (tmp_path / "out").mkdir()
    os.link(tmp_path / "precious", tmp_path / "out" / name)
    try:
        prepare(spec_of(text), limits=LIMITS, overwrite=overwrite)
    except ShardmillError as e:
        assert name == ".shardmill.lock" and "hard link" in str(e)
    assert (tmp_path / "precious").read_bytes() == b""


@pytest.mark.parametrize("name", ["train.bin.partial", "shardmill.journal"])
def test_what_would_go_on_in_a_hard_link_is_refused(text, tmp_path, name):
    stop_after(4, spec_of(text))
    os.link(tmp_path / "out" / name, tmp_path / "precious")
    before = (tmp_path / "precious").read_bytes()
    with pytest.raises(OutputError, match="hard link"):
        prepare(spec_of(text), limits=LIMITS)
    assert (tmp_path / "precious").read_bytes() == before
    assert prepare(spec_of(text), limits=LIMITS, overwrite=True).manifest.tokens
    assert (tmp_path / "precious").read_bytes() == before


def test_verify_finds_a_linked_subfolder(text, tmp_path):
    prepare(spec_of(text, **MDS), limits=LIMITS)
    (tmp_path / "out/train").rename(tmp_path / "elsewhere")
    (tmp_path / "out/train").symlink_to("../elsewhere")
    assert "train/index.json" in {problem.file for problem in verify(tmp_path / "out").problems}


@pytest.mark.parametrize("by", ["merge", "convert"])
def test_an_old_result_is_not_removed_where_the_new_one_has_no_room(text, tmp_path, monkeypatch, by):
    """merge --overwrite looked at the space when the old result was gone."""
    prepare(spec_of(text, output=tmp_path / "source"), limits=LIMITS)
    prepare(spec_of(text, seed=7), limits=LIMITS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    target = Target(output=tmp_path / "out", overwrite=True)
    act = getattr(shardmill, by)
    source = [tmp_path / "source"] * 2 if by == "merge" else tmp_path / "source"
    old = sum(len(data) for data in before.values())
    tokens = 2 * shardmill.open(tmp_path / "source").tokens * (2 if by == "merge" else 1)
    monkeypatch.setattr(convert.storage, "free_bytes", lambda _: tokens - old - 1)
    with pytest.raises(OutputError, match="are free on this disk"):
        act(source, target)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    monkeypatch.setattr(storage, "free_bytes", lambda _: tokens - old)
    assert act(source, target).tokens, "what is replaced makes room"
