"""What a terminal shows, as captured by tmux and kept beside this file: `SHARDMILL_TERMINAL=write` writes the captures anew.

Numbers differ from run to run, so each becomes 0, and a bar of any length becomes the same.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHARDMILL = Path(sys.executable).with_name("shardmill")
COMMAND = f"{SHARDMILL} prepare big.txt -o data --engine reference --workers 1 --max-memory 400MiB"
WORDS = "".join(
    f"on day {n} the mill turned all the text into tokens and wrote them down in order\n" for n in range(1000)
)


def captured(folder, columns, prefix=""):
    """The screen while the job is under way, and when it has ended."""
    (folder / "big.txt").write_text(WORDS * 160)
    tmux = ["tmux", "-L", f"shardmill-{os.getpid()}"]
    shell = f"cd {folder}; {prefix} {COMMAND}; sleep 60"
    size = ["-x", str(columns), "-y", "24"]
    env = {**os.environ, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    subprocess.run([*tmux, "-u", "new-session", "-d", *size, "sh", "-c", shell], check=True, env=env)
    try:
        during = after = ""
        until = time.monotonic() + 60
        while "load it" not in after and time.monotonic() < until:
            after = subprocess.run(
                [*tmux, "capture-pane", "-p", "-J"], capture_output=True, text=True, check=True
            ).stdout
            if re.search(r"\d% |\d%,", after) and "load it" not in after:
                during = after
            time.sleep(0.05)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return during, after


def normalized(screen):
    lines = [line.rstrip() for line in screen.splitlines()]
    text = "\n".join(line for line in lines if line)
    text = re.sub(r"[█░]+", "█░", text)
    text = re.sub(r"(?<!\w)\d[\d,]*\d(\.\d+)*|(?<!\w)\d(\.\d+)*", "0", text)
    return re.sub(r"\b0 (B|KiB|MiB|GiB)\b", "0 MiB", re.sub(r" +(?=0%)", "", text)).replace("0 min", "0 s") + "\n"


def without_progress(lines):
    """On a machine that is busy, three seconds may pass."""
    return re.sub(r"^ *\d+%, .*\n", "", lines, flags=re.MULTILINE)


def same(name, screen):
    file = HERE / f"{name}.txt"
    if os.environ.get("SHARDMILL_TERMINAL") == "write":
        file.write_text(normalized(screen))
    assert normalized(screen) == file.read_text()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize(("columns", "prefix"), [(130, ""), (60, ""), (130, "NO_COLOR=1")])
def test_the_screen_is_as_kept(tmp_path, columns, prefix):
    during, after = captured(tmp_path, columns, prefix)
    same(f"{columns}-columns-during", during)
    same(f"{columns}-columns-after", after)


def test_a_dumb_terminal_gets_whole_lines(tmp_path):
    (tmp_path / "big.txt").write_text(WORDS * 10)
    command = ["script", "-qec", COMMAND, "/dev/null"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "TERM": "dumb"})
    assert "\x1b" not in done.stdout
    same("dumb", without_progress(done.stdout))


def test_without_a_terminal_the_first_lines_come_before_the_work(tmp_path):
    (tmp_path / "big.txt").write_text(WORDS * 10)
    done = subprocess.run(COMMAND.split(), cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "" and "\x1b" not in done.stderr
    same("none", without_progress(done.stderr))
