"""The shape of the code: who may import whom, and how long files may grow."""

import ast
import re
from pathlib import Path

import shardmill

ROOT = Path(shardmill.__file__).parent

# A module imports only from lines above its own.
ORDER = [
    "errors",
    "machine",
    "names",
    "spec",
    "compiled",
    "backlog",
    "patience",
    "http",
    "remote",
    "places",
    "reading",
    "inputs",
    "storage",
    "shelf",
    "store",
    "lock",
    "rejects",
    "cuts",
    "documents.pieces",
    "documents.utf8",
    "documents.snappy",
    "documents.compression",
    "documents.detect",
    "documents.rules",
    "documents.passages",
    "documents.text",
    "documents.values",
    "documents.records",
    "documents.jsonscan",
    "documents.fastlines",
    "documents.jsonl",
    "documents.tables",
    "documents.warc",
    "documents.columns",
    "documents.pages",
    "documents.longpages",
    "documents.needs",
    "documents.parquet",
    "documents.arrow",
    "sources",
    "plan",
    "tokens.families",
    "tokens.tokenizer",
    "tokens.reference",
    "tokens.gigatoken",
    "tokens.native",
    "tokens.guard",
    "tokens.encoder",
    "tokens.check",
    "split",
    "formats.files",
    "formats.shards",
    "formats.streaming",
    "formats.registry",
    "formats.olmo",
    "formats.sides",
    "formats.writer",
    "manifest",
    "listing",
    "journal",
    "ends",
    "corpus",
    "foreign",
    "budget",
    "job",
    "firstpass",
    "folder",
    "shipping",
    "marks",
    "transfer",
    "inspection",
    "estimates",
    "block",
    "quota",
    "line",
    "notes",
    "mill",
    "verification",
    "console",
    "cli_outputs",
    "cli",
]
COMMAND_LINE = {"console", "cli_outputs", "cli"}
DOORS = {
    "gigatoken": {"tokens.gigatoken"},
    "tiktoken": {"tokens.reference"},
    "tokenizers": {"tokens.families", "tokens.reference"},
    "huggingface_hub": {"places", "tokens.tokenizer"},
    "fsspec": {"places"},
    "s3fs": {"places"},
    "botocore": {"places"},
    "gcsfs": {"places"},
    "requests": {"http"},
    "urllib3": {"http"},
    "pyarrow": {
        "documents.utf8",
        "documents.snappy",
        "documents.columns",
        "documents.longpages",
        "documents.parquet",
        "documents.arrow",
    },
    "msgspec": {"documents.jsonl"},
    "backports": {"documents.compression"},
    "isal": {"documents.compression"},
    "click": COMMAND_LINE,
    "rich": COMMAND_LINE,
}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.endswith(("__init__", "__main__")):
            yield name, path, ast.parse(path.read_text())


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_its_place_in_the_order():
    assert sorted(name for name, _, _ in modules()) == sorted(ORDER)


def test_a_module_imports_only_from_above():
    for name, _, tree in modules():
        ours = {i.removeprefix("shardmill.") for i in imports(tree) if i.startswith("shardmill.")} & set(ORDER)
        late = {other for other in ours if ORDER.index(other) >= ORDER.index(name)}
        assert not late, f"{name} imports {late}"


def test_each_foreign_library_has_one_door():
    for name, _, tree in modules():
        for library in {i.split(".")[0] for i in imports(tree)} & set(DOORS):
            assert name in DOORS[library], f"{name} imports {library}"


def test_only_the_command_line_prints_exits_or_reads_the_environment():
    for name, path, _ in modules():
        if name not in COMMAND_LINE:
            assert not re.search(r"\bprint\(|os\.environ|os\.getenv|sys\.exit", path.read_text()), name


def test_every_module_says_first_what_it_is_for():
    for name, _, tree in modules():
        assert ast.get_docstring(tree), name


def test_files_and_functions_stay_readable():
    for name, path, tree in modules():
        assert len(path.read_text().splitlines()) <= 450, name
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                # the list of options, and the commands that get them all, are as long as there are options
                assert name in COMMAND_LINE or node.end_lineno - node.lineno <= 60, f"{name}.{node.name}"
                assert name in COMMAND_LINE or len(node.args.args) + len(node.args.kwonlyargs) <= 7, (
                    f"{name}.{node.name}"
                )
