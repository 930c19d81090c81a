"""Control groups (version 1) that stand in for slow disks and small machines. Called by the benchmarks of the loader."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.bench.processes import BenchmarkError
from tests.control_groups import ROOT, GroupInUseError, make_group


@contextlib.contextmanager
def _make(controller: str, name: str) -> Iterator[Path]:
    parent = ROOT / controller
    if not (parent / "cgroup.procs").exists() or os.geteuid() != 0:
        raise BenchmarkError(f"this needs root and control groups of version 1 with the controller {controller}")
    try:
        with make_group(parent, f"bench-{name}") as group:
            yield group
    except GroupInUseError as error:
        raise BenchmarkError(str(error)) from error


def find_device(folder: Path) -> str:
    """Major and minor number of the disk below a folder, as control groups name it."""
    number = folder.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    block = Path("/sys/dev/block") / name
    if not block.exists():
        raise BenchmarkError(f"{folder} is not on a disk ({name} is no block device): choose another with --scratch")
    # Limits are for whole disks.
    return (block.resolve().parent / "dev").read_text().strip() if (block / "partition").exists() else name


@contextlib.contextmanager
def throttle(folder: Path, bytes_per_second: int) -> Iterator[Path]:
    """A group whose processes read no faster from the disk below a folder; the page cache isn't throttled."""
    device = find_device(folder)
    with _make("blkio", f"{bytes_per_second}") as group:
        (group / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_second}")
        yield group


@contextlib.contextmanager
def limit_memory(bytes_limit: int) -> Iterator[Path]:
    """A group whose processes share that much memory, page cache included; 0 is without a limit."""
    with _make("memory", "memory") as group:
        if bytes_limit:
            (group / "memory.limit_in_bytes").write_text(str(bytes_limit))
        try:
            yield group
        finally:
            # Pages that stay are charged to the parent otherwise, and the group lives on as a ghost.
            with contextlib.suppress(OSError):
                (group / "memory.force_empty").write_text("0")
