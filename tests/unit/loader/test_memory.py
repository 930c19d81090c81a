"""How much fits: the machine, control groups of both versions, at every level."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.memory import Reserve, measure_room
from tests.checkpoints.synthetic import make_synthetic
from tests.unit.loader.conftest import evict, run_loader
from tests.unit.loader.memory_group import make_memory_group

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
MIB = 2**20


def _fake(tmp_path: Path, lines: str, files: dict[str, str], available_gib: int = 100) -> tuple[str, str]:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_gib * 2**20} kB\n", encoding="ascii")
    (proc / "self" / "cgroup").write_text(lines, encoding="ascii")
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text, encoding="ascii")
    return str(proc), str(groups)


V2 = "0::/pod/container\n"
V1 = "5:cpu:/x\n4:memory:/pod/container\n"


@pytest.mark.parametrize(
    ("lines", "files", "resident", "expected_gib"),
    [
        (V2, {}, 0, 90),
        (V2, {"pod/container/memory.max": "max", "pod/container/memory.current": "1"}, 0, 90),
        (V2, {"pod/container/memory.max": str(10 * GIB), "pod/container/memory.current": str(GIB)}, 0, 8.1),
        (V2, {"pod/memory.max": str(10 * GIB), "pod/container/memory.max": str(20 * GIB)}, 0, 9),
        (V2, {"memory.max": str(10 * GIB)}, 5 * GIB, 14),
        (V2, {"memory.max": str(20 * GIB), "memory.high": str(10 * GIB), "memory.current": "0"}, 0, 9),
        (V2, {"pod/container/memory.high": "max", "pod/container/memory.max": "max"}, 0, 90),
        (
            V2,
            {
                "memory.max": str(10 * GIB),
                "memory.current": str(8 * GIB),
                "memory.stat": f"inactive_file {8 * GIB}\nactive_file 0\n",
            },
            8 * GIB,
            9,
        ),
        (
            V2,
            {
                "memory.max": str(10 * GIB),
                "memory.current": str(8 * GIB),
                "memory.stat": f"anon 1\ninactive_file {4 * GIB}\nactive_file {GIB}\n",
            },
            0,
            6.3,
        ),
        (V1, {"memory/pod/memory.limit_in_bytes": str(10 * GIB)}, 0, 9),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, 0, 90),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": str(10 * GIB),
                "memory/memory.usage_in_bytes": str(10 * GIB),
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GIB}\ntotal_active_file 0\n",
            },
            0,
            1.8,
        ),
    ],
    ids=[
        "no group",
        "no limit",
        "limit",
        "of the pod",
        "resident",
        "high",
        "no high",
        "resident in the group itself",
        "cache is free",
        "v1",
        "v1 no limit",
        "v1 totals",
    ],
)
def test_the_smaller_bound_counts(
    tmp_path: Path, lines: str, files: dict[str, str], resident: int, expected_gib: float
) -> None:
    room = measure_room(resident, *_fake(tmp_path, lines, files))
    assert room.room_bytes / GIB == pytest.approx(expected_gib, rel=1e-6)


def test_this_machine_has_room() -> None:
    assert measure_room(0).room_bytes > 0


@pytest.mark.parametrize(
    ("reserve", "expected_gib"),
    [(Reserve(), 90), (Reserve(25), 75), (Reserve(0, 30 * GIB), 70), (Reserve(0, 200 * GIB), 0), (Reserve(0), 100)],
)
def test_what_is_reserved_stays_free(tmp_path: Path, reserve: Reserve, expected_gib: float) -> None:
    room = measure_room(0, *_fake(tmp_path, V2, {}), reserve=reserve)
    assert room.room_bytes / GIB == pytest.approx(expected_gib, rel=1e-6)


def test_a_reserve_of_bytes_counts_in_the_group_too(tmp_path: Path) -> None:
    files = {"pod/memory.max": str(10 * GIB), "pod/memory.current": "0"}
    room = measure_room(0, *_fake(tmp_path, V2, files), reserve=Reserve(0, 4 * GIB))
    assert (room.room_bytes, room.bound_by) == (6 * GIB, str(tmp_path / "cgroup" / "pod" / "memory.max"))


def test_a_real_group_bounds_what_is_read(disk: Path) -> None:
    """96 MiB of files, a limit of 64 MiB of which the process itself needs some."""
    model = make_synthetic(disk / "model", 96 * MIB, shards=6)
    evict(model)
    with make_memory_group("bound", 64 * MIB) as group:
        required = group.run_loader("prefetch", model, "--policy", "Required")
        assert (required.code, required.report["reason"]) == (40, "NoMemory"), required
        assert required.report["roomBytes"] < 64 * MIB
        assert str(group.limit_file) in required.report["message"]
        cold = run_loader("residency", model)
        assert cold.report["residentBytes"] == 0
        best_effort = group.run_loader("prefetch", model)
        assert (best_effort.code, best_effort.report["reason"]) == (0, "PrefetchedPartly"), best_effort
        assert 32 * MIB < best_effort.report["readBytes"] < 58 * MIB
        # The first files in load order, and no more: nothing of them was pushed out by what came later.
        resident = run_loader("residency", model).report["residentBytes"]
        assert resident >= 0.9 * best_effort.report["readBytes"]
        less = group.run_loader("prefetch", model, "--reserve-memory", "48Mi")
        assert less.report["readBytes"] <= 16 * MIB, less


def test_prefetch_can_be_turned_off(disk: Path) -> None:
    model = make_synthetic(disk / "model", MIB)
    evict(model)
    ran = run_loader("prefetch", model, "--mode", "None", "--policy", "Required")
    assert (ran.code, ran.report["reason"], ran.report["readBytes"]) == (0, "PrefetchOff", 0)
    assert "prefetch is off" in ran.stdout
    staged = run_loader("stage", model, "--prefetch-mode", "None", "--mode", "None")
    assert (staged.code, "prefetch: prefetch is off" in staged.stdout) == (0, True), staged


@pytest.mark.parametrize("amount", ["10", "10%", "0%", "8Gi"])
def test_reserves_are_bytes_or_percent(disk: Path, amount: str) -> None:
    assert run_loader("prefetch", make_synthetic(disk / "model", MIB), "--reserve-memory", amount).code == 0


@pytest.mark.parametrize("amount", ["101%", "-1", "8GB", "%", "nan%"])
def test_other_reserves_are_refused(disk: Path, amount: str) -> None:
    assert run_loader("prefetch", disk, f"--reserve-memory={amount}").code == 2


def test_a_group_whose_name_is_no_utf8_and_a_missing_meminfo_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_bytes(b"4:memory:/pod-\xff\n")
    group = tmp_path / "memory" / os.fsdecode(b"pod-\xff")
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("4096\n", encoding="ascii")
    room = measure_room(0, str(tmp_path), str(tmp_path), Reserve(percent=0))
    assert (room.room_bytes, room.bound_by) == (4096, str(group / "memory.limit_in_bytes"))
    (tmp_path / "self" / "cgroup").unlink()
    free = measure_room(0, str(tmp_path), str(tmp_path), Reserve(percent=0)).room_bytes
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
