"""Absurd files of every family: each is refused in words, or gives the reference's tokens, within time and memory."""

import copy
import json
import time

import numpy as np
import pytest

import samples
import sentencepieces
from shardmill.errors import UsageError
from shardmill.tokens.compile import byte_alphabet
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import load

FLAGS = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), False)
TEXT = samples.ALL[:3000] + "\0\n<0x0A>\t <x> aaaa ▁▁ e\u0301"


def byte_level():
    tokens = [*byte_alphabet(), "aa", "th", "the", "aaa"]
    merges = [["a", "a"], ["t", "h"], ["th", "e"], ["aa", "a"]]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "unk_token": None, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": split, "model": model}


FAMILIES = {
    "bytes": byte_level,
    "llama 2": sentencepieces.CONFIGS["llama 2"],
    "gemma": sentencepieces.CONFIGS["gemma"],
    "mistral": sentencepieces.CONFIGS["mistral, added"],
}


def new_id(config):
    added = [token["id"] for token in config["added_tokens"]]
    return max([*config["model"]["vocab"].values(), *added]) + 1


def with_added(*contents, **flags):
    def change(config):
        first = new_id(config)
        tokens = [{"id": first + i, "content": each, **FLAGS, **flags} for i, each in enumerate(contents)]
        config["added_tokens"] = [*config["added_tokens"], *tokens]

    return change


def with_tokens(**tokens):
    return lambda config: config["model"]["vocab"].update(tokens)


def with_token_beside(config, content, beyond):
    config["model"]["vocab"][content] = new_id(config) + beyond


def with_merges(*merges):
    def change(config):
        vocab = config["model"]["vocab"]
        for pair in merges:
            for token in (*pair, "".join(pair)):
                vocab.setdefault(token, new_id(config))
        config["model"]["merges"] = [*map(list, merges), *config["model"]["merges"]]

    return change


def put(*path, value):
    """A member of the file replaced."""

    def change(config):
        place = config
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def tokens_of_bytes(config):
    for token in ("<0xZZ>", "<0x0a>", "<0x+1>", "<0x 9>"):
        config["model"]["vocab"][token] = new_id(config)


ABSURD = {
    "a mebibyte of added tokens": with_added(*(f"<{i:053x}>" for i in range(20_000))),
    "an added token of a megabyte": with_added("a" * (1 << 20)),
    "added tokens that nearly match everywhere": with_added(*("a" * n + "!" for n in range(200, 256))),
    "an added token of spaces that strips them": with_added("   ", lstrip=True, rstrip=True),
    "an added token of nothing": with_added("", "<y>"),
    "an added token twice": with_added("<x>", "<x>"),
    "an added token without an id": put("added_tokens", value=[{"content": "<x>", **FLAGS}]),
    "an added token of a negative id": put("added_tokens", value=[{"content": "<x>", "id": -1, **FLAGS}]),
    "an added token of an id that is nothing": put("added_tokens", value=[{"content": "<x>", "id": None, **FLAGS}]),
    "an added token of another's id": put("added_tokens", value=[{"content": "<x>", "id": 3, **FLAGS}]),
    "an added token far away": put("added_tokens", value=[{"content": "<x>", "id": 1 << 23, **FLAGS}]),
    "an added token of half a character": with_added("<\ud83d>"),
    "an added token that is nothing": put("added_tokens", value=[None]),
    "added tokens that are nothing": put("added_tokens", value=None),
    "a token of half a character": with_tokens(**{"\udc00": 5000}),
    "a merge of half a character": put("model", "merges", value=[["\ud83d", "\ude00"]]),
    "a token that is a byte in no spelling": tokens_of_bytes,
    "an id beyond 2^20": lambda config: with_token_beside(config, "beyond", 1 << 20),
    "an id beyond 2^24": lambda config: with_token_beside(config, "beyond", 1 << 24),
    "an id beyond 2^32": lambda config: with_token_beside(config, "beyond", 1 << 32),
    "a negative id": with_tokens(below=-5),
    "two tokens of one id": with_tokens(twice=7),
    "merges that give what they take": with_merges(("", "a"), ("a", ""), ("", "")),
    "merges that go in circles": with_merges(("a", "b"), ("ab", "a"), ("aba", "b"), ("b", "aba"), ("ab", "ab")),
    "a merge that comes before its parts": with_merges(("aaaa", "aaaa"), ("aa", "aa"), ("a", "a")),
    "a merge of a token with itself, doubled": with_merges(*(("a" * 2**i, "a" * 2**i) for i in range(9, -1, -1))),
    "a token of 5,000 letters": with_tokens(**{"ab" * 2500: 9000}),
    "merges that are nothing": put("model", "merges", value=None),
    "merges of three": put("model", "merges", value=[["a", "b", "c"]]),
    "merges of nothing": put("model", "merges", value=[[None, None]]),
    "a vocabulary that is nothing": put("model", "vocab", value=None),
    "a model of no type": put("model", "type", value=None),
    "a pre-tokenizer of no type": put("pre_tokenizer", value={"type": None}),
    "a normalizer of no type": put("normalizer", value={"type": None}),
    "a normalizer of nothing": put("normalizer", value={"type": "Sequence", "normalizers": [None]}),
    "a normalizer that adds half a character": put("normalizer", value={"type": "Prepend", "prepend": "\ud800"}),
    "a normalizer that doubles all": put(
        "normalizer", value={"type": "Replace", "pattern": {"String": "a"}, "content": "aa" * 10}
    ),
    "byte_fallback that is nothing": put("model", "byte_fallback", value=None),
    "flags that are nothing": put("added_tokens", value=[{"content": "<x>", "id": 4, **dict.fromkeys(FLAGS)}]),
}


@pytest.mark.thin
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD)
def test_an_absurd_file_is_refused_or_gives_the_tokens_of_the_reference(tmp_path, family, absurd):
    config = copy.deepcopy(FAMILIES[family]())
    absurd(config)
    (tmp_path / "tokenizer.json").write_text(json.dumps(config))
    started = time.thread_time()
    try:
        found = load(str(tmp_path), cache=tmp_path / "cache")
        truth, engines = load_reference(found), choose_engines(found, "auto")
    except UsageError as e:
        assert "tokenizer.json: " in str(e)
        return
    finally:
        assert time.thread_time() - started < 20
    texts = [TEXT, "a" * 3000, "ab" * 400 + "aaaa b", *list(config["model"]["vocab"])[-5:]]
    for text in texts:
        data = text.encode("utf-8", "ignore")
        ids, _ = Encoder(engines).encode([data])
        assert np.array_equal(ids, truth.encode(data)), text
    if engines.ours is not None:
        started = time.thread_time()
        Encoder(engines).encode([b"a" * (1 << 20)])
        assert time.thread_time() - started < 5
