"""The oracle is what people would compare us with: tiktoken and tokenizers as they come."""

import tiktoken_ext.openai_public as published

import reference
import samples
from shardmill.tokens.tokenizer import ENCODINGS, read_ranks, vocabulary_file


def test_our_encodings_are_those_of_the_installed_tiktoken(encoding, monkeypatch):
    """Its pattern, special tokens and the hash it expects of the vocabulary; only the download is left out."""
    asked = {}
    monkeypatch.setattr(published, "load_tiktoken_bpe", lambda url, expected_hash: asked.update({url: expected_hash}))
    theirs, ours = getattr(published, encoding)(), ENCODINGS[encoding]
    assert (theirs["pat_str"], theirs["special_tokens"]) == (ours.pattern, ours.specials)
    assert list(asked.values()) == [ours.sha256]
    assert vocabulary_file(encoding).name == next(iter(asked)).rsplit("/", 1)[1]


def test_a_vocabulary_holds_every_byte_and_no_id_twice(encoding):
    ranks = read_ranks(encoding)
    assert {bytes([byte]) for byte in range(256)} <= set(ranks)
    assert sorted(ranks.values()) == list(range(len(ranks)))


def test_the_tokenizer_json_made_for_the_tests_is_gpt2(gpt2_json):
    for name, text in samples.SAMPLES.items():
        assert reference.encode(gpt2_json, text) == reference.encode("r50k_base", text), name


def test_a_special_token_in_the_text_is_text_to_the_oracle(encoding, gpt2_json):
    for tokenizer in (encoding, gpt2_json):
        assert max(reference.encode(tokenizer, samples.SPECIALS)) < min(ENCODINGS[encoding].specials.values())


def test_the_oracle_gives_back_the_text(encoding):
    spelled = {rank: token for token, rank in read_ranks(encoding).items()}
    assert b"".join(spelled[token] for token in reference.encode(encoding, samples.ALL)).decode() == samples.ALL
