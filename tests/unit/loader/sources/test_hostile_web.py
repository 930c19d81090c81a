"""Web servers that mean no good: answers that trickle, redirects to what is no URL, lists of names without an end."""

from __future__ import annotations

import io
import json
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.contract import SourceOptions, SourceUnavailableError
from modelweights_loader.sources.http_errors import TooSlowError
from modelweights_loader.sources.http_ranges import HttpClient
from modelweights_loader.sources.objectstore_https import HttpsSource
from modelweights_loader.sources.objectstore_https_names import find_names
from modelweights_loader.sources.slow_answers import MIN_BYTES_PER_SECOND, WatchedReader
from tests.servers.answers import serve_answers

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://user:hunter2@host/x?sig=hunter3",
        "http://user:hunter2@host/x",
        "http://[::1/x?sig=hunter3",
        "http://host:99999/x?sig=hunter3",
        "http://a\x01b/x?sig=hunter3",
        "http://a b/x?sig=hunter3",
        "http://ä\x83.example/x?sig=hunter3",
        f"http://{'a' * 70}.example/x?sig=hunter3",
    ],
)
def test_a_redirect_to_what_can_not_be_asked_is_an_end(location: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with (
        serve_answers(answer) as url,
        closing(HttpsSource(f"{url}/model.safetensors", SourceOptions())) as source,
        pytest.raises(WillNotWorkError) as caught,
    ):
        source.list_files()
    assert ("BadUrl", False) == (caught.value.reason, "hunter" in caught.value.message)


@pytest.mark.parametrize("what", ["head", "body", "chunks"])
def test_an_answer_that_trickles_ends_though_no_byte_is_late(what: str) -> None:
    over = threading.Event()
    heads = {
        "head": b"HTTP/1.1 200 OK\r\nX-Long: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
    }

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            handler.wfile.write(heads[what])
            while not over.wait(0.02):
                handler.wfile.write(b"x")
        except OSError:
            return

    client = HttpClient(stall_seconds=0.5, num_connections=1)
    try:
        with serve_answers(answer) as url, pytest.raises(SourceUnavailableError, match="too few to wait for"):
            client.send("GET", url, {}).read_into(memoryview(bytearray(1000)))
    finally:
        over.set()
        client.close()


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize(
    ("first", "again", "said"),
    [
        (b"", _CONTINUE, "more than 16 interim answers"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", "more than 16 interim answers"),
        (b"", b"HTTP/1.1 102 Processing\r\n" + b"X: y\r\n" * 99 + b"\r\n", "more than 16 interim answers"),
        (b"HTTP/1.1 200 OK\r\n", b"X-Long: y\r\n", "HTTPException"),
        (b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 60_000 + b"\r\n", "head has more than 262144 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 1000, "LineTooLong"),
        (_CHUNKED, b"X: y\r\n", "more than 100 lines follow"),
    ],
    ids=["100", "103", "102", "headers", "long headers", "long line", "trailers"],
)
def test_an_answer_without_an_end_ends(first: bytes, again: bytes, said: str) -> None:
    """As fast as it comes, so that no byte is late."""
    over = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            handler.wfile.write(first)
            while not over.is_set():
                handler.wfile.write(again)
        except OSError:
            return

    client = HttpClient(stall_seconds=20, num_connections=1)
    try:
        with serve_answers(answer) as url, pytest.raises(SourceUnavailableError, match=said):
            client.send("GET", url, {}).read_all(1000)
    finally:
        over.set()
        client.close()


def test_interim_answers_are_passed_over() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(_CONTINUE + b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")

    with serve_answers(answer) as url, closing(HttpClient(stall_seconds=20, num_connections=1)) as client:
        assert [b"ab", b"ab"] == [client.send("GET", url, {}).read_all(10) for _ in range(2)]


def test_a_tunnel_whose_head_has_no_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not over.is_set():
                handler.wfile.write(b"X: y\r\n")
        except OSError:
            return

    with serve_answers(answer) as url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        client = HttpClient(stall_seconds=20, num_connections=1)
        try:
            with pytest.raises(SourceUnavailableError, match="head has more than"):
                client.send("GET", "https://host.invalid/x", {})
        finally:
            over.set()
            client.close()


@pytest.mark.parametrize("number", [301, 302, 303, 307, 308])
def test_redirects_without_an_end_end(number: int) -> None:
    asked = 0

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal asked
        asked += 1
        handler.send_response(number)
        handler.send_header("Location", f"/{asked}/model.safetensors")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with (
        serve_answers(answer) as url,
        closing(HttpsSource(f"{url}/model.safetensors", SourceOptions(num_connections=1))) as source,
        pytest.raises(WillNotWorkError, match="more than 5 times"),
    ):
        source.list_files()
    assert 6 == asked


class _Stream(io.RawIOBase):
    """Gives so many bytes at each read, and says how long that took."""

    def __init__(self, reads: list[tuple[int, float]]) -> None:
        self._reads = iter(reads)
        self.now = 0.0

    def readinto(self, _buffer: object) -> int:
        count, seconds = next(self._reads)
        self.now += seconds
        return count


@pytest.mark.parametrize(
    ("reads", "ends"),
    [
        ([(1, 9.0)] * 6, False),
        ([(1, 9.0)] * 7, True),
        # A server that thinks before the head and before the body.
        ([(200, 29.0), (100_000, 29.0)], False),
        ([(MIN_BYTES_PER_SECOND, 1.0)] * 300, False),
        ([(MIN_BYTES_PER_SECOND - 1, 1.0)] * 60, True),
        # Fast for long doesn't pay for a trickle afterwards.
        ([(10**6, 1.0)] * 60 + [(1, 29.0)] * 3, True),
        # The end of an answer is no fault of its own.
        ([(1, 29.0), (1, 29.0), (0, 29.0)], False),
    ],
)
def test_what_is_too_slow(reads: list[tuple[int, float]], *, ends: bool) -> None:
    stream = _Stream(reads)
    reader = WatchedReader(stream, 30.0, lambda: stream.now)

    def read_all() -> None:
        for _ in reads:
            reader.readinto(bytearray(1))

    if ends:
        with pytest.raises(TooSlowError):
            read_all()
    else:
        read_all()


class _Server:
    """Has files by name, and the same index for every folder."""

    url = "https://host/"

    def __init__(self, files: dict[str, bytes], index: object = None) -> None:
        self._files, self._index = files, index
        self.asked = 0

    def read_small(self, name: str, _limit_bytes: int, accept: str = "") -> bytes | None:
        self.asked += 1
        assert self.asked < 10_000
        return json.dumps(self._index).encode() if accept and self._index else self._files.get(name)


_HALF = "\ud800.json"
_SUMS = b"0" * 64


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (_Server({}, [{"name": _HALF}]), "UnsafePath"),
        (_Server({}, [{"name": "a.json"}, {"name": "\ud800", "type": "directory"}]), None),
        (_Server({"model.safetensors.index.json": json.dumps({"weight_map": {"a": _HALF}}).encode()}), "UnsafePath"),
        (_Server({"SHA256SUMS": _SUMS + b"  \xff.json\n"}), "UnsafePath"),
        (_Server({"SHA256SUMS": _SUMS + b"  a.json\n"}, [{"name": "../b.json"}]), "UnsafePath"),
        (_Server({"SHA256SUMS": b"".join(_SUMS + b"  %d.json\n" % n for n in range(100_001))}), "TooManyFiles"),
        (_Server({}, [{"name": f"d{number}", "type": "directory"} for number in range(50)]), "TooManyFiles"),
        (_Server({}, [{"name": "d", "type": "directory"}, {"name": "a.json"}]), None),
        (_Server({}, [{"name": f"{number:05}{'n' * 300}"} for number in range(60_000)]), "TooManyFiles"),
        (_Server({"SHA256SUMS": (_SUMS + b"  a\n") * 100_001}), "TooManyFiles"),
        (_Server({"SHA256SUMS": b"#\n" * 100_001}), "TooManyFiles"),
        (_Server({"SHA256SUMS": b'{"files":[' + b"[]," * 500_000 + b"0]}"}), "BadManifest"),
        (_Server({"manifest.json": b'{"files":[' + b"[]," * 2_000_000 + b"0]}"}), "BadManifest"),
        (_Server({"manifest.json": b'{"files":["' + b"\\ud83d\\ude00" * 1_000_000 + b'"]}'}), "BadManifest"),
        (
            _Server({"model.safetensors.index.json": b'{"weight_map":{' + b'"a":"b",' * 1_500_000 + b'"a":"b"}}'}),
            "BadManifest",
        ),
    ],
)
def test_names_that_nobody_could_ask_for(server: _Server, reason: str | None) -> None:
    if reason is None:
        assert "a.json" in find_names(server, "").required
        return
    with pytest.raises(WillNotWorkError) as caught:
        find_names(server, "")
    assert reason == caught.value.reason
