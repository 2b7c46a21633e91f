"""Retry with backoff: whether to try again after a network failure, after which pause, and when to give up."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from shardmill.errors import InputError, ShardmillError, TemporaryError
from shardmill.system.names import show

_LONGEST_PAUSE = 30.0
_UNREACHABLE_SECONDS = 15.0  # a host that never answered is more likely misspelt than down
_QUIET_SECONDS = 5.0  # no warning before

_log = logging.getLogger("shardmill")
T = TypeVar("T")


class Stopped(ShardmillError):
    """The job was stopped while this thread waited for bytes."""


class NotFound(InputError):
    """There is no such file or folder."""


class TransientError(Exception):
    """A failure that may go away: worth another try, after `wait` seconds if the server asked for that."""

    def __init__(self, reason: str, *, wait: float = 0.0, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.unreachable = unreachable


class Retry:
    """Exponential backoff with jitter; gives up after this many seconds without a success."""

    def __init__(self, path: str, seconds: float, stop: threading.Event | None = None) -> None:
        self._path, self._seconds, self._stop = path, seconds, stop or threading.Event()
        self._since: float | None = None
        self._tries = 0
        self._ever = False

    def call(self, attempt: Callable[[], T]) -> T:
        """The result of the first attempt that does not raise TransientError."""
        while True:
            try:
                return attempt()
            except TransientError as e:
                self.pause(e)

    def succeeded(self) -> None:
        self._since, self._tries, self._ever = None, 0, True

    def pause(self, error: TransientError, where: str = "") -> None:
        """Sleep before the next try; raises TemporaryError when it is time to give up."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        backoff = min(_LONGEST_PAUSE, 0.25 * 2 ** min(self._tries, 9))
        pause = max(error.wait, backoff * random.uniform(0.5, 1.0))
        self._tries += 1
        limit = self._seconds
        if error.unreachable and not self._ever:
            limit = min(limit, _UNREACHABLE_SECONDS)
        if now + pause - self._since > limit:
            asked = f", and asks to wait {error.wait:.0f} s" if error.wait > limit else ""
            raise TemporaryError(
                f"{show(self._path)}: {error}{where}{asked}; gave up after {now - self._since:.0f} s and {self._tries:,} tries. "
                "Check the network and the spelling of the URL, then run the same command again to resume."
            )
        if now + pause - self._since > _QUIET_SECONDS:
            _log.warning("%s: %s%s; trying again in %.0f s", show(self._path), error, where, pause)
        if self._stop.wait(pause):
            raise Stopped("stopped")
