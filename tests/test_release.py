"""What is published is whole: the sdist has all files and passes its tests, the wheel has the package, both install and run."""

import contextlib
import email
import fcntl
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import reference
import shardmill

ROOT = Path(__file__).parent.parent
COMPILED = re.compile(r"native/\w+\.so$")


def run(*command, cwd, **env):
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(source, folder, kind, **env):
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder, source, cwd=folder, **env)
    return next(path for path in folder.iterdir() if path.suffix in (".gz", ".whl"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder for all processes that run these tests, held by one at a time: what one has built is there for the others."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "release"
    folder.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def hold(name):
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / name).mkdir(exist_ok=True)
            yield folder / name

    return hold


@pytest.fixture(scope="module")
def sdist(shared):
    with shared("sdist") as folder:
        return next(folder.glob("*.gz"), None) or build(ROOT, folder, "sdist")


@pytest.fixture(scope="module")
def unpacked(sdist, shared):
    with shared("unpacked") as folder:
        if not any(folder.iterdir()):
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
        return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked, shared):
    """Made of the sdist, as pip does."""
    with shared("wheel") as folder:
        return next(folder.glob("*.whl"), None) or build(unpacked, folder, "wheel")


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def check_command(python, folder, **env):
    """Tokenize a text with the installed command; the tokens are tiktoken's."""
    text = (ROOT / "samples/tinyshakespeare.txt").read_text()[:50_000]
    (folder / "a.txt").write_text(text)
    command = [python, "-m", "shardmill"]
    assert shardmill.__version__ in run(*command, "--version", cwd=folder, **env)
    run(*command, "prepare", "a.txt", "-o", "out", "--val-fraction", "0", "-q", cwd=folder, **env)
    assert (folder / "out/train.bin").read_bytes() == np.array(reference.encode("r50k_base", text), "<u2").tobytes()


def test_the_sdist_holds_every_file_of_the_repository(sdist):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git repository")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    tracked = {name for name in listed if (ROOT / name).is_file()}
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held == tracked | {"PKG-INFO"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel, unpacked):
    package = {
        f"shardmill/{path.relative_to(unpacked / 'src/shardmill')}"
        for path in (unpacked / "src/shardmill").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not COMPILED.search(str(path))
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    libraries = {name for name in held if COMPILED.search(name)}
    assert held - libraries == package
    assert len(libraries) == 4 and "none-any" not in wheel.name


def test_without_a_compiler_the_build_fails_and_says_what_to_do(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    with pytest.raises(AssertionError, match=r"no working C compiler\.\s+Install one, then try again:\s+apt-get"):
        build(source, tmp_path, "wheel", CC="/bin/false")


def test_the_metadata_claims_what_is_true(wheel):
    told = metadata(wheel)
    assert (told["Name"], told["Version"]) == ("shardmill", shardmill.__version__)
    assert sorted(told.get_all("Provides-Extra")) == ["gcs", "hub", "s3"]
    assert told["License-Expression"] == "MIT" and told.get_all("License-File") == ["LICENSE"]
    tried = re.search(r"^SUPPORTED = \((.*)\)$", (ROOT / "tools/pythons.py").read_text(), re.MULTILINE)[1]
    claimed = [c.rpartition(" ")[2] for c in told.get_all("Classifier") if re.search(r":: 3\.\d+$", c)]
    assert claimed == re.findall(r"3\.\d+", tried), "only what `make pythons` runs is claimed"


def test_twine_finds_nothing_wrong(sdist, wheel, tmp_path):
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=tmp_path)


def test_links_on_the_page_on_pypi_are_absolute_and_lead_somewhere(wheel, unpacked):
    told = metadata(wheel)
    page = told.get_payload()
    links = re.findall(r'(?:\]\(|\b(?:src|srcset|href)=")([^)"\s]+)', page)
    repository = next(url.partition(", ")[2] for url in told.get_all("Project-URL") if url.startswith("Source, "))
    inside = [
        re.sub(r"/(blob|raw)/main/", "/", link).removeprefix(f"{repository}/")
        for link in links
        if link.startswith(repository)
    ]
    assert inside and all(link.startswith(("https://", "#")) for link in links)
    assert [target for target in inside if not (unpacked / target.partition("#")[0]).exists()] == []


def test_an_installed_wheel_gives_the_tokens_of_tiktoken(wheel, tmp_path):
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    check_command(sys.executable, tmp_path, PYTHONPATH=str(target))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_and_runs_in_a_bare_environment(kind, request, tmp_path):
    """With nothing but Python and PyPI, and no compiler: zig's comes with the build requirements of the sdist."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    probe = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d", tmp_path, "iniconfig"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("PyPI cannot be reached")
    env = {"PATH": str(tmp_path / "venv/bin"), "PYTHONPATH": ""}
    run(python, "-m", "pip", "install", "-q", request.getfixturevalue(kind), cwd=tmp_path, **env)
    assert run(tmp_path / "venv/bin/shardmill", "--version", cwd=tmp_path, **env)
    check_command(python, tmp_path, **env)


@pytest.mark.slow
def test_all_fast_tests_of_the_sdist_pass(unpacked):
    run(sys.executable, "hatch_build.py", cwd=unpacked)
    run(sys.executable, "-m", "pytest", "-n", "2", cwd=unpacked, PYTHONPATH=str(unpacked / "src"))
