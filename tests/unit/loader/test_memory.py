"""How much fits: the machine, control groups of both versions, at every level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelweights_loader.memory import measure_room

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


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
    ids=["no group", "no limit", "limit", "of the pod", "resident", "cache is free", "v1", "v1 no limit", "v1 totals"],
)
def test_the_smaller_bound_counts(
    tmp_path: Path, lines: str, files: dict[str, str], resident: int, expected_gib: float
) -> None:
    room = measure_room(resident, *_fake(tmp_path, lines, files))
    assert room.room_bytes / GIB == pytest.approx(expected_gib, rel=1e-6)


def test_this_machine_has_room() -> None:
    assert measure_room(0).room_bytes > 0
