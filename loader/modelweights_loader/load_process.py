"""Runs load processes, one or a group of ranks, and turns every way that they can end into a result or an error.

Called by `validate`, `stage` and `tune`. A process is started early, while headers are read, because its imports take
seconds. Must not import torch.

    started -> ready -> request sent -> (progress -> go)* -> result -> next request
       |         |           |                 |
       +---------+-----------+-----------------+--> crashed, killed, hung, closed (each an error of its own)

The process is tied to the thread that started it: when that ends, the kernel kills it. So start it from a thread that
lives as long as the load.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from modelweights_loader.errors import LoaderError, TryAgainError, WillNotWorkError
from modelweights_loader.load.contract import LoadedTensor, LoadRequest, LoadResult
from modelweights_loader.load_errors import error_from_exit, error_from_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LoadProcess", "LoadRequest", "LoadResult", "choose_timeout", "load_together"]

# Not `-m`: that would look for torch in the current folder first, which may be a checkpoint with a torch.py.
_START = "import sys; sys.path[:] = filter(None, sys.path); from modelweights_loader.load.worker import start; start()"
# A cold import of a CUDA build of torch from a slow image store takes about a minute.
_BASE_TIMEOUT_SECONDS = 180.0
# Slower than any storage that is worth staging from.
_SLOWEST_BYTES_PER_SECOND = 50e6
_MAX_EVENT_BYTES = 256 * 2**20
# When a rank dies, the others fail too within moments: time to find the one that was first.
_GRACE_SECONDS = 1.0
# The kernel takes 2^31 ms at most, 24 days; a time-out may be longer.
_LONGEST_WAIT_SECONDS = 86400.0


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

    Use it as a context manager: leaving kills whatever still runs. After an error it is used up.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Starts the process.

        Args:
            command: For tests; the default runs `load.worker` by our own interpreter.

        Raises:
            WillNotWorkError: This user may not run it.
        """
        package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        # An empty entry is the current folder too.
        others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        search = os.pathsep.join([package_parent, *others])
        self._idle_since = time.monotonic()
        argv = list(command or (sys.executable, "-c", _START, str(os.getpid())))
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter, or a test's
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": search},
                # A process group of its own: Ctrl-C reaches only us, and we end it in order.
                start_new_session=True,
            )
        except (PermissionError, FileNotFoundError) as error:
            message = f"the load process can't be started ({error}); let uid {os.geteuid()} run {argv[0]}"
            raise WillNotWorkError(message, reason="LoaderMissing") from error
        self._buffer = bytearray()
        self.versions: dict[str, str] = {}

    def __enter__(self) -> LoadProcess:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the process if it still runs."""
        self.kill()

    def kill(self) -> None:
        """Ends the process at once and collects it. Safe to call more than once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def load(
        self,
        request: LoadRequest,
        timeout_seconds: float,
        on_warning: Callable[[str], None] | None = None,
    ) -> LoadResult:
        """Sends a request and waits for its result. May be called again after a good one.

        Args:
            request: What to load, and how.
            timeout_seconds: For the first load counted from the start of the process, imports included.
            on_warning: Gets what the process warns of.

        Returns:
            What was loaded.

        Raises:
            LoaderError: One of its kinds, with a reason per way that a load can fail.
        """
        return load_together([self], [request], timeout_seconds, on_warning)[0]

    def send(self, message: dict[str, Any]) -> None:
        """Writes one line to the process.

        Args:
            message: A request, or the leave to go on.
        """
        stdin = self.process.stdin
        assert stdin is not None  # noqa: S101 - for the type checker
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            # It died before; reading finds out how.
            return

    def begin(self) -> float:
        """Says from when on the time of the next load counts.

        Returns:
            Of the monotonic clock.
        """
        since = self._idle_since
        self._idle_since = time.monotonic()
        return since if not self.versions else self._idle_since

    def fileno(self) -> int:
        """Returns the descriptor on which events come, for selectors."""
        assert self.process.stdout is not None  # noqa: S101 - for the type checker
        return self.process.stdout.fileno()

    def read_events(self, who: str) -> list[dict[str, Any]]:
        """Reads what has come. Blocks only when nothing has.

        Args:
            who: The process in messages.

        Returns:
            Whole events.

        Raises:
            LoaderError: The process has ended, or wrote what is no event.
        """
        piece = os.read(self.fileno(), 1 << 20)
        if not piece:
            self._raise_ended(who)
        searched = len(self._buffer)
        self._buffer += piece
        if searched > _MAX_EVENT_BYTES:
            message = f"{who} wrote an event without an end"
            raise TryAgainError(message, reason="LoadNoResult")
        if b"\n" not in piece:
            return []
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        return [_parse_event(line, who) for line in lines]

    def describe_state(self) -> str:
        """Says in a word what the process does, for the message of a time-out.

        Returns:
            For example `stopped`.
        """
        try:
            with open(f"/proc/{self.process.pid}/stat", encoding="utf-8", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "gone"
        known = {
            "R": "running",
            "S": "waiting",
            "D": "waiting for storage",
            "T": "stopped",
            "t": "stopped",
            "Z": "dead",
        }
        return known.get(state, state)

    def _raise_ended(self, who: str) -> NoReturn:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            # Closed its pipe but lives on: nothing more can come from it.
            self.kill()
            message = f"{who} closed its pipe without a result; see the log above"
            raise TryAgainError(message, reason="LoadNoResult") from None
        raise error_from_exit(code, who)


def _parse_event(line: bytes, who: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        message = f"{who} wrote what is no event: {line[:80]!r}"
        raise TryAgainError(message, reason="LoadNoResult")
    return event


def load_together(
    processes: Sequence[LoadProcess],
    requests: Sequence[LoadRequest],
    timeout_seconds: float,
    on_warning: Callable[[str], None] | None = None,
    keep_pace: Callable[[int, int, float], None] | None = None,
) -> list[LoadResult]:
    """Loads with one process, or with a group of them. A rank that ends badly ends the others.

    Args:
        processes: By rank.
        requests: By rank.
        timeout_seconds: See `LoadProcess.load`.
        on_warning: Gets what processes warn of.
        keep_pace: Called with rank, bytes so far and the monotonic deadline, for requests with pace_bytes; the rank goes
            on when it returns.

    Returns:
        Results by rank.

    Raises:
        LoaderError: The first failure, which names its rank when there are several. All processes are ended then.
    """
    deadline = max(process.begin() for process in processes) + timeout_seconds
    talk = _Talk(processes, on_warning, keep_pace, deadline)
    try:
        for process, request in zip(processes, requests, strict=True):
            process.send(request._asdict())
        while talk.waiting:
            talk.step(deadline, timeout_seconds)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    return [talk.results[rank] for rank in range(len(processes))]


class _Talk:
    """Events of several processes, until each has given its result."""

    def __init__(
        self,
        processes: Sequence[LoadProcess],
        on_warning: Callable[[str], None] | None,
        keep_pace: Callable[[int, int, float], None] | None,
        deadline: float,
    ) -> None:
        self.results: dict[int, LoadResult] = {}
        self.waiting = set(range(len(processes)))
        self._processes = processes
        self._on_warning = on_warning
        self._keep_pace = keep_pace
        self._deadline = deadline
        self._failures: list[LoaderError] = []

    def step(self, until: float, timeout_seconds: float) -> None:
        """Waits for events and handles them; raises what failed first, or that the time has passed."""
        with selectors.DefaultSelector() as selector:
            for rank in self.waiting:
                selector.register(self._processes[rank], selectors.EVENT_READ, rank)
            ready = selector.select(min(_LONGEST_WAIT_SECONDS, max(0.0, until - time.monotonic())))
        for key, _ in ready:
            try:
                self._handle(key.data)
            except LoaderError as error:
                self.waiting.discard(key.data)
                self._failures.append(error)
        if self._failures:
            raise self._find_first()
        if not ready and time.monotonic() >= until:
            raise self._describe_timeout(timeout_seconds)

    def _handle(self, rank: int) -> None:
        process = self._processes[rank]
        for event in process.read_events(self._name(rank)):
            kind = event["event"]
            if kind == "ready":
                process.versions = {key: str(value) for key, value in event.items() if key != "event"}
            elif kind == "warning" and self._on_warning is not None:
                self._on_warning(str(event["message"]))
            elif kind == "progress":
                if self._keep_pace is not None:
                    self._keep_pace(rank, int(event["bytes"]), self._deadline)
                process.send({"go": True})
            elif kind == "result":
                self.waiting.discard(rank)
                if not event["ok"]:
                    raise error_from_result(event, self._name(rank) if len(self._processes) > 1 else "")
                self.results[rank] = _decode_result(event)

    def _name(self, rank: int) -> str:
        return "the load process" if len(self._processes) == 1 else f"the load process of rank {rank}"

    def _find_first(self) -> LoaderError:
        """The failure that caused the others: a death before what its peers say about it."""
        until = time.monotonic() + _GRACE_SECONDS
        while self.waiting and self._failures[-1].reason == "RankLost" and time.monotonic() < until:
            failures, self._failures = self._failures, []
            try:
                self.step(until, _GRACE_SECONDS)
            except LoaderError as error:
                failures.append(error)
            self._failures = failures
        others = (error for error in self._failures if error.reason not in {"RankLost", "LoadTimeout"})
        return next(others, self._failures[0])

    def _describe_timeout(self, timeout_seconds: float) -> LoaderError:
        """Says who did not answer, and in what state it is."""
        imported = all(process.versions for process in self._processes)
        stage = "while loading" if imported else "while importing torch and fastsafetensors"
        states = "; ".join(
            f"rank {rank}: {'done' if rank in self.results else process.describe_state()}"
            for rank, process in enumerate(self._processes)
        )
        who = "the load process" if len(self._processes) == 1 else f"a group of load processes ({states})"
        message = (
            f"{who} did not end within {timeout_seconds:.0f} s, {stage}; "
            "check the storage, or give more time with --timeout-seconds"
        )
        return TryAgainError(message, reason="LoadTimeout")


def _decode_result(event: dict[str, Any]) -> LoadResult:
    fields = {key: event[key] for key in LoadResult._fields}
    return LoadResult(**{**fields, "tensors": [LoadedTensor(*tensor) for tensor in event["tensors"]]})
