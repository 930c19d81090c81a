"""The operator killed at some writes of a full staging; `make faults` does it at all of them, and in rollouts and deletions.

Its moments are in tests/integration/interruptions.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import interruptions
from tests.integration.client import Kube
from tests.integration.cluster_double import Team
from tests.integration.interruptions import Site
from tests.integration.operator_process import OperatorProcess
from tests.servers.api_proxy import ApiProxy, Moment


@pytest.fixture
def site(admin: Kube, account_kubeconfig: Path, tmp_path: Path) -> Iterator[Site]:
    """A running operator behind the proxy."""
    with ApiProxy(account_kubeconfig, tmp_path) as proxy:
        team = Team(admin, "")
        with OperatorProcess(proxy.kubeconfig, tmp_path / "log") as operator, interruptions.played(team) as player:
            yield Site(team, proxy, operator, player)
        assert "Traceback" not in operator.log()


@pytest.mark.timeout(600)
def test_killed_at_a_write_it_stages_once_and_loses_nothing(site: Site) -> None:
    # The first Job is made and nobody knows; and the second node's result is there and in no status.
    for number, moment in enumerate([Moment(3, "after"), Moment(12, "before")]):
        site.begin(f"kill-{number}")
        assert interruptions.run(site, interruptions.STAGE, interruptions.revision_of(number), moment)
        site.end()
