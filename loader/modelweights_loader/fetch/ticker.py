"""Tells how far a fetch is, at every tenth and at least every 30 s. Called by `fetching`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from modelweights_loader.fetch.plan import HAVE
from modelweights_loader.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelweights_loader.fetch.plan import Plan
    from modelweights_loader.fetch.workers import Counts

_PROGRESS_PERCENT = 10
_PROGRESS_SECONDS = 30.0


class Ticker:
    """One for each run; used by one thread."""

    def __init__(self, plan: Plan, counts: Counts, on_progress: Callable[[Progress], None]) -> None:
        """Begins now.

        Args:
            plan: What is to come.
            counts: What has come.
            on_progress: Told.
        """
        self._total = plan.size_bytes
        self._have = sum(one.have_bytes for one in plan.files if one.state == HAVE)
        self._counts = counts
        self._on_progress = on_progress
        self._began = self._told = time.monotonic()
        self._step = 0

    def tick(self) -> None:
        """Tells progress if it is time."""
        now = time.monotonic()
        done = self._have + self._counts.done_bytes
        step = 100 * done // self._total // _PROGRESS_PERCENT if self._total else 0
        if step > self._step or now - self._told >= _PROGRESS_SECONDS:
            self._step, self._told = step, now
            self._tell(done, now)

    def end(self) -> None:
        """Tells the last of it, if that hasn't been told."""
        if self._step * _PROGRESS_PERCENT < 100:  # noqa: PLR2004 - percent
            self._tell(self._have + self._counts.done_bytes, time.monotonic())

    def _tell(self, done: int, now: float) -> None:
        rate = (self._counts.done_bytes - self._counts.proven_bytes) / max(now - self._began, 1e-9)
        left = (self._total - done) / rate if rate > 0 else None
        self._on_progress(Progress(done, self._total, rate, left))
