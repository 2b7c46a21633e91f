"""Outputs that are read where they are: in a store, on the hub or on the web, and the same as on the disk."""

import json
import multiprocessing
import os
import pickle
import random
import threading

import numpy as np
import pytest
from click.testing import CliRunner

import shardmill
from edited import signed
from servers import Fault, Hub, Server
from shardmill import Limits, Spec, prepare
from shardmill.cli.main import cli
from shardmill.errors import InputError, UsageError
from shardmill.io import http_reader

DOCUMENTS = [f"Document {i} tells of the mill and {i * 7919} sacks.\n" * (i % 5 + 1) for i in range(120)]


def mill(root, name, **choices):
    (root / "a.txt").write_text("##".join(DOCUMENTS))
    spec = Spec(inputs=[root / "a.txt"], output=root / name, separator="##", val_fraction=0.05, **choices)
    prepare(spec, limits=Limits(engine="reference", workers=1))
    return root / name


OUTPUTS = {
    "shards": {"format": "shards", "shard_tokens": 700, "index": True},
    "llmc": {"format": "llmc", "shard_tokens": 900, "split": "hash"},
    "megatron": {"format": "megatron"},
}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    root = tmp_path_factory.mktemp("fileset")
    for name, choices in OUTPUTS.items():
        mill(root, name, **choices)
    return root


@pytest.fixture(scope="module")
def hub():
    with Server(Hub) as server:
        yield server


@pytest.fixture(params=["s3", "gs", "https", "hf"])
def far(request, local, monkeypatch):
    """The same outputs behind each protocol: the address of the folder that holds them."""
    files = [path for name in OUTPUTS for path in (local / name).iterdir()]
    if request.param == "s3":
        client = request.getfixturevalue("aws_login")
        for path in files:
            client.put_object(Bucket="mill", Key=f"read/{path.parent.name}/{path.name}", Body=path.read_bytes())
        yield "s3://mill/read"
    elif request.param == "gs":
        import requests

        server = request.getfixturevalue("gcs_server")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        for path in files:
            name = f"read/{path.parent.name}/{path.name}"
            address = f"{server}/upload/storage/v1/b/mill/o?uploadType=media&name={name}"
            requests.post(address, data=path.read_bytes(), timeout=10).raise_for_status()
        yield "gs://mill/read"
    elif request.param == "https":
        with Server() as server:
            server.files |= {f"/read/{path.parent.name}/{path.name}": path.read_bytes() for path in files}
            yield f"{server.url}/read"
    else:
        import huggingface_hub.constants

        server = request.getfixturevalue("hub")
        server.files |= {f"/mills/read/{path.parent.name}/{path.name}": path.read_bytes() for path in files}
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield "hf://datasets/mills/read"


def test_a_far_corpus_is_the_same_as_a_near_one(far, local):
    for name in OUTPUTS:
        near, there = shardmill.open(local / name), shardmill.open(f"{far}/{name}")
        assert there.folder == f"{far}/{name}" and there.tokens == near.tokens and there.dtype == near.dtype
        for split in ("train", "val"):
            expected, found = near[split], there[split]
            assert np.array_equal(found[:], expected[:]) and found[-1] == expected[-1]
            assert np.array_equal(found[650:1450], expected[650:1450])
            assert [ids.tolist() for ids in found.documents()] == [ids.tolist() for ids in expected.documents()]
            assert found.document(3).tolist() == expected.document(3).tolist()
        assert there.decode(there["train"].document(0)) == near.decode(near["train"].document(0))


def test_inspect_and_verify_take_an_address(far, local):
    runner = CliRunner()
    near = runner.invoke(cli, ["inspect", str(local / "shards"), "--json"])
    there = runner.invoke(cli, ["inspect", f"{far}/shards/", "--json"])
    assert there.exit_code == 0 and json.loads(there.stdout) == json.loads(near.stdout)
    done = runner.invoke(cli, ["verify", f"{far}/shards", "--source", str(local / "a.txt"), "--workers", "1"])
    assert done.exit_code == 0 and f"{far}/shards: " in done.stderr and "same tokens" in done.stderr


@pytest.fixture
def served(local):
    with Server() as server:
        for path in (local / "shards").iterdir():
            server.files[f"/out/{path.name}"] = path.read_bytes()
        yield server


def test_a_far_corpus_can_be_converted_and_merged(served, tmp_path, local):
    far = f"{served.url}/out"
    done = CliRunner().invoke(cli, ["convert", far, "--to", "megatron", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "out/train.bin").read_bytes() == (local / "megatron/train.bin").read_bytes()
    shardmill.merge([far, local / "shards"], shardmill.Target(output=tmp_path / "two"))
    assert shardmill.open(tmp_path / "two").tokens == 2 * shardmill.open(local / "shards").tokens


def test_damage_in_a_far_output_is_found_and_named(served):
    assert shardmill.verify(f"{served.url}/out").ok
    whole = dict(served.files)
    cases = {
        "train-00002.bin": (lambda data: data[:40] + b"\xff\xfe" + data[42:], "damaged"),
        "train-00001.bin": (lambda data: data[:-2], "2 fewer than"),
        "val-00000.bin": (lambda _: None, "missing"),
        "train.ends": (lambda data: data[::-1], "damaged"),
        "manifest.json": (lambda data: data[:100], "not a manifest"),
    }
    for name, (damage, words) in cases.items():
        served.files = dict(whole)
        served.files[f"/out/{name}"] = damage(whole[f"/out/{name}"])
        problems = shardmill.verify(f"{served.url}/out").problems
        assert {problem.file for problem in problems} == {name} and words in problems[0].what
        done = CliRunner().invoke(cli, ["verify", f"{served.url}/out"])
        assert done.exit_code == 1 and f"{served.url}/out/{name}: " in done.stderr


def test_far_folders_that_are_none_are_told(served, aws_login):
    for url in ("s3://mill/nothing-here", f"{served.url}/none"):
        with pytest.raises(InputError, match=r"no manifest\.json|no such file"):
            shardmill.open(url)
        assert not shardmill.verify(url).ok
    with pytest.raises(InputError, match="no such bucket"):
        shardmill.open("s3://nobucket/out")
    with pytest.raises(UsageError, match="one folder"):
        shardmill.open("s3://mill/out*")
    aws_login.put_object(Bucket="mill", Key="half/train.bin", Body=b"1234")
    with pytest.raises(InputError, match="shardmill did not make it"):
        shardmill.open("s3://mill/half")


def test_a_server_in_trouble_is_asked_again(served, local):
    corpus = shardmill.open(f"{served.url}/out")
    served.faults["/out/train-00000.bin"] = [Fault("status", status=503), Fault("cut", 300), Fault("reset", 10)]
    assert np.array_equal(corpus["train"][:500], shardmill.open(local / "shards")["train"][:500])
    assert not served.faults["/out/train-00000.bin"]


def test_a_shard_that_was_replaced_since_is_an_error(served):
    corpus = shardmill.open(f"{served.url}/out")
    served.files["/out/train-00001.bin"] = bytes(len(served.files["/out/train-00001.bin"]))
    with pytest.raises(InputError, match="changed"):
        corpus["train"][:]


def test_a_far_corpus_works_in_threads_forks_and_copies(served, local):
    expected = shardmill.open(local / "shards")["train"][:]
    corpus = shardmill.open(f"{served.url}/out")
    assert np.array_equal(pickle.loads(pickle.dumps(corpus))["train"][:], expected)
    wrong = []

    def read(seed):
        chance = random.Random(seed)
        for _ in range(20):
            at = chance.randrange(len(expected))
            if not np.array_equal(corpus["train"][at : at + 300], expected[at : at + 300]):
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_sum, (corpus,)) == int(expected.sum(dtype=np.int64))
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(corpus["train"][100:900], expected[100:900]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(corpus["train"][:900], expected[:900])


def _sum(corpus):
    return int(corpus["train"][:].sum(dtype=np.int64))


def remote_threads():
    return sum(thread.name == "shardmill-ahead" for thread in threading.enumerate())


def test_reading_in_order_takes_few_requests_and_little_memory(tmp_path):
    """A far file of 64 MB, read document by document: one request for a stretch, and no more held than is read ahead."""
    tokens = np.random.default_rng(0).integers(0, 50000, 32 << 20, dtype=np.uint16)
    tokens[20_000::20_000] = 50256
    (tmp_path / "a.txt").write_text("one")
    prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0, eot="after"))
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    manifest["files"][0] |= {"tokens": len(tokens), "bytes": tokens.nbytes}
    held = []
    with Server() as server:
        server.files = {"/out/manifest.json": signed(manifest), "/out/train.bin": tokens.tobytes()}
        server.etags["/out/train.bin"] = "1"
        train = shardmill.open(f"{server.url}/out")["train"]
        server.requests.clear()
        count = 0
        for number, document in enumerate(train.documents()):
            count += len(document)
            if number % 100 == 0:
                fileset = train.files[0].file.fileset
                held.append(
                    sum(len(c) for _, r in fileset._idle if r._download for c in list(r._download._buffer._chunks))
                )
        assert count == len(tokens) and len(server.requests) < 10, len(server.requests)
        chance, before = random.Random(2), remote_threads()
        for _ in range(150):
            at = chance.randrange(len(tokens))
            assert np.array_equal(train[at : at + 1024], tokens[at : at + 1024])
        assert remote_threads() <= max(4, before), "readers that are not kept are closed"
    assert max(held) <= 2 * (http_reader.READ_AHEAD + 2 * http_reader.LOOK_BACK)
