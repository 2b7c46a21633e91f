"""An input file → its format, from its first bytes and its name, and a Reader of its decompressed content."""

import os
import re

from shardmill.documents import utf8
from shardmill.errors import ContentError
from shardmill.io.compression import LEAST_WINDOW, SUFFIXES, Compression, Decompressed, compression_of, window_of
from shardmill.io.reading import InputReader, Reader
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
# These would be read as nonsense, or refused as not UTF-8: better to say what they are.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"%PDF-": "a PDF file; extract its text first (pdftotext)",
    b"\x93NUMPY": "a NumPy file",
    b"FEA1": "a Feather file of version 1; rewrite it with a current pyarrow",
}
_JSON_LINE = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{ *"[^"\\\n]*" *:')


def suffixes(path: str) -> tuple[str, Compression | None]:
    """The suffix of the format and the compression, by name: a.jsonl.zst → (".jsonl", "zstd")."""
    stem, last = os.path.splitext(path.lower())
    if last in SUFFIXES:
        return os.path.splitext(stem)[1], SUFFIXES[last]
    return last, None


def is_known(path: str) -> bool:
    """Whether a file of this name is read when its folder is an input."""
    return suffixes(path)[0] in FORMAT_OF_SUFFIX


def content_of(
    reader: Reader, asked: InputFormat, *, max_window: int = LEAST_WINDOW, spool: str | None = None
) -> tuple[Reader, InputFormat]:
    """A Reader of the decompressed content, and its format. As long as a local file is open, they are detected once."""
    noted = reader.file.noted if isinstance(reader, InputReader) else {}
    if "compression" not in noted:
        noted["compression"] = _compression_of(reader)
    found: Compression | None = noted["compression"]
    if found is not None:
        reader = Decompressed(reader, found, max_window=max(max_window, LEAST_WINDOW), spool=spool)
    if asked not in noted:
        noted[asked] = _format_of(reader, asked)
    return reader, noted[asked]


def _compression_of(reader: Reader) -> Compression | None:
    """Detected from the first bytes, whatever the name."""
    head = reader.read(0, HEAD_BYTES)
    found = compression_of(head)
    named = suffixes(reader.path)[1]
    is_text = utf8.valid_bytes(head) > len(head) - 4  # its last character may be cut
    if found is None and named is not None and head and not is_text and _by_content(head) is None:
        raise ContentError(
            f"{show(reader.path)}: is named {os.path.splitext(reader.path)[1]} but is neither {named} nor text; it is damaged or misnamed: download it again, or rename it"
        )
    return found


def _format_of(reader: Reader, asked: InputFormat) -> InputFormat:
    """The format of a file: the one asked for, else by its first bytes, else by its name, else text."""
    head = reader.read(0, HEAD_BYTES)
    found = _by_content(head)
    if asked == "auto":
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise ContentError(f"{show(reader.path)}: is {what}; this format is not supported")
        named = FORMAT_OF_SUFFIX.get(suffixes(reader.path)[0])
        if found is None and named is None and _JSON_LINE.match(head):
            raise ContentError(
                f"{show(reader.path)}: looks like JSON lines, which its name does not say; pass --input-format jsonl, or --input-format text to take it as it is"
            )
        asked = found or named or "text"
    if asked in ("parquet", "arrow") and found != asked:
        begins = "PAR1" if asked == "parquet" else "ARROW1 or a stream header"
        raise ContentError(
            f"{show(reader.path)}: does not begin with {begins}, so it is not {asked}; it is damaged, or has another format: name it with --input-format"
        )
    if asked == "parquet" and isinstance(reader, Decompressed):
        raise ContentError(
            f"{show(reader.path)}: is a compressed Parquet file, and Parquet must be read from its end; decompress it first (its pages are compressed anyway)"
        )
    return asked


def is_plain(head: bytes) -> bool:
    """Whether the first bytes of a file may be plain text."""
    return compression_of(head) is None and _by_content(head) is None and not head.startswith(tuple(_FOREIGN))


def window(reader: Reader) -> int:
    """The window that decompressing this file needs; 0 for a file that is not compressed."""
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
