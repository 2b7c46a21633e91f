"""Completion in the shell: as docs/guide.md says, in the shells themselves where they are installed, and by their protocol."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from command import SHARDMILL

GUIDE = (Path(__file__).parent.parent / "docs/guide.md").read_text()
LINES = {
    shell: line.replace("\\|", "|")
    for shell, line in re.findall(r"^\| (bash|zsh|fish)\b.*? \| `(_SH.*|eval.*)` \|$", GUIDE, re.MULTILINE)
}


def environment(**more):
    return {**os.environ, "PATH": f"{SHARDMILL.parent}:{os.environ['PATH']}", **more}


def by_protocol(shell, words, begun):
    """What the functions that the shells evaluate would be told."""
    given = {"COMP_WORDS": " ".join(words), "COMP_CWORD": begun if shell == "fish" else str(len(words) - 1)}
    env = environment(_SHARDMILL_COMPLETE=f"{shell}_complete", **given)
    return subprocess.run([SHARDMILL], env=env, capture_output=True, text=True, check=True).stdout


def in_bash(line, cwd):
    """What bash offers after the line of the guide, with the cursor at the end of this one."""
    script = f"""{LINES["bash"]}
COMP_WORDS=({line}{" ''" if line.endswith(" ") else ""}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
complete -p shardmill >/dev/null || exit 1
_shardmill_completion shardmill
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], cwd=cwd, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_their_values(tmp_path):
    assert in_bash("shardmill pre", tmp_path) == ["prepare"]
    assert "--tokenizer" in in_bash("shardmill prepare book.txt --tok", tmp_path)
    assert in_bash("shardmill prepare --tokenizer cl", tmp_path) == ["cl100k", "cl100k_base"]
    assert "qwen3" in in_bash("shardmill tokenizers qw", tmp_path)
    assert "megatron" in in_bash("shardmill convert data --format ", tmp_path)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_and_values(tmp_path):
    script = f'{LINES["fish"]}; complete -C "shardmill pre"; complete -C "shardmill prepare --tokenizer cl"'
    env = environment(HOME=str(tmp_path))
    done = subprocess.run(["fish", "--no-config", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["prepare", "cl100k", "cl100k_base"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_registers_the_command_and_describes_commands(tmp_path):
    """What would be shown is printed: outside a terminal zsh completes nothing."""
    script = f"""autoload -Uz compinit && compinit -u -D
{LINES["zsh"]}
_describe() {{ print -l ${{(P)4:-}} ${{(P)3:-}} }}
print $_comps[shardmill]
words=(shardmill pre) CURRENT=2
_shardmill_completion
"""
    env = environment(HOME=str(tmp_path))
    done = subprocess.run(["zsh", "-f", "-c", script], env=env, capture_output=True, text=True)
    assert "_shardmill_completion\n" in done.stdout and "prepare:Tokenize" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_calls_the_command(shell):
    assert f"_SHARDMILL_COMPLETE={shell}_source shardmill" in LINES[shell]
    script = subprocess.run(
        [SHARDMILL], env=environment(_SHARDMILL_COMPLETE=f"{shell}_source"), capture_output=True, text=True, check=True
    ).stdout
    assert f"_SHARDMILL_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_told_the_same(shell):
    assert "prepare" in by_protocol(shell, ["shardmill", "pre"], "pre")
    assert "--tokenizer" in by_protocol(shell, ["shardmill", "prepare", "--tok"], "--tok")
    assert "megatron" in by_protocol(shell, ["shardmill", "convert", "--format", "mega"], "mega")


@pytest.mark.parametrize(
    "words, kind", [(["prepare", "bo"], "file"), (["prepare", "-o", "da"], "dir"), (["verify", "da"], "dir")]
)
def test_inputs_are_files_and_outputs_folders(words, kind):
    assert by_protocol("bash", ["shardmill", *words], words[-1]).split(",")[0] == kind
