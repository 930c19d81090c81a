"""Decides whether and when something is tried again. Called by `workers`, once for each part, by `listing` and by `choice`.

Pure: the random number is handed in, and so is what sleeps.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from modelweights_loader.errors import InterruptedByUserError, LoaderError, NoRoomError, TerminatedError
from modelweights_loader.sources.contract import SourceChangedError, SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
MAX_RETRY_AFTER_SECONDS = 300.0
DEFAULT_FIRST_WAIT_SECONDS = 0.5
_LONGEST_SECONDS = 60.0
DEFAULT_MAX_ATTEMPTS = 8
# Another content needs another listing, room another call, and who is told to end doesn't begin again.
_FINAL = (SourceChangedError, NoRoomError, TerminatedError, InterruptedByUserError)


class Backoff:
    """Counts failures without progress in between.

    Waits are exponential with full jitter: workers that failed together, as all do when a source goes away, come back
    spread out. See "Exponential Backoff And Jitter" in the AWS architecture blog, 2015.
    """

    def __init__(
        self,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        first_seconds: float = DEFAULT_FIRST_WAIT_SECONDS,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Begins to count.

        Args:
            max_attempts: As many failures without a byte in between end it.
            first_seconds: Longest first wait.
            draw: Gives 0 to 1.
        """
        self._max_attempts = max_attempts
        self._first_seconds = first_seconds
        self._draw = draw
        self._failures = 0

    def note_progress(self) -> None:
        """Begins anew: bytes came."""
        self._failures = 0

    def next_wait(self, error: LoaderError) -> float | None:
        """Decides after a failure.

        Args:
            error: Why it failed.

        Returns:
            Seconds to wait before the next attempt, or None: there is none.
        """
        self._failures += 1
        if not error.retry or isinstance(error, _FINAL) or self._failures >= self._max_attempts:
            return None
        longest = min(_LONGEST_SECONDS, self._first_seconds * 2.0 ** (self._failures - 1))
        asked = error.retry_after_seconds if isinstance(error, SourceUnavailableError) else None
        if asked is None:
            return longest * self._draw()
        # Nobody comes back before the time that was asked for, and not all at that very moment.
        return min(max(asked, 0.0), MAX_RETRY_AFTER_SECONDS) + self._first_seconds * self._draw()


def repeat(
    attempt: Callable[[], _Result],
    backoff: Backoff,
    sleep: Callable[[float], None],
    say: Callable[[str], None] = lambda _: None,
) -> _Result:
    """Tries again as long as that may help.

    Args:
        attempt: What to do.
        backoff: Counts failures.
        sleep: Waits for so many seconds.
        say: Told of each failure that isn't the last one.

    Returns:
        What the attempt that went well gave.

    Raises:
        LoaderError: The last failure.
    """
    while True:
        try:
            return attempt()
        except LoaderError as error:
            wait = backoff.next_wait(error)
            if wait is None:
                raise
            say(f"{error.message}; asked again in {wait:.1f} s")
            sleep(wait)
