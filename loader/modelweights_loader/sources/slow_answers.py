"""Ends an answer that trickles: a socket's time-out begins anew with every byte, so that one byte a minute would never end.

Called by `http_ranges`. Only the time that a read waits counts, not what is done between two reads: a cap of our own is no
fault of the server. Must not import any library.
"""

from __future__ import annotations

import http.client
import io
import time
from typing import TYPE_CHECKING, Any, cast

from modelweights_loader.sources.http_errors import TooSlowError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

# Far below what any line gives, far above what keeps a connection alive on purpose.
MIN_BYTES_PER_SECOND = 1024
# Servers may think for nearly the stall time, first before the head and then before the body.
_STALLS = 2


class WatchedReader(io.RawIOBase):
    """Reads from another stream and adds up how long that waits."""

    def __init__(self, raw: io.RawIOBase, stall_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Wraps a stream, which is closed with this one.

        Args:
            raw: It.
            stall_seconds: Twice as long with less than `MIN_BYTES_PER_SECOND` ends it.
            clock: Monotonic seconds.
        """
        self._raw = raw
        self._patience_seconds = _STALLS * stall_seconds
        self._clock = clock
        self._waited_seconds = 0.0
        self._received_bytes = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Reads once.

        Raises:
            TooSlowError: See the module.
        """
        began = self._clock()
        got = cast("int | None", self._raw.readinto(buffer))
        self._waited_seconds += self._clock() - began
        self._received_bytes += got or 0
        if self._waited_seconds >= self._patience_seconds:
            if got and self._received_bytes < MIN_BYTES_PER_SECOND * self._waited_seconds:
                message = f"{self._received_bytes} bytes in {self._waited_seconds:.0f} s are too few to wait for more"
                raise TooSlowError(message)
            self._waited_seconds, self._received_bytes = 0.0, 0
        return got

    def close(self) -> None:
        """Closes both."""
        self._raw.close()
        super().close()


class WatchedResponse(http.client.HTTPResponse):
    """An answer whose head and body are read so."""

    def __init__(self, sock: socket.socket, *arguments: Any, stall_seconds: float, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(WatchedReader(raw, stall_seconds))
