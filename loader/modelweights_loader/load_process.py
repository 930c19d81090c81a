"""Runs the load process, and turns every way that it can end into a result or an error with a reason.

Called by `validate` and `stage`. The process is started early, while headers are read, because its imports take
seconds. Must not import torch.

    started -> ready -> request sent -> result
       |         |           |
       +---------+-----------+--> crashed, killed, hung, closed (each an error of its own)
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from modelweights_loader.errors import BadCheckpointError, LoaderError, NoRoomError, TryAgainError, WillNotWorkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORKER_COMMAND = (sys.executable, "-m", "modelweights_loader._load_worker")
# A cold import of a CUDA build of torch from a slow image store takes about a minute.
_BASE_TIMEOUT_SECONDS = 180.0
# Slower than any storage that is worth staging from.
_SLOWEST_BYTES_PER_SECOND = 50e6
_MAX_EVENT_BYTES = 256 * 2**20

# The last one is the dynamic linker's, while torch is imported.
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "failed to map segment")
_SIGNALS = {
    signal.SIGSEGV: ("LoadSegfault", "usually memory that could not be had; give the pod more memory"),
    signal.SIGBUS: ("LoadBusError", "a file shrank or its storage failed while it was read; check the storage"),
    signal.SIGABRT: ("LoadAborted", "see the log above for what the library said"),
    signal.SIGKILL: ("LoadKilled", "usually out of memory; raise the memory limit of the pod"),
}


def choose_timeout(size_bytes: int) -> float:
    """Chooses a time-out that grows with the bytes to load.

    Args:
        size_bytes: Size of all shards.

    Returns:
        Seconds.
    """
    return _BASE_TIMEOUT_SECONDS + size_bytes / _SLOWEST_BYTES_PER_SECOND


class LoadProcess:
    """A load process that imports its libraries from the moment of its construction.

    Use it as a context manager: leaving kills whatever still runs.
    """

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        """Starts the process.

        Args:
            command: For tests; the default runs `_load_worker`.
        """
        package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        search = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
        # Buffered reads: with O_DIRECT (the default on ext4 and xfs) a warm page cache is read past.
        environment = {**os.environ, "FASTSAFETENSORS_ODIRECT": "0", "PYTHONPATH": search}
        self._started = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, or a test's
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # A process group of its own: Ctrl-C reaches only us, and we end it in order.
            start_new_session=True,
        )
        self._buffer = bytearray()
        self.versions: dict[str, str] = {}
        self.timeout_seconds = 0.0

    def __enter__(self) -> LoadProcess:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the process if it still runs."""
        self.kill()

    def kill(self) -> None:
        """Ends the process at once and collects it. Safe to call more than once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def load(
        self, request: dict[str, Any], timeout_seconds: float, on_warning: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Sends the request and waits for the result.

        Args:
            request: See `_load_worker`.
            timeout_seconds: Counted from the start of the process.
            on_warning: Gets what the process warns of.

        Returns:
            The result event of a good load.

        Raises:
            LoaderError: One of its kinds, with a reason per way that a load can fail.
        """
        self.timeout_seconds = timeout_seconds
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - for the type checker
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            # It died before; the loop below finds out how.
            pass
        deadline = self._started + timeout_seconds
        while True:
            event = self._read_event(deadline)
            if event["event"] == "ready":
                self.versions = {key: str(value) for key, value in event.items() if key != "event"}
            elif event["event"] == "warning" and on_warning is not None:
                on_warning(str(event["message"]))
            elif event["event"] == "result":
                if not event["ok"]:
                    raise _error_from_result(event)
                return event

    def _read_event(self, deadline: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - for the type checker
        searched = 0
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                end = self._buffer.find(b"\n", searched)
                if end >= 0:
                    line = bytes(self._buffer[:end])
                    del self._buffer[: end + 1]
                    return _parse_event(line)
                searched = len(self._buffer)
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self._raise_timeout()
                piece = os.read(stdout.fileno(), 1 << 20)
                if not piece or searched > _MAX_EVENT_BYTES:
                    self._raise_ended()
                self._buffer += piece

    def _raise_timeout(self) -> NoReturn:
        self.kill()
        stage = "while loading" if self.versions else "while importing torch and fastsafetensors"
        message = (
            f"the load process did not end within {self.timeout_seconds:.0f} s, {stage}; "
            "check the storage, or give more time with --timeout-seconds"
        )
        raise TryAgainError(message, reason="LoadTimeout")

    def _raise_ended(self) -> NoReturn:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            # Closed its pipe but lives on: nothing more can come from it.
            self.kill()
            message = "the load process closed its pipe without a result; see the log above"
            raise TryAgainError(message, reason="LoadNoResult") from None
        raise error_from_exit(code)


def _parse_event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        message = f"the load process wrote what is no event: {line[:80]!r}"
        raise TryAgainError(message, reason="LoadNoResult")
    return event


def error_from_exit(code: int) -> LoaderError:
    """Says how a load process ended that gave no result.

    Args:
        code: As `subprocess` gives it: negative for a signal.

    Returns:
        The error to raise.
    """
    if code >= 0:
        message = f"the load process ended with exit code {code} and no result; see the log above"
        return TryAgainError(message, reason="LoadNoResult")
    number = -code
    reason, remedy = {int(key): said for key, said in _SIGNALS.items()}.get(
        number, ("LoadSignalled", "see the log above")
    )
    # Real-time signals have no name here.
    name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
    message = f"the load process was ended by {name}: {remedy}"
    return (NoRoomError if number == signal.SIGKILL else TryAgainError)(message, reason=reason)


def _error_from_result(event: dict[str, Any]) -> LoaderError:
    """Maps what the loader raised; its own errors are plain Exceptions, so words have to do."""
    kind, said = str(event["kind"]), str(event["error"])
    lowered = said.lower()
    if kind == "NoMemory" or any(words in lowered for words in _NO_MEMORY):
        return NoRoomError(f"not enough memory to load ({said}); give more memory", reason="NoMemory")
    if kind == "LoaderMissing":
        message = f"torch and fastsafetensors can't be imported ({said}); install modelweights-operator[loader]"
        return WillNotWorkError(message, reason="LoaderMissing")
    if kind == "DtypeUnsupported":
        message = f"{said}; use a newer version of it (the checkpoint itself is not at fault)"
        return WillNotWorkError(message, reason="DtypeUnsupported")
    if event["errno"] in {errno.EACCES, errno.EPERM}:
        return WillNotWorkError(f"a file may not be read ({said}); make it readable", reason="Forbidden")
    if event["errno"] is not None:
        return TryAgainError(f"the storage failed while loading ({said}); check it", reason="ReadFailed")
    if "cuda" in lowered or "nvidia" in lowered or "hip" in lowered.split():
        return WillNotWorkError(f"the device can't be used ({said}); use --device cpu", reason="DeviceUnavailable")
    if "submit_nogds_read" in lowered or "wait_nogds_read" in lowered or "pread" in lowered:
        return TryAgainError(f"the storage failed while loading ({said}); check it", reason="ReadFailed")
    return BadCheckpointError(f"ParallelLoader refused the checkpoint ({said}); download it again", reason="LoadFailed")
