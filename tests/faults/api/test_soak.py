"""A soak of a minute at the size of the long one, with an operator killed each ten seconds of the first third."""

from pathlib import Path

import pytest

from tests.integration.client import Kube
from tests.soak.churn import Size, Soak


@pytest.mark.timeout(1800)
def test_all_becomes_ready_and_goes_without_a_trace(admin: Kube, account_kubeconfig: Path, tmp_path: Path) -> None:
    size = Size(minutes=1, pause_seconds=1, kill_every_seconds=9, sample_seconds=2, least_kills=1)
    with Soak(admin, account_kubeconfig, size, tmp_path / "log") as soak:
        outcome = soak.run()
    print(f"{outcome.happened}; killed {outcome.killed}; Jobs {outcome.jobs}; ready in {outcome.settled_seconds} s")
    assert outcome.killed >= 1
    assert outcome.jobs > 200
