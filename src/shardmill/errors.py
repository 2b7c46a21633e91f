"""What can go wrong, and the exit code of each.

    ShardmillError             1   something permanent
    ├── UsageError             2   an option or argument that cannot work
    ├── InputError             1   an input that is unreadable, denied, or changed
    │   └── ContentError       1   a file whose content is damaged or of another kind
    ├── OutputError            1   an output that cannot be used as asked
    ├── MismatchError          1   the fast engine and the reference tokenizer disagree
    └── TemporaryError        75   run the same command again (disk full, SIGTERM, …)

Ctrl-C is a KeyboardInterrupt, with exit code 130. Every message says what, where, why, and what to do now.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class ShardmillError(Exception):
    """The root of all errors that shardmill raises; exit_code is that of the command line."""

    exit_code = 1


class UsageError(ShardmillError):
    exit_code = 2


class InputError(ShardmillError):
    moved: "Callable[[Any], InputError] | None" = None
    """About a line that was counted from the middle of a file: the error, given the Shift to the numbers of the file."""


class ContentError(InputError):
    """Only the content of a file is bad, so --on-error skip may leave it out."""


class OutputError(ShardmillError):
    pass


class MismatchError(ShardmillError):
    pass


class TemporaryError(ShardmillError):
    exit_code = 75
