"""Text of a SentencePiece-style tokenizer, cut where no token has two characters side by side, gives the same tokens (I7)."""

import random
from dataclasses import replace

import pytest

import samples
from sentencepieces import CONFIGS, documents, model_of, reference_ids, reference_of
from shardmill.tokens.cuts import Cuts
from shardmill.tokens.neighbours import neighbours, why_not
from shardmill.tokens.sentencepiece import SentencePiece


@pytest.fixture(scope="module", params=CONFIGS)
def config(request):
    return CONFIGS[request.param]()


@pytest.fixture(scope="module")
def cuts(config):
    return Cuts("sentencepiece", adjacent=neighbours(model_of(config)))


def cuts_of(cuts, data):
    """Every cut that Cuts names in a text, by whichever of its doors."""
    named = set(cuts._exact(data, 0, len(data), 0).tolist())
    assert named.issuperset(cut for high in range(2, len(data) + 1, 19) if (cut := cuts.last(data, 0, high)))
    assert named.issuperset(cut for low in range(0, len(data), 19) if (cut := cuts.first(data, low, len(data))))
    assert named.issuperset(
        at for at in range(len(data) + 1) if data[:at].endswith(b"\n") and cuts.is_line_cut(data, at)
    )
    return sorted(named)


def joined(encode, texts, cuts, rng):
    """The ids of the pieces of each text, cut at all places or at some."""
    pieces, begins, sizes = [], [], []
    for text in texts:
        data = text.encode()
        named = cuts_of(cuts, data)
        chosen = sorted(rng.sample(named, rng.randrange(len(named) + 1))) if rng.random() < 0.5 else named
        parts = [data[a:b] for a, b in zip([0, *chosen], [*chosen, len(data)], strict=True)]
        pieces += parts
        begins += [True] + [False] * (len(parts) - 1)
        sizes.append(len(parts))
    ids = iter(encode(pieces, begins))
    return [[number for _ in range(size) for number in next(ids)] for size in sizes], sum(sizes)


def by_engine(engine):
    def encode(pieces, begins):
        ids, counts = engine.encode(pieces, begins)
        ends = counts.cumsum().tolist()
        return [ids[end - count : end].tolist() for end, count in zip(ends, counts.tolist(), strict=True)]

    return encode


def test_pieces_give_the_tokens_of_the_whole(config, cuts):
    texts = [*samples.SAMPLES.values(), *documents(config, 11, 40)]
    expected = reference_ids(reference_of(config), texts)
    found, count = joined(by_engine(SentencePiece(model_of(config))), texts, cuts, random.Random(2))
    assert [text for text, got, want in zip(texts, found, expected, strict=True) if got != want] == []
    assert count > 400


@pytest.mark.parametrize("name", ["yi", "never", "gemma"])
def test_the_reference_agrees_with_itself(name):
    """For tokenizers that put nothing before a text."""
    config = CONFIGS[name]()
    reference, cuts = reference_of(config), Cuts("sentencepiece", adjacent=neighbours(model_of(config)))
    texts = documents(config, 12, 100)
    found, _ = joined(
        lambda pieces, _: reference_ids(reference, [piece.decode() for piece in pieces]), texts, cuts, random.Random(3)
    )
    assert found == reference_ids(reference, texts)


def test_running_text_is_cut_every_few_characters(cuts):
    data = samples.ENGLISH.encode()
    assert len(cuts_of(cuts, data)) > len(data) // 12


def test_nothing_is_cut_beside_what_is_not_utf_8(cuts):
    data = b"one \xff two\xe4\xb8 three \x80"
    for at in cuts_of(cuts, data):
        data[:at].decode(errors="surrogateescape").encode(errors="surrogateescape")
        assert 0xFF not in data[at - 1 : at + 1] and not data[at] & 0x80 and not data[at - 1] & 0x80


def test_what_is_not_understood_is_refused_in_words(config):
    assert why_not(model_of(config)) is None
    vocabulary, merges = config["model"]["vocab"], config["model"]["merges"]

    def refused(**changes):
        return why_not(model_of({**config, "model": {**config["model"], **changes}}))

    assert "0xe4" in refused(vocab={name: number for name, number in vocabulary.items() if name != "<0xE4>"})
    assert "long" in refused(vocab={**vocabulary, "x" * 2000: len(vocabulary)})
    for byte_merge in (("<0x41>", "a"), ("<0x", "41>")):
        more = {name: len(vocabulary) + i for i, name in enumerate([*byte_merge, "".join(byte_merge)])}
        assert "bytes" in refused(vocab={**more, **vocabulary}, merges=[*merges, byte_merge])
    blanks = [name for name in vocabulary if "▁" in name]
    without = {name: number for name, number in vocabulary.items() if name not in blanks}
    assert "blank" in refused(vocab=without, merges=[merge for merge in merges if "▁" not in "".join(merge)])
    assert "merges" in why_not(replace(model_of(config), whole_words=True))
