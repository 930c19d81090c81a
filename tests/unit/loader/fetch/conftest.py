"""Ways to fetch within the test's process, shared by the tests of fetch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from modelweights_loader.fetch.fetching import FetchOptions, FetchResult, fetch
from modelweights_loader.fetch.workers import DownloadOptions
from modelweights_loader.memory import Reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.loader.fetch.scripted_source import ScriptedSource

MIB = 2**20
QUICK = DownloadOptions(num_connections=4, part_bytes=MIB, max_attempts=4, first_wait_seconds=0.001)


class Fetch(Protocol):
    """Fetches into the test's home."""

    def __call__(self, source: ScriptedSource, **options: Any) -> FetchResult:
        """Fetch it; options of `FetchOptions`."""


@pytest.fixture
def home() -> Iterator[Path]:
    """In memory, where bringing data to the disk costs nothing; tests that are about a disk have the fixture `disk`."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loader-test-") as folder:
        yield Path(folder) / "home"


@pytest.fixture
def fetch_it(home: Path) -> Fetch:
    def run(source: ScriptedSource, **options: Any) -> FetchResult:
        given = {"url": "hf://org/tiny", "download": QUICK, "reserve": Reserve(percent=0), **options}
        return fetch(str(home), source, FetchOptions(**given))

    return run


def read_published(home: Path, result: FetchResult) -> dict[str, bytes]:
    """All files of what was published, by path."""
    assert result.published is not None
    folder = home / result.published.folder
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
