"""What the package offers; a new name or flag must be argued for."""

import dataclasses
import doctest
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import shardmill
from shardmill import Limits, Spec, Target
from shardmill.cli.main import cli

CLASSES = {
    "Corpus", "Counts", "Documents", "Estimate", "Lengths", "Limits", "Manifest", "Origin", "Packing", "Problem",
    "Progress", "Range", "Result", "Shard", "SidecarFile", "Source", "Spec", "Split", "SplitText", "Start", "Statistics", "Target",
    "Text", "Verified", "Windows",
}  # fmt: skip
ERRORS = {
    "ContentError", "InputError", "MismatchError", "OutputError", "ShardmillError", "TemporaryError", "UsageError",
}  # fmt: skip
FUNCTIONS = {
    "bits_per_byte", "convert", "estimate", "inspect", "merge", "open", "pack", "prepare", "samples_of", "token_bytes",
    "verify",
}  # fmt: skip


def test_the_public_names_are_these_and_dir_shows_nothing_else():
    assert set(shardmill.__all__) == CLASSES | ERRORS | FUNCTIONS | {"__version__"}
    assert dir(shardmill) == sorted(shardmill.__all__)
    assert all(getattr(shardmill, name) is not None for name in shardmill.__all__)
    with pytest.raises(AttributeError):
        shardmill.nothing  # noqa: B018


def types_in(hint):
    """The classes of shardmill that an annotation names."""
    if isinstance(hint, type) and hint.__module__.startswith("shardmill"):
        yield hint
    for inner in typing.get_args(hint):
        for each in inner if isinstance(inner, list) else [inner]:
            yield from types_in(each)


def test_everything_that_a_public_function_takes_or_gives_is_public():
    """The parts of a Corpus and of a Split are their own business: what they give is arrays."""
    exported = {getattr(shardmill, name) for name in CLASSES}
    todo = [getattr(shardmill, name) for name in FUNCTIONS]
    for each in todo:
        fields = () if each in (shardmill.Corpus, shardmill.Split) else typing.get_type_hints(each).values()
        for found in (found for hint in fields for found in types_in(hint)):
            assert found in exported, f"{each.__name__} needs {found.__name__}"
            if found not in todo:
                todo.append(found)
    errors = {getattr(shardmill, name) for name in ERRORS}
    assert {value for value in vars(shardmill.errors).values() if isinstance(value, type)} == errors


USER = """
from pathlib import Path

import shardmill
from shardmill import Limits, Progress, ShardmillError, Spec, Target


def show(progress: Progress) -> None:
    print(progress.input_bytes, progress.phase)


def copied(done: int, total: int) -> None:
    print(done, total)


def main() -> int:
    spec = Spec(inputs=["book.txt", Path("more.txt")], output=Path("data"), val_fraction=0.1, split="tail")
    limits = Limits(workers=1, max_memory=512 << 20)
    guess: shardmill.Estimate = shardmill.estimate(spec, limits=limits)
    likely: shardmill.Range = guess.tokens
    try:
        result: shardmill.Result = shardmill.prepare(spec, limits=limits, on_progress=show, overwrite=True)
    except (shardmill.UsageError, shardmill.InputError, shardmill.OutputError) as e:
        return e.exit_code
    except ShardmillError:
        raise
    counts: shardmill.Counts = result.manifest.counts
    shard: shardmill.Shard = result.manifest.files[0]
    sidecars: tuple[shardmill.SidecarFile, ...] = result.manifest.sidecars
    corpus: shardmill.Corpus = shardmill.open("data", tokenizer="gpt2")
    for name in corpus:
        split: shardmill.Split = corpus[name]
        first: int = split[0]
        text: str = corpus.decode(split[:10]) + corpus.decode([first])
    print({name: len(split) for name, split in corpus.items()}, list(corpus.keys()), "val" in corpus, corpus.get("test"))
    target = Target(output="new", format="megatron", eot="after", index=True)
    one: shardmill.Manifest = shardmill.convert("data", target, from_dtype="auto", eot_id=None, on_progress=copied)
    many = shardmill.merge(["data", Path("data")], Target(output=Path("both")), on_progress=copied)
    checked: shardmill.Verified = shardmill.verify("data", sources=["book.txt", Path("more.txt")], reference="all")
    problems: list[shardmill.Problem] = list(checked.problems)
    found: dict[str, shardmill.Statistics] = shardmill.inspect(Path("data"))
    lengths: shardmill.Lengths | None = found["train"].lengths
    written: shardmill.Text | None = result.manifest.text
    train: shardmill.SplitText | None = written.train if written else None
    shardmill.prepare(Spec(inputs=["book.txt", "more.txt"], output="indexed", index=True, provenance=True, val_fraction=0))
    plan: shardmill.Packing = shardmill.pack("indexed", length=16, output=Path("a.plan"))
    source = shardmill.Source(path="indexed", plan="a.plan")
    rows = shardmill.Windows({"book": source}, length=16, seed=1, documents=shardmill.Documents(most=4))
    origin: shardmill.Origin = rows.where(0)[0]
    bits = shardmill.bits_per_byte([1.0], [13], shardmill.token_bytes("indexed"))
    print(train, plan.lost, rows.batch(shardmill.samples_of(0, 2))["labels"].shape, rows.resume(rows.state(2)), origin.path, bits)
    print(likely.middle, counts.documents, shard.tokens, sidecars, text, one.tokens, many.dtype, problems, lengths)
    return 0 if checked.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
"""


def test_a_program_that_uses_everything_passes_mypy_strict_and_runs(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    for name in ("book.txt", "more.txt"):
        (tmp_path / name).write_text("The mill turns text into tokens.\n" * 50)
    env = {**os.environ, "PYTHONPATH": str(Path(shardmill.__file__).parents[1])}
    env["MYPYPATH"] = env["PYTHONPATH"]
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "user.py"]
    for command in (mypy, [sys.executable, "user.py"]):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert {name for name in CLASSES - {"Progress", "Start"} if f"shardmill.{name}" not in USER} == {
        "Limits",
        "Spec",
        "Target",
    }


def test_the_examples_in_the_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    for i in range(100):
        (tmp_path / f"corpus/{i}.txt").write_text(f"The mill turns story {i} into tokens.\n" * 100)
    names = {"shardmill": shardmill, "Spec": Spec, "Target": Target, "Limits": Limits}
    documented = {
        name: getattr(shardmill, name)
        for name in (*FUNCTIONS, "Corpus", "Source", "Spec", "Target", "Limits", "Windows")
    }
    for name, value in {"": shardmill, **documented}.items():
        test = doctest.DocTestParser().get_doctest(value.__doc__, dict(names), name, None, None)
        assert test.examples and doctest.DocTestRunner().run(test).failed == 0, name


def test_values_show_themselves_in_one_line(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"Line {i}.\n" for i in range(5000)))
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\n", val_fraction=0.1)
    result = shardmill.prepare(spec)
    corpus = shardmill.open(tmp_path / "out")
    values = [spec, Limits(), Target(output="x"), shardmill.estimate(spec), result, result.manifest, corpus]
    values += [corpus["train"], shardmill.verify(tmp_path / "out"), shardmill.inspect(tmp_path / "out")["val"]]
    for value in values:
        assert "\n" not in repr(value) and repr(value).startswith(f"{type(value).__name__}("), repr(value)
    assert len(repr(result.manifest)) < 200 and len(repr(corpus)) < 300 and len(repr(corpus["train"])) < 100


COMMON = {
    "--tokenizer", "--separator", "--eot", "--eot-token", "--val-fraction", "--val-tokens", "--split", "--seed", "--dtype",
    "--on-error", "--max-rejects", "--input-format", "--field", "--sample", "--limit-documents", "--limit-tokens",
    "--workers", "--max-memory", "--engine", "--json", "--output", "--format", "--shard-tokens", "--sample-tokens",
    "--index", "--provenance", "--staging", "--max-staging", "--include", "--exclude", "--where", "--config", "--save-config",
}  # fmt: skip
TARGET = {"--output", "--shard-tokens", "--sample-tokens", "--index", "--overwrite", "--sync", "--json"}


def flags(command):
    """The first long name of each option."""
    return {
        next(name for name in param.opts if name[:2] == "--") for param in command.params if param.opts[0][0] == "-"
    }


def test_the_flags_are_these():
    assert {name: flags(command) for name, command in cli.commands.items()} == {
        "prepare": COMMON | {"--overwrite", "--dry-run", "--progress", "--quiet"},
        "estimate": COMMON,
        "verify": {"--source", "--reference", "--tokenizer", "--workers", "--max-memory", "--json", "--quiet"},
        "merge": TARGET,
        "convert": TARGET | {"--format", "--from-format", "--from-dtype", "--dtype", "--eot-id", "--eot"},
        "inspect": {"--documents", "--tokenizer", "--json"},
        "doctor": {"--output", "--json"},
        "pack": {"--length", "--strategy", "--long", "--split", "--seed", "--window", "--output", "--json"}
        | {"--from-format", "--from-dtype", "--eot-id"},
        "tokenizers": {"--json", "--sweep"},
    }
    everything = {name for command in cli.commands.values() for param in command.params for name in param.opts}
    known = {name for command in cli.commands.values() for name in flags(command)}
    assert {name for name in everything if name[:2] == "--"} - known == {"--column", "--to", "--from"}, (
        "older names that scripts may use"
    )


ONLY_PYTHON = {"max_run_bytes", "passage_bytes", "block_bytes", "cache", "checkpoint_seconds", "checkpoint_bytes", "network_seconds"}  # fmt: skip


def test_the_command_line_and_python_use_the_same_words():
    def named(*kinds):
        fields = {field.name for kind in kinds for field in dataclasses.fields(kind)} - ONLY_PYTHON - {"inputs"}
        return {"--" + name.replace("_", "-") for name in fields}

    about_the_run = {"--json", "--quiet", "--progress", "--dry-run", "--overwrite", "--config", "--save-config"}
    assert flags(cli.commands["prepare"]) - about_the_run == named(Spec, Limits)
    asked = set(shardmill.convert.__annotations__) - {"source", "target", "on_progress", "return"}
    assert flags(cli.commands["convert"]) - {"--json"} == named(Target) | {
        "--" + name.replace("_", "-") for name in asked
    }
    asked = set(shardmill.verify.__annotations__) - {"output", "sources", "limits", "on_progress", "return"}
    shared = {"--json", "--quiet", "--workers", "--max-memory", "--source"}
    assert flags(cli.commands["verify"]) - shared == {f"--{name}" for name in asked}


def test_every_flag_has_help_that_is_a_sentence():
    for command in cli.commands.values():
        assert command.help
        for param in command.params:
            assert param.param_type_name == "argument" or re.fullmatch(r"[\w-].*\.", param.help), param.name


def test_importing_the_package_loads_no_tokenizer():
    code = "import sys, shardmill.cli.main; sys.exit(bool({'numpy', 'tiktoken', 'pyarrow', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_python_m_shardmill_is_the_command():
    done = subprocess.run([sys.executable, "-m", "shardmill", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and shardmill.__version__ in done.stdout


def test_the_version_is_written_once():
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert 'dynamic = ["version"' in project and shardmill.__version__ not in project
