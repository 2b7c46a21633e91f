"""A job whose result goes to a store, killed at any step and moment, is finished by the same command (I1, I2, I3)."""

import random
import re

import pytest
from jobs import ORDERLY, command, drive, result

from commit_steps import STEPS, STORE_STEPS
from servers import Proxy, Server

KILLED = -9
# Shards of all but the first may change longer: the last is joined to the one before it. Two have subfolders.
FORMATS = {
    "shards": ["--format", "shards", "--shard-tokens", "2000", "--index", "--max-staging", "60000"],
    "llmc": ["--format", "llmc", "--shard-tokens", "3000", "--split", "hash", "--max-staging", "120000"],
    "mds": ["--format", "mds", "--shard-tokens", "3000", "--sample-tokens", "100", "--max-staging", "120000"],
    "litdata": ["--format", "litdata", "--shard-tokens", "3000", "--sample-tokens", "100", "--max-staging", "120000"],
}
# What a folder has and a store has not: files get their final names there when they are put.
ONLY_FOLDERS = {"file-named", "names-synced", "old-result-removed"}


def slow(format):
    return pytest.param(format, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def store(s3_server):
    """The bucket behind a server that keeps what was asked for."""
    with Server(Proxy) as proxy, pytest.MonkeyPatch.context() as patch:
        proxy.target, proxy.faults = s3_server[1], []
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "sesame-sesame")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        proxy.client = s3_server[0]
        yield proxy


@pytest.fixture(scope="module")
def near(inputs):
    """What a folder gets, in each format."""
    done = drive(inputs, [{"args": command("running", *options, output=name)} for name, options in FORMATS.items()])
    assert [end["code"] for end in done] == [0] * len(FORMATS), [end["stderr"] for end in done]
    folders = ("train", "val")  # a store knows none
    return {
        name: {file: data for file, data in result(inputs, name).items() if file not in folders} for name in FORMATS
    }


@pytest.fixture
def expected(near):
    return near["shards"]


def stored(store, name):
    found = store.client.list_objects_v2(Bucket="mill", Prefix=f"kills/{name}/").get("Contents", ())
    keys = {entry["Key"].removeprefix(f"kills/{name}/"): entry["Key"] for entry in found}
    data = {name: store.client.get_object(Bucket="mill", Key=key)["Body"].read() for name, key in keys.items()}
    return {name: None if name == "run.json" else content for name, content in data.items()}


def go(inputs, store, name, ways, *options, limits=ORDERLY, format="shards"):
    """The same command over and over: what happens to each run, and at last nothing."""
    args = command("running", *FORMATS[format], "--staging", "stage", *options, output=f"s3://mill/kills/{name}")
    store.requests.clear()
    done = drive(inputs, [{"args": args, "limits": limits, **way} for way in [*ways, {}]])
    assert all(end["code"] in (0, KILLED) for end in done) and done[-1]["code"] == 0, [end["stderr"] for end in done]
    return done


def check_order(store, expected):
    """Every put was of a whole file, and the manifest came only when the store had all of the others (I2, I3)."""
    there = set()
    for method, path, length in store.requests:
        if method == "PUT" and (found := re.fullmatch(r"/mill/kills/[^/]+/([^?]+)(\?.*)?", path)):
            name = found[1]
            if name == "manifest.json":
                assert there - {name} == expected.keys() - {"manifest.json"}
            if expected.get(name) is not None:
                assert length == len(expected[name]), name
            there |= {name} & expected.keys()
    assert there == expected.keys()


@pytest.mark.parametrize("format", ["shards", slow("mds"), slow("litdata")])
def test_a_kill_at_any_step_costs_no_byte(inputs, store, near, format):
    """One job that is killed at every step in turn, the early ones first; then at later times of those that come often."""
    early = [["journal-begun", 1], ["file-created", 1], ["block-written", 4], ["tail-dropped", 1], ["data-synced", 1]]
    middle = [[step, 1] for step in ("checkpoint-written", "checkpoint-synced", "journal-replaced", *STORE_STEPS)]
    late = [[step, 1] for step in ("files-finished", "files-sealed", "run-written", "manifest-written")]
    kills = [*early, *middle, *late]
    assert {step for step, _ in kills} == {*STEPS, *STORE_STEPS} - ONLY_FOLDERS - {"journal-removed"}
    expected = near[format]
    done = go(inputs, store, f"first-{format}", [{"kill": kill} for kill in kills], format=format)
    missed = [kill for kill, end in zip(kills, done[:-1], strict=True) if end["code"] != KILLED]
    assert not missed, missed
    assert stored(store, f"first-{format}") == expected
    check_order(store, expected)
    later = [["file-put", 4], ["journal-removed", 1]]
    done = go(inputs, store, f"later-{format}", [{"kill": kill} for kill in later], format=format)
    assert [end["code"] for end in done] == [KILLED] * len(later) + [0]
    assert stored(store, f"later-{format}") == expected
    check_order(store, expected)
    assert not list((inputs / "stage").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_kills_at_random_moments_cost_no_byte(inputs, store, near, format):
    chance = random.Random(format)
    loose = {"checkpoint_seconds": 0.0, "checkpoint_bytes": 6000, "block_bytes": 3000}
    ways = [{"after": chance.uniform(0.3, 1.0)} for _ in range(3)] + [{"kill": ["staged-removed", 2]}]
    go(inputs, store, f"moments-{format}", ways, limits=loose, format=format)
    assert stored(store, f"moments-{format}") == near[format]
    check_order(store, near[format])


def test_a_kill_while_an_older_result_is_replaced(inputs, store, expected):
    go(inputs, store, "older", [], "--seed", "7")
    assert stored(store, "older") != expected
    kills = ("old-result-removed", "file-put", "manifest-written")
    done = go(inputs, store, "older", [{"kill": [step, 1]} for step in kills], "--overwrite")
    assert [end["code"] for end in done] == [KILLED] * len(kills) + [0]
    assert ["old-result-removed" in end["steps"] for end in done] == [True, True, False, False]
    assert stored(store, "older") == expected
    check_order(store, expected)
