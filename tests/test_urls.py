"""The places inputs come from, each over its real protocol: what is found there, and that the bytes are the same."""

import json
import os
import subprocess
import sys
import time

import pytest

from command import SHARDMILL, run
from servers import COMMIT, TOKEN, Fault, Hub, Server
from shardmill import Limits, Spec, prepare
from shardmill.errors import InputError, UsageError
from shardmill.inputs.find import find_inputs
from shardmill.io.open_files import OpenFiles
from shardmill.system.names import show, without_secrets

WORDS = "the mill turns all the text into tokens and writes them down in order\n"
FILES = {f"part-{i}.txt": (f"{i} {WORDS}" * (40_000 if i == 2 else 50)).encode() for i in (1, 2, 10)}
ORDERED = ["part-1.txt", "part-2.txt", "part-10.txt"]


def names(files):
    return [os.path.basename(file.path) for file in files]


def command(*args, cwd, **env):
    return run(*args, cwd=cwd, env={"HF_HOME": str(cwd / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", **env})


@pytest.fixture(scope="session")
def local(tmp_path_factory):
    """The same files on the disk, and what they give."""
    folder = tmp_path_factory.mktemp("local")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    prepare(Spec(inputs=[folder], output=folder / "out", val_fraction=0.1), limits=Limits(workers=1))
    return folder / "out"


def equal(made, local):
    return all((made / name).read_bytes() == (local / name).read_bytes() for name in ("train.bin", "val.bin"))


def read_all(file):
    with OpenFiles().reader(file) as reader:
        return b"".join(reader.read(at, 1 << 20) for at in range(0, file.size, 1 << 20))


# the hub


@pytest.fixture(scope="module")
def hub():
    with Server(Hub) as server, Server(Hub) as cdn:
        for name, data in FILES.items():
            for repo in ("mills/texts", "private/texts", "gated/texts"):
                server.files[f"/{repo}/sample/10BT/{name}"] = data
        server.files["/mills/texts/README.md"] = b"# a card, no data"
        server.files["/mills/texts/.gitattributes"] = b"*"
        server.cdn = cdn
        cdn.files = server.files
        yield server


def on_hub(hub, tmp_path, *args, **env):
    return command("prepare", *args, "-o", "out", "--val-fraction", "0.1", cwd=tmp_path, HF_ENDPOINT=hub.url, **env)


@pytest.mark.parametrize(
    "url",
    [
        "hf://datasets/mills/texts/sample/10BT",
        "hf://datasets/mills/texts@v1/sample/10BT/",
        "hf://datasets/mills/texts",
        "hf://datasets/mills/texts/sample/*/part-*.txt",
    ],
)
def test_a_folder_of_the_hub_is_one_command(hub, local, tmp_path, url):
    hub.cdn.faults["cdn"] = [Fault("cut", 500_000)]
    done = on_hub(hub, tmp_path, url)
    assert done.returncode == 0, done.stderr
    assert equal(tmp_path / "out", local)
    inputs = json.loads((tmp_path / "out/manifest.json").read_text())["job"]["inputs"]
    root = "hf://datasets/mills/texts" + ("@v1" if "@" in url else "")
    assert [entry["path"] for entry in inputs] == [f"{root}/sample/10BT/{name}" for name in ORDERED]
    assert all(len(entry["version"]) == 64 for entry in inputs)  # the SHA-256 of the file
    cached = [path for path in (tmp_path / "hf").rglob("*") if path.is_file() and path.stat().st_size > 1000]
    assert not cached, "nothing is copied to a cache"


def test_all_of_a_job_is_read_from_one_commit(hub, tmp_path):
    hub.requests.clear()
    assert on_hub(hub, tmp_path, "hf://datasets/mills/texts/sample/10BT/part-1.txt").returncode == 0
    resolved = [path for path, _ in hub.requests if "/resolve/" in path]
    assert resolved and all(f"/resolve/{COMMIT}/" in path for path in resolved)


def test_a_login_opens_what_is_private_and_goes_nowhere_else(hub, local, tmp_path):
    done = on_hub(hub, tmp_path, "hf://datasets/private/texts/sample", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr  # the other host asserts that it does not see the token
    assert equal(tmp_path / "out", local)
    assert TOKEN not in done.stderr + "".join(path.read_text("latin-1") for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://datasets/private/texts/sample", ["private", "hf auth login", "HF_TOKEN"]),
        ("hf://datasets/gated/texts/sample", ["gated", "request access", "HF_TOKEN"]),
        ("hf://datasets/mills/none/sample", ["no such repository", "hf://datasets/"]),
        ("hf://mills/texts/sample", ["no such repository", "hf://datasets/"]),
        ("hf://datasets/mills/texts@v9/sample", ["revision", "@"]),
        ("hf://datasets/mills/texts/sampel", ["no such file or folder"]),
        ("hf://datasets/mills/texts/sample/*.csv", ["no file matches"]),
    ],
)
def test_what_the_hub_does_not_give_is_explained(hub, tmp_path, url, words):
    done = on_hub(hub, tmp_path, url, HF_TOKEN="")
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
    assert all(word in done.stderr for word in [url.rpartition("/")[2], *words]), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_busy_hub_is_asked_again(hub, local, tmp_path):
    hub.faults["/api/datasets/mills/texts"] = [Fault("status", status=503), Fault("status", status=429)]
    done = on_hub(hub, tmp_path, "hf://datasets/mills/texts/sample/10BT")
    assert done.returncode == 0, done.stderr
    assert equal(tmp_path / "out", local) and not hub.faults["/api/datasets/mills/texts"]


# S3


@pytest.fixture(scope="module")
def s3(s3_server):
    client, _ = s3_server
    for name, data in FILES.items():
        client.put_object(Bucket="mill", Key=f"corpus/{name}", Body=data)
    client.put_object(Bucket="mill", Key="corpus/", Body=b"")
    client.put_object(Bucket="mill", Key="corpus/a b+ü#?.txt", Body=b"an odd name")
    client.put_object(Bucket="mill", Key="open.txt", Body=b"for everyone", ACL="public-read")
    return s3_server


@pytest.fixture
def aws(aws_login, s3):  # noqa: ARG001
    return aws_login


@pytest.mark.usefixtures("aws")
def test_a_prefix_of_s3_is_one_command(local, tmp_path):
    done = command("prepare", "s3://mill/corpus/part-*.txt", "-o", "out", "--val-fraction", "0.1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert equal(tmp_path / "out", local)
    manifest = (tmp_path / "out/manifest.json").read_text()
    assert json.loads(manifest)["job"]["inputs"][0]["path"] == "s3://mill/corpus/part-1.txt"
    assert not any(secret in manifest + done.stderr for secret in ("sesame", "X-Amz", "Signature"))


@pytest.mark.usefixtures("aws")
def test_files_folders_and_odd_names_of_s3_are_found():
    assert names(find_inputs(["s3://mill/corpus"])) == ["a b+ü#?.txt", *ORDERED]
    assert names(find_inputs(["s3://mill/corpus/part-2.txt", "s3://mill/corpus/"]))[0] == "part-2.txt"
    odd = find_inputs(["s3://mill/corpus/"])[0]
    assert read_all(odd) == b"an odd name" and odd.version


def test_an_object_that_is_replaced_meanwhile_is_an_error(aws):
    file = find_inputs(["s3://mill/corpus/part-2.txt"])[0]
    assert read_all(file) == FILES["part-2.txt"]
    aws.put_object(Bucket="mill", Key="corpus/part-2.txt", Body=FILES["part-2.txt"][::-1])
    try:
        with pytest.raises(InputError, match="changed while it was read"):
            read_all(file)
    finally:
        aws.put_object(Bucket="mill", Key="corpus/part-2.txt", Body=FILES["part-2.txt"])


@pytest.mark.usefixtures("aws")
def test_what_is_public_needs_no_credentials(monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert read_all(find_inputs(["s3://mill/open.txt"])[0]) == b"for everyone"


@pytest.mark.parametrize("url", ["s3://mill/corpus/none.txt", "s3://nobucket/x.txt", "s3://mill/none/*.txt"])
@pytest.mark.usefixtures("aws")
def test_what_is_not_in_s3_is_said(url):
    with pytest.raises(InputError, match=r"no such (file|bucket)|no file matches"):
        find_inputs([url])


@pytest.mark.usefixtures("aws")
def test_a_list_of_many_objects_is_looked_up_side_by_side(tmp_path):
    (tmp_path / "list.txt").write_text("\n".join(f"s3://mill/corpus/{name}" for name in ORDERED * 5))
    assert names(find_inputs([f"@{tmp_path / 'list.txt'}"])) == ORDERED


# Google Cloud Storage


@pytest.fixture(scope="module")
def gcs(gcs_server):
    import requests

    for name, data in FILES.items():
        requests.post(
            f"{gcs_server}/upload/storage/v1/b/mill/o?uploadType=media&name=corpus/{name}", data=data, timeout=10
        ).raise_for_status()
    return gcs_server


def test_a_folder_of_gcs_is_one_command(gcs, local, tmp_path):
    done = command(
        "prepare",
        "gs://mill/corpus",
        "-o",
        "out",
        "--val-fraction",
        "0.1",
        cwd=tmp_path,
        STORAGE_EMULATOR_HOST=gcs,
        NO_GCE_CHECK="true",
    )
    assert done.returncode == 0, done.stderr
    assert equal(tmp_path / "out", local)


# the web, lists, and names


def test_a_list_of_addresses_is_one_command(local, tmp_path):
    with Server() as server:
        server.files |= {f"/{name}": data for name, data in FILES.items()}
        lines = ["# our files", "", *(f"{server.url}/{name}" for name in ORDERED), f"{server.url}/part-1.txt"]
        (tmp_path / "urls.txt").write_text("\ufeff" + "\r\n".join(lines))
        done = command("prepare", "@urls.txt", "-o", "out", "--val-fraction", "0.1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert equal(tmp_path / "out", local)


@pytest.mark.parametrize(
    "options", [("--val-fraction", "0"), ("--val-fraction", "0.1")]
)  # a worker reads, or the first pass
def test_a_job_that_waits_for_a_server_gives_up_in_the_end_or_when_told_to(tmp_path, options):
    with Server() as server:
        server.files["/a.txt"] = FILES["part-2.txt"]
        server.faults["/a.txt"] = [Fault("stall"), Fault("cut", 400_000), *[Fault("status", status=503)] * 10_000]
        args = ("prepare", f"{server.url}/a.txt?token=hush", "-o", "out", *options)
        done = command(*args, cwd=tmp_path, SHARDMILL_NETWORK_SECONDS="1")
        assert done.returncode == 75 and "same command again to resume" in done.stderr, done.stderr
        left = {path.name: path.read_text() for path in tmp_path.glob("out/*")}
        assert "hush" not in done.stderr + "".join(left.values()) and left.keys() <= {"shardmill.journal"}
        server.faults["/a.txt"][:0] = [Fault("stall"), Fault("cut", 400_000)]
        before = len(server.requests)
        process = subprocess.Popen([SHARDMILL, *args], cwd=tmp_path, stderr=-1)
        while len(server.requests) < before + 4:
            time.sleep(0.05)
        process.terminate()
        started = time.monotonic()
        _, told = process.communicate(timeout=30)
        assert process.returncode == 75 and time.monotonic() - started < 20, told


def test_a_missing_library_is_named_with_the_command_that_installs_it():
    blocked = "import sys; sys.modules.update({'s3fs': None, 'gcsfs': None, 'huggingface_hub': None}); from shardmill.inputs.find import find_inputs; find_inputs([sys.argv[1]])"
    for url, extra in (("s3://a/b", "s3"), ("gs://a/b", "gcs"), ("hf://datasets/a/b/c", "hub")):
        done = subprocess.run([sys.executable, "-c", blocked, url], capture_output=True, text=True)
        assert f"pip install 'shardmill[{extra}]'" in done.stderr and url in done.stderr


def test_other_places_are_refused_by_name():
    for url in ("ftp://host/a.txt", "file:///a.txt", "abfs://c/a.txt"):
        with pytest.raises(UsageError, match="is not supported"):
            find_inputs([url])
    with pytest.raises(UsageError, match="@FILE"):
        find_inputs(["https://host/part-*.txt"])
    with pytest.raises(UsageError, match="hf://datasets/ORG/NAME"):
        find_inputs(["hf://datasets"])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@host:8/a.txt?v=2", "https://host:8/a.txt?v=2"),
        ("https://host/a.txt?X-Amz-Signature=1&X-Amz-Date=2", "https://host/a.txt"),
        ("https://host/a.txt?token=x&file=1", "https://host/a.txt"),
        ("https://host/a.txt?sv=1&sig=abc", "https://host/a.txt"),
        ("https://host/a.txt?k=0123456789012345678901", "https://host/a.txt"),
        ("https://host/a.txt?hush", "https://host/a.txt"),
        *(
            (f"https://host/a.txt?{query}", "https://host/a.txt")
            for query in (
                *(
                    "pwd=x",
                    "pw=x",
                    "code=12",
                    "jwt=a",
                    "t=eyJh.eyJz.c2",
                    "st=1&se=2&sp=r",
                    "hmac=1",
                    "pin=1234",
                    "otp=1",
                ),
                *(
                    "access=a",
                    "apikey=1",
                    "API-KEY=1",
                    "userPin=1",
                    "rev=2;pwd=x",
                    "rev=2&hush",
                    "%70wd=x",
                    "auth_code=1",
                ),
            )
        ),
        *(
            (f"https://host/a.txt?{query}", f"https://host/a.txt?{query}")
            for query in (
                "download=true&rev=2",
                "encoding=utf8",
                "spin=1",
                "v=1.2.3",
                "decoded=1",
                "part=7",
                "format=csv",
            )
        ),
        ("https://host/a.txt#part", "https://host/a.txt"),
        ("HTTPS://u@host/a.txt", "https://host/a.txt"),
        ("s3://key:secret@bucket/a?b#c.txt", "s3://bucket/a?b#c.txt"),
        ("hf://datasets/a/b@v1/c.txt", "hf://datasets/a/b@v1/c.txt"),
        ("http://[broken/a?token=x", "http://[broken/a"),
    ],
)
def test_credentials_are_never_shown(url, shown):
    assert without_secrets(url) == shown == show(url)
