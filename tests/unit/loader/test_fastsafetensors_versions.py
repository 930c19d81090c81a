"""Both ends of the supported range of fastsafetensors, and one below it, in real processes with the real packages.

The newest is the environment's own. The others are installed as tests/setup.sh does it, pinned by hash, into the cache
outside the clone; torch stays the environment's own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from modelweights_loader.load.versions import find_support, parse_version
from tests.unit.loader.conftest import LOADER
from tests.unit.loader.test_load_worker import SHAPES, write_random

LOCKS = Path(__file__).parent / "fastsafetensors"
# What the oldest of them loads.
OLD_DTYPES = ["BF16", "F16", "F32", "F64", "I8", "U8", "I16", "I32", "I64", "BOOL", "F8_E5M2", "F8_E4M3"]


def _find_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("MODELWEIGHTS_CACHE") or f"{home}/modelweights")


def install(version: str) -> Path:
    """Returns the folder that holds a version, installed once for each lock and Python."""
    cache, lock = _find_cache(), LOCKS / f"{version}.txt"
    found = sorted(cache.glob("uv-*/bin/uv"))
    assert found, f"no uv in {cache}: run tests/setup.sh first"
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    target = cache / "fastsafetensors" / f"{version}-{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                command: list[str | Path] = [found[-1], "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
                command += ["--python", sys.executable, "--target", f"{folder}/packages", "--requirements", lock]
                environment = {**os.environ, "UV_CACHE_DIR": str(cache / "uv-cache")}
                subprocess.run(command, check=True, env=environment, timeout=240)
                (Path(folder) / "packages").rename(target)
    return target


def validate_with(version: str | None, folder: Path, *arguments: str) -> dict[str, Any]:
    """Validates with a version of fastsafetensors (None: the environment's own) and returns the report."""
    search = [str(LOADER)] if version is None else [str(install(version)), str(LOADER)]
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "report.json"
        command = [sys.executable, "-m", "modelweights_loader", "validate", str(folder), "--report", str(report)]
        subprocess.run(
            [*command, "--timeout-seconds", "120", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
            check=False,
            timeout=200,
        )
        content: dict[str, Any] = json.loads(report.read_bytes())
    return content


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old-dtypes")
    for number in range(5):
        write_random(folder / f"model-{number}.safetensors", OLD_DTYPES, number)
    return folder


@pytest.mark.parametrize("queue_size", ["-1", "0", "2"])
@pytest.mark.parametrize("version", ["0.2.0", None])
def test_both_ends_of_the_range_give_every_bit(shards: Path, version: str | None, queue_size: str) -> None:
    report = validate_with(version, shards, "--mode", "Full", "--queue-size", queue_size)
    assert (0, "Validated") == (report["exitCode"], report["reason"]), report
    assert report["comparedBytes"] == report["loadedBytes"]
    assert version in (None, report["fastsafetensorsVersion"])
    # The old one has no bound for a batch.
    assert (report["maxBatchBytes"] == 0) == (version is not None)


def test_what_an_old_version_cannot_do_is_not_claimed(shards: Path) -> None:
    assert validate_with("0.2.0", shards, "--odirect")["engine"]["odirect"] is False


@pytest.mark.parametrize("version", ["0.2.0", None])
def test_a_group_that_cannot_send_a_dtype_is_not_the_checkpoints_fault(tmp_path: Path, version: str | None) -> None:
    """Gloo has no two-byte integers; 0.5.0 sends bytes, but for empty tensors."""
    for number in range(3):
        write_random(tmp_path / f"model-{number}.safetensors", OLD_DTYPES, number, SHAPES[:4])
    report = validate_with(version, tmp_path, "--world-size", "2")
    expected = (0, "Validated") if version is None else (20, "GroupUnsupported")
    assert expected == (report["exitCode"], report["reason"]), report


def test_below_the_range_it_is_refused_with_reason_and_remedy(shards: Path) -> None:
    report = validate_with("0.1.15", shards)
    assert (20, "LoaderUnsupported") == (report["exitCode"], report["reason"])
    assert "0.1.15" in report["message"]
    assert "install fastsafetensors 0.5.0" in report["message"]
    # The other library needs none of it.
    assert validate_with("0.1.15", shards, "--load-format", "safetensors")["exitCode"] == 0


@pytest.mark.parametrize(
    ("version", "supported", "batches", "borrowed"),
    [
        ("0.1.15", False, False, False),
        ("0.2.0", True, False, False),
        ("0.3.3", True, False, False),
        ("0.4.0", True, True, False),
        ("0.5.0", True, True, True),
        ("0.5.0.dev1+cu12", True, True, True),
        ("0.10.0", True, True, True),
        ("1.0", True, True, True),
        ("nonsense", False, False, False),
    ],
)
def test_what_versions_can_do(version: str, *, supported: bool, batches: bool, borrowed: bool) -> None:
    support = find_support(version)
    assert (supported, batches, borrowed) == (not support.refusal, support.batches, support.borrowed)


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("0.10") > parse_version("0.9.9")
