"""Control groups for tests and benchmarks: made, asked, and removed again. Needs root."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.polling import wait_for

ROOT: Final = Path("/sys/fs/cgroup")
_REMOVAL_SECONDS: Final = 10.0


class GroupInUseError(Exception):
    """A group can't be removed, since processes are still in it."""


@contextlib.contextmanager
def make_group(parent: Path, name: str) -> Iterator[Path]:
    """Make a group below another one, under a name that tells whose it is, and remove it afterwards.

    Raises:
        GroupInUseError: It can't be removed.
    """
    group = parent / f"modelweights-{os.getpid()}-{name}"
    group.mkdir()
    try:
        yield group
    finally:
        # A process that just ended may still be in it for a moment.
        if not wait_for(lambda: _is_removed(group), _REMOVAL_SECONDS):
            raise GroupInUseError(f"{group} can't be removed: processes are still in it")


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def read_memory_stat(group: Path) -> dict[str, int]:
    """The counters of a memory group, in bytes."""
    lines = (group / "memory.stat").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}
