"""Reads ranges over HTTP and HTTPS with few copies: connections kept, proxies, strict answers, errors by class.

Used by `huggingface` (also as the transport of its library) and by sources of plain https. `http.client` and no other
client, since it alone reads into a buffer of ours; see docs/sources.md for what that saves. Must not import any library.
"""

from __future__ import annotations

import functools
import http.client
import re
import select
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from modelweights_loader import __version__
from modelweights_loader.errors import TryAgainError, WillNotWorkError
from modelweights_loader.sources.contract import RangesNotSupportedError, SourceChangedError, SourceUnavailableError
from modelweights_loader.sources.http_errors import explain_network_error
from modelweights_loader.sources.proxies import ProxyTable
from modelweights_loader.sources.slow_answers import WatchedResponse
from modelweights_loader.sources.tls import make_tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from email.message import Message

    from modelweights_loader.sources.contract import SourceOptions
    from modelweights_loader.sources.proxies import Proxy

# Larger ones save nothing on loopback; each connection has one.
PIECE_BYTES = 256 << 10
_HTTP_PORTS = {"http": 80, "https": 443}
_OK = 200
_PARTIAL = 206
_TOO_FAR = 416
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What is left of a short answer is read so that its connection can be used again.
_DRAIN_BYTES = 64 << 10


class Origin(NamedTuple):
    """Scheme, host and port: what a credential may be sent to."""

    scheme: str
    host: str
    port: int

    @property
    def described(self) -> str:
        """For messages: no path, no query, no credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _HTTP_PORTS[self.scheme] else f":{self.port}")


def parse_origin(url: str) -> Origin:
    """Take the origin of a URL.

    Raises:
        WillNotWorkError: It is none of http or https, or carries credentials.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        # As it will be looked up; the host of a redirect is anybody's text.
        host = (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError as error:
        raise WillNotWorkError("a URL can't be read; check the endpoint", reason="BadUrl") from error
    if parts.scheme not in _HTTP_PORTS or not host or " " in host or not host.isprintable():
        message = f"a URL with the scheme {parts.scheme[:20]!r} and the host {parts.hostname!r} is none of http(s)"
        raise WillNotWorkError(message, reason="BadUrl")
    if parts.username is not None or parts.password is not None:
        raise WillNotWorkError("a URL carries a user or a password; pass credentials by file", reason="BadUrl")
    return Origin(parts.scheme, parts.hostname or "", port or _HTTP_PORTS[parts.scheme])


def join_url(base: str, target: str) -> str:
    """Resolve what a redirect says.

    Raises:
        WillNotWorkError: It is no URL.
    """
    try:
        return urljoin(base, target)
    except ValueError as error:
        raise WillNotWorkError("a redirect leads to what is no URL; check the endpoint", reason="BadUrl") from error


def make_target(url: str) -> str:
    """Path and query of a URL as they go onto the wire; what may not stand there is quoted."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return quote((parts.path or "/") + query, safe="%/:=&?~+!$,;'@()*[]")


class Answer:
    """The answer to one request. Its body is read once; `close` gives the connection back, or ends it."""

    def __init__(self, client: HttpClient, connection: _Connection, response: http.client.HTTPResponse) -> None:
        self._client, self._connection, self._response = client, connection, response
        self.origin = connection.origin
        self.status = response.status
        self.headers: Message = response.headers
        # None for a chunked body and for one that ends with the connection.
        self.length_bytes: int | None = response.length
        self._closed = False

    def read_into(self, view: memoryview) -> int:
        """Fill a buffer as far as there is something to come.

        Returns:
            Bytes read; 0 at the end.

        Raises:
            SourceUnavailableError: A stall, a reset, an end in the middle of a chunk.
        """
        try:
            return self._response.readinto(view)
        except (OSError, http.client.HTTPException) as error:
            self._end()
            raise explain_network_error(error, self.origin, self._client.stall_seconds) from error

    def read_all(self, limit_bytes: int) -> bytes:
        """Read the whole body and close.

        Raises:
            SourceUnavailableError: It ends early.
            WillNotWorkError: It is longer than the limit.
        """
        try:
            body = bytearray()
            expected = self.length_bytes
            view = memoryview(bytearray(min(PIECE_BYTES, limit_bytes + 1)))
            while count := self.read_into(view):
                body += view[:count]
                if len(body) > limit_bytes:
                    message = f"{self.origin.described} answers with more than {limit_bytes} bytes; check the endpoint"
                    raise WillNotWorkError(message, reason="BadListing")
            if expected is not None and len(body) != expected:
                raise SourceUnavailableError(_end_early(self.origin, len(body), expected))
            return bytes(body)
        finally:
            self.close()

    def close(self) -> None:
        """Give the connection back if nothing of the answer is left, or little; else end it. May be called twice."""
        if self._closed:
            return
        left = self._response.length
        # An answer to HEAD has nothing left either, but ends only when that is read.
        if left is not None and left <= _DRAIN_BYTES and not self._response.isclosed():
            try:
                self._response.read()
            except (OSError, http.client.HTTPException):
                self._end()
                return
        if self._response.isclosed() and self._connection.http.sock is not None:
            self._closed = True
            self._client.give_back(self._connection)
        else:
            self._end()

    def _end(self) -> None:
        self._closed = True
        self._response.close()
        self._client.end(self._connection)


class _Connection:
    """One connection, and whether an answer came over it before."""

    def __init__(self, origin: Origin, connection: http.client.HTTPConnection, proxy: Proxy | None) -> None:
        self.origin, self.http = origin, connection
        self.forward = proxy if origin.scheme == "http" else None
        self.used = False
        # http.client forgets its socket where an answer ends with the connection; `shut` needs it even then.
        self.socket: socket.socket | None = None

    def is_stale(self) -> bool:
        """Whether the other side closed it, or sent what nobody asked for."""
        if self.http.sock is None:
            return True
        poller = select.poll()
        poller.register(self.http.sock, select.POLLIN)
        return bool(poller.poll(0))

    def shut(self) -> None:
        """End a read in another thread."""
        if self.socket is not None:
            try:
                self.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


class HttpClient:
    """Sends requests from any number of threads; keeps connections that are idle."""

    def __init__(self, *, stall_seconds: float, num_connections: int, ca_file: str | None = None) -> None:
        """Make one; connects to nothing.

        Args:
            stall_seconds: No byte for so long ends a request or a read.
            num_connections: So many idle ones are kept.
            ca_file: See `tls.make_tls_context`.
        """
        self.stall_seconds = stall_seconds
        self._num_connections = num_connections
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None
        self._proxies = ProxyTable.from_environment()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    def send(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        """Send a request without a body and wait for the answer's head. Redirects are answers like others.

        Args:
            method: GET or HEAD.
            url: Absolute.
            headers: Accept-Encoding is `identity` and User-Agent ours where they aren't given.

        Raises:
            SourceUnavailableError: No answer.
            WillNotWorkError: A certificate that isn't trusted, a proxy that refuses, no URL.
        """
        origin = parse_origin(url)
        while True:
            connection = self._take(origin)
            try:
                response = self._exchange(connection, method, make_target(url), headers)
            except (OSError, http.client.HTTPException) as error:
                self.end(connection)
                # An idle connection may be closed by the other side just now; that says nothing about the source.
                if connection.used and isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    continue
                raise explain_network_error(error, origin, self.stall_seconds) from error
            except BaseException:
                self.end(connection)
                raise
            connection.used = True
            return Answer(self, connection, response)

    def _exchange(
        self, connection: _Connection, method: str, target: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        wanted = {"Accept-Encoding": "identity", "User-Agent": f"modelweights-loader/{__version__}", **headers}
        if connection.forward is not None:
            target = f"{connection.origin.described}{target}"
            wanted.update(connection.forward.headers)
        if connection.http.sock is None:
            connection.http.connect()
            connection.socket = connection.http.sock
        connection.http.request(method, target, headers=wanted)
        return connection.http.getresponse()

    def _take(self, origin: Origin) -> _Connection:
        with self._lock:
            if self._closed:
                raise TryAgainError("the source is closed", reason="Closed")
            found = next((each for each in reversed(self._idle) if each.origin == origin), None)
            if found is not None:
                self._idle.remove(found)
                self._busy.add(found)
        if found is None:
            found = self._make(origin)
            with self._lock:
                self._busy.add(found)
        elif found.is_stale():
            self.end(found)
            return self._take(origin)
        return found

    def _make(self, origin: Origin) -> _Connection:
        proxy = self._proxies.choose(origin.scheme, origin.host, origin.port)
        host, port = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
        if origin.scheme == "http":
            plain = http.client.HTTPConnection(host, port, timeout=self.stall_seconds)
            return _Connection(origin, self._watch(plain), proxy)
        with self._lock:
            # Reading the system's authorities takes 10 ms.
            self._context = self._context or make_tls_context(self._ca_file)
        secure = http.client.HTTPSConnection(host, port, timeout=self.stall_seconds, context=self._context)
        if proxy is not None:
            secure.set_tunnel(origin.host, origin.port, dict(proxy.headers))
        return _Connection(origin, self._watch(secure), proxy)

    def _watch(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        # typeshed has it as a class; whatever makes a response will do.
        connection.response_class = functools.partial(WatchedResponse, stall_seconds=self.stall_seconds)  # type: ignore[assignment]
        return connection

    def give_back(self, connection: _Connection) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            self._busy.discard(connection)
            if not self._closed:
                self._idle.append(connection)
                if len(self._idle) <= self._num_connections:
                    return
                connection = self._idle.pop(0)
        connection.http.close()

    def end(self, connection: _Connection) -> None:
        """Close a connection."""
        with self._lock:
            self._busy.discard(connection)
        connection.http.close()

    def close(self) -> None:
        """Close all connections; reads under way end with an error."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in idle:
            connection.http.close()
        for connection in busy:
            connection.shut()


def make_client(options: SourceOptions) -> HttpClient:
    """Make a client as a source is told; connects to nothing.

    Args:
        options: Of the source.

    Returns:
        The caller closes it.
    """
    return HttpClient(
        stall_seconds=options.stall_seconds, num_connections=options.num_connections, ca_file=options.ca_file
    )


def format_range(begin: int, end: int) -> dict[str, str]:
    """Make the header for the bytes from begin up to end."""
    return {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}


def read_answer(answer: Answer, name: str, size_bytes: int, begin: int, end: int) -> Iterator[memoryview]:
    """Give the body of an answer to `format_range`, exactly the bytes asked for; closes the answer at its end.

    Args:
        answer: With the status 200, 206 or 416.
        name: Of the file, for messages.
        size_bytes: Of the whole file, as listed; -1 where that isn't known.
        begin: First byte asked for.
        end: Behind the last one.

    Yields:
        Pieces in one buffer: a piece is valid until the next one.

    Raises:
        RangesNotSupportedError: The answer is the whole file, and begin isn't its start.
        SourceChangedError: The file has another size by now.
        SourceUnavailableError: Other bytes, too few or too many.
        WillNotWorkError: The body is compressed.
    """
    try:
        _check_head(answer, name, size_bytes, begin, end)
        left = end - begin
        view = memoryview(bytearray(min(PIECE_BYTES, left)))
        while left:
            count = answer.read_into(view[: min(len(view), left)])
            if not count:
                raise SourceUnavailableError(f"{name}: {_end_early(answer.origin, end - begin - left, end - begin)}")
            left -= count
            yield view[:count]
        if answer.status == _PARTIAL and answer.length_bytes is None and answer.read_into(memoryview(bytearray(1))):
            raise SourceUnavailableError(f"{name}: {answer.origin.described} gives more bytes than it was asked for")
    finally:
        answer.close()


def _check_head(answer: Answer, name: str, size_bytes: int, begin: int, end: int) -> None:
    origin, length = answer.origin.described, answer.length_bytes
    coding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        message = f"{name}: {origin} compresses ({coding[:20]}) though told not to; switch that off there"
        raise WillNotWorkError(message, reason="EncodedAnswer")
    if answer.status == _TOO_FAR:
        raise SourceChangedError(f"{name}: {origin} has no bytes {begin} to {end - 1}; the file is shorter than listed")
    if answer.status == _PARTIAL:
        _check_part(answer, name, size_bytes, begin, end)
    elif begin > 0:
        raise RangesNotSupportedError(f"{name}: {origin} gives the whole file for a range")
    elif length is not None and size_bytes >= 0 and length != size_bytes:
        raise SourceChangedError(f"{name}: {origin} gives {length} bytes, {size_bytes} were listed")


def _check_part(answer: Answer, name: str, size_bytes: int, begin: int, end: int) -> None:
    """Some mirrors leave Content-Range out: then the length alone has to be right."""
    origin, length = answer.origin.described, answer.length_bytes
    stated = answer.headers.get("Content-Range")
    if stated is not None:
        found = _CONTENT_RANGE.fullmatch(stated.strip())
        if found is None or (int(found[1]), int(found[2])) != (begin, end - 1):
            message = f"{name}: {origin} gives the range {stated[:80]!r} for bytes {begin}-{end - 1}"
            raise SourceUnavailableError(message)
        if found[3] != "*" and size_bytes >= 0 and int(found[3]) != size_bytes:
            raise SourceChangedError(f"{name}: {origin} has {found[3]} bytes, {size_bytes} were listed")
    elif length is None:
        raise SourceUnavailableError(f"{name}: {origin} says neither which range it gives nor how long it is")
    if length is not None and length != end - begin:
        raise SourceUnavailableError(f"{name}: {origin} gives {length} bytes for bytes {begin}-{end - 1}")


def _end_early(origin: Origin, got_bytes: int, expected_bytes: int) -> str:
    return f"the transfer from {origin.described} ended after {got_bytes} of {expected_bytes} bytes"
