"""Bytes → whether they are UTF-8, or where and why not, or a repaired copy."""

import codecs
import itertools

from shardmill.documents import native
from shardmill.errors import ContentError, InputError
from shardmill.io.reading import Reader
from shardmill.system.names import show

_WINDOW = 256 << 10
_REPLACEMENT = "\ufffd".encode()


def is_valid(data: bytes | memoryview) -> bool:
    """Whether all of data is UTF-8."""
    return native.is_utf8(data)


def refuse_other_encodings(path: str, head: bytes) -> None:
    """Raise ContentError for UTF-16 and UTF-32, which would be read as nonsense, and are mostly valid UTF-8."""
    encoding = None
    if head.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        encoding = "UTF-32"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    elif len(head) >= 64 and b"\0" in head:
        # Every other byte is zero: UTF-16 of a Western text without its BOM. Scattered NULs are text.
        even, odd = head[0::2].count(0) / len(head[0::2]), head[1::2].count(0) / len(head[1::2])
        if max(even, odd) > 0.8 and min(even, odd) < 0.05:
            encoding = "UTF-16LE" if odd > even else "UTF-16BE"
    if encoding:
        raise ContentError(
            f"{show(path)}: this is {encoding} text, but only UTF-8 is supported; convert it first: iconv -f {encoding} -t UTF-8 {show(path)} > utf8.txt"
        )


def replaced(data: bytes) -> tuple[bytes, int]:
    """What errors="replace" makes of data, and how many U+FFFD that put in."""
    text = data.decode("utf-8", "replace").encode()
    return text, text.count(_REPLACEMENT) - data.count(_REPLACEMENT)


def replaced_at(data: bytes) -> list[int]:
    """Where replaced(data) has a U+FFFD that was not in data."""
    found, at = [], 0
    for between in data.split(_REPLACEMENT):
        text, offset = between.decode("utf-8", "replace").encode(), -1
        while (offset := text.find(_REPLACEMENT, offset + 1)) >= 0:
            found.append(at + offset)
        at += len(text) + len(_REPLACEMENT)
    return found


def refusal(path: str, offset: int, data: bytes) -> InputError:
    """The error for data, found at byte offset of a file, that is not UTF-8."""
    error, guess = _error(data), _guess(data)
    assert error is not None
    return InputError(
        f"{show(path)}: byte {offset + error.start:,} (0x{data[error.start]:02x}) is not UTF-8; {guess}. "
        f"Convert the file (iconv -f {'WINDOWS-1252' if 'Latin' in guess else 'ENCODING'} -t UTF-8), or pass --on-error replace to replace such bytes with U+FFFD, or --on-error skip to skip such documents; both are counted."
    )


def valid_bytes(data: bytes) -> int:
    """How many bytes precede the first that is not UTF-8."""
    error = _error(data)
    return len(data) if error is None else error.start


def complaint(data: bytes, offset: int = 0) -> str:
    """What in data is not UTF-8; offset is where data begins in its document."""
    error = _error(data)
    assert error is not None
    return f"byte {offset + error.start:,} of it (0x{data[error.start]:02x}) is not UTF-8"


def find_end(reader: Reader, begin: int, terminator: bytes, *, keep: bool = True) -> tuple[int, int, str | None]:
    """Where text of any length ends, where its terminator does, and why it is not UTF-8, if so.

    Unless it is to be kept, it is not checked, and the reader may forget it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    at, problem = begin, None
    while True:
        data = reader.read(at, _WINDOW)
        found = data.find(terminator) if terminator else -1
        ends = found >= 0 or len(data) < _WINDOW
        text = data[:found] if found >= 0 else data if ends else data[: len(data) - max(0, len(terminator) - 1)]
        if keep and problem is None:
            try:
                decoder.decode(text, final=ends)
            except UnicodeDecodeError as e:
                problem = complaint(e.object, at - begin - (len(e.object) - len(text)))
        at += len(text)
        if not keep:
            reader.done_until(at)
        if ends:
            return at, at + (len(terminator) if found >= 0 else 0), problem


def _error(data: bytes) -> UnicodeDecodeError | None:
    try:
        data.decode()
    except UnicodeDecodeError as e:
        return e.with_traceback(None)  # which would hold all who called, and the text that they have
    return None


def _guess(data: bytes) -> str:
    """What text that is not UTF-8 most likely is instead."""
    lone = sequences = 0
    for byte, following in itertools.pairwise(data):
        if byte >= 0xC2 and following & 0xC0 == 0x80:
            sequences += 1
        elif byte >= 0xA0 and following < 0x80:
            lone += 1
    if lone > sequences:
        return "the text looks like Latin-1 (or Windows-1252)"
    return "the rest looks like UTF-8, so the file is probably damaged here"
