"""A long value as it is written in a file → a Reader of its text, window by window."""

from collections.abc import Callable
from types import TracebackType

from shardmill.documents import utf8
from shardmill.documents.passages import character_boundary
from shardmill.io.reading import Reader

_WINDOW = 128 << 10
_LOOK_BACK = 4 << 10

Decode = Callable[[bytes, int, bool], tuple[bytes, int]]
"""A window of the value, where its text begins in that of the value, and whether to replace what is no character
→ its text, and how many characters were replaced. Raises Broken."""


class Broken(Exception):
    """Why a record is refused."""


class ValueReader:
    """The text of a value that is written at [start, end) of a Reader. Going back means starting over.

    whole says where a window can be cut: not inside a character or what stands for one.
    """

    def __init__(
        self, reader: Reader, span: tuple[int, int], whole: Callable[[bytes], int], decode: Decode, *, replace: bool
    ) -> None:
        self.path = reader.path
        self._reader, self._replace = reader, replace
        self._first, self._last = span
        self._whole, self._decode = whole, decode
        self._rewind()

    @property
    def size(self) -> int | None:
        return None

    def read(self, offset: int, length: int) -> bytes:
        if offset < self._kept:
            self._rewind()
        while self._kept + len(self._text) < offset + length and self._at < self._last:
            drop = min(min(offset, self._done) - self._kept - _LOOK_BACK, len(self._text))
            if drop > 0:
                del self._text[:drop]
                self._kept += drop
            self._text += self._next(self._kept + len(self._text))
        return bytes(self._text[offset - self._kept : offset - self._kept + length])

    def done_until(self, offset: int) -> None:
        self._done = offset

    def check(self) -> int:
        """Look through all of it: raises Broken for what cannot be UTF-8; returns how many characters were replaced."""
        self._rewind()
        done = 0
        while self._at < self._last:
            done += len(self._next(done))
        replaced = self._replaced
        self._rewind()
        return replaced

    def __enter__(self) -> "ValueReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _rewind(self) -> None:
        self._at, self._kept, self._done, self._replaced = self._first, 0, 0, 0
        self._text = bytearray()

    def _next(self, done: int) -> bytes:
        raw = self._reader.read(self._at, min(_WINDOW, self._last - self._at))
        raw = raw if self._at + len(raw) == self._last else raw[: self._whole(raw)]
        if not raw:
            raise Broken("it ends too early")
        self._at += len(raw)
        text, replaced = self._decode(raw, done, self._replace)
        self._replaced += replaced
        return text


def plain(reader: Reader, span: tuple[int, int], *, replace: bool) -> ValueReader:
    """A value that is written as it is."""
    return ValueReader(reader, span, lambda raw: character_boundary(raw, len(raw)), checked, replace=replace)


def checked(text: bytes, done: int, replace: bool) -> tuple[bytes, int]:
    """Text that may not be UTF-8."""
    if utf8.is_valid(text):
        return text, 0
    if not replace:
        raise Broken(utf8.complaint(text, done))
    return utf8.replaced(text)
