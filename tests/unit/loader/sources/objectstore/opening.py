"""Opens sources that `conftest` closes after each test: a socket that stays open is an error here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelweights_loader.sources.objectstore import ObjectStoreSource

if TYPE_CHECKING:
    from modelweights_loader.sources.contract import SourceOptions

_OPENED: list[ObjectStoreSource] = []

STALL_SECONDS = 1.5
"""For tests that break one transfer: long enough for the honest answers beside it on a machine that is busy otherwise."""


def open_source(url: str, options: SourceOptions) -> ObjectStoreSource:
    """Open one."""
    source = ObjectStoreSource(url, options)
    _OPENED.append(source)
    return source


def close_sources() -> None:
    """Close all that were opened."""
    while _OPENED:
        _OPENED.pop().close()
