"""verify finds what is wrong, says where, and finds nothing where nothing is."""

import functools
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import command
import shardmill
from edited import rewrite
from samples import ENGLISH, SAMPLES
from shardmill import Limits, Spec, prepare, verify
from shardmill.errors import OutputError, UsageError
from shardmill.formats import output_files, registry
from shardmill.io.fileset import LocalFiles
from shardmill.record import manifest

LIMITS = Limits(workers=2, block_bytes=4000)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    (folder / "a.txt").write_text("##".join(list(SAMPLES.values()) * 3))
    (folder / "b.txt").write_text("A second file.##")
    spec = Spec(inputs=[folder / "a.txt", folder / "b.txt"], output=folder / "out", separator="##", val_fraction=0.1)
    prepare(spec, limits=LIMITS)
    return folder


@pytest.fixture
def out(made, tmp_path):
    shutil.copytree(made / "out", tmp_path / "out")
    return tmp_path / "out"


def sources(made):
    return [str(made / "a.txt"), str(made / "b.txt")]


def test_a_good_folder_is_good(made):
    found = verify(made / "out")
    assert found.ok and found.files == 3 and found.tokens > 1000 and found.source_bytes is None


@pytest.mark.parametrize("how", ["sample", "all"])
def test_a_good_folder_is_what_its_sources_give(made, how):
    found = verify(made / "out", sources=sources(made), reference=how, limits=LIMITS)
    size = sum(os.path.getsize(path) for path in sources(made))
    assert found.ok and found.source_bytes == size
    assert found.reference_bytes == size if how == "all" else 0 < found.reference_bytes <= size


def test_every_flipped_bit_is_found(tmp_path):
    (tmp_path / "a.txt").write_text("Every bit of this small text counts. " * 3)
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0))
    path = tmp_path / "out/train.bin"
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert not verify(tmp_path / "out").ok, bit
    path.write_bytes(data)
    assert verify(tmp_path / "out").ok


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: os.truncate(path, 100), "has 100 bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "1 more than"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "1 fewer than"),
        (lambda path: path.write_bytes(b""), "has 0 bytes"),
        (lambda path: path.unlink(), "missing"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
        (lambda path: (path.rename(path.with_name("b")), path.symlink_to("b")), "not a regular file"),
    ],
)
def test_a_changed_file_is_found_and_told(out, damage, said):
    damage(out / "train.bin")
    problems = verify(out).problems
    assert problems and all(problem.file == "train.bin" for problem in problems)
    assert said in " ".join(problem.what for problem in problems)


def test_damage_is_told_by_its_segment(tmp_path, monkeypatch):
    monkeypatch.setattr(output_files, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(shardmill.results.verify, "SEGMENT_BYTES", 1000)
    (tmp_path / "a.txt").write_text("Some text for several segments. " * 1000)
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0))
    data = bytearray((tmp_path / "out/train.bin").read_bytes())
    data[2500] ^= 1
    (tmp_path / "out/train.bin").write_bytes(data)
    (problem,) = verify(tmp_path / "out").problems
    assert problem.byte == 2000 and "bytes 2,000 to 3,000" in problem.what


def test_ids_beyond_the_vocabulary_are_found(out):
    rewrite(out, lambda content: content["job"].update(vocabulary_size=1000))
    assert "the vocabulary ends at 999" in verify(out).problems[0].what


def test_a_manifest_that_does_not_add_up_is_found(out):
    rewrite(out, lambda content: content["job"]["inputs"][0].update(bytes=7))
    assert "were read" in verify(out).problems[0].what
    rewrite(out, lambda content: content["files"][0].update(tokens=7))
    assert "do not add up" in verify(out).problems[0].what


@pytest.mark.parametrize(
    "name",
    ["../train.bin", "/etc/passwd", "a/b", "..", "", "a\x00b", "a\x1b[2J", "prepare.py", "train.bin.txt", 7, None],
)
def test_a_manifest_cannot_lead_elsewhere(out, name):
    rewrite(out, lambda content: content["files"][0].update(name=name))
    (problem,) = verify(out).problems
    assert "not the name of a file" in problem.what or "not of its type" in problem.what


def test_folders_that_are_no_results_are_told_apart(tmp_path):
    assert "no such folder" in verify(tmp_path / "absent").problems[0].what
    assert "not a finished result" in verify(tmp_path).problems[0].what
    (tmp_path / "shardmill.journal").write_text("…")
    assert "not finished" in verify(tmp_path).problems[0].what
    (tmp_path / "manifest.json").write_text("{}")
    assert "not a manifest" in verify(tmp_path).problems[0].what


def test_other_sources_are_told(made, tmp_path):
    (tmp_path / "a.txt").write_bytes((made / "a.txt").read_bytes() + b"!")
    found = verify(made / "out", sources=[str(tmp_path / "a.txt"), str(made / "b.txt")])
    assert "inputs[0].bytes" in found.problems[0].what
    assert "inputs: were 2, are now 1" in verify(made / "out", sources=[str(made / "a.txt")]).problems[0].what


def test_what_was_converted_is_compared_with_no_text(made, tmp_path):
    shardmill.convert(made / "out", shardmill.Target(output=tmp_path / "new", format="megatron"))
    assert verify(tmp_path / "new").ok
    with pytest.raises(UsageError, match="was made from other outputs by shardmill convert"):
        verify(tmp_path / "new", sources=sources(made))


def test_tokens_that_are_not_those_of_the_text_are_found_and_placed(made, out):
    """Checksums and all fit: whoever wrote this folder was wrong, not the disk."""
    ids = np.fromfile(out / "train.bin", "<u2")
    ids[1234] ^= 1
    ids.tofile(out / "train.bin")
    checksum = shardmill.results.verify.xxhash.xxh3_64_hexdigest(ids.tobytes())
    rewrite(out, lambda content: content["files"][0].update(checksums=[checksum]))
    assert verify(out).ok
    (problem,) = verify(out, sources=sources(made), limits=LIMITS).problems
    assert problem.byte == 2468 and f"token 1,234 of train is {ids[1234]:,}" in problem.what


def test_a_result_that_goes_on_after_the_text_is_found(made, out):
    ids = np.append(np.fromfile(out / "val.bin", "<u2"), np.uint16(7))
    ids.tofile(out / "val.bin")
    checksum = shardmill.results.verify.xxhash.xxh3_64_hexdigest(ids.tobytes())
    val = next(i for i, file in enumerate(manifest.of(LocalFiles(out)).files) if file.split == "val")
    rewrite(out, lambda c: c["files"][val].update(checksums=[checksum], bytes=ids.nbytes, tokens=len(ids)))
    assert "stand for 5,077 bytes of text" in verify(out).problems[0].what
    rewrite(out, lambda c: c.pop("text"))  # as earlier versions wrote it
    (problem,) = verify(out, sources=sources(made), limits=LIMITS).problems
    assert "continues after token" in problem.what


@pytest.mark.parametrize("format", [name for name in registry.FORMATS if name != "nanogpt"])
def test_every_format_is_verified_its_index_and_its_source_too(made, tmp_path, format):
    spec = Spec(
        inputs=sources(made),
        output=tmp_path / "out",
        separator="##",
        format=format,
        shard_tokens=2000 if registry.get(format).sharded else None,
        sample_tokens=100 if registry.get(format).sample_tokens else None,
        index=True,
        provenance=True,
    )
    prepare(spec, limits=LIMITS)
    found = verify(tmp_path / "out", sources=sources(made), limits=LIMITS)
    assert found.ok, found.problems
    for file in sorted((tmp_path / "out").rglob("*")):
        if file.is_file() and file.name not in ("run.json", "manifest.json"):
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            name = file.relative_to(tmp_path / "out").as_posix()
            assert [problem.file for problem in verify(tmp_path / "out").problems] == [name]
            file.write_bytes(data)


def test_document_ends_that_are_out_of_order_or_place_are_found(made, tmp_path):
    """The checksums fit: the writer was wrong."""
    prepare(
        Spec(inputs=sources(made), output=tmp_path / "out", separator="##", index=True, val_fraction=0), limits=LIMITS
    )
    path = tmp_path / "out/train.ends"
    right = np.fromfile(path, "<u8")
    for wrong in (right[::-1], right[:-1], np.append(right[:-1], right[-1] + 1)):
        write_listed(path, wrong.tobytes())
        (problem,) = verify(tmp_path / "out").problems
        assert "document" in problem.what
    write_listed(path, right.tobytes())
    offsets = path.with_name("train.document_offsets.npy")
    whole = offsets.read_bytes()
    for damaged in (whole[:-8], whole[:-1] + b"\1", b"\1" + whole[1:], whole + bytes(8)):
        write_listed(offsets, damaged)
        (problem,) = verify(tmp_path / "out").problems
        assert (problem.file, problem.what) == (offsets.name, "does not say what train.ends says")


def write_listed(path, data):
    """With the size and checksum of these bytes in the manifest."""
    path.write_bytes(data)
    told = {"checksums": [shardmill.results.verify.xxhash.xxh3_64_hexdigest(data)], "bytes": len(data)}
    rewrite(path.parent, lambda c: next(side for side in c["sides"] if side["name"] == path.name).update(told))


def skip(tmp_path, data, output="out", **choices):
    (tmp_path / "a.txt").write_bytes(data)
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / output, on_error="skip", **choices)
    return prepare(spec, limits=LIMITS).manifest.counts


def test_rejects_are_verified_too(tmp_path):
    """M5"""
    counts = skip(tmp_path, b"good##\xff##good too##\xff", separator="##", val_fraction=0)
    assert counts.documents_rejected == 2
    assert verify(tmp_path / "out", sources=[str(tmp_path / "a.txt")]).ok
    path = tmp_path / "out/rejects.jsonl"
    right = path.read_text()
    assert json.loads(right.splitlines()[0])["byte"] == 6
    path.write_text(right.replace("6", "7"))
    assert verify(tmp_path / "out").problems[0].file == "rejects.jsonl"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"path": "a", "records": 2, "reason": "a row group"}'], None),
        (['{"path": "a"}', '{"path": "a", "records": 1}'], None),
        (['{"path": "a"}'], "lists 1 documents, and 2 were rejected"),
        (['{"path": "a", "records": 3}'], "lists 3 documents, and 2 were rejected"),
        (['{"path": "a", "records": "x"}'], "is not a reject"),
        (['"records":'], "is not a reject"),
        (['[{"records": 2}]'], "is not a reject"),
        ([], "lists 0 documents, and 2 were rejected"),
    ],
)
def test_a_line_of_the_rejects_is_about_as_many_documents_as_it_says(tmp_path, lines, said):
    """M5: one line tells of a whole row group that is damaged."""
    skip(tmp_path, b"good##\xff##good too##\xff", separator="##", val_fraction=0)
    path = tmp_path / "out/rejects.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    checksums = [shardmill.results.verify.xxhash.xxh3_64_hexdigest(path.read_bytes())] if lines else []
    told = {"checksums": checksums, "bytes": path.stat().st_size}
    rewrite(tmp_path / "out", lambda content: content["sides"][0].update(told))
    problems = verify(tmp_path / "out").problems
    assert [said in problem.what for problem in problems] == ([True] if said else [])


def test_rejected_passages_are_no_problem(tmp_path):
    """verify called it one: it compared the lines with the documents alone."""
    text = "".join(SAMPLES.values()).encode()
    counts = skip(tmp_path, text * 3 + b"\xff" + text * 3, val_fraction=0.2, passage_bytes=2000)
    assert counts.passages_rejected and not counts.documents_rejected
    assert verify(tmp_path / "out").problems == ()


def test_a_damaged_row_group_is_no_problem(tmp_path):
    """M5: one line of the rejects tells of its eight rows, and of where they would have been."""
    rows = pa.table({"text": [f"Row {number} of the miller." for number in range(24)]})
    path = tmp_path / "a.parquet"
    pq.write_table(rows, path, row_group_size=8, compression="zstd")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    with open(path, "r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(bytes(40))
    spec = Spec(inputs=[path], output=tmp_path / "out", on_error="skip", val_fraction=0.2, index=True)
    assert prepare(spec, limits=LIMITS).manifest.counts.documents_rejected == 8
    assert verify(tmp_path / "out", sources=[str(path)], limits=LIMITS).problems == ()


def test_a_merge_of_limited_outputs_is_no_problem(tmp_path):
    """What was not read of the second is not missing."""
    text = b"##".join(b"Text number %d." % number for number in range(50))
    skip(tmp_path, text, "all", separator="##", val_fraction=0)
    skip(tmp_path, text, "some", separator="##", val_fraction=0, limit_documents=7)
    assert verify(tmp_path / "some").problems == ()
    shardmill.merge([tmp_path / "all", tmp_path / "some"], shardmill.Target(output=tmp_path / "both"))
    assert verify(tmp_path / "both").problems == ()
    rewrite(tmp_path / "both", lambda content: content["counts"].update(input_bytes=10**6))
    assert "were read" in verify(tmp_path / "both").problems[0].what


STRAYS = {
    "nanogpt": ["train.bin.partial", "train.ends", "rejects.jsonl"],
    "shards": ["train-00099.bin", "train-00000.bin.partial", "val-12345.bin"],
    "build-nanogpt": ["edufineweb_train_000099.npy"],
    "llmc": ["fineweb_train_000099.bin", "fineweb_val_000001.bin.partial"],
    "olmo": ["train-00099.npy", "train.rows.partial"],
    "mds": ["train/shard.00099.mds", "val/shard.00001.mds.partial"],
    "litdata": ["train/chunk-0-99.bin"],
}


@pytest.mark.parametrize("format", STRAYS)
def test_files_that_a_trainer_would_read_too_are_found(made, tmp_path, format):
    """M9: a shard of an older, longer result is trained on by everyone who reads all that matches."""
    spec = Spec(
        inputs=sources(made),
        output=tmp_path / "out",
        separator="##",
        format=format,
        shard_tokens=2000 if registry.get(format).sharded else None,
        sample_tokens=100 if registry.get(format).sample_tokens else None,
        split="hash",
        val_fraction=0.2,
    )
    prepare(spec, limits=LIMITS)
    for name in (
        "notes.txt",
        "train.bin.bak",
        "README.md",
        "tokenizer.json",
        "shardmill.journal.partial",
        "model.bin",
    ):
        (tmp_path / "out" / name).write_text("mine")
    assert verify(tmp_path / "out").ok
    for name in STRAYS[format]:
        (tmp_path / "out" / name).write_text("stray")
        (problem,) = verify(tmp_path / "out").problems
        assert problem.file == name and "remove it" in problem.what
        (tmp_path / "out" / name).unlink()


def test_counts_that_do_not_add_up_are_found(made, tmp_path):
    """The checksum is right: whoever wrote it was wrong."""
    choices = {"separator": "##", "index": True, "val_fraction": 0.1}
    prepare(Spec(inputs=sources(made), output=tmp_path / "out", **choices), limits=LIMITS)
    for wrong, said in (
        ({"documents_val": 10**6}, "do not add up"),
        ({"documents_empty": 10**6}, "do not add up"),
        ({"documents_val": 0}, "were written to train"),
        ({"documents": 10**6}, "were written to train"),
        ({"documents_rejected": 1}, "1 were rejected"),
    ):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "out", tmp_path / "copy")
        rewrite(tmp_path / "copy", lambda content: content["counts"].update(wrong))  # noqa: B023
        assert said in verify(tmp_path / "copy").problems[0].what


def test_the_command_says_it_in_plain_words_and_in_json(made, out):
    run = functools.partial(command.run, "verify", cwd=out)

    good = run(str(out), "--source", str(made / "a.txt"), "--source", str(made / "b.txt"))
    assert good.returncode == 0 and "every byte is as it was written" in good.stderr and "same tokens" in good.stderr
    os.truncate(out / "val.bin", 10)
    bad = run(str(out), "--json")
    assert bad.returncode == 1 and "val.bin: has 10 bytes" in bad.stderr and "problems found" in bad.stderr
    content = json.loads(bad.stdout)
    assert content["ok"] is False and content["problems"][0]["file"] == "val.bin"


# The header of an MDS shard has any length, so tokens are not aligned to what is read at a time: half of one and half of
# the next was taken for an id, and every shard over 4 MiB called bad.
@pytest.mark.parametrize("chunk", [4 << 20, 512, 500])
@pytest.mark.parametrize("sample", [100, 101])
def test_tokens_behind_an_odd_header_are_read_as_they_were_written(tmp_path, monkeypatch, chunk, sample):
    monkeypatch.setattr(shardmill.results.verify, "_CHUNK_BYTES", chunk)
    (tmp_path / "a.txt").write_text(ENGLISH * 20)
    spec = Spec(inputs=[str(tmp_path / "a.txt")], output=str(tmp_path / "o"), format="mds", sample_tokens=sample)
    prepare(spec)
    assert verify(tmp_path / "o").ok


@pytest.mark.parametrize(("made_by", "large"), [(b"2", 64 << 20), (b"3", 0)])
def test_a_result_of_an_older_version_is_not_compared_with_its_source_where_passages_were_others(
    tmp_path, monkeypatch, made_by, large
):
    monkeypatch.setattr(shardmill.results.verify, "LARGE_BYTES", large)
    (tmp_path / "a.txt").write_text("The mill turns text into tokens.\n" * 20_000)
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0.1))
    path = tmp_path / "out/manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 4', b'"format": ' + made_by, 1))
    assert verify(tmp_path / "out").problems == ()
    with pytest.raises(OutputError, match="chose other passages of the text for validation"):
        verify(tmp_path / "out", sources=[tmp_path / "a.txt"])
