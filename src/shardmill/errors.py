"""What can go wrong, and the exit code of each.

    ShardmillError             1   stop: something permanent
    ├── UsageError             2   an option or argument that cannot work
    ├── InputError             1   an input cannot be read, changed, or is denied
    │   └── ContentError       1   what a file holds is not what it should be
    ├── OutputError            1   the output folder cannot be used as asked
    ├── MismatchError          1   the fast engine and the reference disagree
    ├── TemporaryError        75   run the same command again (disk full, …)
    └── InterruptedByUser    130   Ctrl-C or SIGTERM

Every message says what, where, why and what to do now.
"""


class ShardmillError(Exception):
    exit_code = 1


class UsageError(ShardmillError):
    exit_code = 2


class InputError(ShardmillError):
    pass


class ContentError(InputError):
    """What a file holds is not what it should be; --on-error skip may leave it out."""


class OutputError(ShardmillError):
    pass


class MismatchError(ShardmillError):
    pass


class TemporaryError(ShardmillError):
    exit_code = 75


class InterruptedByUser(ShardmillError):
    exit_code = 130
