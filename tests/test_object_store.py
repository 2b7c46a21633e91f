"""Output straight to a store, over its real protocol: the same bytes as on a disk, within the room that is given."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest
from click.testing import CliRunner

import shardmill
from command import SHARDMILL, run
from given_texts import load_once
from servers import Fault, Proxy, Server
from shardmill import Limits, Spec, prepare
from shardmill.cli.main import cli
from shardmill.errors import OutputError, TemporaryError, UsageError
from shardmill.formats.registry import FORMATS as ALL
from shardmill.formats.registry import get
from shardmill.io import storage
from shardmill.io.fileset import RemoteFiles
from shardmill.io.object_store import ObjectStore
from shardmill.job import job

DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(240)]
FORMATS = {
    "nanogpt": {},
    "shards": {"shard_tokens": 1500, "index": True, "provenance": True},
    "build-nanogpt": {"shard_tokens": 1500},
    "llmc": {"shard_tokens": 1500},
    "modded-nanogpt": {"shard_tokens": 1500},
    "megatron": {"index": True},
    "datatrove": {},
    "olmo": {"shard_tokens": 4000},
    "mds": {"shard_tokens": 1500, "sample_tokens": 50},
    "litdata": {"shard_tokens": 1500, "sample_tokens": 50, "index": True},
}


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch):
    monkeypatch.setattr(job, "load", load_once)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "a.txt"
    path.write_text("##".join(DOCUMENTS))
    return path


def mill(text, output, tmp_path, *, overwrite=False, limits=None, **choices):
    choices = {"val_fraction": 0.0005 if get(choices.get("format", "nanogpt")).first_shard_is_val else 0.1, **choices}
    spec = Spec(inputs=[text], output=output, separator="##", **choices)
    given = {"engine": "reference", "workers": 1, "block_bytes": 3000, "staging": str(tmp_path / "staging")}
    return prepare(spec, limits=Limits(**{**given, **(limits or {})}), overwrite=overwrite)


@pytest.fixture
def bucket(aws_login):
    """The objects of the bucket below a prefix, without it."""

    def objects(prefix):
        found = aws_login.list_objects_v2(Bucket="mill", Prefix=prefix + "/").get("Contents", ())
        keys = [entry["Key"] for entry in found]
        return {k[len(prefix) + 1 :]: aws_login.get_object(Bucket="mill", Key=k)["Body"].read() for k in keys}

    return objects


@pytest.fixture
def faulty(s3_server, aws_login, monkeypatch):  # noqa: ARG001
    """The same store behind a server that does what it is told to."""
    with Server(Proxy) as proxy:
        proxy.target, proxy.faults, proxy.delay = s3_server[1], [], 0.0
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # the library's own tries would take half a minute
        yield proxy


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_run(found):
    assert json.loads(found["run.json"])["format"] == 4
    return {name: data for name, data in found.items() if name != "run.json"}


def staged(tmp_path):
    return [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]


# Files that are done at once, whose last is joined to another, that are patched at the end; the matrix has all formats.
_QUICK = ("nanogpt", "llmc", "mds")


@pytest.mark.parametrize(
    "name", [*_QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in _QUICK)]
)
def test_a_store_gets_the_bytes_that_a_folder_gets(text, tmp_path, bucket, name):
    """I1, for every way in which files are finished; and nothing stays on the disk."""
    mill(text, tmp_path / "out", tmp_path, format=name, **FORMATS[name])
    result = mill(text, f"s3://mill/same/{name}/", tmp_path, format=name, **FORMATS[name])
    assert result.output == f"s3://mill/same/{name}" and not result.already_complete
    assert without_run(bucket(f"same/{name}")) == without_run(files(tmp_path / "out"))
    assert not list((tmp_path / "staging").iterdir())
    assert shardmill.verify(result.output).ok
    assert mill(text, result.output, tmp_path, format=name, **FORMATS[name]).already_complete


@pytest.mark.parametrize("name", ["shards", "mds"])
def test_google_cloud_storage_gets_them_too(text, tmp_path, gcs_server, monkeypatch, name):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    url = f"gs://mill/stored-{name}"
    mill(text, tmp_path / "out", tmp_path, format=name, **FORMATS[name])
    mill(text, url, tmp_path, format=name, **FORMATS[name])
    near, there = shardmill.open(tmp_path / "out"), shardmill.open(url)
    assert there.manifest == near.manifest and there["train"][:].tolist() == near["train"][:].tolist()
    assert shardmill.verify(url).ok and not list((tmp_path / "staging").iterdir())
    mill(text, url, tmp_path, overwrite=True, format="nanogpt")
    assert shardmill.verify(url).ok and len(shardmill.open(url)["train"].files) == 1
    assert set(RemoteFiles(url, 10.0).names()) == {
        "train.bin",
        "val.bin",
        "token_bytes.npy",
        "manifest.json",
        "run.json",
    }


@pytest.mark.parametrize(("name", "limit"), [("shards", 5000), ("mds", 11_000), ("llmc", 12_000)])
def test_what_is_staged_stays_within_its_limit(text, tmp_path, faulty, bucket, monkeypatch, name, limit):
    """The store takes nothing until much waits for it, and is slow then: at no block is more on the disk than allowed.

    Looked at by the thread that writes: files can vanish meanwhile, but none can grow.
    """
    seen, much = [0], threading.Event()

    def watch(step):
        if step in ("block-written", "files-finished"):
            seen.append(sum(map(size, (tmp_path / "staging").rglob("*.partial"))))
            if seen[-1] > limit // 2:
                much.set()
        elif step == "file-putting":
            assert much.wait(30)

    monkeypatch.setattr(storage, "watch", watch)
    faulty.delay = 0.02
    tight = {"max_staging": limit, "checkpoint_seconds": 0.0}
    choices = {**FORMATS[name], "format": name, "index": False, "provenance": False, "val_fraction": 0}
    choices["shard_tokens"] = 800
    mill(text, f"s3://mill/tight-{name}", tmp_path, limits=tight, **choices)
    total = sum(len(data) for key, data in bucket(f"tight-{name}").items() if not key.endswith(".json"))
    assert total > 1.9 * limit and limit // 2 < max(seen) <= limit, (total, max(seen))


def size(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_what_cannot_wait_in_the_room_given_is_refused_at_once(text, tmp_path, bucket):
    small = {"max_staging": 5000}
    with pytest.raises(OutputError, match=r"--max-staging.*--format shards"):
        mill(text, "s3://mill/small", tmp_path, limits=small)
    with pytest.raises(OutputError, match=r"at least 16,000 bytes.*room for 5,000"):
        mill(text, "s3://mill/small", tmp_path, limits=small, format="shards", shard_tokens=8000)
    assert bucket("small") == {} and not staged(tmp_path)
    done = CliRunner().invoke(
        cli, ["prepare", str(text), "-o", "s3://mill/small", "--dry-run", "--max-staging", "5000"]
    )
    assert done.exit_code == 1 and "tokens" in done.stdout and "must be staged on this disk" in str(done.exception)


def test_what_outgrows_its_room_stops_and_goes_on_with_more(text, tmp_path, bucket):
    """Both splits grow a shard, which nobody could know; the advice is followed, and nothing is done twice."""
    choices = {"format": "shards", "shard_tokens": 5000, "val_fraction": 0.5}
    with pytest.raises(OutputError, match="larger --max-staging to resume"):
        mill(text, "s3://mill/grown", tmp_path, limits={"max_staging": 15_000}, **choices)
    assert staged(tmp_path) and "manifest.json" not in bucket("grown")
    result = mill(text, "s3://mill/grown", tmp_path, limits={"max_staging": 60_000}, **choices)
    assert result.run["resumed_bytes"] > 10_000
    mill(text, tmp_path / "out", tmp_path, **choices)
    assert without_run(bucket("grown")) == without_run(files(tmp_path / "out"))


def test_a_store_in_trouble_is_asked_again(text, tmp_path, faulty, bucket):
    busy, gone = Fault("status", status=503), Fault("reset", 10)
    faulty.faults = [("PUT", "train-00001", busy), ("PUT", "train-00001", gone), ("PUT", "val-00000", gone)]
    faulty.faults += [("PUT", "manifest.json", busy), ("GET", "list-type", busy), ("HEAD", "train-00002", busy)]
    mill(text, "s3://mill/trouble", tmp_path, format="shards", shard_tokens=1500)
    assert not faulty.faults
    mill(text, tmp_path / "out", tmp_path, format="shards", shard_tokens=1500)
    assert without_run(bucket("trouble")) == without_run(files(tmp_path / "out"))
    puts = [path for method, path, _ in faulty.requests if method == "PUT"]
    assert "manifest.json" in puts[-1]


def test_a_store_that_stays_away_costs_no_work(text, tmp_path, faulty, bucket):
    faulty.faults = [("PUT", "train-00003", Fault("status", status=503)) for _ in range(10_000)]
    choices = {"format": "shards", "shard_tokens": 1500}
    with pytest.raises(TemporaryError, match=r"train-00003.bin: the server answers 503.*same command again"):
        mill(text, "s3://mill/away", tmp_path, limits={"network_seconds": 0.5}, **choices)
    assert "manifest.json" not in bucket("away") and staged(tmp_path)
    faulty.faults = []
    assert mill(text, "s3://mill/away", tmp_path, **choices).run["resumed_bytes"] > 0
    mill(text, tmp_path / "out", tmp_path, **choices)
    assert without_run(bucket("away")) == without_run(files(tmp_path / "out"))


def test_who_may_not_write_is_told_before_the_work(text, tmp_path, faulty, bucket):
    faulty.faults = [("PUT", "", Fault("status", status=403))]
    with pytest.raises(OutputError, match=r"s3://mill/denied/.*no permission to write.*aws sts get-caller-identity"):
        mill(text, "s3://mill/denied", tmp_path)
    with pytest.raises(OutputError, match="no such bucket"):
        mill(text, "s3://nobucket/out", tmp_path)
    assert bucket("denied") == {} and not staged(tmp_path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://datasets/a/b", "hf upload"),
        ("https://host/out", "accepts no uploads"),
        ("ftp://host/out", "s3://BUCKET"),
        ("s3://", "s3://BUCKET/FOLDER"),
        ("s3://mill/*", "s3://BUCKET/FOLDER"),
    ],
)
def test_other_places_are_refused_with_a_reason(text, tmp_path, url, words):
    with pytest.raises(UsageError, match=words):
        mill(text, url, tmp_path)
    done = CliRunner().invoke(cli, ["convert", str(tmp_path), "--to", "llmc", "-o", "s3://mill/x"])
    assert done.exit_code and "write to a local disk" in str(done.exception)


def test_what_is_not_ours_is_left_alone_and_what_is_anothers_job_is_refused(text, tmp_path, aws_login, bucket):
    def put(name, body=b"theirs"):
        aws_login.put_object(Bucket="mill", Key=f"shared/{name}", Body=body)

    put("notes.txt")
    put("train-00000.bin")
    put("below/train-00001.bin")
    choices = {"format": "shards", "shard_tokens": 1500}
    with pytest.raises(OutputError, match=r"s3://mill/shared/train-00000.bin: exists, and shardmill did not write it"):
        mill(text, "s3://mill/shared", tmp_path, **choices)
    aws_login.delete_object(Bucket="mill", Key="shared/train-00000.bin")
    mill(text, "s3://mill/shared", tmp_path, **choices)
    first = bucket("shared")
    with pytest.raises(
        OutputError, match=r"(?s)s3://mill/shared holds the result of another job.*seed: was 0, is now 1"
    ):
        mill(text, "s3://mill/shared", tmp_path, seed=1, **choices)
    assert bucket("shared") == first
    mill(text, "s3://mill/shared", tmp_path, seed=1, overwrite=True, format="shards", shard_tokens=9000)
    after = bucket("shared")
    mill(text, tmp_path / "out", tmp_path, seed=1, format="shards", shard_tokens=9000)
    assert after.pop("notes.txt") == after.pop("below/train-00001.bin") == b"theirs"
    assert without_run(after) == without_run(files(tmp_path / "out"))
    assert len(after) < len(first), "shards of the old result are removed"


def test_the_old_manifest_goes_before_anything_else_is_touched(text, tmp_path, faulty, bucket):
    """I3: what is half replaced is never called complete."""
    mill(text, "s3://mill/replaced", tmp_path, format="shards", shard_tokens=1500)
    faulty.requests.clear()
    faulty.faults = [("PUT", "train-00000", Fault("status", status=403))]
    with pytest.raises(OutputError, match="no permission to write"):
        mill(text, "s3://mill/replaced", tmp_path, overwrite=True, format="shards", shard_tokens=1600)
    assert "manifest.json" not in bucket("replaced")
    changes = [path for method, path, _ in faulty.requests if method in ("PUT", "DELETE") and ".partial" not in path]
    assert "manifest.json" in changes[0]


def test_shards_that_vanish_from_the_store_between_two_runs_are_missed(text, tmp_path, faulty, aws_login):
    faulty.faults = [("PUT", "train-00003", Fault("status", status=403))]
    choices = {"format": "shards", "shard_tokens": 1500}
    with pytest.raises(OutputError, match="no permission to write"):
        mill(text, "s3://mill/vanish", tmp_path, limits={"checkpoint_seconds": 0.0}, **choices)
    aws_login.delete_object(Bucket="mill", Key="vanish/train-00000.bin")
    with pytest.raises(OutputError, match=r"train-00000.bin: is gone.*uploaded 3,000 bytes.*--overwrite"):
        mill(text, "s3://mill/vanish", tmp_path, **choices)
    mill(text, "s3://mill/vanish", tmp_path, overwrite=True, **choices)
    assert shardmill.verify("s3://mill/vanish").ok


def test_an_input_in_the_place_of_an_output_is_refused(tmp_path, aws_login):
    aws_login.put_object(Bucket="mill", Key="own/train-00000.csv.gz", Body=b"text\nhello\n")
    spec = Spec(inputs=["s3://mill/own/train-00000.csv.gz"], output="s3://mill/own", format="olmo")
    with pytest.raises(UsageError, match="is an input and would be overwritten"):
        prepare(spec, limits=Limits(staging=str(tmp_path)), overwrite=True)


def test_a_large_file_is_put_in_parts_and_parts_of_a_killed_run_are_dropped(tmp_path, aws_login, bucket, faulty):
    data = os.urandom(21 << 20)
    (tmp_path / "train.bin").write_bytes(data)
    begun = [
        aws_login.create_multipart_upload(Bucket="mill", Key=f"parts/{name}")["UploadId"]
        for name in ("train.bin", "theirs.bin")
    ]
    store = ObjectStore("s3://mill/parts", 10.0)
    store.abort_unfinished(lambda name: name == "train.bin")
    left = aws_login.list_multipart_uploads(Bucket="mill", Prefix="parts/")["Uploads"]
    assert [upload["UploadId"] for upload in left] == begun[1:]
    faulty.faults = [("PUT", "partNumber=2", Fault("status", status=503))]
    store.put("train.bin", tmp_path / "train.bin")
    assert bucket("parts") == {"train.bin": data}
    assert max(length for method, _, length in faulty.requests if method == "PUT") <= 9 << 20


@pytest.mark.usefixtures("aws_login")
def test_the_command_tells_the_address_and_no_secret(text, tmp_path, faulty):
    args = ["prepare", str(text), "-o", "s3://mill/told", "--format", "shards", "--shard-tokens", "2000"]
    faulty.delay = 0.1
    done = run(*args, "--staging", "stage", "--progress", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "s3://mill/told/train-00000.bin  2,000 tokens" in done.stderr
    assert 'shardmill.open("s3://mill/told")' in done.stderr and '"staged_bytes": ' in done.stderr
    assert "sesame" not in done.stderr and not list((tmp_path / "stage").iterdir())


@pytest.mark.usefixtures("aws_login")
@pytest.mark.parametrize(
    "room", ["900K", pytest.param("9M", marks=pytest.mark.slow)]
)  # it waits for room; all is milled
def test_ctrl_c_does_not_wait_for_the_store(tmp_path, faulty, room):
    (tmp_path / "a.txt").write_text("\n".join(DOCUMENTS * 100))
    args = ["prepare", "a.txt", "-o", f"s3://mill/held{room}", "--format", "shards", "--shard-tokens", "100k"]
    command = [SHARDMILL, *args, "--staging", "stage", "-q", "--max-staging", room]
    faulty.faults = [("PUT", "train-0000", Fault("stall", 0, seconds=30)) for _ in range(100)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while len(faulty.faults) > 98 and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.5)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130 and "same command again" in told and "Traceback" not in told, told
    assert time.monotonic() - started < 20
    faulty.faults = []
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 0
    assert shardmill.verify(f"s3://mill/held{room}").ok
