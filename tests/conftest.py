"""What all tests share: seeded property tests, tokenizers loaded once, and a GPT-2 tokenizer.json made on the spot."""

import json

import pytest
from hypothesis import HealthCheck, settings

from given_texts import load_once
from shardmill.tokens.tokenizer import ENCODINGS, byte_alphabet, read_ranks

settings.register_profile(
    "shardmill",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("shardmill")


@pytest.fixture(params=list(ENCODINGS))
def encoding(request):
    return request.param


@pytest.fixture
def tokenizer(encoding):
    return load_once(encoding)


@pytest.fixture(scope="session")
def gpt2_json(tmp_path_factory):
    """GPT-2's tokenizer.json, made from the vocabulary that ships with the package."""
    ranks = read_ranks("r50k_base")
    spell = {byte: char for char, byte in byte_alphabet().items()}
    spelled = {token: "".join(spell[byte] for byte in token) for token in ranks}
    merges = [
        [spelled[part] for part in _parts(token, ranks)] for token in sorted(ranks, key=ranks.get) if len(token) > 1
    ]
    end = {"id": 50256, "content": "<|endoftext|>", "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    config = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": {**{spelled[token]: rank for token, rank in ranks.items()}, "<|endoftext|>": 50256},
            "merges": merges,
        },
    }
    path = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    path.write_text(json.dumps(config))
    return str(path)


def _parts(token, ranks):
    """The two tokens that merge into this one: what is left when only merges of lower rank are done."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        _, i = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
