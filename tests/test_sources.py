"""Which files are read, and in which order."""

import os

import pytest

from shardmill.errors import InputError, UsageError
from shardmill.sources import find_inputs, natural_key


def names(found):
    return [os.path.basename(file.path) for file in found]


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")


def test_files_of_a_folder_come_in_natural_order(tmp_path):
    write(tmp_path, "part-10.txt", "part-2.txt", "part-1.txt", "b/part-3.txt")
    assert names(find_inputs([str(tmp_path)])) == ["part-3.txt", "part-1.txt", "part-2.txt", "part-10.txt"]


def test_arguments_keep_their_order_and_no_file_comes_twice(tmp_path):
    write(tmp_path, "b.txt", "a.txt", "c.txt")
    (tmp_path / "d.txt").symlink_to("a.txt")
    given = [str(tmp_path / "c.txt"), str(tmp_path / "*.txt")]
    assert names(find_inputs(given)) == ["c.txt", "a.txt", "b.txt"]


def test_hidden_files_and_other_kinds_are_not_taken_from_a_folder(tmp_path):
    write(tmp_path, "a.txt", ".hidden.txt", ".git/b.txt", "c.bin", "d.md", "e.TXT", "f.json.gz", "state.json")
    assert names(find_inputs([str(tmp_path)])) == ["a.txt", "d.md", "e.TXT", "f.json.gz"]


def test_a_name_with_glob_characters_that_exists_is_that_file(tmp_path):
    write(tmp_path, "a[1].txt", "a1.txt")
    assert names(find_inputs([str(tmp_path / "a[1].txt")])) == ["a[1].txt"]


def test_a_recursive_glob_finds_deep_files(tmp_path):
    write(tmp_path, "x/y/z.log", "x/w.log")
    assert names(find_inputs([str(tmp_path / "**/*.log")])) == ["w.log", "z.log"]


def test_one_empty_file_among_others_is_fine_and_only_empty_ones_are_not(tmp_path):
    write(tmp_path, "full.txt")
    (tmp_path / "empty.txt").touch()
    assert len(find_inputs([str(tmp_path)])) == 2
    with pytest.raises(InputError, match="empty"):
        find_inputs([str(tmp_path / "empty.txt")])


def test_pipes_and_urls_are_refused_for_now(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        find_inputs([str(tmp_path / "pipe")])
    with pytest.raises(UsageError, match="local files"):
        find_inputs(["s3://bucket/x.txt"])


def test_natural_order_does_not_compare_numbers_with_words():
    assert sorted(["a", "1", "10", "2", "", "a1", "²"], key=natural_key)
