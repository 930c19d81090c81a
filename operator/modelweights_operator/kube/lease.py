"""The Lease that says which operator acts, read and written as `domain.election` decides. Run by `__main__`.

`Election` where the operator knows its namespace, `Unopposed` where it doesn't: by hand, outside of a cluster.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Protocol

from modelweights_operator import errors
from modelweights_operator.domain.election import Candidate, Lease, Step, Timing
from modelweights_operator.kube import paths
from modelweights_operator.kube.client import Api, Json
from modelweights_operator.kube.queue import sleep_until_set

LEASE: Final = "modelweights-operator"
_STILL_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


def boot_seconds() -> float:
    """Seconds that also count while the process is stopped or the machine suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Duty(Protocol):
    """Whether this process is the one that acts."""

    async def win(self, stop: asyncio.Event) -> bool:
        """Wait until it is, or `stop` is set; whether it is."""
        ...

    async def keep(self) -> str:
        """Stay the one; returns only when another one is, with a sentence that says so."""
        ...

    def may_write(self) -> bool:
        """Whether it is the one for certain, at this moment."""
        ...

    async def release(self) -> None:
        """Let another one be it at once. Nothing may be written afterwards."""
        ...


class Unopposed:
    """The duty of an operator that runs alone."""

    async def win(self, stop: asyncio.Event) -> bool:
        """At once."""
        return not stop.is_set()

    async def keep(self) -> str:
        """For ever."""
        await asyncio.Event().wait()
        return ""

    def may_write(self) -> bool:
        """Always."""
        return True

    async def release(self) -> None:
        """There is nobody."""


class Election:
    """A candidate for the Lease.

    Args:
        api: A connection of its own, so that renewals never wait behind other requests.
        namespace: The operator's.
        name: This process', unlike any other's.
        timing: How long what lasts.
        clock: Seconds that go on evenly, whatever happens to the process.
        wall: The time as it is written for people; nobody's decision rests on it.
    """

    ready_text: ClassVar[str] = "standby"

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        timing: Timing,
        *,
        clock: Callable[[], float] = boot_seconds,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._path, self._clock, self._wall = api, paths.lease(namespace, LEASE), clock, wall
        self._collection, self._title = paths.leases(namespace), f"Lease {namespace}/{LEASE}"
        self._candidate = Candidate(name, timing)
        self._timing, self._turned_at, self._told = timing, -math.inf, ""

    # --- what health asks of a standby ----------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether it has looked at the Lease, so that it could take over."""
        return self._turned_at > -math.inf

    def is_alive(self) -> str:
        """Why the process is to be restarted; "" when it isn't. An API server that doesn't answer is no reason."""
        still = self._clock() - self._turned_at
        dead = _STILL_SECONDS + self._timing.lease_seconds < still < math.inf
        return f"the leader election stands still for {still:.0f} s" if dead else ""

    # --- the duty -------------------------------------------------------------------------------------------------

    async def win(self, stop: asyncio.Event) -> bool:
        """Stand by until the Lease is this process', or `stop` is set; whether it is."""
        while not stop.is_set() and not self._candidate.leads:
            await sleep_until_set(stop, await self._turn())
        return self._candidate.leads

    async def keep(self) -> str:
        """Renew the Lease until another one has it; returns a sentence that says so."""
        while not self._candidate.lost:  # noqa: ASYNC110 - the sleep is until the next renewal
            await asyncio.sleep(await self._turn())
        holder = self._candidate.lease.holder if self._candidate.lease else ""
        return f"the {self._title} is {holder or 'nobody'}'s now: this process ends and stands by anew"

    def may_write(self) -> bool:
        """Whether nobody else can have the Lease yet."""
        return self._candidate.may_write(self._clock())

    async def release(self) -> None:
        """Let another one take the Lease at once; one that is another's already stays as it is."""
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._now()}
        for _ in range(2):
            if not self._candidate.leads or self._candidate.lease is None:
                return
            try:
                async with asyncio.timeout(self._timing.renew_seconds / 2):
                    await self._patch(spec)
            except errors.ConflictError:
                # A renewal whose answer was not waited for.
                with contextlib.suppress(errors.ApiError, TimeoutError):
                    await self._read()
            except (errors.ApiError, TimeoutError) as error:
                _log.warning("the %s wasn't released: %s", self._title, str(error) or "no answer")
                return
            else:
                _log.info("the %s is released", self._title)
                return

    # --- one turn -------------------------------------------------------------------------------------------------

    async def _turn(self) -> float:
        """Look and do what is to be done; in how many seconds to come again."""
        try:
            async with asyncio.timeout(self._timing.renew_seconds / 2):
                seconds = await self._look_and_act()
        except (errors.ApiError, TimeoutError) as error:
            self._tell(f"no use of the {self._title}: {str(error) or 'no answer'}", logging.WARNING)
            seconds = self._timing.retry_seconds
        self._turned_at = self._clock()
        return seconds

    async def _look_and_act(self) -> float:
        if not self._candidate.leads:
            await self._read()
        step, seconds = self._candidate.next(self._clock())
        if step is Step.WAIT:
            if not self._candidate.leads and self._candidate.lease is not None:
                self._tell(f"stands by: the {self._title} is {self._candidate.lease.holder}'s")
            return seconds
        if step is not Step.LOST:
            try:
                await self._write(step)
            except (errors.ConflictError, errors.NotFoundError):
                await self._read()
        return 0

    async def _read(self) -> None:
        try:
            lease: Lease | None = _lease(await self._api.get(self._path), self._timing)
        except errors.NotFoundError:
            lease = None
        self._candidate = self._candidate.saw(lease, self._clock())

    async def _write(self, step: Step) -> None:
        known, began = self._candidate.lease, self._clock()
        taken = known.transitions if known else 0
        spec: Json = {
            "holderIdentity": self._candidate.name,
            "leaseDurationSeconds": math.ceil(self._timing.lease_seconds),
            "renewTime": self._now(),
        }
        if step is not Step.RENEW:
            spec |= {"acquireTime": spec["renewTime"], "leaseTransitions": taken + 1}
        if step is Step.CREATE:
            body = await self._api.create(self._collection, {**_KIND, "metadata": {"name": LEASE}, "spec": spec})
        else:
            body = await self._patch(spec)
        self._candidate = self._candidate.wrote(_lease(body, self._timing), began)
        self._tell(f"leads: has the {self._title}")

    async def _patch(self, spec: Json) -> Json:
        """Write, unless the Lease was changed since it was read."""
        version = self._candidate.lease.version if self._candidate.lease else ""
        return await self._api.patch(self._path, {"metadata": {"resourceVersion": version}, "spec": spec})

    def _now(self) -> str:
        return self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _tell(self, what: str, level: int = logging.INFO) -> None:
        """Log what is new."""
        if what != self._told:
            self._told = what
            _log.log(level, "%s", what)


_KIND: Final = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}


def _lease(body: Json, timing: Timing) -> Lease:
    spec: dict[str, Any] = body.get("spec") or {}
    return Lease(
        version=body["metadata"]["resourceVersion"],
        holder=spec.get("holderIdentity") or "",
        seconds=float(spec.get("leaseDurationSeconds") or timing.lease_seconds),
        transitions=int(spec.get("leaseTransitions") or 0),
    )
