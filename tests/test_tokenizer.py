"""Names → tokenizers: what ships, what a tokenizer.json may hold, and what the hub gives."""

import hashlib
import http.server
import json
import logging
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import reference
from command import run
from shardmill import Limits, Spec, prepare
from shardmill.errors import UsageError
from shardmill.tokens import families, names
from shardmill.tokens import tokenizer as tokenizers
from shardmill.tokens.encoder import choose_engines
from shardmill.tokens.tokenizer import ENCODINGS, end_of_text, load

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = "The mill's text — 文字がある — isn't <|endoftext|> here.\n\n  x = 1\n" * 40


def changed(gpt2_json, tmp_path, **changes):
    """GPT-2's tokenizer.json with some of its top-level entries replaced."""
    config = json.loads(Path(gpt2_json).read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if key == "model" else value
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    return path


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern, behavior="Isolated", *, invert=False):
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    return sequence(step, {**BYTE_LEVEL, "use_regex": False})


def runs_here(tokenizer):
    return not isinstance(tokenizer.model, str)


def added(content, number, **changes):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": content, **flags, **changes}


def test_gpt2_is_r50k_base():
    assert load("gpt2") == load("r50k_base") or load("gpt2").digest == load("r50k_base").digest


@pytest.mark.parametrize(
    ("name", "size", "eot"),
    [("r50k_base", 50257, 50256), ("cl100k_base", 100277, 100257), ("o200k_base", 200019, 199999)],
)
def test_the_shipped_vocabularies_are_the_published_ones(name, size, eot):
    found = load(name)
    assert found.size == size and end_of_text(found, None) == eot
    assert hashlib.sha256(found.source.read_bytes()).hexdigest() == ENCODINGS[name].sha256


def test_a_damaged_vocabulary_is_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "r50k_base.tiktoken"
    damaged.write_bytes(tokenizers.vocabulary_file("r50k_base").read_bytes()[:-10])
    monkeypatch.setattr(tokenizers, "vocabulary_file", lambda _: damaged)
    with pytest.raises(UsageError, match="damaged"):
        load("gpt2")


def test_the_patterns_are_those_of_the_installed_tiktoken(monkeypatch):
    from tiktoken_ext import openai_public

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    for name, known in ENCODINGS.items():
        theirs = getattr(openai_public, name)()
        assert (theirs["pat_str"], theirs["special_tokens"]) == (known.pattern, known.specials)


def test_a_tokenizer_json_without_a_model_type_is_understood(gpt2_json, tmp_path):
    """GPT-2's own file is so old that it does not say BPE."""
    config = json.loads(Path(gpt2_json).read_text())
    del config["model"]["type"], config["pre_tokenizer"]["use_regex"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    found = load(str(tmp_path))
    assert (found.family, runs_here(found)) == ("gpt2", True)


NORMALIZED = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "family", "ours"),
    [
        ({}, "gpt2", True),
        ({"pre_tokenizer": sequence(BYTE_LEVEL)}, "gpt2", True),
        ({"pre_tokenizer": split(LLAMA3)}, "cl100k", True),
        ({"pre_tokenizer": split(LLAMA3, "Removed", invert=True)}, "cl100k", True),
        ({"pre_tokenizer": split(ENCODINGS["o200k_base"].pattern)}, "o200k", True),
        # Oniguruma reads the {1,3}+ of this spelling as a run of digits.
        ({"pre_tokenizer": split(ENCODINGS["cl100k_base"].pattern)}, "spaces", False),
        ({"pre_tokenizer": split(r"\w+|\W+")}, "unknown", False),
        ({"pre_tokenizer": split(r"New York|[^\s]+|\s")}, "unknown", False),
        ({"pre_tokenizer": split(r"\p{L}+(?=\s)|[^\s]|\s")}, "unknown", False),
        ({"pre_tokenizer": split(r" ?[^\s]+|\s+(?!\S)|\s+")}, "spaces", False),
        ({"pre_tokenizer": split(r"[^\n]*\n?")}, "unknown", False),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "spaces", False),
        ({"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}}, "unknown", False),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 5}}, "unknown", False),
        ({"pre_tokenizer": None}, "unknown", False),
        ({"normalizer": {"type": "NFC"}}, "spaces", True),
        ({"normalizer": NORMALIZED}, "spaces", False),
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, "unknown", False),
        ({"model": {"byte_fallback": True}}, "gpt2", True),
        ({"model": {"ignore_merges": True}}, "gpt2", True),
        ({"added_tokens": [added("<tool>", 50257, special=False)]}, "spaces", True),
        ({"added_tokens": [added("two words", 50257, special=False)]}, "unknown", True),
        ({"added_tokens": [added("<strip>", 50257, special=False, lstrip=True)]}, "unknown", True),
        ({"added_tokens": [added("    ", 50257, special=False)]}, "spaces", True),
        ({"added_tokens": [added(" x", 50257, special=False, single_word=True)]}, "unknown", True),
    ],
)
def test_only_what_is_understood_is_cut_and_run_fast(gpt2_json, tmp_path, changes, family, ours):
    found = load(str(changed(gpt2_json, tmp_path, **changes)))
    assert (found.family, runs_here(found)) == (family, ours)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": split(LLAMA3)},
        {"normalizer": {"type": "NFC"}},
        {"added_tokens": [added("<|endoftext|>", 50256), added("文字", 50257, special=False)]},
        {"pre_tokenizer": split(r"\w+|\W+")},
    ],
)
def test_any_tokenizer_json_gives_the_tokens_of_its_reference(gpt2_json, tmp_path, changes):
    path = changed(gpt2_json, tmp_path, **changes)
    (tmp_path / "a.txt").write_text(TEXT)
    for block_bytes in (50, 1 << 20):
        spec = Spec(
            inputs=[tmp_path / "a.txt"], output=tmp_path / f"out{block_bytes}", tokenizer=str(path), val_fraction=0
        )
        prepare(spec, limits=Limits(block_bytes=block_bytes, workers=2, cache=str(tmp_path / "cache")))
        assert np.fromfile(tmp_path / f"out{block_bytes}/train.bin", "<u2").tolist() == reference.encode(
            str(path), TEXT
        )


def test_a_trial_is_quick_and_only_where_the_pattern_is_not_known(gpt2_json, tmp_path, monkeypatch):
    config = json.loads(Path(gpt2_json).read_text()) | {"pre_tokenizer": split(r" ?[^\s]+|\s+(?!\S)|\s+")}
    families.family_of(config, "")
    started = time.thread_time()
    assert families.family_of(config, "") == "spaces"
    assert time.thread_time() - started < 0.3
    monkeypatch.setattr(families, "_holds", lambda *_: pytest.fail("it was tried"))
    assert load(gpt2_json).family == "gpt2"
    assert load(str(changed(gpt2_json, tmp_path, normalizer={"type": "NFC"}))).family == "spaces"


def test_a_tokenizer_that_our_engine_cannot_run_says_so(gpt2_json, tmp_path):
    path = changed(gpt2_json, tmp_path, pre_tokenizer=split(r"\w+|\W+"))
    engines = choose_engines(load(str(path)), "auto")
    assert engines.ours is None and "slower: its pre-tokenizer splits by a pattern that is not known" in engines.note
    with pytest.raises(UsageError, match=r"cannot run on it, since its pre-tokenizer .*--engine auto"):
        choose_engines(load(str(path)), "native")


def test_an_unclear_end_of_text_is_asked_for(gpt2_json, tmp_path):
    two = load(str(changed(gpt2_json, tmp_path, added_tokens=[added("</s>", 50256), added("<|endoftext|>", 50257)])))
    with pytest.raises(UsageError, match=r"several tokens.*--eot-token"):
        end_of_text(two, None)
    assert end_of_text(two, "</s>") == 50256
    none = load(str(changed(gpt2_json, tmp_path, added_tokens=[])))
    with pytest.raises(UsageError, match="--eot none"):
        end_of_text(none, None)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {}}', '{"model": {"vocab": 3}}', "\x00"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        load(str(tmp_path / "tokenizer.json"))


class Hub(http.server.BaseHTTPRequestHandler):
    """Speaks as much of the hub's protocol as a client needs to fetch one file."""

    content = b""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        if self.path != "/mills/gpt2/resolve/main/tokenizer.json" and not self.path.endswith("/tokenizer.json"):
            self.send_error(404)
            return
        if "/mills/gpt2/" not in self.path:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if body:
            self.wfile.write(self.content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(gpt2_json):
    Hub.content = Path(gpt2_json).read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def command(*args, cwd, endpoint):
    env = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cwd / "hf"),
        "XDG_CACHE_HOME": str(cwd / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return run(*args, cwd=cwd, env=env)


def test_a_hub_id_is_fetched_over_the_network(tmp_path, hub):
    (tmp_path / "a.txt").write_text(TEXT)
    done = command(
        "prepare", "a.txt", "-o", "out", "--tokenizer", "mills/gpt2", "--val-fraction", "0", cwd=tmp_path, endpoint=hub
    )
    assert done.returncode == 0, done.stderr
    assert np.fromfile(tmp_path / "out/train.bin", "<u2").tolist() == reference.encode("r50k_base", TEXT)


def test_a_hub_id_that_does_not_exist_is_named(tmp_path, hub):
    (tmp_path / "a.txt").write_text(TEXT)
    done = command("prepare", "a.txt", "-o", "out", "--tokenizer", "mills/none", cwd=tmp_path, endpoint=hub)
    assert done.returncode == 2 and "mills/none" in done.stderr and "no such model" in done.stderr


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("gpt2", "r50k_base"),
        ("GPT-4o", "o200k_base"),
        ("gpt4", "cl100k_base"),
        ("qwen3", "Qwen/Qwen3-8B"),
        ("Qwen-2.5", "Qwen/Qwen2.5-7B"),
        ("llama_3", "meta-llama/Meta-Llama-3-8B"),
        ("llama3.1", "meta-llama/Llama-3.1-8B"),
        ("mills/gpt2", "mills/gpt2"),
    ],
)
def test_names_that_people_type_stand_for_an_encoding_or_a_hub_id(typed, found):
    assert names.resolve(typed) == found


def test_no_two_names_are_spelled_alike_and_each_hub_id_is_one():
    every = [*names.BUNDLED, *names.ON_THE_HUB]
    assert len({names._plain(name) for name in every}) == len(every)
    assert all(found.count("/") == 1 for found in names.ON_THE_HUB.values())
    assert set(names.BUNDLED.values()) == set(ENCODINGS)


def test_a_name_is_fetched_from_the_hub_and_recorded_by_its_id_and_hash(gpt2_json, tmp_path, monkeypatch):
    """Whoever reads the manifest sees what the name stood for."""
    asked, content = [], Path(gpt2_json).read_bytes()
    monkeypatch.setattr(tokenizers, "_download", lambda name: asked.append(name) or tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "a.txt").write_text(TEXT)
    made = prepare(Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", tokenizer="Qwen-3")).manifest
    assert asked == ["Qwen/Qwen3-8B"] and made.job["choices"]["tokenizer"] == "Qwen/Qwen3-8B"
    assert made.job["tokenizer_sha256"] == hashlib.sha256(content).hexdigest()


def test_a_file_or_folder_of_that_name_comes_first(gpt2_json, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3").mkdir()
    (tmp_path / "qwen3/tokenizer.json").write_bytes(Path(gpt2_json).read_bytes())
    assert load("qwen3").source == Path("qwen3/tokenizer.json")


def test_the_command_lists_the_names_and_describes_a_tokenizer(gpt2_json, tmp_path):
    listed = run("tokenizers", cwd=tmp_path)
    assert (
        listed.returncode == 0 and "deepseek-ai/DeepSeek-V3" in listed.stdout and "o200k_base, bundled" in listed.stdout
    )
    assert json.loads(run("tokenizers", "--json", cwd=tmp_path).stdout)["hub"] == names.ON_THE_HUB
    path = changed(
        gpt2_json,
        tmp_path,
        normalizer={"type": "NFC"},
        added_tokens=[added("<|endoftext|>", 50256), added("<t>", 50257, special=False)],
    )
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    shown = run("tokenizers", str(path), cwd=tmp_path, env=env).stdout
    assert (
        "byte-level BPE, after NFC" in shown
        and "1 special token, 1 added token" in shown
        and "engine     native" in shown
    )
    changed(gpt2_json, tmp_path, pre_tokenizer=split(r"\w+|\W+"))
    found = json.loads(run("tokenizers", str(tmp_path), "--json", cwd=tmp_path, env=env).stdout)
    assert found["engine"].startswith("tokenizers") and "pattern that is not known" in found["note"]
    assert found["megabytes_per_second"] > 0
    missing = run("tokenizers", "no/such/thing", cwd=tmp_path)
    assert missing.returncode == 2 and "not a known name" in missing.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [("qwn3", "did you mean qwen3?"), ("xyzzy", "known are gpt2, "), ("a/b/nope.json", "no such file")],
)
def test_a_name_that_is_not_known_is_told_from_a_file_that_is_missing(name, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        load(name)


def test_a_hub_that_is_slow_is_told_once_in_our_words(monkeypatch, caplog):
    """huggingface_hub logged eleven lines about its retries."""
    monkeypatch.setattr(tokenizers, "_QUIET_SECONDS", 0.01)
    library = logging.getLogger("huggingface_hub.utils._http")
    level = library.getEffectiveLevel()
    with tokenizers._one_warning("tokenizer mills/gpt2: the hub has not sent it yet"):
        for number in range(5):
            library.warning("Retrying in %s s", number)
        until = time.monotonic() + 20
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
    assert caplog.messages == ["tokenizer mills/gpt2: the hub has not sent it yet"]
    assert library.getEffectiveLevel() == level
