"""Documents, separators and end-of-text tokens are what the obvious script would make of them (I6, I7)."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milling import BLOCK_BYTES, mill_files, mill_text

import reference
import samples
from given_texts import texts
from shardmill.errors import InputError
from shardmill.tokens.tokenizer import ENCODINGS

SEPARATORS = ("\n", "\n\n", "<|endoftext|>", "aba", "中", "\r\n", "---\n")
SIDES = ("after", "before", "none")
EOT = {name: known.specials["<|endoftext|>"] for name, known in ENCODINGS.items()}


def expected(encoding, texts, separator, side):
    documents = [document for text in texts for document in reference.documents(text, separator)]
    return reference.tokens(encoding, documents, eot=EOT[encoding], side=side), len(documents)


def joined_by(separator):
    """Texts with this separator in them, alone and in runs of up to six, at the ends too."""
    run = st.integers(1, 6).map(lambda count: separator * count)
    part = st.sampled_from([separator[0], separator[-1], separator[:-1] or " "])
    return st.lists(st.one_of(texts(max_pieces=3), run, part), min_size=1, max_size=12).map("".join).filter(bool)


@pytest.mark.parametrize("separator", SEPARATORS)
@settings(max_examples=15)
@given(data=st.data(), side=st.sampled_from(SIDES), block_bytes=st.sampled_from(BLOCK_BYTES))
def test_documents_are_what_split_gives(encoding, separator, data, side, block_bytes):
    text = data.draw(joined_by(separator))
    out = mill_text(text, tokenizer=encoding, separator=separator, eot=side, block_bytes=block_bytes)
    tokens, documents = expected(encoding, [text], separator, side)
    assert out.train == tokens
    assert out.counts["documents"] - out.counts["documents_empty"] == documents
    pieces = text.split(separator)
    assert out.counts["documents_empty"] == pieces.count("") - (pieces[-1] == "")


@pytest.mark.parametrize("newlines", range(1, 8))
@pytest.mark.parametrize("block_bytes", range(1, 9))
def test_a_run_of_newlines_is_taken_from_left_to_right(newlines, block_bytes):
    """Story: gigatoken's own splitter takes "\\n\\n" in "\\n\\n\\n" from wherever its chunk begins."""
    text = ("abc" + "\n" * newlines) * 5
    out = mill_text(text, tokenizer="r50k_base", separator=r"\n\n", block_bytes=block_bytes)
    assert out.train == expected("r50k_base", [text], "\n\n", "after")[0]


@settings(max_examples=30)
@given(
    files=st.lists(st.tuples(st.booleans(), st.one_of(st.just(""), texts(max_pieces=5))), min_size=1, max_size=6),
    separator=st.sampled_from([None, "\n"]),
    side=st.sampled_from(["auto", *SIDES]),
    block_bytes=st.sampled_from(BLOCK_BYTES),
)
def test_files_with_marks_and_empty_files_among_others_are_all_accounted_for(
    encoding, files, separator, side, block_bytes
):
    marked = [codecs.BOM_UTF8 * mark + text.encode() for mark, text in files]
    if not any(marked):
        return
    out = mill_files(marked, tokenizer=encoding, separator=separator, eot=side, block_bytes=block_bytes, val_fraction=0)
    # A mark is removed once: a text that itself begins with U+FEFF has it as its first character only behind one.
    texts = [data.removeprefix(codecs.BOM_UTF8).decode() for data in marked]
    auto = "none" if len(files) == 1 and separator is None else "after"
    assert out.train == expected(encoding, texts, separator, auto if side == "auto" else side)[0]
    assert out.counts["input_bytes"] == sum(map(len, marked))
    assert out.counts["byte_order_marks"] == sum(data.startswith(codecs.BOM_UTF8) for data in marked)
    assert separator or out.counts["documents_empty"] == texts.count("")
    assert separator or out.counts["documents"] == len(files)


def test_one_text_without_separator_gets_no_end_of_text_and_several_do(encoding):
    text = samples.ENGLISH
    assert EOT[encoding] not in mill_files([text.encode()], tokenizer=encoding).both
    assert mill_files([text.encode()] * 2, tokenizer=encoding).both.count(EOT[encoding]) == 2


def test_a_literal_end_of_text_in_the_text_stays_text(encoding):
    out = mill_text(samples.SPECIALS, tokenizer=encoding, eot="after", block_bytes=64)
    assert out.train == [*reference.encode(encoding, samples.SPECIALS), EOT[encoding]]
    assert out.train.count(EOT[encoding]) == 1


broken = st.lists(
    st.one_of(
        texts(max_pieces=2).map(str.encode),
        st.binary(max_size=6),
        st.sampled_from(
            [b"\xe4\xb8", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\x80" * 9]
        ),
    ),
    min_size=1,
    max_size=10,
).map(lambda pieces: b"x" + b"".join(pieces))


@settings(max_examples=40)
@given(data=broken, block_bytes=st.sampled_from(BLOCK_BYTES), separator=st.sampled_from([None, "\n"]))
def test_broken_bytes_become_what_errors_replace_makes_of_them(encoding, data, block_bytes, separator):
    out = mill_files(
        [data], tokenizer=encoding, on_error="replace", block_bytes=block_bytes, separator=separator, val_fraction=0
    )
    text = data.decode(errors="replace")
    assert out.train == expected(encoding, [text], separator, "after" if separator else "none")[0]
    assert out.counts["replaced_characters"] == text.count("\ufffd") - data.count("\ufffd".encode())


@pytest.mark.parametrize("block_bytes", BLOCK_BYTES)
def test_a_broken_byte_is_refused_with_its_place(block_bytes):
    good = samples.ALL.encode()
    with pytest.raises(InputError, match=rf"000\.txt: byte {len(good):,} \(0xff\) is not UTF-8"):
        mill_files([good + b"\xff " + good], tokenizer="r50k_base", block_bytes=block_bytes)
