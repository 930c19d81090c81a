"""The cluster that the other tests stand on is what it claims to be, and leaves nothing behind."""

import pytest

from tests.cluster import selftest
from tests.cluster.embedded import Embedded
from tests.cluster.providers import Cluster
from tests.e2e.site import Site


def test_cluster_is_a_real_one(site: Site) -> None:
    """Among all else it reboots the nodes, with the operator installed."""
    selftest.check_cluster(site.cluster)


@pytest.mark.parametrize("kill_supervisor", [False, True], ids=["taken-down", "supervisor-killed"])
def test_nothing_of_it_is_left(cluster: Cluster, kill_supervisor: bool) -> None:  # noqa: FBT001 - a column of the table
    assert isinstance(cluster, Embedded), "what other clusters leave behind is theirs to test"
    selftest.check_nothing_is_left("leftovers", kill_supervisor=kill_supervisor)
