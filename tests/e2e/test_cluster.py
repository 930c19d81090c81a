"""The cluster that the other tests stand on is what it claims to be."""

from tests.cluster import selftest
from tests.e2e.site import Site


def test_cluster_is_a_real_one(site: Site) -> None:
    """Among all else it reboots the nodes, with the operator installed."""
    selftest.check_cluster(site.cluster)
