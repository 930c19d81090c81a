"""What a process that runs costs, from /proc. Called by `run`."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_EVERY_SECONDS: Final = 1.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


@dataclass(frozen=True)
class Sample:
    """At one moment."""

    at: float
    cpu_seconds: float
    rss_bytes: int


class Watched:
    """Samples of a process, once a second in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def now(self) -> Sample:
        """One sample."""
        return Sample(time.time(), cpu_seconds(self._pid), _memory(self._pid, "VmRSS"))

    def peak_bytes(self) -> int:
        """The most that it had."""
        return _memory(self._pid, "VmHWM")

    def _run(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            try:
                self.samples.append(self.now())
            except (OSError, StopIteration):
                return
