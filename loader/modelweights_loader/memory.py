"""Says how many bytes of page cache fit, for this machine and for this process's control group.

Called by `prefetch` before it reads. The page cache is charged to the pod that reads a page first, so a memory limit
below the checkpoint's size would evict what was just warmed. Must not import torch.
"""

from __future__ import annotations

import os
from typing import NamedTuple

# As vLLM's own prefetch decides: weights beyond nine tenths of what is available push out each other.
_USABLE_SHARE = 0.9
# Control group v1 says "no limit" with a number near 2^63, rounded to pages.
_NO_LIMIT_BYTES = 2**60


class MemoryRoom(NamedTuple):
    """Bytes of page cache that fit, and who sets the bound: `host` or a control group's file."""

    room_bytes: int
    bound_by: str


def measure_room(resident_bytes: int, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> MemoryRoom:
    """Measures how much of a checkpoint can be in memory at once.

    Args:
        resident_bytes: What of it is in the page cache already. MemAvailable counts that as available, but a control
            group counts only what its own processes read first.
        proc: Where procfs is mounted.
        cgroup: Where the control groups are mounted.

    Returns:
        The smaller one of both bounds, with the slack that the engines' own prefetch keeps.
    """
    rooms = [MemoryRoom(int(_read_available(proc) * _USABLE_SHARE), "host MemAvailable")]
    for limit_file, free in _list_limits(proc, cgroup):
        rooms.append(MemoryRoom(int(free * _USABLE_SHARE) + resident_bytes, limit_file))
    return min(rooms, key=lambda room: room.room_bytes)


def _read_available(proc: str) -> int:
    with open(os.path.join(proc, "meminfo"), encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _NO_LIMIT_BYTES


def _list_limits(proc: str, cgroup: str) -> list[tuple[str, int]]:
    """Free bytes (page cache of the group counts as free) at every level that this process can see."""
    found = []
    for folder, limit_name, usage_name in _list_groups(proc, cgroup):
        limit = _read_number(os.path.join(folder, limit_name))
        usage = _read_number(os.path.join(folder, usage_name))
        if limit is None or limit >= _NO_LIMIT_BYTES:
            continue
        held = max((usage or 0) - _read_file_cache(folder), 0)
        found.append((os.path.join(folder, limit_name), max(limit - held, 0)))
    return found


def _list_groups(proc: str, cgroup: str) -> list[tuple[str, str, str]]:
    groups = []
    try:
        with open(os.path.join(proc, "self", "cgroup"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = cgroup, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            mount, names = os.path.join(cgroup, "memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # In a container the path is that of the host, or "/", while the mount shows only our own group: try all levels.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders = {os.path.join(mount, *parts[:depth]) for depth in range(len(parts) + 1)}
        groups += [(folder, *names) for folder in sorted(folders)]
    return groups


def _read_number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().strip())
    except (OSError, ValueError):
        # "max", or a level that is not mounted here.
        return None


def _read_file_cache(folder: str) -> int:
    wanted = {"inactive_file", "active_file"}
    totals = {"total_inactive_file", "total_active_file"}
    figures: dict[str, int] = {}
    try:
        with open(os.path.join(folder, "memory.stat"), encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name in wanted or name in totals:
                    figures[name] = int(value)
    except (OSError, ValueError):
        return 0
    # Version 1 has both: its plain figures leave out the groups below.
    chosen = totals if totals <= figures.keys() else wanted
    return sum(figures.get(name, 0) for name in chosen)
