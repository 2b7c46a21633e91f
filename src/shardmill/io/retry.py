"""When something on the network fails: whether to try again, after which pause, and when to give up."""

import logging
import random
import threading
import time

from shardmill.errors import InputError, ShardmillError, TemporaryError
from shardmill.system.names import show

_LONGEST_PAUSE = 30.0
_UNREACHABLE_SECONDS = 15.0  # a host that never answered is more likely misspelt than resting
_TOLD_AFTER_SECONDS = 5.0

_log = logging.getLogger("shardmill")


class Stopped(ShardmillError):
    """The job is over; whoever waits for bytes need not."""


class Missing(InputError):
    """There is no such file or folder."""


class Trouble(Exception):
    """Something that may be gone in a moment."""

    def __init__(self, reason: str, *, wait: float = 0.0, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.unreachable = unreachable


class Retry:
    """Pauses that grow, with jitter, until something arrives again or the time is up."""

    def __init__(self, path: str, seconds: float, stop: threading.Event | None = None) -> None:
        self._path, self._seconds, self._stop = path, seconds, stop or threading.Event()
        self._since: float | None = None
        self._tries = 0
        self._ever = False

    def arrived(self) -> None:
        self._since, self._tries, self._ever = None, 0, True

    def pause(self, trouble: Trouble, place: str = "") -> None:
        """Wait before the next try, or give up."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        grown = min(_LONGEST_PAUSE, 0.25 * 2.0**self._tries)
        pause = max(trouble.wait, grown * random.uniform(0.5, 1.0))
        self._tries += 1
        limit = self._seconds
        if trouble.unreachable and not self._ever:
            limit = min(limit, _UNREACHABLE_SECONDS)
        if now + pause - self._since > limit:
            asked = f", and asks to wait {trouble.wait:.0f} s" if trouble.wait > limit else ""
            raise TemporaryError(
                f"{show(self._path)}: {trouble}{place}{asked}; gave up after {now - self._since:.0f} s and {self._tries:,} tries. "
                "Check the network and the spelling, then run the same command again to go on."
            )
        if now + pause - self._since > _TOLD_AFTER_SECONDS:
            _log.warning("%s: %s%s; trying again in %.0f s", show(self._path), trouble, place, pause)
        if self._stop.wait(pause):
            raise Stopped("stopped")
