"""The oracle: the tokens of whole documents, slowly and obviously right."""

from functools import lru_cache

import tiktoken
import tokenizers

from shardmill.tokens.tokenizer import ENCODINGS, read_ranks


@lru_cache(maxsize=8)
def _encoder(tokenizer):
    if tokenizer in ENCODINGS:
        known = ENCODINGS[tokenizer]
        return tiktoken.Encoding(
            tokenizer, pat_str=known.pattern, mergeable_ranks=read_ranks(tokenizer), special_tokens=known.specials
        ).encode_ordinary
    model = tokenizers.Tokenizer.from_file(tokenizer)
    model.encode_special_tokens = True  # a literal "<|endoftext|>" in the text stays text
    return lambda text: model.encode(text, add_special_tokens=False).ids


def encode(tokenizer, text):
    """The ids of one whole document; tokenizer is an encoding's name or the path of a tokenizer.json."""
    return _encoder(tokenizer)(text)


def documents(text, separator=None):
    """What lies between separators, left to right; after the last one there is a document only if there is text."""
    pieces = text.split(separator) if separator else [text]
    return [piece for piece in pieces if piece]


def tokens(tokenizer, documents, *, eot=None, side="none"):
    """The ids of all documents in a row, each with its end-of-text token."""
    marks = {"after": ([], [eot]), "before": ([eot], []), "none": ([], [])}[side]
    return [token for text in documents for token in [*marks[0], *encode(tokenizer, text), *marks[1]]]
