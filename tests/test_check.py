"""The running comparison finds an engine that errs, wherever it does, and costs next to nothing."""

from ctypes import c_void_p, cast
from dataclasses import replace

import pytest

import samples
from given_texts import load_once
from shardmill import Limits, Spec, prepare, verify
from shardmill.errors import MismatchError
from shardmill.tokens import check, native
from shardmill.tokens.encoder import Encoder, choose_engines
from shardmill.tokens.layout import lay_out

UNTOUCHED = 12_000


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "book.txt"
    sample = (samples.ENGLISH + samples.ALL).encode()
    path.write_bytes(sample * (-(-(24 << 20) // len(sample))))
    return path


def wrong_in_the_middle(encode):
    """All ids but the first and last of each piece, the other way round: what looks at the ends finds nothing."""

    def reversed_middles(self, pieces):
        ids, counts = encode(self, pieces)
        ids, at = ids.copy(), 0
        for count in counts.tolist():
            middle = slice(at + UNTOUCHED, at + count - UNTOUCHED)
            if count > 2 * UNTOUCHED:
                ids[middle] = ids[middle][::-1]
            at += count
        return ids, counts

    return reversed_middles


@pytest.fixture
def wrong_engine(monkeypatch):
    def in_two_steps(self, texts, layout):
        encoded = self.encode(texts)
        return lay_out(encoded, layout), encoded

    whole = native.Native.whole

    def wrong_for_c(self, *guards):
        called, right = native.called_by_c(self.encode, self._dtype, 16), whole(self, *guards)
        where = cast(called, c_void_p).value
        return replace(right, function=where, inside=where, owner=(right.owner, called))

    monkeypatch.setattr(native.Native, "encode", wrong_in_the_middle(native.Native.encode))
    monkeypatch.setattr(native.Native, "encode_and_lay_out", in_two_steps)
    monkeypatch.setattr(native.Native, "whole", wrong_for_c)


# Only the beginnings and ends of pieces were compared: 78 % of the tokens could be wrong, and nobody noticed.
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.usefixtures("wrong_engine")
def test_wrong_tokens_in_the_middle_of_pieces_are_found(book, tmp_path, seed):
    with pytest.raises(MismatchError, match="different tokens"):
        prepare(Spec(inputs=[str(book)], output=str(tmp_path / "out"), seed=seed))


@pytest.mark.usefixtures("wrong_engine")
def test_verify_finds_them_too_though_it_uses_the_same_engine(book, tmp_path, monkeypatch):
    with monkeypatch.context() as blind:
        blind.setattr(check.Checker, "check", lambda *_: 0)
        prepare(Spec(inputs=[str(book)], output=str(tmp_path / "out")))
    assert verify(tmp_path / "out").ok
    found = verify(tmp_path / "out", sources=[str(book)])
    assert not found.ok and "different tokens" in found.problems[0].what


@pytest.mark.parametrize("tokenizer", ["r50k_base", "cl100k_base", "o200k_base"])
def test_right_tokens_are_found_right_at_every_place(tokenizer):
    found = choose_engines(load_once(tokenizer), "native")
    pieces = [samples.ALL.encode() * 40, b"short", *(text.encode() * 3 for text in samples.SAMPLES.values())]
    begins = [True] * len(pieces)
    encoded = Encoder(found).encode(pieces, begins)
    checked = 0
    for block in range(1, 200):
        checked += check.Checker(found, 1.0, block).check(block, pieces, begins, encoded, str, 1.0)
    assert checked > 200 * 1000


def test_comparing_takes_at_most_its_share_of_the_cpu_time(book, tmp_path, monkeypatch):
    checkers = []
    make = check.Checker.__init__
    monkeypatch.setattr(check.Checker, "__init__", lambda self, *a: (make(self, *a), checkers.append(self))[0])
    result = prepare(Spec(inputs=[str(book)], output=str(tmp_path / "out")), limits=Limits(workers=2))
    (checker,) = checkers
    assert result.run["checked_bytes"] > 50_000
    # Each worker may begin one just when the others leave room for it.
    assert checker._spent <= check.SHARE * checker._worked + check.AT_LEAST_SECONDS + 2 * 0.005
