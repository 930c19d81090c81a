"""A soak of seconds; `make soak` takes half an hour, and `make faults` a minute. See tests/soak."""

from pathlib import Path

import pytest

from tests.integration.client import Kube
from tests.soak.churn import Size, Soak


@pytest.mark.timeout(600)
def test_after_seconds_of_churn_all_becomes_ready_and_goes_without_a_trace(
    admin: Kube, account_kubeconfig: Path, tmp_path: Path
) -> None:
    size = Size(5, 6, 0.05, pause_seconds=0.2, kill_every_seconds=1, sample_seconds=0.5, least_events=20, least_kills=1)
    with Soak(admin, account_kubeconfig, size, tmp_path / "log") as soak:
        outcome = soak.run()
    assert outcome.killed >= 1
    assert outcome.jobs > 5
    assert any(sample.rss_mib and sample.jobs for sample in outcome.samples)
