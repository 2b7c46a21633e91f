"""Files that somebody has meddled with: each is refused in words, or gives the reference's tokens, on our engine too."""

import json
import random

import numpy as np
import pytest

import samples
import sentencepieces
import tiny
from shardmill.errors import UsageError
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import load

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CONTENTS = ("<x>", "  ", "a b", "naïve", "e\u0301", "\n", "the", "<x", "ab")
HARD = ("<x>", "  ", "a b", "e\u0301", "\n\n", "the", "\u1100\u1161", "\0", "😀")


def byte_level(rng):
    vocabulary, merges = tiny.trained()
    kept = sorted(vocabulary, key=vocabulary.get)[: rng.choice([300, 1000, 3000])]
    vocab = {tiny.spelled(token): number for number, token in enumerate(kept)}
    pairs = [[tiny.spelled(left), tiny.spelled(right)] for left, right in merges]
    pairs = [pair for pair in pairs if {*pair, "".join(pair)} <= vocab.keys()]
    model = {"type": "BPE", "vocab": vocab, "merges": pairs, "unk_token": None, "ignore_merges": rng.random() < 0.3}
    normalizer = rng.choice([None, {"type": "NFC"}])
    return {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": BYTE_LEVEL, "model": model}


def damage(rng, config):
    model = config["model"]
    vocab, merges = model["vocab"], [list(merge) for merge in model["merges"]]
    tokens, new = list(vocab), max(vocab.values()) + 1
    match rng.randrange(10):
        case 0:
            model["vocab"] = {token: vocab[token] for token in rng.sample(tokens, max(1, len(tokens) - 9))}
        case 1:
            model["vocab"] = dict(zip(tokens, rng.sample(list(vocab.values()), len(vocab)), strict=True))
        case 2:
            vocab["".join(rng.choices(tokens, k=rng.choice([2, 50, 400])))] = new
        case 3:
            vocab[rng.choice(["", "\0", "😀", "▁▁▁▁", "\ufffd"])] = new
        case 4:
            vocab[rng.choice(tokens)] = rng.choice([0, 1 << 19, (1 << 20) - 1, 1 << 20, 1 << 22])
        case 5:
            model["merges"] = rng.sample(merges, rng.randrange(len(merges) + 1))
        case 6:
            left, right = rng.choice(["", *tokens]), rng.choice(tokens)
            vocab.setdefault(left + right, new)
            model["merges"] = [*merges[:9], [left, right], *merges[9:], *merges[:3]]
        case 7:
            model["ignore_merges"] = not model.get("ignore_merges")
        case 8:
            model["unk_token"] = rng.choice(tokens)
        case 9:
            flags = {flag: rng.random() < 0.3 for flag in ("special", "normalized", "lstrip", "rstrip", "single_word")}
            config["added_tokens"] = [*config["added_tokens"], {"id": new, "content": rng.choice(CONTENTS), **flags}]


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_refused_or_gives_the_tokens_of_the_reference(tmp_path, seed):
    rng, ours = random.Random(seed), 0
    for number in range(12):
        made = byte_level(rng) if number % 2 else rng.choice(list(sentencepieces.CONFIGS.values()))()
        for _ in range(rng.randrange(1, 4)):
            damage(rng, made)
        (tmp_path / "tokenizer.json").write_text(json.dumps(made))
        try:
            found = load(str(tmp_path))
            truth, engines = load_reference(found), choose_engines(found, "auto")
        except UsageError as e:
            assert "tokenizer.json: " in str(e)
            continue
        ours += engines.ours is not None
        parts = [*(text[:200] for text in samples.SAMPLES.values()), *HARD, *list(made["model"]["vocab"])[:200]]
        for begins in (True, False):
            text = "".join(rng.choices(parts, k=8)).encode("utf-8", "ignore")
            ids, _ = Encoder(engines).encode([text], [begins])
            assert np.array_equal(ids, truth.encode(text, begins=begins)), (text, made)
    assert ours >= 2
