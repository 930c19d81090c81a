"""Calls a function so that a signal ends the wait for it, even if it hangs in a file system that doesn't answer.

Called by `commands` for everything that touches the checkpoint's files outside of the prefetch's own threads. A system call
that waits for a dead network file system is not interrupted by SIGTERM, and Python runs signal handlers only between
such calls: so the call is made in a thread that may be left behind. Must not import torch.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from modelweights_loader.errors import TryAgainError

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
_POLL_SECONDS = 0.2
_WATCH_SECONDS = 0.01
_NAME = "interruptible"


def call(
    function: Callable[[], _Result], timeout_seconds: float = 0.0, watch: Callable[[], None] | None = None
) -> _Result:
    """Calls a function in a thread of its own and waits for it.

    Args:
        function: Takes no arguments and changes nothing that matters once nobody waits for it any more.
        timeout_seconds: Wait no longer than that; 0 waits for ever.
        watch: Called several times a second meanwhile; what it raises ends the wait too.

    Returns:
        What it returns.

    Raises:
        BaseException: What it raises, or what a signal handler raises meanwhile.
        TryAgainError: It is not done in time.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name=_NAME)
    thread.start()
    deadline = time.monotonic() + timeout_seconds if timeout_seconds else math.inf
    while thread.is_alive():
        left = deadline - time.monotonic()
        if left <= 0:
            message = f"the storage has not answered for {timeout_seconds:g} s; check what is mounted there"
            raise TryAgainError(message)
        thread.join(min(_POLL_SECONDS if watch is None else _WATCH_SECONDS, left))
        if watch is not None:
            watch()
    if errors:
        raise errors[0]
    return results[0]


def has_left_behind() -> bool:
    """Says whether a call still runs that nobody waits for any more."""
    return any(thread.name == _NAME for thread in threading.enumerate())
