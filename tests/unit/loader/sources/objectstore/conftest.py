"""Servers that several modules of tests read from, started once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers.fault_proxy import FaultProxy
from tests.servers.s3 import S3Server
from tests.servers.web import WebServer
from tests.unit.loader.sources.objectstore.opening import close_sources

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server; each test makes buckets of its own."""
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def web() -> Iterator[WebServer]:
    """A real nginx; each test makes folders of its own."""
    with WebServer() as server:
        yield server


@pytest.fixture
def s3_proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A way to the S3 server that can be spoilt."""
    with FaultProxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def web_proxy(web: WebServer) -> Iterator[FaultProxy]:
    """A way to nginx without TLS that can be spoilt."""
    with FaultProxy(web.http_port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_sources()
