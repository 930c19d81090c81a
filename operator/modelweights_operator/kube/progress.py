"""Reads the ends of staging pods' logs, in the background. Called by the reconciler.

A log comes from the node's kubelet, which may be slow or gone: nothing waits for it but the reading itself. What was read
is remembered per Job, at most every 30 s anew; when it has changed the owner is woken, whose status then says it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from modelweights_operator import errors
from modelweights_operator.domain import percent
from modelweights_operator.domain.percent import RunningStep
from modelweights_operator.domain.snapshot import StagingJob
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api

_AT_A_TIME: Final = 8
_SECONDS: Final = 10.0
_TAIL_LINES: Final = "20"
_TAIL_BYTES: Final = "8192"
_FORGOTTEN_AFTER: Final = timedelta(minutes=10)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reading:
    running: RunningStep
    asked_at: datetime
    done_percent: int = 0
    total_bytes: int = 0


class ProgressReader:
    """Knows how far stagings are.

    Args:
        api: The connection.
        may_read: Whether the right to read logs is there.
        on_change: Told the UID of the ModelWeights whose staging went on.
    """

    def __init__(self, api: Api, *, may_read: bool, on_change: Callable[[str], None]) -> None:
        self._api, self._may_read, self._on_change = api, may_read, on_change
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._places = asyncio.Semaphore(_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, jobs: Iterable[StagingJob], now: datetime) -> tuple[StagingJob, ...]:
        """The Jobs with what is known of their progress; reads what is due in the background."""
        return tuple(self._add(job, now) for job in jobs)

    def _add(self, job: StagingJob, now: datetime) -> StagingJob:
        key = (job.namespace, job.name)
        running = percent.running_step(job, now) if self._may_read else None
        if running is None:
            self._readings.pop(key, None)
            return job
        known = self._readings.get(key)
        last = known if known is not None and known.running == running else _Reading(running, now)
        if known is None or now - known.asked_at >= percent.EVERY:
            self._forget(now)
            self._readings[key] = replace(last, asked_at=now)
            task = asyncio.get_running_loop().create_task(self._read(key, job.owner_uid), name=f"log of {key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return replace(job, progress_percent=last.done_percent, total_bytes=last.total_bytes)

    def _forget(self, now: datetime) -> None:
        """Jobs of objects that are gone are asked for no more."""
        old = [key for key, reading in self._readings.items() if now - reading.asked_at > _FORGOTTEN_AFTER]
        for key in old:
            del self._readings[key]

    async def _read(self, key: tuple[str, str], owner_uid: str) -> None:
        reading = self._readings.get(key)
        if reading is None:
            return
        pod, step = reading.running
        query = {"container": step, "tailLines": _TAIL_LINES, "limitBytes": _TAIL_BYTES}
        try:
            async with self._places, asyncio.timeout(_SECONDS):
                text = await self._api.get_text(paths.log(key[0], pod), **query)
        except (errors.ApiError, TimeoutError) as error:
            # It is of interest only, and is asked for again.
            _log.debug("log of %s/%s: %s", key[0], pod, error)
            return
        done = percent.parse(text, step)
        if done is not None and done != reading.done_percent and self._readings.get(key) == reading:
            total_bytes = percent.parse_total(text, step)
            self._readings[key] = replace(reading, done_percent=done, total_bytes=total_bytes)
            self._on_change(owner_uid)

    async def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
