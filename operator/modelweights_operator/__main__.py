"""`python -m modelweights_operator`: one of several operators that agree on who acts. Exit code 1, with one line, when it can't.

starts --rights are there--> stands by --has the Lease--> leads: kopf, and with it the reconciler
   |                            |                           |-- SIGTERM: finishes the writes at hand, releases the Lease, exit 0
   |-- SIGTERM: exit 0          |-- SIGTERM: exit 0         |-- another one has the Lease: ends at once, exit 1; restarted, it stands by
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import uuid
from typing import Final

import kopf

from modelweights_operator import (
    errors,
    handlers,  # noqa: F401 - importing it registers the handlers
)
from modelweights_operator import settings as own_settings
from modelweights_operator.domain.election import Timing
from modelweights_operator.kube import rights
from modelweights_operator.kube.client import Api, Fence
from modelweights_operator.kube.health import Health
from modelweights_operator.kube.lease import LEASE, Duty, Election, Unopposed
from modelweights_operator.kube.queue import sleep_until_set
from modelweights_operator.metrics import Metrics
from modelweights_operator.settings import Settings

_RETRY_SECONDS: Final = 2.0
_TRY_AGAIN: Final = (0, 429, 500, 502, 503, 504)

_log = logging.getLogger("modelweights_operator")


def main() -> int:
    """Run the operator until SIGTERM; blocks."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # kopf logs each event that it passes on; what the operator does it says itself.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(_run())
    except errors.OperatorError as error:
        _say(str(error))
        return 1
    return 0


def _say(what: str) -> None:
    sys.stderr.write(f"modelweights-operator: {what}\n")


async def _run() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings = own_settings.from_environment()
    metrics = Metrics()
    async with (
        Health(settings.health_port, settings.metrics_port, metrics.text) as health,
        await Api.connect(traces=[metrics.trace]) as api,
    ):
        await _await_rights(api, settings, stop)
        duty: Duty = Unopposed()
        if settings.namespace:
            name = settings.identity or f"{socket.gethostname()}_{uuid.uuid4()}"
            duty = health.watched = Election(api, settings.namespace, name, Timing.of(settings.lease_seconds))
        if await duty.win(stop):
            await _lead(duty, settings, health, metrics, stop)


async def _await_rights(api: Api, settings: Settings, stop: asyncio.Event) -> None:
    """Check the rights, also with an API server that comes up later: ending now would only mean to wait for a restart."""
    told = ""
    while not stop.is_set():
        try:
            # kopf would wait for ever for a right that is missing.
            await rights.check(api)
            if settings.namespace:
                await rights.check_lease(api, settings.namespace, LEASE)
        except errors.ApiError as error:
            if error.status not in _TRY_AGAIN:
                raise
            if str(error) != told:
                _log.warning("waits for the API server: %s", error)
            told = str(error)
            await sleep_until_set(stop, _RETRY_SECONDS)
        else:
            return


async def _lead(duty: Duty, settings: Settings, health: Health, metrics: Metrics, stop: asyncio.Event) -> None:
    """Run kopf and the handlers for as long as the duty lasts."""
    # Before kopf's tasks, since kopf ends in the end all that were made after its own: the Lease is renewed for longer.
    keeping = asyncio.create_task(duty.keep(), name="lease")
    async with await Api.connect(Fence(duty.may_write), [metrics.trace]) as api:
        memo = kopf.Memo(api=api, settings=settings, health=health, metrics=metrics, stop=stop)
        acting = asyncio.create_task(
            kopf.operator(
                registry=kopf.get_default_registry(), standalone=True, clusterwide=True, stop_flag=stop, memo=memo
            ),
            name="kopf",
        )
        await asyncio.wait({keeping, acting}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            # There is nothing to finish: every write would be refused. The end of the process takes all else with it.
            _say(keeping.result())
            os._exit(1)
        keeping.cancel()
        await asyncio.wait({keeping})
        if await api.finish(0):
            await duty.release()
        await acting
        del acting
        await _close_generators()


async def _close_generators() -> None:
    """Let kopf's watches end from the outside in: it leaves them to the garbage collector, and the loop's own end knows no order and complains."""
    before = asyncio.all_tasks()
    gc.collect()
    # In the loop's next round each of those that were found has a task that closes it.
    await asyncio.sleep(0)
    closing = asyncio.all_tasks() - before
    if closing:
        await asyncio.wait(closing, timeout=1)


if __name__ == "__main__":
    sys.exit(main())
