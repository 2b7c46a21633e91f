"""InputFiles → how much text, how many documents and tokens are in them, with 95 % intervals, from samples.

What can be read anywhere (text, JSON lines, rows of Parquet) is sampled at points spread evenly over all of it. What
can only be read from its start (compressed files, CSV, Arrow, WARC) is read as far as time allows, all of it if
possible; the rest may be different, so the interval grows with its share.
"""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardmill.documents import detect, utf8
from shardmill.documents.jsonl import LinesPart
from shardmill.documents.pieces import Pieces, Position
from shardmill.documents.records import Records
from shardmill.documents.rules import BOM, TextRules
from shardmill.errors import ContentError, InputError
from shardmill.inputs.input_files import InputFiles
from shardmill.io.compression import Decompressed, promised_bytes
from shardmill.io.open_files import OpenFiles
from shardmill.io.reading import InputFile, Reader, ahead
from shardmill.job import plan
from shardmill.job.intervals import Across, Found, FromStart, Span
from shardmill.job.sources import Part
from shardmill.spec import InputFormat, OnError

# With 256 samples spread over the whole input, the sampling error is a few percent, and a disk that seeks needs two or
# three seconds.
SAMPLES = 256
SAMPLE_BYTES = 16 << 10
# Inputs up to this size are read as a whole.
SMALL_BYTES = SAMPLES * SAMPLE_BYTES
_SMALL_FILES = 4096
# So much of a page of Parquet is sampled: pages may be larger than memory.
_MOST_PAGE_BYTES = 8 << 20
_WHOLE_FILE_BYTES = 64 << 10
# A file of a thirty-second of the input or more is not left to chance.
_LARGE_SHARE = 32
# How much is read of each of many files that must be read from the start.
_HEAD_BYTES = 4 << 20
# How much is read of a large one, and of all of them, however slow the machine is.
_LEAST_BYTES = 1 << 20
_LEAST_IN_ALL = 16 << 20
# What is encoded of a block is not all from one place, since the next document may be in another language.
_SLICES = 4
# A line longer than this is not looked for: then the file is read from its start.
_REACHES = (64 << 10, 1 << 20, 8 << 20)
# Text of people is seldom compressed to less than an eighth.
_MOST_COMPRESSED = 8
_GOLDEN = (math.sqrt(5) - 1) / 2

Measure = Callable[[list[bytes]], int]
"""Texts → their number of tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Where a job stops: after so many documents, or so many tokens, to which each document adds so many of its own."""

    documents: float = math.inf
    tokens: float = math.inf
    per_document: int = 0

    def within(self, texts: list[bytes], begins: list[bool], rate: float, done: tuple[float, float]) -> int:
        """How many of these texts come before it, at so many tokens per byte, if these documents and tokens are done."""
        documents = np.cumsum(begins)
        tokens = rate * np.cumsum([len(text) for text in texts]) + self.per_document * documents
        left = self.tokens - done[1]
        by_tokens = int(np.searchsorted(tokens, left)) + 1 if left > 0 else 0
        return min(int(np.searchsorted(documents, self.documents - done[0], side="right")), by_tokens)

    def share(self, done: tuple[float, float]) -> float:
        """How many times as much as is done comes before it."""
        return min(self.documents / max(1, done[0]), self.tokens / max(1, done[1]))


NEVER = Stop()


def sample(
    files: InputFiles,
    rules: TextRules,
    measure: Measure,
    *,
    seconds: float,
    whole: bool,
    kept: float = 1.0,
    stop: Stop = NEVER,
) -> Found:
    """Samples of all files, taken within about this time; if the job stops before their end, of what comes before.

    whole: a small input is read and encoded as a whole. kept: the share of running text that --sample keeps.
    """
    policy: OnError = "replace" if rules.on_error == "replace" else "skip"
    rules = dataclasses.replace(rules, on_error=policy, limited=False, seed=None)
    deadline = time.monotonic() + seconds
    sampler = _Sampler(opened=files.opened, rules=rules, measure=measure, deadline=deadline, kept=kept, stop=stop)
    small = files.total_bytes <= SMALL_BYTES and len(files) <= _SMALL_FILES
    if small or stop is not NEVER:
        read = sampler.from_start(files, files.total_bytes, encode_up_to=SMALL_BYTES if whole else 0)
        if read.at_end or read.stopped:
            return [read]
        sampler = dataclasses.replace(sampler, deadline=time.monotonic() + seconds, stop=NEVER)
    found: Found = []
    sizes = files.sizes
    for number in np.flatnonzero(sizes * _LARGE_SHARE >= files.total_bytes):
        file = files[int(number)]
        if not sampler.seeks(file):
            share = int(sizes[number]) / files.total_bytes
            own = dataclasses.replace(sampler, deadline=time.monotonic() + share * seconds)
            least = max(_LEAST_BYTES, int(share * _LEAST_IN_ALL))
            found.append(own.from_start(InputFiles([file], files.opened), int(sizes[number]), least=least))
            sizes[number] = 0
    if sizes.any():
        found.append(sampler.across(files, sizes))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sampler:
    opened: OpenFiles
    rules: TextRules
    measure: Measure
    deadline: float
    kept: float
    stop: Stop

    def seeks(self, file: InputFile) -> bool:
        """Whether a file can be read anywhere."""
        with contextlib.suppress(ContentError), self.opened.reader(file) as reader:
            return self._kind(reader) is not None
        return False  # what is wrong with it is reported when it is read

    def _kind(self, reader: Reader) -> InputFormat | None:
        """The format of a file that can be read anywhere; None for others."""
        plain, kind = detect.content_of(reader, self.rules.input_format, max_window=self.rules.max_window)
        return kind if kind in ("text", "jsonl", "parquet") and not isinstance(plain, Decompressed) else None

    def across(self, files: InputFiles, sizes: "np.typing.NDArray[np.int64]") -> Across:
        """Spans at points that are spread evenly over the files, of which only so many bytes count."""
        ends = np.cumsum(sizes)
        lost = (1 - self.kept) / self.kept * float(np.sum(np.minimum(sizes, _WHOLE_FILE_BYTES) * sizes.astype(float)))
        found = Across(total=int(ends[-1]), chance=lost)
        from_start = lru_cache(maxsize=None)(lambda own: self._from_start(files[own]))
        for number in range(SAMPLES):
            # However many of these points are taken, they are spread evenly.
            at = int((0.5 + number * _GOLDEN) % 1 * found.total)
            own = int(np.searchsorted(ends, at, side="right"))
            size = int(sizes[own])
            span, unread = self._at(files[own], (at - int(ends[own]) + size) / size), 0.0
            if span is None:
                span, unread = from_start(own)
            found.spans.append(span)
            found.unread.append(unread)
            if time.monotonic() > self.deadline and number >= 1:
                break
        return found

    def from_start(
        self, files: InputFiles, size: int, *, least: int = 1, most: float = math.inf, encode_up_to: int = 0
    ) -> FromStart:
        """Spans of these files from the start: so many bytes of text at least, then until time is up, or so many at most."""
        found = FromStart(total=size)
        encoded = text = done = booked = 0
        documents = tokens = spent = 0.0
        one = _input_of_text(files[0]) if len(files) == 1 else 0.0
        halfway = (time.monotonic() + self.deadline) / 2
        for block in ahead(plan.blocks(files, self.rules)):
            texts, begins = self._texts(block)
            all_of_it = encode_up_to and (encoded < encode_up_to or time.monotonic() < halfway)
            limit = 1 << 62 if all_of_it else SAMPLE_BYTES
            span = self._span(block.input_bytes, texts, sum(begins), limit=limit)
            within = self.stop.within(texts, begins, span.tokens / max(1, span.text), (documents, tokens))
            found.stopped = within < len(texts)
            if found.stopped:
                span = self._span(block.input_bytes, texts[:within], sum(begins[:within]), limit=limit)
            encoded += span.encoded
            text += int(span.text)
            # A record that takes several Blocks is booked with the last of them; its text came before.
            booked += block.input_bytes
            now, at = max(spent, booked, one * text), max(block.after.offset, done, text if one else 0)
            found.spans.append(dataclasses.replace(span, input=now - spent, raw=at - done))
            spent, done = now, at
            documents += span.documents
            tokens += span.tokens + self.stop.per_document * span.documents
            found.at_end = found.stopped or block.after.file >= len(files)
            if found.stopped or text >= most or (text >= least and time.monotonic() > self.deadline):
                break
        reached = sum(span.input for span in found.spans) * self.stop.share((documents, tokens))
        if not found.at_end and reached < size:
            found.total, found.stopped = round(reached), True
        elif not found.at_end and len(files) == 1:
            with self.opened.reader(files[0]) as reader:
                found.promised = promised_bytes(reader, round(sum(span.input for span in found.spans)), done)
        return found

    def _from_start(self, file: InputFile) -> tuple[Span, float]:
        """A file as its beginning promises it, and the share of it that was not read."""
        read = self.from_start(InputFiles([file], self.opened), file.size or 0, least=_LEAST_BYTES, most=_HEAD_BYTES)
        return read.whole(), read.unread

    def _at(self, file: InputFile, share: float) -> Span | None:
        """A span that begins at this share of a file; None if it can only be read from its start."""
        with contextlib.suppress(ContentError), self.opened.reader(file) as reader:
            match self._kind(reader):
                case "text":
                    return self._text_at(reader, share)
                case "jsonl":
                    return self._lines_at(reader, share)
                case "parquet":
                    return self._rows_at(file, reader, share)
        return None

    def _text_at(self, reader: Reader, share: float) -> Span:
        """A word cut at each end adds about a token to 4,000. Trimming to a safe cut would be worse: it would leave out
        more of the text that has few. A small file is taken whole, since there a word that is cut would count for too much.
        """
        size, separator = reader.size or 1, self.rules.separator
        length = size if size <= _WHOLE_FILE_BYTES else SAMPLE_BYTES
        data = reader.read(int(share * (size - length)), length).decode("utf-8", "ignore").encode()
        texts = data.split(separator) if separator else [data]
        documents = sum(map(bool, texts[:-1])) if separator else length / size
        return self._span(length / self.kept, [text for text in texts if text], documents, limit=length)

    def _lines_at(self, reader: Reader, share: float) -> Span | None:
        """The lines in a window; of the first and last, the share that is in it. None: they are too long."""
        size = reader.size or 1
        length = min(size, SAMPLE_BYTES)
        at = int(share * (size - length))
        for reach in _REACHES:
            first = max(0, at - reach)
            data = reader.read(first, at - first + length + reach)
            begin = data.rfind(b"\n", 0, at - first) + 1
            end = data.find(b"\n", at - first + length - 1) + 1 or len(data)
            if (begin or not first) and (data[end - 1 : end] == b"\n" or first + end == size):
                break
        else:
            return None
        begin += len(BOM) if data.startswith(BOM) and not first else 0
        return self._lines(data[begin:end], reader.path, at - first - begin, length)

    def _lines(self, data: bytes, path: str, at: int, length: int) -> Span:
        """The part [at, at + length) of whole lines."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        ends = ends if data.endswith(b"\n") else np.append(ends, len(data))
        after = Position(record=len(ends))
        part = LinesPart(
            file=0, path=path, offset=0, line=0, data=memoryview(data), newline=b"\n", job_offset=0, after=after
        )
        found = self._pieces(part)
        assert isinstance(found.origin, Records)
        texts, documents = [], 0.0
        for index, text in zip(found.origin.indexes.tolist(), found.texts, strict=True):
            begin, end = int(ends[index - 1]) if index else 0, int(ends[index])
            low = (max(begin, at) - begin) / (end - begin)
            high = (min(end, at + length) - begin) / (end - begin)
            if high > low:
                texts.append(text[int(low * len(text)) : int(high * len(text))])
                documents += high - low
        return self._span(length, texts, documents)

    def _rows_at(self, file: InputFile, reader: Reader, share: float) -> Span | None:
        """The rows of a page. None: there is none that can be read."""
        from shardmill.documents.columnar import parquet

        page = parquet.page_at(reader, self.rules.field, share)
        if page is None:
            return None
        row, end, texts, documents, size = page.rows.start, page.rows.stop, list[bytes](), 0.0, 0
        small = dataclasses.replace(self.rules, block_bytes=_WHOLE_FILE_BYTES)
        blocks = plan.blocks(InputFiles([file], self.opened), small, plan.rest(Position(offset=1, record=row)))
        for part in itertools.chain.from_iterable(block.parts for block in blocks):
            pieces = self._pieces(part)
            kept = len(pieces)
            if part.after.record > end and isinstance(pieces.origin, Records):
                kept = int(np.count_nonzero(row + pieces.origin.indexes < end))
            texts += pieces.texts.take(slice(kept))
            documents += int(np.count_nonzero(pieces.begins[:kept]))
            row, size = part.after.record, size + part.size
            if row >= end or size > _MOST_PAGE_BYTES:
                break
        # How many rows there are is known; the page, or its beginning, shows how many of them have text.
        read = max(1, min(row, end) - page.rows.start)
        share = page.share * read / len(page.rows)
        return self._span(share * (file.size or 1), texts, documents / read * share * page.rows_of_file)

    def _pieces(self, part: Part) -> Pieces:
        """Without the bad records; --on-error replace keeps those that it repairs."""
        try:
            return part.pieces(0, self.rules, lambda keys: keys < 0)
        except InputError:
            return part.pieces(0, dataclasses.replace(self.rules, on_error="skip"), lambda keys: keys < 0)

    def _texts(self, block: plan.Block) -> tuple[list[bytes], list[bool]]:
        """What is in a Block, and whether a document begins with it; bad records are left out."""
        found = Pieces.joined([self._pieces(part) for part in block.parts])
        return list(found.texts), found.begins.tolist()

    def _span(self, size: float, texts: list[bytes], documents: float, *, limit: int = SAMPLE_BYTES) -> Span:
        text = sum(map(len, texts))
        window = _window(texts, text, limit)
        encoded = sum(map(len, window))
        tokens = self.measure(window) * (text / encoded) if encoded else 0.0
        return Span(input=size, text=text, documents=documents, tokens=tokens, encoded=encoded)


def _input_of_text(file: InputFile) -> float:
    """How many bytes of a file a byte of its text takes at least; 0: that cannot be told."""
    suffix, compression = detect.suffixes(file.path)
    if detect.FORMAT_OF_SUFFIX.get(suffix, "text") in ("parquet", "arrow"):
        return 0.0
    return 1.0 if compression is None else 1 / _MOST_COMPRESSED


def _window(texts: list[bytes], size: int, most: int) -> list[bytes]:
    """So many bytes of the texts, in slices that are spread over them."""
    if size <= most:
        return [text if utf8.is_valid(text) else utf8.replaced(text)[0] for text in texts]
    length, found, number, at = most // _SLICES, [], 0, 0
    for text in texts:
        while number < _SLICES:
            begin = (2 * number + 1) * size // (2 * _SLICES) - length // 2
            low, high = max(0, begin - at), min(len(text), begin + length - at)
            if high > low:
                found.append(text[low:high].decode("utf-8", "ignore").encode())
            if begin + length > at + len(text):
                break
            number += 1
        at += len(text)
    return found
