"""Cooling keeps pages warm and moves them off the active list, and reads nothing in that was not there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from modelweights_loader import cooling
from modelweights_loader.checkpoint import CheckpointFile
from modelweights_loader.cooling import cool
from modelweights_loader.residency import METHODS, MethodRefusedError, measure, measure_range
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import evict, run_loader
from tests.unit.loader.memory_group import make_memory_group

SIZE = 64 * 2**20


def _active_file_bytes() -> int:
    found = re.search(r"Active\(file\):\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


def _make(disk: Path) -> CheckpointFile:
    path = disk / "shard"
    path.write_bytes(os.urandom(2**20) * (SIZE // 2**20))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return CheckpointFile("shard", str(path), SIZE)


def test_cooled_pages_stay_resident_and_leave_the_active_list(disk: Path) -> None:
    file = _make(disk)
    for _ in range(3):
        # A page that is read again is activated.
        Path(file.real_path).read_bytes()
    before = _active_file_bytes()
    result = cool((file,))
    assert (result.cooled_bytes, result.refusals) == (SIZE, ())
    # Other processes read files at the same time, so half of it has to do.
    assert before - _active_file_bytes() > SIZE // 2
    assert measure((file,)).percent == 100.0


def test_what_is_not_resident_is_not_read_in(disk: Path) -> None:
    file = _make(disk)
    descriptor = os.open(file.real_path, os.O_RDONLY)
    os.posix_fadvise(descriptor, SIZE // 2, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    result = cool((file,))
    assert result.cooled_bytes == SIZE // 2
    assert measure((file,)).percent == 50.0


def test_a_refusal_is_said_and_no_error(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooling, "_MADV_COLD", 9999)
    result = cool((_make(disk),))
    assert result.cooled_bytes == 0
    assert result.refusals[0].startswith("MADV_COLD: EINVAL")


@pytest.mark.parametrize("refused", [("cachestat",), ("cachestat", "mincore")])
def test_what_is_not_resident_is_not_read_in_where_better_methods_are_refused(
    disk: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    """Another user's file: read whole to be cooled, it would push out what the memory limit had room for."""
    file = _make(disk)
    descriptor = os.open(file.real_path, os.O_RDONLY)
    os.posix_fadvise(descriptor, SIZE // 2, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    monkeypatch.setattr(cooling, "METHODS", tuple(method for method in METHODS if method not in refused))
    assert cool((file,), all_read=True).cooled_bytes == SIZE // 2
    percent = measure((file,)).percent
    assert percent is not None
    # The samples themselves read single pages.
    assert 50.0 <= percent < 53.0


@pytest.mark.parametrize(("all_read", "cooled"), [(True, SIZE), (False, 0)])
def test_where_nobody_may_know_only_what_was_read_is_cooled(
    disk: Path, monkeypatch: pytest.MonkeyPatch, cooled: int, *, all_read: bool
) -> None:
    def refuse(*_: object) -> int:
        raise MethodRefusedError("no")

    monkeypatch.setattr(cooling, "measure_range", refuse)
    result = cool((_make(disk),), all_read=all_read)
    assert result.cooled_bytes == cooled
    assert result.refusals == (() if all_read else ("unknown residency: no",))


def test_a_huge_hole_is_passed_over(disk: Path) -> None:
    """Piece by piece it would take minutes."""
    path = disk / "hole"
    size = 8 * 2**40
    with path.open("wb") as file:
        file.truncate(size)
    looked = 0

    def count(descriptor: int, offset: int, length: int, method: str) -> int:
        nonlocal looked
        looked += 1
        return measure_range(descriptor, offset, length, method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooling, "measure_range", count)
        assert cool((CheckpointFile("hole", str(path), size),)).cooled_bytes == 0
    assert looked == size // 2**30


def test_a_file_that_has_shrunk_is_said_and_no_error(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _make(disk)
    # It shrinks between the look and the mapping.
    monkeypatch.setattr(cooling, "measure_range", lambda _descriptor, _offset, length, _method: length)
    os.truncate(file.real_path, SIZE // 2 + 1)
    assert cool((file,)).refusals == ("shard has shrunk",)


@pytest.mark.parametrize("cold", ["--pages=Cold", "--cool"])
def test_the_kubelet_sees_a_cooled_checkpoint_as_free_memory(disk: Path, cold: str) -> None:
    """By the counters of a real control group, which are what the kubelet reads: active pages are "used"."""
    model = make_synthetic(disk / "model", SIZE, shards=2)
    evict(model)
    with make_memory_group("cooling") as group:
        for _ in range(2):
            # One read may leave them inactive; validation reads them a second time.
            assert group.run_loader("prefetch", model, "--policy", "Required").code == 0
        before = group.stat["active_file"], group.working_set_bytes
        normal = group.run_loader("report", model, "--pages", "Normal")
        still = group.stat["active_file"]
        cooled = group.run_loader("report", model, "--policy", "Required", cold)
        after = group.stat["active_file"], group.working_set_bytes
        resident = run_loader("residency", model).report["residentPercent"]
        inactive = group.stat["inactive_file"]
    assert (normal.code, cooled.code) == (0, 0)
    # All of it, but for what a kernel that reclaims pages ahead of need (DAMON) took before or since.
    said = re.search(r"; cooled ([0-9.]+) MiB$", cooled.stdout.rstrip())
    assert said is not None
    assert float(said[1]) * 2**20 >= SIZE * 0.9
    assert resident >= 90
    assert "cooled" not in normal.stdout
    # The files are most of what these processes read; the interpreter's own pages are the rest.
    assert before[0] >= SIZE * 0.9
    assert before[1] >= SIZE * 0.9
    assert still >= SIZE * 0.9
    assert after[0] <= SIZE * 0.1
    assert after[1] <= SIZE * 0.4
    assert inactive >= SIZE * 0.9
