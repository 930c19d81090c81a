"""What a failed exchange over HTTP means, and how long a source asks to wait.

Called by `http_ranges` and those that read answers. Pure but for the clock. Must not import any library.
"""

from __future__ import annotations

import email.utils
import errno
import http.client
import re
import socket
import ssl
import time
from typing import TYPE_CHECKING

from modelweights_loader.errors import LoaderError, WillNotWorkError, describe_os_error
from modelweights_loader.sources.contract import SourceUnavailableError

if TYPE_CHECKING:
    from email.message import Message

    from modelweights_loader.sources.http_ranges import Origin

_RATE_LIMIT = re.compile(r'"[^"]*"\s*;\s*r\s*=\s*([0-9]{1,9})\s*;\s*t\s*=\s*([0-9]{1,9})')
_MAX_WAIT_SECONDS = 24 * 3600.0
# Not to be tried again: these don't pass by themselves.
_TLS_PERMANENT = frozenset({"WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "HTTP_REQUEST", "NO_PROTOCOLS_AVAILABLE"})
_NOBODY_THERE = frozenset({errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH})


class EndlessAnswerError(http.client.HTTPException):
    """Interim answers, headers or trailers go on and on."""


class TooSlowError(TimeoutError):
    """Bytes come, but so few that waiting for the rest makes no sense."""


def explain_network_error(error: Exception, origin: Origin, stall_seconds: float) -> LoaderError:
    """Say what a failed exchange means, without path, query or credentials.

    Args:
        error: OSError or HTTPException.
        origin: Whom it was with.
        stall_seconds: For the words about a time-out.

    Returns:
        The error to raise, `from` the given one.
    """
    who = origin.described
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"{who}: its certificate isn't trusted ({error.verify_message}); name the authority with --ca-file"
        return WillNotWorkError(message, reason="TlsNotTrusted")
    if isinstance(error, ssl.SSLError):
        words = f"{who}: TLS failed ({error.reason or 'the connection ended'})"
        if error.reason in _TLS_PERMANENT:
            return WillNotWorkError(f"{words}; check scheme and port of the endpoint", reason="TlsFailed")
        return SourceUnavailableError(f"{words}; tried again")
    if isinstance(error, (TimeoutError, EndlessAnswerError)):
        is_ours = isinstance(error, (TooSlowError, EndlessAnswerError))
        said = str(error) if is_ours else f"not a byte for {stall_seconds:g} s"
        return SourceUnavailableError(f"{who}: {said}")
    if isinstance(error, socket.gaierror):
        message = (
            f"{who}: the name can't be resolved ({error.strerror}); check the endpoint, DNS and the proxy settings"
        )
        return SourceUnavailableError(message)
    if isinstance(error, OSError) and "Tunnel connection failed" in str(error):
        return _explain_proxy(str(error), who)
    if isinstance(error, OSError) and error.errno:
        check = "; check the endpoint and the proxy settings" if error.errno in _NOBODY_THERE else ""
        return SourceUnavailableError(f"{who}: {describe_os_error(error)}{check}")
    # Its text may be a line of the answer.
    return SourceUnavailableError(f"{who}: the connection ended or the answer is no HTTP ({type(error).__name__})")


def _explain_proxy(words: str, who: str) -> LoaderError:
    status = re.search(r"failed: (\d{3})", words)
    number = int(status[1]) if status else 0
    message = f"{who}: the proxy refuses the way there (status {number})"
    if number in (401, 403, 407):
        message += "; check HTTPS_PROXY with its user, or name the host in NO_PROXY"
        return WillNotWorkError(message, reason="ProxyRefused")
    return SourceUnavailableError(message)


def read_retry_after(headers: Message, now_seconds: float | None = None) -> float | None:
    """Take what the source asks to wait: Retry-After in seconds or as a date, else the header RateLimit.

    Args:
        headers: Of an answer with the status 429 or 503.
        now_seconds: Unix time; None takes the clock.

    Returns:
        Seconds, at least 0 and at most a day; or None.
    """
    seconds: float | None = None
    stated = (headers.get("Retry-After") or "").strip()
    limit = _RATE_LIMIT.search(headers.get("RateLimit") or "")
    if stated.isascii() and stated.isdigit():
        seconds = float(stated[:10])
    elif stated:
        try:
            date = email.utils.parsedate_to_datetime(stated)
            seconds = date.timestamp() - (time.time() if now_seconds is None else now_seconds)
        except (ValueError, OverflowError):
            seconds = None
    if seconds is None and limit is not None and int(limit[1]) == 0:
        seconds = float(limit[2])
    return None if seconds is None else min(max(seconds, 0.0), _MAX_WAIT_SECONDS)
