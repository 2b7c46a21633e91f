"""--limit-documents, --limit-tokens and --sample beside the other choices: the same whatever the block, and no more than asked."""

import itertools
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from milling import BLOCK_BYTES, prepare_files

import reference
import samples
from shardmill.errors import InputError
from shardmill.tokens.tokenizer import read_ranks

EOT = 50256
TOKENS = {rank: token for token, rank in read_ranks("r50k_base").items()}
LINES = [f"{number} sacks of flour, and a note: {text[:50]}" for number, text in enumerate(samples.SAMPLES.values())]
block_sizes = pytest.mark.parametrize("block_bytes", BLOCK_BYTES)


def jsonl(lines):
    return {
        "a.jsonl": b"".join(line if isinstance(line, bytes) else json.dumps({"text": line}).encode() for line in lines)
    }


# The error of a Block came before its beginning: whether a job with a limit failed depended on what shared a Block.
@block_sizes
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_what_is_wrong_behind_a_limit_does_not_matter(name, block_bytes, workers):
    bad = b'{"text": 1}' if name == "a.jsonl" else b"\xff is no letter"
    good = [
        json.dumps({"text": text}).encode() if name == "a.jsonl" else text.encode() for text in ("one", "two", "three")
    ]
    files = {name: b"\n".join([*good, bad, *good])}
    choices = {"separator": None if name == "a.jsonl" else "\\n", "val_fraction": 0, "eot": "after"}
    limits = {"block_bytes": block_bytes, "workers": workers}
    train, _, made = prepare_files(files, limit_documents=3, **choices, **limits)
    assert train == reference.tokens("r50k_base", ["one", "two", "three"], eot=EOT, side="after")
    assert made.counts.documents == 3
    with pytest.raises(InputError):
        prepare_files(files, limit_documents=4, **choices, **limits)
    with pytest.raises(InputError):
        prepare_files(files, limit_tokens=7, **choices, **limits)
    assert prepare_files(files, limit_tokens=6, **choices, **limits)[0] == train


@pytest.mark.parametrize("policy", ["stop", "replace"])
def test_a_bad_byte_in_a_long_document_matters_only_before_the_limit(policy):
    text = samples.ENGLISH * 4
    data = text.encode() + b" and a \xff bad byte, " + text.encode() + b"\xfe" + text.encode()
    tokens = reference.encode("r50k_base", text)
    repaired = reference.encode("r50k_base", data.decode("utf-8", "replace"))
    for limit in (len(tokens) // 3, len(tokens) - 3, len(tokens) + 5, len(repaired) // 2 + 30, len(repaired) - 1):
        found = set()
        for block_bytes in (7, 64, 1000, 1 << 20):
            try:
                train, _, made = prepare_files(
                    {"a.txt": data}, limit_tokens=limit, val_fraction=0, on_error=policy, block_bytes=block_bytes
                )
                found.add((tuple(train), made.counts.replaced_characters))
            except InputError:
                found.add("refused")
        assert len(found) == 1, limit
        (same,) = found
        if policy == "replace":
            written = b"".join(TOKENS[token] for token in repaired[:limit])
            whole = data.decode("utf-8", "replace").encode()
            marks = [place for place in range(len(written)) if whole.startswith("\ufffd".encode(), place)]
            assert same == (tuple(repaired[:limit]), len(marks))
        elif limit < len(tokens):
            assert same == (tuple(tokens[:limit]), 0)
        else:
            assert same == "refused"


# The places of documents behind the limit were written, and those of OLMo's rows broke the writer.
@pytest.mark.parametrize(
    "choices", [{"index": True, "provenance": True}, {"format": "olmo", "index": True, "provenance": True}]
)
@pytest.mark.parametrize("limit", [{"limit_documents": 3}, {"limit_tokens": 20}])
def test_the_index_ends_with_the_limit(tmp_path, choices, limit):
    from shardmill import Limits, Spec, open, prepare, verify

    (tmp_path / "a.jsonl").write_bytes(b"".join(json.dumps({"text": line}).encode() + b"\n" for line in LINES * 5))
    spec = Spec(inputs=[str(tmp_path / "a.jsonl")], output=str(tmp_path / "o"), val_fraction=0, **choices, **limit)
    made = prepare(spec, limits=Limits(block_bytes=1000)).manifest
    sizes = {side.kind: side.bytes for side in made.sidecars}
    assert sizes["places"] == 2 * sizes["ends"] and verify(tmp_path / "o").ok
    assert len(list(open(tmp_path / "o")["train"].documents())) == sizes["ends"] // 8


# A long document that was not in the sample took those with it that ended in the same stretch of text.
@settings(max_examples=20)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 60, 3000]), min_size=2, max_size=30),
    block_bytes=st.sampled_from(BLOCK_BYTES),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 9),
)
def test_a_sample_of_separated_documents_is_that_of_each_alone(sizes, block_bytes, share, seed):
    from shardmill.job.split import sampler

    text = samples.ENGLISH * 3
    documents = [f"{number} {text}"[:size] for number, size in enumerate(sizes)]
    wanted = sampler(share, seed)
    kept = [document for document in documents if document and wanted(document.encode())]
    assume(kept)  # else the job is refused
    train, _, made = prepare_files(
        ["##".join(documents).encode()], separator="##", sample=share, seed=seed, val_fraction=0, eot="after",
        block_bytes=block_bytes, engine="reference",
    )  # fmt: skip
    assert train == reference.tokens("r50k_base", kept, eot=EOT, side="after")
    counts = made.counts
    assert counts.documents == len(kept) + counts.documents_empty + counts.documents_unsampled


# Passages that were left out left their end-of-text tokens behind, one after the other.
@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("choices", [{"sample": 0.2}, {"on_error": "skip"}])
def test_a_text_of_which_nothing_is_left_has_no_end_of_text_token(monkeypatch, side, choices):
    monkeypatch.setattr("shardmill.job.plan.WHOLE_FILE_BYTES", 1000)
    passage = "".join(f"Line {number} of the book, as long as others.\n" for number in range(60))
    files = [(passage.replace("book", f"book {number}")).encode() for number in range(24)]
    if "on_error" in choices:
        files = [data.replace(b"Line", b"L\xffne") if number % 3 else data for number, data in enumerate(files)]
        files[6] = files[0] + files[1]
    results = {
        json.dumps([train, val, made.counts.passages_rejected, made.counts.passages_unsampled])
        for block_bytes in (64, 1000, 1 << 20)
        for train, val, made in [
            prepare_files(files, eot=side, passage_bytes=512, val_fraction=0.3, block_bytes=block_bytes, **choices)
        ]
    }
    assert len(results) == 1
    train, val, rejected, unsampled = json.loads(results.pop())
    assert rejected + unsampled > 10 and EOT in train
    for tokens in (train, val):
        marks = [place for place, token in enumerate(tokens) if token == EOT]
        assert all(b - a > 1 for a, b in itertools.pairwise(marks))
        assert not tokens or tokens[0 if side == "after" else -1] != EOT
