"""The operator as a process of its own, with the rights of its service account; ended by its id."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.polling import poll

STORAGE_CLASSES = [{"name": "nvme", "root": "/data", "default": True}, {"name": "tenant", "claimName": "models"}]
REPOSITORY = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class OperatorProcess:
    """`python -m modelweights_operator`; start and kill it as often as needed.

    Args:
        kubeconfig: As whom, and where.
        log: A file.
        sources: The folder of its package.
        identity: Its name at the Lease. All that live one after the other may share one, as containers of one pod do: then none
            waits for the Lease of the one that was killed before it.
        environment: Further settings.
    """

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        sources: Path = REPOSITORY / "operator",
        *,
        identity: str = "test",
        **environment: str,
    ) -> None:
        self._log, self._port, self.identity = log, free_port(), identity
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(sources),
            "MODELWEIGHTS_LOADER_IMAGE": "loader:test",
            "MODELWEIGHTS_HOST_PATH_ROOTS": "/models",
            "MODELWEIGHTS_NAMESPACE": "modelweights-system",
            "MODELWEIGHTS_HEALTH_PORT": str(self._port),
            "MODELWEIGHTS_METRICS_PORT": str(self._port),
            "MODELWEIGHTS_STARTUP_TAINT": "true",
            "MODELWEIGHTS_STORAGE_CLASSES": json.dumps(STORAGE_CLASSES),
            "MODELWEIGHTS_NODE_MEMORY_BUDGET": "80%",
            "MODELWEIGHTS_FETCH": json.dumps({"maxConcurrentPerHost": 2}),
            "MODELWEIGHTS_IDENTITY": identity,
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it acts and is ready."""
        with self._log.open("ab") as log:
            argv = [sys.executable, "-m", "modelweights_operator"]
            self._process = subprocess.Popen(argv, env=self._environment, stdout=log, stderr=log, cwd="/")
        if wait:
            process = self._process
            show = [lambda: f"exit status {process.poll()}; {self.log()[-2000:]}"]
            poll("the operator acts", self.acts, seconds=60, show=show)

    @property
    def pid(self) -> int:
        """Its process id; 0 while it isn't there."""
        process = self._process
        return process.pid if process else 0

    def acts(self) -> bool:
        """Whether it is the one that acts, and has its first picture of the cluster."""
        return self.ask("readyz") == (200, "ok")

    def stands_by(self) -> bool:
        """Whether it is ready to act when nobody else does."""
        return self.ask("readyz") == (200, "standby")

    def probe(self, what: str) -> int:
        """The status of `/healthz` or `/readyz`; 0 without an answer."""
        return self.ask(what)[0]

    def ask(self, what: str) -> tuple[int, str]:
        """The status and the text of `/healthz` or `/readyz`; 0 without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{what}", timeout=5) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def log(self) -> str:
        """All that it said."""
        return self._log.read_text()

    def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
            # One that a test had stopped wouldn't notice.
            self._process.send_signal(signal.SIGCONT)
        try:
            status = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        return status

    def kill_after(self, seconds: float) -> None:
        """Start it and kill it so long after it became ready, wherever it then is."""
        self.start()
        # The moment is the point here, and every one of them must do.
        time.sleep(seconds)
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, and wait for nothing."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = 20) -> int:
        """Wait until it ends by itself; its exit status."""
        assert self._process is not None
        return self._process.wait(seconds)
