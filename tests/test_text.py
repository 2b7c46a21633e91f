"""The reader of plain text: Parts that are consecutive and complete, and documents that are what split gives."""

import codecs
import itertools

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import samples
from given_texts import load_once, texts
from shardmill import Limits, Spec, prepare
from shardmill.documents import text_reader, utf8
from shardmill.documents.pieces import BEGINNING
from shardmill.documents.rules import content_key
from shardmill.documents.text import escaped, pieces_of
from shardmill.documents.text_reader import BOM, Position, TextRules, entry, read_parts
from shardmill.errors import InputError
from shardmill.io.reading import InputReader
from shardmill.tokens.cuts import Cuts

BLOCK_BYTES = (1, 3, 7, 64, 1000, 1 << 20)


def rules(
    *, encoding="r50k_base", separator=None, passage_bytes=None, border=None, max_run_bytes=1 << 20, block_bytes=1 << 20
):
    return TextRules(
        cuts=Cuts("unknown") if encoding == "unknown" else load_once(encoding).cuts,
        seed=0,
        separator=separator,
        passage_bytes=passage_bytes,
        border=border,
        max_run_bytes=max_run_bytes,
        block_bytes=block_bytes,
    )


def parts_of(path, data, how):
    path.write_bytes(data)
    with InputReader(str(path)) as reader:
        return list(read_parts(Position(), reader, 0, how))


def documents_of(parts, how):
    """The documents that pieces make, put together again over Parts."""
    documents = []
    for part in parts:
        pieces = pieces_of(part, 0, how, lambda _: False)
        for data, begins in zip(pieces.texts, pieces.begins):
            if begins:
                documents.append(data)
            else:
                documents[-1] += data
    return documents


def keys_of(parts, how):
    noted = []
    for part in parts:
        pieces_of(part, 0, how, lambda keys: noted.extend(keys.tolist()) or keys < 0)
    return noted


@pytest.fixture
def path(tmp_path):
    return tmp_path / "text.txt"


@pytest.mark.parametrize("passage_bytes", [None, 2000])
@pytest.mark.parametrize("separator", [None, b"\n", b"\n\n"])
@settings(max_examples=30)
@given(text=texts(max_pieces=20).filter(bool), block_bytes=st.sampled_from(BLOCK_BYTES), mark=st.booleans())
def test_parts_are_consecutive_and_complete(path, passage_bytes, separator, text, block_bytes, mark):
    data = BOM * mark + (text + samples.ALL[: 4000 if passage_bytes else 400]).encode()
    how = rules(separator=separator, passage_bytes=passage_bytes, block_bytes=block_bytes)
    parts = parts_of(path, data, how)
    # A text that begins with U+FEFF looks like one with a mark: it is one.
    skipped = len(BOM) if data.startswith(BOM) else 0
    assert b"".join(part.data for part in parts) == data[skipped:]
    assert [part.offset for part in parts] == [skipped + sum(len(p.data) for p in parts[:i]) for i in range(len(parts))]
    assert all(part.data for part in parts)
    assert [part.continues for part in parts] == [False, *(part.open for part in parts[:-1])]
    assert not parts[-1].open
    assert not any(part.forced for part in parts)


@settings(max_examples=30)
@given(text=texts(max_pieces=20).filter(bool), block_bytes=st.sampled_from(BLOCK_BYTES))
def test_parts_are_as_long_as_asked_where_the_text_allows(path, text, block_bytes):
    data = (samples.ENGLISH * 3 + text).encode()
    longest = max(len(part.data) for part in parts_of(path, data, rules(block_bytes=block_bytes)))
    assert longest <= max(block_bytes, 1 << 10)


@pytest.mark.parametrize("separator", ["\n", "\n\n", "aba", "aa", "<|endoftext|>", "中"])
@settings(max_examples=40)
@given(data=st.data(), block_bytes=st.sampled_from(BLOCK_BYTES))
def test_documents_are_what_split_gives(path, separator, data, block_bytes):
    """Also when separators overlap: they are taken from left to right, whatever the block."""
    letters = st.sampled_from([*separator, "x", " ", separator, separator * 2])
    content = data.draw(st.lists(letters, min_size=1, max_size=60).map("".join))
    how = rules(separator=separator.encode(), block_bytes=block_bytes)
    parts = parts_of(path, content.encode(), how)
    expected = [document.encode() for document in content.split(separator) if document]
    assert documents_of(parts, how) == expected
    keys = keys_of(parts, how)
    assert keys == [content_key(document, 0) for document in expected]


def test_the_last_of_overlapping_separators_is_found_from_the_left():
    def end_of(data, separator):
        return text_reader._documents_end(np.frombuffer(data, np.uint8), separator, 100)

    for count in range(1, 9):
        end = end_of(b"x" + b"\n" * count, b"\n\n")
        assert end == ((1 + count // 2 * 2, count // 2) if count > 1 else (0, 0))
    assert end_of(b"ababa", b"aba") == (3, 1)
    assert end_of(b"xabaxxaba", b"aba") == (9, 2)
    assert end_of(b"nothing", b"aba") == (0, 0)


def test_empty_documents_are_counted_and_give_nothing(path):
    how = rules(separator=b"\n", block_bytes=1)
    parts = parts_of(path, b"\n\na\n\n\nb\n", how)
    assert documents_of(parts, how) == [b"a", b"b"]
    assert sum(pieces_of(part, 0, how, lambda _: False).records for part in parts) == 4 + 2


def test_a_text_that_ends_with_a_separator_has_no_document_after_it(path):
    for content in (b"a\nb", b"a\nb\n"):
        how = rules(separator=b"\n")
        assert documents_of(parts_of(path, content, how), how) == [b"a", b"b"]


@pytest.mark.parametrize("block_bytes", [64, 1000, 70_000, 1 << 20])
def test_the_key_of_a_document_is_that_of_its_beginning_whatever_the_block(path, block_bytes):
    documents = [f"{number} {samples.ENGLISH}".encode() * size for number, size in enumerate((1, 5, 200, 1))]
    how = rules(separator=b"|||", block_bytes=block_bytes)
    keys = keys_of(parts_of(path, b"|||".join(documents), how), how)
    assert keys == [content_key(document[: 64 << 10], 0) for document in documents]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_refused_by_name(path, encoding):
    named = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    with pytest.raises(InputError, match=rf"text\.txt: this is {named} text, .*iconv -f {named} -t UTF-8"):
        parts_of(path, samples.ENGLISH.encode(encoding), rules())


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE])
def test_a_mark_alone_is_enough_to_refuse(mark):
    with pytest.raises(InputError, match="only UTF-8 is supported"):
        utf8.refuse_other_encodings("text.txt", mark)


def test_nul_bytes_are_text(path):
    for content in (
        samples.NUL.encode() * 20,
        b"\0" * 5000,
        b"record\0" * 500,
        b"ab\0\0" * 100,
        samples.ENGLISH.encode() + b"\0",
    ):
        parts = parts_of(path, content, rules(block_bytes=7))
        assert b"".join(part.data for part in parts) == content


def test_every_sample_passes_as_utf8(path):
    for content in samples.SAMPLES.values():
        assert b"".join(part.data for part in parts_of(path, content.encode(), rules())) == content.encode()


def test_a_mark_is_removed_once_and_only_at_the_beginning(path):
    parts = parts_of(path, BOM + BOM + b"a" + BOM, rules())
    assert [(part.offset, part.data) for part in parts] == [(3, BOM + b"a" + BOM)]
    assert parts_of(path, BOM, rules()) == []


@pytest.mark.parametrize(
    "typed, meant",
    [
        (r"\n", b"\n"),
        (r"\n\n", b"\n\n"),
        (r"\r\n\t", b"\r\n\t"),
        (r"\0", b"\0"),
        (r"\x1e", b"\x1e"),
        (r"\xe9", "é".encode()),
        (r"\\n", rb"\n"),
        (r"\\\n", b"\\\n"),
        (r"\q", rb"\q"),
        (r"\x1", rb"\x1"),
        ("\n", b"\n"),
        ("<|endoftext|>", b"<|endoftext|>"),
        ("中", "中".encode()),
    ],
)
def test_a_separator_means_what_a_shell_user_typed(typed, meant):
    assert escaped(typed) == meant


def test_text_without_a_place_to_cut_is_forced_at_the_longest_run(path):
    parts = parts_of(path, b"7" * 200, rules(max_run_bytes=64, block_bytes=7))
    assert [(len(part.data), part.forced) for part in parts] == [(64, True), (64, True), (64, True), (8, False)]


def test_a_forced_cut_is_between_characters(path):
    for character in ("²", "๕", "𝟕"):
        parts = parts_of(path, character.encode() * 100, rules(max_run_bytes=65, block_bytes=7))
        assert any(part.forced for part in parts)
        assert all(bytes(part.data).decode() for part in parts)


def passage_starts(path, data, **choices):
    parts = parts_of(path, data, rules(**choices))
    return [part.offset + start for part in parts for start in part.starts]


def lines(count):
    words = samples.ENGLISH.split()
    return "".join(f"line {n}: {' '.join(words[n % 70 : n % 70 + 12])}\n" for n in range(count)).encode()


@pytest.mark.parametrize("encoding", ["r50k_base", "cl100k_base", "o200k_base"])
@pytest.mark.parametrize("name", ["english", "chinese", "whitespace", "mixed_case", "digits", "python"])
def test_passages_do_not_depend_on_block_size(path, encoding, name):
    data = "\n".join(f"{number} {samples.SAMPLES[name]}" for number in range(60)).encode()
    choices = {"encoding": encoding, "passage_bytes": 2048}
    starts = [passage_starts(path, data, block_bytes=size, **choices) for size in (1, 3000, 10_000, 1 << 20)]
    assert len(starts[0]) > 3
    assert starts == [starts[0]] * len(starts)


def test_passages_are_about_as_long_as_asked(path):
    starts = passage_starts(path, lines(3000), passage_bytes=4096)
    sizes = [b - a for a, b in itertools.pairwise(starts)]
    assert all(2048 <= size <= 10 * 2048 for size in sizes) and 3500 < sum(sizes) / len(sizes) < 6000


def test_passages_begin_at_lines(path):
    data = lines(3000)
    starts = passage_starts(path, data, passage_bytes=4096)
    at_lines = sum(start == 0 or data[start - 1] == 0x0A for start in starts)
    assert at_lines > 0.9 * len(starts)


@pytest.mark.parametrize(
    "edit", [b"x", b"a new line\n", b"A whole new paragraph, of more than one line,\nas one writes it.\n\n" * 30]
)
def test_borders_of_passages_fall_into_place_again_after_an_edit_at_the_start(path, edit):
    data = lines(20_000)
    before = passage_starts(path, data, passage_bytes=2048)
    after = {start - len(edit) for start in passage_starts(path, edit + data, passage_bytes=2048)}
    assert {start for start in before if start > 10 * 1024} <= after


def test_a_passage_begins_at_the_border_asked_for(path):
    data = lines(3000)
    for border in (1, 5000, 50_000, len(data) - 500):
        starts = passage_starts(path, data, passage_bytes=4096, border=border)
        assert any(border <= start <= border + 20 for start in starts)


@pytest.mark.parametrize("family", ["r50k_base", "o200k_base", "unknown"])
@pytest.mark.parametrize("block_bytes", [64, 1000, 5000, 1 << 20])
@settings(max_examples=25, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(text=texts(max_pieces=20), times=st.integers(1, 6), mark=st.booleans(), at=st.integers(0, 100_000))
def test_whoever_begins_in_the_middle_finds_the_passages_of_the_whole(path, text, times, mark, at, block_bytes, family):
    data = BOM * mark + ((samples.ALL[:3000] + text) * times).encode()
    how = rules(passage_bytes=500, block_bytes=block_bytes, max_run_bytes=4000, encoding=family)
    whole = {
        (part.offset + start, key) for part in parts_of(path, data, how) for start, key in zip(part.starts, part.keys)
    }
    with InputReader(str(path)) as reader:
        found = entry(reader, 0, 0, 1 + at % len(data), how)
        if found is None:
            return
        assert found.offset >= 1 + at % len(data)
        rest = list(read_parts(found, reader, 0, how))
        before = list(read_parts(BEGINNING, reader, 0, how, until=found))
    starts = {(part.offset + start, key) for part in rest for start, key in zip(part.starts, part.keys)}
    assert starts == {(start, key) for start, key in whole if start >= found.offset}
    starts |= {(part.offset + start, key) for part in before for start, key in zip(part.starts, part.keys)}
    assert starts == whole and before[-1].open and before[-1].after.offset == found.offset


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("bad", [b"\x80bad", b"\x80\x80\x80\x80", b"\xa4", b"a\x80", b"\xe2\x82", b"\xc3"])
def test_half_a_character_is_found_wherever_a_document_has_it(tmp_path, bad, block_bytes):
    """What is read may begin and end inside a character; a document may not."""
    for number in (1, 2, 3, 9):
        (tmp_path / "a.txt").write_bytes(b"x" * number + b"##" + bad + b"##" + "more é text ".encode() * 3)
        spec = Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="##", val_fraction=0)
        with pytest.raises(InputError, match="is not UTF-8"):
            prepare(spec, limits=Limits(engine="native", block_bytes=block_bytes), overwrite=True)
