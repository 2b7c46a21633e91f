"""The Dockerfile: what it copies is there and enough to build; `make docker-steps` runs all of its steps."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import docker_steps  # noqa: E402

sys.path.pop(0)


@pytest.fixture(scope="module")
def stages():
    return docker_steps.stages((ROOT / "Dockerfile").read_text())


def test_the_image_is_slim_runs_as_a_user_and_starts_the_command(stages):
    assert [stage.name for stage in stages] == ["build", ""]
    assert all(stage.image.endswith("-slim") for stage in stages)
    words = [word for word, _ in stages[-1].steps]
    assert stages[-1].last("USER") == "mill" and words.index("USER") > max(i for i, w in enumerate(words) if w == "RUN")
    assert json.loads(stages[-1].last("ENTRYPOINT")) == ["shardmill"]


@pytest.mark.slow
def test_what_is_compiled_here_or_is_not_copied_stays_out_of_the_context(stages):
    context = docker_steps.context()
    copied = {
        name
        for stage in stages
        for word, rest in stage.steps
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    }
    assert {path.parts[0] for path in context} == copied
    assert not any(path.suffix in (".so", ".pyc") for path in context)


@pytest.mark.slow
def test_what_is_copied_builds_a_wheel_with_everything_in_it(stages, tmp_path):
    source = tmp_path / "source"
    for word, rest in stages[0].steps:
        if word == "COPY":
            docker_steps.copy(rest, ROOT, docker_steps.context(), tmp_path, source)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "wheels", source],
        check=True,
        capture_output=True,
    )
    with zipfile.ZipFile(next((tmp_path / "wheels").glob("shardmill-*.whl"))) as wheel:
        names = wheel.namelist()
    assert "shardmill/vocab/o200k_base.tiktoken" in names
    assert any(name.endswith("engine.so") for name in names) == (shutil.which("cc") is not None)


@pytest.mark.slow
def test_a_file_that_dockerignore_leaves_out_is_missed(tmp_path):
    with pytest.raises(SystemExit, match="docs"):
        docker_steps.copy("docs ./", ROOT, docker_steps.context(), tmp_path, tmp_path)
