"""A server as a process on loopback, with a folder of its own. Base of the servers beside this module."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.polling import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

_SECONDS_TO_START = 60
_SECONDS_TO_END = 10


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody had a moment ago."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class ServerProcess:
    """A context manager around one process; `home` is a folder on the disk that goes with it."""

    end_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, name: str) -> None:
        self.home = Path(tempfile.mkdtemp(dir="/var/tmp", prefix=f"{name}-"))
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Program and arguments."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Variables beside those of this process."""
        return {}

    def answers(self) -> bool:
        """Whether it is ready."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        log = self.home / "output"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command(), cwd=self.home, env={**os.environ, **self.environment()}, stdout=output, stderr=output
            )
        if not wait_for(self.answers, _SECONDS_TO_START):
            text = log.read_text(errors="replace")
            self.__exit__(None, None, None)
            raise AssertionError(f"{self._name} does not answer:\n{text[-2000:]}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and remove its folder."""
        if self._process is not None:
            self._process.send_signal(self.end_signal)
            self._process.wait(_SECONDS_TO_END)
        shutil.rmtree(self.home, ignore_errors=True)
