"""Small tokenizers of SentencePiece's shape, one for each family, and documents that are hard on them."""

import json
import random
from functools import lru_cache

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

import samples
from shardmill.tokens.model import AddedToken, Model

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
NEVER_FIRES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
# Tokens that cross a blank, runs of blanks, a token that no merge reaches, and one that another always beats to it.
EXTRA = [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁▁▁", "▁▁▁▁"), (">", "▁"), ("=", "="), ("==", "=="), ("\n", "\n"), ("é", "é")]


@lru_cache(maxsize=1)
def _trained():
    """The vocabulary and merges of some training, on the samples."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False)
    made.train_from_iterator([samples.ALL.replace("🦄", "")], trainer)
    return json.loads(made.to_str())["model"]


def config(normalizer, pre_tokenizer=None, added=()):
    """A tokenizer.json. added: contents, or a dict of what is not the default."""
    model = _trained()
    vocabulary, merges = dict(model["vocab"]), [tuple(merge) for merge in model["merges"]]
    middle = len(merges) // 2
    for left, right in EXTRA:
        for token in (left, right, left + right):
            vocabulary.setdefault(token, len(vocabulary))
    merges = [*merges[:middle], *EXTRA, *merges[middle:], merges[3]]  # of two equal merges the later one counts
    vocabulary.setdefault("never▁reached", len(vocabulary))
    specials = [{"content": name, "special": True} for name in ("<unk>", "<s>", "</s>")]
    tokens, following = [], len(vocabulary)
    for entry in [*specials, *({"content": each} if isinstance(each, str) else each for each in added)]:
        number = vocabulary.get(entry["content"], following)
        following += number == following
        flags = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), False)
        tokens.append({"id": number, **flags, **entry})
    return {
        "version": "1.0",
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": "<unk>",
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _metaspace(scheme):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def _sequence(*steps):
    return {"type": "Sequence", "normalizers": steps}


_GEMMA = [
    *("\n" * n for n in range(1, 8)),
    *("\t" * n for n in range(2, 6)),
    *("▁" * n for n in range(2, 9)),
    *(f"<unused{n}>" for n in range(30)),
    *("<table>", "</table>", "<tr>", "<mask>", "[multimodal]"),
    {"content": "<x<tr>y>", "special": True},
]
STRIPPING = [
    {"content": "<right>", "rstrip": True},
    {"content": "<left>", "lstrip": True},
    {"content": "<both>", "lstrip": True, "rstrip": True},
    {"content": "word", "single_word": True},
    {"content": "<x<tag>y>", "special": True},
    *("<tag>", "<tag><tag>", "one two", "\n\n"),
]
NORMALIZED = [
    *STRIPPING,
    *(
        {**(token if isinstance(token, dict) else {"content": token}), "normalized": True}
        for token in (
            "<n>",
            "two words",
            "<n><n>",
            {"content": "<N>", "rstrip": True},
            {"content": "<hides<n>>", "special": True},
        )
    ),
]
CONFIGS = {
    "llama 2": lambda: config(_sequence(PREPEND, REPLACE)),
    "mistral": lambda: config(None, _metaspace("first")),
    "mistral, added": lambda: config(None, _metaspace("first"), STRIPPING),
    "never": lambda: config(None, _metaspace("never")),
    "yi": lambda: config(_sequence(REPLACE)),
    "gemma": lambda: config(REPLACE, NEVER_FIRES, _GEMMA),
    "phi 3": lambda: config(_sequence(PREPEND, REPLACE), None, STRIPPING),
    "phi 3, normalized": lambda: config(_sequence(PREPEND, REPLACE), None, NORMALIZED),
    "mistral, normalized": lambda: config(None, _metaspace("first"), NORMALIZED),
    "gemma, normalized": lambda: config(REPLACE, NEVER_FIRES, [*_GEMMA, *NORMALIZED[-5:]]),
}


def model_of(config):
    flags = ("content", "id", "special", "normalized", "lstrip", "rstrip", "single_word")
    metaspace = (config["pre_tokenizer"] or {}).get("prepend_scheme")
    return Model.of(
        scheme="sentencepiece",
        vocabulary={token.encode(): number for token, number in config["model"]["vocab"].items()},
        merges=[(left.encode(), right.encode()) for left, right in config["model"]["merges"]],
        added=tuple(AddedToken(**{flag: token[flag] for flag in flags}) for token in config["added_tokens"]),
        prepend=PREPEND in (config["normalizer"] or {}).get("normalizers", ()) or metaspace == "first",
        metaspace=metaspace is not None,
    )


def reference_of(config):
    made = tokenizers.Tokenizer.from_str(json.dumps(config))
    made.encode_special_tokens = True
    return made


def reference_ids(reference, texts):
    return [found.ids for found in reference.encode_batch_fast(texts, add_special_tokens=False)]


def documents(config, seed, count):
    """Texts, tokens, added tokens, halves of them, runs, and any code points, in a row."""
    rng = random.Random(seed)
    vocabulary = list(config["model"]["vocab"])
    added = [token["content"] for token in config["added_tokens"]]
    texts = list(samples.SAMPLES.values())
    runs = [*" \n\t▁=-aé。😀\0\x7f", "ab", "\r\n", "\u0301", "\ufeff", "<0x0A>", "<", "<s>", "\u2028", " \n"]

    def part():
        kind = rng.random()
        if kind < 0.4:
            text = rng.choice(texts)
            at = rng.randrange(len(text))
            return text[at : at + rng.randrange(1, 60)]
        if kind < 0.6:
            return "".join(rng.choices(vocabulary, k=rng.randrange(1, 4)))
        if kind < 0.75:
            token = rng.choice(added)
            return rng.choice(["", "", " ", "x", "\n "]) + token[: rng.choice([99, 99, rng.randrange(len(token))])]
        if kind < 0.87:
            return rng.choice(runs) * rng.choice([1, 1, 2, 3, rng.randrange(1, 80)])
        points = [
            rng.randrange(rng.choice([0x80, 0x800, 0xD800, 0x10000, 0x110000])) for _ in range(rng.randrange(1, 6))
        ]
        return "".join(chr(point) if not 0xD800 <= point < 0xE000 else "x" for point in points)

    return ["".join(part() for _ in range(rng.randrange(1, 12))) for _ in range(count)]
