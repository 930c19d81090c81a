"""The registry's folder is emptied when it is too large, and never while an instance uses it."""

import json
import os
from pathlib import Path

import pytest

from tests.cluster import registry_store
from tests.cluster.paths import InstancePaths, registry_storage
from tests.cluster.state import Process


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 100 bytes in the registry."""
    monkeypatch.setenv("MODELWEIGHTS_CACHE", str(tmp_path))
    path = registry_storage() / "docker" / "layer"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(100))
    return path


@pytest.mark.parametrize(("limit_bytes", "emptied"), [(99, True), (100, False)])
def test_it_is_emptied_above_the_limit(layer: Path, limit_bytes: int, *, emptied: bool) -> None:
    assert registry_store.bound_registry(limit_bytes) == emptied
    assert layer.exists() != emptied


def test_it_stays_while_an_instance_runs(layer: Path) -> None:
    instance = InstancePaths("busy")
    instance.root.mkdir(parents=True)
    Process.of(os.getpid()).write(instance.supervisor)

    assert not registry_store.bound_registry(99)
    assert layer.exists()
    assert json.loads(instance.supervisor.read_text())
