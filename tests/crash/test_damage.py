"""Journals and manifests that are damaged, or were written by a stranger: refused with a message, or of no consequence."""

import json
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import command, drive, result

from shardmill.errors import ShardmillError
from shardmill.io.fileset import LocalFiles
from shardmill.record import journal, manifest

NAMES = [
    "../train.bin",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:x",
    "..",
    ".",
    "",
    "a\0b",
    "\x1b[2Jtrain.bin",
    "a\nb",
    "\u202eb",
    7,
    None,
    ["a"],
]
JOB = {"choices": {}, "inputs": [], "tokenizer_sha256": None, "vocabulary_size": None}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(NAMES[:12]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def killed(inputs, fast_folder):
    """The folder of a job that was killed after some checkpoints."""
    folder = fast_folder / "killed"
    shutil.copytree(inputs / "many", folder / "many")
    (end,) = drive(folder, [{"args": command("documents"), "kill": ["checkpoint-synced", 6]}])
    assert end["code"] == -9
    return folder


def lines_of(killed):
    return (killed / "out" / journal.NAME).read_bytes().splitlines(keepends=True)


def read_or_refuse(read, folder):
    """What was read; None if nothing or refused. Any other exception fails the test, and so does an escape in the message."""
    try:
        return read(folder)
    except ShardmillError as e:
        assert str(e).isprintable() or "\n" in str(e)
        assert "\x1b" not in str(e) and "\0" not in str(e)
        return None


@settings(max_examples=100)
@given(data=st.binary(max_size=400))
def test_random_bytes_are_neither_a_journal_nor_a_manifest(tmp_path, data):
    (tmp_path / journal.NAME).write_bytes(data)
    (tmp_path / manifest.NAME).write_bytes(data)
    assert read_or_refuse(journal.read, tmp_path) is None
    assert read_or_refuse(manifest.of, LocalFiles(tmp_path)) is None


@settings(max_examples=100)
@given(contents=st.lists(JSON, max_size=3), where=st.sampled_from(["job", "split", "checkpoint", "format", "any"]))
def test_a_journal_of_a_stranger_is_read_or_refused(tmp_path, contents, where):
    """The checksums are right: whoever wrote it knew how."""
    first = {"format": journal.FORMAT, "job": JOB, "overwrites": False}
    lines = [first, *({where: content} if where != "any" else content for content in contents)]
    chain, data = b"", b""
    for line in lines:
        body = json.dumps(line).encode()
        chain = journal._checksum(chain, body)
        data += chain + b" " + body + b"\n"
    (tmp_path / journal.NAME).write_bytes(data)
    read_or_refuse(journal.read, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_out_of_the_folder_are_refused(name):
    with pytest.raises(ValueError) as refused:
        manifest.check_name(name)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(name, str)])
def test_a_journal_cannot_name_a_file_elsewhere(killed, tmp_path, name):
    *_, last = lines_of(killed)
    line = json.loads(last.partition(b" ")[2])
    line["checkpoint"]["files"] = {name: {"bytes": 1, "tail": None, "more": []}}
    chain, data = b"", b""
    for body in (lines_of(killed)[0].partition(b" ")[2].rstrip(b"\n"), json.dumps(line).encode()):
        chain = journal._checksum(chain, body)
        data += chain + b" " + body + b"\n"
    (tmp_path / journal.NAME).write_bytes(data)
    with pytest.raises(ShardmillError, match="damaged"):
        journal.read(tmp_path)


@pytest.fixture(scope="module")
def states(killed):
    """What the journal said after each of its lines: the only things it may ever be read as."""
    lines, states = lines_of(killed), []
    for count in range(len(lines) + 1):
        (killed / "copy").mkdir(exist_ok=True)
        (killed / "copy" / journal.NAME).write_bytes(b"".join(lines[:count]))
        states.append(journal.read(killed / "copy"))
    return states


@settings(max_examples=100)
@given(choice=st.data())
def test_a_damaged_journal_is_never_read_as_anything_that_was_not_written(killed, states, tmp_path, choice):
    """Bits flipped, bytes cut off or put in, lines lost, doubled or moved: an earlier point of the job, or refused."""
    lines = lines_of(killed)
    data = bytearray(b"".join(lines))
    match choice.draw(st.sampled_from(["flip", "cut", "insert", "lose", "double", "swap", "zeros"])):
        case "flip":
            data[choice.draw(st.integers(0, len(data) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
        case "cut":
            del data[choice.draw(st.integers(0, len(data))) :]
        case "insert":
            place = choice.draw(st.integers(0, len(data)))
            data[place:place] = choice.draw(st.binary(min_size=1, max_size=20))
        case "zeros":
            place = choice.draw(st.integers(0, len(data)))
            data[place:] = bytes(len(data) - place)
        case "lose":
            del lines[choice.draw(st.integers(0, len(lines) - 1))]
            data = b"".join(lines)
        case "double":
            place = choice.draw(st.integers(0, len(lines) - 1))
            data = b"".join([*lines[:place], lines[place], *lines[place:]])
        case "swap":
            one, other = (choice.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            lines[one], lines[other] = lines[other], lines[one]
            data = b"".join(lines)
    (tmp_path / journal.NAME).write_bytes(data)
    assert read_or_refuse(journal.read, tmp_path) in [None, *states]


def test_a_job_with_a_damaged_journal_ends_with_the_same_bytes_or_is_refused(inputs, whole, fast_folder):
    """The real command on journals with one bit flipped, or cut off, at places all over them."""
    folder = fast_folder / "damaged"
    folder.mkdir()
    args = command("documents")
    os.symlink(inputs / "many", folder / "many")
    (end,) = drive(folder, [{"args": args, "kill": ["file-named", 1]}])
    assert end["code"] == -9
    data = (folder / "out" / journal.NAME).read_bytes()
    step = len(data) // 12
    outputs = []
    for place in range(3, len(data), step):
        for damage in ("flip", "cut"):
            output = f"out-{damage}-{place}"
            shutil.copytree(folder / "out", folder / output)
            flipped = bytes([*data[:place], data[place] ^ 4, *data[place + 1 :]])
            (folder / output / journal.NAME).write_bytes(flipped if damage == "flip" else data[:place])
            outputs.append(output)
    done = drive(folder, [{"args": command("documents", output=output)} for output in outputs])
    for output, end in zip(outputs, done, strict=True):
        if end["code"] == 0:
            assert result(folder, output) == whole["documents"][0]
        else:
            assert end["code"] == 1 and "--overwrite" in end["stderr"] and "Traceback" not in end["stderr"]
            assert not (folder / output / "manifest.json").exists()
    shutil.rmtree(folder)
