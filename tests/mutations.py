"""JSON → the same with something in it replaced, removed, doubled or nested: what a stranger or a bad disk might make of it."""

import copy

from hypothesis import strategies as st

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, 2**63, -(2**63), 10**300, 1e308, float("nan"), float("inf")])
    | st.text(max_size=8)
    | st.sampled_from(
        ["../x", "/etc/passwd", "train.bin", "train/index.json", "\x1b[2J", "\ud800", "uint64", "litdata"]
    )
)
NAMES = [
    "train.bin",
    "val.bin",
    "val.ends",
    "train",
    "val",
    "uint16",
    "uint32",
    "before",
    "none",
    "ends",
    "megatron-index",
    "mds",
    "nanogpt",
    "cl100k_base",
    "someone/model",
    "manifest.inputs.jsonl",
    "rejects.jsonl",
    "rejects",
    "hash",
]
ANY = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def alike(value):
    """Another value of the same type, which a check of types alone lets pass."""
    match value:
        case bool():
            return st.booleans()
        case int():
            return st.integers(0, 40) | st.integers(0, 2**63 - 1)
        case float():
            return st.floats(0, 1)
        case str():
            return st.sampled_from(NAMES)
        case _:
            return st.just(value)


def places(value, at=()):
    """The way to everything in it."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


@st.composite
def mutated(draw, value):
    """One to three changes."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        there = [at for at in places(value) if at]
        if not there:
            break
        *way, last = draw(st.sampled_from(there))
        inside = value
        for key in way:
            inside = inside[key]
        match draw(st.sampled_from(["vary", "vary", "vary", "replace", "replace", "remove", "add", "nest"])):
            case "vary":
                inside[last] = draw(alike(inside[last]))
            case "replace":
                inside[last] = draw(ANY)
            case "remove":
                del inside[last]
            case "nest":
                for _ in range(draw(st.sampled_from([1, 50, 150]))):
                    inside[last] = [inside[last]]
            case "add" if isinstance(inside, dict):
                inside[draw(st.text(max_size=6))] = draw(ANY)
            case "add":
                inside.append(copy.deepcopy(inside[last]))
    return value
