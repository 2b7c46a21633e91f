"""doctor: it says what is there, and what is broken."""

import json
import re

import numpy as np
import pytest

import shardmill
from command import run
from shardmill.cli import doctor
from shardmill.system import compiled
from shardmill.tokens import native
from shardmill.tokens.encoder import Encoder


def test_everything_works_here(tmp_path):
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "everything works" and not any(line.startswith("PROBLEM") for line in lines)
    assert done.stdout.count("same tokens as its reference") == 3
    assert shardmill.__version__ in lines[0] and "MB/s" in done.stdout
    assert list(tmp_path.iterdir()) == [], "what was written is gone"


def test_the_version_names_the_engine_and_its_cpu_path(tmp_path):
    told = run("--version", cwd=tmp_path).stdout
    assert re.fullmatch(
        rf"shardmill {re.escape(shardmill.__version__)}, engine native \d+ \({native.cpu_path()}\)\n", told
    )


def test_a_folder_that_cannot_be_written_to_is_a_problem(tmp_path):
    done = run("doctor", "-o", "/proc/no/such", "--json", cwd=tmp_path)
    content = json.loads(done.stdout)
    assert done.returncode == content["exit_code"] == 1 and not content["ok"]
    assert content["disk"]["bytes_per_second"] is None and "/proc" in content["problems"][0]


def test_a_cache_folder_that_cannot_be_made_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("")
    done = run("doctor", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert done.returncode == 1 and "XDG_CACHE_HOME" in done.stderr and "everything works" not in done.stdout


def test_an_engine_that_gives_other_tokens_is_found(monkeypatch):
    encode = Encoder.encode

    def wrong(self, pieces):
        ids, counts = encode(self, pieces)
        return np.append(ids[:-1], ids[0]), counts

    monkeypatch.setattr(Encoder, "encode", wrong)
    found = doctor.Findings()
    found.problems += doctor._try_engines(found)
    assert len(found.problems) == 3 and all("different tokens" in problem for problem in found.problems)


def test_a_missing_library_and_missing_c_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_LIBRARIES", ("numpy", "no-such-library"))
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path / "src/shardmill")
    found = doctor.Findings()
    found.problems += [*doctor._find_versions(found), *doctor._try_engines(found)]
    assert found.versions["no-such-library"] is None and "no-such-library" in found.problems[0]
    assert "tokens/native/engine.so: is missing; reinstall: pip install" in found.problems[1]


def test_the_text_of_the_self_test_is_difficult():
    text = doctor._NASTY.decode()
    assert 4_000 < len(doctor._NASTY) < 16_000
    assert {"\r\n", "\0", "\u3000", "\U0010ffff", "<|endoftext|>"} <= {
        part for part in ("\r\n", "\0", "\u3000", "\U0010ffff", "<|endoftext|>") if part in text
    }


@pytest.mark.parametrize("path", native.cpu_paths())
def test_shardmill_cpu_forces_a_code_path(tmp_path, path):
    assert f"({path})" in run("--version", cwd=tmp_path, env={"SHARDMILL_CPU": path}).stdout


@pytest.mark.parametrize("path", ["mmx", "avx", *sorted({"avx2", "avx512", "neon"} - {*native.cpu_paths()})])
def test_a_code_path_that_this_machine_lacks_is_refused(tmp_path, path):
    why = "SHARDMILL_CPU names no code path that this machine has; set it to"
    done = run("--version", cwd=tmp_path, env={"SHARDMILL_CPU": path})
    assert done.returncode == 2 and why in done.stderr
    assert why in run("doctor", cwd=tmp_path, env={"SHARDMILL_CPU": path}).stderr
