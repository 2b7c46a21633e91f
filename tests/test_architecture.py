"""The shape of the code: who may import whom, and how long files may grow."""

import ast
import functools
import re
from pathlib import Path

import shardmill

ROOT = Path(shardmill.__file__).parent

# A folder imports only from those before it; inside a folder nothing goes round in a circle.
ORDER = [
    "errors",
    "system",
    "spec",
    "io",
    "tokens",
    "documents",
    "inputs",
    "formats",
    "record",
    "job",
    "results",
    "feed",
    "torch",
    "cli",
]
DOORS = {
    "tiktoken": {"tokens.reference", "tokens.sweep"},
    "tokenizers": {"tokens.added", "tokens.families", "tokens.normalize", "tokens.reference", "tokens.sweep"},
    "huggingface_hub": {"io.urls", "tokens.tokenizer"},
    "fsspec": {"io.urls"},
    "s3fs": {"io.urls"},
    "botocore": {"io.urls"},
    "gcsfs": {"io.urls"},
    "requests": {"io.http"},
    "urllib3": {"io.http"},
    "pyarrow": {
        "documents.utf8",
        "io.snappy",
        "documents.columnar.columns",
        "documents.columnar.filtered",
        "documents.columnar.pages",
        "documents.columnar.parquet",
        "documents.columnar.arrow",
        "results.parquet",
    },
    "torch": {"torch"},
    "backports": {"io.zstd"},
    "isal": {"io.compression"},
    "click": {"cli.config", "cli.main", "cli.results", "cli.options", "cli.doctor", "cli.pack", "cli.tokenizers"},
    "tomli": {"cli.config"},
    "rich": {"cli.results", "cli.console"},
}


@functools.cache
def modules():
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
    return [
        (name, path, ast.parse(path.read_text()))
        for name, path in paths.items()
        if not name.endswith(("__init__", "__main__"))
    ]


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name):
    return name.split(".")[0]


def used_by(tree, names):
    return {i.removeprefix("shardmill.") for i in imports(tree) if i.startswith("shardmill.")} & names


def test_every_module_has_its_room():
    assert {room(name) for name, _, _ in modules()} == set(ORDER)


def test_imports_go_only_upwards():
    names = {name for name, _, _ in modules()}
    for name, _, tree in modules():
        late = {other for other in used_by(tree, names) if ORDER.index(room(other)) > ORDER.index(room(name))}
        assert not late, f"{name} imports {late}"


def test_no_imports_go_round_in_a_circle():
    names = {name for name, _, _ in modules()}
    left = {name: used_by(tree, names) - {name} for name, _, tree in modules()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_each_foreign_library_has_one_door():
    for name, _, tree in modules():
        for library in {i.split(".")[0] for i in imports(tree)} & set(DOORS):
            assert name in DOORS[library], f"{name} imports {library}"


def test_only_the_command_line_prints_exits_or_reads_the_environment():
    for name, path, _ in modules():
        if room(name) != "cli":
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
                assert room(name) == "cli" or node.end_lineno - node.lineno <= 60, f"{name}.{node.name}"
                assert room(name) == "cli" or len(node.args.args) + len(node.args.kwonlyargs) <= 7, (
                    f"{name}.{node.name}"
                )


def test_faults_that_were_mended_can_still_be_put_back(monkeypatch):
    monkeypatch.syspath_prepend(ROOT.parent.parent / "tools")
    import put_back

    places = [place for places, _ in put_back.FAULTS.values() for place in places]
    assert [(file, now) for file, now, _ in places if now not in (ROOT / file).read_text(encoding="utf-8")] == []
