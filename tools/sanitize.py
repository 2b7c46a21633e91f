"""`make sanitize`: random and hostile input for the C, built with AddressSanitizer and UBSan, then with ThreadSanitizer.

Every buffer is allocated at its exact size, so that reading or writing one byte too far is an error.
"""

import argparse
import ctypes
import json
import os
import platform
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, byref, c_int64, c_uint8, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pyarrow as pa
import sanitize_pieces
import sanitize_ranges

from shardmill.documents import native as documents
from shardmill.documents.columnar import native as pages
from shardmill.io import zstd
from shardmill.system import compiled
from shardmill.tokens import layout, native
from shardmill.tokens.model import Model, Shape
from shardmill.tokens.tokenizer import read_ranks

if sys.version_info >= (3, 14):
    from compression import zstd as packing
else:
    from backports import zstd as packing

ROOT = Path(__file__).parent.parent
LIBRARIES: list[Path] = runpy.run_path(str(ROOT / "hatch_build.py"))["LIBRARIES"]
_SAMPLES = runpy.run_path(str(ROOT / "tests/samples.py"))
SHAPES: dict[str, Shape] = runpy.run_path(str(ROOT / "tests/patterns.py"))["SHAPES"]
ALL: str = _SAMPLES["ALL"]
NASTY: list[str] = _SAMPLES["NASTY"]

# kind → compiler flags, the library that must be loaded first, and its settings.
KINDS = {
    "address": ("address,undefined", "libasan.so", {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0"}),
    "thread": ("thread", "libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0"}),
}
_WINDOW = 16384  # the engine takes text apart in windows of this size
_THREADS = 8
_TOKENS = 4000
_BITS = [
    b'"text"', b'"text"', b'"a"', b":", b":", b",", b",", b"{", b"}", b"[", b"]", b" ", b"\n", b"\\", b"\\u0061", b"\\ud83d", b"\\ude00",
    b'"', b'"x"', b'"\\ud83d\\ude00"', b'"t\\u0065xt"', b"0", b"-", b"1.5e5", b"1.", b"true", b"nul", b"\0", b"\xff", "é😀".encode(),
    b'{"text": "a"}\n', b'{"a": {"text": "b"}}\n', b"[" * 70,
]  # fmt: skip


def compiler() -> str:
    return os.environ.get("CC", "cc")


def runtime(kind: str) -> str | None:
    """The sanitizer's library, or None if this compiler comes without one."""
    return _library(KINDS[kind][1])


def _library(name: str) -> str | None:
    try:
        command = [compiler(), f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return found if Path(found).is_absolute() else None


def build(kind: str, folder: Path) -> None:
    """Compile every library into the folder, with the sanitizers of one kind."""
    flags = ["-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-pthread"]
    sanitizers = [f"-fsanitize={KINDS[kind][0]}", "-fno-sanitize-recover=all"]
    for library in LIBRARIES:
        sources = map(str, sorted((ROOT / library).parent.glob("*.c")))
        subprocess.run([compiler(), *flags, *sanitizers, "-o", str(folder / library.name), *sources], check=True)
    sanitize_pieces.write_configs(folder)
    sanitize_ranges.write_configs(folder)


def run(kind: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run this file as a child with the sanitizer loaded; its errors are on stderr."""
    env = {
        **os.environ,
        **KINDS[kind][2],
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LD_PRELOAD": f"{runtime(kind)} {_library('libstdc++.so.6')}",  # Arrow throws, and the sanitizer looks at that
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
        # the threads and the memory of other libraries have races, in code that no sanitizer knows
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # ThreadSanitizer of older compilers cannot run at addresses that newer kernels choose
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    command = [*fixed, sys.executable, __file__, "--child", kind, "--folder", str(folder), *options]
    return subprocess.run(command, env=env, capture_output=True, text=True)


class Memory:
    """Buffers of the C library, each of exactly the size that was asked for, freed together."""

    def __init__(self) -> None:
        self._libc = CDLL(None)
        self._libc.malloc.restype, self._libc.malloc.argtypes = c_void_p, [ctypes.c_size_t]
        self._libc.free.restype, self._libc.free.argtypes = None, [c_void_p]
        self._taken: list[int] = []

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._taken:
            self._libc.free(buffer)

    def room(self, size: int) -> int:
        self._taken.append(self._libc.malloc(size))
        return self._taken[-1]

    def copy(self, data: bytes) -> int:
        buffer = self.room(len(data))
        ctypes.memmove(buffer, data, len(data))
        return buffer


def _models() -> list[Model]:
    """Every shape over the first tokens of GPT-2, by a list of merges or without one, with ids of each size."""
    ranks = {token: rank for token, rank in read_ranks("r50k_base").items() if rank < _TOKENS}
    merges = [
        (token[:i], token[i:]) for token in ranks for i in range(1, len(token)) if {token[:i], token[i:]} < ranks.keys()
    ]
    steps = [1, 1 << 5, 1 << 8, (1 << 20) // _TOKENS]
    return [
        Model.of(
            {token: steps[i % len(steps)] * rank for token, rank in ranks.items()},
            merges if i % 3 else None,
            scheme="bytes",
            shape=shape,
            whole_words=i % 2 == 0,
        )
        for i, shape in enumerate(SHAPES.values())
    ]


class Engine:
    """The native engine of a sanitized library."""

    def __init__(self, library: CDLL, model: Model, *, path: str, small: bool = False) -> None:
        library.engine_new.restype = c_void_p
        library.engine_encode.restype = library.engine_words.restype = c_int64
        given, arrays = native.given_to_engine(model, path=path, small=small)
        with Memory() as memory:
            vocabulary = given.vocabulary
            for name, array in arrays.items():
                setattr(given if name == "classes" else vocabulary, name, memory.copy(array.tobytes()))
            live = memory.room(12 * vocabulary.count)
            assert not library.engine_live(ctypes.byref(vocabulary), ctypes.c_int(0), c_void_p(live)), "no merges"
            vocabulary.live = live
            made = library.engine_new(ctypes.byref(given))
        assert made, "no engine"
        self._library, self._engine = library, c_void_p(made)
        self._tokens = {number: token for token, number in model.vocabulary.items()}
        self._bytes = 2 if max(self._tokens) < 1 << 16 else 4

    def encode(self, pieces: list[bytes]) -> list[int]:
        """The ids of all pieces."""
        with Memory() as memory:
            texts = np.array([memory.copy(piece) for piece in pieces], np.uint64).tobytes()
            sizes = np.array([len(piece) for piece in pieces], np.int64).tobytes()
            ids = memory.room(self._bytes * (sum(map(len, pieces)) + 16))
            counts = memory.room(8 * len(pieces))
            given = c_void_p(memory.copy(texts)), c_void_p(memory.copy(sizes)), c_int64(len(pieces))
            total = self._library.engine_encode(self._engine, *given, c_void_p(ids), c_void_p(counts))
            assert total >= 0
            written = np.frombuffer(ctypes.string_at(ids, self._bytes * total), f"<u{self._bytes}")
            return [int(number) for number in written]

    def words(self, text: bytes, *, scalar: bool) -> bytes:
        """The sizes of all words."""
        with Memory() as memory:
            sizes = memory.room(8 * len(text) + 8)
            given = c_void_p(memory.copy(text)), c_int64(len(text)), ctypes.c_int(scalar)
            return ctypes.string_at(sizes, 8 * self._library.engine_words(self._engine, *given, c_void_p(sizes)))

    def free(self) -> None:
        self._library.engine_free(self._engine)

    def decode(self, ids: list[int]) -> bytes:
        return b"".join(map(self._tokens.__getitem__, ids))


def _text(rng: random.Random) -> bytes:
    """Some text, from nothing to four windows long, with nasty characters in it."""
    size = rng.choice([0, 1, rng.randrange(70), rng.randrange(600), _WINDOW + rng.randrange(-130, 130), 4 * _WINDOW])
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        at = rng.randrange(len(ALL))
        parts += [*rng.choices(NASTY, k=rng.randrange(4)), ALL[at : at + rng.randrange(1, 300)]]
        parts += [rng.choice(NASTY) * rng.randrange(200)] * (rng.random() < 0.05)
        parts += [rng.choice(NASTY) * 2 * _WINDOW] * (rng.random() < 0.002)
    return "".join(parts)[:size].encode()


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Cut, or with bytes replaced: no longer UTF-8, or no longer JSON."""
    damaged = bytearray(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data)
    for _ in range(rng.randrange(5) if damaged else 0):
        damaged[rng.randrange(len(damaged))] = rng.choice([rng.randrange(256), 0xFF, 0xF4, 0xE4, 0x22, 0x5C, 0x20])
    return bytes(damaged)


def _lines(rng: random.Random) -> bytes:
    """Some lines of JSON, whole or nearly."""
    if rng.random() < 0.3:
        return b"".join(rng.choices(_BITS, k=rng.randrange(20)))
    record = {"a": [1, -2.5e3, {"b": '\\"/'}], "text": _text(rng).decode()[: rng.choice([5, 40, 2000])] or "x"}
    lines = (json.dumps({"n": i, **record}, ensure_ascii=rng.random() < 0.5) for i in range(rng.randrange(1, 4)))
    data = "\n".join(lines).encode()
    return data if rng.random() < 0.3 else _damaged(rng, data)


def scan(library: CDLL, data: bytes, path: list[bytes], *, beyond: int = 0) -> None:
    """lines_texts on buffers of exactly the sizes it is promised; `beyond`: lie about the size of the data."""
    with Memory() as memory:
        ends = memory.copy(np.cumsum([len(name) for name in path], dtype=np.int64).tobytes())
        count = data.count(b"\n") + (not data.endswith(b"\n"))
        field = memory.copy(b"".join(path)), ends, len(path)
        made = (memory.room(size) for size in (len(data) + 16, 8 * count, 8 * count, 8 * count, count))
        given = memory.copy(data), len(data) + beyond, count, *field, *made, 300, 7, memory.room(8 * count)
        library.lines_texts(byref(documents.Lines(*given)))


def ask(library: CDLL, texts: list[bytes], separator: bytes) -> None:
    """What documents/native/texts.c tells of many texts, and of the first of them."""
    with Memory() as memory:
        places = [memory.copy(text) for text in texts]
        pointers, sizes = memory.copy(np.array(places, np.uint64).tobytes()), [len(text) for text in texts]
        given = c_void_p(pointers), c_void_p(memory.copy(np.array(sizes, np.int64).tobytes())), c_int64(len(texts))
        library.texts_invalid(*given, c_void_p(memory.room(len(texts))))
        library.texts_hashes(*given, c_int64(300), c_uint64(7), c_void_p(memory.room(8 * len(texts))))
        first, found = (c_void_p(places[0]), c_int64(sizes[0])), c_void_p(memory.room(8 * 5))
        library.texts_are_utf8(*first)
        odd, keys = c_void_p(memory.copy(bytes(len(texts)))), c_void_p(memory.room(8 * len(texts)))
        library.texts_examine(*given, odd, c_int64(300), c_uint64(7), keys)
        library.texts_lines(*first, c_uint8(10), c_int64(3), c_int64(20), c_int64(1), c_void_p(memory.room(8)))
        library.texts_separators(*first, c_void_p(memory.copy(separator)), c_int64(len(separator)), found, c_int64(5))
        library.texts_plain(*first, found, c_int64(5))


def read_page(library: CDLL, rng: random.Random) -> None:
    """pages_header and pages_rows on bytes that are nearly pages."""
    with Memory() as memory:
        some = [
            bytes(rng.choice([0, 1, 3, 8, 21, 40, rng.randrange(256)]) for _ in range(rng.randrange(60)))
            for _ in range(4)
        ]
        library.pages_header(c_void_p(memory.copy(some[0])), c_int64(len(some[0])), c_void_p(memory.room(8 * 7)))
        ends = np.cumsum([rng.randrange(4, 30) for _ in range(9)]).astype(np.uint32)
        runs = [(memory.copy(data), 0, len(data), rng.choice([0, 1, 4, 31, 32]), 0, 0, 0) for data in some[1:3]]
        values = memory.copy(some[3]), 0, len(some[3]), memory.copy(ends.tobytes()) if rng.random() < 0.5 else None, 9
        page = pages.PageRows(*runs, rng.randrange(2), 20, *values, -1, 0, -1, 0)
        window = pages.Window(7, 20)
        window.texts, window.sizes, window.null = memory.room(8 * 7), memory.room(8 * 7), memory.room(7)
        for _ in range(30):
            library.pages_rows(byref(page), byref(window))
            if page.why > pages.LONG:
                break
            window.count = window.size = 0


def _page(kind: int, values: int, encoding: int, body: bytes) -> bytes:
    """A page of Parquet without compression, behind its header."""
    numbers = [bytes([0x15, 2 * n & 127 | 128, n >> 6]) for n in (kind, len(body), len(body), values, encoding, 3, 3)]
    inner = b"\x4c" if kind == pages.DICTIONARY else b"\x2c"
    return b"".join([*numbers[:3], inner, *numbers[3:], b"\0\0", body])


def read_chunk(library: CDLL, rng: random.Random, folder: Path) -> None:
    """chunks_take on pages that are as they should be, or nearly, of two chunks, in buffers of exactly these sizes."""
    words = [bytes(rng.randrange(97, 123) for _ in range(rng.randrange(30))) for _ in range(6)]
    plain = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    numbers = b"\x03\x0c\x02" + b"\x03" + bytes(rng.randrange(256) for _ in range(3))  # 6 times 2, and eight numbers
    levels = b"\x02\0\0\0\x0c\x01" if rng.random() < 0.5 else b""
    coded = [_page(0, 6, 8, levels + numbers), _page(0, 6, 0, levels + plain)]
    dictionary, more = _page(2, 6, 0, plain), rng.choices(coded, k=2)
    chunk = b"".join([b"\0", dictionary, *more])  # nothing begins at byte 0
    data = chunk if rng.random() < 0.3 else _damaged(rng, chunk)
    (file := folder / "chunks").write_bytes(data)
    with Memory() as memory, file.open("rb") as opened:
        places = np.array([(1, len(data), 12, 0), (1 + len(dictionary) + len(more[0]), len(data), 6, 1)], np.int64)
        given = pages.Chunks(file=opened.fileno(), chunk_count=2, chunk=-1, top=bool(levels), words_room=6, largest=200)
        given.chunks, given.ends = memory.copy(places.tobytes()), memory.room(4 * 6)
        given.data_room, given.data_usual = rng.choice([60, 100, len(data)]), rng.choice([1, 40, 300])
        given.data, window = memory.room(given.data_room), pages.Window(5, 20)
        window.texts, window.sizes, window.null = memory.room(8 * 5), memory.room(8 * 5), memory.room(5)
        window.room = 70
        for _ in range(40):
            if not given.has_page:
                given.out_room, given.used = rng.choice([40, 100, 300]), 0
                given.out = memory.room(given.out_room)
            if library.chunks_take(byref(given), byref(window)) not in (pages.FULL, pages.LONG, pages.MORE):
                break
            window.count = window.size = 0
        for place in places:
            out = memory.room(3 * ctypes.sizeof(pages.FoundPage))
            library.chunks_pages(*map(c_int64, (given.file, memory.copy(place.tobytes()), out, 3)))


def unsnap(library: CDLL, rng: random.Random) -> None:
    """snappy_decompress on what is whole or damaged, in buffers of exactly these sizes."""
    text = _text(rng)[: rng.choice([0, 5, 70, 9000])] * rng.choice([1, 1, 9])
    packed: bytes = pa.Codec("snappy").compress(text, asbytes=True)
    data = packed if rng.random() < 0.3 else _damaged(rng, packed)
    room = max(0, len(text) + rng.choice([0, 0, -1, 1, 100]))
    library.snappy_decompress.restype = ctypes.c_size_t
    with Memory() as memory:
        done = library.snappy_decompress(*map(c_int64, (memory.room(room), room, memory.copy(data), len(data))))
        assert data != packed or done == (len(text) if room >= len(text) else ctypes.c_size_t(-1).value)


def unpack(library: CDLL, rng: random.Random, folder: Path) -> None:
    """unzstd_take on frames that are whole or damaged, in buffers of exactly these sizes."""
    texts = [_text(rng)[: rng.choice([0, 50, 9000])] for _ in range(rng.randrange(1, 4))]
    packed = b"".join(map(packing.compress, texts))
    data = packed if rng.random() < 0.3 else _damaged(rng, packed)
    (file := folder / "frames.zst").write_bytes(data)
    functions = zstd.library()
    assert functions is not None, "zstd does not show its functions"
    with Memory() as memory, file.open("rb") as opened:
        given = zstd.Given(file=opened.fileno(), file_size=len(data), marks_room=rng.choice([1, 5]))
        given.block, given.step = rng.choice([33, 97, 4096]), rng.choice([1, 301, 5000])
        given.decompress, given.is_error = zstd.function("ZSTD_decompressStream"), zstd.function("ZSTD_isError")
        given.data, given.marks = memory.room(given.block + zstd.HEAD), memory.room(16 * given.marks_room)
        given.context, found, why = functions.ZSTD_createDCtx(), b"", 0
        while why <= zstd.ENDED and library.unzstd_head(byref(given)):
            why = zstd.MORE
            while why == zstd.MORE:
                wanted = rng.choice([1, 500, 20_000])
                out = memory.room(wanted + given.step)
                why = library.unzstd_take(byref(given), c_void_p(out), c_int64(wanted))
                found += ctypes.string_at(out, given.text)
        functions.ZSTD_freeDCtx(given.context)
    assert data != packed or found == b"".join(texts)


def lay(library: CDLL, rng: random.Random) -> None:
    """layout_block on buffers of exactly the sizes it is promised."""
    pieces, wide = rng.randrange(9), rng.choice([2, 4])
    counts, eot = [rng.randrange(6) for _ in range(pieces)], rng.choice([-1, 9])
    total, apart = sum(counts), rng.random() < 0.5
    with Memory() as memory:
        flags = [memory.copy(bytes(rng.randrange(2) for _ in range(pieces))) for _ in range(3)]
        numbers = [memory.copy(np.array(each, np.int64).tobytes()) for each in (counts, range(pieces))]
        some = [flag if rng.random() < 0.7 else None for flag in flags[:2]]
        made = memory.room(wide * (total + pieces)), *(memory.room(size * 8 * pieces) for size in (1, 1, 1, 4))
        given = memory.copy(bytes(2 * total)), *numbers, *some, flags[2], *made
        library.layout_block(byref(layout.Given(*given, pieces, 2, wide, eot, rng.randrange(2), apart)))


def address(folder: Path, rng: random.Random) -> Callable[[], None]:
    """A round for AddressSanitizer and UBSan: one shape on all code paths of the engine, and the JSON parser."""
    library, lines, models = CDLL(str(folder / "engine.so")), CDLL(str(folder / "lines.so")), _models()
    unzstd = CDLL(str(folder / "unzstd.so"))
    unzstd.unzstd_head.restype = unzstd.unzstd_take.restype = c_int64

    pieces_once = sanitize_pieces.address(folder, rng, Memory, _damaged)
    ranges_once = sanitize_ranges.once(folder, rng, _text, _damaged, Memory)
    engines: list[Engine] = []

    def once() -> None:
        pieces_once()
        ranges_once()
        lay(library, rng)
        if rng.random() < 0.05 or not engines:
            while engines:
                engines.pop().free()
            model = rng.choice(models)
            engines.extend(Engine(library, model, path=path) for path in native.cpu_paths())
        pieces = [_text(rng) for _ in range(rng.randrange(1, 6))]
        encoded = [engine.encode(pieces) for engine in engines]
        assert all(ids == encoded[0] for ids in encoded) and engines[0].decode(encoded[0]) == b"".join(pieces)
        for engine in engines:
            assert engine.words(pieces[0], scalar=False) == engine.words(pieces[0], scalar=True)
            damaged = [_damaged(rng, piece) for piece in pieces]
            engine.encode(damaged)
            engine.words(damaged[0], scalar=True)
        for _ in range(20):
            read_page(lines, rng)
            read_chunk(lines, rng, folder)
            unsnap(lines, rng)
            unpack(unzstd, rng, folder)
            scan(lines, _lines(rng), rng.choice([[b"text"], [b"a", b"text"], ["é".encode()]]))
            ask(
                lines,
                [piece[: rng.choice([3, 20, 300, 5000])] for piece in damaged],
                rng.choice([b" ", b"e ", b"\n\n"]),
            )

    return once


def thread(folder: Path, rng: random.Random) -> Callable[[], None]:
    """A round for ThreadSanitizer: eight threads that teach engines new words, of which one empties its tables all the time."""
    library, model = CDLL(str(folder / "engine.so")), _models()[0]
    engines = [Engine(library, model, path=native.cpu_path(), small=small) for small in (False, True)]
    shared = [_text(rng) for _ in range(20)]
    pieces_once = sanitize_pieces.thread(folder, rng, Memory)
    ranges_once = sanitize_ranges.once(folder, rng, _text, _damaged)

    def work(seed: int) -> None:
        own = random.Random(seed)
        words = ["".join(own.choices("abcdefghijklmnopqrstuvwxyz", k=own.choice([8, 20, 40]))) for _ in range(3000)]
        pieces = [" ".join(words).encode(), *shared]
        for engine in engines:
            assert engine.decode(engine.encode(pieces)) == b"".join(pieces)

    def once() -> None:
        pieces_once()
        ranges_once()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, [rng.randrange(1 << 40) for _ in range(_THREADS)]))

    return once


def child(kind: str, folder: Path, seconds: float, seed: int) -> None:
    # What Python loads is the sanitized library too.
    compiled.load = lambda path, _version: CDLL(str(folder / Path(path).name))  # type: ignore[assignment]
    rng, started, rounds = random.Random(seed), time.monotonic(), 0
    once = {"address": address, "thread": thread}[kind](folder, rng)
    while rounds == 0 or time.monotonic() - started < seconds:
        once()
        rounds += 1
    print(f"{kind}: {rounds:,} rounds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long for each kind of sanitizer")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other input")
    parser.add_argument("--kind", choices=KINDS, help="only this kind")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--overrun", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.folder, asked.seconds, asked.seed)
        if asked.overrun:  # the sanitizer must report this
            scan(CDLL(str(asked.folder / "lines.so")), b'{"text": "a"}', [b"text"], beyond=1)
        return
    failed = False
    for kind in [asked.kind] if asked.kind else KINDS:
        if not runtime(kind):
            print(f"{kind}: skipped, since {compiler()} comes without {KINDS[kind][1]}")
            continue
        with tempfile.TemporaryDirectory(prefix="shardmill-sanitize-") as folder:
            build(kind, Path(folder))
            done = run(kind, Path(folder), "--seconds", str(asked.seconds), "--seed", str(asked.seed))
        print(done.stdout + done.stderr, end="", flush=True)
        failed = failed or done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
