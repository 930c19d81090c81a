"""The cluster that the other tests stand on is what it claims to be, and leaves nothing behind."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.cluster import selftest
from tests.cluster.embedded import Embedded
from tests.cluster.providers import Cluster
from tests.e2e.site import Site

ENDS = {"taken-down": False, "supervisor-killed": True}
"""Whether the supervisor is killed first."""


@pytest.fixture(scope="module")
def leftovers(cluster: Cluster) -> Iterator[dict[str, Future[None]]]:
    """Another cluster comes and goes twice, beside the first test: that one waits for most of its time."""
    ends = ENDS if isinstance(cluster, Embedded) else {}
    with ThreadPoolExecutor(1) as pool:
        yield {
            end: pool.submit(selftest.check_nothing_is_left, "leftovers", kill_supervisor=kill)
            for end, kill in ends.items()
        }


@pytest.mark.usefixtures("leftovers")
def test_cluster_is_a_real_one(site: Site) -> None:
    """Among all else it reboots the nodes, with the operator installed."""
    selftest.check_cluster(site.cluster)


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_it_is_left(leftovers: dict[str, Future[None]], end: str) -> None:
    assert end in leftovers, "what other clusters leave behind is theirs to test"
    leftovers[end].result()
