"""The command as a user meets it: what it says, where it says it, and with which code it leaves."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from command import SHARDMILL, run
from shardmill.cli.console import Reporter, fitting
from shardmill.cli.main import cli

WORDS = "the mill turns all the text into tokens and writes them down in order "


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text(WORDS * 3000)
    return tmp_path


def refused(done, code, *parts):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def nothing_final(folder):
    return not any((folder / name).exists() for name in ("train.bin", "val.bin", "manifest.json")) and not list(
        folder.glob("*.partial")
    )


def test_prepare_says_what_it_made_on_stderr_and_nothing_on_stdout(folder):
    done = run("prepare", "book.txt", "-o", "data", cwd=folder)
    assert done.returncode == 0 and done.stdout == ""
    for part in (
        "data/train.bin",
        "data/val.bin",
        "tokens",
        "bytes per token",
        "peak memory",
        'np.memmap("data/train.bin", dtype=np.uint16',
    ):
        assert part in done.stderr


def test_json_is_the_only_thing_on_stdout(folder):
    done = run("prepare", "book.txt", "-o", "data", "--json", "-q", cwd=folder)
    result = json.loads(done.stdout)
    assert done.stderr == ""
    assert result["manifest"] == json.loads((folder / "data/manifest.json").read_text())
    assert result["run"]["workers"] >= 1 and result["run"]["checked_share"] > 0


def test_quiet_prints_nothing(folder):
    done = run("prepare", "book.txt", "-o", "data", "-q", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_progress_json_ends_with_everything_done(folder):
    done = run("prepare", "book.txt", "-o", "data", "--progress", "json", cwd=folder)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert lines and lines[-1]["input_bytes"] == lines[-1]["total_bytes"] == (folder / "book.txt").stat().st_size


def test_the_bar_shows_on_a_terminal(folder):
    import pty

    (folder / "big.txt").write_text((WORDS * 1000 + "\n") * 400)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [SHARDMILL, "prepare", "big.txt", "-o", "data", "--engine", "reference"], cwd=folder, stderr=slave, stdout=slave
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait() == 0
    for part in (b"MB/s", b"tokens", b"left", b"memory"):
        assert part in shown


def test_a_finished_job_is_not_done_again(folder):
    run("prepare", "book.txt", "-o", "data", cwd=folder)
    before = (folder / "data/train.bin").stat().st_mtime_ns
    done = run("prepare", "book.txt", "-o", "data", cwd=folder)
    assert done.returncode == 0 and "already complete" in done.stderr
    assert (folder / "data/train.bin").stat().st_mtime_ns == before


def test_another_job_in_the_same_folder_is_refused_with_a_diff(folder):
    run("prepare", "book.txt", "-o", "data", cwd=folder)
    done = run("prepare", "book.txt", "-o", "data", "--seed", "7", cwd=folder)
    refused(done, 1, "--seed: was 0, is now 7", "--overwrite", "-o")
    assert run("prepare", "book.txt", "-o", "data", "--seed", "7", "--overwrite", cwd=folder).returncode == 0
    assert json.loads((folder / "data/manifest.json").read_text())["job"]["choices"]["seed"] == 7


def test_a_file_that_is_not_ours_is_kept(folder):
    (folder / "data").mkdir()
    (folder / "data/train.bin").write_bytes(b"mine")
    refused(run("prepare", "book.txt", "-o", "data", cwd=folder), 1, "data/train.bin", "--overwrite")
    assert (folder / "data/train.bin").read_bytes() == b"mine"


def test_other_files_in_the_output_folder_are_left_alone(folder):
    (folder / "prepare.py").write_text("# of nanoGPT")
    assert run("prepare", "book.txt", "-o", ".", cwd=folder).returncode == 0
    assert (folder / "prepare.py").read_text() == "# of nanoGPT" and (folder / "book.txt").stat().st_size == len(
        WORDS
    ) * 3000


def test_an_input_is_never_overwritten(folder):
    (folder / "val.bin").write_text(WORDS)
    (folder / "link.txt").symlink_to("val.bin")
    refused(run("prepare", "link.txt", "-o", ".", "--overwrite", cwd=folder), 2, "would be overwritten")
    assert (folder / "val.bin").read_text() == WORDS


def test_dry_run_and_estimate_write_nothing(folder):
    dry = run("prepare", "book.txt", "-o", "data", "--dry-run", cwd=folder)
    told = run("estimate", "book.txt", "-o", "data", cwd=folder)
    assert dry.returncode == told.returncode == 0
    for word in ("documents", "tokens", "output", "memory", "time"):
        assert word in dry.stdout and word in told.stdout
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (
            "latin.txt",
            "Ein Gruß aus Köln, déjà vu".encode("latin-1"),
            ["byte 7", "0xdf", "Latin-1", "iconv", "--on-error replace"],
        ),
        ("broken.txt", "Köln ".encode() * 20 + b"\xe4\xb8", ["byte 120", "not UTF-8", "damaged"]),
        ("wide.txt", "hello".encode("utf-16"), ["UTF-16", "iconv"]),
        ("wide.txt", ("plain words " * 20).encode("utf-16-le"), ["UTF-16LE", "iconv"]),
        ("wide.txt", ("plain words " * 20).encode("utf-16-be"), ["UTF-16BE", "iconv"]),
        ("empty.txt", b"", ["empty"]),
        ("rows.parquet", b"PAR1", ["footer", "damaged"]),
        ("rows.zip", b"PK", [".zip", "is not supported"]),
    ],
)
def test_bad_text_is_named_and_leaves_nothing(tmp_path, name, content, parts):
    (tmp_path / name).write_bytes(content)
    refused(run("prepare", name, "-o", "data", cwd=tmp_path), 1, name, *parts)
    assert nothing_final(tmp_path / "data")


def test_a_bad_byte_far_into_the_file_is_named_by_its_place(tmp_path):
    text = (WORDS * 60000).encode()
    (tmp_path / "long.txt").write_bytes(text + b"\xff" + text)
    refused(run("prepare", "long.txt", "-o", "data", cwd=tmp_path), 1, f"byte {len(text):,} (0xff)")
    assert sorted(os.listdir(tmp_path / "data")) == ["shardmill.journal", "train.bin.partial", "val.bin.partial"]
    done = run("prepare", "long.txt", "-o", "data", "--on-error", "replace", cwd=tmp_path)
    assert done.returncode == 0 and "resumed at" in done.stderr, "a policy that had not mattered may change"
    run("prepare", "long.txt", "-o", "whole", "--on-error", "replace", cwd=tmp_path)
    for name in ("train.bin", "val.bin", "manifest.json"):
        assert (tmp_path / "data" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "none").mkdir()
    refused(run("prepare", "absent.txt", "-o", "data", cwd=tmp_path), 1, "absent.txt", "no such file")
    refused(run("prepare", "*.text", "-o", "data", cwd=tmp_path), 1, "*.text", "no file matches")
    refused(run("prepare", "none", "-o", "data", cwd=tmp_path), 1, "none", "no text in this folder", ".txt")


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    secret = tmp_path / "secret.txt"
    secret.write_text("text")
    secret.chmod(0)
    drop = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    probe = subprocess.run([*drop, sys.executable, "-c", "import shardmill"], capture_output=True)
    if probe.returncode:
        pytest.skip("another user may not run this Python")
    code = f"from shardmill import Spec, prepare; prepare(Spec(inputs=[{str(secret)!r}], output='/nowhere'))"
    done = subprocess.run([*drop, sys.executable, "-c", code], capture_output=True, text=True)
    assert "secret.txt: permission denied" in done.stderr


def test_options_that_cannot_work_are_refused_with_the_remedy(folder):
    def go(*args):
        return run("prepare", "book.txt", "-o", "data", *args, cwd=folder)

    refused(go("--tokenizer", "cl100k_base", "--dtype", "uint16"), 2, "100,276", "uint32")
    refused(go("--tokenizer", "gpt5"), 2, "gpt5", "gpt2", "tokenizer.json")
    refused(go("--max-memory", "20MiB"), 2, "the smallest that works is")
    refused(go("--max-memory", "lots"), 2, "512MiB")
    refused(go("--val-fraction", "1.5"), 2, "1.5")
    refused(go("--separator", ""), 2, "separator")
    refused(go("--eot-token", "<|nope|>", "--eot", "after"), 2, "<|nope|>", "<|endoftext|>")
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("prepare", ["shardmill: missing argument 'INPUT...'", "Example: shardmill prepare book.txt -o data/"]),
        ("prepare book.txt", ["missing option '--output'", "more: shardmill prepare --help"]),
        ("prepare book.txt -o data --tokenizr x", ["no such option", "--tokenizer"]),
        ("prepare book.txt -o data --val-fraction half", ["is not a share; write it like 0.1 or 10%"]),
        ("preprare book.txt", ["no such command", "Example: shardmill prepare"]),
        *((f"{command} --nope", [f"Example: shardmill {command}"]) for command in cli.commands),
    ],
)
def test_arguments_that_are_wrong_are_told_in_one_line_and_an_example(folder, arguments, parts):
    done = run(*arguments.split(), cwd=folder)
    refused(done, 2, "shardmill: ", *parts)
    assert len(done.stderr.splitlines()) <= 2


def test_the_list_of_commands_has_whole_sentences(folder):
    told = run("--help", cwd=folder).stdout
    assert "..." not in told.partition("Commands:")[2] and "shardmill prepare book.txt -o data/" in told


def test_the_first_line_without_a_terminal_comes_soon(capfd):
    clock = iter([0.0, 1.0, 3.5, 3.5, 10.0, 34.0, 34.0])
    with patch("shardmill.cli.console.time.monotonic", lambda: next(clock)):
        reporter = Reporter("auto")
        for _ in range(4):
            reporter.show(["5 s left"], 1, 10)
    assert capfd.readouterr().err.splitlines() == ["10%, 5 s left"] * 2


def test_loading_fits_a_narrow_terminal():
    assert fitting(["loading the tokenizer gpt2", "looking at the inputs"], None, 39) == "loading the tokenizer gpt2"


def test_bytes_per_token_are_those_of_the_text_that_was_written(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps({"id": i, "text": f"{i} {WORDS}"}) + "\n" for i in range(500)))
    told = [
        run("prepare", "a.jsonl", "-o", f"data{n}", "--val-fraction", "0", *more, cwd=folder).stderr
        for n, more in enumerate([(), ("--sample", "20%")])
    ]
    found = [float(re.search(r"([0-9.]+) bytes per token", each)[1]) for each in told]
    assert 4 < found[0] < 5 and abs(found[0] - found[1]) < 0.1
    assert re.search(r"500 documents \(0 empty, [34]\d\d not in the sample\)", told[1])


def test_output_that_cannot_be_written_is_named(folder):
    refused(run("prepare", "book.txt", "-o", "book.txt", cwd=folder), 1, "is a file", "-o")
    refused(run("prepare", "book.txt", "-o", "/proc/nowhere", cwd=folder), 2, "/proc/nowhere", "-o")
    refused(run("prepare", "book.txt", "-o", "book.txt/data", cwd=folder), 2, "book.txt/data", "-o")


def test_a_name_with_terminal_escapes_is_not_printed_raw(tmp_path):
    name = "evil\x1b[2Jname.txt"
    (tmp_path / name).write_bytes(b"\xff")
    done = run("prepare", name, "-o", "data", cwd=tmp_path)
    assert done.returncode == 1 and "\x1b" not in done.stderr and "evil\\x1b[2Jname.txt" in done.stderr


def test_a_likely_separator_is_pointed_out_with_its_count(tmp_path):
    (tmp_path / "many.txt").write_text("<|endoftext|>".join(["A short story about a mill."] * 50))
    done = run("prepare", "many.txt", "-o", "data", cwd=tmp_path)
    assert "'<|endoftext|>' 49 times" in done.stderr and "--separator '<|endoftext|>'" in done.stderr
    done = run("prepare", "many.txt", "-o", "split", "--separator", "<|endoftext|>", cwd=tmp_path)
    assert "--separator" not in done.stderr and "50 documents" in done.stderr


def test_a_separator_that_never_occurs_is_pointed_out(folder):
    assert "does not occur" in run("prepare", "book.txt", "-o", "data", "--separator", "####", cwd=folder).stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_leaves_at_once_and_the_same_command_goes_on(tmp_path, number, code):
    with open(tmp_path / "big.txt", "w") as f:
        for i in range(2000):
            f.write(WORDS * 500 + f"{i}\n")
    process = subprocess.Popen(
        [SHARDMILL, "prepare", "big.txt", "-o", "data", "--engine", "reference"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "data/train.bin.partial").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    started = time.monotonic()
    said = process.communicate(timeout=30)[1]
    assert process.returncode == code and "same command" in said and "Traceback" not in said
    assert time.monotonic() - started < 20
    assert (tmp_path / "data/shardmill.journal").exists() and not (tmp_path / "data/train.bin").exists()
    assert "resumed at" in run("prepare", "big.txt", "-o", "data", cwd=tmp_path).stderr


def test_a_full_disk_is_reported_and_leaves_nothing_under_a_final_name(tmp_path):
    """A small tmpfs stands for the full disk; where mounting is not allowed there is nothing to test with."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode
    ):
        pytest.skip("tmpfs cannot be mounted here")
    try:
        (tmp_path / "book.txt").write_text(WORDS * 100000)
        refused(run("prepare", "book.txt", "-o", disk / "data", cwd=tmp_path), 75, "disk", "free")
        assert not list(disk.rglob("*.bin"))
        # Text whose samples promise less than it takes: the disk fills up while the job runs.
        (tmp_path / "book.txt").write_text("a" * 7_000_000)
        filler = disk / "filler"
        filler.write_bytes(b"\0" * 1_500_000)
        done = run("prepare", "book.txt", "-o", disk / "data", cwd=tmp_path)
        refused(done, 75, "free")
        assert not list(disk.rglob("*.bin"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_read_only_disk_is_reported(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], capture_output=True).returncode
    ):
        pytest.skip("tmpfs cannot be mounted here")
    try:
        (tmp_path / "book.txt").write_text(WORDS)
        refused(run("prepare", "book.txt", "-o", disk / "data", cwd=tmp_path), 1, "read-only", "-o")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_nul_bytes_are_text_and_a_byte_order_mark_is_not(tmp_path):
    (tmp_path / "nul.txt").write_bytes(b"a\0b\0\0c and more text")
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfmarked text")
    done = run("prepare", "nul.txt", "bom.txt", "-o", "data", "--val-fraction", "0", "--json", "-q", cwd=tmp_path)
    assert json.loads(done.stdout)["manifest"]["counts"]["byte_order_marks"] == 1
    from shardmill.tokens.reference import load_reference
    from shardmill.tokens.tokenizer import load

    encode = load_reference(load("gpt2")).encode
    expected = [*encode(b"a\0b\0\0c and more text"), 50256, *encode(b"marked text"), 50256]
    assert np.fromfile(tmp_path / "data/train.bin", "<u2").tolist() == expected


def cpu_seconds(*args, cwd):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([SHARDMILL, *args], cwd=cwd, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_and_a_small_file_cost_little(tmp_path):
    """Processor time, since the machine may be busy with other tests; `make bench` measures the wall clock."""
    (tmp_path / "mb.txt").write_text((WORDS * 20000)[:1_000_000])
    assert min(cpu_seconds("--help", cwd=tmp_path) for _ in range(3)) < 0.5
    assert min(cpu_seconds("prepare", "mb.txt", "-o", f"data{i}", cwd=tmp_path) for i in range(3)) < 2.0
