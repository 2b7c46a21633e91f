"""A tokenizer's name → what it is: its vocabulary, pattern and special tokens, whichever engine runs it."""

import binascii
import contextlib
import difflib
import gc
import hashlib
import itertools
import json
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from shardmill.errors import TemporaryError, UsageError
from shardmill.system.names import show
from shardmill.tokens import native, stored, tables
from shardmill.tokens.compile import byte_alphabet, compile_encoding, compile_json, spelled
from shardmill.tokens.cuts import Cuts, Family, adjacent_bytes
from shardmill.tokens.families import family_of
from shardmill.tokens.model import Model
from shardmill.tokens.names import BUNDLED, ON_THE_HUB, resolve
from shardmill.tokens.neighbours import neighbours


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """One of OpenAI's published encodings, whose vocabulary ships with this package."""

    family: Family
    pattern: str
    specials: dict[str, int]
    sha256: str


# The patterns as tiktoken 0.14 writes them; a test compares them with the installed tiktoken.
ENCODINGS = {
    "r50k_base": Encoding(
        family="gpt2",
        pattern=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
        specials={"<|endoftext|>": 50256},
        sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    ),
    "cl100k_base": Encoding(
        family="cl100k",
        pattern=r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
        specials={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": Encoding(
        family="o200k",
        pattern="|".join(
            [
                r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
                r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
                r"""\p{N}{1,3}""",
                r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
                r"""\s*[\r\n]+""",
                r"""\s+(?!\S)""",
                r"""\s+""",
            ]
        ),
        specials={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}

# Names of end-of-text tokens in the wild. Two of them in one tokenizer are ambiguous: then the user decides.
_EOT_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "<\uff5cend▁of▁sentence\uff5c>",  # DeepSeek's, with full-width bars
    "<|endofdocument|>",
)

# If the model sets one of these, its tokens are not the bytes that the vocabulary spells.
_ODD_KEYS = ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
_MOST_ID = 1 << 24
# The largest in use, with 262,144 tokens, has 33 MB.
_MOST_FILE_BYTES = 256 << 20
# The memory that loading takes, here and in the tokenizers library: the text, at up to four bytes a character, and
# for each comma, which stands for a token or half a merge, 140 to 250 bytes.
_BYTES_PER_BYTE, _BYTES_PER_ENTRY = 4, 256
_BYTES_PER_RANK = 384  # of a tiktoken encoding; measured: 190 to 340
_BEFORE_LOADING = 128 << 20  # the process itself, and the tables of our engine
_QUIET_SECONDS = 5.0
_TRY_AGAIN = (408, 429)  # HTTP status of a timeout, and of too many requests

_log = logging.getLogger("shardmill")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer, whichever engine runs it. Two with the same digest give the same tokens for every text."""

    name: str
    kind: Literal["tiktoken", "huggingface"]
    source: Path
    digest: str
    size: int
    """One more than the largest id, special tokens included."""
    specials: dict[str, int]
    cuts: Cuts
    model: Model | str = field(repr=False, compare=False)
    """What our engine needs to know of it, or why that engine cannot run it."""
    memory: int
    """The most bytes that loading it takes, here and in the reference."""
    cache: Path | None = field(default=None, repr=False, compare=False)
    """Where what is made of it is kept."""

    @property
    def family(self) -> Family:
        return self.cuts.family


def load(name: str, most_bytes: float = math.inf, cache: Path | None = None) -> Tokenizer:
    """The tokenizer of this name, from a tokenizer.json (or its folder) at this path, or with this hub id.

    One whose loading would take more than most_bytes of memory is refused first. With a cache folder, what was compiled
    is kept there, and taken from there the next time.
    """
    if cache is not None:
        tables.look_in(cache)
    if name in ENCODINGS or name in BUNDLED:
        return _load_encoding(BUNDLED.get(name, name), cache)
    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.is_file():
        return _load_json(name, path, most_bytes, cache)
    name = resolve(name)
    if name in ENCODINGS:
        return _load_encoding(name, cache)
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        raise UsageError(f"tokenizer {show(name)}: no such file; check the path")
    if name.count("/") != 1:
        known = [*BUNDLED, *ENCODINGS, *ON_THE_HUB]
        meant = difflib.get_close_matches(name, known, 1)
        names = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(known)}"
        raise UsageError(
            f"tokenizer {show(name)}: not a known name, an existing tokenizer.json or a hub id like openai-community/gpt2; {names}"
        )
    return _load_json(name, _download(name), most_bytes, cache)


def load_recorded(name: str, digest: str) -> Tokenizer | None:
    """The tokenizer.json that a manifest names, if it is on this disk with this SHA-256. The manifest may be a stranger's,
    so nothing else is read, and no server asked."""
    path = Path(name)
    with contextlib.suppress(OSError, ValueError):
        path = path / "tokenizer.json" if path.is_dir() else path
        small = path.is_file() and path.stat().st_size <= _MOST_FILE_BYTES
        if small and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return _load_json(name, path, math.inf, None)
    return None


@lru_cache(maxsize=1)
def read_ranks(encoding: str) -> dict[bytes, int]:
    """The vocabulary of one of OpenAI's encodings: the bytes and id of each token. Cached until the reference has it."""
    words = vocabulary_file(encoding).read_bytes().split()
    return dict(zip(map(binascii.a2b_base64, words[::2]), map(int, words[1::2]), strict=True))


def vocabulary_file(encoding: str) -> Path:
    return Path(str(resources.files("shardmill") / "vocab" / f"{encoding}.tiktoken"))


def end_of_text(tokenizer: Tokenizer, eot_token: str | None) -> int:
    """The id of the end-of-text token; otherwise an error that says how to name one."""
    if eot_token is not None:
        if eot_token not in tokenizer.specials:
            raise UsageError(
                f"--eot-token {eot_token!r}: tokenizer {show(tokenizer.name)} has no such special token; it has {_listed(tokenizer.specials)}"
            )
        return tokenizer.specials[eot_token]
    known = [name for name in _EOT_NAMES if name in tokenizer.specials]
    if len(known) == 1:
        return tokenizer.specials[known[0]]
    why = (
        f"has several tokens that could be its end-of-text token: {_listed(known)}"
        if known
        else f"has no end-of-text token of a known name; its special tokens are {_listed(tokenizer.specials)}"
    )
    raise UsageError(f"tokenizer {show(tokenizer.name)} {why}. Choose one with --eot-token, or pass --eot none")


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(show(name) for name in list(names)[:20])
    return (shown + (" …" if len(names) > 20 else "")) or "none"


def _load_encoding(encoding: str, cache: Path | None = None) -> Tokenizer:
    known, file = ENCODINGS[encoding], vocabulary_file(encoding)
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != known.sha256:
        raise UsageError(
            f"{show(file)}: the vocabulary is damaged (its SHA-256 is not the published one); reinstall shardmill"
        )

    def make() -> Tokenizer:
        ranks = read_ranks(encoding)
        return Tokenizer(
            name=encoding,
            kind="tiktoken",
            source=file,
            digest=known.sha256,
            size=max(*ranks.values(), *known.specials.values()) + 1,
            specials=dict(known.specials),
            cuts=Cuts(known.family, ranks),
            model=compile_encoding(ranks, known.pattern),
            memory=_BYTES_PER_RANK * len(ranks),
        )

    return _kept(cache, encoding, file, known.sha256, make)


def _load_json(name: str, path: Path, most_bytes: float, cache: Path | None) -> Tokenizer:
    try:
        size = path.stat().st_size
        if size > _MOST_FILE_BYTES:
            raise UsageError(f"{show(path)}: has {size:,} bytes, more than any tokenizer.json; check the path")
        _refuse_beyond(most_bytes, path, size, _memory_to_load(size, 0))
        raw = path.read_bytes()
        memory = _memory_to_load(size, raw.count(b","))
        _refuse_beyond(most_bytes, path, size, memory)
        digest = hashlib.sha256(raw).hexdigest()
        memory -= _BEFORE_LOADING
        with _no_collection():
            return _kept(cache, name, path, digest, lambda: _parse(json.loads(raw), name, path, digest, memory))
    except OSError as e:
        raise UsageError(
            f"{show(path)}: cannot be read: {e.strerror}; check its permissions, or copy it elsewhere"
        ) from e
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise UsageError(
            f"{show(path)}: not a tokenizer.json of the tokenizers library, or damaged ({type(e).__name__}: {show(str(e))}); check the path, or download it again"
        ) from e


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A million lists and strings are no garbage; looking for some among them takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _kept(cache: Path | None, name: str, source: Path, digest: str, make: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer from the cache folder; otherwise it is made, and stored there."""
    found = stored.read(cache, digest) if cache else None
    if found is not None:
        facts, arrays = found
        cuts = Cuts(facts.pop("family"), adjacent=arrays["adjacent"])
        compiled = facts.pop("model")
        compiled = compiled if isinstance(compiled, str) else stored.to_model(compiled, arrays)
        return Tokenizer(name=name, source=source, digest=digest, cuts=cuts, model=compiled, cache=cache, **facts)
    made = replace(make(), cache=cache)
    if cache:
        if not isinstance(made.model, str):
            made = replace(made, model=native.with_live(made.model))
        facts = {key: getattr(made, key) for key in ("kind", "size", "specials", "family", "memory")}
        compiled, arrays = (made.model, {}) if isinstance(made.model, str) else stored.from_model(made.model)
        stored.write(cache, digest, {**facts, "model": compiled}, {**arrays, "adjacent": made.cuts.adjacent})
    return made


def _refuse_beyond(most_bytes: float, path: Path, size: int, needed: int) -> None:
    if needed > most_bytes:
        raise UsageError(
            f"{show(path)}: a tokenizer of {size:,} bytes takes up to {needed >> 20}MiB to load, and --max-memory allows {int(most_bytes) >> 20}MiB; pass --max-memory {(needed >> 20) + 1}MiB or more"
        )


def _memory_to_load(size: int, entries: int) -> int:
    return _BEFORE_LOADING + _BYTES_PER_BYTE * size + _BYTES_PER_ENTRY * entries


def _parse(config: dict[str, Any], name: str, source: Path, digest: str, memory: int) -> Tokenizer:
    model, added = config["model"], [token for token in config.get("added_tokens") or [] if token["content"] != ""]
    vocabulary = _vocabulary(model)
    ids = [*vocabulary.values(), *(token["id"] for token in added)]
    if not all(type(number) is int and 0 <= number < _MOST_ID for number in ids):
        raise ValueError("an id is not an integer from 0 to 2^24")
    if not all(isinstance(token["content"], str) for token in added):
        raise ValueError("an added token is not a string")
    "".join(token["content"] for token in added).encode()  # half a character is none
    if model.get("dropout"):
        raise UsageError(
            f'{show(source)}: its model has dropout, so it gives different tokens each time; set "dropout" to null in the file'
        )
    found = compile_json(config, vocabulary)
    if not isinstance(found, str) and found.scheme == "sentencepiece":
        cuts = Cuts("sentencepiece", adjacent=neighbours(found))
    else:
        cuts = _cuts(config, vocabulary, [token for token in added if not token.get("special")], show(source))
    return Tokenizer(
        name=name,
        kind="huggingface",
        source=source,
        digest=digest,
        size=max(ids) + 1,
        specials={token["content"]: token["id"] for token in added if token.get("special")},
        cuts=cuts,
        model=found,
        memory=memory,
    )


def _cuts(config: dict[str, Any], vocabulary: dict[str, int], added: list[dict[str, Any]], path: str) -> Cuts:
    """Where text can be cut, given the added tokens that are not special."""
    model, family = config["model"], family_of(config, path)
    if added and family != "unknown":
        family = "spaces" if all(map(_stands_alone, added)) else "unknown"
    # Half a word may be a token that no merge makes: ignore_merges finds it where the word is cut, and only there.
    is_bytes = (model.get("type") or "BPE") == "BPE" and not any(map(model.get, (*_ODD_KEYS, "ignore_merges")))
    # What has no token is dropped or fused with its neighbours, so bytes meet that were not adjacent in the text.
    is_bytes = is_bytes and vocabulary.keys() >= byte_alphabet().keys()
    tokens = spelled(list(vocabulary))[0] if is_bytes else None
    return Cuts(family, adjacent=None if tokens is None else adjacent_bytes(tokens.joined, tokens.offsets[1:]))


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram's, with scores
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    if not vocabulary or not all(isinstance(token, str) for token in vocabulary):
        raise ValueError("the vocabulary is empty, or a token is not a string")
    found: dict[str, int] = vocabulary
    return found


def _stands_alone(token: dict[str, Any]) -> bool:
    """Whether an added token, which is found in the text before all else, is found in text cut at a space or line too."""
    content: str = token["content"]
    crosses = any(after == " " and not before.isspace() for before, after in itertools.pairwise(content))
    crosses |= any(before == "\n" and not after.isspace() for before, after in itertools.pairwise(content))
    alone = not token.get("single_word") or not any(map(str.isspace, content))
    return alone and not crosses and not token.get("lstrip") and not token.get("rstrip")


def _download(name: str) -> Path:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        with _one_warning(f"tokenizer {show(name)}: the hub has not sent it yet; still trying"):
            return Path(hf_hub_download(name, "tokenizer.json"))
    except RepositoryNotFoundError as e:
        why = "no such model on the hub, or it is private; check the name, or log in with `hf auth login`"
        raise UsageError(f"tokenizer {show(name)}: {why}") from e
    except ValueError as e:
        why = f"the hub does not accept this name ({_cause(e)}); check the spelling"
        raise UsageError(f"tokenizer {show(name)}: {why}, or give the path of a tokenizer.json instead") from e
    except Exception as e:  # no answer, or a broken connection: of what kind, depends on the library's version
        if isinstance(e, EntryNotFoundError) and not isinstance(e, LocalEntryNotFoundError):
            raise UsageError(
                f"tokenizer {show(name)}: this model has no tokenizer.json; convert its tokenizer with the tokenizers library and give the path of the file"
            ) from e
        status = getattr(getattr(e.__cause__ or e, "response", None), "status_code", 0)
        if constants.HF_HUB_OFFLINE or (400 <= status < 500 and status not in _TRY_AGAIN):
            why = (
                "HF_HUB_OFFLINE forbids to download it; unset that"
                if not status
                else f"the hub refuses it (HTTP status {status}); log in with `hf auth login`"
            )
            raise UsageError(f"tokenizer {show(name)}: {why}, or give the path of a tokenizer.json instead") from e
        raise TemporaryError(
            f"tokenizer {show(name)}: the hub cannot be reached ({_cause(e)}); run the same command again later, or give the path of a tokenizer.json instead"
        ) from e


@contextlib.contextmanager
def _one_warning(message: str) -> Iterator[None]:
    """What takes long is told once, instead of by the eleven warnings of huggingface_hub's retries."""
    library = logging.getLogger("huggingface_hub")
    level, late = library.level, threading.Timer(_QUIET_SECONDS, _log.warning, [message])
    library.setLevel(logging.ERROR)
    late.start()
    try:
        yield
    finally:
        late.cancel()
        library.setLevel(level)


def _cause(e: BaseException) -> str:
    """What went wrong in the first place, on one line."""
    while e.__cause__ is not None:
        e = e.__cause__
    return show(" ".join(str(e).split())[:200] or type(e).__name__)
