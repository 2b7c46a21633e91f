"""What the package offers; a new name or flag must be argued for."""

import subprocess
import sys

import shardmill
from shardmill.cli.main import cli


def test_the_public_names_are_these():
    assert shardmill.__all__ == [
        "Corpus", "Estimate", "Limits", "Problem", "Progress", "Result", "ShardmillError", "Spec", "Target", "Verified",
        "__version__", "convert", "estimate", "merge", "open", "prepare", "verify",
    ]  # fmt: skip
    assert all(getattr(shardmill, name) is not None for name in shardmill.__all__)
    assert callable(shardmill.estimate) and callable(shardmill.prepare) and callable(shardmill.verify)


COMMON = {
    "--tokenizer", "--separator", "--eot", "--eot-token", "--val-fraction", "--split", "--seed", "--dtype",
    "--on-error", "--max-rejects", "--input-format", "--column", "--sample", "--limit-documents", "--limit-tokens", "--workers", "--max-memory", "--engine", "--json", "--output",
    "--format", "--shard-tokens", "--sample-tokens", "--index", "--provenance", "--staging", "--max-staging",
}  # fmt: skip
TARGET = {"--output", "--shard-tokens", "--sample-tokens", "--index", "--overwrite", "--sync", "--json"}


def test_the_flags_are_these():
    flags = {
        name: {max(p.opts, key=len) for p in command.params if p.opts[0].startswith("-")}
        for name, command in cli.commands.items()
    }
    assert flags == {
        "prepare": COMMON | {"--overwrite", "--dry-run", "--progress", "--quiet"},
        "estimate": COMMON,
        "verify": {"--source", "--reference", "--tokenizer", "--workers", "--max-memory", "--json", "--quiet"},
        "merge": TARGET,
        "convert": TARGET | {"--to", "--from", "--from-dtype", "--dtype", "--eot-id", "--eot"},
        "inspect": {"--documents", "--tokenizer", "--json"},
    }


def test_every_flag_has_help():
    for command in cli.commands.values():
        for param in command.params:
            assert param.param_type_name == "argument" or param.help, param.name


def test_importing_the_package_loads_no_tokenizer():
    code = "import sys, shardmill.cli.main; sys.exit(bool({'numpy', 'gigatoken', 'tiktoken', 'pyarrow', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_python_m_shardmill_is_the_command():
    done = subprocess.run([sys.executable, "-m", "shardmill", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and shardmill.__version__ in done.stdout
