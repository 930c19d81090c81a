"""A forward proxy for tests: CONNECT and absolute URLs, with a user if wanted; every name leads to loopback.

Must not import anything but the standard library.
"""

from __future__ import annotations

import base64
import http.server
import selectors
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class ForwardProxy(socketserver.ThreadingTCPServer):
    """Listens on 127.0.0.1; a user's password is `p:w`; `seen` has what was asked for, `HOST:PORT` each."""

    daemon_threads = True

    def __init__(self, *, user: str = "", refuse: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        pair = base64.b64encode(f"{user}:p:w".encode()).decode()
        self.expected = f"Basic {pair}" if user else ""
        self.refuse = refuse
        self.seen: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ForwardProxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the base class's
        return

    def _admit(self, target: str) -> bool:
        self.server.seen.append(target)
        status = self.server.refuse
        if self.server.expected and self.headers.get("Proxy-Authorization") != self.server.expected:
            status = 407
        if status:
            self.send_error(status)
        return not status

    def do_CONNECT(self) -> None:
        if not self._admit(self.path):
            return
        with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2])), timeout=30) as other:
            self.send_response(200)
            self.end_headers()
            _pass_on(self.connection, other)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not self._admit(f"{parts.hostname}:{parts.port or 80}"):
            return
        with socket.create_connection(("127.0.0.1", parts.port or 80), timeout=30) as other:
            kept = [
                f"{name}: {value}"
                for name, value in self.headers.items()
                if name.lower() not in ("proxy-authorization", "connection")
            ]
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            head = [f"GET {target} HTTP/1.1", *kept, "Connection: close", "", ""]
            other.sendall("\r\n".join(head).encode())
            _pass_on(self.connection, other)
        self.close_connection = True


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select(30):
                assert isinstance(key.fileobj, socket.socket)
                piece = key.fileobj.recv(1 << 16)
                if not piece:
                    return
                key.data.sendall(piece)
