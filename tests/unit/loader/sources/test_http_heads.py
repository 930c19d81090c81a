"""Heads of requests and answers, as servers and strangers write them."""

from __future__ import annotations

import http.client
import io
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.http_heads import read_headers, read_status, write_head
from modelweights_loader.sources.http_ranges import HttpClient, make_target, parse_origin
from tests.servers.answers import serve_answers

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler


def _open(content: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(content))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"ETag: x\r\n\r\n", "x"),
        (b"etag:x\n\n", "x"),
        (b"ETAG :  x \t\r\n\r\n", "x"),
        (b"ETag: x\r\nETag: y\r\n\r\n", "x"),
        (b"ETag: x\r\n y\r\n\tz\r\nA: b\r\n\r\n", "x y z"),
        (b" y\r\nETag: x\r\n\r\n", "x"),
        (b"no field\r\nETag: x\r\n\r\n", "x"),
        (b"ETag: a:b\r\n\r\n", "a:b"),
        (b"ETag: \xe4\r\n\r\n", "\xe4"),
        (b"A: b\r\n\r\nETag: x\r\n", ""),
        (b"ETag: x", "x"),
        (b"", ""),
    ],
)
def test_fields_of_an_answer(lines: bytes, expected: str) -> None:
    assert expected == read_headers(_open(lines)).get("ETag")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"HTTP/1.1 206 Partial Content\r\n", ("HTTP/1.1", 206, "Partial Content")),
        (b"HTTP/1.0 200\r\n", ("HTTP/1.0", 200, "")),
        (b"HTTP/1.1  404  Not  Found\n", ("HTTP/1.1", 404, "Not  Found")),
    ],
)
def test_status_of_an_answer(line: bytes, expected: tuple[str, int, str]) -> None:
    assert expected == read_status(_open(line))


@pytest.mark.parametrize(
    "line",
    [b"", b"\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 20\r\n", b"HTTP/1.1 2000 OK\r\n", b"ICY 200 OK\r\n", b"x" * 2**17],
)
def test_what_is_no_answer(line: bytes) -> None:
    with pytest.raises(http.client.HTTPException):
        read_status(_open(line))


@pytest.mark.parametrize("value", ["x\r\nEvil: y", "x\ny", "x\ry", "\xe4", "\ud800"])
def test_a_version_that_no_request_can_carry_is_an_end(value: str) -> None:
    with pytest.raises(WillNotWorkError) as caught:
        write_head("GET", "/x", {"Host": "h", "If-Match": value})
    assert ("BadUrl", 20) == (caught.value.reason, caught.value.exit_code)


@pytest.mark.parametrize(
    ("url", "described", "target"),
    [
        ("http://host/a/b?c=d#e", "http://host", "/a/b?c=d"),
        ("HTTP://Host:80", "http://host", "/"),
        ("https://host:8443?a=/b", "https://host:8443", "/?a=/b"),
        ("https://[::1]:5/ä b", "https://[::1]:5", "/%C3%A4%20b"),
        ("http://host/a\r\nb", "http://host", "/a%0D%0Ab"),
    ],
)
def test_parts_of_a_url(url: str, described: str, target: str) -> None:
    assert (described, target) == (parse_origin(url).described, make_target(url))


@pytest.mark.parametrize(
    ("head", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: Close\r\n\r\n", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\n", 1),
    ],
)
def test_a_connection_is_used_again_where_the_server_keeps_it(head: bytes, connections: int) -> None:
    seen = set()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.add(handler.client_address)
        handler.wfile.write(head + b"x")

    with serve_answers(answer) as url, closing(HttpClient(stall_seconds=20, num_connections=1)) as client:
        assert [b"x", b"x"] == [client.send("GET", url, {}).read_all(10) for _ in range(2)]
    assert connections == len(seen)


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", 7),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 7\r\n\r\n", None),
    ],
)
def test_length_of_an_answer(head: bytes, length: int | None) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(head)

    with serve_answers(answer) as url, closing(HttpClient(stall_seconds=20, num_connections=1)) as client:
        given = client.send("GET", url, {})
        assert length == given.length_bytes
        given.close()
