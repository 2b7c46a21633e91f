"""SentencePiece-style tokenizers give the reference's tokens in our engine, on every path through it."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import samples
from sentencepieces import CONFIGS, documents, model_of, reference_ids, reference_of
from shardmill.errors import ShardmillError
from shardmill.tokens.native import cpu_paths
from shardmill.tokens.reference import load_reference
from shardmill.tokens.sentencepiece import SentencePiece
from shardmill.tokens.tokenizer import load

PATHS = {**{path: {"path": path} for path in cpu_paths()}, "tables soon full": {"small": True}}
WINDOW = 4096


@pytest.fixture(scope="module", params=CONFIGS)
def config(request):
    return CONFIGS[request.param]()


@pytest.fixture(scope="module")
def model(config):
    return model_of(config)


@pytest.fixture(scope="module")
def truth(config):
    return reference_of(config)


@pytest.fixture(scope="module", params=PATHS)
def engine(request, model):
    return SentencePiece(model, **PATHS[request.param])


def split(ids, counts):
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])] if len(counts) else []


def differing(engine, truth, texts):
    """The texts whose ids are not the reference's, encoded in one call."""
    found = split(*engine.encode([text.encode() for text in texts]))
    return [text for text, got, want in zip(texts, found, reference_ids(truth, texts), strict=True) if got != want]


def test_random_documents_give_the_tokens_of_the_reference(engine, truth, config):
    assert differing(engine, truth, ["", " ", "▁", "\n", *documents(config, 1, 700)]) == []


def test_every_sample_gives_the_tokens_of_the_reference(engine, truth):
    assert differing(engine, truth, [*samples.SAMPLES.values(), samples.ALL]) == []


def test_a_text_gives_the_same_tokens_wherever_it_begins(engine, truth):
    """Blocks of 32 bytes, and windows of 4 KiB, with a piece across each border."""
    borders = "it's 12 é文。字 \xa0x ▁▁ 😀😀==== \n\n\tnever reached</s>"
    assert differing(engine, truth, [lead * n + borders for lead in ("x", " ", "é") for n in range(0, 70, 3)]) == []
    near = [f"{'word ' * (WINDOW // 5 - 1)}{'!' * n}{borders}" for n in range(0, 60, 5)]
    assert differing(engine, truth, near) == []
    assert differing(engine, truth, [("ab" * (WINDOW // 2 + n) + " =") * 2 for n in (-2, -1, 0, 1, 700)]) == []


def test_a_character_across_the_end_of_a_window_is_read_whole(engine, truth):
    """Story: when less than 32 bytes followed a window, half of its last character was taken for another one."""
    words = samples.CHINESE_WITHOUT_PUNCTUATION * 12
    for end in range(WINDOW - 4, WINDOW + 40):
        text = ("x" * (end % 3) + words).encode()[:end].decode(errors="ignore")
        assert differing(engine, truth, [text]) == []


@pytest.mark.parametrize("run", ["a", " ", "=", "▁", "\n", "\t", "é", "文", "ab ", "\x7f", "<unused1>", "word\n"])
def test_a_run_of_anything_gives_the_tokens_of_the_reference(run):
    for name in ("llama 2", "gemma", "phi 3"):
        config = CONFIGS[name]()
        engine = SentencePiece(model_of(config))
        assert differing(engine, reference_of(config), [run * (20_000 // len(run)), f"x{run * 999}y"]) == []


def test_the_time_for_a_run_without_cuts_grows_little_faster_than_its_length():
    engine = SentencePiece(model_of(CONFIGS["gemma"]()))
    seconds = []
    for size in (1 << 17, 1 << 20):
        began = time.thread_time()
        ids, _ = engine.encode([b"=" * size])
        seconds.append(time.thread_time() - began)
        assert len(ids) == size // 4
    assert seconds[1] < 24 * max(seconds[0], 0.01)


def test_a_piece_inside_a_document_gets_no_blank_before_it():
    """Behind an added token it does, wherever the document begins, as in the reference."""
    for name, inner in (("llama 2", "yi"), ("mistral", "never"), ("mistral, added", None), ("phi 3", None)):
        engine = SentencePiece(model_of(CONFIGS[name]()))
        pieces = [b"The end", b" of<tag>it", b"", b"\n", b"word"]
        inside = split(*engine.encode(pieces, [False] * 5))
        starts = split(*engine.encode(pieces, [True, False, True, False, False]))
        assert starts[1:] == inside[1:] and starts[0] != inside[0]
        assert split(*engine.encode(pieces, starts=True))[0] == starts[0]
        if inner is not None:
            assert inside == reference_ids(reference_of(CONFIGS[inner]()), [piece.decode() for piece in pieces])
    behind = split(*engine.encode([b"x<tag>it", b"it"], [False, True]))
    assert behind[0][-len(behind[1]) :] == behind[1]


@pytest.mark.parametrize("name", ["llama 2", "mistral, normalized", "phi 3, normalized", "gemma"])
def test_the_reference_agrees_about_pieces_inside_a_document(tmp_path, name):
    config = CONFIGS[name]()
    (tmp_path / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")
    reference, engine = load_reference(load(str(tmp_path))), SentencePiece(model_of(config))
    texts = [text.encode() for text in ["", " ", "▁", *documents(config, 5, 100)]]
    for begins in (True, False):
        found = split(*engine.encode(texts, begins))
        assert found == [reference.encode(text, begins=begins).tolist() for text in texts]


def test_threads_that_empty_the_tables_give_the_tokens_of_the_reference():
    config = CONFIGS["gemma"]()
    engine, truth = SentencePiece(model_of(config), small=True), reference_of(config)

    def work(seed):
        return [differing(engine, truth, documents(config, 100 * seed + i, 20)) for i in range(12)]

    with ThreadPoolExecutor(4) as pool:
        assert all(bad == [] for found in pool.map(work, range(4)) for bad in found)


def test_bytes_that_are_not_utf8_give_no_more_ids_than_there_is_room_for(engine):
    """Story: half of a character behind a run of newlines, which are added tokens, was read as one for ever."""
    rng = np.random.default_rng(4)
    some = np.frombuffer(b"\n\t x" + "ж文😀".encode() + b"\x80\x80\xbf\xff", np.uint8)
    texts = [rng.choice(some, size).tobytes() for size in (1, 7, 60, 400, 9000) for _ in range(20)]
    texts += [b"\n\x80", b" " * 64 + b"\x80" * 64 + b" " * 64, b"\x80" * 9000]
    ids, _ = engine.encode(texts, starts=False)
    assert len(ids) <= sum(map(len, texts))


def test_its_memory_does_not_grow():
    engine = SentencePiece(model_of(CONFIGS["llama 2"]()))
    before = engine.memory
    engine.encode([np.random.default_rng(1).integers(97, 123, 1 << 20, np.uint8).tobytes()])
    assert engine.memory == before < 96 << 20


def test_a_merge_that_gives_nothing_is_refused(model):
    made = np.array([[0, 1]], np.uint32)
    for merges, why in ((made, "not in the vocabulary"), (made + len(model.tokens), "not in the vocabulary")):
        with pytest.raises(ShardmillError, match=why):
            SentencePiece(replace(model, merges=np.concatenate([model.merges, merges])))
