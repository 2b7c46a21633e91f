"""Which files are read, and in which order."""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import InputError, ShardmillError, UsageError
from shardmill.inputs import find
from shardmill.inputs.find import find_inputs, in_natural_order, natural_key


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


def test_a_list_names_inputs_relative_to_its_folder(tmp_path):
    write(tmp_path, "data/b.txt", "data/a.txt", "data/deep/c.txt", "data/deep/d.txt", "# odd.txt")
    (tmp_path / "list.txt").write_text("# a comment\n\n  data/b.txt  \ndata/deep\ndata/*.txt\n./# odd.txt\n")
    assert names(find_inputs([f"@{tmp_path / 'list.txt'}"])) == ["b.txt", "c.txt", "d.txt", "a.txt", "# odd.txt"]


def test_a_bad_line_of_a_list_is_named(tmp_path):
    write(tmp_path, "a.txt")
    for line in ("none.txt", "@other.txt", "-", "ftp://host/x"):
        (tmp_path / "list.txt").write_text(f"a.txt\n\n{line}\n")
        with pytest.raises(ShardmillError, match=r"list\.txt line 3: "):
            find_inputs([f"@{tmp_path / 'list.txt'}"])
    with pytest.raises(InputError, match="no such file"):
        find_inputs([f"@{tmp_path / 'none'}"])


def test_an_empty_list_is_an_error(tmp_path):
    (tmp_path / "list.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match=r"list\.txt.*lists no input"):
        find_inputs([f"@{tmp_path / 'list.txt'}"])


def test_a_pipe_is_read_once_and_a_device_is_not(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for pattern in (str(tmp_path / "pipe"), "-"):
        (found,) = find_inputs([pattern])
        assert (found.path, found.size, found.once, found.local) == (pattern, None, True, False)
        with pytest.raises(UsageError, match="named twice"):
            find_inputs([pattern, pattern])
    with pytest.raises(InputError, match="not a regular file"):
        find_inputs(["/dev/null"])


def test_natural_order_does_not_compare_numbers_with_words():
    assert sorted(["a", "1", "10", "2", "", "a1", "²"], key=natural_key)


def obviously_natural_key(path):
    """The oracle: piece by piece, numbers as numbers and before words."""
    return [
        (0, int(piece), piece) if piece.isdecimal() and piece.isascii() else (1, 0, piece)
        for piece in re.split(r"([0-9]+)", path)
    ]


short = st.text(st.sampled_from("a0129-./é\udcff²\n~"), min_size=1, max_size=6)


@given(st.lists(short, unique=True, max_size=40))
def test_natural_order_is_that_of_the_oracle_however_few_are_sorted_at_once(given):
    expected = sorted(given, key=obviously_natural_key)
    for at_once in (1, 7, 1 << 16):
        with patch.object(find, "_SORTED_AT_ONCE", at_once):
            assert list(in_natural_order(iter(given))) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(short.map(lambda name: name.strip("/.") + ".txt").filter(lambda name: "//" not in name), max_size=25))
def test_folders_in_folders_come_in_the_natural_order_of_their_paths(given):
    with tempfile.TemporaryDirectory() as folder:
        for name in given:
            path = Path(folder) / name
            if not any(part.startswith(".") for part in name.split("/")):
                with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text("text")
        there = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]
        if there:
            found = find_inputs([folder])
            assert [file.path for file in found] == sorted(there, key=obviously_natural_key)


def test_files_whose_hashes_are_equal_are_still_told_apart(tmp_path, monkeypatch):
    write(tmp_path, *(f"{number}.txt" for number in range(5)))
    (tmp_path / "9.txt").symlink_to("3.txt")
    monkeypatch.setattr("shardmill.inputs.find.xxhash.xxh3_64_intdigest", lambda _: 7)
    given = [str(tmp_path / "4.txt"), str(tmp_path), str(tmp_path)]
    assert names(find_inputs(given)) == ["4.txt", "0.txt", "1.txt", "2.txt", "3.txt"]


def test_a_link_in_a_folder_and_what_it_leads_to_are_one_file(tmp_path):
    write(tmp_path, "data/b.txt", "elsewhere/c.txt")
    (tmp_path / "data/a.txt").symlink_to("b.txt")
    (tmp_path / "data/folder").symlink_to(tmp_path / "elsewhere")
    assert names(find_inputs([str(tmp_path / "data")])) == ["a.txt"]


def test_a_list_too_long_for_the_memory_is_refused_before_all_are_found(tmp_path, monkeypatch):
    write(tmp_path, *(f"{number}.txt" for number in range(20)))
    monkeypatch.setattr("shardmill.inputs.find._CHECKED_EVERY", 4)
    assert len(find_inputs([str(tmp_path)], most_bytes=10)) == 20, "so few are found in any case"
    monkeypatch.setattr("shardmill.inputs.find._SHORT_LIST", 0)
    with pytest.raises(UsageError, match=r"3\.txt: is input number 4.*--max-memory"):
        find_inputs([str(tmp_path)], most_bytes=10)
    assert len(find_inputs([str(tmp_path)], most_bytes=1 << 20)) == 20


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path):
    write(tmp_path, "a.txt", "locked/b.txt")
    answers = [os.scandir(tmp_path), PermissionError(13, "Permission denied")]  # root may read everything
    with patch("os.scandir", side_effect=answers), pytest.raises(InputError, match=r"locked.*permission denied"):
        find_inputs([str(tmp_path)])
