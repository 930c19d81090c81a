"""Residency against the truth: every method, on files whose pages are dropped by DONTNEED."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelweights_loader import residency as module
from modelweights_loader.checkpoint import CheckpointFile
from modelweights_loader.residency import METHODS, MethodRefusedError, measure
from modelweights_loader.residency_table import describe_json, format_table
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = os.sysconf("SC_PAGE_SIZE")
PAGES = 4096


@pytest.fixture
def make_file(disk: Path) -> Callable[[float], CheckpointFile]:
    """Writes a file of which a share, from its start, is resident."""

    def make(share: float) -> CheckpointFile:
        path = disk / "shard.safetensors"
        size = PAGES * PAGE - 100
        path.write_bytes(os.urandom(size))
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        # From the back, in whole pages.
        os.posix_fadvise(descriptor, round(PAGES * share) * PAGE, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        return CheckpointFile(path.name, str(path), size)

    return make


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_each_method_tells_the_truth(make_file: Callable[[float], CheckpointFile], method: str, share: float) -> None:
    file = make_file(share)
    residency = measure((file,), (method,))
    assert method == residency.method
    assert residency.percent is not None
    # Samples are right to within twice their own error; the others are exact to one page.
    allowed = 2 * residency.error_percent + 100 / PAGES
    assert residency.percent == pytest.approx(100 * share, abs=allowed)
    assert (residency.error_percent > 0) == (method == "sample")


def test_sampling_hardly_changes_what_it_measures(make_file: Callable[[float], CheckpointFile]) -> None:
    file = make_file(0.0)
    measure((file,), ("sample",))
    after = measure((file,), ("cachestat",)).percent
    # Every sample reads at most its own page in.
    assert after is not None
    assert after <= 100 * (module.DEFAULT_SAMPLES + 1) / PAGES


def test_small_files_are_sampled_in_full(disk: Path) -> None:
    path = disk / "small"
    path.write_bytes(bytes(20 * PAGE))
    residency = measure((CheckpointFile("small", str(path), 20 * PAGE),), ("sample",))
    assert (residency.percent, residency.error_percent) == (100.0, 0.0)


def test_the_report_says_why_a_better_method_was_refused(
    make_file: Callable[[float], CheckpointFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise MethodRefusedError("ENOSYS: the seccomp profile does not know it")

    monkeypatch.setattr(module, "count_cached_bytes", refuse)
    residency = measure((make_file(1.0),))
    assert residency.method == "mincore"
    assert "ENOSYS" in residency.refusals[0]
    assert "seccomp" in residency.refusals[0]
    assert "cachestat: ENOSYS" in format_table(residency)


def test_what_nobody_can_measure_is_unknown_and_never_a_number(disk: Path) -> None:
    residency = measure((CheckpointFile("gone", str(disk / "gone"), 10),))
    assert (residency.percent, residency.resident_bytes, residency.method) == (None, None, "unknown")
    assert "ENOENT" in residency.refusals[0]
    assert "unknown" in format_table(residency)
    assert describe_json(residency)["residentPercent"] is None


def test_empty_files_are_resident(disk: Path) -> None:
    (disk / "empty").touch()
    assert measure((CheckpointFile("empty", str(disk / "empty"), 0),)).percent == 100.0


@pytest.mark.parametrize(("hits", "count"), [(0, 1000), (1000, 1000)])
def test_the_error_is_never_zero_without_having_seen_all(hits: int, count: int) -> None:
    assert 0.001 < module._half_width(hits, count) < 0.005


def test_an_owner_in_a_user_namespace_who_only_looks_like_us_is_not_believed(
    make_file: Callable[[float], CheckpointFile],
) -> None:
    """There every unknown owner is 65534, as is the usual `nobody`, and mincore says 100 % whatever the truth is."""
    file = make_file(0.0)
    os.chown(file.real_path, 1000, 1000)
    # Readable for others, but not writable.
    os.chmod(file.real_path, 0o644)
    script = """
import ctypes, os, sys
from modelweights_loader.checkpoint import CheckpointFile
from modelweights_loader import residency
import random
print(end="ready\\n" if ctypes.CDLL(None).unshare(0x10000000) == 0 else "no user namespace\\n", flush=True)
sys.stdin.readline()
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
found = residency.measure((CheckpointFile("x", sys.argv[1], int(sys.argv[2])),), ("mincore",))
print(os.stat(sys.argv[1]).st_uid, os.geteuid(), found.method, found.refusals)
"""
    command = [sys.executable, "-c", script, file.real_path, str(file.size_bytes)]
    environment = {**os.environ, "PYTHONPATH": str(LOADER)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for kind in ("gid", "uid"):
            Path(f"/proc/{process.pid}/{kind}_map").write_text("65534 5000 1\n", encoding="ascii")
        said, _ = process.communicate("\n", timeout=30)
    assert said.startswith("65534 65534 unknown ")
    assert "behind the end of the file" in said


@pytest.mark.parametrize("size", [0, 1, PAGE + 1])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_resident_behind_the_end_of_a_file_that_has_shrunk(
    make_file: Callable[[float], CheckpointFile], method: str, size: int
) -> None:
    """A large page may reach behind it."""
    file = make_file(1.0)
    os.truncate(file.real_path, size)
    residency = measure((file,), (method,))
    assert (residency.resident_bytes or 0) <= size
    assert residency.size_bytes == file.size_bytes
