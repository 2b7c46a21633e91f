"""Records that were left out under --on-error skip: what, where and why, one line of JSON each in rejects.jsonl."""

import json
from dataclasses import dataclass

from shardmill.errors import InputError

NAME = "rejects.jsonl"
# A share of fewer records than this says little, until all are read.
_LEAST_JUDGED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """One document or record that was left out. Of the places, those that the input has are set."""

    path: str
    reason: str
    byte: int | None = None
    """Where it begins in the file, or in what the file decompresses to."""
    line: int | None = None
    """Counted from 1, as editors do."""
    row: int | None = None
    """Counted from 0, as Parquet and Arrow do."""
    records: int = 1
    """How many documents were left out for this reason; in the file only where it is not one."""

    def to_json(self) -> bytes:
        places = {"byte": self.byte, "line": self.line, "row": self.row}
        found = {name: value for name, value in places.items() if value is not None}
        found |= {"records": self.records} if self.records != 1 else {}
        return json.dumps({"path": self.path, **found, "reason": self.reason}).encode() + b"\n"


def refuse_too_many(rejected: int, records: int, most: int | float | None, *, at_end: bool = False) -> None:
    """Raises InputError if more were left out than a number allows, or, given as a float, than that share of all."""
    if most is None or (isinstance(most, float) and records < _LEAST_JUDGED and not at_end):
        return
    if rejected > (most * records if isinstance(most, float) else most):
        allowed = f"{most * 100:g}%" if isinstance(most, float) else f"{most:,}"
        raise InputError(
            f"{rejected:,} of {records:,} records were bad and left out, and --max-rejects {allowed} allows no more; "
            f"see {NAME}.partial in the output folder for where and why. Repair the input, or run the same command with a larger --max-rejects to resume"
        )
