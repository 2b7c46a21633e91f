"""Hostile tokenizer.json files: each is refused in words, within time and memory, or gives the reference's tokens."""

import json
import os
import subprocess
import sys
import time

import pytest

import reference
from shardmill import Limits, Spec, prepare
from shardmill.errors import UsageError
from shardmill.tokens import tokenizer as tokenizers
from shardmill.tokens.compile import byte_alphabet
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import load

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
MERGES = [["t", "h"], ["th", "e"], ["Ġ", "the"], ["i", "n"], ["a", "b"], ["ab", "c"], ["Ġ", "l"]]
VOCAB = {token: i for i, token in enumerate([*byte_alphabet(), *map("".join, MERGES), "<|endoftext|>"])}
END = {"id": VOCAB["<|endoftext|>"], "content": "<|endoftext|>", "special": True, "normalized": False}
END |= {"single_word": False, "lstrip": False, "rstrip": False}


def config(model=(), **parts):
    """A byte-level BPE of a few merges, with some of its parts replaced."""
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "vocab": VOCAB, "merges": MERGES} | dict(model)
    whole = {"version": "1.0", "added_tokens": [END], "normalizer": None, "pre_tokenizer": BYTE_LEVEL, "model": bpe}
    return whole | parts


def split(pattern):
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, {**BYTE_LEVEL, "use_regex": False}]}


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "tokenizer.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def text_with(vocab):
    return config(model={"vocab": {**VOCAB, **vocab}})


REFUSED = {
    "an id that is a text": text_with({"zz": "5"}),
    "an id that is a fraction": text_with({"zz": 1.5}),
    "an id that is a truth value": text_with({"zz": True}),
    "an id that is nothing": text_with({"zz": None}),
    "a negative id": text_with({"zz": -1}),
    "a huge id": text_with({"zz": 1 << 31}),
    "an id of many digits": json.dumps(text_with({"zz": 7_777_777})).replace("7777777", "7" * 5000),
    "a vocabulary of numbers": config(model={"vocab": [1, 2, 3]}),
    "a vocabulary of other things": config(model={"type": "Unigram", "vocab": [[["a"], 0.5]]}),
    "no vocabulary": config(model={"vocab": {}}),
    "no model": {"model": None},
    "a model that is a list": {"model": []},
    "merges that are numbers": config(model={"merges": [1, 2]}),
    "merges that are nothing": config(model={"merges": None}),
    "merges of what is no token": config(model={"merges": [["th", "th"]]}),
    "an added token without content": config(added_tokens=[{**END, "content": None}]),
    "an added token that is a list": config(added_tokens=[["<s>", 3]]),
    "an added token with an id of many digits": config(added_tokens=[{**END, "id": 10**30}]),
    "added tokens that are a number": config(added_tokens=5),
    "a pre-tokenizer that is a text": config(pre_tokenizer="ByteLevel"),
    "a pre-tokenizer that is a list": config(pre_tokenizer=[BYTE_LEVEL]),
    "a Sequence of nothing": config(pre_tokenizer={"type": "Sequence", "pretokenizers": None}),
    "a pre-tokenizer nobody knows": config(pre_tokenizer={"type": "Sieve"}),
    "a pattern that is a number": config(pre_tokenizer=split(5)),
    "a normalizer that is a number": config(normalizer=5),
    "a pattern with an open bracket": config(pre_tokenizer=split("(")),
    "a pattern of a property nobody knows": config(pre_tokenizer=split(r"\p{Foo}+")),
    "a pattern that tracks back for ever": config(pre_tokenizer=split("(a+)+b|.")),
    "another": config(pre_tokenizer=split("(x+x+)+y|.")),
    "half a character": json.dumps(config()).replace('"ab"', '"\\ud800"'),
    "an end of text with an id of its own": config(added_tokens=[{**END, "content": "<|end|>", "id": 9_000}]),
    "an end of text with the id of another token": config(added_tokens=[{**END, "content": "<|end|>", "id": 5}]),
    "dropout": config(model={"dropout": 0.1}),
    "dropout of everything": config(model={"dropout": 1}),
    "nested too deep": '{"model": ' + "[" * 200_000,
    "nested too deep, and whole": json.dumps(config(normalizer="@")).replace('"@"', "[" * 200_000 + "]" * 200_000),
    "a Sequence of Sequences": json.dumps(config(pre_tokenizer="@")).replace(
        '"@"', '{"type":"Sequence","pretokenizers":[' * 300 + "]}" * 300
    ),
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_a_file_that_cannot_be_right_is_refused_in_words(written, content):
    path, started = written(content), time.thread_time()
    with pytest.raises(UsageError, match=r"tokenizer\.json: ."):
        load_reference(load(path)).encode(b"a" * 100)
    assert time.thread_time() - started < 10


def test_dropout_says_what_to_do(written):
    """Story: it gave 61,538 tokens, and then 61,481."""
    with pytest.raises(UsageError, match=r'different tokens each time; set "dropout" to null'):
        load(written(config(model={"dropout": 0.1})))
    assert load(written(config(model={"dropout": 0.0}))).family == "gpt2"


def test_a_pattern_that_fails_only_on_some_text_stops_the_job_in_words(written, tmp_path):
    (tmp_path / "a.txt").write_text("word " * 1000 + "é" * 200)
    spec = Spec(
        inputs=[tmp_path / "a.txt"],
        output=tmp_path / "out",
        tokenizer=written(config(pre_tokenizer=split("([é]+)+b|.|\\n"))),
    )
    with pytest.raises(UsageError, match=r"tokenizer\.json: .*retry-limit"):
        prepare(spec)
    assert not (tmp_path / "out/train.bin").exists()


def test_the_command_says_it_in_one_line(written, tmp_path):
    (tmp_path / "a.txt").write_text("a" * 100)
    path = written(config(pre_tokenizer=split("(a+)+b|.")))
    command = [sys.executable, "-m", "shardmill", "prepare", "a.txt", "-o", "out", "--tokenizer", path]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "RUST_BACKTRACE": "0"}
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr and "bug" not in done.stderr
    assert "fix its pre_tokenizer" in done.stderr


# vocabularies that a cut rule or the fast engine might see otherwise than the reference


def without(*missing, **model):
    """The vocabulary without the tokens that hold one of these bytes."""
    gone = {char for char, byte in byte_alphabet().items() if byte in missing}
    vocab = {token: i for i, token in enumerate(t for t in VOCAB if t == "<|endoftext|>" or not set(t) & gone)}
    merges = [pair for pair in MERGES if not set("".join(pair)) & gone]
    return config(
        model={"vocab": vocab, "merges": merges, **model}, added_tokens=[{**END, "id": vocab["<|endoftext|>"]}]
    )


HIGH = range(0x80, 0x100)
ODD = {
    "bytes dropped": (without(*HIGH), " 本三三一字l 三th三e 三"),
    "bytes fused": (without(*HIGH, unk_token="<|endoftext|>", fuse_unk=True), "中文字" * 400),
    "a byte fused": (without(0x61, unk_token="<|endoftext|>", fuse_unk=True), "aaa本aa三 a!aa"),
    "tokens in no merge": (config(model={"merges": MERGES[:1], "ignore_merges": True}), "the中the文abc三 inthe文"),
    "a byte that falls back": (config(model={"byte_fallback": True}), "the中the文abc三"),
    "merges twice": (config(model={"merges": [*MERGES, *MERGES[:2]]}), "the there in abc"),
}


@pytest.mark.parametrize(("content", "text"), ODD.values(), ids=ODD)
def test_an_odd_vocabulary_is_never_cut_where_it_matters(written, content, text):
    """Story: 40,000 times 中文字 gave six tokens for one; half a Vietnamese word was a token that the whole word has not."""
    found = load(written(content))
    data, encode = text.encode(), lambda part: reference.encode(str(found.source), part.decode())
    for cut in found.cuts._exact(data, 1, len(data), 0).tolist():
        assert encode(data[:cut]) + encode(data[cut:]) == encode(data), cut
    assert found.family == "gpt2"


@pytest.mark.parametrize(("content", "text"), ODD.values(), ids=ODD)
def test_an_odd_vocabulary_gives_the_tokens_of_the_reference(written, content, text):
    path = written(content)
    engines = choose_engines(load(path), "auto")
    assert (engines.ours is None) == (content["model"]["unk_token"] is not None)
    for piece in (text, text * 50, text + "\n\n" + text):
        ids, _ = Encoder(engines).encode([piece.encode()], [True])
        assert ids.tolist() == reference.encode(path, piece)


# sizes


def test_a_file_too_large_for_the_memory_allowed_is_refused_before_it_is_read(written, monkeypatch):
    path = written(text_with({f"word{i}": 1000 + i for i in range(20_000)}))
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _: pytest.fail("it was read"))
    with pytest.raises(UsageError, match=r"--max-memory allows 64MiB; pass --max-memory \d+MiB or more"):
        load(path, 64 << 20)


def test_many_small_entries_are_refused_before_they_are_parsed(written, monkeypatch):
    path = written(config(model={"merges": [["a", "b"]] * 200_000}))
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(UsageError, match="--max-memory"):
        load(path, 100 << 20)


def test_an_absurd_size_is_refused_whatever_is_allowed(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(UsageError, match=r"8,589,934,592 bytes.*check the path"):
        load(str(path))


MEASURE = """
import sys
from shardmill.system import machine
from shardmill.tokens import encoder, tokenizer
found = tokenizer.load(sys.argv[1])
encoder.choose_engines(found, "auto").reference.encode(b"warm")
print(machine.peak_rss())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux does")
@pytest.mark.parametrize("kind", ["tokens", "merges"])
def test_loading_takes_no_more_than_is_reckoned_with(written, kind):
    words = {f"w{i:x}w": 300 + i for i in range(150_000)}
    content = text_with(words) if kind == "tokens" else config(model={"merges": MERGES + [["a", "b"]] * 150_000})
    path = written(content)
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, timeout=60, check=True)
    size, entries = os.path.getsize(path), json.dumps(content).count(",")
    assert int(done.stdout.split()[0]) < tokenizers._memory_to_load(size, entries)


def test_a_job_refuses_what_its_memory_does_not_allow(written, tmp_path):
    (tmp_path / "a.txt").write_text("the text " * 1000)
    path = written(text_with({f"w{i:x}w": 300 + i for i in range(200_000)}))
    spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", tokenizer=path)
    with pytest.raises(UsageError, match="to load, and --max-memory allows 100MiB"):
        prepare(spec, limits=Limits(max_memory=100 << 20))
