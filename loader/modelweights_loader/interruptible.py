"""Calls a function so that a signal ends the wait for it, even if it hangs in a file system that doesn't answer.

Called by `commands` for everything that touches the checkpoint's files outside of the prefetch's own threads. A system call
that waits for a dead network file system is not interrupted by SIGTERM, and Python runs signal handlers only between
such calls: so the call is made in a thread that may be left behind. Must not import torch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
_POLL_SECONDS = 0.2


def call(function: Callable[[], _Result]) -> _Result:
    """Calls a function in a thread of its own and waits for it.

    Args:
        function: Takes no arguments and changes nothing that matters once nobody waits for it any more.

    Returns:
        What it returns.

    Raises:
        BaseException: What it raises, or what a signal handler raises meanwhile.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="interruptible")
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
    if errors:
        raise errors[0]
    return results[0]
