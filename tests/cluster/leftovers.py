"""Removes what an instance leaves outside of its namespaces: control groups, loop devices, its folder.

Called by the supervisor at the end, and by ``up`` and ``down`` for an instance whose supervisor was killed. Touches only
what carries the instance's name or lies in its folder.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.paths import InstancePaths

_CGROUPS = Path("/sys/fs/cgroup")
_PATIENCE_SECONDS = 10.0


def cgroup_roots() -> list[Path]:
    """Return the root of every control group hierarchy, without links to another one."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    folders = sorted(_CGROUPS.glob("*")) if _CGROUPS.is_dir() else []
    return [each for each in folders if each.is_dir() and not each.is_symlink()]


def cgroups_of(instance: InstancePaths) -> list[Path]:
    """Return the instance's control groups, children before parents."""
    found = []
    for root in cgroup_roots():
        top = root / instance.cgroup
        if top.is_dir():
            found += [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
    return found


def processes_of(instance: InstancePaths) -> set[int]:
    """Return the ids of processes in the instance's control groups."""
    pids: set[int] = set()
    for group in cgroups_of(instance):
        with contextlib.suppress(OSError):
            pids |= {int(line) for line in (group / "cgroup.procs").read_text().split()}
    return pids - {0, os.getpid()}


def loop_devices_of(instance: InstancePaths) -> Iterator[str]:
    """Yield the loop devices whose file lies, or lay, in the instance's folder."""
    listed = subprocess.run(["losetup", "--json", "--list"], check=True, capture_output=True, text=True).stdout
    for device in json.loads(listed or '{"loopdevices": []}')["loopdevices"]:
        if str(device["back-file"]).startswith(f"{instance.root}/"):
            yield device["name"]


def end_processes(instance: InstancePaths) -> None:
    """Kill what still runs in the instance's control groups and wait until it is gone."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while pids := processes_of(instance):
        if time.monotonic() > deadline:
            raise ClusterError(f"instance {instance.name}: processes {sorted(pids)} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _remove_cgroups(instance: InstancePaths) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while groups := cgroups_of(instance):
        for group in groups:
            with contextlib.suppress(OSError):
                group.rmdir()
        if time.monotonic() > deadline:
            raise ClusterError(f"instance {instance.name}: control groups stay: {groups[:3]}")
        time.sleep(0.02)


def remove_leftovers(instance: InstancePaths, *, keep_logs: bool = False) -> None:
    """Remove everything of an instance that has ended; nothing happens if there is nothing.

    Args:
        instance: which one.
        keep_logs: leave the folder with the log files, for who wants to know why it ended.
    """
    end_processes(instance)
    _remove_cgroups(instance)
    for device in loop_devices_of(instance):
        subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)
    if not instance.root.exists():
        return
    for entry in instance.root.iterdir():
        if keep_logs and entry == instance.logs:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    if not keep_logs:
        instance.root.rmdir()
