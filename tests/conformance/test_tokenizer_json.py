"""A tokenizer.json gives the tokens of the tokenizers library for the whole text, whatever its parts (I7)."""

import hashlib
import json
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milling import BLOCK_BYTES, PLENTY, folder_of, mill_text, np, prepare_files

import reference
import samples
from given_texts import texts
from shardmill import mill
from shardmill.spec import Limits, Spec
from shardmill.tokens import gigatoken, guard
from shardmill.tokens.gigatoken import Gigatoken
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import load


@pytest.fixture(scope="session")
def variants(gpt2_json, tmp_path_factory):
    """GPT-2's tokenizer.json, and what people make of it: other patterns, a normalizer, added tokens, a prefix space."""
    folder = tmp_path_factory.mktemp("variants")
    base = json.loads(Path(gpt2_json).read_text())
    llama3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
    split = {"type": "Split", "pattern": {"Regex": llama3}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = {
        "id": 50257,
        "content": "mill",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    changes = {
        "gpt2": {},
        "llama3": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]}},
        "nfc": {"normalizer": {"type": "NFC"}},
        "added": {"added_tokens": [*base["added_tokens"], added]},
        "added_lstrip": {"added_tokens": [*base["added_tokens"], {**added, "lstrip": True}]},
        "lowercase": {"normalizer": {"type": "Lowercase"}},
        "prefix_space": {"pre_tokenizer": {**base["pre_tokenizer"], "add_prefix_space": True}},
    }
    paths = {}
    for name, change in changes.items():
        paths[name] = str(folder / f"{name}.json")
        (folder / f"{name}.json").write_text(json.dumps({**base, **change}))
    return paths


FAMILIES = {
    "gpt2": "gpt2",
    "llama3": "cl100k",
    "nfc": "spaces",
    "added": "spaces",
    "added_lstrip": "unknown",
    "lowercase": "unknown",
    "prefix_space": "unknown",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_only_what_is_understood_is_cut(variants, name):
    assert load(variants[name]).family == FAMILIES[name]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=60)
@given(
    text=st.lists(st.one_of(texts(max_pieces=3), st.just("mill"), st.just(" mill "))).map("".join).filter(bool),
    block_bytes=st.sampled_from(BLOCK_BYTES),
)
def test_tokens_do_not_depend_on_block_size(variants, name, text, block_bytes):
    out = mill_text(text, tokenizer=variants[name], engine="reference", block_bytes=block_bytes)
    assert out.train == reference.encode(variants[name], text)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_sample_gives_the_tokens_of_the_whole(variants, name):
    for sample, text in samples.SAMPLES.items():
        out = mill_text(text, tokenizer=variants[name], engine="reference", block_bytes=64)
        assert out.train == reference.encode(variants[name], text), sample


@pytest.mark.parametrize("name", ["gpt2", "nfc", "prefix_space"])
def test_a_run_gives_the_tokens_of_the_whole_text(variants, name):
    how = {"tokenizer": variants[name], "engine": "auto", "val_fraction": 0}
    train, _, _ = prepare_files([samples.ALL.encode()], workers=3, block_bytes=300, **how)
    assert train == reference.encode(variants[name], samples.ALL)


def test_a_literal_special_token_stays_text_and_documents_get_their_end(variants):
    how = {"tokenizer": variants["gpt2"], "engine": "reference", "separator": r"\n\n", "block_bytes": 7}
    documents = reference.documents(samples.SPECIALS, "\n\n")
    assert mill_text(samples.SPECIALS, **how).train == reference.tokens(
        variants["gpt2"], documents, eot=50256, side="after"
    )


def shipped_table(tokenizer):
    tables = json.loads((resources.files("shardmill.tokens") / guard.SHIPPED).read_text())["tables"]
    return tables[guard.table_key(gigatoken.version(), load(tokenizer), load_reference(load(tokenizer)))]


def test_the_fast_engine_gives_the_tokens_of_the_whole_with_a_table_from_the_cache(gpt2_json, tmp_path):
    """The table of r50k_base is GPT-2's; that this is so, the sweep below shows."""
    tokenizer = load(gpt2_json)
    key = guard.table_key(gigatoken.version(), tokenizer, load_reference(tokenizer))
    cached = {"format": guard.TABLE_FORMAT, "key": key, "ranges": shipped_table("r50k_base")}
    (tmp_path / f"guard-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json").write_text(json.dumps(cached))
    with folder_of([samples.ALL.encode()]) as (folder, paths):
        spec = Spec(inputs=tuple(paths), output=str(folder / "out"), tokenizer=gpt2_json, val_fraction=0)
        limits = Limits(engine="gigatoken", workers=2, block_bytes=300, max_memory=PLENTY, cache=str(tmp_path))
        made = mill.prepare(spec, limits=limits)
        assert made.run["engine"].startswith("gigatoken")
        assert np.fromfile(folder / "out" / "train.bin", "<u2").tolist() == reference.encode(gpt2_json, samples.ALL)


@pytest.mark.slow
@pytest.mark.slow
def test_a_sweep_over_the_tokenizers_library_finds_the_table_of_r50k_base(gpt2_json):
    tokenizer = load(gpt2_json)
    found = guard.find_disagreements(Gigatoken(tokenizer), load_reference(tokenizer))
    assert guard.to_ranges(found) == shipped_table("r50k_base")
