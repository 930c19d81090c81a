"""Says how many bytes of page cache fit, for this machine and for this process's control group.

Called by `prefetch` before it reads. The page cache is charged to the pod that reads a page first, so a memory limit
below the checkpoint's size would evict what was just warmed. Must not import torch.
"""

from __future__ import annotations

import os
from typing import NamedTuple

# As vLLM's own prefetch decides: weights beyond nine tenths of what is available push out each other.
DEFAULT_RESERVE_PERCENT = 10.0
# Control group v1 says "no limit" with a number near 2^63, rounded to pages.
_NO_LIMIT_BYTES = 2**60


class MemoryRoom(NamedTuple):
    """Bytes of page cache that fit, and who sets the bound: `host` or a control group's file."""

    room_bytes: int
    bound_by: str


class Reserve(NamedTuple):
    """What is to stay free: a share of what is available, or a number of bytes (then percent is 0).

    Where GPU and processor share their memory, the page cache takes what the GPU is to have. No machine says so in a way
    that can be trusted, so nothing is detected: there, reserve what the engine needs, or turn prefetch off.
    """

    percent: float = DEFAULT_RESERVE_PERCENT
    size_bytes: int = 0

    def take_from(self, available_bytes: int) -> int:
        """Takes it away.

        Args:
            available_bytes: What there is.

        Returns:
            What is left, at least 0.
        """
        return max(0, int(available_bytes * (1 - self.percent / 100)) - self.size_bytes)


def measure_room(
    resident_bytes: int, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup", reserve: Reserve | None = None
) -> MemoryRoom:
    """Measures how much of a checkpoint can be in memory at once.

    Args:
        resident_bytes: What of it is in the page cache already. MemAvailable counts that as available, but a control
            group counts only what its own processes read first.
        proc: Where procfs is mounted.
        cgroup: Where the control groups are mounted.
        reserve: What is to stay free; default: a tenth, as the engines' own prefetch keeps it.

    Returns:
        The smallest bound.
    """
    reserve = reserve or Reserve()
    rooms = [MemoryRoom(reserve.take_from(_read_available(proc)), "host MemAvailable")]
    for limit in _list_limits(proc, cgroup):
        # What is resident is charged to this group, then it is part of its cache, or to another one, and costs nothing.
        charged_elsewhere = max(0, resident_bytes - limit.cache_bytes)
        rooms.append(MemoryRoom(reserve.take_from(limit.free_bytes) + charged_elsewhere, limit.file))
    return min(rooms, key=lambda room: room.room_bytes)


def _read_available(proc: str) -> int:
    try:
        with open(os.path.join(proc, "meminfo"), encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        # What the kernel says without /proc: memory that nothing uses, less than could be had.
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _NO_LIMIT_BYTES


class _Limit(NamedTuple):
    """A group's limit: bytes that are free under it (its page cache counts as free), and the page cache in it."""

    file: str
    free_bytes: int
    cache_bytes: int


def _list_limits(proc: str, cgroup: str) -> list[_Limit]:
    """The limits at every level that this process can see."""
    found = []
    for folder, limit_names, usage_name in _list_groups(proc, cgroup):
        usage = _read_number(os.path.join(folder, usage_name)) or 0
        cache = _read_file_cache(folder)
        for name in limit_names:
            path = os.path.join(folder, name)
            limit = _read_number(path)
            if limit is not None and limit < _NO_LIMIT_BYTES:
                found.append(_Limit(path, max(limit - max(usage - cache, 0), 0), cache))
    return found


def _list_groups(proc: str, cgroup: str) -> list[tuple[str, tuple[str, ...], str]]:
    groups: list[tuple[str, tuple[str, ...], str]] = []
    try:
        with open(os.path.join(proc, "self", "cgroup"), encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    names: tuple[str, ...]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            # Above `high` the kernel takes pages back, long before `max`.
            mount, names, usage = cgroup, ("memory.max", "memory.high"), "memory.current"
        elif "memory" in controllers.split(","):
            mount, names = os.path.join(cgroup, "memory"), ("memory.limit_in_bytes",)
            usage = "memory.usage_in_bytes"
        else:
            continue
        # In a container the path is that of the host, or "/", while the mount shows only our own group: try all levels.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders = {os.path.join(mount, *parts[:depth]) for depth in range(len(parts) + 1)}
        groups += [(folder, names, usage) for folder in sorted(folders)]
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
