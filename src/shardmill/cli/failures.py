"""An error → what the user is told: a line on standard error, and with --json an object on standard output."""

import re
import sys
from typing import Any, NoReturn

from shardmill.cli.console import print_json, say
from shardmill.errors import ShardmillError

# A message ends with what to do now: a sentence of its own, or what follows the last semicolon.
_SENTENCE = re.compile(r"(?<=[^.\s]\. )(?=[A-Z])|\n(?=[A-Z])")


class ResultError(ShardmillError):
    """A failure that has a result, such as the problems that verify found."""

    def __init__(self, error: ShardmillError, content: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.exit_code, self.content = error.exit_code, content


def fail(message: str, code: int, content: dict[str, Any] | None = None) -> NoReturn:
    """Tell people, and with --json programs, together with what else there is to tell; and exit."""
    say(f"shardmill: {message}")
    if "--json" in sys.argv[1:]:
        print_json({**(content or {}), "error": message, "exit_code": code, "hint": hint_of(message)})
    sys.exit(code)


def hint_of(message: str) -> str | None:
    """What to do now.

    >>> hint_of("book.txt: no such file; check the spelling")
    'check the spelling'
    """
    sentence = _SENTENCE.split(message)[-1]
    if sentence != message:
        return sentence
    _, semicolon, remedy = message.rpartition("; ")
    return remedy if semicolon else None
