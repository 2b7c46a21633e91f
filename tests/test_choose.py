"""Which files of a folder are data, and what is said about the others."""

import os
import re
from collections import Counter

import pytest

from command import run
from shardmill.errors import InputError
from shardmill.inputs import choose
from shardmill.inputs.choose import Chooser, kind_of, listed
from shardmill.inputs.find import find_inputs


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "words"}\n' if ".json" in name else "text")


def taken(folder, *patterns, **choices):
    files = find_inputs([str(folder / pattern) for pattern in patterns or ("",)], Chooser(**choices))
    return [os.path.relpath(file.path, folder) for file in files], files


ABOUT = [
    *("README.md", "readme.txt", "README_zh.md", "README-en.md", "LICENSE.txt", "LICENSE-MIT.md", "LICENCE.txt"),
    *("COPYING.txt", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "dataset_card.md", "DatasetCard.md"),
    *("NOTICE.txt", "CITATION.md", "AUTHORS.txt", "requirements.txt", "CMakeLists.txt", "robots.txt", "merges.txt"),
    *("sha256sums.txt", "SHA256.txt", "md5sum.txt", "checksums.txt", "package.json", "tsconfig.json", "config.json"),
    *("dataset_info.json", "dataset_infos.json", "state.json", "manifest.json", "run.json", "rejects.jsonl"),
    *("tokenizer.json", "vocab.json", "metadata.json", "manifest.inputs.jsonl", "croissant.json"),
]
DATA = [
    *("readmes.jsonl", "readme_corpus.jsonl", "licenses.txt", "notice-12.txt", "security-report.txt", "changes-1.md"),
    *(
        "train.json",
        "data.json.gz",
        "configs.json",
        "my_package.json",
        "story.md",
        "a.txt",
        "b.TXT",
        "shakespeare.text",
    ),
]


@pytest.mark.parametrize("name", ABOUT)
def test_what_a_folder_says_about_itself_is_not_data_unless_it_is_named(tmp_path, name):
    write(tmp_path, "a.txt", name)
    paths, files = taken(tmp_path)
    assert paths == ["a.txt"] and files.left_out == {name: 1}
    assert taken(tmp_path, name)[0] == [name]
    assert sorted(taken(tmp_path, "*")[0]) == sorted(["a.txt", name]), "a glob that names it takes it"
    assert taken(tmp_path, include=[name])[0] == [name]


@pytest.mark.parametrize("name", DATA)
def test_names_that_only_look_like_that_are_data(tmp_path, name):
    write(tmp_path, name)
    assert taken(tmp_path)[0] == [name]


def test_markdown_is_data_except_beside_records(tmp_path):
    write(tmp_path, "texts/a.md", "texts/b.txt", "records/a.jsonl.zst", "records/about.md", "records/b.txt", "c.md")
    paths, files = taken(tmp_path)
    assert paths == ["c.md", "records/a.jsonl.zst", "records/b.txt", "texts/a.md", "texts/b.txt"]
    assert files.left_out == {".md": 1}
    assert taken(tmp_path, include=["*.md"])[0] == ["c.md", "records/about.md", "texts/a.md"]


def test_json_alone_does_not_make_markdown_a_card(tmp_path):
    write(tmp_path, "contents.json", "a.md")
    assert taken(tmp_path)[0] == ["a.md", "contents.json"]


def test_hidden_files_and_other_kinds_are_counted(tmp_path):
    write(
        tmp_path, "a.txt", ".hidden.txt", ".git/b.txt", "c.bin", "d.bin.gz", "LICENSE", "e/run.py", "e/f.py", ".x/y/z"
    )
    paths, files = taken(tmp_path)
    assert paths == ["a.txt"]
    assert files.left_out == {"hidden": 3, ".bin": 1, ".bin.gz": 1, "LICENSE": 1, ".py": 2}
    assert listed(files.left_out).startswith("3 hidden, 2 .py, ")


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"include": ["*.log"]}, ["b.log", "x/c.log"]),
        ({"include": ["x/*"]}, ["x/c.log", "x/d.txt", "x/y/e.txt"]),
        ({"include": ["x/"]}, ["x/c.log", "x/d.txt", "x/y/e.txt"]),
        ({"include": ["**/y/*.txt"]}, ["x/y/e.txt"]),
        ({"include": ["y/e.txt", "a.*"]}, ["a.txt", "x/y/e.txt"]),
        ({"include": ["*.log", "*.txt"], "exclude": ["x/*"]}, ["a.txt", "b.log"]),
        ({"exclude": ["?.txt"]}, ["README.jsonl"]),
        ({"exclude": ["y/"]}, ["README.jsonl", "a.txt", "x/d.txt"]),
        ({"exclude": ["[!a]*"]}, ["a.txt"]),
    ],
)
def test_patterns_match_names_and_ends_of_paths(tmp_path, choices, expected):
    write(tmp_path / "x-files", "a.txt", "b.log", "x/c.log", "x/d.txt", "x/y/e.txt", "README.jsonl", ".hidden.log")
    assert taken(tmp_path / "x-files", **choices)[0] == sorted(expected)
    globbed = sorted({*expected, "b.log"}) if choices.get("exclude") in (["?.txt"], ["y/"]) else sorted(expected)
    assert sorted(taken(tmp_path / "x-files", "*", **choices)[0]) == globbed, "a glob takes what it names by itself"
    below = [os.path.relpath(p, tmp_path / "x-files") for p in (tmp_path / "x-files").rglob("*") if p.is_file()]
    assert sorted(Chooser(**choices).of_paths(below)) == sorted(expected), "the same in an object store"


def test_a_pattern_sees_nothing_above_the_folder(tmp_path):
    write(tmp_path / "drafts", "a.txt", "drafts/b.txt")
    assert taken(tmp_path / "drafts", exclude=["drafts/*"])[0] == ["a.txt"]
    assert taken(tmp_path / "drafts", "*.txt", exclude=["drafts/*"])[0] == ["a.txt"]


def test_globs_obey_patterns_but_named_files_are_taken(tmp_path):
    write(tmp_path, "a.txt", "b.txt", "c.log", "d.log")
    paths, files = taken(tmp_path, "*", "a.txt", exclude=["a*"], include=["*.txt", "d*"])
    assert paths == ["b.txt", "d.log", "a.txt"]
    assert files.left_out == {"excluded": 1, "not included": 1}


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({}, "left out: 2 .py, README.md"),
        ({"include": ["*.txt"]}, "left out: 3 not included"),
        ({"include": ["*"], "exclude": ["*"]}, "left out: 3 excluded"),
    ],
)
def test_an_empty_result_says_what_was_left_out_and_how_to_take_it(tmp_path, choices, words):
    write(tmp_path / "in", "README.md", "a.py", "b.py")
    for pattern in ("", "s*") if not choices else ("", "*"):
        write(tmp_path / "in", "src/c.py") if pattern == "s*" else None
        with pytest.raises(InputError, match=re.escape(words if pattern != "s*" else "left out: 1 .py")) as caught:
            taken(tmp_path / "in", pattern, **choices)
        assert "--include '*.log'" in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no text in this folder, which is empty"):
        taken(tmp_path / "empty")


def test_very_many_kinds_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "_MOST_KINDS", 3)
    write(tmp_path, "a.txt", *(f"{i}.x{i}" for i in range(9)))
    paths, files = taken(tmp_path)
    assert paths == ["a.txt"] and sum(files.left_out.values()) == 9 and files.left_out["other"] == 6
    assert listed(files.left_out).startswith("6 other, 1 .x")


def test_kinds_are_listed_with_the_most_frequent_first():
    kinds = Counter({".jsonl.zst": 1204, "README.md": 1, ".parquet": 3, "LICENSE": 2})
    assert choose.listed(kinds) == "1,204 .jsonl.zst, 3 .parquet, 2 LICENSE, README.md"
    many = Counter({f".{i:02}": 100 - i for i in range(20)})
    assert choose.listed(many).endswith("93 .07, and 1,038 more")
    assert [kind_of(p) for p in ("x/a.jsonl.zst", "a.gz", ".gz", "x.y/b", "A.TXT", "-", "a.b.c")] == [
        *(".jsonl.zst", ".gz", ".gz", "b", ".txt", "-", ".c"),
    ]


def test_the_choice_is_in_the_manifest_and_verify_repeats_it(tmp_path):
    write(tmp_path / "in", "a.txt", "b.txt", "old/c.txt", "README.md")
    assert run("prepare", "in", "-o", "out", "--exclude", "old/", "--exclude", "b*", cwd=tmp_path).returncode == 0
    manifest = (tmp_path / "out/manifest.json").read_text()
    assert re.search(r'"exclude": \[\s*"old/",\s*"b\*"\s*\],', manifest) and '"include": null' in manifest
    done = run("verify", "out", "--source", "in", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    changed = run("prepare", "in", "-o", "out", "--exclude", "old/", cwd=tmp_path)
    assert changed.returncode == 1 and "exclude: was ['old/', 'b*'], is now ['old/']" in changed.stderr
