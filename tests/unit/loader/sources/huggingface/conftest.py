"""Keeps the caller's proxies and accounts out of the tests of the hub; opens repositories and closes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from modelweights_loader.sources.contract import SourceOptions
from modelweights_loader.sources.huggingface import HuggingFaceSource
from tests.servers.hub import Hub
from tests.servers.repositories import NAME, make_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOREIGN = ("HF_", "HUGGING", "TRANSFORMERS_", "SSL_CERT_")


class OpenHub(Protocol):
    """Opens a repository of a hub; it is closed after the test."""

    def __call__(self, hub: Hub | None, name: str = NAME, **options: Any) -> HuggingFaceSource: ...


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, no token, no mirror, unless a test says so."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(_FOREIGN):
            monkeypatch.delenv(name)


@pytest.fixture
def open_hub() -> Iterator[OpenHub]:
    opened = []

    def open_it(hub: Hub | None, name: str = NAME, **options: Any) -> HuggingFaceSource:
        endpoint = {} if hub is None else {"endpoint": hub.url}
        opened.append(HuggingFaceSource(name, SourceOptions(**{**endpoint, **options})))
        return opened[-1]

    yield open_it
    for source in opened:
        source.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    make_repository(tmp_path / "hub")
    with Hub(tmp_path / "hub") as served:
        yield served
