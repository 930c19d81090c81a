"""Waits for what a test expects: asks again and again, with a deadline. Used by all tiers."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_POLL_SECONDS = 0.02


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Poll until the condition holds; return whether it did before the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def poll(
    what: str,
    ask: Callable[[], T | None],
    *,
    seconds: float = 60,
    every: float = 0.1,
    show: Sequence[Callable[[], str]] = (),
) -> T:
    """Ask until the answer is true, and return it.

    Raises:
        AssertionError: It wasn't in time; the message ends with what `show` gives.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            details = "\n".join(each() for each in show)
            raise AssertionError(f"{what}: not within {seconds:g} s; last answer: {answer!r}\n{details}")
        time.sleep(every)
