"""What must not be mixed is refused: another job in the folder, changed inputs, a second process, links that lead elsewhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import ORDERLY, command, drive, result

from shardmill import Limits, Spec, prepare, storage
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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (["--tokenizer", "cl100k_base"], "choices.tokenizer: was 'gpt2', is now 'cl100k_base'"),
        (["--separator", "\\n"], "choices.separator: was '\\\\n\\\\n', is now '\\\\n'"),
        (["--val-fraction", "0.2"], "choices.val_fraction: was 0.1, is now 0.2"),
        (["--seed", "3"], "choices.seed: was 0, is now 3"),
        (["--eot", "before"], "choices.eot: was 'auto', is now 'before'"),
        (["--dtype", "uint32"], "choices.dtype: was 'auto', is now 'uint32'"),
        (other_size, "inputs[3].bytes: was"),
        (other_time, "modified[3]: was"),
        (other_content, "inputs[3].sample: was"),
        (other_file, "inputs: were 10, are now 11"),
    ],
)
def test_a_changed_job_is_refused_field_by_field_and_the_old_one_goes_on(inputs, whole, tmp_path, change, field):
    shutil.copytree(inputs / "many", tmp_path / "many")
    args = command("documents")
    (killed,) = drive(tmp_path, [{"args": args, "kill": ["checkpoint-synced", 3]}])
    assert killed["code"] == -9
    before = result(tmp_path)
    options = []
    if callable(change):
        change(tmp_path)
    else:
        options = change
    (refused,) = drive(tmp_path, [{"args": [*args, *options]}])
    assert refused["code"] == 1 and "holds an unfinished job that is not this one" in refused["stderr"]
    assert field in refused["stderr"] and "--overwrite" in refused["stderr"] and "Traceback" not in refused["stderr"]
    assert result(tmp_path) == before, "the refused command touched nothing"
    if not callable(change):
        (done,) = drive(tmp_path, [{"args": args}])
        assert done["code"] == 0 and result(tmp_path)["train.bin"] == whole["documents"][0]["train.bin"]


def test_the_error_policy_may_change_until_it_has_mattered(inputs):
    def end(output, *policies, kill):
        args = [*command("replaced", output=output)[:-5], "--engine", "reference", "-q"]
        runs = [{"args": [*args, "--on-error", policy], "kill": kill} for policy in policies[:-1]]
        done = drive(inputs, [*runs, {"args": [*args, "--on-error", policies[-1]]}])
        shutil.rmtree(inputs / output)
        return done

    early = {**ORDERLY, "block_bytes": 1000}
    assert early["block_bytes"] == 1000
    stopped, went_on = end("policy", "stop", "replace", kill=["nowhere", 1])
    assert stopped["code"] == 1 and "not UTF-8" in stopped["stderr"] and went_on["code"] == 0, went_on["stderr"]
    killed, refused = end("policy", "replace", "stop", kill=["files-sealed", 1])
    assert killed["code"] == -9 and refused["code"] == 1
    assert "choices.on_error: was 'replace', is now 'stop'" in refused["stderr"]


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_a_second_process_is_refused_and_takes_over_when_the_first_is_killed(inputs, tmp_path):
    """The lock file stays behind; the lock does not."""
    (tmp_path / "text.txt").write_bytes((inputs / "long.txt").read_bytes() * 12)
    args = [SHARDMILL, "prepare", "text.txt", "-o", "out", "--engine", "reference", "--workers", "1"]
    first = subprocess.Popen(args, cwd=tmp_path, stderr=subprocess.DEVNULL)
    journal = tmp_path / "out/shardmill.journal"
    wait_for(lambda: journal.exists() and b'"checkpoint"' in journal.read_bytes())
    second = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert first.poll() is None
    assert second.returncode == 75 and f"process {first.pid} on" in second.stderr and "Traceback" not in second.stderr
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (tmp_path / "out/.shardmill.lock").exists()
    done = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "went on after" in done.stderr
    assert not (tmp_path / "out/.shardmill.lock").exists()


def test_a_job_that_another_process_finished_meanwhile_is_not_done_over(tmp_path, monkeypatch):
    """The folder was free when the second job looked, and held a result when it got the lock."""
    (tmp_path / "a.txt").write_text("one two three\n" * 2000)
    first = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out")
    second = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", seed=7)
    limits = Limits(engine="reference")
    from shardmill import mill

    make_job = mill.make_job

    def slowly(*args):
        made = make_job(*args)
        monkeypatch.setattr(mill, "make_job", make_job)
        prepare(first, limits=limits)
        return made

    monkeypatch.setattr(mill, "make_job", slowly)
    with pytest.raises(OutputError, match=r"choices\.seed: was 0, is now 7"):
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


def test_a_partial_file_that_was_changed_or_removed_is_refused(inputs, tmp_path):
    shutil.copytree(inputs / "many", tmp_path / "many")
    args = command("documents")
    for change, said in (
        (lambda path: os.truncate(path, 10), "has 10 bytes where an earlier run left"),
        (lambda path: path.write_bytes(b"\0" * path.stat().st_size), "are not what it wrote"),
        (lambda path: path.unlink(), "is gone"),
    ):
        drive(tmp_path, [{"args": args, "kill": ["checkpoint-synced", 4]}])
        change(tmp_path / "out/train.bin.partial")
        (end,) = drive(tmp_path, [{"args": args}])
        assert end["code"] == 1 and said in end["stderr"] and "--overwrite" in end["stderr"], end["stderr"]
        again, done = drive(tmp_path, [{"args": [*args, "--overwrite"], "kill": ["data-synced", 3]}, {"args": args}])
        assert again["code"] == -9 and done["code"] == 0, "and what it says to do helps"
        shutil.rmtree(tmp_path / "out")


def test_an_overwriting_job_whose_files_were_changed_begins_again(inputs, tmp_path):
    shutil.copytree(inputs / "many", tmp_path / "many")
    args = [*command("documents"), "--overwrite"]
    drive(tmp_path, [{"args": args, "kill": ["checkpoint-synced", 4]}])
    os.truncate(tmp_path / "out/train.bin.partial", 10)
    (end,) = drive(tmp_path, [{"args": args}])
    assert end["code"] == 0 and "old-result-removed" in end["steps"]


def test_the_steps_are_those_that_the_code_reaches():
    source = "".join(path.read_text() for path in Path(storage.__file__).parent.rglob("*.py"))
    assert all(f'reached("{step}")' in source for step in storage.STEPS)
    assert json.dumps(storage.STEPS)
