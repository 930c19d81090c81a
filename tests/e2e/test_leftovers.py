"""A cluster leaves nothing behind, however it ends.

The second module of all (see the conftest): the process that gets it has no cluster of its own yet, so that there are two at a time.
"""

import pytest

from tests.cluster import selftest
from tests.cluster.embedded import Embedded
from tests.cluster.providers import Cluster

ENDS = {"taken-down": False, "supervisor-killed": True}
"""Whether the supervisor is killed first."""


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_it_is_left(chosen: Cluster, end: str) -> None:
    assert isinstance(chosen, Embedded), "what other clusters leave behind is theirs to test"
    selftest.check_nothing_is_left("leftovers", kill_supervisor=ENDS[end])
