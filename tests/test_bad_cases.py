"""No text takes much longer for each byte than English does. tools/bad_cases.py measures it with real tokenizers and text."""

import json
import random
import re
import time
from pathlib import Path

import pytest
from tokenizers import normalizers

import sentencepieces
import tiny
from hard_texts import hard_texts
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.tokenizer import load

SIZE = 1 << 20
# Against real text the bar is 30. Here English is the documentation in disorder, which has few words, all soon known.
BAR = 60
DOCS = Path(__file__).parent.parent / "docs"


def english():
    words = [word for path in sorted(DOCS.rglob("*.md")) for word in re.findall(r"\S+\s+", path.read_text())]
    random.Random(0).shuffle(words)
    return ("".join(words) * (SIZE // sum(map(len, words)) + 1)).encode()[:SIZE]


def byte_level(family, *, nfc=False):
    made = tiny.reference(family, *tiny.trained())
    made.normalizer = normalizers.NFC() if nfc else None
    return made.to_str()


CONFIGS = {
    "gpt2": lambda: byte_level("gpt2"),
    "qwen": lambda: byte_level("qwen2", nfc=True),
    "o200k": lambda: byte_level("o200k"),
    "deepseek": lambda: byte_level("deepseek"),
    "llama 2": sentencepieces.CONFIGS["llama 2"],
    "gemma": sentencepieces.CONFIGS["gemma"],
}


def seconds_per_byte(tokenizer, text):
    encoder = Encoder(choose_engines(tokenizer, "native"))
    started = time.thread_time()
    encoder.encode([text])
    return (time.thread_time() - started) / len(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_no_text_takes_many_times_as_long_as_english(name, tmp_path):
    config = CONFIGS[name]()
    (tmp_path / "tokenizer.json").write_text(config if isinstance(config, str) else json.dumps(config))
    tokenizer, text = load(str(tmp_path)), english()
    base = min(seconds_per_byte(tokenizer, text) for _ in range(3))
    worst = {kind: min(seconds_per_byte(tokenizer, hard) for _ in range(2)) / base for kind, hard in hard_texts(SIZE)}
    assert {kind: times for kind, times in worst.items() if times > BAR} == {}
