"""The command doctor: what shardmill finds on this machine, and whether everything works."""

import dataclasses
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

import shardmill
from shardmill.cli.console import plural, print_json, size
from shardmill.cli.failures import ResultError
from shardmill.cli.options import as_json, limits_of, option
from shardmill.errors import ShardmillError
from shardmill.io import storage
from shardmill.spec import Spec
from shardmill.system import compiled, machine
from shardmill.system.names import is_url, show

_LIBRARIES = ("numpy", "pyarrow", "tokenizers", "tiktoken")
_EXTRAS = {"hub": "huggingface_hub", "s3": "s3fs", "gcs": "gcsfs"}
_WRITTEN = 64 << 20
_LITTLE_MEMORY = 1 << 30
# What tokenizers get wrong: contractions, digits, runs of whitespace, scripts without spaces, marks, characters that
# are new, unassigned or private, and text that looks like a special token.
_NASTY = "".join(
    [
        "I'll DON'T y'all've 'S ’s O'Neill's 1234567 ½ ٣٤٥ ³ x1y22z333 a\t\tb  c   \r\n\r\n \n\n\n\v\f\x85\u2028\u3000 ",
        "<|endoftext|><|endofprompt|></s>\0\x01\x7f https://a.b/c?d=%20&e=1#f //n /* */ !=== -- … ———— «»„“ \ufeff\u200b",
        "中文没有空格。日本語のテキスト、한국어 텍스트 ภาษาไทย हिन्दी العربية עברית ქართული Ελληνικά Кириллица ĳ ŉ ẞ ſ İı ǅ",
        "e\u0301 n\u0303\u0303\u0303 👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U000e0041 \U0001fae8 \ue000 \uffff \U0010ffff \u0378 ꟛ 𞤀",
        "a" * 300 + " " * 300 + "\n" * 70 + "é" * 99 + "=" * 200 + "9" * 100,
        *(chr(code) for code in range(0x20, 0x250)),
        *(f" {chr(code)}{chr(code + 1)}" for code in range(0x300, 0x2FA00, 409) if not 0xD7F0 < code < 0xE000),
    ]
).encode()


@dataclass(kw_only=True, slots=True)
class Findings:
    """What there is. A problem must be solved; advice may be taken."""

    versions: dict[str, str | None] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, bool] = field(default_factory=dict)
    machine: dict[str, int] = field(default_factory=dict)
    disk: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


@click.command(epilog="\b\nExample:\n  shardmill doctor -o /big/disk")
@option(Spec, "output", "-o", required=False, default=".", show_default=True, help="The folder whose disk to try.")
@as_json
def doctor(output: str, as_json: bool) -> None:
    """Check that everything works here: versions, engines, memory, disk and cache.

    Every bundled tokenizer encodes a few kilobytes of difficult text, and the tokens are compared with those of its
    reference. 64 MiB are written to the disk, and removed again. The exit code is 0 only if everything works.
    """
    found = Findings()
    found.problems += [*_find_versions(found), *_try_engines(found), *_try_disk(found, output), *_try_cache(found)]
    found.advice += _measure_machine(found)
    content = {"ok": not found.problems, **dataclasses.asdict(found)}
    if not as_json:
        print("\n".join(_lines(found)))
    if found.problems:
        raise ResultError(
            ShardmillError("; ".join([f"{plural(len(found.problems), 'problem')} found", *found.problems])), content
        )
    if as_json:
        print_json(content)
    else:
        print("everything works")


def _find_versions(found: Findings) -> Iterator[str]:
    """What is installed; like the others, notes what it finds and yields the problems."""
    import importlib.metadata  # slow to import, and needed nowhere else
    import importlib.util

    found.versions = {"shardmill": shardmill.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found.versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.versions[name] = None
            yield f"{name} is not installed; run: pip install --force-reinstall shardmill"
    found.extras = {extra: importlib.util.find_spec(module) is not None for extra, module in _EXTRAS.items()}


def _try_engines(found: Findings) -> Iterator[str]:
    """Every bundled tokenizer, on the engine that a job would choose, against its reference."""
    from shardmill.tokens import native
    from shardmill.tokens.tokenizer import ENCODINGS

    yield from (broken := compiled.problems())
    try:
        path = native.cpu_path()
    except ShardmillError as e:
        yield from {str(e)} - {*broken}
        path = None
    source = (Path(shardmill.__file__).parents[2] / "pyproject.toml").is_file()
    tried = {}
    for name in ENCODINGS if path else ():
        try:
            tried[name] = _try_engine(name)
        except Exception as e:  # whatever is broken: that is what is asked
            tried[name] = {"engine": None, "ok": False}
            yield f"tokenizer {name} does not work ({type(e).__name__}: {show(str(e))}); reinstall shardmill"
            continue
        if not tried[name]["ok"]:
            yield f"tokenizer {name}: {tried[name]['engine']} and its reference give different tokens; pass --engine reference, and please report this"
    found.engine = {
        "version": native.version(),
        "cpu_path": path,
        "installed_from": "source" if source else "wheel",
        "tokenizers": tried,
    }


def _try_engine(name: str) -> dict[str, Any]:
    from shardmill.tokens.encoder import Encoder, choose_engines
    from shardmill.tokens.tokenizer import load

    engines = choose_engines(load(name, cache=limits_of({}).cache_folder()), "auto")
    tokens, _ = Encoder(engines).encode([_NASTY])
    return {"engine": engines.name, "ok": tokens.tolist() == engines.reference.encode(_NASTY).tolist()}


def _measure_machine(found: Findings) -> Iterator[str]:
    """Yields advice."""
    found.machine = {name: getattr(machine, name)() for name in ("cores", "memory", "available_memory")}
    if machine.memory() < _LITTLE_MEMORY:
        yield f"this process may use {size(machine.memory())} of memory, which is little; raise the limit of the container or job, or pass --workers 1"


def _try_disk(found: Findings, output: str) -> Iterator[str]:
    folder = storage.existing(Path("." if is_url(output) else output))
    found.disk = {"folder": str(folder.resolve()), "free_bytes": storage.free_bytes(folder), "bytes_per_second": None}
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".shardmill-doctor-") as file:
            started = time.perf_counter()
            for _ in range(_WRITTEN >> 20):
                file.write(os.urandom(1 << 10) * 1024)
            file.flush()
            os.fsync(file.fileno())
            found.disk["bytes_per_second"] = round(_WRITTEN / (time.perf_counter() - started))
    except OSError as e:
        yield f"{show(folder)}: {_WRITTEN >> 20} MiB cannot be written there ({e.strerror}); choose another folder with -o, or free some space"


def _try_cache(found: Findings) -> Iterator[str]:
    folder = limits_of({}).cache_folder()
    found.cache = {"folder": str(folder), "writable": True}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as e:
        found.cache["writable"] = False
        yield f"{show(folder)}: the cache folder cannot be written to ({e.strerror}); set XDG_CACHE_HOME to a folder that can"


def _lines(found: Findings) -> Iterator[str]:
    engine, rate = found.engine, found.disk["bytes_per_second"]
    libraries = ", ".join(f"{name} {version or 'missing'}" for name, version in found.versions.items())
    yield f"versions   {libraries}"
    yield f"engine     {engine['version']} ({engine['cpu_path']}), installed from {engine['installed_from']}"
    for name, tried in engine["tokenizers"].items():
        verdict = "same tokens as its reference" if tried["ok"] else "FAILS"
        yield f"           {name} on {tried['engine']}: {verdict}"
    for extra, there in found.extras.items():
        yield f"extra      {extra}: " + ("installed" if there else f"missing; pip install 'shardmill[{extra}]'")
    yield f"machine    {plural(found.machine['cores'], 'core')}, {size(found.machine['memory'])} of memory, {size(found.machine['available_memory'])} available"
    speed = f"{rate / 1e6:,.0f} MB/s" if rate else "cannot be written to"
    yield f"disk       {show(found.disk['folder'])}: {size(found.disk['free_bytes'])} free, {speed}"
    yield f"cache      {show(found.cache['folder'])}" + ("" if found.cache["writable"] else ": cannot be written to")
    yield from (f"advice     {advice}" for advice in found.advice)
    yield from (f"PROBLEM    {problem}" for problem in found.problems)
