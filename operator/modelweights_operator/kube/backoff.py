"""How long to wait after a request that failed. Called by the queue and the informers."""

import random
from typing import Final

FIRST_SECONDS: Final = 0.5
CONFLICT_SECONDS: Final = 0.05
"""The same after a conflict: somebody else wrote, and the server is well."""
_JITTER: Final = 1.2
_DOUBLINGS: Final = 16
"""More change nothing at any bound that makes sense, and a float has an end."""


def delay(
    failures: int, at_most_seconds: float, asked_seconds: float | None = None, first_seconds: float = FIRST_SECONDS
) -> float:
    """Seconds until the next try, doubled with each failure, and spread so that not all come back at once.

    Args:
        failures: How many there were in a row before this one.
        at_most_seconds: Bound of the doubling.
        asked_seconds: What the server asked for. It gets that or a little more, never less.
        first_seconds: Without a failure before.
    """
    own = min(first_seconds * 2.0 ** min(failures, _DOUBLINGS), at_most_seconds)
    return (asked_seconds or own) * random.uniform(1.0, _JITTER)  # noqa: S311 - jitter
