"""What is recorded of an instance, so that any later process can find it, end it and tell it from a stranger."""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None: with the id it names a process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _write_json(path: Path, record: "Process | State") -> None:
    """Write a record at once, so that no reader meets half of it."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(record), indent=1) + "\n")
    temporary.rename(path)


@dataclass(frozen=True)
class Process:
    """A process that can be told from another one that got its id later."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Record a running process; raises ProcessLookupError if there is none."""
        start = process_start(pid)
        if start is None:
            raise ProcessLookupError(pid)
        return cls(pid, start)

    @classmethod
    def read(cls, path: Path) -> "Process | None":
        """Return the process that was recorded in a file, or None if there is none that can be read."""
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        _write_json(path, self)

    def alive(self) -> bool:
        return process_start(self.pid) == self.start

    def end(self, timeout_seconds: float, how: signal.Signals = signal.SIGTERM) -> bool:
        """Send a signal and wait; return whether the process is gone."""
        deadline = time.monotonic() + timeout_seconds
        if self.alive():
            os.kill(self.pid, how)
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.alive()


@dataclass(frozen=True)
class State:
    """Written by the supervisor when the instance's init runs.

    Attributes:
        init: the first process of the instance's PID namespace, as the host sees it.
        api_port: port on the host's loopback that leads to the API server.
        registry_port: likewise, to the registry.
    """

    init: Process
    api_port: int
    registry_port: int

    def write(self, path: Path) -> None:
        _write_json(path, self)

    @classmethod
    def read(cls, path: Path) -> "State | None":
        """Return the recorded state, or None if there is none that can be read."""
        try:
            raw = json.loads(path.read_text())
            return cls(Process(**raw["init"]), raw["api_port"], raw["registry_port"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
