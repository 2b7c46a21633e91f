"""What is kept of a compiled tokenizer gives the same tokenizer again, and never stands in the way."""

import dataclasses
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import reference
from shardmill import Limits, Spec, prepare
from shardmill.tokens import stored, token_bytes
from shardmill.tokens import tokenizer as tokenizers
from shardmill.tokens.token_bytes import token_bytes_of
from shardmill.tokens.tokenizer import load

TEXT = "The mill's text — 文字がある — isn't <|endoftext|> here.\n\n  x = 1\n" * 4


@pytest.fixture
def file(gpt2_json, tmp_path):
    """A tokenizer.json with all that can be stored: an added token, a normalizer, a pattern of its own."""
    config = json.loads(Path(gpt2_json).read_text())
    tag = {"id": 50257, "content": "<tag>", "special": False, "normalized": True, "lstrip": False, "rstrip": False, "single_word": False}  # fmt: skip
    config["added_tokens"].append(tag)
    config["normalizer"] = {"type": "NFC"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config))
    return path


def same(one, two):
    simple = [field.name for field in dataclasses.fields(one) if field.name not in ("cuts", "model", "cache")]
    assert [getattr(one, name) for name in simple] == [getattr(two, name) for name in simple]
    assert one.family == two.family and np.array_equal(one.cuts.adjacent, two.cuts.adjacent)
    if isinstance(one.model, str):
        assert one.model == two.model
        return
    assert one.model.facts() == two.model.facts() and one.model.added == two.model.added
    assert one.model.vocabulary == two.model.vocabulary and np.array_equal(one.model.merges, two.model.merges)


def test_a_stored_tokenizer_is_the_same_and_is_not_parsed_again(file, tmp_path, monkeypatch):
    fresh, first = load(str(file)), load(str(file), cache=tmp_path / "cache")
    monkeypatch.setattr(tokenizers, "_parse", lambda *_: pytest.fail("it was parsed"))
    again = load(str(file), cache=tmp_path / "cache")
    same(fresh, first)
    same(fresh, again)


def test_one_that_our_engine_cannot_run_is_stored_with_the_reason(gpt2_json, tmp_path):
    config = json.loads(Path(gpt2_json).read_text()) | {"normalizer": {"type": "Lowercase"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    found = [load(str(tmp_path), cache=tmp_path / "cache") for _ in range(2)]
    assert "Lowercase" in found[1].model
    same(*found)


def test_an_encoding_is_stored_too(tmp_path):
    load_encoding = tokenizers._load_encoding.__wrapped__
    first, again = (load_encoding("cl100k_base", tmp_path) for _ in range(2))
    assert again.model.merges is None and again.model.vocabulary == tokenizers.read_ranks("cl100k_base")
    assert first.model.shape == again.model.shape


def only(folder):
    (path,) = folder.iterdir()
    return path


def cut(data):
    return data[: len(data) // 2]


def flipped(data):
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize("damage", [cut, flipped, lambda _: b"", lambda data: data[1:], lambda data: data + b"x"])
def test_a_damaged_file_is_made_anew(file, tmp_path, damage):
    cache = tmp_path / "cache"
    fresh = load(str(file), cache=cache)
    whole = only(cache).read_bytes()
    only(cache).write_bytes(damage(whole))
    same(load(str(file), cache=cache), fresh)
    assert only(cache).read_bytes() == whole


def test_a_file_of_another_version_or_tokenizer_is_made_anew(file, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    fresh = load(str(file), cache=cache)
    with monkeypatch.context() as other:
        other.setattr(stored, "VERSION", stored.VERSION + 1)
        old = only(cache).read_bytes()
        same(load(str(file), cache=cache), fresh)
        assert only(cache).read_bytes() != old
    digest = "0" * 64
    os.rename(only(cache), stored._file(cache, digest))
    assert stored.read(cache, digest) is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(file, tmp_path):
    (tmp_path / "a file").write_text("")
    for cache in (tmp_path / "a file", tmp_path / "a file" / "below", Path("/proc/none")):
        same(load(str(file), cache=cache), load(str(file)))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    same(load(str(file), cache=closed), load(str(file)))


def test_many_at_once_give_the_same(file, tmp_path):
    cache, found = tmp_path / "cache", []
    threads = [threading.Thread(target=lambda: found.append(load(str(file), cache=cache))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for each in [*found, load(str(file), cache=cache)]:
        same(each, found[0])


def test_a_job_gives_the_same_tokens_from_the_cache(file, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT + "cafe\u0301 <tag> " + TEXT)
    for number in range(2):
        spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / str(number), tokenizer=str(file), val_fraction=0)
        prepare(spec, limits=Limits(cache=str(tmp_path / "cache")))
        expected = reference.encode(str(file), (tmp_path / "a.txt").read_text())
        assert np.fromfile(tmp_path / str(number) / "train.bin", "<u2").tolist() == expected
    assert (tmp_path / "cache").is_dir()


def test_the_bytes_of_tokens_are_stored_too(file, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    made = token_bytes_of(load(str(file), cache=cache))
    kept = stored._file(cache, load(str(file)).digest, "token-bytes")
    whole = kept.read_bytes()
    for damage in (lambda data: data, flipped, cut):
        kept.write_bytes(damage(whole))
        token_bytes._kept.cache_clear()
        with monkeypatch.context() as patched:
            if damage(whole) == whole:
                patched.setattr(token_bytes, "_of_json", lambda *_: pytest.fail("it was made again"))
            found = token_bytes_of(load(str(file), cache=cache))
        assert found.rule == made.rule and np.array_equal(found.sizes, made.sizes) and kept.read_bytes() == whole
