"""A tokenizer.json becomes a row of parameters if every part of it is known; otherwise words say which part is not."""

import dataclasses
import json
from pathlib import Path

import pytest

from shardmill.tokens import compile as compiling
from shardmill.tokens.compile import GPT2, byte_alphabet, compile_encoding, compile_json, shape_of
from shardmill.tokens.model import Shape
from shardmill.tokens.tokenizer import ENCODINGS

QUOTED = "'s|'t|'re|'ve|'m|'ll|'d"
LLAMA3 = rf"(?i:{QUOTED})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
O200K = ENCODINGS["o200k_base"].pattern
NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
GPT2_PATTERN = rf"{QUOTED}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"

CL100K = Shape(contractions="any case", digits=3)
KNOWN = {
    "llama 3": (LLAMA3, CL100K),
    "raw newlines": (LLAMA3.replace(r"\r\n", "\r\n"), CL100K),
    "one newline": (LLAMA3.replace(r"\s*[\r\n]+", r"\s*[\r\n]"), CL100K),
    "contractions as they are written": (LLAMA3.replace("(?i:", "(?:"), dataclasses.replace(CL100K, contractions="exact")),
    "no contractions": (LLAMA3.partition(")|")[2], dataclasses.replace(CL100K, contractions="none")),
    "qwen": (QWEN, Shape(contractions="any case")),
    "qwen 3.5": (
        QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}"),
        Shape(contractions="any case", marks=True),
    ),
    "nanochat": (NANOCHAT, dataclasses.replace(CL100K, digits=2)),
    "o200k": (O200K, Shape(contractions="suffix any case", digits=3, tail="newlines and slashes", case=True)),
    "tekken": (
        O200K.replace(f"(?i:{QUOTED})?", "").replace("{1,3}", ""),
        Shape(tail="newlines and slashes", case=True),
    ),
    "gpt-2": (GPT2_PATTERN, GPT2),
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "shape"), KNOWN.values(), ids=KNOWN)
def test_every_known_spelling_is_a_row_of_parameters(pattern, shape):
    assert shape_of(pattern, possessive=False) == shape


UNKNOWN = {
    "nothing": "",
    "one alternative less": LLAMA3.rpartition("|")[0],
    "one more": LLAMA3 + r"|\S",
    "another order": "|".join([LLAMA3.partition(")|")[2], f"(?i:{QUOTED})"]),
    "a run of numbers without a blank": LLAMA3.replace("{1,3}", "{1,3}+"),
    "marks here and not there": QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+"),
    "the end of the text, which is the end of each line to Oniguruma": LLAMA3.replace(r"|\s*[", r"|\s+$|\s*["),
    "contractions in front and behind": f"(?i:{QUOTED})|{O200K}",
    "rules of two families": LLAMA3.replace(r"\p{N}{1,3}", r" ?\p{N}+"),
    "the pattern of Kimi": r"[\p{Han}]+|" + O200K,
}


@pytest.mark.parametrize("pattern", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_no_shape(pattern):
    assert shape_of(pattern, possessive=False) is None


def test_tiktokens_encodings_are_known_as_tiktoken_reads_them():
    found = {name: compile_encoding({b"a": 0}, known.pattern).shape for name, known in ENCODINGS.items()}
    assert found["r50k_base"] == dataclasses.replace(GPT2, whole_end=True)
    assert found["cl100k_base"] == dataclasses.replace(CL100K, whole_end=True)
    assert found["o200k_base"] == KNOWN["o200k"][1]


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
VOCABULARY = {token: i for i, token in enumerate([*byte_alphabet(), "th", "the", "<|end|>"])}
END = {"id": VOCABULARY["<|end|>"], "content": "<|end|>", "special": True}


def config(model=(), **parts):
    bpe = {"type": "BPE", "vocab": VOCABULARY, "merges": [["t", "h"], ["th", "e"]], **dict(model)}
    return {"added_tokens": [END], "normalizer": None, "pre_tokenizer": BYTE_LEVEL, "model": bpe, **parts}


def split(pattern, behavior="Isolated", *, invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def chain(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, {**BYTE_LEVEL, "use_regex": False}]}


def compiled(whole):
    return compile_json(whole, whole["model"]["vocab"])


def merges_of(model):
    tokens = model.tokens.parts()
    return [(tokens[left], tokens[right]) for left, right in model.merges.tolist()]


NFC = {"type": "NFC"}
DEEPSEEK = [split(pattern) for pattern in compiling._DEEPSEEK_PATTERNS]


@pytest.mark.parametrize(
    ("parts", "shape"),
    [
        ({}, GPT2),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}}, GPT2),
        ({"pre_tokenizer": chain(split(LLAMA3))}, CL100K),
        ({"pre_tokenizer": chain(split(LLAMA3, "Removed", invert=True))}, CL100K),
        ({"pre_tokenizer": chain(*DEEPSEEK)}, Shape(digits=3, marks=True, first="deepseek")),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}},
            dataclasses.replace(GPT2, first="digits"),
        ),
    ],
)  # fmt: skip
def test_a_chain_of_pre_tokenizers_is_a_shape(parts, shape):
    assert compiled(config(**parts)).shape == shape


def test_what_surrounds_the_pattern_is_taken_over():
    tag = {"id": len(VOCABULARY), "content": "<tag>", "special": False, "normalized": True, "rstrip": True}
    found = compiled(
        config({"ignore_merges": True}, normalizer={"type": "Sequence", "normalizers": [NFC]}, added_tokens=[END, tag])
    )
    assert (found.nfc, found.whole_words, merges_of(found)) == (True, True, [(b"t", b"h"), (b"th", b"e")])
    assert found.vocabulary[b" "] == VOCABULARY["Ġ"] and found.vocabulary[b"\xff"] == VOCABULARY["ÿ"]
    assert [(token.content, token.special, token.normalized, token.rstrip) for token in found.added] == [
        ("<|end|>", True, False, False),
        ("<tag>", False, True, True),
    ]
    assert not compiled(config(normalizer={"type": "Sequence", "normalizers": []})).nfc


def test_of_two_equal_merges_the_last_counts_and_both_spellings_are_read():
    merges = ["t h", "a b", "th e", "t h"]
    vocabulary = {**VOCABULARY, "ab": len(VOCABULARY)}
    assert merges_of(compiled(config({"merges": merges, "vocab": vocabulary}))) == [
        (b"a", b"b"),
        (b"th", b"e"),
        (b"t", b"h"),
    ]


def added(content, number, **changes):
    return {"added_tokens": [END, {"id": number, "content": content, "special": False, **changes}]}


NOT_KNOWN = {
    "Unigram": (config({"type": "Unigram"}), "its model is Unigram"),
    "a prefix": (config({"continuing_subword_prefix": "##"}), "continuing_subword_prefix"),
    "NFKC": (config(normalizer={"type": "NFKC"}), "its normalizer is NFKC"),
    "a space before the text": (config(pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True}), "adds a space"),
    "another pattern": (config(pre_tokenizer=chain(split(r"\w+|\W+"))), r"a pattern that is not known: \w+|\W+"),
    "merged with the next": (config(pre_tokenizer=chain(split(LLAMA3, "MergedWithNext"))), "a step that is not known: Split"),
    "DeepSeek's, removed": (config(pre_tokenizer=chain(*({**step, "behavior": "Removed", "invert": True} for step in DEEPSEEK))), "not known"),
    "digits together": (config(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, BYTE_LEVEL]}), "Digits then ByteLevel"),
    "an id that the library changes": (config(**added("<tag>", 5)), "has an id that the library changes"),
    "a token twice": (config(**added("<|end|>", END["id"])), "is there twice"),
    "ids beyond a million": (config({"vocab": {**VOCABULARY, "zz": 1 << 20}}), "ids beyond 1,048,576"),
    "an id twice": (config({"vocab": {**VOCABULARY, "zz": 5}}), "two of its tokens have the same id"),
    "bytes that are missing": (config({"vocab": {"t": 0, "h": 1, "e": 2, "th": 3, "the": 4, "<|end|>": 5}, "unk_token": "<|end|>"}, added_tokens=[]), "lacks bytes"),
    "no pre-tokenizer": (config(pre_tokenizer=None), "no byte_fallback"),
    "spaces are kept": (config({"byte_fallback": True}, pre_tokenizer=None), "its normalizer is none, and its pre-tokenizer none"),
    "merges of three": (config({"merges": [["q", "z", "z"]]}), "not of two parts"),
    "merges that are numbers": (config({"merges": [5]}), "its file is unusual"),
}  # fmt: skip


@pytest.mark.parametrize(("whole", "words"), NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_what_is_not_known_says_what_it_is(whole, words):
    found = compiled(whole)
    assert isinstance(found, str) and words in found


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = {"byte_fallback": True, "vocab": {token: i for i, token in enumerate([*VOCABULARY, "▁", *BYTES])}}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "prepend", "metaspace"),
    [
        (REPLACE, None, False, False),
        (REPLACE, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, False, False),
        ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}, None, True, False),
        (None, METASPACE, True, True),
        (None, {**METASPACE, "prepend_scheme": "never"}, False, True),
    ],
)  # fmt: skip
def test_sentencepieces_shapes_are_known(normalizer, pre_tokenizer, prepend, metaspace):
    found = compiled(config(PIECES, normalizer=normalizer, pre_tokenizer=pre_tokenizer))
    assert (found.scheme, found.prepend, found.metaspace) == ("sentencepiece", prepend, metaspace)


@pytest.mark.parametrize("pre_tokenizer", [{**METASPACE, "split": True}, {**METASPACE, "replacement": "_"}])
def test_a_metaspace_that_splits_is_not_known(pre_tokenizer):
    assert isinstance(compiled(config(PIECES, pre_tokenizer=pre_tokenizer)), str)


def test_a_metaspace_behind_each_added_token_is_not_known():
    always = {**METASPACE, "prepend_scheme": "always"}
    assert compiled(config(PIECES, pre_tokenizer=always)).prepend
    found = compiled(config(PIECES, pre_tokenizer=always, **added("<tag>", len(PIECES["vocab"]))))
    assert "behind each added token" in found


def test_gpt2s_own_file_gives_the_merges_of_its_vocabulary(gpt2_json):
    whole = json.loads(Path(gpt2_json).read_text())
    found = compiled(whole)
    assert found.shape == GPT2 and len(merges_of(found)) == 50_000 and merges_of(found)[0] == (b" ", b"t")
