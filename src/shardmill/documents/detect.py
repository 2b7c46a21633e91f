"""An input file → its format, by its name and by its first bytes, and a Reader of it without the compression."""

import os

from shardmill.errors import ContentError
from shardmill.io.compression import LEAST_WINDOW, SUFFIXES, Compression, Decompressed, compression_of, window_of
from shardmill.io.reading import Reader
from shardmill.spec import InputFormat
from shardmill.system.names import show

FORMAT_OF_SUFFIX: dict[str, InputFormat] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".warc": "warc",
    ".wet": "warc",
}
TEXT = tuple(suffix for suffix, name in FORMAT_OF_SUFFIX.items() if name == "text")
HEAD_BYTES = 4 << 10
_ARROW_CONTINUES = b"\xff\xff\xff\xff"
# Files of these kinds would be milled as nonsense, or refused for a byte that is not UTF-8: better to name them.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"%PDF-": "a PDF file; extract its text first (pdftotext)",
    b"\x93NUMPY": "a NumPy file",
    b"FEA1": "a Feather file of the old version 1; write it again with a current pyarrow",
}


def suffixes(path: str) -> tuple[str, Compression | None]:
    """The suffix that names the format, and the compression that the name tells."""
    stem, last = os.path.splitext(path.lower())
    if last in SUFFIXES:
        return os.path.splitext(stem)[1], SUFFIXES[last]
    return last, None


def is_known(path: str) -> bool:
    """Whether a file of this name is taken from a folder."""
    suffix, _ = suffixes(path)
    return suffix in FORMAT_OF_SUFFIX


def uncompressed(reader: Reader, *, max_window: int = LEAST_WINDOW, spool: str | None = None) -> Reader:
    """The Reader of the text itself: content decides, whatever the name says."""
    head = reader.read(0, HEAD_BYTES)
    found = compression_of(head)
    if found is not None:
        return Decompressed(reader, found, max_window=max(max_window, LEAST_WINDOW), spool=spool)
    named = suffixes(reader.path)[1]
    if named is not None and head and not _is_text(head) and _by_content(head) is None:
        raise ContentError(
            f"{show(reader.path)}: is named as {named} but does not begin as such, and is no text either; it is damaged or misnamed: fetch it again, or give it its true name"
        )
    return reader


def format_of(reader: Reader, asked: InputFormat) -> InputFormat:
    """The format of a file, as asked for; else what its first bytes say, else what its name says, else text."""
    head = reader.read(0, HEAD_BYTES)
    found = _by_content(head)
    if asked == "auto":
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise ContentError(f"{show(reader.path)}: is {what}; it is none of the formats that are read")
        asked = found or FORMAT_OF_SUFFIX.get(suffixes(reader.path)[0], "text")
    if asked in ("parquet", "arrow") and found != asked:
        begins = "PAR1" if asked == "parquet" else "ARROW1 or a stream's mark"
        raise ContentError(
            f"{show(reader.path)}: does not begin with {begins}, so it is no {asked} file; it is damaged, or another format (--input-format)"
        )
    if asked == "parquet" and isinstance(reader, Decompressed):
        raise ContentError(
            f"{show(reader.path)}: is a compressed Parquet file, which can only be read from its end; decompress it first (Parquet compresses by itself)"
        )
    return asked


def is_plain(head: bytes) -> bool:
    """Whether nothing in the first bytes of a file speaks against plain text."""
    return compression_of(head) is None and _by_content(head) is None and not head.startswith(tuple(_FOREIGN))


def window(reader: Reader) -> int:
    """The memory that decompressing this file will take for itself; 0 for a file that is not compressed."""
    head = reader.read(0, 64)
    return window_of(head) if compression_of(head) is not None else 0


def _by_content(head: bytes) -> InputFormat | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1\0\0"):
        return "arrow"
    if head.startswith(_ARROW_CONTINUES) and 0 < int.from_bytes(head[4:8], "little") < 1 << 28:
        return "arrow"
    return "warc" if head.startswith(b"WARC/1.") else None


def _is_text(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as e:
        return e.start >= len(head) - 3
    return True
