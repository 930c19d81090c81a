"""What the API server, or the way to it, does to the operator on purpose: a table of faults for the proxy, each bounded, each counted.

Called by the tests of faults. Bounded, because what is shown is that the operator comes back by itself once they end.
"""

from collections.abc import Callable, Sequence

from tests.integration import interruptions
from tests.integration.interruptions import Site
from tests.polling import poll
from tests.servers.api_proxy import ApiFault, Seen


def _writes(seen: Seen) -> bool:
    return bool(seen.write)


def _watches(seen: Seen) -> bool:
    return seen.watch


def _plain(seen: Seen) -> bool:
    return not seen.watch


FAULTS: dict[str, Callable[[], ApiFault]] = {
    "429 with Retry-After": lambda: ApiFault("refuse", status=429, retry_after=1, every=5, times=5),
    "409 on writes": lambda: ApiFault("refuse", _writes, status=409, every=3, times=4),
    "500": lambda: ApiFault("refuse", status=500, every=5, times=5),
    "no answer to writes": lambda: ApiFault("lose", _writes, every=3, times=4),
    "cut in mid-answer": lambda: ApiFault("cut", _plain, every=5, times=5),
    "watches cut": lambda: ApiFault("cut", _watches, every=20, times=8),
    "410 Gone": lambda: ApiFault("expire", _watches, every=20, times=8),
    "slow": lambda: ApiFault("slow", _plain, seconds=1.0, every=5, times=5),
}


def survive(site: Site, faults: Sequence[ApiFault], revision: int) -> None:
    """A rollout under faults, which must all have been served to their end.

    Raises:
        AssertionError: It didn't end well, broke an invariant, wasn't hit by its faults, or the operator ended.
    """
    pid = site.operator.pid
    site.proxy.faults = faults
    interruptions.run(site, interruptions.ROLL_OUT, interruptions.revision_of(revision))
    # Watches are asked ten times a second whether it is their turn; the others came with the writes of the rollout.
    poll(
        "all faults were served", lambda: all(each.served == each.times for each in faults), show=[lambda: str(faults)]
    )
    site.proxy.faults = ()
    assert site.operator.pid == pid
    assert site.operator.probe("healthz") == 200, "the process that it was lives"
