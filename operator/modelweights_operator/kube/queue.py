"""One task per object that has something to do, woken by events. Called by the reconcilers.

Events coalesce: however many come while an object is worked on, it is worked on once more. An object without work has
no task.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from modelweights_operator import errors
from modelweights_operator.kube import backoff

K = TypeVar("K")

MAX_BACKOFF_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


class Observe(Protocol):
    """Is told of each time a key was worked on."""

    def __call__(self, seconds: float, *, failed: bool) -> None:
        """It took so long, and failed or didn't."""
        ...


def ignore(seconds: float, *, failed: bool) -> None:
    """Nobody wants to know."""


class WorkQueue(Generic[K]):
    """Runs `work(key)` for each key that is woken, a few at a time and never twice at once for the same key.

    Args:
        work: Does what is to be done; returns after how many seconds it wants to be called again, or None.
        concurrency: How many keys are worked on at the same time.
        observe: Is told how long it took.
    """

    def __init__(
        self, work: Callable[[K], Awaitable[float | None]], concurrency: int = 16, observe: Observe = ignore
    ) -> None:
        self._work, self._observe = work, observe
        self._slots = asyncio.Semaphore(concurrency)
        self._woken: dict[K, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys with a task."""
        return len(self._woken)

    def wake(self, key: K) -> None:
        """Have the key worked on as soon as there is a place."""
        if self._closing.is_set():
            return
        if key in self._woken:
            self._woken[key].set()
            return
        self._woken[key] = asyncio.Event()
        self._woken[key].set()
        task = asyncio.get_running_loop().create_task(self._run(key), name=f"reconcile {key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Begin nothing new, and let what is being worked on come to its end for so long."""
        self._closing.set()
        for woken in self._woken.values():
            woken.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        """Begin nothing new, and end what is being worked on where it is."""
        await self.finish(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, key: K) -> None:
        failures, woken = 0, self._woken[key]
        while not self._closing.is_set():
            woken.clear()
            again, failed = await self._attempt(key, failures)
            failures = failures + 1 if failed else 0
            # No await between this check and the removal: a wake in between would be lost.
            if again is None and not woken.is_set():
                break
            if failed:
                # Not cut short by events: an API server in trouble must not be asked more for it.
                await sleep_until_set(self._closing, again or 0)
            elif again is not None:
                await sleep_until_set(woken, again)
        del self._woken[key]

    async def _attempt(self, key: K, failures: int) -> tuple[float | None, bool]:
        try:
            async with self._slots:
                # Many may have waited for their turn when the end came.
                return (None if self._closing.is_set() else await self._observed(key)), False
        except errors.NotLeadingError:
            # Said once, by the election. If this operator goes on, it looks again.
            return backoff.delay(failures, MAX_BACKOFF_SECONDS), True
        except errors.ConflictError:
            return backoff.delay(failures, MAX_BACKOFF_SECONDS, first_seconds=backoff.CONFLICT_SECONDS), True
        except errors.ApiError as error:
            seconds = backoff.delay(failures, MAX_BACKOFF_SECONDS, error.retry_after_seconds)
            _log.warning("%s: %s; again in %.1f s", key, error, seconds)
            return seconds, True
        except Exception:  # noqa: BLE001 - the task's edge: one object's fault must not end the others' work
            seconds = backoff.delay(failures, MAX_BACKOFF_SECONDS)
            _log.exception("%s: unexpected; again in %.1f s", key, seconds)
            return seconds, True

    async def _observed(self, key: K) -> float | None:
        began, failed = time.monotonic(), True
        try:
            again = await self._work(key)
            failed = False
            return again
        finally:
            self._observe(time.monotonic() - began, failed=failed)


async def sleep_until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
