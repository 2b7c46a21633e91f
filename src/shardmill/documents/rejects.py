"""Records that --on-error skip left out: what, where and why, one line of JSON each in rejects.jsonl."""

import dataclasses
import json
from dataclasses import dataclass

from shardmill.errors import InputError
from shardmill.io.compression import UNCOUNTED
from shardmill.system.names import show

NAME = "rejects.jsonl"
# A share of fewer records than this says little, until all are read.
_LEAST_JUDGED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """From the numbers of a stretch, which count from its beginning in the middle of a file, to those of the file."""

    lines: int
    text: int

    def byte(self, number: int) -> int:
        """The number of a byte of text; those below UNCOUNTED are those of the file already."""
        return number + self.text if number >= UNCOUNTED else number


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """Where a record is in its file: by line or by row, whichever the format has, and by byte."""

    path: str
    byte: int | None = None
    """Where it begins in the file, or in what the file decompresses to."""
    line: int | None = None
    """Counted from 1, as in editors."""
    row: int | None = None
    """Counted from 0, as in Parquet and Arrow."""

    def __str__(self) -> str:
        parts = [show(self.path)]
        if self.line is not None:
            parts.append(f"line {self.line:,}")
        if self.row is not None:
            parts.append(f"row {self.row:,}")
        if self.byte is not None:
            parts.append(f"(byte {self.byte:,})" if len(parts) > 1 else f"byte {self.byte:,}")
        return " ".join(parts)

    def moved(self, by: Shift) -> "Location":
        """The same in the numbers of the file."""
        line = None if self.line is None else self.line + by.lines
        return dataclasses.replace(self, line=line, byte=None if self.byte is None else by.byte(self.byte))

    @property
    def record(self) -> int:
        """The line or row, counted from 0; the byte where there is neither."""
        return self.row if self.row is not None else self.line - 1 if self.line is not None else self.byte or 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """One document or record that was left out, or several for one reason."""

    location: Location
    reason: str
    records: int = 1

    def to_json(self) -> bytes:
        found = {name: value for name, value in dataclasses.asdict(self.location).items() if value is not None}
        found |= {"records": self.records} if self.records != 1 else {}
        return json.dumps({**found, "reason": self.reason}).encode() + b"\n"


def refuse_too_many(rejected: int, records: int, most: int | float | None, *, at_end: bool = False) -> None:
    """Raise InputError if more were left out than a number allows, or, for a float, than that share of all."""
    if most is None or (isinstance(most, float) and records < _LEAST_JUDGED and not at_end):
        return
    if rejected > (most * records if isinstance(most, float) else most):
        allowed = f"{most * 100:g}%" if isinstance(most, float) else f"{most:,}"
        raise InputError(
            f"{rejected:,} of {records:,} records are bad, more than --max-rejects {allowed} allows; {NAME}.partial in the output folder says where and why. "
            "Repair the input, or run the same command with a larger --max-rejects to resume"
        )
