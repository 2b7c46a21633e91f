"""--json: one object on standard output whatever happens, with the fields that docs/json.md lists."""

import json
import re
from pathlib import Path

import pytest

from command import run
from shardmill.cli.failures import hint_of

PAGE = (Path(__file__).parent.parent / "docs/json.md").read_text()
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "list": list,
    "range": dict,
}
ERROR = {"error", "exit_code", "hint"}


def documented(title):
    """The fields in the table of a section, and the types that each may have."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    return {
        name: kinds.split(" or ")
        for name, kinds in re.findall(r"^\| `([\w.\[\]]+)` \| ([\w ]+) \|", section, re.MULTILINE)
    }


def values_at(content, path):
    """Everything at a path such as splits[].tokens."""
    found = [content]
    for part in path.split("."):
        found = [each[part.removesuffix("[]")] for each in found]
        if part.endswith("[]"):
            found = [item for each in found for item in each]
    return found


def check(content, fields):
    """The object has these fields and no others, at every level of which the table lists one."""
    parents = {name.rpartition(".")[0] for name in fields}
    for parent in parents:
        listed = {name.rpartition(".")[2] for name in fields if name.rpartition(".")[0] == parent}
        for each in values_at(content, parent) if parent else [content]:
            assert set(each) == listed, parent or "the object itself"
    for name, kinds in fields.items():
        for value in values_at(content, name):
            assert any(value is None if kind == "null" else isinstance(value, TYPES[kind]) for kind in kinds), name
            assert "range" not in kinds or set(value) == {"low", "middle", "high"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    (folder / "book.txt").write_text("".join(f"Line {i} of the story.\n" for i in range(3000)))
    done = run("prepare", "book.txt", "-o", "data", "--separator", "\\n", "--val-fraction", "0.1", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_hints_are_what_to_do_now():
    assert hint_of("a.txt: no such file; check the spelling") == "check the spelling"
    assert hint_of("a: is bad; it was edited. Start over with --overwrite") == "Start over with --overwrite"
    assert hint_of("1 problem found") is None


@pytest.mark.parametrize(
    "title, arguments",
    [
        ("prepare", "prepare book.txt -o new"),
        ("estimate", "estimate book.txt"),
        ("estimate", "prepare book.txt -o none --dry-run"),
        ("verify", "verify data --source book.txt"),
        ("merge and convert", "merge data data -o merged"),
        ("merge and convert", "convert data --format megatron -o converted"),
        ("inspect", "inspect data"),
        ("doctor", "doctor -o data"),
    ],
)
def test_every_field_is_documented(folder, title, arguments):
    done = run(*arguments.split(), "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    content, fields = json.loads(done.stdout), documented(title)
    assert len(fields) >= 8
    check(content, fields)


def test_every_field_of_progress_is_documented(folder):
    done = run("prepare", "book.txt", "-o", "shown", "--progress", "json", cwd=folder)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        check(line, documented("Progress"))


@pytest.mark.parametrize(
    "code, arguments, named",
    [
        (1, "prepare none.txt -o out", "none.txt"),
        (2, "prepare book.txt", "--output"),
        (2, "prepare book.txt -o out --colour red", "--colour"),
        (2, "prepare book.txt -o out --max-memory much", "much"),
        (2, "prepare book.txt -o out --tokenizer gpt5", "gpt5"),
        (2, "grind book.txt", "grind"),
        (1, "estimate none.txt", "none.txt"),
        (1, "inspect book.txt", "book.txt"),
        (2, "merge -o out", "OUTPUT"),
        (1, "merge none -o out", "none"),
        (2, "convert data -o out --format tape", "tape"),
        (2, "convert data -o out --format nanogpt --eot-id 7", "--eot-id"),
    ],
)
def test_errors_are_one_object_too(folder, code, arguments, named):
    done = run(*arguments.split(), "--json", cwd=folder)
    content = json.loads(done.stdout)
    check(content, documented("Errors"))
    assert (done.returncode, content["exit_code"]) == (code, code) and named in content["error"]
    assert content["hint"] is None or content["hint"] in content["error"]
    assert named in done.stderr, "people are told as before"


def test_without_json_nothing_is_on_standard_output(folder):
    assert run("prepare", "none.txt", "-o", "out", cwd=folder).stdout == ""


def test_a_failed_verify_tells_its_result_and_the_error_in_one_object(folder, tmp_path):
    assert run("prepare", folder / "book.txt", "-o", "data", "-q", cwd=tmp_path).returncode == 0
    damaged = bytearray((tmp_path / "data/train.bin").read_bytes())
    damaged[100] ^= 1
    (tmp_path / "data/train.bin").write_bytes(damaged)
    done = run("verify", "data", "--json", cwd=tmp_path)
    content = json.loads(done.stdout)
    check(content, {**documented("verify"), **documented("Errors")})
    assert done.returncode == content["exit_code"] == 1 and not content["ok"] and content["problems"]


def test_a_disk_that_is_too_small_is_told_with_the_estimate(folder, monkeypatch, capsys):
    from shardmill.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["shardmill", "estimate", "book.txt", "--json"])
    monkeypatch.setattr("shardmill.io.storage.free_bytes", lambda _: 1000)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as e:
        main.main()
    content = json.loads(capsys.readouterr().out)
    check(content, {**documented("estimate"), **documented("Errors")})
    assert e.value.code == content["exit_code"] == 75 and content["tokens"]["low"] > 0
