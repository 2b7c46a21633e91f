"""What must not be mixed is refused: another job in the folder, changed inputs, a second process, links that lead elsewhere."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from jobs import command, drive, result

import shardmill
from commit_steps import STEPS, STORE_STEPS
from shardmill import Limits, Spec, prepare
from shardmill.errors import OutputError, ShardmillError

SHARDMILL = Path(sys.executable).with_name("shardmill")


def other_size(folder):
    with open(folder / "many/part-3.txt", "ab") as f:
        f.write(b"more")


def other_time(folder):
    os.utime(folder / "many/part-3.txt")


def other_content(folder):
    """The same size and time: only a sample of the content can tell."""
    path = folder / "many/part-3.txt"
    before = path.stat()
    with open(path, "r+b") as f:
        f.write(b"Other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_file(folder):
    (folder / "many/part-99.txt").write_text("one more")


def refused(end, *parts):
    assert end["code"] == 1 and "Traceback" not in end["stderr"]
    for part in (*parts, "--overwrite"):
        assert part in end["stderr"]


def test_a_changed_choice_is_refused_field_by_field_and_the_old_job_goes_on(inputs, whole):
    changes = [
        (["--tokenizer", "cl100k_base"], "--tokenizer: was 'r50k_base', is now 'cl100k_base'"),
        (["--separator", "\\n"], "--separator: was '\\\\n\\\\n', is now '\\\\n'"),
        (["--val-fraction", "0.2"], "--val-fraction: was 0.1, is now 0.2"),
        (["--seed", "3"], "--seed: was 0, is now 3"),
        (["--eot", "before"], "--eot: was 'auto', is now 'before'"),
        (["--dtype", "uint32"], "--dtype: was 'auto', is now 'uint32'"),
    ]
    args = command("documents", output="changed")
    asked = [{"args": [*args, *options]} for options, _ in changes]
    killed, *ends, done = drive(inputs, [{"args": args, "kill": ["checkpoint-synced", 3]}, *asked, {"args": args}])
    assert killed["code"] == -9 and done["code"] == 0
    for (_, field), end in zip(changes, ends, strict=True):
        refused(end, "holds an unfinished job that is not this one", field)
    assert result(inputs, "changed") == whole["documents"][0]
    assert "journal-begun" not in done["steps"], "the refused ones touched nothing"
    shutil.rmtree(inputs / "changed")


def test_a_changed_input_is_refused_field_by_field(inputs, place):
    changes = {
        other_size: "inputs[3].bytes: was",
        other_time: "part-3.txt: was modified",
        other_content: "inputs[3].sample: was",
        other_file: "inputs: were 10, are now 11",
    }
    folders = [place / change.__name__ for change in changes]
    for folder in folders:
        shutil.copytree(inputs / "many", folder / "many")
    runs = [{"args": command("documents"), "cwd": str(folder)} for folder in folders]
    killed = drive(place, [{**run, "kill": ["checkpoint-synced", 3]} for run in runs])
    assert [end["code"] for end in killed] == [-9] * len(folders)
    before = [result(folder) for folder in folders]
    for change, folder in zip(changes, folders, strict=True):
        change(folder)
    for field, end in zip(changes.values(), drive(place, runs), strict=True):
        refused(end, "holds an unfinished job that is not this one", field)
    assert [result(folder) for folder in folders] == before


def test_the_error_policy_may_change_until_it_has_mattered(inputs):
    def end(output, *policies, kill):
        args = [*command("replaced", output=output)[:-5], "--engine", "reference", "-q"]
        runs = [{"args": [*args, "--on-error", policy], "kill": kill} for policy in policies[:-1]]
        done = drive(inputs, [*runs, {"args": [*args, "--on-error", policies[-1]]}])
        shutil.rmtree(inputs / output)
        return done

    stopped, went_on = end("policy", "stop", "replace", kill=["nowhere", 1])
    assert stopped["code"] == 1 and "not UTF-8" in stopped["stderr"] and went_on["code"] == 0, went_on["stderr"]
    killed, refused = end("policy", "replace", "stop", kill=["files-sealed", 1])
    assert killed["code"] == -9 and refused["code"] == 1
    assert "--on-error: was 'replace', is now 'stop'" in refused["stderr"]


@pytest.fixture
def place(fast_folder):
    """A folder of its own for one test."""
    with tempfile.TemporaryDirectory(dir=fast_folder) as folder:
        yield Path(folder)


STOPS_AT_A_CHECKPOINT = """
import dataclasses, os, signal, sys
from shardmill.cli import config, main, options
from shardmill.io import storage
storage.watch = lambda step: step == "checkpoint-synced" and os.kill(os.getpid(), signal.SIGSTOP)
config.limits_of = lambda given: dataclasses.replace(options.limits_of(given), checkpoint_seconds=0.0)
sys.exit(main.main()())
"""


def test_a_second_process_is_refused_and_takes_over_when_the_first_is_killed(inputs, place):
    """The lock file stays behind; the lock does not."""
    (place / "text.txt").write_bytes((inputs / "long.txt").read_bytes() * 6)
    job = ["prepare", "text.txt", "-o", "out", "--engine", "reference", "--workers", "1"]
    args = [SHARDMILL, *job]
    first = subprocess.Popen([sys.executable, "-c", STOPS_AT_A_CHECKPOINT, *job], cwd=place, stderr=subprocess.DEVNULL)
    assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
    second = subprocess.run(args, cwd=place, capture_output=True, text=True, timeout=60)
    assert first.poll() is None
    assert second.returncode == 75 and f"process {first.pid} on" in second.stderr and "Traceback" not in second.stderr
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (place / "out/.shardmill.lock").exists()
    done = subprocess.run(args, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "resumed at" in done.stderr
    assert not (place / "out/.shardmill.lock").exists()


def test_a_job_that_another_process_finished_meanwhile_is_not_done_over(tmp_path, monkeypatch):
    """The folder was free when the second job looked, and held a result when it got the lock."""
    (tmp_path / "a.txt").write_text("one two three\n" * 2000)
    first = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out")
    second = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", seed=7)
    limits = Limits(engine="reference")
    from shardmill.job import mill

    make_job = mill.make_job

    def slowly(*args, **choices):
        made = make_job(*args, **choices)
        monkeypatch.setattr(mill, "make_job", make_job)
        prepare(first, limits=limits)
        return made

    monkeypatch.setattr(mill, "make_job", slowly)
    with pytest.raises(OutputError, match=r"--seed: was 0, is now 7"):
        prepare(second, limits=limits)
    monkeypatch.setattr(mill, "make_job", slowly)
    assert prepare(first, limits=limits).already_complete


LINKS = (
    "train.bin.partial",
    "val.bin.partial",
    "shardmill.journal",
    "manifest.json",
    "manifest.json.partial",
    "run.json.partial",
    ".shardmill.lock",
    ".shardmill.partial",
)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
@pytest.mark.parametrize("name", LINKS)
def test_what_is_planted_in_the_output_folder_leads_nowhere(tmp_path, name, kind, overwrite):
    """I8: a link must not make the tool write, cut or believe a file elsewhere, nor a pipe make it wait."""
    (tmp_path / "a.txt").write_text("one two three\n" * 2000)
    (tmp_path / "out").mkdir()
    elsewhere = tmp_path / "elsewhere"
    planted = tmp_path / "out" / name
    match kind:
        case "link":
            elsewhere.write_text("precious")
            planted.symlink_to(elsewhere)
        case "dangling":
            planted.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(planted)
        case "folder":
            planted.mkdir()
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0.1)
    try:
        prepare(spec, limits=Limits(engine="reference", workers=1), overwrite=overwrite)
    except ShardmillError as e:
        assert name.removesuffix(".partial") in str(e) or "out" in str(e)
    assert elsewhere.exists() == (kind == "link")
    assert kind != "link" or elsewhere.read_text() == "precious"


def test_a_partial_file_that_was_changed_or_removed_is_refused(inputs, place):
    changes = {
        "has 10 bytes, but an earlier run left": lambda path: os.truncate(path, 10),
        "does not hold what an earlier run wrote": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
        "is gone": lambda path: path.unlink(),
    }
    os.symlink(inputs / "many", place / "many")
    plain = [command("documents", output=str(number)) for number in range(3)]
    both = [*plain, [*command("documents", output="over"), "--overwrite"]]
    drive(place, [{"args": args, "kill": ["checkpoint-synced", 4]} for args in both])
    for number, change in enumerate(changes.values()):
        change(place / f"{number}/train.bin.partial")
    os.truncate(place / "over/train.bin.partial", 10)
    *ends, over = drive(place, [{"args": args} for args in both])
    for said, end in zip(changes, ends, strict=True):
        refused(end, said)
    assert over["code"] == 0 and "old-result-removed" in over["steps"], "with --overwrite it begins again"
    helped = drive(place, [{"args": [*args, "--overwrite"]} for args in plain])
    assert [end["code"] for end in helped] == [0, 0, 0], "what the message says to do helps"


def test_the_steps_are_those_that_the_code_reaches():
    source = "".join(path.read_text() for path in Path(shardmill.__file__).parent.rglob("*.py"))
    assert set(re.findall(r'reached\("([a-z-]+)"\)', source)) == {*STEPS, *STORE_STEPS}
