"""Files get their names only when whole, and reads are complete."""

import os

import pytest

from shardmill.errors import InputError, OutputError, TemporaryError
from shardmill.io import storage
from shardmill.io.reading import InputReader
from shardmill.io.storage import GrowingFile
from shardmill.system.names import show


def test_a_growing_file_has_no_final_name_until_it_is_finished(tmp_path):
    file = GrowingFile(tmp_path / "train.bin")
    file.append(memoryview(b"abc"))
    assert os.listdir(tmp_path) == ["train.bin.partial"]
    file.seal()
    file.publish()
    assert os.listdir(tmp_path) == ["train.bin"] and (tmp_path / "train.bin").read_bytes() == b"abc"


def test_an_abandoned_file_leaves_nothing(tmp_path):
    file = GrowingFile(tmp_path / "train.bin")
    file.append(memoryview(b"abc"))
    file.abandon()
    file.abandon()
    assert os.listdir(tmp_path) == []


def test_write_whole_replaces_at_once(tmp_path):
    storage.write_whole(tmp_path / "a", b"one")
    storage.write_whole(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two" and os.listdir(tmp_path) == ["a"]


def test_a_growing_file_goes_on_where_it_was_durable(tmp_path):
    file = GrowingFile(tmp_path / "a", drop_behind=True)
    file.append(memoryview(b"durable"))
    file.sync()
    file.append(memoryview(b" and not"))
    file.close()
    file = GrowingFile(tmp_path / "a", at=7)
    assert file.read(0, 100) == b"durable"
    file.append(memoryview(b" again"))
    file.seal()
    file.publish()
    assert (tmp_path / "a").read_bytes() == b"durable again"
    again = GrowingFile(tmp_path / "a", at=13)
    assert again.published
    with pytest.raises(OutputError, match="has 13 bytes, but an earlier run left 14"):
        GrowingFile(tmp_path / "a", at=14)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 1000)
    with InputReader(str(path), drop_behind=True) as reader:
        assert reader.read(990, 100) == b"x" * 10
        os.truncate(path, 500)
        with pytest.raises(InputError, match="ends at byte 500 but had 1,000"):
            reader.read(400, 300)


def test_names_are_shown_without_control_characters():
    assert show("a\x1b[31mb\n\udcff") == "a\\x1b[31mb\\n\\udcff"
    assert show("größe 文件.txt") == "größe 文件.txt"


def test_a_failed_rename_keeps_the_file_that_was_there(tmp_path, monkeypatch):
    storage.write_whole(tmp_path / "a", b"old")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(TemporaryError, match="Input/output"):
        storage.write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]
