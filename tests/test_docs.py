"""The documentation cannot rot: what it shows is run, what it lists is compared."""

import ast
import gzip
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command import run
from shardmill import errors

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/guide.md"]
LONGEST_README = 140


def between(page, name):
    text = (ROOT / page).read_text()
    return re.search(rf"<!-- {name}:start -->\n```\w+\n(.*?)```\n<!-- {name}:end -->", text, re.DOTALL)[1]


@pytest.fixture
def playground(tmp_path):
    text = (ROOT / "samples/tinyshakespeare.txt").read_text()[:200_000]
    (tmp_path / "book.txt").write_text(text)
    (tmp_path / "lines.txt").write_text(text)
    (tmp_path / "stories.txt").write_text("<|endoftext|>".join(text.split("\n\n")))
    rows = "".join(
        json.dumps({"text": line, "line": i, "speech": ":" not in line}) + "\n"
        for i, line in enumerate(text.splitlines())
    )
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "corpus").mkdir()
    for i in range(3):
        (tmp_path / f"corpus/{i}.txt").write_text(text[i * 1000 : i * 1000 + 5000])
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(playground, page):
    commands = [line for line in between(page, "examples").splitlines() if line.startswith("shardmill")]
    assert len(commands) >= 3
    for command in commands:
        words, _, redirected = command.partition(" < ")
        given = (playground / redirected).read_bytes() if redirected else None
        done = run(*shlex.split(words)[1:], cwd=playground, input=given)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_the_python_examples_run(playground, page):
    done = subprocess.run(
        [sys.executable, "-c", between(page, "python")], cwd=playground, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_picture_shows_a_job_that_was_resumed():
    text = (ROOT / "docs/images/run.svg").read_text().replace("&#160;", " ")
    assert "^C" in text and text.count("shardmill prepare") == 2 and "resumed at" in text


def test_the_pages_name_options_that_exist():
    from shardmill.cli.main import cli

    options = [each for command in cli.commands.values() for each in command.params]
    known = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    others = {"--help", "--resume", "--long", "--data", "--data-path", "--input", "--train-data-path"}
    others |= {"--valid-data-path", "--rm", "--user"}  # of tokbin, zstd, the trainers and Docker
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/adr/*.md")]:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text()))
        assert named - known - others == set(), page.name


def test_the_command_reference_is_what_help_prints():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from make_cli_docs import PAGE, page
    finally:
        sys.path.pop(0)
    assert (ROOT / PAGE).read_text() == page(), "run `make docs`"


def test_the_file_tree_of_the_architecture_is_the_truth():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tree = re.search(r"```\nsrc/shardmill/\n(.*?)```", text, re.DOTALL)[1]
    listed = set(re.findall(r"(\w+\.py)", tree))
    there = {
        path.name
        for folder in ("src", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.startswith("__")
    } | {path.name for path in ROOT.glob("*.py")}
    assert listed == there


def test_the_walk_of_one_byte_names_functions_that_exist():
    walk = re.findall(r"`([\w/]+\.py): ([\w.]+)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(walk) > 20
    for file, name in walk:
        body = ast.parse((ROOT / "src/shardmill" / file).read_text()).body
        for part in name.split("."):
            found = [node for node in body if getattr(node, "name", None) == part]
            assert found, f"{file} has no {name}"
            body = found[0].body


def test_files_named_in_the_architecture_exist():
    for file in re.findall(r"`(\w+/[\w/]+\.(?:py|c|h))`", (ROOT / "ARCHITECTURE.md").read_text()):
        assert any((ROOT / folder / file).exists() for folder in (".", "src/shardmill")), file


def test_every_error_is_drawn_in_the_tree():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ShardmillError):
            assert re.search(rf"{name} +{kind.exit_code} ", errors.__doc__), name


def test_every_clause_of_the_format_is_cited_by_a_test():
    clauses = set(re.findall(r"\*\*([A-Z]\d+)\*\*", (ROOT / "FORMAT.md").read_text()))
    tests = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name
    )
    assert clauses and {clause for clause in clauses if not re.search(rf"\b{clause}\b", tests)} == set()


def test_links_in_the_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_make_alone_lists_the_targets():
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for target in ("demo", "test", "bench", "slow", "lint", "types"):
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_the_comparison_has_figures_of_shardmill(page):
    """`make compare` wrote it; the other tools may change, but a page without our own row was never measured."""
    text = (ROOT / page).read_text()
    rows = re.search(r"<!-- compare:start -->\n(.*?)<!-- compare:end -->", text, re.DOTALL)[1]
    assert "**shardmill**" in rows
