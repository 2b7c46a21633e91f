"""A hub that cannot be reached is a temporary error: the same command may succeed later."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from command import SHARDMILL, run
from servers import Fault, Handler, Server

PATH = "/mills/gpt2/resolve/main/tokenizer.json"


class Hub(Handler):
    """Answers HEAD as it does GET, without the body."""

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, body, headers=None, fault=None):
        headers = {"X-Repo-Commit": "0" * 40, **(headers or {})}
        super().answer(status, b"" if self.command == "HEAD" else body, headers, fault)


def side_by_side(*args, cwd, env):
    """As run does it, but several at a time; what the hub's own library waits between its attempts is cut short."""
    (cwd / "site").mkdir()
    (cwd / "site/sitecustomize.py").write_text("import time\nsleep = time.sleep\ntime.sleep = lambda _: sleep(0.01)\n")
    env = {**env, "PYTHONPATH": os.pathsep.join([str(cwd / "site"), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([SHARDMILL, *args], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)


def prepare(folder, endpoint, *more, run=run, **env):
    (folder / "a.txt").write_text("The mill turns text into tokens.\n" * 10)
    env = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache"), **env}
    return run("prepare", *(more or ("a.txt", "--tokenizer", "mills/gpt2")), "-o", "out", "--json", cwd=folder, env=env)


def told(done):
    content = json.loads(done.stdout)
    assert content["exit_code"] == done.returncode
    return content


def test_a_hub_that_is_down_is_temporary(tmp_path):
    def down(folder, status):
        (tmp_path / folder).mkdir()
        with Server(Hub) as server:
            server.faults[PATH] = [Fault("status", status=status) for _ in range(20)]
            if status:
                return told(prepare(tmp_path / folder, server.url, run=side_by_side))
        return told(prepare(tmp_path / folder, server.url, run=side_by_side))  # nobody listens there any more

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(down, "abcd", (500, 503, 429, None)))
    for content in found:
        assert content["exit_code"] == 75 and "cannot be reached" in content["error"]
        assert "run the same command again later" in content["hint"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_hub_that_refuses_is_not_temporary(tmp_path, status):
    with Server(Hub) as server:
        server.faults[PATH] = [Fault("status", status=status) for _ in range(20)]
        assert told(prepare(tmp_path, server.url))["exit_code"] == 2


def test_a_name_that_the_hub_cannot_have_is_not_temporary(tmp_path):
    done = prepare(tmp_path, "http://127.0.0.1:9", "a.txt", "--tokenizer", "mills/a..b--c")
    assert told(done)["exit_code"] == 2, done.stderr


def test_offline_mode_is_the_users_choice(tmp_path):
    content = told(prepare(tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1"))
    assert content["exit_code"] == 2 and "HF_HUB_OFFLINE" in content["error"]


@pytest.mark.parametrize("url", ["hf://datasets/mills/texts/a.txt", "https://127.0.0.1:9/a.txt"])
def test_inputs_that_cannot_be_reached_are_temporary_too(tmp_path, url):
    with Server() as server:
        closed = server.url
    done = prepare(tmp_path, closed, url, SHARDMILL_NETWORK_SECONDS="1", HF_HUB_ETAG_TIMEOUT="1")
    assert told(done)["exit_code"] == 75, done.stderr
    assert os.listdir(tmp_path).count("out") == 0
