"""Spans of the input → totals with 95 % intervals."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

# How much the unread rest of a file may differ from what was read without a sign of it there, as a standard deviation:
# when bytes of text are counted, when compressed bytes are, and when many files are known by their beginnings. An
# encyclopedia followed by novels makes 17 % and 27 % in the first two.
_DRIFT_TEXT, _DRIFT_COMPRESSED, _DRIFT_MANY = 0.10, 0.18, 0.05
# The length of documents differs more than their tokens per byte.
_DRIFT_FACTOR = {"documents": 4.0}
_CHUNKS = 8
# A random walk would lead further and further away, but texts do not differ as much.
_FAR = 4
# How much tokens per byte differ between the spans of a file, if there are too few to tell: as if four more had shown it.
_USUAL_SPREAD = 0.05
_USUAL_WEIGHT = 4
# Words that are cut where a sample ends, and the like: an interval is not narrower, unless everything was counted.
_LEAST = 0.01
# What a decompressor takes ahead of the text, on average and at most.
_AHEAD, _MOST_AHEAD = 48 << 10, 128 << 10
# A file in which several were joined promises the text of the first or last alone.
_LIKELY = 1.5

Quantity = Literal["input", "raw", "text", "documents", "tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An estimate and its 95 % interval; all three are equal if it was counted."""

    low: int
    middle: int
    high: int

    @staticmethod
    def exactly(value: int) -> "Range":
        return Range(low=value, middle=value, high=value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A part of the input, and what is in it. If not all of its text was encoded, its tokens are extrapolated."""

    input: float
    raw: float = 0.0
    """Bytes of what the input decompresses to, if that was counted."""
    text: float
    documents: float
    tokens: float
    encoded: int

    def amount(self, quantity: Quantity) -> float:
        return float(getattr(self, quantity))

    @property
    def exact(self) -> bool:
        return self.encoded == self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A contribution to a total: its value, the variance with its degrees of freedom, and how far what was not read may
    be off, by itself and in the same direction as that of all other files."""

    value: float
    variance: float = 0.0
    freedom: float = math.inf
    drift: float = 0.0
    common_drift: float = 0.0


@dataclass(kw_only=True, slots=True)
class Across:
    """Spans at points that are spread evenly over so many bytes of input."""

    total: int
    spans: list[Span] = field(default_factory=list)
    unread: list[float] = field(default_factory=list)
    """Of each span, which share of its file comes after it and could not be reached."""
    chance: float = 0.0
    """The variance of the bytes that --sample keeps of running text, relative to their number."""

    def part(self, quantity: Quantity) -> _Part:
        densities = [span.amount(quantity) / span.input for span in self.spans]
        if not densities:
            return _Part(value=0.0)
        mean = statistics.fmean(densities)
        count = len(densities)
        spread = statistics.variance(densities) if count > 1 else mean**2
        drift = _DRIFT_MANY * _DRIFT_FACTOR.get(quantity, 1.0) * mean * statistics.fmean(self.unread)
        return _Part(
            value=mean * self.total,
            variance=spread / count * self.total**2 + self.chance * mean**2,
            freedom=max(1, count - 1),
            common_drift=drift * self.total,
        )


@dataclass(kw_only=True, slots=True)
class FromStart:
    """Consecutive spans from the start of so many bytes of input."""

    total: int
    promised: int | None = None
    """How many bytes it decompresses to, according to the file; true unless something was appended to it."""
    spans: list[Span] = field(default_factory=list)
    at_end: bool = False
    stopped: bool = False
    """The job stops within it, at a limit."""

    def part(self, quantity: Quantity) -> _Part:
        unit, total = self._unit()
        read = self._read(unit)
        value = sum(span.amount(quantity) for span in self.spans)
        variance = _encoding_variance(self.spans) if quantity == "tokens" else 0.0
        freedom = len(self.spans) - 1 + _USUAL_WEIGHT
        if self.at_end or not read:
            return _Part(value=value, variance=variance, freedom=freedom)
        unread = max(0.0, total - read)
        density = value / read
        drift = _DRIFT_TEXT if unit == "raw" or not self._compressed else _DRIFT_COMPRESSED
        seen = _drift_variance(self.spans, quantity, unit, unread / read)
        unseen = _DRIFT_FACTOR.get(quantity, 1.0) * density
        deviation = math.sqrt(seen + (drift**2 - _DRIFT_MANY**2) * unseen**2)
        grown = 1 + unread / read
        return _Part(
            value=value * grown,
            variance=variance * grown**2,
            freedom=freedom,
            drift=deviation * unread,
            common_drift=_DRIFT_MANY * unseen * unread,
        )

    @property
    def unread(self) -> float:
        """The share that was not read."""
        unit, total = self._unit()
        read = self._read(unit)
        return 0.0 if self.at_end or not total else max(0.0, 1 - read / total)

    def whole(self) -> Span:
        """All of it as one span, extrapolated."""
        amounts = {quantity: self.part(quantity).value for quantity in ("raw", "text", "documents", "tokens")}
        encoded = sum(span.encoded for span in self.spans)
        return Span(input=max(1, self.total), encoded=encoded, **amounts)

    def _unit(self) -> tuple[Quantity, float]:
        """How progress is measured: in decompressed bytes if their number is known and likely, else in bytes of input."""
        raw = sum(span.raw for span in self.spans)
        if self.promised is not None and raw:
            read = sum(span.input for span in self.spans)
            low, high = (raw * self.total / max(1.0, each) for each in (read, read - _MOST_AHEAD))
            if max(raw, low / _LIKELY) <= self.promised <= high * _LIKELY:
                return "raw", self.promised
        return "input", self.total

    def _read(self, unit: Quantity) -> float:
        """How much was read; of compressed bytes, what the decompressor has taken but not yet returned is left out."""
        read = sum(span.amount(unit) for span in self.spans)
        ahead = unit == "input" and self._compressed and not self.at_end
        return read - min(_AHEAD, read / 2) if ahead else read

    @property
    def _compressed(self) -> bool:
        return sum(span.raw for span in self.spans) > 1.01 * sum(span.input for span in self.spans)


Found = list[Across | FromStart]


def total(found: Found, quantity: Quantity) -> Range:
    """The total of all files, with its 95 % interval."""
    parts = [each.part(quantity) for each in found]
    variance, value = sum(part.variance for part in parts), sum(part.value for part in parts)
    weight = sum(part.variance**2 / part.freedom for part in parts)
    freedom = variance**2 / weight if weight else math.inf
    drift = math.hypot(*(part.drift for part in parts), sum(part.common_drift for part in parts))
    off = math.hypot(_t(freedom) * math.sqrt(variance), 2 * drift)
    off = max(off, _LEAST * value) if off else 0.0
    counted = sum(span.amount(quantity) for each in found if isinstance(each, FromStart) for span in each.spans)
    low = max(value - off, counted if quantity != "tokens" else 0.0, 0.0)
    return Range(low=math.floor(low), middle=round(value), high=math.ceil(value + off))


def _summed(spans: list[Span]) -> Span:
    return Span(**{each.name: sum(getattr(span, each.name) for span in spans) for each in dataclasses.fields(Span)})


def _encoding_variance(spans: list[Span]) -> float:
    """Of the tokens of spans of which only some text was encoded."""
    sampled = [span for span in spans if not span.exact]
    if not sampled:
        return 0.0
    rates = [span.tokens / span.text for span in spans if span.text]
    mean = statistics.fmean(rates)
    usual = _USUAL_WEIGHT * (_USUAL_SPREAD * mean) ** 2
    spread = (usual + sum((rate - mean) ** 2 for rate in rates)) / (len(rates) - 1 + _USUAL_WEIGHT)
    return spread * sum(span.text**2 for span in sampled)


def _drift_variance(spans: list[Span], quantity: Quantity, unit: Quantity, ahead: float) -> float:
    """Of the density in the unread rest, which is so many times as long as what was read.

    If the density varies at random, little: its average varies. If it changes slowly along the file, as much as a random
    walk would from here. Neighbours then differ less than chunks in general: their squared differences are not twice the
    variance on average, but less than once (von Neumann's test, at 5 %).
    """
    chunks = [_summed(chunk) for chunk in _chunks(spans)]
    if len(chunks) < _CHUNKS:
        return 0.0
    densities = [chunk.amount(quantity) / max(1.0, chunk.amount(unit)) for chunk in chunks]
    spread = statistics.variance(densities)
    steps = statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(densities))
    slow = spread - steps / 2 if steps < spread else 0.0
    return spread / len(chunks) + slow * (2 + 2 * min(ahead, _FAR))


def _chunks(spans: list[Span]) -> Iterator[list[Span]]:
    count = min(_CHUNKS, len(spans))
    for number in range(count):
        yield spans[number * len(spans) // count : (number + 1) * len(spans) // count]


def _t(freedom: float) -> float:
    """The 97.5 % quantile of Student's distribution, by the expansion of Cornish and Fisher."""
    n = max(1.0, freedom)
    return 1.96 + 2.372 / n + 2.822 / n**2 + 2.556 / n**3 + (3.0 / n**4 if n < 2 else 0.0)
