"""--config and --save-config: a job as a file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command import run
from shardmill.cli.config import _toml

try:
    import tomllib
except ImportError:
    import tomli as tomllib

JOB = """
inputs = ["in", "more.txt"]
output = "out"
tokenizer = "r50k_base"
val-fraction = 0.25
shard_tokens = "1.5k"
format = "shards"
index = true
exclude = "*.md"
separator = "\\n\\n"
max-memory = "900MiB"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(20):
        (tmp_path / f"in/{i}.txt").write_text(f"The mill turns story {i}.\n\nInto tokens.\n" * 40)
    (tmp_path / "in/notes.md").write_text("no data")
    (tmp_path / "more.txt").write_text("More text.")
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def choices(folder, output="out"):
    return json.loads((folder / output / "manifest.json").read_text())["job"]["choices"]


def same(folder, one, other):
    names = sorted(path.name for path in (folder / one).iterdir() if path.name not in ("run.json", "manifest.json"))
    return names and all((folder / one / n).read_bytes() == (folder / other / n).read_bytes() for n in names)


def test_a_file_is_a_job_and_the_command_line_wins_over_it(folder):
    done = run("prepare", "--config", "job.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    made = choices(folder)
    assert made["shard_tokens"] == 1500 and made["separator"] == "\n\n" and made["exclude"] == ["*.md"]
    assert made["index"] is True and made["val_fraction"] == 0.25 and made["format"] == "shards"
    arguments = ["in", "more.txt", "--tokenizer", "r50k_base", "--val-fraction", "0.25", "--shard-tokens", "1500"]
    arguments += ["--format", "shards", "--index", "--exclude", "*.md", "--separator", "\\n\\n", "-o", "by-hand"]
    assert run("prepare", *arguments, cwd=folder).returncode == 0
    assert same(folder, "out", "by-hand")
    done = run("prepare", "more.txt", "--config", "job.toml", "-o", "other", "--val-fraction", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    made = json.loads((folder / "other/manifest.json").read_text())["job"]
    assert made["choices"]["val_fraction"] == 0 and made["choices"]["shard_tokens"] == 1500
    assert [entry["path"] for entry in made["inputs"]] == ["more.txt"]


def test_what_is_saved_gives_the_same_job(folder):
    given = ["--exclude", 'odd "\\ \x7f\té', "--exclude", "*.md", "--separator", "\\n", "--max-rejects", "0.1%"]
    given += ["--on-error", "skip", "--seed", "-3", "--sample", "0.5", "--limit-documents", "1k", "--workers", "1"]
    done = run("prepare", "in", "-o", "out", *given, "--save-config", "saved.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    saved = tomllib.loads((folder / "saved.toml").read_text())
    assert saved == {
        "inputs": ["in"],
        "output": "out",
        "exclude": ['odd "\\ \x7f\té', "*.md"],
        "separator": "\\n",
        "max-rejects": 0.001,
        "on-error": "skip",
        "seed": -3,
        "sample": 0.5,
        "limit-documents": 1000,
        "workers": 1,
    }
    again = run("prepare", "--config", "saved.toml", cwd=folder)
    assert again.returncode == 0 and "already complete" in again.stderr
    done = run("prepare", "--config", "saved.toml", "-o", "copy", "--save-config", "saved.toml", cwd=folder)
    assert done.returncode == 0 and same(folder, "out", "copy")
    assert tomllib.loads((folder / "saved.toml").read_text()) == {**saved, "output": "copy"}, "file and command line"


def test_estimate_and_dry_run_take_the_same_file(folder):
    for command in (["estimate"], ["prepare", "--dry-run"]):
        done = run(*command, "--config", "job.toml", "--json", "--save-config", "saved.toml", cwd=folder)
        assert done.returncode == 0 and json.loads(done.stdout)["files"] == 21
        assert tomllib.loads((folder / "saved.toml").read_text())["shard-tokens"] == 1500
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shard_token = 5", ["shard_token is not known", "did you mean shard-tokens?"]),
        ("zzz = 5", ["zzz is not known", "shardmill prepare --help"]),
        ("quiet = true", ["quiet is not part of a job", "command line"]),
        ("config = 'x'", ["config is not part of a job"]),
        ("field = 'a'\ncolumn = 'b'", ["column is given twice"]),
        ("shard-tokens = 1\nshard_tokens = 2", ["shard_tokens is given twice"]),
        ("[job]\nseed = 1", ["job is not known"]),
        ("[seed]\nx = 1", ["seed is a table", "without [sections]"]),
        ("seed = \nx = 1", ["is not TOML", "line 1", 'tokenizer = "gpt2"']),
        ("seed = 1\nseed = 2", ["is not TOML"]),
        ("shard-tokens = 'many'", ["shard-tokens: 'many' is not a count", "1.5G"]),
        ("shard-tokens = 1.5", ["shard-tokens: 1.5 is not a whole number"]),
        ("split = 'side'", ["split: 'side' is not one of"]),
        ("index = 'yes'", ["index must be true or false"]),
        ("seed = true", ["seed must be a number"]),
        ("seed = [1]", ["seed must be a number"]),
        ("tokenizer = 2020-01-01", ["tokenizer must be"]),
        ("include = [1]", ["include must be a list of strings"]),
        ("inputs = 5", ["inputs must be a list of strings"]),
        ("include = ['']", ["include", "not empty"]),
        (b"\xff".decode("latin-1"), ["not UTF-8"]),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_remedy(folder, text, words):
    (folder / "bad.toml").write_bytes(text.encode("latin-1"))
    done = run("prepare", "more.txt", "-o", "out", "--config", "bad.toml", cwd=folder)
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (folder / "out").exists()


def test_without_inputs_or_a_file_the_argument_is_missing(folder):
    (folder / "empty.toml").write_text("seed = 1\n")
    for options in ([], ["--config", "empty.toml"]):
        done = run("prepare", "-o", "out", *options, cwd=folder)
        assert done.returncode == 2 and "INPUT" in done.stderr
    done = run("prepare", "--config", "none.toml", cwd=folder)
    assert done.returncode == 2 and "none.toml: cannot be read" in done.stderr
    for options in ([], ["--config", "empty.toml"]):  # click once took None for the name of a folder
        done = run("prepare", "more.txt", *options, cwd=folder)
        assert done.returncode == 2 and "missing option '--output'" in done.stderr
        assert not (folder / "None").exists()


def test_saving_replaces_nothing_that_it_did_not_write(folder):
    done = run("prepare", "more.txt", "-o", "out", "--save-config", "job.toml", cwd=folder)
    assert done.returncode == 1 and "was not written by --save-config" in done.stderr
    assert (folder / "job.toml").read_text() == JOB
    done = run("prepare", "more.txt", "-o", "out", "--save-config", "none/job.toml", cwd=folder)
    assert done.returncode == 2 and "there is no folder none" in done.stderr
    done = run("prepare", "more.txt", "-o", "out", "--sample", "7", "--save-config", "new.toml", cwd=folder)
    assert done.returncode == 2 and not (folder / "new.toml").exists(), "a job that cannot be is not saved"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_string_survives_toml(text):
    assert tomllib.loads(f"x = {_toml(text)}")["x"] == text
    assert tomllib.loads(f"x = {_toml((text, text))}")["x"] == [text, text]
