"""`make picture`: docs/images/run.svg, a real run on a terminal: Ctrl-C in the middle, the same command again, verify.

    python tools/make_picture.py [TEXT]

TEXT is a UTF-8 text of some hundred megabytes; without it, the bundled sample is repeated. Fails if the job did not
resume, or if its files differ from those of an uninterrupted run.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "samples/tinyshakespeare.txt"
PICTURE = ROOT / "docs/images/run.svg"
LEAST_BYTES = 250_000_000
DOCUMENT_CHARACTERS = 1900
COLUMNS = 96
MARGIN = 4  # room for ^C behind the bar
PREPARE = "shardmill prepare corpus.jsonl -o data/"
VERIFY = "shardmill verify data/ --source corpus.jsonl"
PROGRESS = re.compile(r"([\d.]+) (\w+) of ([\d.]+) (\w+), .*tokens")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# The bar is shown as it was at these shares of the input; at the first, Ctrl-C is pressed.
INTERRUPTED_AT, SHOWN_AT = 0.4, 0.8
RED, GREEN, OTHER = (255, 123, 114), (63, 185, 80), (177, 186, 196)
THEME = TerminalTheme((22, 27, 34), (230, 237, 243), [OTHER, RED, GREEN, *[OTHER] * 5])
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Run:
    """What a command did on the terminal: the bar as it once was, and the screen at the end."""

    code: int
    bar: str
    screen: list[str]


def main() -> None:
    text = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE
    PICTURE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PICTURE.parent) as name:
        folder = Path(name)
        write_documents(text, folder / "corpus.jsonl")
        stopped = on_a_terminal(PREPARE, folder, at=INTERRUPTED_AT, interrupt=True)
        resumed = on_a_terminal(PREPARE, folder, at=SHOWN_AT)
        verified = on_a_terminal(VERIFY, folder)
        check(folder, [stopped.code, resumed.code, verified.code])
    runs = ((PREPARE, stopped), (PREPARE, resumed), (VERIFY, verified))
    PICTURE.write_text(drawn(runs), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


def write_documents(text: Path, file: Path) -> None:
    """Paragraphs of the text as documents of a web page's length; a short text again and again, with a counter."""
    with open(file, "w", encoding="utf-8") as lines:
        copy = 0
        while lines.tell() < LEAST_BYTES:
            document: list[str] = [f"Copy {copy}"] if copy else []
            for paragraph in re.split(r"\n\n+", text.read_text(encoding="utf-8")):
                document.append(paragraph)
                if sum(map(len, document)) > DOCUMENT_CHARACTERS:
                    lines.write(json.dumps({"text": "\n\n".join(document)}, ensure_ascii=False) + "\n")
                    document = []
            copy += 1


def on_a_terminal(command: str, folder: Path, *, at: float = 0, interrupt: bool = False) -> Run:
    """Run a command in a terminal of its own; keep the bar as it is once that share is done, and press Ctrl-C there."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
        os.execve(sys.executable, [sys.executable, "-m", *command.split()], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    output, bar = b"", ""
    with contextlib.suppress(OSError):  # EIO: the command has ended
        while True:
            select.select([terminal], [], [])
            output += os.read(terminal, 1 << 16)
            if at and not bar and share_done(now := last_drawn(output)) >= at:
                bar = now
                if interrupt:
                    os.write(terminal, b"\x03")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)
    return Run(code, bar, screen_of(output))


def last_drawn(output: bytes) -> str:
    """The progress line as it was last drawn whole: behind a carriage return, up to where the rest is erased."""
    drawn = [line for line in output.decode("utf-8", "ignore").split("\r") if line.endswith("\x1b[K")]
    return drawn[-1].removesuffix("\x1b[K") if drawn else ""


def share_done(line: str) -> float:
    found = PROGRESS.search(Text.from_ansi(line).plain)
    if found is None:
        return 0.0
    done, unit, total, of = found.groups()
    return float(done) * UNITS[unit] / (float(total) * UNITS[of])


def screen_of(output: bytes) -> list[str]:
    """What a terminal shows: lines, with their colours; what follows a carriage return replaces a line."""
    lines = [""]
    for part in re.split(r"(\r?\n|\r)", output.decode("utf-8", "replace").replace("\x1b[K", "")):
        if part.endswith("\n"):
            lines.append("")
        else:
            lines[-1] = "" if part == "\r" else lines[-1] + part
    return [line for line in lines if Text.from_ansi(line).plain.strip()]


def check(folder: Path, codes: list[int]) -> None:
    """The picture must be true: stopped by Ctrl-C, resumed, and the bytes of a run that nobody interrupted."""
    if codes != [130, 0, 0]:
        sys.exit(f"picture: exit codes {codes}, not [130, 0, 0]")
    if not json.loads((folder / "data/run.json").read_text())["resumed_bytes"]:
        sys.exit("picture: the second run did not resume; give a larger text")
    again = [sys.executable, "-m", "shardmill", "prepare", "corpus.jsonl", "-o", "again/", "-q"]
    subprocess.run(again, cwd=folder, check=True)
    for name in ("train.bin", "val.bin", "manifest.json"):
        if (folder / "data" / name).read_bytes() != (folder / "again" / name).read_bytes():
            sys.exit(f"picture: {name} differs from that of an uninterrupted run")


def drawn(runs: tuple[tuple[str, Run], ...]) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(
            record=True, width=COLUMNS + MARGIN, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for number, (command, run) in enumerate(runs):
            console.print(*[""] if number else [], Text.assemble(("$ ", "bold green"), (command, "bold")), sep="\n")
            bar = Text.from_ansi(run.bar)
            bar = bar.append(" ^C", "bold red") if run.code else bar
            for line in run.screen:
                if run.bar and line.startswith(("shardmill: ", "data/")):  # it was there before these
                    console.print(bar, soft_wrap=True)
                    run = dataclasses.replace(run, bar="")
                if line.strip() != "^C":
                    console.print(Text.from_ansi(line.replace("^C", "")), highlight=False)
    svg = console.export_svg(title="shardmill", theme=THEME, unique_id="shardmill-run")
    without_web_fonts = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return without_web_fonts.replace("Fira Code, monospace", FONT)


if __name__ == "__main__":
    main()
