"""Ends an answer that trickles, or whose head has no end.

A socket's time-out begins anew with every byte, so that one byte a minute would never end. And a server may send interim
answers (1xx), headers or trailers for ever, as fast as one likes.

Called by `http_ranges`. Only the time that a read waits counts, not what is done between two reads: a cap of our own is no
fault of the server. Must not import any library.
"""

from __future__ import annotations

import http.client
import io
import math
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from modelweights_loader.sources.http_errors import EndlessAnswerError, TooSlowError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

# Far below what any line gives, far above what keeps a connection alive on purpose.
MIN_BYTES_PER_SECOND = 1024
# Servers may think for nearly the stall time, first before the head and then before the body.
_STALLS = 2
# Servers themselves take 8 to 64 KiB of a request; all heads of an answer, with the interim ones.
_MAX_HEAD_BYTES = 2**18
_MAX_INTERIM = 16
_MAX_TRAILERS = 100


class WatchedReader(io.RawIOBase):
    """Reads from another stream and adds up how long that waits."""

    def __init__(
        self,
        raw: io.RawIOBase,
        stall_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        left_bytes: float = math.inf,
    ) -> None:
        """Wraps a stream, which is closed with this one.

        Args:
            raw: It.
            stall_seconds: Twice as long with less than `MIN_BYTES_PER_SECOND` ends it.
            clock: Monotonic seconds.
            left_bytes: More than that ends it too, until it is set anew.
        """
        self._raw = raw
        self.left_bytes = left_bytes
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
            EndlessAnswerError: Likewise.
        """
        if self.left_bytes <= 0:
            message = f"its answer's head has more than {_MAX_HEAD_BYTES} bytes"
            raise EndlessAnswerError(message)
        began = self._clock()
        got = cast("int | None", self._raw.readinto(buffer))
        self._waited_seconds += self._clock() - began
        self._received_bytes += got or 0
        self.left_bytes -= got or 0
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
        self._reader = WatchedReader(self.fp.detach(), stall_seconds, left_bytes=_MAX_HEAD_BYTES)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Reads the head. The bound is for that alone; a tunnel's answer, which is read otherwise, is no more than a head."""
        super().begin()
        self._reader.left_bytes = math.inf

    def _read_status(self) -> tuple[str, int, str]:
        """The status line of the answer itself: http.client knows 100 alone, and reads any number of them."""
        for _ in range(_MAX_INTERIM + 1):
            # Typeshed leaves it out.
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if not _is_interim(status):
                return version, status, reason
            http.client.parse_headers(self.fp)
        message = f"it sends more than {_MAX_INTERIM} interim answers (status 1xx) in place of one"
        raise EndlessAnswerError(message)

    def _read_and_discard_trailer(self) -> None:
        """Reads what may follow the chunks of a body."""
        for _ in range(_MAX_TRAILERS):
            if self.fp.readline(_MAX_HEAD_BYTES) in {b"", b"\n", b"\r\n"}:
                return
        message = f"more than {_MAX_TRAILERS} lines follow its answer"
        raise EndlessAnswerError(message)


def _is_interim(status: int) -> bool:
    """Whether another one follows; 101 is the last of its protocol."""
    return HTTPStatus.CONTINUE <= status < HTTPStatus.OK and status != HTTPStatus.SWITCHING_PROTOCOLS
