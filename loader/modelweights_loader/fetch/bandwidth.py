"""Keeps all connections together below a number of bytes per second. Called by `workers`.

A token bucket that may be overdrawn: who takes more than there is waits until it is paid back. Pure but for its lock.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# What may come at once after a pause.
_BURST_SECONDS = 0.1


class TokenBucket:
    """One for all connections of the process."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins with a full bucket.

        Args:
            bytes_per_second: The rate; 0 is no bound.
            clock: Monotonic seconds.
        """
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._free_bytes = bytes_per_second * _BURST_SECONDS
        self._at = clock()

    def take(self, count_bytes: int) -> float:
        """Takes bytes out.

        Args:
            count_bytes: That came.

        Returns:
            Seconds to wait before more is read.
        """
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_bytes = min(self._rate * _BURST_SECONDS, self._free_bytes + (now - self._at) * self._rate)
            self._at = now
            self._free_bytes -= count_bytes
            return max(0.0, -self._free_bytes / self._rate)
