"""Small byte-level tokenizers of the shape of real ones: as the tokenizers library runs them, and as our engine does."""

import json
import random
from collections.abc import Callable
from functools import lru_cache

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import patterns
import samples
from shardmill.tokens.model import Model
from shardmill.tokens.native import Native, cpu_paths

Vocabulary = dict[bytes, int]
Merges = list[tuple[bytes, bytes]]

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_LETTERS = {byte: chr(byte) for byte in _VISIBLE} | {
    byte: chr(0x100 + i) for i, byte in enumerate(sorted({*range(256)} - {*_VISIBLE}))
}
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}


def spelled(token: bytes) -> str:
    """A token as vocabularies spell it."""
    return "".join(map(_LETTERS.__getitem__, token))


@lru_cache(maxsize=1)
def trained() -> tuple[Vocabulary, Merges]:
    """A vocabulary of all samples, the ids in order of the merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([samples.ALL] * 2, trainer)
    made = json.loads(tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, list) else merge.split(" ") for merge in made["merges"]]
    vocabulary = {bytes(_BYTES[c] for c in token): number for token, number in made["vocab"].items()}
    return vocabulary, [(bytes(_BYTES[c] for c in a), bytes(_BYTES[c] for c in b)) for a, b in merges]


def random_merges(rng: random.Random, alphabet: str) -> tuple[Vocabulary, Merges]:
    """Merges in no sensible order: several that give the same token, some that never happen, tokens that none gives."""
    tokens = {bytes([byte]) for byte in range(256)}
    common = sorted({bytes([byte]) for byte in alphabet.encode()})
    merges: Merges = []
    for _ in range(rng.randrange(5, 120)):
        left, right = rng.choice(common), rng.choice(common)
        merges.append((left, right))
        if left + right not in tokens:
            common.append(left + right)
        tokens.add(left + right)
    rng.shuffle(merges)
    tokens |= {"".join(rng.choices(alphabet, k=rng.randrange(2, 9))).encode() for _ in range(30)}
    numbers = rng.sample(range(1 << rng.choice([9, 16, 18, 20])), len(tokens))
    return dict(zip(sorted(tokens), numbers, strict=True)), merges


def reference(family: str, vocabulary: Vocabulary, merges: Merges, *, whole_words: bool = False) -> Tokenizer:
    made = Tokenizer(
        models.BPE(
            vocab={spelled(token): number for token, number in vocabulary.items()},
            merges=[(spelled(left), spelled(right)) for left, right in merges],
            ignore_merges=whole_words,
        )
    )
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([patterns.pretokenizer(family), last])
    return made


def model(family: str, vocabulary: Vocabulary, merges: Merges | None, *, whole_words: bool = False) -> Model:
    shape = patterns.SHAPES[family]
    return Model.of(vocabulary, merges, scheme="bytes", shape=shape, whole_words=whole_words)


def trial(family: str) -> Callable[[str], str | None]:
    """A function that says how our engine differs from the library on a text; None if it does not."""
    made, truth = model(family, *trained()), reference(family, *trained())
    engines = {path: Native(made, path=path) for path in cpu_paths()}

    def once(text: str) -> str | None:
        data = text.encode()
        words = [word.encode() for word in patterns.words(family, text)]
        ids = truth.encode(text, add_special_tokens=False).ids
        if words != engines["plain"].words(data, scalar=True):
            return "words, one character at a time"
        for name, engine in engines.items():
            if words != engine.words(data):
                return f"words, {name}"
            if ids != engine.encode([data])[0].tolist():
                return f"ids, {name}"
        return None

    return once
