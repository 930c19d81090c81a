"""What kopf's handlers add to kopf: the flag, without which kopf's own task that waits for it keeps an operator that ended for 5 s."""

import asyncio
from typing import Any

import kopf

from modelweights_operator import handlers


async def test_an_operator_that_has_finished_says_so_to_whoever_waits_for_the_flag() -> None:
    stop = asyncio.Event()
    waiter = asyncio.create_task(stop.wait())
    # kopf's type asks for all that kopf passes.
    clean_up: Any = handlers.stop
    await clean_up(memo=kopf.Memo(stop=stop))
    async with asyncio.timeout(5):
        assert await waiter
