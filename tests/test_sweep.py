"""A version of a library that no release knew: the job says so and runs on it, until it has been asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.tokens import classes, native, sweep, tables

# The command with a tokenizers library of another version.
COMMAND = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "99.0" if name == "tokenizers" else real(name)
from shardmill.cli.main import main
main()
"""


@pytest.fixture
def file(gpt2_json, tmp_path):
    config = json.loads(Path(gpt2_json).read_text()) | {"normalizer": {"type": "NFC"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    return str(tmp_path / "tokenizer.json")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder, in which tables are looked for."""
    monkeypatch.setattr(tables, "_folders", set())
    tables.look_in(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setattr(tables, "installed", lambda package: f"{package} 99.0")


@pytest.mark.slow
def test_a_version_that_nobody_knew_runs_on_our_engine_once_it_was_asked(file, tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*args):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *args], env=env, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    before = run("tokenizers", file, "--json")
    assert before["engine"] == "tokenizers 99.0"
    assert "character classes of tokenizers 99.0; `shardmill tokenizers --sweep`" in before["note"]
    (tmp_path / "a.txt").write_text("Some text, and cafe\u0301.\n" * 100)
    prepare = "prepare", str(tmp_path / "a.txt"), "--tokenizer", file, "--json", "-o"
    slow = run(*prepare, str(tmp_path / "slow"))
    asked = run("tokenizers", "--sweep", "--json")["asked"]
    assert {each["table"] for each in asked} == {"classes", "nfc"}
    assert {each["version"] for each in asked} == {"tokenizers 99.0"}
    assert run("tokenizers", "--sweep", "--json")["asked"] == []
    after = run("tokenizers", file, "--json")
    assert after["engine"] == native.version() and after["note"] is None
    fast = run(*prepare, str(tmp_path / "fast"))
    assert (tmp_path / "fast/train.bin").read_bytes() == (tmp_path / "slow/train.bin").read_bytes()
    assert slow != fast


@pytest.mark.slow
def test_asking_gives_the_tables_that_are_shipped():
    for table in (sweep.sweep_classes("tiktoken"), sweep.sweep_classes("huggingface")):
        known = tables.find("classes", table["made_with"][0])
        assert known["runs"] == table["runs"] and table["digits"] in ([], known["digits"])
    table = sweep.sweep_nfc()
    known = tables.find("nfc", table["made_with"][0])
    assert known["runs"] == table["runs"] and known["pairs"] == table["pairs"]


@pytest.mark.usefixtures("newer")
def test_what_was_kept_is_found_for_its_version_alone(folder):
    assert classes.find("huggingface") is None
    tables.keep(folder, "classes", {"made_with": ["tokenizers 98.0"], "runs": [[0, 0]], "digits": []})
    assert classes.find("huggingface") is None
    table = {"made_with": ["tokenizers 99.0"], "runs": [[0, 0], [65, 3]], "digits": [7]}
    tables.keep(folder, "classes", table)
    tables.keep(folder, "nfc", {"made_with": ["tokenizers 99.0"], "runs": [[0, 0]], "pairs": {}})
    assert classes.find("huggingface")[[0, 7, 64, 65]].tolist() == [0, 0, 0, 3]
    assert classes.find("huggingface", digits=True)[7] == classes.NUMBER
    assert tables.find("classes", "tokenizers 98.0") and tables.find("nfc", "tokenizers 99.0")


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"65", b"66"),
        lambda data: data[:-9],
        lambda data: data.replace(b'"nfc": 1', b'"nfc": 0'),
        lambda _: b"[]",
        lambda _: b"",
    ],
)
def test_what_is_damaged_or_of_another_format_counts_for_nothing(folder, damage):
    path = tables.keep(folder, "classes", {"made_with": ["tokenizers 99.0"], "runs": [[0, 0], [65, 3]], "digits": []})
    assert classes.find("huggingface") is not None
    path.write_bytes(damage(path.read_bytes()))
    assert classes.find("huggingface") is None
