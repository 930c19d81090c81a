"""A real control group with a memory limit, for tests of what the loader may and does hold in memory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.control_groups import ROOT, make_group, read_memory_stat
from tests.unit.loader.conftest import LOADER, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryGroup(NamedTuple):
    """A group of version 1 or 2."""

    folder: Path

    @property
    def stat(self) -> dict[str, int]:
        """Its counters, in bytes."""
        return read_memory_stat(self.folder)

    @property
    def limit_file(self) -> Path:
        """Where its limit stands."""
        names = ("memory.max", "memory.limit_in_bytes")
        return next(self.folder / name for name in names if (self.folder / name).exists())

    @property
    def working_set_bytes(self) -> int:
        """What the kubelet counts as used: all but the inactive file pages."""
        usage = ("memory.current", "memory.usage_in_bytes")
        used = next(int((self.folder / name).read_text()) for name in usage if (self.folder / name).exists())
        return used - self.stat.get("total_inactive_file", self.stat["inactive_file"])

    def run_loader(self, *arguments: str | Path) -> Ran:
        """Runs the loader in the group."""
        path = Path(tempfile.gettempdir()) / f"{self.folder.name}.json"
        # The shell enters the group before the loader starts, so that every byte counts.
        enter = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"'
        loader = [sys.executable, "-m", "modelweights_loader", *map(str, arguments), "--report", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ended = subprocess.run(
                ["sh", "-c", enter, "sh", *loader],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                env=environment,
                cwd="/",
            )
            content: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        finally:
            path.unlink(missing_ok=True)
        return Ran(ended.returncode, ended.stdout, ended.stderr, content)


@contextlib.contextmanager
def make_memory_group(name: str, limit_bytes: int | None = None) -> Iterator[MemoryGroup]:
    """Makes a group below the root of its hierarchy, and removes it afterwards. Needs root."""
    parent = ROOT / "memory" if (ROOT / "memory").is_dir() else ROOT
    with contextlib.ExitStack() as stack:
        try:
            group = MemoryGroup(stack.enter_context(make_group(parent, f"test-{name}")))
            if limit_bytes is not None:
                group.limit_file.write_text(str(limit_bytes))
        except OSError as error:
            pytest.fail(f"a memory group is needed, which takes root and a control group to write to: {error}")
        yield group
