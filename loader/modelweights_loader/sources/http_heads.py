"""Heads of requests and answers as bytes: what `http.client` does too, with a fifth of its CPU, which counts for many small files.

Called by `http_ranges` and `slow_answers`. Pure but for the stream that is read. Must not import any library.
"""

from __future__ import annotations

import http.client
import re
from typing import TYPE_CHECKING

from modelweights_loader.errors import WillNotWorkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from io import BufferedReader

# As http.client has them.
_MAX_LINE_BYTES = 2**16
_MAX_LINES = 100
_ENDS = frozenset({b"\r\n", b"\n", b""})
_STATUS = re.compile(r"[1-9][0-9]{2}")
_FOLDED = frozenset({b" ", b"\t"})


class Headers:
    """Fields of an answer; of several with one name the first counts."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = dict(reversed(fields))

    def get(self, name: str, default: str = "") -> str:
        """Looks one up, whatever its case."""
        return self._fields.get(name.lower(), default)

    def items(self) -> list[tuple[str, str]]:
        """All of them, with names in lower case."""
        return list(self._fields.items())


def read_status(stream: BufferedReader) -> tuple[str, int, str]:
    """Reads the first line of an answer.

    Args:
        stream: Of the answer.

    Returns:
        Version, status and reason.

    Raises:
        HTTPException: It is none, or there is none.
    """
    line = stream.readline(_MAX_LINE_BYTES + 1)
    if not line:
        raise http.client.RemoteDisconnected("no answer")
    version, status, reason = (*line.decode("iso-8859-1").split(None, 2), "", "", "")[:3]
    if not version.startswith("HTTP/") or _STATUS.fullmatch(status) is None:
        raise http.client.BadStatusLine(version)
    return version, int(status), reason.strip()


def read_headers(stream: BufferedReader) -> Headers:
    """Reads the lines behind the status line, up to the empty one.

    Args:
        stream: Of the answer.

    Returns:
        Its fields. Lines that are none are passed over.

    Raises:
        HTTPException: They go on and on.
    """
    fields: list[tuple[str, str]] = []
    for _ in range(_MAX_LINES):
        line = stream.readline(_MAX_LINE_BYTES + 1)
        if len(line) > _MAX_LINE_BYTES:
            raise http.client.LineTooLong("header line")
        if line in _ENDS:
            return Headers(fields)
        name, separator, value = line.decode("iso-8859-1").partition(":")
        if line[:1] in _FOLDED:
            # The rest of the value before, as nobody has written it for long.
            if fields:
                fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.decode('iso-8859-1').strip()}")
        elif separator:
            fields.append((name.strip().lower(), value.strip()))
    message = f"got more than {_MAX_LINES} headers"
    raise http.client.HTTPException(message)


def write_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Writes the head of a request without a body.

    Args:
        method: GET or HEAD.
        target: Quoted.
        headers: With Host.

    Returns:
        What goes onto the wire.

    Raises:
        WillNotWorkError: A value, which may come from a listing, can't be in a head.
    """
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or not text.isascii():
        message = "a name or version of the source holds a line end, or other characters that no request can carry"
        raise WillNotWorkError(message, reason="BadUrl")
    return f"{text}\r\n\r\n".encode("ascii")
