"""Records that were left out under --on-error skip: what, where and why, one line of JSON each in rejects.jsonl."""

import json
from dataclasses import dataclass

NAME = "rejects.jsonl"


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

    def to_json(self) -> bytes:
        places = {"byte": self.byte, "line": self.line, "row": self.row}
        found = {name: value for name, value in places.items() if value is not None}
        return json.dumps({"path": self.path, **found, "reason": self.reason}).encode() + b"\n"
