"""Bytes → the certainty that they are UTF-8, or where and why not, or a repaired copy."""

import codecs
import itertools

import numpy as np
import pyarrow as pa

from shardmill.errors import ContentError, InputError
from shardmill.io.reading import Reader
from shardmill.system.names import show

_WINDOW = 256 << 10
_SMALL = 16 << 10  # below, building the Arrow array costs more than decoding


def is_valid(data: bytes) -> bool:
    """Whether all of data is UTF-8. Arrow's check runs at memory speed on ASCII and lets other threads run."""
    if len(data) < _SMALL:
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        return True
    offsets = pa.py_buffer(np.array([0, len(data)], np.int32))
    try:
        pa.StringArray.from_buffers(1, offsets, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def refuse_other_encodings(path: str, head: bytes) -> None:
    """UTF-16 and UTF-32 are named as such; as bytes they would be nonsense, and mostly valid UTF-8."""
    encoding = None
    if head.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        encoding = "UTF-32"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    elif len(head) >= 64:
        # Every other byte is zero: UTF-16 of a Western text without its mark. Scattered NULs are text.
        even, odd = head[0::2].count(0) / len(head[0::2]), head[1::2].count(0) / len(head[1::2])
        if max(even, odd) > 0.8 and min(even, odd) < 0.05:
            encoding = "UTF-16LE" if odd > even else "UTF-16BE"
    if encoding:
        raise ContentError(
            f"{show(path)}: this is {encoding} text, and only UTF-8 is read; convert it first: iconv -f {encoding} -t UTF-8 {show(path)} > utf8.txt"
        )


def replaced(data: bytes) -> tuple[bytes, int]:
    """What errors="replace" makes of data, and how many replacement characters that put in."""
    text = data.decode("utf-8", "replace").encode()
    mark = "\ufffd".encode()
    return text, text.count(mark) - data.count(mark)


def replaced_at(data: bytes) -> list[int]:
    """Where replaced(data) has a replacement character that was not in data."""
    mark, found, at = "\ufffd".encode(), [], 0
    for honest in data.split(mark):
        text, place = honest.decode("utf-8", "replace").encode(), -1
        while (place := text.find(mark, place + 1)) >= 0:
            found.append(at + place)
        at += len(text) + len(mark)
    return found


def refusal(path: str, offset: int, data: bytes) -> InputError:
    """The error for data, found at byte offset of a file, that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as e:
        bad = data[e.start]
        guess = _guess(data)
        return InputError(
            f"{show(path)}: byte {offset + e.start:,} (0x{bad:02x}) is not UTF-8; {guess}. "
            f"Convert the file (iconv -f {'WINDOWS-1252' if 'Latin' in guess else 'ENCODING'} -t UTF-8), or pass --on-error replace to put U+FFFD in place of such bytes, or --on-error skip to leave out such documents; both are counted."
        )
    raise AssertionError("refusal of valid UTF-8")


def valid_bytes(data: bytes) -> int:
    """How many bytes come before the first that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as e:
        return e.start
    return len(data)


def complaint(data: bytes, offset: int = 0) -> str:
    """What is not UTF-8 in data, in words; offset is where data begins in its document."""
    try:
        data.decode()
    except UnicodeDecodeError as e:
        return f"byte {offset + e.start:,} of it (0x{data[e.start]:02x}) is not UTF-8"
    raise AssertionError("complaint about valid UTF-8")


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


def _guess(data: bytes) -> str:
    """What text that is not UTF-8 most likely is."""
    lone = sequences = 0
    for byte, following in itertools.pairwise(data):
        if byte >= 0xC2 and following & 0xC0 == 0x80:
            sequences += 1
        elif byte >= 0xA0 and following < 0x80:
            lone += 1
    if lone > sequences:
        return "the text looks like Latin-1 (or Windows-1252)"
    return "the rest looks like UTF-8, so the file is probably damaged here"
