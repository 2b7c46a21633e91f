"""The bytes of each token, and how much text each split holds: exact, and checked by verify."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import shardmill
from shardmill import Limits, Spec, Target, convert, merge, prepare, verify
from shardmill.errors import InputError, UsageError
from shardmill.tokens import token_bytes
from shardmill.tokens.tokenizer import load, read_ranks

TEXTS = ["The mill turns.\n", "  Größe, 東京 and 🌍!\n", "", "x" * 300, "a▁b\ttab"]


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"{text} {i}"}) + "\n" for i in range(60) for text in TEXTS))
    return path


def byte_level(folder, *, normalizer=None, prefix=False):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    made.train_from_iterator(TEXTS * 20, trainer)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def sentencepiece(folder, *, fallback=True, added=()):
    """As Llama 2's: ▁ is prepended and stands for blanks, other characters fall back to bytes."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>"])}
    spelled = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    for token in [*spelled, *"▁abcdefghilmnorstuT.", "▁a", "▁t", "he", "▁the", "▁▁"]:
        vocabulary.setdefault(token, len(vocabulary))
    merges = [("▁", "a"), ("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁")]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=fallback, fuse_unk=True)
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in added])
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def split_bytes(corpus, name):
    """The oracle: decode each document, and count."""
    return sum(
        len(corpus.decode_bytes([token for token in document if token != corpus.eot_id]))
        for document in corpus[name].documents()
    )


def test_the_table_of_a_bundled_encoding_is_its_vocabulary(encoding):
    """Y1"""
    found = token_bytes.token_bytes_of(load(encoding))
    ranks = read_ranks(encoding)
    assert found.rule == "exact" and len(found.sizes) == load(encoding).size
    assert all(found.sizes[number] == len(token) for token, number in ranks.items())
    assert found.sizes.sum(dtype=np.int64) == sum(map(len, ranks)), "special tokens have none"


def test_the_table_of_a_byte_level_tokenizer_json(gpt2_json):
    ours, theirs = token_bytes.token_bytes_of(load(str(gpt2_json))), token_bytes.token_bytes_of(load("gpt2"))
    assert ours.rule == "exact" and (ours.sizes == theirs.sizes).all() and ours.sizes[50256] == 0


def test_in_sentencepiece_a_blank_and_a_byte_are_one_and_specials_none(tmp_path):
    found = token_bytes.token_bytes_of(load(str(sentencepiece(tmp_path))))
    ids = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    expected = {"<unk>": 0, "<s>": 0, "</s>": 0, "<0x0A>": 1, "▁": 1, "▁▁": 2, "▁the": 4, "he": 2}
    assert {token: int(found.sizes[ids[token]]) for token in expected} == expected and found.rule == "prefixed"


def test_an_added_run_of_blanks_counts_what_runs_of_blanks_count(tmp_path):
    """Gemma's ▁▁ is an added token, and the same id is what two blanks become."""
    file = sentencepiece(tmp_path, added=["▁▁", "<tag>"])
    found = token_bytes.token_bytes_of(load(str(file)))
    ids = tokenizers.Tokenizer.from_file(str(file)).get_vocab()
    assert (found.sizes[ids["▁▁"]], found.sizes[ids["<tag>"]]) == (2, 5)
    (tmp_path / "a.txt").write_text("the  heat  " * 400)
    spec = Spec(inputs=[str(tmp_path / "a.txt")], output=str(tmp_path / "out"), tokenizer=str(file), val_fraction=0)
    prepare(spec)
    assert verify(tmp_path / "out", tokenizer=str(file)).ok


def test_a_normalizer_or_a_missing_byte_makes_the_rule_unknown_and_a_vocabulary_of_words_has_no_table(tmp_path):
    assert token_bytes.token_bytes_of(load(str(byte_level(tmp_path, normalizer=normalizers.NFC())))).rule == "unknown"
    assert token_bytes.token_bytes_of(load(str(byte_level(tmp_path, prefix=True)))).rule == "prefixed"
    assert token_bytes.token_bytes_of(load(str(sentencepiece(tmp_path, fallback=False)))).rule == "unknown"
    words = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    assert token_bytes.token_bytes_of(load(str(tmp_path / "tokenizer.json"))) is None


@pytest.mark.parametrize(
    "options", [{}, {"format": "llmc", "shard_tokens": 500}, {"limit_tokens": 777}, {"limit_documents": 17}]
)
@pytest.mark.parametrize("eot", ["after", "before"])
def test_the_manifest_has_the_exact_bytes_and_documents_of_each_split(tmp_path, documents, options, eot):
    """Y2"""
    split = {} if "format" in options else {"val_fraction": 0.2}  # llm.c: the first shard is val
    spec = Spec(inputs=[documents], output=tmp_path / "out", eot=eot, **split, **options)
    made = prepare(spec, limits=Limits(block_bytes=700)).manifest
    corpus = shardmill.open(tmp_path / "out")
    assert (made.text.rule == "exact" and "val" in corpus) or "limit_documents" in options
    for name in corpus:
        found = getattr(made.text, name)
        assert found.bytes == split_bytes(corpus, name)
        assert found.documents == len(list(corpus[name].documents()))
    assert verify(tmp_path / "out").ok


def test_running_text_counts_the_bytes_of_its_passages(tmp_path):
    text = "".join(f"Line {i} of the text.\n" for i in range(4000))
    (tmp_path / "a.txt").write_text(text)
    made = prepare(
        Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", val_fraction=0.3, passage_bytes=512)
    ).manifest
    assert made.text.val.bytes > 1000 and made.text.train.bytes + made.text.val.bytes == len(text)


def test_bytes_survive_a_resume_merge_and_convert(tmp_path, documents):
    spec = Spec(inputs=[documents], output=tmp_path / "out", val_fraction=0.2)
    made = prepare(spec).manifest
    convert(tmp_path / "out", Target(output=tmp_path / "m", format="megatron"))
    both = merge([tmp_path / "out", tmp_path / "out"], Target(output=tmp_path / "twice"))
    assert both.text == made.text + made.text and both.text.train.bytes == 2 * made.text.train.bytes
    for name in ("m", "twice"):
        assert verify(tmp_path / name).ok
        assert (shardmill.token_bytes(tmp_path / name) == shardmill.token_bytes(tmp_path / "out")).all()


def test_verify_finds_tokens_that_are_not_the_bytes_written(tmp_path, documents):
    for tokenizer in ("gpt2", str(sentencepiece(tmp_path))):
        spec = Spec(inputs=[documents], output=tmp_path / "out", val_fraction=0.2, tokenizer=tokenizer)
        made = prepare(spec, overwrite=True)
        assert made.manifest.text.rule != "unknown" and verify(tmp_path / "out").ok
        odd = dataclasses.replace(made.manifest.text.val, bytes=made.manifest.text.val.bytes // 9)
        changed = dataclasses.replace(made.manifest, text=dataclasses.replace(made.manifest.text, val=odd))
        (tmp_path / "out/manifest.json").write_bytes(changed.to_json())
        (problem,) = verify(tmp_path / "out").problems
        assert problem.file == "val.bin" and f"and {odd.bytes:,} were written" in problem.what


def test_a_damaged_table_is_found(tmp_path, documents):
    prepare(Spec(inputs=[documents], output=tmp_path / "out"))
    table = tmp_path / "out/token_bytes.npy"
    table.write_bytes(table.read_bytes()[:-2] + b"xx")
    assert [problem.file for problem in verify(tmp_path / "out").problems] == ["token_bytes.npy"]
    table.write_bytes(b"not numpy")
    with pytest.raises(InputError, match=r"is not a .npy file"):
        shardmill.token_bytes(tmp_path / "out")


def test_bits_per_byte(tmp_path, documents):
    prepare(Spec(inputs=[documents], output=tmp_path / "out"))
    sizes = shardmill.token_bytes(tmp_path / "out")
    ids = np.array([[464, 3797], [50256, -100]])  # "The", " cat", end-of-text, ignored
    nats = np.array([[0.5, 2.0], [7.0, 9.0]])
    assert shardmill.bits_per_byte(nats, ids, sizes) == pytest.approx(2.5 / math.log(2) / 7)
    assert shardmill.bits_per_byte(2.5, ids, sizes) == pytest.approx(2.5 / math.log(2) / 7), "a sum, too"
    for bad in ((nats[0], ids, sizes), (nats, ids + 60_000, sizes), ([1.0], [50256], sizes)):
        with pytest.raises(UsageError):
            shardmill.bits_per_byte(*bad)


def test_an_output_without_the_table_says_why(tmp_path, documents):
    prepare(Spec(inputs=[documents], output=tmp_path / "out"))
    made = shardmill.open(tmp_path / "out").manifest
    (tmp_path / "out/manifest.json").write_bytes(dataclasses.replace(made, sidecars=(), text=None).to_json())
    with pytest.raises(UsageError, match="made by an earlier version"):
        shardmill.token_bytes(tmp_path / "out")
