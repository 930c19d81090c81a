"""Stands between a client and a server and spoils answers: cuts, stalls, delays, refusals. Settable while it runs.

    with FaultProxy(server_port) as proxy:
        proxy.faults = [Fault("cut", after_bytes=1000, times=1)]
        ... client at proxy.port ...

Each request has a connection of its own. Without a server it is an ordinary HTTP proxy, as HTTP_PROXY names one, CONNECT
included.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from tests.polling import wait_for
from tests.servers.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

_CHUNK_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
# SO_LINGER with a time of 0: the close is a reset.
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Fault(Turns):
    """What is done to the answers that it fits, when it is its turn.

    Attributes:
        kind: `cut` (a reset after so many bytes), `end` (an orderly end there), `stall`, `delay`, `status` or `body`.
        path: Part of the target of the requests that it is for.
        method: "" for all.
        after_bytes: Of the answer, its head included.
        seconds: Of a delay or a stall; a stall ends early when the proxy is closed.
        status: Line without the version, for example `503 Slow Down`.
        headers: Further headers of that answer.
        body: Of that answer.
        without_length: That answer says nothing of its length.
    """

    kind: str
    path: str = ""
    method: str = ""
    after_bytes: int = 0
    seconds: float = 60.0
    status: str = "503 Slow Down"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = (
        b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
    )
    without_length: bool = False

    def is_due(self, request: Request) -> bool:
        """Count the request if it fits; tell whether it is its turn."""
        return self.path in request.target and self.method in {"", request.method} and self.take()


class Request(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    headers: dict[str, str]
    raw: bytes


class FaultProxy:
    """The proxy; a context manager. Listens on loopback."""

    def __init__(self, server_port: int | None = None) -> None:
        self._server_port = server_port
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        # Bytes of answers that went to clients, also those that they threw away.
        self.sent_bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; may be called twice."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def wait_until_idle(self, seconds: float = 10) -> None:
        """Wait until no connection is left."""
        if not wait_for(lambda: not self._sockets, seconds):
            raise AssertionError("a connection through the proxy stays open")

    def wait_for_request(self, path: str, seconds: float = 10) -> None:
        """Wait until a GET came whose target has this in it."""

        def came() -> bool:
            return any(path in request.target and request.method == "GET" for request in list(self.requests))

        if not wait_for(came, seconds):
            raise AssertionError(f"no request for {path} came")

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type] # a method
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    @contextlib.contextmanager
    def _owned(self, each: socket.socket) -> Iterator[socket.socket]:
        with self._lock:
            self._sockets.add(each)
        try:
            yield each
        finally:
            with self._lock:
                self._sockets.discard(each)
            # It wakes up who reads from it in another thread, without which the other side would hear of nothing.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RD)
            each.close()

    def _serve(self, client: socket.socket) -> None:
        # Either side may go away at any time; that is what this is for.
        with self._owned(client), contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = _read_request(client)
            if request is None or self._closing.is_set():
                return
            with self._lock:
                self.requests.append(request)
                due = next((fault for fault in self.faults if fault.is_due(request)), None)
            if due is not None and due.kind == "status":
                self._refuse(client, due)
                return
            if due is not None and due.kind == "delay":
                self._closing.wait(due.seconds)
            self._forward(client, request, due)

    def _refuse(self, client: socket.socket, fault: Fault) -> None:
        length = {} if fault.without_length else {"Content-Length": str(len(fault.body))}
        headers = {**length, "Connection": "close", **fault.headers}
        lines = [f"HTTP/1.1 {fault.status}", *(f"{name}: {value}" for name, value in headers.items())]
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + fault.body)

    def _forward(self, client: socket.socket, request: Request, fault: Fault | None) -> None:
        host, port, head = self._route(request)
        with self._owned(socket.create_connection((host, port), timeout=60)) as server:
            if head:
                server.sendall(head)
            else:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._start(_pump, client, server)
            left = fault.after_bytes if fault is not None and fault.kind in {"cut", "end", "stall"} else None
            while piece := server.recv(_CHUNK_BYTES):
                given = piece if left is None else piece[:left]
                client.sendall(given)
                self.sent_bytes += len(given)
                if left is not None and fault is not None:
                    left -= len(given)
                    if not left:
                        self._spoil(client, fault)
                        return

    def _spoil(self, client: socket.socket, fault: Fault) -> None:
        if fault.kind == "stall":
            self._closing.wait(fault.seconds)
        elif fault.kind == "cut":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _route(self, request: Request) -> tuple[str, int, bytes]:
        """Where to, and the head that is sent there; none for a tunnel."""
        target, head = request.target, request.raw
        host, port = "127.0.0.1", self._server_port
        if request.method == "CONNECT":
            name, _, number = target.rpartition(":")
            return name, int(number), b""
        if port is None:
            parts = urlsplit(target)
            host, port = parts.hostname or host, parts.port or 80
            path = target[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
            head = head.replace(target.encode(), path.encode(), 1)
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        return host, port, b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])


def _read_request(client: socket.socket) -> Request | None:
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = client.recv(_CHUNK_BYTES)
        if not piece or len(raw) > _MAX_HEAD_BYTES:
            return None
        raw += piece
    lines = raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, target = itertools.islice(lines[0].split(" "), 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return Request(method, target, headers, raw)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_CHUNK_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
